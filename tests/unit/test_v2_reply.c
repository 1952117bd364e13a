/* V2 replies, byte for byte, and that they stay within their bound. */
#include "testing.h"

#include "proto/v2_documents.h"

static const float rows[] = {1.5f, -2.0f, 0.1f, 1e-7f};

static struct bag_v2_reply_output output_of(bool binary)
{
    return (struct bag_v2_reply_output){.name = "embeddings",
                                        .dtype = BAG_F32,
                                        .rank = 2,
                                        .shape = {2, 2},
                                        .count = 4,
                                        .binary = binary,
                                        .data = rows};
}

TEST(test_writes_json)
{
    struct bag_v2_reply_output output = output_of(false);
    struct bag_v2_reply reply = {
        .model_name = "items", .model_version = "1", .outputs = &output, .num_outputs = 1};
    size_t bound = bag_v2_reply_bound(&reply);
    char *text = malloc(bound);
    char *end = bag_v2_reply_header(&reply, text);
    assert_in_range(end - text, 1, bound);
    *end = 0;
    assert_string_equal(text, "{\"model_name\":\"items\",\"model_version\":\"1\",\"outputs\":["
                              "{\"name\":\"embeddings\",\"datatype\":\"FP32\",\"shape\":[2,2],"
                              "\"data\":[1.5,-2.0,0.1,1e-7]}]}");
    free(text);
}

/* Binary tensors start at a multiple of 64, behind spaces; the id is echoed as it came. */
TEST(test_writes_a_binary_header)
{
    struct bag_v2_reply_output outputs[2] = {output_of(true), output_of(false)};
    struct bag_v2_reply reply = {.model_name = "m",
                                 .model_version = "12",
                                 .id = {"\"a\\u0041\"", 9},
                                 .outputs = outputs,
                                 .num_outputs = 2};
    char *text = malloc(bag_v2_reply_bound(&reply));
    const char *expected =
        "{\"model_name\":\"m\",\"model_version\":\"12\",\"id\":\"a\\u0041\",\"outputs\":["
        "{\"name\":\"embeddings\",\"datatype\":\"FP32\",\"shape\":[2,2],"
        "\"parameters\":{\"binary_data_size\":16}},"
        "{\"name\":\"embeddings\",\"datatype\":\"FP32\",\"shape\":[2,2],"
        "\"data\":[1.5,-2.0,0.1,1e-7]}]}";
    size_t bytes = strlen(expected);
    char *end = bag_v2_reply_header(&reply, text);
    assert_int_equal((end - text) % 64, 0);
    assert_in_range(end - text, bytes, bytes + 63);
    assert_memory_equal(text, expected, bytes);
    for (char *at = text + bytes; at < end; at++)
        assert_int_equal(*at, ' ');
    free(text);
}

/* Encoded rows have their format among the parameters, in binary and in JSON. */
TEST(test_names_row_formats)
{
    static const unsigned char bytes[] = {7, 8};
    struct bag_v2_reply_output outputs[2] = {output_of(true), output_of(false)};
    struct bag_v2_reply reply = {
        .model_name = "m", .model_version = "1", .outputs = outputs, .num_outputs = 2};
    const char *expected =
        "{\"model_name\":\"m\",\"model_version\":\"1\",\"outputs\":["
        "{\"name\":\"embeddings\",\"datatype\":\"UINT8\",\"shape\":[1,2],"
        "\"parameters\":{\"row_format\":\"f8_e4m3\",\"row_elements\":2,\"binary_data_size\":2}},"
        "{\"name\":\"embeddings\",\"datatype\":\"UINT8\",\"shape\":[1,2],"
        "\"parameters\":{\"row_format\":\"f8_e4m3\",\"row_elements\":2},\"data\":[7,8]}]}";
    for (int i = 0; i < 2; i++) {
        outputs[i].dtype = BAG_U8;
        outputs[i].shape[0] = 1;
        outputs[i].count = 2;
        outputs[i].row_format = BAG_ROWS_F8_E4M3;
        outputs[i].row_elements = 2;
        outputs[i].data = bytes;
    }
    size_t bound = bag_v2_reply_bound(&reply);
    char *text = malloc(bound);
    char *end = bag_v2_reply_header(&reply, text);
    assert_in_range(end - text, strlen(expected), bound);
    assert_memory_equal(text, expected, strlen(expected));
    free(text);
}

TEST(test_bounds_do_not_overflow)
{
    struct bag_v2_reply_output output = output_of(false);
    struct bag_v2_reply reply = {
        .model_name = "m", .model_version = "1", .outputs = &output, .num_outputs = 1};
    output.count = SIZE_MAX / 2;
    assert_true(bag_v2_reply_bound(&reply) == SIZE_MAX);
    output.binary = true;
    assert_in_range(bag_v2_reply_bound(&reply), 1, 1000);
}

TEST(test_names_the_two_ways_out)
{
    struct bag_problem problem;
    assert_true(bag_v2_reply_check_json("e", BAG_F32, &problem));
    assert_true(bag_v2_reply_check_json("e", BAG_U64, &problem));
    assert_false(bag_v2_reply_check_json("e", BAG_F16, &problem));
    assert_non_null(strstr(problem.text, "binary_data_output"));
    assert_non_null(strstr(problem.text, "output_datatype"));
    assert_false(bag_v2_reply_check_json("e", BAG_BF16, &problem));
}
