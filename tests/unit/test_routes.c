/* Paths of two methods, and the methods that OPTIONS lists. http/test_bad_requests.py asks for
 * paths that there are not. */
#include "testing.h"

#include "server/http/routes.h"

#include <stdlib.h>

static bool route(const char *method, const char *path, struct bag_http_target *target,
                  struct bag_http_reply *reply)
{
    struct bag_http_targets targets = {.routes = bag_http_routes};
    memset(target, 0, sizeof *target);
    memset(reply, 0, sizeof *reply);
    return bag_http_target_route(&targets, target, method, path, reply);
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
        assert_false(route("OPTIONS", cases[i].path, &target, &reply));
        assert_int_equal(reply.status, 204);
        assert_int_equal(reply.body_bytes, 0);
        assert_string_equal(reply.allow, cases[i].allow);
        free(reply.body);
    }
    assert_false(route("OPTIONS", "/v3", &target, &reply));
    assert_int_equal(reply.status, 404);
    free(reply.body);
    assert_false(route("GET", "*", &target, &reply));
    assert_int_equal(reply.status, 404);
    free(reply.body);
}
