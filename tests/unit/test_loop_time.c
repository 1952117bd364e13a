/* Measures inference on the loop's thread, and checks that a body is planned once. */
#include "loop_fixture.h"

#include <zlib.h>

#define ROWS    1000
#define COLUMNS 64

/* A table, served as "sorted" and, with segments in any order, as "unsorted". */
static void write_models(void)
{
    static const char config[] =
        "{\"models\":[{\"name\":\"sorted\",\"path\":\"t.npy\"},"
        "{\"name\":\"unsorted\",\"path\":\"t.npy\",\"unsorted_segments\":true},"
        "{\"name\":\"mean\",\"path\":\"t.npy\",\"reduction\":\"mean\",\"default_index\":7}]}";
    write_table(ROWS, COLUMNS);
    write_file("c.json", config, sizeof config - 1);
}

static int start(void **state)
{
    (void)state;
    return start_server(write_models);
}

AROUND_ALL(start, stop_server)

/* ---- bodies ---------------------------------------------------------------------------------- */

struct text {
    char *bytes;
    size_t count, room;
    size_t json_bytes; /* in front of binary tensors */
};

static void add(struct text *text, const void *bytes, size_t count)
{
    if (count > text->room - text->count) {
        text->room = 2 * (text->count + count);
        text->bytes = realloc(text->bytes, text->room);
        assert_non_null(text->bytes);
    }
    if (count)
        memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
}

__attribute__((format(printf, 2, 3))) static void print(struct text *text, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    assert_in_range(count, 0, sizeof line - 1);
    add(text, line, (size_t)count);
}

/* JSON of `bags` bags of `ids` indices each. */
static struct text make_json(size_t bags, size_t ids, const char *parameters)
{
    struct text text = {0};
    print(&text, "{%s\"inputs\":[{\"name\":\"indices\",\"shape\":[%zu],\"datatype\":\"INT64\",",
          parameters, bags * ids);
    print(&text, "\"data\":[");
    for (size_t i = 0; i < bags * ids; i++)
        print(&text, "%s%zu", i ? "," : "", i * 7919 % ROWS);
    print(&text, "]},{\"name\":\"offsets\",\"shape\":[%zu],\"datatype\":\"INT64\",\"data\":[",
          bags);
    for (size_t i = 0; i < bags; i++)
        print(&text, "%s%zu", i ? "," : "", i * ids);
    print(&text, "]}]}");
    return text;
}

/* Makes a binary request. With `segments` the bags are given by segment_ids, in falling order. */
static struct text make_binary(size_t bags, size_t ids, bool segments, const char *parameters)
{
    struct text text = {0};
    size_t count = bags * ids, groups = segments ? count : bags;
    print(&text,
          "{%s\"inputs\":[{\"name\":\"indices\",\"shape\":[%zu],\"datatype\":\"INT32\","
          "\"parameters\":{\"binary_data_size\":%zu}},{\"name\":\"%s\",\"shape\":[%zu],"
          "\"datatype\":\"INT32\",\"parameters\":{\"binary_data_size\":%zu}}",
          parameters, count, 4 * count, segments ? "segment_ids" : "offsets", groups, 4 * groups);
    if (segments)
        print(&text,
              ",{\"name\":\"num_segments\",\"shape\":[1],\"datatype\":\"INT32\",\"data\":[%zu]}",
              bags);
    print(&text, "]}");
    text.json_bytes = text.count;
    for (size_t i = 0; i < count; i++)
        add(&text, &(int32_t){(int32_t)(i * 7919 % ROWS)}, 4);
    for (size_t i = 0; i < groups; i++)
        add(&text, &(int32_t){(int32_t)(segments ? bags - 1 - i % bags : i * ids)}, 4);
    return text;
}

static struct text compress_text(const struct text *text)
{
    struct text packed = {0};
    z_stream stream = {0};
    packed.room = text->count + 1000;
    packed.bytes = malloc(packed.room);
    assert_non_null(packed.bytes);
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (unsigned char *)text->bytes;
    stream.avail_in = (unsigned)text->count;
    stream.next_out = (unsigned char *)packed.bytes;
    stream.avail_out = (unsigned)packed.room;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.count = stream.total_out;
    deflateEnd(&stream);
    return packed;
}

static void ask_json(const char *what, const char *model, struct text text, const char *headers)
{
    char path[64];
    snprintf(path, sizeof path, "/v2/models/%s/infer", model);
    expect_short_turns(what, 200, &(struct message){path, headers, text.bytes, text.count});
    free(text.bytes);
}

