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

static void reads_traceparents(void **state)
{
    struct bag_traceparent parent;
    (void)state;
    assert_true(parse("00-" TRACE "-" PARENT "-01", &parent));
    assert_true(parent.trace.high == 0x4bf92f3577b34da6 && parent.trace.low == 0xa3ce929d0e0e4736);
    assert_true(parent.parent == 0x00f067aa0ba902b7);
    assert_true(parent.sampled);
    assert_true(parse("00-" TRACE "-" PARENT "-00", &parent) && !parent.sampled);
    assert_true(parse("00-" TRACE "-" PARENT "-03", &parent) && parent.sampled);
    assert_true(parse("cc-" TRACE "-" PARENT "-01-what-comes-later", &parent));
}

static void rejects_traceparents(void **state)
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
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (parse(cases[i], &parent))
            fail_msg("'%s' was taken", cases[i]);
    }
}

static void reads_fractions(void **state)
{
    static const char *const wrong[] = {"", "-0.1", "1.1", "x", "0.1x", " 1", "nan", "1e-2", "."};
    double fraction;
    (void)state;
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

static const struct bag_span spans[] = {{.trace = {0x4bf92f3577b34da6, 0xa3ce929d0e0e4736},
                                         .id = 1,
                                         .parent = 0x00f067aa0ba902b7,
                                         .begin_ns = 1000000,
                                         .end_ns = 2000000,
                                         .method = "POST",
                                         .path = "/v2/models/t/infer",
                                         .route = "/v2/models/{model}/infer",
                                         .client = "127.0.0.1:5",
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
                                        {.trace = {0, 1},
                                         .id = 2,
                                         .begin_ns = 5,
                                         .end_ns = 6,
                                         .method = "GET",
                                         .path = "/\"",
                                         .client = "unix",
                                         .error = "503",
                                         .status = 503}};

/* What they are, a member or an attribute in a line. */
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
    "],\"status\":{\"code\":2}}]}]}]}",
};

static void prints_spans(void **state)
{
    char *text = bag_otlp_print(spans, COUNT_OF(spans), "1.2"), *at = text;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(printed); i++) {
        if (strncmp(at, printed[i], strlen(printed[i])) != 0)
            fail_msg("'%s' in place of '%s'", at, printed[i]);
        at += strlen(printed[i]);
    }
    assert_string_equal(at, "");
    free(text);
}

static void prints_utf8(void **state)
{
    const struct bag_span span = {.method = "G\xff", .path = "/\xc3\xa9\xe2\x82", .model = "\x80"};
    (void)state;
    char *text = bag_otlp_print(&span, 1, "1.2");
    assert_non_null(strstr(text, "\"name\":\"G?\""));
    assert_non_null(strstr(text, TEXT("http.request.method", "G?")));
    assert_non_null(strstr(text, TEXT("url.path", "/\xc3\xa9??")));
    assert_non_null(strstr(text, TEXT("bagserve.model", "?")));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_traceparents), cmocka_unit_test(rejects_traceparents),
        cmocka_unit_test(reads_fractions), cmocka_unit_test(prints_spans),
        cmocka_unit_test(prints_utf8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
