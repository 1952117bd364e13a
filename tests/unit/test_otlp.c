/* The caller's header of a trace, and spans as a collector gets them. */
#include "testing.h"

#include "proto/otlp.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static bool parse(const char *text, struct bag_traceparent *parent)
{
    char *copy = exact_copy(text, strlen(text) + 1);
    bool ok = bag_traceparent_parse(copy, parent);
    free(copy);
    return ok;
}

TEST(reads_traceparents)
{
    struct bag_traceparent parent;
    assert_true(parse("00-" TRACE "-" PARENT "-01", &parent));
    assert_true(parent.trace.high == 0x4bf92f3577b34da6 && parent.trace.low == 0xa3ce929d0e0e4736);
    assert_true(parent.parent == 0x00f067aa0ba902b7);
    assert_true(parent.sampled);
    assert_true(parse("00-" TRACE "-" PARENT "-00", &parent) && !parent.sampled);
    assert_true(parse("00-" TRACE "-" PARENT "-03", &parent) && parent.sampled);
    assert_true(parse("cc-" TRACE "-" PARENT "-01-what-comes-later", &parent));
}

TEST(rejects_traceparents)
{
    static const char *const cases[] = {"",
                                        "00",
                                        "00-" TRACE "-" PARENT "-0",
                                        "00-" TRACE "-" PARENT "-01-x",
                                        "cc-" TRACE "-" PARENT "-01x",
                                        "ff-" TRACE "-" PARENT "-01",
                                        "00-" TRACE "-" PARENT "_01",
                                        "00-00000000000000000000000000000000-" PARENT "-01",
                                        "00-" TRACE "-0000000000000000-01",
                                        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
                                        "0x-" TRACE "-" PARENT "-01"};
    struct bag_traceparent parent;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (parse(cases[i], &parent))
            fail_msg("'%s' was taken", cases[i]);
    }
}

TEST(reads_fractions)
{
    static const char *const wrong[] = {"", "-0.1", "1.1", "x", "0.1x", " 1", "nan", "1e-2", "."};
    double fraction;
    assert_true(bag_fraction_parse("0.25", &fraction) && fraction == 0.25);
    assert_true(bag_fraction_parse("0", &fraction) && fraction == 0);
    assert_true(bag_fraction_parse("1", &fraction) && fraction == 1);
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_false(bag_fraction_parse(wrong[i], &fraction));
}

#define ATTRIBUTE(key, type, value) "{\"key\":\"" key "\",\"value\":{\"" type "\":\"" value "\"}}"
#define STAGE(time, name, us)                         \
    "{\"timeUnixNano\":\"" time "\",\"name\":\"" name \
    "\",\"attributes\":[" ATTRIBUTE("bagserve.duration_us", "intValue", us) "]}"

#define TEXT(key, value)   ATTRIBUTE(key, "stringValue", value)
#define NUMBER(key, value) ATTRIBUTE(key, "intValue", value)

static const struct bag_span spans[] = {
    {.place = {{0x4bf92f3577b34da6, 0xa3ce929d0e0e4736}, 1, 0x00f067aa0ba902b7, true, false},
     .begin_ns = 1000000,
     .end_ns = 2000000,
     .method = "POST",
     .path = "/v2/models/t/infer",
     .route = "/v2/models/{model}/infer",
     .peer = "127.0.0.1:5",
     .model = "t",
     .status = 200,
     .bytes_in = 7,
     .bytes_out = 8,
     .pooled = true,
     .bags = 2,
     .ids = 20,
     .read_ns = 100000,
     .wait_ns = 200000,
     .pool_ns = 300000,
     .write_ns = 400000},
    {.place = {{0, 1}, 2, 0, true, false},
     .begin_ns = 5,
     .end_ns = 6,
     .method = "GET",
     .path = "/\"",
     .peer = "unix",
     .error = "503",
     .status = 503}};

