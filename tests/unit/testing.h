/* Every unit test includes this file, which has `main` and includes cmocka with the headers that
 * cmocka needs. A file of tests is
 *
 *   TEST(reads_a_table)
 *   {
 *       assert_true(...);
 *   }
 *
 * The tests run in the order of the file. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static struct {
    struct CMUnitTest tests[100];
    size_t count;
    CMFixtureFunction before_all, after_all, before_each, after_each;
    char **arguments; /* arguments of the program, without its name */
} testing;

/* Runs before main, in the order of lines. */
#define BAG_BEFORE_MAIN(name, line) static __attribute__((constructor(1000 + line))) void name(void)

/* Defines a test that runs between two functions of its own: int begin(void **state). */
#define TEST_BETWEEN(name, begin, end)                                                       \
    static void name(void **state);                                                          \
    BAG_BEFORE_MAIN(add_##name, __LINE__)                                                    \
    {                                                                                        \
        if (testing.count == COUNT_OF(testing.tests))                                        \
            abort();                                                                         \
        testing.tests[testing.count++] = (struct CMUnitTest){#name, name, begin, end, NULL}; \
    }                                                                                        \
    static void name(__attribute__((unused)) void **state)

/* Defines a test that runs between the functions of AROUND_EACH, if there are any. */
#define TEST(name) TEST_BETWEEN(name, NULL, NULL)

/* Says what runs before and after each TEST. */
#define AROUND_EACH(begin, end)                \
    BAG_BEFORE_MAIN(set_around_each, __LINE__) \
    {                                          \
        testing.before_each = begin;           \
        testing.after_each = end;              \
    }

/* Says what runs before the first test and after the last. */
#define AROUND_ALL(begin, end)                \
    BAG_BEFORE_MAIN(set_around_all, __LINE__) \
    {                                         \
        testing.before_all = begin;           \
        testing.after_all = end;              \
    }

int main(int argc, char *argv[])
{
    testing.arguments = argv + (argc > 0);
    for (size_t i = 0; i < testing.count; i++) {
        struct CMUnitTest *test = &testing.tests[i];
        if (!test->setup_func && !test->teardown_func) {
            test->setup_func = testing.before_each;
            test->teardown_func = testing.after_each;
        }
    }
    return _cmocka_run_group_tests(argv[0], testing.tests, testing.count, testing.before_all,
                                   testing.after_all);
}

/* A heap copy of exactly `bytes` bytes, so that a sanitizer sees one byte read too far. */
static inline char *exact_copy(const void *data, size_t bytes)
{
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    return copy;
}

/* Returns such a copy of a JSON text, with every ' replaced by ". */
static inline char *quoted_copy(const char *text, size_t bytes)
{
    char *copy = exact_copy(text, bytes);
    for (char *at = copy; (at = memchr(at, '\'', (size_t)(copy + bytes - at)));)
        *at = '"';
    return copy;
}
