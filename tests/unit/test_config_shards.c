/* Models of shards: their addresses, and which keys they have. */
#include "config_fixture.h"

#include "config/shards.h"

static void rejected(const char *text, const char *expected)
{
    struct bag_problem problem;
    bag_config_free_models(&fixture->config);
    char *copy = quoted_copy(text, strlen(text));
    assert_false(bag_config_apply_file(&fixture->config, "f", copy, strlen(text), &problem));
    free(copy);
    if (!strstr(problem.text, expected))
        fail_msg("%s: %s", text, problem.text);
}

TEST(test_keys)
{
    static const char *const cases[][2] = {
        {"'path': 'x', 'shards': ['http://a']",
         "key 'path' in model 'a' cannot be combined with 'shards'"},
        {"'features': [], 'shards': ['http://a']",
         "key 'shards' in model 'a' cannot be combined with 'features'"},
        {"'shards': 'http://a'", "shards in model 'a' must be an array of addresses"},
        {"'shards': []", "shards in model 'a' must be an array of addresses"},
        {"'shards': [1]", "shards in model 'a' must be an array of addresses"},
        {"'shards': ['http://a http://b']",
         "shards in model 'a' must be an array of addresses without blanks"},
        {"'shards': ['http://a', '']",
         "shards in model 'a' must be an array of addresses without blanks"},
        {"'version': 2, 'shards': ['http://a']",
         "key 'version' in model 'a' cannot be combined with 'shards', which say their versions"},
        {"'shards': ['http://a'], 'tensor': 'x'",
         "key 'tensor' in model 'a' is of a table's file, and the shards have the files"},
        {"'path': 'x', 'absent': 'skip'", "key 'absent' in model 'a' needs 'shards' beside it"},
        {"'shards': ['http://a'], 'hedge': 'p99'",
         "hedge \"p99\" in model 'a': must be one of off, p95"}};
    char text[256];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        snprintf(text, sizeof text, "{'models': [{'name': 'a', %s}]}", cases[i][0]);
        rejected(text, cases[i][1]);
    }
}

TEST(test_addresses)
{
    struct bag_problem problem;
    static const char *const addresses[][2] = {
        {"a:1", "model 'a': shards: address 'a:1': write http://HOST:PORT or unix:PATH"},
        {"https://a", "https is not spoken; ask a proxy"},
        {"ftp://a", "write http://HOST:PORT or unix:PATH"},
        {"http://user:secret@a", "model 'a': shards: an address must not have a user"},
        {"http://", "write http://HOST:PORT"},
        {"http://a:0", "with a port from 1 to 65535"},
        {"http://a http://a", "model 'a': shards: address 'http://a': it is there twice"},
        {"unix:/a\"b", "it has visible ASCII without quotes and backslashes"},
        {"unix:", "model 'a': shards: address 'unix:': a socket's path has 1 to 107 bytes"},
        {"", "model 'a': shards: there is no address"}};
    char text[256];
    for (size_t i = 0; i < COUNT_OF(addresses); i++) {
        bag_config_free_models(&fixture->config);
        snprintf(text, sizeof text, BAG_SHARDS_PREFIX "%s", addresses[i][0]);
        assert_true(bag_config_add_model(&fixture->config, "a", text, "1", &problem));
        assert_false(bag_config_check_models(&fixture->config, &problem));
        assert_non_null(strstr(problem.text, addresses[i][1]));
        assert_null(strstr(problem.text, "secret"));
    }
}

TEST(test_the_model_of_shards)
{
    struct bag_problem problem;
    file("{'models': [{'name': 'a', 'shards': ['http://h'], 'shard_model': 'b/c'}]}", NULL);
    assert_false(bag_config_check_models(&fixture->config, &problem));
    assert_string_equal(problem.text, "model 'a': shard_model 'b/c' is no model's name");
}

TEST(test_too_many_shards)
{
    struct bag_problem problem;
    enum { ADDRESS_BYTES = 14 };
    char *text = malloc(sizeof BAG_SHARDS_PREFIX + (BAG_MAX_SHARDS + 1) * ADDRESS_BYTES);
    assert_non_null(text);
    size_t bytes = (size_t)sprintf(text, BAG_SHARDS_PREFIX);
    for (int i = 0; i <= BAG_MAX_SHARDS; i++)
        bytes += (size_t)sprintf(text + bytes, "%sunix:/s%d", i ? " " : "", i);
    assert_true(bag_config_add_model(&fixture->config, "a", text, "1", &problem));
    assert_false(bag_config_check_models(&fixture->config, &problem));
    assert_non_null(strstr(problem.text, "shards: at most 4096"));
    *strrchr(text, ' ') = 0;
    bag_config_free_models(&fixture->config);
    assert_true(bag_config_add_model(&fixture->config, "a", text, "1", &problem));
    assert_true(bag_config_check_models(&fixture->config, &problem));
    free(text);
}

TEST(test_a_front)
{
    struct bag_problem problem;
    struct bag_shard_address address;
    file("{'models': [{'name': 'a', 'shards': ['http://h:81/p', 'unix:/s'], 'absent': 'skip', "
         "'reduction': 'sum'}]}",
         NULL);
    const struct bag_model_config *model = &fixture->config.models[0];
    assert_true(bag_model_has_shards(model) && bag_shards_check(model, &problem));
    assert_string_equal(bag_shards_model(model), "a");
    assert_int_equal(model->absent, BAG_SHARD_ABSENT_SKIP);
    assert_int_equal(model->set, 1); /* the first of BAG_POOLING_KEYS */
    const char *at = model->path;
    assert_true(bag_shards_next(&at, &address, &problem));
    assert_null(address.socket);
    assert_string_equal(address.url.host, "h");
    assert_int_equal(address.url.port, 81);
    assert_true(bag_shards_next(&at, &address, &problem));
    assert_string_equal(address.socket, "/s");
    assert_false(bag_shards_next(&at, &address, &problem));
}