/* The expected spans, with one member or attribute in each line. */
static const char *const printed[] = {
    "{\"resourceSpans\":[{\"resource\":{\"attributes\":[",
    TEXT("service.name", "bagserve") ",",
    TEXT("service.version", "1.2"),
    "]},\"scopeSpans\":[{\"scope\":{\"name\":\"bagserve\"},\"spans\":[",
    "{\"traceId\":\"" TRACE "\",\"spanId\":\"0000000000000001\",",
    "\"parentSpanId\":\"" PARENT "\",",
    "\"name\":\"POST /v2/models/{model}/infer\",\"kind\":2,",
    "\"startTimeUnixNano\":\"1000000\",\"endTimeUnixNano\":\"2000000\",\"attributes\":[",
    TEXT("http.request.method", "POST") ",",
    TEXT("url.path", "/v2/models/t/infer") ",",
    TEXT("url.scheme", "http") ",",
    TEXT("http.route", "/v2/models/{model}/infer") ",",
    TEXT("client.address", "127.0.0.1:5") ",",
    NUMBER("http.response.status_code", "200") ",",
    NUMBER("http.request.body.size", "7") ",",
    NUMBER("http.response.body.size", "8") ",",
    TEXT("bagserve.model", "t") ",",
    NUMBER("bagserve.bags", "2") ",",
    NUMBER("bagserve.ids", "20"),
    "],\"events\":[",
    STAGE("1000000", "read", "100") ",",
    STAGE("1100000", "wait", "200") ",",
    STAGE("1300000", "pool", "300") ",",
    STAGE("1600000", "write", "400"),
    "],\"status\":{}},",
    "{\"traceId\":\"00000000000000000000000000000001\",\"spanId\":\"0000000000000002\",",
    "\"name\":\"GET\",\"kind\":2,",
    "\"startTimeUnixNano\":\"5\",\"endTimeUnixNano\":\"6\",\"attributes\":[",
    TEXT("http.request.method", "GET") ",",
    TEXT("url.path", "/\\\"") ",",
    TEXT("url.scheme", "http") ",",
    TEXT("client.address", "unix") ",",
    NUMBER("http.response.status_code", "503") ",",
    NUMBER("http.request.body.size", "0") ",",
    NUMBER("http.response.body.size", "0") ",",
    TEXT("error.type", "503"),
    "],\"status\":{\"code\":2}}]}]}]}"};

static void expect_parts(const char *at, const char *const *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strncmp(at, parts[i], strlen(parts[i])) != 0)
            fail_msg("'%s' in place of '%s'", at, parts[i]);
        at += strlen(parts[i]);
    }
    assert_string_equal(at, "");
}

TEST(prints_spans)
{
    char *text = bag_otlp_print(spans, COUNT_OF(spans), "1.2");
    expect_parts(text, printed, COUNT_OF(printed));
    free(text);
}

static const struct bag_span calls[] = {
    {.place = {{0x4bf92f3577b34da6, 0xa3ce929d0e0e4736}, 3, 1, true, false},
     .begin_ns = 7,
     .end_ns = 8,
     .is_client = true,
     .method = "POST",
     .path = "http://items-0:8000/v2/models/t/versions/3/infer",
     .route = "/v2/models/{model}/versions/{version}/infer",
     .peer = "items-0",
     .model = "t",
     .error = "503",
     .status = 503,
     .bags = 2,
     .ids = 20,
     .port = 8000,
     .resends = 1,
     .is_hedge = true,
     .shard = 4,
     .became = "rejected"},
    {.place = {{0, 1}, 4, 1, true, false},
     .begin_ns = 7,
     .end_ns = 7,
     .is_client = true,
     .method = "POST",
     .path = "http://localhost/v2",
     .peer = "/run/s",
     .error = "refused",
     .became = "refused"},
    {.place = {{0, 1}, 5, 1, true, false},
     .is_client = true,
     .method = "POST",
     .became = "unneeded"}};

