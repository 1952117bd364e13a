/* Configuration files: what they may hold, and how each mistake is named with its place. */
#include "config_fixture.h"

#define AT(line, column) "bagserve.json: line " #line ", column " #column ": "

TEST(test_whole_file)
{
    struct bag_config *config = &fixture->config;
    file("{'http': {'host': '0.0.0.0', 'port': 80, 'max_body_bytes': '1MiB'},\n 'engine': "
         "{'workers': 2}, 'log': {'log_format': 'json'},\n 'models_dir': 'models', 'models': "
         "[{'path': 'a.npy', 'name': 'items'}]}",
         NULL);
    assert_string_equal(config->options.host, "0.0.0.0");
    assert_int_equal(config->options.port, 80);
    assert_int_equal(config->options.max_body_bytes, 1048576);
    assert_int_equal(config->options.workers, 2);
    assert_int_equal(config->options.log_format, BAG_LOG_FORMAT_JSON);
    assert_string_equal(config->models_dir, "models");
    assert_int_equal(config->num_models, 1);
    assert_string_equal(config->models[0].path, "a.npy");
    file("{}", NULL);
    file("{'http': {}, 'models': []}", NULL);
    assert_int_equal(config->num_models, 1);
}

TEST(test_what_is_no_configuration)
{
    static const char *const cases[][2] = {
        {"", AT(1, 1) "the text ends too early"},
        {"[]", AT(1, 1) "the configuration must be an object: {...}"},
        {"\n 1", AT(2, 2) "the configuration must be an object: {...}"},
        {"{} x", AT(1, 4) "nothing may follow the document"},
        {"{'http':\n {'port': 08}}", AT(2, 12) "a number must not start with a superfluous 0"},
        {"{'http':\n {'port': 1,}}", AT(2, 13) "no comma may precede '}'"},
        {"{'http': {'host': '\xff'}}", AT(1, 20) "invalid UTF-8"},
        {"{'http': {'port': 1,\n'p\\u006frt': 2}}",
         AT(2, 1) "key \"port\" is duplicated in one object"},
        {"{'http': {'port':\n1e999}}", AT(2, 1) "the number is too large to be represented"}};
    files(cases, COUNT_OF(cases));
}

TEST(test_unknown_keys)
{
    static const char *const cases[][2] = {
        {"{'http': {'prot': 1}}", AT(1, 11) "unknown key 'prot' in 'http'; did you mean 'port'?"},
        {"{'engine': {'wrokers': 1}}",
         AT(1, 13) "unknown key 'wrokers' in 'engine'; did you mean 'workers'?"},
        {"{'http': {'PORT': 1}}", AT(1, 11) "unknown key 'PORT' in 'http'; did you mean 'port'?"},
        {"{'model': []}", AT(1, 2) "unknown key 'model'; did you mean 'models'?"},
        {"{'htpt': {}}", AT(1, 2) "unknown key 'htpt'; did you mean 'http'?"},
        {"{'models-dir': ''}", AT(1, 2) "unknown key 'models-dir'; did you mean 'models_dir'?"},
        {"{'': 1}", AT(1, 2) "unknown key ''"},
        {"{\n\t'port': 1}", AT(2, 2) "key 'port' belongs in 'http': {\"http\": {\"port\": ...}}"},
        /* These are flags and variables only. */
        {"{'config': 'x'}", AT(1, 2) "unknown key 'config'"},
        {"{'http': {'workers': 1}}", AT(1, 11) "unknown key 'workers' in 'http'"},
        {"{'http': {'\\u001b\\'': 1}}", AT(1, 11) "unknown key '\\x1b\\x22' in 'http'"}};
    files(cases, COUNT_OF(cases));
}

