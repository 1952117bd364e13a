/* Tests how a client reads the replies of servers of the V2 protocol: ours, Triton's, and invalid
 * ones. */
#include "testing.h"

#include "proto/v2_client.h"

static struct bag_problem problem;

static bool read_names(const char *text, struct bag_client_names *names)
{
    char *copy = quoted_copy(text, strlen(text));
    bool ok = bag_client_read_names(copy, strlen(text), names, &problem);
    free(copy);
    return ok;
}

TEST(reads_names)
{
    struct bag_client_names names;
    assert_true(read_names("{'models': ['b', 'a']}", &names));
    assert_int_equal(names.count, 2);
    assert_string_equal(names.names[0], "b");
    bag_client_names_free(&names);
    assert_true(read_names("{'models': []}", &names));
    assert_int_equal(names.count, 0);
    bag_client_names_free(&names);
    assert_true(read_names(
        "[{'name': 'a', 'version': '1', 'state': 'READY'}, {'name': 'b', 'state': 'UNAVAILABLE'}, "
        "{'name': 'c'}, {'name': 'a', 'version': '2', 'state': 'READY'}]",
        &names));
    assert_int_equal(names.count, 1);
    assert_string_equal(names.names[0], "a");
    bag_client_names_free(&names);
    assert_false(read_names("{'models': 3}", &names));
    assert_string_equal(problem.text, "the answer is no list of models");
    assert_false(read_names("[3]", &names));
    assert_string_equal(problem.text, "the answer is no list of models: a name is missing");
    assert_false(read_names("<html>", &names));
}

static bool read_model(const char *text, struct bag_client_model *model)
{
    char *copy = quoted_copy(text, strlen(text));
    bool ok = bag_client_read_model(copy, strlen(text), model, &problem);
    free(copy);
    return ok;
}

TEST(reads_a_table)
{
    struct bag_client_model model;
    assert_true(read_model("{'name': 't', 'versions': ['7'], 'inputs': [{'name': 'indices', "
                           "'datatype': 'UINT64', 'shape': [-1, -1]}], 'outputs': [{'name': "
                           "'embeddings', 'shape': [-1, 3, 4]}], 'parameters': {'rows': 5, "
                           "'row_elements': 12, 'bytes': 100, 'keyed': true, 'forms': ['packed']}}",
                           &model));
    assert_string_equal(model.name, "t");
    assert_string_equal(model.version, "7");
    assert_false(model.is_collection);
    assert_true(model.takes_weights);
    assert_int_equal(model.ids_dtype, BAG_U64);
    assert_int_equal(model.num_tables, 1);
    assert_string_equal(model.tables[0].name, "embeddings");
    assert_int_equal(model.tables[0].rows, 5);
    assert_int_equal(model.tables[0].row_elements, 12);
    assert_int_equal(model.tables[0].bytes, 100);
    assert_true(model.tables[0].keyed);
    assert_int_equal(model.tables[0].output_elements, 12);
    assert_int_equal(model.tables[0].row_format, BAG_ROWS_PLAIN);
    bag_client_model_free(&model);
}

/* Triton says no rows, and takes what it names. */
TEST(reads_a_foreign_model)
{
    struct bag_client_model model;
    assert_true(
        read_model("{'name': 't', 'inputs': [{'name': 'indices', 'datatype': 'INT64', 'shape': "
                   "[-1]}, {'name': 'offsets', 'datatype': 'INT64', 'shape': [-1]}]}",
                   &model));
    assert_string_equal(model.version, "");
    assert_false(model.takes_weights);
    assert_int_equal(model.tables[0].rows, -1);
    assert_int_equal(model.tables[0].output_elements, 0);
    bag_client_model_free(&model);
    assert_false(
        read_model("{'name': 't', 'inputs': [{'name': 'INPUT0'}, {'name': 'a\\u0007b'}]}", &model));
    assert_string_equal(problem.text, "it takes 'INPUT0', 'a\\x07b'; bags are 'indices' and "
                                      "'offsets', or 'values' and 'lengths'");
    assert_false(read_model("{'inputs': []}", &model));
    assert_string_equal(problem.text, "the answer is no metadata of a model");
    assert_false(read_model("{'name': 't', 'inputs': [{'name': 'values'}, {'name': 'lengths'}], "
                            "'parameters': {'features': []}}",
                            &model));
    assert_string_equal(problem.text, "the answer is no collection with a list of features");
}

