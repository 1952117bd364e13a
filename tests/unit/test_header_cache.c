/* Kept JSON headers: found by their bytes alone, bound to the body at hand. */
#include "testing.h"

#include "server/infer/header_cache.h"

#define HEADER                                                                              \
    "{\"id\":\"7\",\"inputs\":[{\"name\":\"indices\",\"shape\":[2],\"datatype\":\"INT32\"," \
    "\"parameters\":{\"binary_data_size\":8}}]}"
#define HEADER_BYTES (sizeof HEADER - 1)

static char *body_of(const char *header, const char *tensor)
{
    char *body = malloc(strlen(header) + 8);
    memcpy(body, header, strlen(header));
    memcpy(body + strlen(header), tensor, 8);
    return body;
}

static const struct bag_v2_request *find(struct bag_header_cache *header_cache, const char *body)
{
    return bag_header_cache_find(header_cache, body, HEADER_BYTES + 8, HEADER_BYTES);
}

static void learn(struct bag_header_cache *header_cache, const char *body)
{
    bag_header_cache_learn(header_cache, body, HEADER_BYTES + 8, HEADER_BYTES);
}

static void test_keeps_what_comes_twice(void **state)
{
    struct bag_header_cache header_cache = {{NULL}, {0}};
    char *first = body_of(HEADER, "aaaabbbb"), *second = body_of(HEADER, "ccccdddd");
    (void)state;
    assert_null(find(&header_cache, first));
    learn(&header_cache, first);
    assert_null(find(&header_cache, first));
    learn(&header_cache, first);
    free(first); /* nothing kept may point into it */
    const struct bag_v2_request *request = find(&header_cache, second);
    assert_non_null(request);
    assert_int_equal(request->num_inputs, 1);
    assert_ptr_equal(request->inputs[0].raw.data, second + HEADER_BYTES);
    assert_memory_equal(request->inputs[0].raw.data, "ccccdddd", 8);
    assert_ptr_equal(request->id.data, second + 6);
    assert_true(bag_text_is(request->id, "\"7\""));
    free(second);
    bag_header_cache_free(&header_cache);
}

static void test_finds_nothing_but_the_same_bytes(void **state)
{
    struct bag_header_cache header_cache = {{NULL}, {0}};
    char *body = body_of(HEADER, "aaaabbbb");
    (void)state;
    learn(&header_cache, body);
    learn(&header_cache, body);
    assert_non_null(find(&header_cache, body));
    assert_null(bag_header_cache_find(&header_cache, body, HEADER_BYTES + 7, HEADER_BYTES));
    for (size_t i = 0; i < HEADER_BYTES; i++) {
        body[i] ^= 1;
        assert_null(find(&header_cache, body));
        body[i] ^= 1;
    }
    free(body);
    bag_header_cache_free(&header_cache);
}

/* JSON data is never kept, nor what does not decode. */
static void test_keeps_no_data_and_no_errors(void **state)
{
    static const char *const headers[] = {
        "{\"inputs\":[{\"name\":\"a\",\"shape\":[2],\"datatype\":\"INT32\",\"parameters\":"
        "{\"binary_data_size\":8}},{\"name\":\"b\",\"shape\":[1],\"datatype\":\"INT32\","
        "\"data\":[1]}]}",
        "{\"inputs\":[{\"name\":\"a\",\"shape\":[3],\"datatype\":\"INT32\",\"parameters\":"
        "{\"binary_data_size\":8}}]}",
    };
    struct bag_header_cache header_cache = {{NULL}, {0}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(headers); i++) {
        size_t bytes = strlen(headers[i]);
        char *body = body_of(headers[i], "aaaabbbb");
        for (int times = 0; times < 3; times++)
            bag_header_cache_learn(&header_cache, body, bytes + 8, bytes);
        assert_null(bag_header_cache_find(&header_cache, body, bytes + 8, bytes));
        free(body);
    }
    bag_header_cache_free(&header_cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps_what_comes_twice),
        cmocka_unit_test(test_finds_nothing_but_the_same_bytes),
        cmocka_unit_test(test_keeps_no_data_and_no_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
