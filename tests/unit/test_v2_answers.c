#include "proto/v2_answers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static bool number(const char *text, const char *within, uint64_t *value)
{
    return bag_v2_answer_number(text, strlen(text), within, "sequence", value);
}

static void numbers(void **state)
{
    uint64_t value;
    (void)state;
    assert_true(number("{\"sequence\":17,\"applied\":true}", NULL, &value));
    assert_int_equal(value, 17);
    assert_true(number("{\"parameters\":{\"sequence\":0}}", "parameters", &value));
    assert_int_equal(value, 0);
    assert_true(number("{\"sequence\":9007199254740991}", NULL, &value));
    assert_int_equal(value, 9007199254740991);
}

static void no_numbers(void **state)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "17",
                                        "null",
                                        "{\"sequence\":-1}",
                                        "{\"sequence\":1.5}",
                                        "{\"sequence\":9007199254740992}",
                                        "{\"sequence\":\"17\"}",
                                        "{\"parameters\":{\"sequence\":1}}"};
    uint64_t value = 99;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_false(number(texts[i], NULL, &value));
    assert_false(number("{\"sequence\":17}", "parameters", &value));
    assert_false(number("{\"parameters\":17}", "parameters", &value));
    assert_int_equal(value, 99);
}

static const char *error(const char *text, size_t room)
{
    static char sentence[64];
    bag_v2_answer_error(text, strlen(text), sentence, room);
    return sentence;
}

static void errors(void **state)
{
    (void)state;
    assert_string_equal(error("{\"error\":\"no such row\"}", 64), "no such row");
    assert_string_equal(error("{\"error\":\"no such row\"}", 8), "no such");
    assert_string_equal(error("{\"error\":\"a\\nb\\u001bc\\u007f\"}", 64), "a?b?c?");
    assert_string_equal(error("{\"error\":17}", 64), "{\"error\":17}");
    assert_string_equal(error("<html>\r\n", 64), "<html>??");
    assert_string_equal(error("<html>", 4), "<ht");
    assert_string_equal(error("", 64), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(no_numbers),
                                       cmocka_unit_test(errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