TEST(test_wrong_types)
{
    static const char *const cases[][2] = {
        {"{'http': 8000}", AT(1, 2) "http must be an object: {...}"},
        {"{'models': {}}", AT(1, 2) "models must be an array of objects: [{...}]"},
        {"{'models_dir': 1}", AT(1, 2) "models_dir 1: must be a text of 1 to 4095 bytes"},
        {"{'models_dir': ''}", AT(1, 2) "models_dir \"\": must be a text of 1 to 4095 bytes"},
        {"{'http': {'port': '8000'}}",
         AT(1, 11) "port \"8000\" in 'http': must be an integer from 0 to 65535"},
        {"{'http': {'port': 1.5}}",
         AT(1, 11) "port 1.5 in 'http': must be an integer from 0 to 65535"},
        {"{'http': {'port': 0.1}}",
         AT(1, 11) "port 0.1 in 'http': must be an integer from 0 to 65535"},
        {"{'http': {'port': 1e300}}",
         AT(1, 11) "port 1e+300 in 'http': must be an integer from 0 to 65535"},
        {"{'http': {'port': 9007199254740993}}",
         AT(1, 11) "port 9007199254740992 in 'http': must be from 0 to 65535"},
        {"{'http': {'port': null}}",
         AT(1, 11) "port null in 'http': must be an integer from 0 to 65535"},
        {"{'http': {'port': true}}",
         AT(1, 11) "port true in 'http': must be an integer from 0 to 65535"},
        {"{'http': {'port': [1]}}",
         AT(1, 11) "port [1] in 'http': must be an integer from 0 to 65535"},
        {"{'http': {'host': {}}}",
         AT(1, 11) "host {...} in 'http': must be a text of 1 to 255 bytes"},
        {"{'log': {'log_level': 1}}",
         AT(1, 10) "log_level 1 in 'log': must be one of error, warning, info, debug"}};
    files(cases, COUNT_OF(cases));
    file("{'http': {'port': 8e3}}", NULL);
    assert_int_equal(fixture->config.options.port, 8000);
}

/* Places are found by counting what precedes: strings, brackets and escapes included. */
TEST(test_places)
{
    file("{ 'models_dir' : 'a\\'b:{[,\\\\' ,\n'models':[ ] , 'log':{'log_level':'info'},\n  'http' "
         ": {'host':'}', 'port' : 70000 }}",
         AT(3, 25) "port 70000 in 'http': must be from 0 to 65535");
    file("{'models': [\n {'name': 'a', 'path': 'b'},\n   7]}",
         AT(3, 4) "models[1] must be an object: {\"name\": ..., \"path\": ...}");
}

TEST(test_folder_of_the_file)
{
    static const char text[] = "{\"models_dir\": \"models\", \"models\": ["
                               "{\"name\": \"a\", \"path\": \"a.npy\"},"
                               "{\"name\": \"b\", \"path\": \"/srv/b.npy\"},"
                               "{\"name\": \"c\", \"path\": \"../c.npy\"}]}";
    struct bag_config *config = &fixture->config;
    expect(bag_config_apply_file(config, "/etc/bag/bagserve.json", text, sizeof text - 1,
                                 &fixture->problem),
           NULL);
    assert_string_equal(config->models_dir, "/etc/bag/models");
    assert_string_equal(config->models[0].path, "/etc/bag/a.npy");
    assert_string_equal(config->models[1].path, "/srv/b.npy");
    assert_string_equal(config->models[2].path, "/etc/bag/../c.npy");
    FLAGS(NULL, "--models", "here");
    assert_string_equal(config->models_dir, "here");
}

/* Every beginning of a valid file is rejected, and nothing is read behind it. */
TEST(test_truncations)
{
    static const char text[] = "{\"http\": {\"port\": 80, \"host\": \"\\u0041\"}, \"models\": "
                               "[{\"name\": \"a\", \"path\": \"b\", \"unsorted_segments\": true}]}";
    for (size_t bytes = 0; bytes < sizeof text - 1; bytes++) {
        char *copy = exact_copy(text, bytes);
        assert_false(bag_config_apply_file(&fixture->config, "f", copy, bytes, &fixture->problem));
        free(copy);
    }
    file(text, NULL);
    assert_int_equal(fixture->config.num_models, 1);
}