static void ask_binary(const char *what, const char *model, struct text text)
{
    char headers[64];
    snprintf(headers, sizeof headers, "Inference-Header-Content-Length: %zu\r\n", text.json_bytes);
    ask_json(what, model, text, headers);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* A body is planned once, whether the loop or a worker computes it. */
TEST(test_a_body_is_planned_once)
{
    for (size_t bags = 1; bags <= 200; bags++) {
        struct text text = make_json(bags, 10, "");
        struct message message = {"/v2/models/sorted/infer", "", text.bytes, text.count};
        size_t reply_bytes;
        assert_int_equal(ask(&message, &reply_bytes), 200);
        if (atomic_load(&world.plans) != 1)
            fail_msg("%zu bags were planned %u times", bags, atomic_load(&world.plans));
        free(text.bytes);
    }
}

TEST(test_no_inference_holds_the_loop)
{
    static const char binary[] = "\"parameters\":{\"binary_data_output\":true},";
    static const char explain[] = "\"parameters\":{\"binary_data_output\":true,\"explain\":true},";
    for (size_t bags = 1; bags <= 256; bags *= 4) {
        char what[64];
        snprintf(what, sizeof what, "JSON, %zu bags of 10", bags);
        ask_json(what, "sorted", make_json(bags, 10, ""), "");
    }
    ask_json("JSON, 1 bag of 3000", "sorted", make_json(1, 3000, ""), "");
    ask_json("JSON, 1 bag of 3 M", "sorted", make_json(1, 3000000, ""), "");
    ask_json("JSON, 1 bag of 16 M", "sorted", make_json(1, 16000000, ""), "");
    ask_json("JSON, 50,000 bags of 20", "sorted", make_json(50000, 20, ""), "");
    ask_binary("binary, 3 M ids", "sorted", make_binary(3000, 1000, false, binary));
    ask_binary("binary, 16 M ids", "sorted", make_binary(3000, 5333, false, binary));
    ask_binary("binary, 8 M unsorted ids", "unsorted", make_binary(3000, 2667, true, binary));
    ask_binary("binary, 3 M unsorted ids", "unsorted", make_binary(3000, 1000, true, binary));
    ask_binary("binary, 1 M bags of 1 unsorted id", "unsorted",
               make_binary(100000, 10, true, binary));
    ask_binary("binary, 105,000 bags, 27 MB out", "sorted", make_binary(105000, 2, false, binary));
    ask_binary("binary, 27 MB of default rows", "mean", make_binary(105000, 0, false, binary));
    ask_binary("binary, 30,000 bags, JSON out", "sorted", make_binary(30000, 2, false, ""));
    ask_binary("binary, explain of 100,000 bags", "sorted", make_binary(100000, 1, false, explain));
    ask_binary("binary, explain of 100,000 bags, none in them", "sorted",
               make_binary(100000, 0, false, explain));
    struct text text = make_json(20000, 10, ""), packed = compress_text(&text);
    free(text.bytes);
    ask_json("gzip, 20,000 bags of 10", "sorted", packed,
             "Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\n");
}

/* Asks with a body of `count` equal pieces between a start and an end. */
static void ask_pieces(const char *what, const char *path, int status, const char *start,
                       const char *piece, int count, const char *end)
{
    struct text text = {0};
    print(&text, "%s", start);
    for (int i = 0; i < count; i++)
        print(&text, "%s", piece);
    print(&text, "%s", end);
    expect_short_turns(what, status, &(struct message){path, "", text.bytes, text.count});
    free(text.bytes);
}

/* Few bytes that are much work to read or to answer. */
TEST(test_no_small_request_holds_the_loop)
{
    static const char infer[] = "/v2/models/sorted/infer";
    ask_pieces("24 KB of empty tensors", infer, 400, "{\"inputs\":[", "{},", 8000, "{}]}");
    ask_pieces("24 KB of dimensions", infer, 400, "{\"inputs\":[{\"shape\":[", "1,", 12000,
               "1]}]}");
    ask_pieces("24 KB of brackets", infer, 400, "", "[", 24000, "");
    ask_pieces("63 KB of brackets for the index", "/v2/repository/index", 200, "{\"x\":[[]", ",[]",
               21000, "]}");
    static const char segments[] =
        "{\"inputs\":[{\"name\":\"indices\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]},"
        "{\"name\":\"segment_ids\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]},"
        "{\"name\":\"num_segments\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[100]}]}";
    expect_short_turns(
        "100 default rows as JSON", 200,
        &(struct message){"/v2/models/mean/infer", "", segments, sizeof segments - 1});
}
