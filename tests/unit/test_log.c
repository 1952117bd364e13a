/* Log lines, as they come out on standard error: a pipe here. */
#include "testing.h"

#include "server/system/log.h"

#include <unistd.h>

static char line[16384];

/* Returns the text of one event, without its time and its end of line. */
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

TEST(test_values)
{
    static const struct {
        const char *value, *json, *text;
    } cases[] = {{"word", "\"word\"", "word"},
                 {"", "\"\"", "\"\""},
                 {"two words", "\"two words\"", "\"two words\""},
                 {"a\"b\\c", "\"a\\\"b\\\\c\"", "\"a\\\"b\\\\c\""},
                 {"a\nb\x1b\x7f", "\"a\\u000ab\\u001b\\u007f\"", "\"a\\u000ab\\u001b\\u007f\""},
                 {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
                  "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"",
                  "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
                 {"\xff", "\"\\\\xff\"", "\"\\\\xff\""},
                 {"a\xc3", "\"a\\\\xc3\"", "\"a\\\\xc3\""},
                 {"\xc0\xaf", "\"\\\\xc0\\\\xaf\"", "\"\\\\xc0\\\\xaf\""},
                 {"\xed\xa0\x80z", "\"\\\\xed\\\\xa0\\\\x80z\"", "\"\\\\xed\\\\xa0\\\\x80z\""},
                 {"\xc2\x9b", "\"\\\\xc2\\\\x9b\"", "\"\\\\xc2\\\\x9b\""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char want[256];
        snprintf(want, sizeof want, "\"key\":%s,\"n\":-7}", cases[i].json);
        assert_string_equal(logged(BAG_LOG_FORMAT_JSON, cases[i].value), want);
        snprintf(want, sizeof want, "key=%s n=-7", cases[i].text);
        assert_string_equal(logged(BAG_LOG_FORMAT_TEXT, cases[i].value), want);
    }
}

/* A long value is truncated between characters, and the line stays complete. */
TEST(test_long_values)
{
    char *value = malloc(12001);
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

/* Reads `count` lines from the pipe. */
static size_t read_lines(int fd, size_t count, char *text, size_t room)
{
    size_t bytes = 0;
    while (count) {
        assert_int_equal(read(fd, text + bytes, 1), 1);
        count -= text[bytes++] == '\n';
        assert_true(bytes < room);
    }
    text[bytes] = 0;
    return bytes;
}

/* Numbers and levels as printf would write them. */
TEST(test_numbers)
{
    static const int64_t numbers[] = {0, 9, 10, 99, 100, -1, INT64_MAX, INT64_MIN};
    int ends[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        char want[128];
        bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_DEBUG);
        bag_log((enum bag_log_level)(i % 4), "event", BAG_LOG_NUMBER("n", numbers[i]));
        read_lines(ends[0], 1, line, sizeof line);
        static const char *const levels[] = {"error", "warning", "info", "debug"};
        snprintf(want, sizeof want, " %-7s event n=%lld\n", levels[i % 4], (long long)numbers[i]);
        assert_string_equal(line + strlen("2000-01-01T00:00:00.000Z"), want);
        assert_true(line[4] == '-' && line[10] == 'T' && line[19] == '.' && line[23] == 'Z');
    }
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[0]);
    close(ends[1]);
}

/* Lines that may wait are written in order even if no line follows them, and even if they exceed
 * the buffer. An urgent line writes them at once, and the end of the log writes the rest. */
TEST(test_waiting_lines)
{
    enum { LINES = 3000, AT_ONCE = 100 };
    int ends[2], before = dup(STDERR_FILENO);
    struct bag_problem problem;
    int next = 0;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_INFO);
    assert_true(bag_log_start(&problem));
    for (int i = 0; i < LINES; i++) {
        bag_log_often(BAG_LOG_LEVEL_INFO, "event", BAG_LOG_NUMBER("line", i),
                      BAG_LOG_TEXT("filling", "a line of the access log has about so many bytes"));
        if (i % AT_ONCE != AT_ONCE - 1)
            continue;
        bag_log(BAG_LOG_LEVEL_WARNING, "urgent");
        for (; next <= i; next++) {
            char want[32];
            read_lines(ends[0], 1, line, sizeof line);
            snprintf(want, sizeof want, " line=%d ", next);
            assert_non_null(strstr(line, want));
        }
        read_lines(ends[0], 1, line, sizeof line);
        assert_non_null(strstr(line, "urgent"));
    }
    bag_log_often(BAG_LOG_LEVEL_INFO, "alone");
    read_lines(ends[0], 1, line, sizeof line);
    assert_non_null(strstr(line, "alone"));
    bag_log_often(BAG_LOG_LEVEL_INFO, "last");
    bag_log_stop();
    read_lines(ends[0], 1, line, sizeof line);
    assert_non_null(strstr(line, "last"));
    assert_int_equal(bag_log_dropped(), 0);
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[0]);
    close(ends[1]);
}

/* A line takes the place of a bar, and leaves one alone that has ended. */
TEST(test_lines_beside_a_bar)
{
    static const char *const begins[] = {"[##..]\r\x1b[K20", "\r\x1b[Kdone\n20", "20"};
    int ends[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_INFO);
    for (size_t i = 0; i < COUNT_OF(begins); i++) {
        if (i < 2)
            bag_log_draw(i ? "\r\x1b[Kdone\n" : "[##..]");
        bag_log(BAG_LOG_LEVEL_INFO, "event");
        ssize_t bytes = read(ends[0], line, sizeof line - 1);
        assert_true(bytes > 0);
        line[bytes] = 0;
        if (strncmp(line, begins[i], strlen(begins[i])) != 0)
            fail_msg("'%s'", line);
    }
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[0]);
    close(ends[1]);
}
