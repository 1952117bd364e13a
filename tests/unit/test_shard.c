/* Tests the exact bytes of a coordinator's subrequest to a shard, and which replies it accepts. */
#include "testing.h"

#include "proto/shard.h"

#include <stdio.h>

/* ---- requests -------------------------------------------------------------------------------- */

static void expect_header(const struct bag_shard_request *request, const char *want)
{
    char header[BAG_SHARD_HEADER_BYTES];
    size_t bytes = bag_shard_request_header(request, header);
    assert_int_equal(bytes, strlen(want));
    assert_memory_equal(header, want, bytes);
}

TEST(says_what_a_shard_is_to_do)
{
    struct bag_shard_request request = {.number = 12,
                                        .part = {BAG_PART_ROWS, 1, 3},
                                        .is_partial = true,
                                        .reduction = BAG_MEAN,
                                        .ids_dtype = BAG_I32,
                                        .num_ids = 4,
                                        .num_bags = 2,
                                        .rejects_outside = true};
    expect_header(
        &request,
        "{\"id\":\"12\",\"inputs\":[{\"name\":\"indices\",\"shape\":[4],\"datatype\":\"INT32\","
        "\"parameters\":{"
        "\"binary_data_size\":16}},{\"name\":\"offsets\",\"shape\":[3],\"datatype\":\"INT32\","
        "\"parameters\":{\"binary_data_size\":12}}],\"parameters\":{\"binary_data_output\":true,"
        "\"include_last_offset\":true,\"padding_idx\":\"none\",\"reduction\":\"mean\",\"part\":{"
        "\"by\":\"rows\",\"index\":1,\"of\":3},\"out_of_range\":\"error\",\"partial\":true}}");
    assert_int_equal(bag_shard_request_tensor_bytes(&request), 16 + 12);
    request.digest = 0x123456789abcdef;
    request.takes_kept = true;
    request.part.by = BAG_PART_COLUMNS;
    request.is_partial = request.rejects_outside = false;
    request.rejects_missing = request.has_default = request.has_weights = true;
    request.ids_dtype = BAG_I64;
    request.weights_dtype = BAG_F16;
    request.output_dtype = BAG_F64;
    expect_header(
        &request,
        "{\"id\":\"12\",\"inputs\":[{\"name\":\"indices\",\"shape\":[4],\"datatype\":\"INT64\","
        "\"parameters\":{"
        "\"binary_data_size\":32}},{\"name\":\"offsets\",\"shape\":[3],\"datatype\":\"INT64\","
        "\"parameters\":{\"binary_data_size\":24}},{\"name\":\"default_index\",\"shape\":[1],"
        "\"datatype\":\"INT64\",\"parameters\":{\"binary_data_size\":8}},{\"name\":"
        "\"per_sample_weights\",\"shape\":[4],\"datatype\":\"FP16\",\"parameters\":{"
        "\"binary_data_size\":8}}],\"parameters\":{\"binary_data_output\":true,"
        "\"include_last_offset\":true,\"padding_idx\":\"none\",\"reduction\":\"mean\",\"part\":{"
        "\"by\":\"columns\",\"index\":1,\"of\":3,\"digest\":\"0123456789abcdef\"},\"missing\":"
        "\"error\",\"kept_default\":true,\"output_datatype\":\"FP64\"}}");
    assert_int_equal(bag_shard_request_tensor_bytes(&request), 32 + 24 + 8 + 8);
}

TEST(asks_for_stored_rows)
{
    struct bag_shard_request request = {.number = 1,
                                        .part = {BAG_PART_KEYS, 0, 2},
                                        .is_partial = true,
                                        .reduction = BAG_NONE,
                                        .row_format = BAG_ROWS_INT4,
                                        .ids_dtype = BAG_I64,
                                        .num_ids = 1,
                                        .num_bags = 1};
    char header[BAG_SHARD_HEADER_BYTES];
    header[bag_shard_request_header(&request, header)] = 0;
    assert_non_null(strstr(header, "\"reduction\":\"none\""));
    assert_non_null(strstr(header, ",\"partial\":true,\"output_row_format\":\"int4\"}}"));
}

TEST(says_how_much_time_is_left)
{
    static const char header[] = "{\"parameters\":{\"partial\":true}}";
    static const char want[] =
        "{\"parameters\":{\"partial\":true,\"timeout\":18446744073709551615}}";
    char timed[BAG_SHARD_TIMED_BYTES];
    assert_int_equal(bag_shard_request_timed(header, strlen(header), UINT64_MAX, timed),
                     strlen(want));
    assert_memory_equal(timed, want, strlen(want));
}

