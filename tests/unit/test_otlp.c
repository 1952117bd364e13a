/* The caller's header of a trace, and texts in spans; http/test_trace.py and
 * test_coordinator_trace.py read whole spans. */
#include "testing.h"

#include "proto/otlp.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static bool parse(const char *text, struct bag_span_place *parent)
{
    char *copy = exact_copy(text, strlen(text) + 1);
    bool ok = bag_traceparent_parse(copy, parent);
    free(copy);
    return ok;
}

TEST(reads_traceparents)
{
    struct bag_span_place parent;
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
    struct bag_span_place parent;
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
#define TEXT(key, value)            ATTRIBUTE(key, "stringValue", value)

TEST(prints_traceparents)
{
    const struct bag_span_place sampled = {
        {0x4bf92f3577b34da6, 0xa3ce929d0e0e4736}, 1, 2, true, true};
    const struct bag_span_place other = {{0, 1}, UINT64_MAX, 0, false, false};
    struct bag_span_place parent;
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
