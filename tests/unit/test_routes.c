/* Paths of two methods, and the methods that OPTIONS lists. http/test_bad_requests.py asks for
 * paths that there are not. */
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
