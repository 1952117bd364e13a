/* Log lines, as they come out on standard error: a pipe here. */
#include "testing.h"

#include "server/system/log.h"

#include <unistd.h>

static char line[16384];

/* What one event becomes, without its time and its end of line. */
static const char *logged(enum bag_log_format format, const char *value)
{
    int ends[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    bag_log_configure(format, BAG_LOG_LEVEL_INFO);
    bag_log(BAG_LOG_LEVEL_INFO, "event", BAG_LOG_TEXT("key", value), BAG_LOG_NUMBER("n", -7));
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[1]);
    ssize_t bytes = read(ends[0], line, sizeof line - 1);
    close(ends[0]);
    assert_true(bytes > 0 && line[bytes - 1] == '\n');
    line[bytes - 1] = 0;
    return format == BAG_LOG_FORMAT_JSON ? strstr(line, "\"key\"") : strstr(line, "key=");
}

static void test_values(void **state)
{
    static const struct {
        const char *value, *json, *text;
    } cases[] = {
        {"word", "\"word\"", "word"},
        {"", "\"\"", "\"\""},
        {"two words", "\"two words\"", "\"two words\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\"", "\"a\\\"b\\\\c\""},
        {"a\nb\x1b\x7f", "\"a\\u000ab\\u001b\\u007f\"", "\"a\\u000ab\\u001b\\u007f\""},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"",
         "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xff", "\"\\\\xff\"", "\"\\\\xff\""},
        {"a\xc3", "\"a\\\\xc3\"", "\"a\\\\xc3\""},
        {"\xc0\xaf", "\"\\\\xc0\\\\xaf\"", "\"\\\\xc0\\\\xaf\""},
        {"\xed\xa0\x80z", "\"\\\\xed\\\\xa0\\\\x80z\"", "\"\\\\xed\\\\xa0\\\\x80z\""},
        {"\xc2\x9b", "\"\\\\xc2\\\\x9b\"", "\"\\\\xc2\\\\x9b\""},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char want[256];
        snprintf(want, sizeof want, "\"key\":%s,\"n\":-7}", cases[i].json);
        assert_string_equal(logged(BAG_LOG_FORMAT_JSON, cases[i].value), want);
        snprintf(want, sizeof want, "key=%s n=-7", cases[i].text);
        assert_string_equal(logged(BAG_LOG_FORMAT_TEXT, cases[i].value), want);
    }
}

/* A long value is cut between characters, and the line is whole all the same. */
static void test_long_values(void **state)
{
    char *value = malloc(12001);
    (void)state;
    assert_non_null(value);
    for (size_t shift = 0; shift < 4; shift++) {
        memset(value, 'a', shift);
        for (size_t i = shift; i + 4 <= 12000; i += 4)
            memcpy(value + i, "\xf0\x9f\x98\x80", 4);
        value[11996] = 0;
        const char *end = logged(BAG_LOG_FORMAT_JSON, value);
        assert_true(strlen(end) < 8192);
        assert_string_equal(end + strlen(end) - 12, "\x9f\x98\x80\",\"n\":-7}");
        end = logged(BAG_LOG_FORMAT_TEXT, value);
        assert_string_equal(end + strlen(end) - 5, " n=-7");
    }
    free(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_long_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
