/* The repository's index in each state of the server, without a socket. */
#include "testing.h"

#include "server/http/request.h"
#include "server/http/routes.h"

static void expect_index(enum bag_service_state state, enum bag_model_state model_state,
                         const char *body, const char *want)
{
    char *reason = (char *)(uintptr_t)(model_state == BAG_MODEL_READY ? "" : "because");
    struct bag_model models[] = {
        {.name = (char *)(uintptr_t) "a", .version = (char *)(uintptr_t) "1", .reason = reason},
        {.name = (char *)(uintptr_t) "a", .version = (char *)(uintptr_t) "12", .reason = reason}};
    struct bag_model *both[] = {&models[0], &models[1]};
    struct bag_listed versions[] = {{.model = both[0]}, {.model = both[1]}};
    const struct bag_listed *listed[] = {&versions[0], &versions[1]};
    struct bag_snapshot snapshot = {
        .versions = versions, .models = both, .listed = listed, .count = 2};
    struct bag_service service = {.state = state};
    struct bag_http_context context = {.service = &service};
    struct bag_http_request request = {.context = &context,
                                       .target.snapshot = &snapshot,
                                       .body = exact_copy(body, strlen(body)),
                                       .body_bytes = strlen(body)};
    models[0].state = models[1].state = model_state;
    assert_int_equal(bag_http_post_index(&request), BAG_HTTP_DONE);
    assert_int_equal(request.reply.status, 200);
    free(request.body);
    char *got = request.reply.body;
    assert_string_equal(got, want);
    free(got);
}

#define ENTRY(version, state, reason) \
    "{\"name\":\"a\",\"version\":\"" version "\",\"state\":\"" state "\",\"reason\":\"" reason "\"}"
#define BOTH(state, reason) "[" ENTRY("1", state, reason) "," ENTRY("12", state, reason) "]"

TEST(test_states)
{
    expect_index(BAG_SERVICE_READY, BAG_MODEL_READY, "", BOTH("READY", ""));
    expect_index(BAG_SERVICE_LOADING, BAG_MODEL_LOADING, "", BOTH("LOADING", "because"));
    expect_index(BAG_SERVICE_READY, BAG_MODEL_UNAVAILABLE, "", BOTH("UNAVAILABLE", "because"));
    expect_index(BAG_SERVICE_READY, BAG_MODEL_UNLOADING, "", BOTH("UNLOADING", "because"));
    expect_index(BAG_SERVICE_DRAINING, BAG_MODEL_READY, "{}",
                 BOTH("UNLOADING", "the server is stopping"));
}

TEST(test_ready_only)
{
    expect_index(BAG_SERVICE_READY, BAG_MODEL_READY, "{\"ready\":true}", BOTH("READY", ""));
    expect_index(BAG_SERVICE_LOADING, BAG_MODEL_LOADING, "{\"ready\":true}", "[]");
    expect_index(BAG_SERVICE_DRAINING, BAG_MODEL_READY, "{\"ready\":true}", "[]");
    expect_index(BAG_SERVICE_DRAINING, BAG_MODEL_READY, "{\"ready\":false}",
                 BOTH("UNLOADING", "the server is stopping"));
}
