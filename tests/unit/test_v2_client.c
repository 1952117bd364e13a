/* Tests how a client reads the metadata of collections, and numbers. http/test_bench.py has the
 * other replies of servers of the V2 protocol: ours, Triton's, and invalid ones. */
#include "testing.h"

#include "proto/v2_client.h"

static struct bag_problem problem;

static bool read_model(const char *text, struct bag_client_model *model)
{
    char *copy = quoted_copy(text, strlen(text));
    bool ok = bag_client_read_model(copy, strlen(text), model, &problem);
    free(copy);
    return ok;
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
