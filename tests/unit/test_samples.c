/* Samples of metrics, from text that may be anything. */
#include "proto/samples.h"
#include "testing.h"

static bool next(const char **at, struct bag_sample *sample)
{
    return bag_samples_next(at, "rows_total", "model", sample);
}

static void test_samples(void **state)
{
    (void)state;
    const char *at = "# HELP rows_total Rows.\n"
                     "# TYPE rows_total counter\n"
                     "rows_total{model=\"a\",version=\"1\"} 12\n"
                     "rows_total_more{model=\"b\"} 1\n"
                     "more_rows_total{model=\"b\"} 1\n"
                     "rows_total{version=\"2\",model=\"c\\\"}d\"} 1.5e3 1700000000\r\n"
                     "rows_total 7\n"
                     "rows_total{} -8";
    struct bag_sample sample;
    assert_true(next(&at, &sample));
    assert_true(bag_text_is(sample.label, "a"));
    assert_true(sample.value == 12);
    assert_true(next(&at, &sample));
    assert_true(bag_text_is(sample.label, "c\\\"}d"));
    assert_true(sample.value == 1500);
    assert_true(next(&at, &sample));
    assert_null(sample.label.data);
    assert_true(sample.value == 7);
    assert_true(next(&at, &sample));
    assert_null(sample.label.data);
    assert_true(sample.value == -8);
    assert_false(next(&at, &sample));
    assert_false(next(&at, &sample));
}

static void test_what_is_no_sample(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "\n\n",
        "rows_total",
        "rows_total ",
        "rows_total x",
        "rows_total 1x",
        "rows_total NaN",
        "rows_total +Inf",
        "rows_total{",
        "rows_total{model",
        "rows_total{model=",
        "rows_total{model=\"",
        "rows_total{model=\"a",
        "rows_total{model=\"a\\",
        "rows_total{model=\"a\\\"",
        "rows_total{model=\"a\"",
        "rows_total{model=\"a\"}",
        "rows_total{model=\"a\"}1",
        "rows_total{model=\"a\";x=\"b\"} 1",
        "rows_total{model=a} 1",
        "rows_total{model=\"a\n\"} 1",
        "rows_total{model=\"a\\\n\"} 1",
    };
    struct bag_sample sample;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *at = texts[i];
        if (next(&at, &sample))
            fail_msg("'%s' was read", texts[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_what_is_no_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
