/* The repository's index in each state of the server, without a socket. */
#include "testing.h"

#include "server/http/request.h"

/* What the index says to a body in a state; the caller frees it. */
static char *ask(enum bag_service_state state, const char *body)
{
    struct bag_model_config models[] = {
        {.name = (char *)(uintptr_t) "a", .version = (char *)(uintptr_t) "1"},
        {.name = (char *)(uintptr_t) "a", .version = (char *)(uintptr_t) "12"},
    };
    struct bag_config config = {.models = models, .num_models = COUNT_OF(models)};
    struct bag_service service = {.config = &config, .state = state};
    struct bag_http_context context = {.service = &service};
    struct bag_http_request request = {
        .context = &context, .body = exact_copy(body, strlen(body)), .body_bytes = strlen(body)};
    assert_int_equal(bag_http_post_index(&request), BAG_HTTP_DONE);
    assert_int_equal(request.reply.status, 200);
    free(request.body);
    return request.reply.body;
}

static void expect_index(enum bag_service_state state, const char *body, const char *want)
{
    char *got = ask(state, body);
    assert_string_equal(got, want);
    free(got);
}

#define ENTRY(version, state, reason) \
    "{\"name\":\"a\",\"version\":\"" version "\",\"state\":\"" state "\",\"reason\":\"" reason "\"}"
#define BOTH(state, reason) "[" ENTRY("1", state, reason) "," ENTRY("12", state, reason) "]"

static void test_states(void **state)
{
    (void)state;
    expect_index(BAG_SERVICE_READY, "", BOTH("READY", ""));
    expect_index(BAG_SERVICE_LOADING, "", BOTH("LOADING", "the tables are still being loaded"));
    expect_index(BAG_SERVICE_DRAINING, "{}", BOTH("UNLOADING", "the server is stopping"));
}

static void test_ready_only(void **state)
{
    (void)state;
    expect_index(BAG_SERVICE_READY, "{\"ready\":true}", BOTH("READY", ""));
    expect_index(BAG_SERVICE_LOADING, "{\"ready\":true}", "[]");
    expect_index(BAG_SERVICE_DRAINING, "{\"ready\":true}", "[]");
    expect_index(BAG_SERVICE_DRAINING, "{\"ready\":false}",
                 BOTH("UNLOADING", "the server is stopping"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_ready_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
