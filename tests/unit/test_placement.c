/* The configurations of nodes and of their front. */
#include "config/placement.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

static const char text[] = "{\"http\": {\"port\": 9000}, \"models\": ["
                           "{\"name\": \"a\", \"path\": \"a.npy\", \"version\": 1},"
                           "{\"name\": \"b\", \"path\": \"/srv/b\", \"keys\": \"k.npy\"},"
                           "{\"name\": \"a\", \"path\": \"/srv/a2.npy\", \"version\": 2},"
                           "{\"name\": \"c\", \"features\": [{\"name\": \"x\", \"model\": \"a\","
                           " \"projection\": \"p.npy\"}]}],"
                           " \"log\": {\"level\": \"info\"}}";

static const uint32_t of_a[] = {2, 0}, of_b[] = {1};
static const struct bag_placed placed[] = {{"a", "rows", of_a, 2}, {"b", "keys", of_b, 1}};

static void begin(struct bag_divided *divided)
{
    struct bag_problem problem;
    assert_true(bag_divided_init(divided, text, strlen(text), "/folder", placed, 2, &problem));
}

/* Without blanks, which cJSON puts in as it likes. */
static void check(char *json, const char *expected)
{
    size_t used = 0;
    assert_non_null(json);
    for (const char *at = json; *at; at++) {
        if (!strchr(" \t\n", *at))
            json[used++] = *at;
    }
    json[used] = 0;
    assert_string_equal(json, expected);
    free(json);
}

static void test_nodes(void **state)
{
    (void)state;
    struct bag_divided divided;
    begin(&divided);
    check(bag_divided_node(&divided, 0),
          "{\"http\":{\"port\":9000},\"log\":{\"level\":\"info\"},\"models\":["
          "{\"name\":\"a\",\"path\":\"/folder/a.npy\",\"version\":1,"
          "\"part\":{\"by\":\"rows\",\"index\":1,\"of\":2}},"
          "{\"name\":\"a\",\"path\":\"/srv/a2.npy\",\"version\":2,"
          "\"part\":{\"by\":\"rows\",\"index\":1,\"of\":2}}]}");
    check(bag_divided_node(&divided, 1),
          "{\"http\":{\"port\":9000},\"log\":{\"level\":\"info\"},\"models\":["
          "{\"name\":\"b\",\"path\":\"/srv/b\",\"keys\":\"/folder/k.npy\"}]}");
    check(bag_divided_node(&divided, 3),
          "{\"http\":{\"port\":9000},\"log\":{\"level\":\"info\"},\"models\":[]}");
    bag_divided_free(&divided);
}

static void test_front(void **state)
{
    (void)state;
    struct bag_divided divided;
    begin(&divided);
    check(bag_divided_front(&divided, "http://n{index}.x:8000"),
          "{\"http\":{\"port\":9000},\"log\":{\"level\":\"info\"},\"models\":["
          "{\"name\":\"a\",\"shards\":[\"http://n2.x:8000\",\"http://n0.x:8000\"]},"
          "{\"name\":\"b\",\"shards\":[\"http://n1.x:8000\"]},"
          "{\"name\":\"c\",\"features\":[{\"name\":\"x\",\"model\":\"a\","
          "\"projection\":\"/folder/p.npy\"}]}]}");
    bag_divided_free(&divided);
}

static void found(void *context, const char *name, uint32_t index, uint32_t of)
{
    char *list = context;
    snprintf(list + strlen(list), 200 - strlen(list), "%s %u/%u;", name, index, of);
}

static void test_what_was_written_is_read(void **state)
{
    (void)state;
    struct bag_divided divided;
    struct bag_problem problem;
    char list[200] = "";
    begin(&divided);
    for (uint32_t node = 0; node < 4; node++) {
        char *json = bag_divided_node(&divided, node);
        assert_true(bag_divided_read(json, strlen(json), found, list, &problem));
        free(json);
    }
    assert_string_equal(list, "a 1/2;a 1/2;b 0/1;a 0/2;a 0/2;");
    bag_divided_free(&divided);
}

/* Files of nodes may have been changed since. */
static void test_what_others_wrote(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}",
        "[]",
        "{\"models\": 1}",
        "{\"models\": [1, {}, {\"name\": 1}]}",
        "{\"models\": [{\"name\": \"a\", \"part\": 1}]}",
        "{\"models\": [{\"name\": \"a\", \"part\": {\"index\": 2, \"of\": 2}}]}",
        "{\"models\": [{\"name\": \"a\", \"part\": {\"index\": -1, \"of\": 2}}]}",
        "{\"models\": [{\"name\": \"a\", \"part\": {\"index\": 0, \"of\": 1e300}}]}",
        "{\"models\": [{\"name\": \"a\", \"part\": {\"index\": 1.2, \"of\": 1.5}}]}",
        "{\"models\": [{\"name\": \"a\", \"part\": {\"index\": 0.5, \"of\": 2}}]}",
    };
    struct bag_problem problem;
    char list[200] = "";
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_true(bag_divided_read(texts[i], strlen(texts[i]), found, list, &problem));
    assert_string_equal(list, "");
    assert_false(bag_divided_read("{", 1, found, list, &problem));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_front),
        cmocka_unit_test(test_what_was_written_is_read),
        cmocka_unit_test(test_what_others_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
