/* Paths -> handlers, driven without a socket. */
#include "testing.h"

#include "server/http/routes.h"

#include <stdlib.h>

static const struct bag_http_route *route(const char *method, const char *path,
                                          struct bag_http_target *target,
                                          struct bag_http_reply *reply)
{
    memset(reply, 0, sizeof *reply);
    return bag_http_route(method, path, target, reply);
}

TEST(test_finds_paths)
{
    static const struct {
        const char *method, *path, *pattern, *model, *version;
    } cases[] = {{"GET", "/", "/", "", ""},
                 {"HEAD", "/", "/", "", ""},
                 {"GET", "/v2", "/v2", "", ""},
                 {"GET", "/v2/health/live", "/v2/health/live", "", ""},
                 {"GET", "/v2/models", "/v2/models", "", ""},
                 {"GET", "/v2/models/items", "/v2/models/{model}", "items", ""},
                 {"GET", "/v2/models/a%20b%2Fc", "/v2/models/{model}", "a b/c", ""},
                 {"GET", "/v2/models/versions", "/v2/models/{model}", "versions", ""},
                 {"GET", "/v2/models/items/versions/12", "/v2/models/{model}/versions/{version}",
                  "items", "12"},
                 {"GET", "/v2/models/i/versions/l%61test", "/v2/models/{model}/versions/{version}",
                  "i", "latest"},
                 {"POST", "/v2/models/infer/infer", "/v2/models/{model}/infer", "infer", ""},
                 {"POST", "/v2/models/i/versions/1/infer",
                  "/v2/models/{model}/versions/{version}/infer", "i", "1"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_http_target target;
        struct bag_http_reply reply;
        const struct bag_http_route *found = route(cases[i].method, cases[i].path, &target, &reply);
        if (!found)
            fail_msg("%s %s: %s", cases[i].method, cases[i].path, reply.body);
        assert_string_equal(found->pattern, cases[i].pattern);
        assert_string_equal(target.model, cases[i].model);
        assert_string_equal(target.version, cases[i].version);
        assert_non_null(found->handler);
        assert_true((found->accept != NULL) == (strcmp(cases[i].method, "POST") == 0));
        assert_true((found->handler == bag_http_post_infer) ==
                    (strstr(cases[i].pattern, "infer") != NULL));
    }
}

TEST(test_rejects_unknown_paths)
{
    static const char *const paths[] = {"",
                                        "/v1",
                                        "/v2/",
                                        "/v22",
                                        "/v",
                                        "/v2/health",
                                        "/v2/models/",
                                        "/v2/models//ready",
                                        "/v2/models/items/",
                                        "/v2/models/items/readyx",
                                        "/v2/models/items/versions",
                                        "/v2/models/items/versions/",
                                        "/v2/models/items/versions/%00",
                                        "/v2/models/items/versions/123456789012345678901",
                                        "/v2/models/items/versions/1/",
                                        "/v2/models/%00",
                                        "/v2/models/a%2",
                                        "/v2/models/a%zz",
                                        "/V2",
                                        "/v1/models/items:predict"};
    char longest[256] = "/v2/models/";
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct bag_http_target target;
        struct bag_http_reply reply;
        if (route("GET", paths[i], &target, &reply))
            fail_msg("found: %s", paths[i]);
        assert_int_equal(reply.status, 404);
        assert_non_null(strstr(reply.body, "unknown path"));
        assert_true((strstr(reply.body, "POST /v2/models/NAME/infer") != NULL) ==
                    (strncmp(paths[i], "/v1/", 4) == 0));
        free(reply.body);
    }
    for (int length = 128; length <= 129; length++) {
        struct bag_http_target target;
        struct bag_http_reply reply;
        memset(longest + 11, 'm', (size_t)length);
        longest[11 + length] = 0;
        assert_true((route("GET", longest, &target, &reply) != NULL) == (length == 128));
        free(reply.body);
    }
}

TEST(test_names_the_methods_that_there_are)
{
    static const struct {
        const char *method, *path, *allow;
    } cases[] = {{"POST", "/v2", "GET, HEAD, OPTIONS"},
                 {"GE", "/v2", "GET, HEAD, OPTIONS"},
                 {"GET, HEAD", "/v2", "GET, HEAD, OPTIONS"},
                 {"", "/v2", "GET, HEAD, OPTIONS"},
                 {"get", "/v2", "GET, HEAD, OPTIONS"},
                 {"GET", "/v2/models/items/infer", "POST, OPTIONS"},
                 {"PUT", "/v2/models/items/infer", "POST, OPTIONS"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_http_target target;
        struct bag_http_reply reply;
        assert_null(route(cases[i].method, cases[i].path, &target, &reply));
        assert_int_equal(reply.status, 405);
        assert_string_equal(reply.allow, cases[i].allow);
        free(reply.body);
    }
}

TEST(test_answers_options)
{
    static const struct {
        const char *path, *allow;
    } cases[] = {{"/", "GET, HEAD, OPTIONS"},
                 {"/v2/models/items", "GET, HEAD, OPTIONS"},
                 {"/v2/models/items/infer", "POST, OPTIONS"},
                 {"/v2/repository/index", "POST, OPTIONS"},
                 {"*", "GET, HEAD, POST, OPTIONS"}};
    struct bag_http_target target;
    struct bag_http_reply reply;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_null(route("OPTIONS", cases[i].path, &target, &reply));
        assert_int_equal(reply.status, 204);
        assert_int_equal(reply.body_bytes, 0);
        assert_string_equal(reply.allow, cases[i].allow);
        free(reply.body);
    }
    assert_null(route("OPTIONS", "/v3", &target, &reply));
    assert_int_equal(reply.status, 404);
    free(reply.body);
    assert_null(route("GET", "*", &target, &reply));
    assert_int_equal(reply.status, 404);
    free(reply.body);
}