/* The longest of all numbers and names. */
TEST(has_room_for_the_longest_header)
{
    struct bag_shard_request request = {.number = UINT64_MAX,
                                        .part = {BAG_PART_COLUMNS, UINT32_MAX, UINT32_MAX},
                                        .reduction = BAG_SQRTN,
                                        .ids_dtype = BAG_I64,
                                        .num_ids = SIZE_MAX / 8,
                                        .num_bags = SIZE_MAX / 8,
                                        .has_default = true,
                                        .has_weights = true,
                                        .rejects_missing = true,
                                        .row_format = BAG_ROWS_INT8_SYMMETRIC_F16,
                                        .rejects_outside = true};
    char header[BAG_SHARD_HEADER_BYTES];
    for (unsigned dtype = 0; dtype < BAG_DTYPE_COUNT; dtype++) {
        request.weights_dtype = request.output_dtype = (enum bag_dtype)dtype;
        size_t bytes = bag_shard_request_header(&request, header);
        assert_in_range(bytes, 1, BAG_SHARD_HEADER_BYTES - 1);
    }
}

/* ---- replies --------------------------------------------------------------------------------- */

#define BEGIN BEGIN_OF("12345678901")
#define BEGIN_OF(id) \
    "{\"model_name\":\"items\",\"model_version\":\"7\",\"id\":\"" id "\",\"outputs\":["
#define EMBEDDINGS                                                    \
    "{\"name\":\"embeddings\",\"datatype\":\"FP32\",\"shape\":[2,3]," \
    "\"parameters\":{\"binary_data_size\":24}}"
#define COUNTS                                                   \
    "{\"name\":\"counts\",\"datatype\":\"INT64\",\"shape\":[2]," \
    "\"parameters\":{\"binary_data_size\":16}}"
#define TENSOR_BYTES (24 + 16)

/* Reads a header with so many bytes behind it; returns what is wrong, or NULL. */
static const char *read_reply(const char *header, size_t tensor_bytes)
{
    static struct bag_problem problem;
    struct bag_v2_reply_output outputs[] = {
        {.name = "embeddings",
         .dtype = BAG_F32,
         .rank = 2,
         .shape = {2, 3},
         .count = 6,
         .binary = true},
        {.name = "counts", .dtype = BAG_I64, .rank = 1, .shape = {2}, .count = 2, .binary = true}};
    size_t header_bytes = strlen(header), bytes = header_bytes + tensor_bytes;
    char *reply = calloc(1, bytes);
    assert_non_null(reply);
    memcpy(reply, header, header_bytes);
    bool ok = bag_shard_reply_read(reply, bytes, header_bytes, 12345678901, "items", "7", outputs,
                                   2, &problem);
    if (ok) {
        assert_ptr_equal(outputs[0].data, reply + header_bytes);
        assert_ptr_equal(outputs[1].data, reply + header_bytes + 24);
    }
    free(reply);
    if (ok)
        return NULL;
    assert_int_equal(problem.kind, BAG_ERROR_BAD_GATEWAY);
    return problem.text;
}

/* Blanks up to a multiple of 64, as this program writes it, and others. */
TEST(takes_a_reply_however_it_is_written)
{
    static const char *const headers[] = {
        BEGIN EMBEDDINGS "," COUNTS "]}", " " BEGIN EMBEDDINGS " , " COUNTS "]}\n",
        "{\"outputs\":[" EMBEDDINGS "," COUNTS "],\"id\":\"12345678901\",\"model_version\":\"7\"}",
        BEGIN "{\"shape\":[2,1,3],\"parameters\":{\"binary_data_size\":24},\"datatype\":\"FP32\","
              "\"name\":\"embeddings\"}," COUNTS "]}"};
    char padded[257];
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        assert_null(read_reply(headers[i], TENSOR_BYTES));
    snprintf(padded, sizeof padded, "%-256s", headers[0]);
    assert_null(read_reply(padded, TENSOR_BYTES));
}

/* Reads a header that has this output, where 2 rows of 3 elements are wanted as int4. */
static bool read_encoded(const char *output)
{
    struct bag_problem problem;
    struct bag_v2_reply_output want = {.name = "embeddings",
                                       .dtype = BAG_U8,
                                       .rank = 2,
                                       .shape = {2, 6},
                                       .count = 12,
                                       .row_format = BAG_ROWS_INT4,
                                       .row_elements = 3,
                                       .binary = true};
    char reply[512];
    int bytes = snprintf(reply, sizeof reply - 12, BEGIN "%s]}", output);
    bool ok = bag_shard_reply_read(reply, (size_t)bytes + 12, (size_t)bytes, 12345678901, "items",
                                   "7", &want, 1, &problem);
    return ok && want.data == reply + bytes;
}

#define ENCODED(parameters)                                                                       \
    "{\"name\":\"embeddings\",\"datatype\":\"UINT8\",\"shape\":[2,6],\"parameters\":{" parameters \
    "\"binary_data_size\":12}}"

