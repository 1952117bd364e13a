/* Requests of the V2 protocol, to the byte,. */
#include "testing.h"

#include "proto/v2_writer.h"

#include <string.h>

static void expect_end(struct bag_v2_writer *writer, const char *want)
{
    size_t bytes = bag_v2_writer_end(writer);
    assert_int_equal(bytes, strlen(want));
    assert_memory_equal(writer->text, want, bytes);
}

TEST(writes_inputs_and_parameters)
{
    char text[BAG_V2_WRITER_HEADER_BYTES + 2 * BAG_V2_WRITER_INPUT_BYTES +
              3 * BAG_V2_WRITER_PARAMETER_BYTES];
    const int64_t count = 3, shape[] = {2, 0, 5};
    struct bag_v2_writer writer;
    bag_v2_writer_begin(&writer, text);
    bag_v2_write_id(&writer, UINT64_MAX);
    bag_v2_write_input(&writer, "indices", BAG_I32, 1, &count);
    bag_v2_write_input(&writer, "rows", BAG_F64, 3, shape);
    bag_v2_write_text(&writer, "reduction", "sum");
    bag_v2_write_number(&writer, "sequence", 17);
    bag_v2_write_true(&writer, "partial");
    expect_end(&writer, "{\"id\":\"18446744073709551615\",\"inputs\":["
                        "{\"name\":\"indices\",\"shape\":[3],\"datatype\":\"INT32\","
                        "\"parameters\":{\"binary_data_size\":12}},"
                        "{\"name\":\"rows\",\"shape\":[2,0,5],\"datatype\":\"FP64\","
                        "\"parameters\":{\"binary_data_size\":0}}],"
                        "\"parameters\":{\"reduction\":\"sum\",\"sequence\":17,\"partial\":true}}");
}

TEST(writes_parts)
{
    char text[512];
    struct bag_v2_writer writer;
    bag_v2_writer_begin(&writer, text);
    bag_v2_write_part(&writer, &(struct bag_part){BAG_PART_KEYS, 1, 3}, 0);
    expect_end(&writer,
               "{\"inputs\":[],\"parameters\":{\"part\":{\"by\":\"keys\",\"index\":1,\"of\":3}}}");
    bag_v2_writer_begin(&writer, text);
    bag_v2_write_part(&writer, &(struct bag_part){BAG_PART_ROWS, 0, 2}, 0xabc);
    expect_end(&writer, "{\"inputs\":[],\"parameters\":{\"part\":{\"by\":\"rows\",\"index\":0,"
                        "\"of\":2,\"digest\":\"0000000000000abc\"}}}");
}

TEST(writes_numbers)
{
    char text[512];
    const int64_t signed_ids[] = {INT64_MIN, -1, 0};
    const uint64_t ids[] = {UINT64_MAX};
    const float weights[] = {0.5f, -1e-7f};
    struct bag_v2_writer writer;
    bag_v2_writer_begin(&writer, text);
    bag_v2_write_json_input(&writer, "a", BAG_I64, 3, signed_ids);
    bag_v2_write_json_input(&writer, "b", BAG_U64, 1, ids);
    bag_v2_write_json_input(&writer, "c", BAG_F32, 2, weights);
    bag_v2_write_json_input(&writer, "d", BAG_I64, 0, NULL);
    expect_end(&writer, "{\"inputs\":["
                        "{\"name\":\"a\",\"shape\":[3],\"datatype\":\"INT64\","
                        "\"data\":[-9223372036854775808,-1,0]},"
                        "{\"name\":\"b\",\"shape\":[1],\"datatype\":\"UINT64\","
                        "\"data\":[18446744073709551615]},"
                        "{\"name\":\"c\",\"shape\":[2],\"datatype\":\"FP32\",\"data\":[0.5,-1e-7]},"
                        "{\"name\":\"d\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]}]}");
    bag_v2_writer_begin(&writer, text);
    expect_end(&writer, "{\"inputs\":[]}");
}

/* The longest header of each kind fits into the bytes that the constants promise. */
TEST(needs_no_more_than_it_says)
{
    static const char name[] = "abcdefghijklmnopqrstuvwxyzabcdef";
    char text[4096];
    int64_t shape[BAG_MAX_RANK];
    struct bag_v2_writer writer;
    assert_int_equal(sizeof name - 1, BAG_V2_WRITER_NAME_BYTES);
    bag_v2_writer_begin(&writer, text);
    bag_v2_write_id(&writer, UINT64_MAX);
    size_t before = (size_t)(writer.out - text);
    for (int axis = 0; axis < BAG_MAX_RANK; axis++)
        shape[axis] = INT64_MAX;
    bag_v2_write_input(&writer, name, BAG_F32, BAG_MAX_RANK, shape);
    size_t input = (size_t)(writer.out - text) - before;
    assert_true(input <= BAG_V2_WRITER_INPUT_BYTES);
    bag_v2_write_text(&writer, name, name);
    size_t parameter = (size_t)(writer.out - text) - before - input;
    assert_true(parameter <= BAG_V2_WRITER_PARAMETER_BYTES);
    before = (size_t)(writer.out - text);
    bag_v2_write_part(&writer, &(struct bag_part){BAG_PART_COLUMNS, UINT32_MAX, UINT32_MAX},
                      UINT64_MAX);
    assert_true((size_t)(writer.out - text) - before <= BAG_V2_WRITER_PARAMETER_BYTES);
    before = (size_t)(writer.out - text);
    size_t bytes = bag_v2_writer_end(&writer);
    assert_true(bytes - before + strlen("{\"id\":\"18446744073709551615\",\"inputs\":[") +
                    strlen("],\"parameters\":{") <=
                BAG_V2_WRITER_HEADER_BYTES);
}
