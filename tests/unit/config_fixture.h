/* A configuration under test: texts go in, and what comes out or is said is compared exactly. */
#pragma once

#include "testing.h"

#include "config/config.h"

/* A literal where the interface has char *, as main's arguments do. */
#define TEXT(literal) ((char[]){literal})

static struct {
    struct bag_config config;
    struct bag_problem problem;
} under_test, *const fixture = &under_test;

static inline int set_up(void **state)
{
    (void)state;
    bag_config_init(&fixture->config);
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    bag_config_free(&fixture->config);
    return 0;
}

/* Compares whether it was applied, and the problem's text where `expected` is one (NULL: none). */
static inline void expect(bool applied, const char *expected)
{
    if (applied && expected)
        fail_msg("applied, but expected: %s", expected);
    if (!applied && !expected)
        fail_msg("rejected: %s", fixture->problem.text);
    if (expected)
        assert_string_equal(fixture->problem.text, expected);
}

/* Forgets all that was applied. */
static inline void reset(void)
{
    bag_config_free(&fixture->config);
    bag_config_init(&fixture->config);
}

/* Applies the text, which may have ' in the place of ", as a file "bagserve.json". */
static inline void file(const char *text, const char *expected)
{
    char *copy = quoted_copy(text, strlen(text));
    bool applied = bag_config_apply_file(&fixture->config, "bagserve.json", copy, strlen(text),
                                         &fixture->problem);
    free(copy);
    expect(applied, expected);
}

/* Applies each text, with what is expected of it. */
static inline void files(const char *const cases[][2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        file(cases[i][0], cases[i][1]);
}

/* Applies one variable, "NAME=VALUE". */
static inline void variable(const char *entry, const char *expected)
{
    char *copy = exact_copy(entry, strlen(entry) + 1);
    char *environment[] = {TEXT("PATH=/bin"), copy, NULL};
    bool applied = bag_config_apply_environment(&fixture->config, environment, &fixture->problem);
    free(copy);
    expect(applied, expected);
}

/* Applies up to four flags and values, the last one followed by NULL. */
static inline void flags(const char *const arguments[], const char *expected)
{
    char *argv[8] = {0};
    int argc = 0;
    for (; arguments[argc]; argc++)
        argv[argc] = exact_copy(arguments[argc], strlen(arguments[argc]) + 1);
    bool applied = bag_config_apply_flags(&fixture->config, argc, argv, &fixture->problem);
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    expect(applied, expected);
}

#define FLAGS(expected, ...) flags((const char *const[]){__VA_ARGS__, NULL}, (expected))

AROUND_EACH(set_up, tear_down)