static const char collection[] =
    "{'name': 'c', 'versions': ['1'], 'inputs': [{'name': 'values', 'datatype': 'INT64'}, {'name': "
    "'lengths'}, {'name': 'weights'}], 'outputs': [{'name': 'a', 'datatype': 'FP16', 'shape': [-1, "
    "2]}, {'name': 'b', 'shape': [-1, -1]}], 'parameters': {'features': [{'name': 'a', 'model': "
    "'x', 'rows': 1e300, 'row_format': 'int4'}, {'name': 'b', 'model': 'y', 'rows': 2, "
    "'row_format': 'int3'}]}}";

TEST(reads_a_collection)
{
    struct bag_client_model model;
    const char *rules =
        "{\"parameters\": {\"a.reduction\": {\"string_value\": \"mean\"}, "
        "\"a.weighted_mean\": {\"string_value\": \"true\"}, \"b.projected\": {\"string_value\": "
        "\"true\"}, \"b.reduction\": "
        "{\"string_value\": \"max\"}, \"b.padding_idx\": {\"string_value\": \"-1\"}, "
        "\"a.default_index\": {\"string_value\": \"-1\"}, \"b.default_index\": "
        "{\"string_value\": \"1\"}}}";
    assert_true(read_model(collection, &model));
    assert_true(model.is_collection);
    assert_true(model.takes_weights);
    assert_int_equal(model.num_tables, 2);
    assert_int_equal(model.tables[0].rows, -1);
    assert_string_equal(model.tables[1].model, "y");
    assert_int_equal(model.tables[1].rows, 2);
    assert_int_equal(model.tables[0].output_elements, 2);
    assert_int_equal(model.tables[1].output_elements, 0);
    assert_int_equal(model.tables[0].output_dtype, BAG_F16);
    assert_int_equal(model.tables[1].output_dtype, BAG_DTYPE_COUNT);
    assert_int_equal(model.tables[0].row_format, BAG_ROWS_INT4);
    assert_int_equal(model.tables[1].row_format, BAG_ROW_FORMAT_COUNT);
    assert_true(bag_client_read_rules(rules, strlen(rules), &model, &problem));
    assert_int_equal(model.tables[0].reduction, BAG_MEAN);
    assert_true(model.tables[0].weighted_mean);
    assert_false(model.tables[0].has_padding);
    assert_false(model.tables[0].projected);
    assert_true(model.tables[1].projected);
    assert_int_equal(model.tables[1].reduction, BAG_MAX);
    assert_true(model.tables[1].has_padding);
    assert_int_equal(model.tables[1].padding, 1);
    assert_false(model.tables[0].has_default);
    assert_true(model.tables[1].has_default);
    assert_int_equal(model.tables[1].default_id, 1);
    assert_false(bag_client_read_rules("{}", 2, &model, &problem));
    assert_string_equal(problem.text, "the answer is no configuration that names a reduction");
    bag_client_model_free(&model);
}

TEST(reads_errors)
{
    char sentence[12];
    static const char error[] = "{\"error\": \"too\\nmany\"}";
    bag_client_read_error(error, sizeof error - 1, sentence, sizeof sentence);
    assert_string_equal(sentence, "too?many");
    bag_client_read_error("<html>\x1b[0m, no JSON", 20, sentence, sizeof sentence);
    assert_string_equal(sentence, "<html>?[0m,");
    bag_client_read_error("", 0, sentence, sizeof sentence);
    assert_string_equal(sentence, "");
}