TEST(takes_stored_rows_of_the_format_only)
{
    assert_true(read_encoded(ENCODED("\"row_format\":\"int4\",\"row_elements\":3,")));
    assert_true(read_encoded(ENCODED("\"row_elements\":3, \"row_format\":\"int4\",")));
    assert_false(read_encoded(ENCODED("\"row_format\":\"int8\",\"row_elements\":3,")));
    assert_false(read_encoded(ENCODED("\"row_format\":\"int4\",\"row_elements\":4,")));
    assert_false(read_encoded(ENCODED("\"row_format\":\"int4\",")));
    assert_false(read_encoded(ENCODED("\"row_elements\":3,")));
    assert_false(read_encoded(ENCODED("")));
}

TEST(takes_no_other_reply)
{
    static const char other[] = "answered without output 'counts' as INT64 of 2 bags of 1 elements";
    char padded[257];
    snprintf(padded, sizeof padded, "%-256s", BEGIN EMBEDDINGS "," COUNTS "]}");
    assert_string_equal(read_reply(padded, TENSOR_BYTES - 1),
                        "answered fewer bytes of tensors than it says");
    assert_string_equal(read_reply(padded, TENSOR_BYTES + 1), "answered more than was asked for");
    assert_string_equal(read_reply(BEGIN EMBEDDINGS "]}", TENSOR_BYTES), other);
    assert_string_equal(read_reply(BEGIN EMBEDDINGS "," EMBEDDINGS "]}", TENSOR_BYTES), other);
    assert_string_equal(read_reply(BEGIN EMBEDDINGS "," COUNTS "," COUNTS "]}", TENSOR_BYTES),
                        "answered more than was asked for");
    assert_string_equal(read_reply("{\"model_version\":\"8\",\"outputs\":[" EMBEDDINGS "," COUNTS
                                   "]}",
                                   TENSOR_BYTES),
                        "answered by another version than 7");
    assert_string_equal(read_reply(BEGIN
                                   "{\"name\":\"embeddings\",\"datatype\":\"FP32\",\"shape\":[3,2],"
                                   "\"parameters\":{\"binary_data_size\":24}}," COUNTS "]}",
                                   TENSOR_BYTES),
                        "answered without output 'embeddings' as FP32 of 2 bags of 3 elements");
    static const char *const ids[] = {BEGIN_OF("1234567890") EMBEDDINGS "," COUNTS "]}",
                                      BEGIN_OF("12345678902") EMBEDDINGS "," COUNTS "]}",
                                      "{\"model_version\":\"7\",\"outputs\":[" EMBEDDINGS "," COUNTS
                                      "]}"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_string_equal(read_reply(ids[i], TENSOR_BYTES), "answered another request");
    assert_string_equal(read_reply("", TENSOR_BYTES), "answered no reply with binary tensors");
    assert_string_equal(read_reply("[", TENSOR_BYTES),
                        "answered a reply whose header is no JSON object");
}

/* Errors of this version are read by their members, and those of a shard of version 0.1.0, which
 * has no code, by their sentence. */
TEST(test_reads_the_place_of_an_error)
{
    static const struct {
        const char *body;
        enum bag_shard_error about;
        size_t position;
    } cases[] = {
        {"{\"code\":\"bad_request\",\"input\":\"indices\",\"position\":12,\"error\":\"x\"}",
         BAG_SHARD_ERROR_INDEX, 12},
        {"{\"code\":\"bad_request\",\"input\":\"indices\",\"error\":\"'indices' at position 1\"}",
         BAG_SHARD_ERROR_OTHER, 0},
        {"{\"code\":\"bad_request\",\"input\":\"offsets\",\"position\":1,\"error\":\"x\"}",
         BAG_SHARD_ERROR_OTHER, 0},
        {"{\"code\":\"bad_request\",\"input\":\"default_index\",\"error\":\"x\"}",
         BAG_SHARD_ERROR_DEFAULT, 0},
        {"{\"code\":\"not_ready\",\"input\":\"indices\",\"position\":1,\"error\":\"x\"}",
         BAG_SHARD_ERROR_OTHER, 0},
        {"{\"error\":\"'indices' at position 12 is 5; it must be from 0 to 4, the last row\"}",
         BAG_SHARD_ERROR_INDEX, 12},
        {"{\"error\":\"'default_index' is 7; it must be -1 (zeros) or a row from 0 to 4\"}",
         BAG_SHARD_ERROR_DEFAULT, 0},
        {"{\"error\":\"model 'items' is still being loaded\"}", BAG_SHARD_ERROR_OTHER, 0},
        {"an error page", BAG_SHARD_ERROR_OTHER, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t position = 0;
        assert_int_equal(bag_shard_error_read(cases[i].body, strlen(cases[i].body), &position),
                         cases[i].about);
        assert_int_equal(position, cases[i].position);
    }
}
