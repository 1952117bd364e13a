/* Where binary tensors of V2 replies begin, and bounds of replies. http/test_protocol.py compares
 * replies. */
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
