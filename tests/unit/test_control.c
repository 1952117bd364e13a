/* Bodies that ask for loading and unloading. */
#include "testing.h"

#include "proto/v2_request.h"

/* Reads a copy that ends with its last byte. */
static bool read_model(const char *body, bool unload, struct bag_control *control,
                       struct bag_problem *problem)
{
    char *copy = quoted_copy(body, strlen(body));
    bool ok = bag_control_read(copy, strlen(body), "items", unload, control, problem);
    free(copy);
    return ok;
}

static bool read_group(const char *body, struct bag_control *control, struct bag_problem *problem)
{
    char *copy = quoted_copy(body, strlen(body));
    bool ok = bag_control_read(copy, strlen(body), NULL, false, control, problem);
    free(copy);
    return ok;
}

TEST(test_reads_models)
{
    static const struct {
        const char *body, *version;
        bool wait, unload_dependents;
    } cases[] = {{"", "", true, false},
                 {"{}", "", true, false},
                 {" {'parameters': {}} ", "", true, false},
                 {"{'wait': false}", "", false, false},
                 {"{'parameters': {'version': '12'}}", "12", true, false},
                 {"{'parameters': {'version': 12}, 'wait': true}", "12", true, false},
                 {"{'parameters': {'version': 9007199254740991}}", "9007199254740991", true, false},
                 {"{'parameters': {'unload_dependents': true}}", "", true, true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_control control;
        struct bag_problem problem;
        bool unload = i % 2;
        if (!read_model(cases[i].body, unload, &control, &problem))
            fail_msg("%s: %s", cases[i].body, problem.text);
        assert_int_equal(control.count, 1);
        assert_string_equal(control.items->name, "items");
        assert_string_equal(control.items->version, cases[i].version);
        assert_int_equal(control.items->unload, unload);
        assert_int_equal(control.wait, cases[i].wait);
        assert_int_equal(control.unload_dependents, cases[i].unload_dependents);
        bag_control_free(&control);
    }
}

TEST(test_reads_groups)
{
    struct bag_control control;
    struct bag_problem problem;
    assert_true(read_group("{'models': [{'name': 'a', 'version': 3}, {'unload': true, 'name': "
                           "'b'}], 'parameters': {'unload_dependents': true}}",
                           &control, &problem));
    assert_int_equal(control.count, 2);
    assert_string_equal(control.items[0].name, "a");
    assert_string_equal(control.items[0].version, "3");
    assert_false(control.items[0].unload);
    assert_string_equal(control.items[1].name, "b");
    assert_string_equal(control.items[1].version, "");
    assert_true(control.items[1].unload);
    assert_true(control.wait && control.unload_dependents);
    char *text = bag_control_describe(&control, false);
    assert_string_equal(
        text, "{\"models\":[{\"name\":\"a\",\"version\":\"3\"},{\"name\":\"b\"}],\"done\":false}");
    free(text);
    bag_control_free(&control);
    bag_control_free(&control);
}

TEST(test_rejects_models)
{
    static const struct {
        const char *body, *text;
    } cases[] = {
        {"[]", "the body must be an object: {...}"},
        {"{'wait': 1}", "wait must be true or false"},
        {"{'waits': true}", "unknown key 'waits'"},
        {"{'models': []}", "unknown key 'models'"},
        {"{'parameters': 1}", "parameters must be an object"},
        {"{'parameters': {'versions': 1}}", "unknown key 'versions' in parameters"},
        {"{'parameters': {'version': ''}}",
         "version must be a whole number from 1, as a text of its digits or as a number"},
        {"{'parameters': {'version': '18446744073709551616'}}",
         "version must be a whole number from 1, as a text of its digits or as a number"},
        {"{'parameters': {'version': '01'}}",
         "version must be a whole number from 1, as a text of its digits or as a number"},
        {"{'parameters': {'version': 1.5}}",
         "version must be a whole number from 1, as a text of its digits or as a number"},
        {"{'parameters': {'version': 0}}",
         "version must be a whole number from 1, as a text of its digits or as a number"},
        {"{'parameters': {'version': -1}}",
         "version must be a whole number from 1, as a text of its digits or as a number"},
        {"{'parameters': {'version': 9007199254740992}}",
         "version must be a whole number from 1, as a text of its digits or as a number"},
        {"{'parameters': {'config': '{}'}}",
         "parameter 'config' is not supported: a model's configuration and files are those in its "
         "folder"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_control control;
        struct bag_problem problem;
        if (read_model(cases[i].body, false, &control, &problem))
            fail_msg("accepted: %s", cases[i].body);
        assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
        assert_string_equal(problem.text, cases[i].text);
        assert_null(control.items);
    }
}

TEST(test_rejects_groups)
{
    static const struct {
        const char *body, *text;
    } cases[] = {
        {"", "the key 'models' is missing"},
        {"{'models': {}}", "models must be an array of 1 to 1024 objects: [{\"name\": ...}]"},
        {"{'models': [1]}", "models[0]: must be an object: {\"name\": ..., \"version\": ...}"},
        {"{'models': [{}]}", "models[0]: the key 'name' is missing"},
        {"{'models': [{'name': ''}]}", "models[0]: name must be a text of 1 to 128 bytes"},
        {"{'models': [{'name': 'a'}, {'name': 'a'}]}", "models[1]: name 'a' is there twice"},
        {"{'parameters': {'version': 1}, 'models': [{'name': 'a'}]}",
         "unknown key 'version' in parameters"},
        {"{'models': [{'name': 'a'}], 'parameters': {'version': 1}}",
         "unknown key 'version' in parameters"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_control control;
        struct bag_problem problem;
        assert_false(read_group(cases[i].body, &control, &problem));
        assert_string_equal(problem.text, cases[i].text);
        assert_null(control.items);
    }
}
