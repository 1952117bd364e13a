/* Integers and sizes as people write them; see size.h. */
#include "size.h"

#include "options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int64_t bytes;
} units[] = {
    {"GiB", BAG_GIB},   {"MiB", BAG_MIB}, {"KiB", BAG_KIB},
    {"GB", 1000000000}, {"MB", 1000000},  {"KB", 1000},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* What follows the integer, or NULL where the text does not begin with one. */
static const char *take_integer(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    bool overflow = false;
    text += negative;
    if (!is_digit(*text) || (text[0] == '0' && is_digit(text[1])))
        return NULL;
    *value = 0;
    for (; is_digit(*text); text++) {
        int64_t digit = negative ? '0' - *text : *text - '0';
        overflow |= __builtin_mul_overflow(*value, 10, value);
        overflow |= __builtin_add_overflow(*value, digit, value);
    }
    if (overflow)
        *value = negative ? INT64_MIN : INT64_MAX;
    return text;
}

bool bag_integer_parse(const char *text, int64_t *value)
{
    const char *end = take_integer(text, value);
    return end && !*end;
}

bool bag_size_parse(const char *text, int64_t *bytes)
{
    const char *unit = take_integer(text, bytes);
    if (!unit || !*unit)
        return unit != NULL;
    unit += *unit == ' ';
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(*bytes, units[i].bytes, bytes))
            *bytes = *text == '-' ? INT64_MIN : INT64_MAX;
        return true;
    }
    return false;
}

struct bag_size_text bag_size_text(int64_t bytes)
{
    struct bag_size_text shown;
    for (size_t i = 0; bytes > 0 && i < sizeof units / sizeof *units; i++) {
        /* The units of 1024 come first; those of 1000 are for reading alone. */
        if (units[i].bytes % BAG_KIB == 0 && bytes % units[i].bytes == 0) {
            snprintf(shown.text, sizeof shown.text, "%" PRId64 " %s", bytes / units[i].bytes,
                     units[i].name);
            return shown;
        }
    }
    snprintf(shown.text, sizeof shown.text, "%" PRId64 " byte%s", bytes, bytes == 1 ? "" : "s");
    return shown;
}