static const char *const printed_calls[] = {
    "{\"traceId\":\"" TRACE "\",\"spanId\":\"0000000000000003\",",
    "\"parentSpanId\":\"0000000000000001\",",
    "\"name\":\"POST /v2/models/{model}/versions/{version}/infer\",\"kind\":3,",
    "\"startTimeUnixNano\":\"7\",\"endTimeUnixNano\":\"8\",\"attributes\":[",
    TEXT("http.request.method", "POST") ",",
    TEXT("url.full", "http://items-0:8000/v2/models/t/versions/3/infer") ",",
    TEXT("url.template", "/v2/models/{model}/versions/{version}/infer") ",",
    TEXT("server.address", "items-0") ",",
    NUMBER("server.port", "8000") ",",
    TEXT("network.protocol.version", "1.1") ",",
    NUMBER("http.request.resend_count", "1") ",",
    NUMBER("http.response.status_code", "503") ",",
    NUMBER("bagserve.shard", "4") ",",
    "{\"key\":\"bagserve.hedge\",\"value\":{\"boolValue\":true}},",
    TEXT("bagserve.outcome", "rejected") ",",
    TEXT("error.type", "503") ",",
    TEXT("bagserve.model", "t") ",",
    NUMBER("bagserve.bags", "2") ",",
    NUMBER("bagserve.ids", "20"),
    "],\"status\":{\"code\":2}},",
    "{\"traceId\":\"00000000000000000000000000000001\",\"spanId\":\"0000000000000004\",",
    "\"parentSpanId\":\"0000000000000001\",\"name\":\"POST\",\"kind\":3,",
    "\"startTimeUnixNano\":\"7\",\"endTimeUnixNano\":\"7\",\"attributes\":[",
    TEXT("http.request.method", "POST") ",",
    TEXT("url.full", "http://localhost/v2") ",",
    TEXT("server.address", "/run/s") ",",
    TEXT("network.protocol.version", "1.1") ",",
    NUMBER("bagserve.shard", "0") ",",
    TEXT("bagserve.outcome", "refused") ",",
    TEXT("error.type", "refused") ",",
    NUMBER("bagserve.bags", "0") ",",
    NUMBER("bagserve.ids", "0"),
    "],\"status\":{\"code\":2}},",
    "{\"traceId\":\"00000000000000000000000000000001\",\"spanId\":\"0000000000000005\",",
    "\"parentSpanId\":\"0000000000000001\",\"name\":\"POST\",\"kind\":3,",
    "\"startTimeUnixNano\":\"0\",\"endTimeUnixNano\":\"0\",\"attributes\":[",
    TEXT("http.request.method", "POST") ",",
    TEXT("network.protocol.version", "1.1") ",",
    NUMBER("bagserve.shard", "0") ",",
    TEXT("bagserve.outcome", "unneeded") ",",
    NUMBER("bagserve.bags", "0") ",",
    NUMBER("bagserve.ids", "0"),
    "],\"status\":{}}]}]}]}"};

TEST(prints_spans_of_calls)
{
    char *text = bag_otlp_print(calls, COUNT_OF(calls), "1.2");
    expect_parts(strstr(text, "{\"traceId\""), printed_calls, COUNT_OF(printed_calls));
    free(text);
}

TEST(prints_traceparents)
{
    const struct bag_span_place sampled = {
        {0x4bf92f3577b34da6, 0xa3ce929d0e0e4736}, 1, 2, true, true};
    const struct bag_span_place other = {{0, 1}, UINT64_MAX, 0, false, false};
    struct bag_traceparent parent;
    char text[BAG_TRACEPARENT_BYTES];
    bag_traceparent_print(&other, text);
    assert_string_equal(text, "00-00000000000000000000000000000001-ffffffffffffffff-00");
    bag_traceparent_print(&sampled, text);
    assert_string_equal(text, "00-" TRACE "-0000000000000001-01");
    assert_true(parse(text, &parent) && parent.sampled && parent.parent == 1);
}

TEST(prints_utf8)
{
    const struct bag_span span = {.method = "G\xff", .path = "/\xc3\xa9\xe2\x82", .model = "\x80"};
    char *text = bag_otlp_print(&span, 1, "1.2");
    assert_non_null(strstr(text, "\"name\":\"G?\""));
    assert_non_null(strstr(text, TEXT("http.request.method", "G?")));
    assert_non_null(strstr(text, TEXT("url.path", "/\xc3\xa9??")));
    assert_non_null(strstr(text, TEXT("bagserve.model", "?")));
    free(text);
}