static bool number(const char *text, const char *within, uint64_t *value)
{
    return bag_client_read_number(text, strlen(text), within, "sequence", value);
}

TEST(reads_numbers)
{
    uint64_t value;
    assert_true(number("{\"sequence\":17,\"applied\":true}", NULL, &value));
    assert_int_equal(value, 17);
    assert_true(number("{\"parameters\":{\"sequence\":0}}", "parameters", &value));
    assert_int_equal(value, 0);
    assert_true(number("{\"sequence\":9007199254740991}", NULL, &value));
    assert_int_equal(value, 9007199254740991);
}

TEST(reads_no_numbers)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "17",
                                        "null",
                                        "{'sequence':-1}",
                                        "{'sequence':1.5}",
                                        "{'sequence':9007199254740992}",
                                        "{'sequence':'17'}",
                                        "{'parameters':{'sequence':1}}"};
    uint64_t value = 99;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_false(number(texts[i], NULL, &value));
    assert_false(number("{\"sequence\":17}", "parameters", &value));
    assert_false(number("{\"parameters\":17}", "parameters", &value));
    assert_int_equal(value, 99);
}

static const char *error(const char *text, size_t room)
{
    static char sentence[64];
    bag_client_read_error(text, strlen(text), sentence, room);
    return sentence;
}

TEST(cuts_errors)
{
    assert_string_equal(error("{\"error\":\"no such row\"}", 64), "no such row");
    assert_string_equal(error("{\"error\":\"no such row\"}", 8), "no such");
    assert_string_equal(error("{\"error\":\"a\\nb\\u001bc\\u007f\"}", 64), "a?b?c?");
    assert_string_equal(error("{\"error\":17}", 64), "{\"error\":17}");
    assert_string_equal(error("<html>\r\n", 64), "<html>??");
    assert_string_equal(error("<html>", 4), "<ht");
    assert_string_equal(error("", 64), "");
}

/* Two tensors behind the JSON. */
TEST(reads_outputs)
{
    const char json[] =
        "{\"outputs\":[{\"name\":\"a\",\"datatype\":\"FP16\",\"parameters\":{\"binary_data_size\":"
        "4}},"
        "{\"name\":\"b\",\"datatype\":\"INT32\",\"parameters\":{\"binary_data_size\":8}},"
        "{\"name\":\"c\",\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":99}},"
        "{\"name\":\"d\",\"datatype\":\"FP32\",\"data\":[1]}]}";
    const unsigned char tensors[] = {0x00, 0x3c, 0x00, 0xc0, 5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
    size_t json_bytes = sizeof json - 1, bytes = json_bytes + sizeof tensors;
    char whole[sizeof json + sizeof tensors];
    struct bag_client_output found;
    memcpy(whole, json, json_bytes);
    memcpy(whole + json_bytes, tensors, sizeof tensors);
    char *body = exact_copy(whole, bytes);
    assert_true(bag_client_find_output(body, bytes, json_bytes, "a", 2, 1, &found, &problem));
    assert_int_equal(found.dtype, BAG_F16);
    assert_ptr_equal(found.data, body + json_bytes);
    assert_true(bag_client_find_output(body, bytes, json_bytes, "b", 2, 1, &found, &problem));
    assert_int_equal(found.dtype, BAG_I32);
    assert_ptr_equal(found.data, body + json_bytes + 4);
    assert_false(bag_client_find_output(body, bytes, json_bytes, "b", 1, 1, &found, &problem));
    assert_string_equal(problem.text, "the output 'b' has 8 bytes; 1 elements were expected");
    assert_false(bag_client_find_output(body, bytes, json_bytes, "c", 2, 1, &found, &problem));
    assert_false(bag_client_find_output(body, bytes, json_bytes, "d", 1, 1, &found, &problem));
    assert_string_equal(problem.text, "the answer has no binary output 'd'");
    assert_false(bag_client_find_output(body, bytes, bytes + 1, "a", 2, 1, &found, &problem));
    free(body);
}
