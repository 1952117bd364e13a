/* Arrays of numbers <-> JSON text; see numbers.h. */
#include "numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of more characters are refused: 800 digits settle any rounding. */
#define LONGEST_NUMBER 1100

/* An array while it is read. */
struct array {
    const char *at, *end;
    enum bag_dtype dtype;
    size_t found, count;
    char *out;
    struct bag_problem *problem;
};

static bool refuse(struct array *array, const char *allowed)
{
    size_t bytes = 0;
    while (array->at + bytes < array->end && !strchr(",] \t\r\n", array->at[bytes]))
        bytes++;
    return bag_problem_set(array->problem, 400, "element %zu is '%s'; %s takes %s", array->found,
                           bag_quote(array->at, bytes).text, bag_dtypes[array->dtype].name,
                           allowed);
}

static bool refuse_integer(struct array *array)
{
    static const char *const allowed[BAG_DTYPE_COUNT] = {
        [BAG_U8] = "integers from 0 to 255",
        [BAG_U16] = "integers from 0 to 65535",
        [BAG_U32] = "integers from 0 to 4294967295",
        [BAG_U64] = "integers from 0 to 18446744073709551615",
        [BAG_I8] = "integers from -128 to 127",
        [BAG_I16] = "integers from -32768 to 32767",
        [BAG_I32] = "integers from -2147483648 to 2147483647",
        [BAG_I64] = "integers from -9223372036854775808 to 9223372036854775807",
    };
    return refuse(array, allowed[array->dtype]);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* ---- elements -------------------------------------------------------------------------------- */

/* A JSON integer in the dtype's range, as its low 64 bits. */
static bool read_integer(struct array *array, uint64_t *value)
{
    unsigned bits = 8 * (unsigned)bag_dtypes[array->dtype].bytes;
    bool is_signed = bag_dtypes[array->dtype].kind == BAG_KIND_SIGNED;
    const char *at = array->at;
    bool negative = at < array->end && *at == '-';
    uint64_t top =
        is_signed ? (UINT64_C(1) << (bits - 1)) - 1 + negative : UINT64_MAX >> (64 - bits);
    uint64_t magnitude = 0;
    at += negative;
    const char *digits = at;
    for (; at < array->end && is_digit(*at); at++) {
        if (__builtin_mul_overflow(magnitude, UINT64_C(10), &magnitude) ||
            __builtin_add_overflow(magnitude, (uint64_t)(*at - '0'), &magnitude))
            return refuse_integer(array);
    }
    if (at == digits || (*digits == '0' && at - digits > 1) || magnitude > top ||
        (negative && !is_signed && magnitude) ||
        (at < array->end && (*at == '.' || *at == 'e' || *at == 'E')))
        return refuse_integer(array);
    *value = negative ? 0 - magnitude : magnitude;
    array->at = at;
    return true;
}

/* Length of a JSON number; 0 where there is none. */
static size_t number_bytes(const char *start, const char *end)
{
    const char *at = start, *digits;
    at += at < end && *at == '-';
    digits = at;
    while (at < end && is_digit(*at))
        at++;
    if (at == digits || (*digits == '0' && at - digits > 1))
        return 0;
    if (at < end && *at == '.') {
        digits = ++at;
        while (at < end && is_digit(*at))
            at++;
        if (at == digits)
            return 0;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < end && (*at == '+' || *at == '-');
        digits = at;
        while (at < end && is_digit(*at))
            at++;
        if (at == digits)
            return 0;
    }
    return (size_t)(at - start);
}

static bool read_word(struct array *array, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(array->end - array->at) < bytes || memcmp(array->at, word, bytes) != 0)
        return false;
    array->at += bytes;
    return true;
}

static bool read_float(struct array *array, char *out)
{
    static const char allowed[] = "JSON numbers within its range, NaN, Infinity and -Infinity";
    char text[LONGEST_NUMBER + 1];
    size_t bytes = number_bytes(array->at, array->end);
    double f64 = 0;
    float f32 = 0;
    if (bytes && bytes <= LONGEST_NUMBER) {
        memcpy(text, array->at, bytes);
        text[bytes] = 0;
        f64 = strtod(text, NULL);
        f32 = strtof(text, NULL); /* not (float) f64, which would round twice */
        if (isinf(array->dtype == BAG_F32 ? (double)f32 : f64))
            return refuse(array, allowed);
        array->at += bytes;
    } else if (read_word(array, "NaN")) {
        f64 = f32 = NAN;
    } else if (read_word(array, "Infinity")) {
        f64 = f32 = INFINITY;
    } else if (read_word(array, "-Infinity")) {
        f64 = f32 = -INFINITY;
    } else {
        return refuse(array, allowed);
    }
    if (array->dtype == BAG_F32)
        memcpy(out, &f32, sizeof f32);
    else
        memcpy(out, &f64, sizeof f64);
    return true;
}

static bool read_element(struct array *array)
{
    size_t bytes = bag_dtypes[array->dtype].bytes;
    char *out = array->out + array->found * bytes;
    uint64_t integer;
    if (array->dtype == BAG_BOOL) {
        bool yes = read_word(array, "true");
        if (!yes && !read_word(array, "false"))
            return refuse(array, "true and false");
        *out = yes;
    } else if (bag_dtypes[array->dtype].kind == BAG_KIND_FLOAT) {
        if (!read_float(array, out))
            return false;
    } else {
        if (!read_integer(array, &integer))
            return false;
        memcpy(out, &integer, bytes); /* the low bytes: little-endian */
    }
    array->found++;
    return true;
}

/* ---- the array ------------------------------------------------------------------------------- */

static void skip_space(struct array *array)
{
    while (array->at < array->end && strchr(" \t\r\n", *array->at) && *array->at)
        array->at++;
}

static bool refuse_count(struct array *array)
{
    return bag_problem_set(array->problem, 400,
                           "\"data\" has %s than the %zu elements of the shape",
                           array->found < array->count ? "fewer" : "more", array->count);
}

static bool refuse_syntax(struct array *array)
{
    return bag_problem_set(array->problem, 400, "malformed JSON array after element %zu",
                           array->found);
}

/* After a value: ',' and on, or as many ']' as there are. False where the array goes wrong; *depth
 * is 0 where it ends. */
static bool after_value(struct array *array, unsigned *depth)
{
    skip_space(array);
    while (*depth && array->at < array->end && *array->at == ']') {
        array->at++;
        --*depth;
        if (*depth)
            skip_space(array);
    }
    if (*depth == 0)
        return true;
    if (array->at == array->end || *array->at != ',')
        return refuse_syntax(array);
    array->at++;
    skip_space(array);
    return true;
}

static bool read_array(struct array *array)
{
    unsigned depth = 0;
    do {
        if (array->at < array->end && *array->at == '[') {
            if (++depth > BAG_MAX_RANK)
                return bag_problem_set(array->problem, 400, "nested more than %d deep",
                                       BAG_MAX_RANK);
            array->at++;
            skip_space(array);
            bool empty = array->at < array->end && *array->at == ']';
            if (empty && !after_value(array, &depth))
                return false;
            continue;
        }
        if (array->found == array->count)
            return refuse_count(array);
        if (!read_element(array) || !after_value(array, &depth))
            return false;
    } while (depth);
    return array->found == array->count || refuse_count(array);
}

bool bag_numbers_parse(const char *text, size_t text_bytes, enum bag_dtype dtype, size_t count,
                       void *out, const char **end, const char **error_at,
                       struct bag_problem *problem)
{
    struct array array = {.at = text,
                          .end = text + text_bytes,
                          .dtype = dtype,
                          .count = count,
                          .out = out,
                          .problem = problem};
    bool sound = read_array(&array);
    *(sound ? end : error_at) = array.at;
    return sound;
}

/* ---- printing -------------------------------------------------------------------------------- */

size_t bag_numbers_max_text(enum bag_dtype dtype)
{
    static const size_t bytes[BAG_DTYPE_COUNT] = {
        [BAG_BOOL] = 6, [BAG_U8] = 4,   [BAG_U16] = 6,  [BAG_U32] = 11,
        [BAG_U64] = 21, [BAG_I8] = 5,   [BAG_I16] = 7,  [BAG_I32] = 12,
        [BAG_I64] = 21, [BAG_F32] = 18, [BAG_F64] = 27,
    };
    return bytes[dtype];
}

/* The fewest digits that read back to the same value. */
static char *print_float(char *out, double value, int most_digits, bool narrow)
{
    if (isnan(value))
        return out + sprintf(out, "NaN");
    if (isinf(value))
        return out + sprintf(out, value < 0 ? "-Infinity" : "Infinity");
    for (int digits = 1; digits <= most_digits; digits++) {
        sprintf(out, "%.*g", digits, value);
        if (narrow ? strtof(out, NULL) == (float)value : strtod(out, NULL) == value)
            break;
    }
    if (!strpbrk(out, ".e"))
        strcat(out, ".0");
    return out + strlen(out);
}

static char *print_element(char *out, const char *data, enum bag_dtype dtype)
{
    size_t bytes = bag_dtypes[dtype].bytes;
    uint64_t bits = 0;
    float f32;
    double f64;
    memcpy(&bits, data, bytes);
    switch (bag_dtypes[dtype].kind) {
    case BAG_KIND_SIGNED:
        return out + sprintf(out, "%lld",
                             (long long)((int64_t)(bits << (64 - 8 * bytes)) >> (64 - 8 * bytes)));
    case BAG_KIND_UNSIGNED:
        return out + sprintf(out, "%llu", (unsigned long long)bits);
    case BAG_KIND_FLOAT:
        memcpy(&f32, data, sizeof f32);
        if (dtype == BAG_F32)
            return print_float(out, (double)f32, 9, true);
        memcpy(&f64, data, sizeof f64);
        return print_float(out, f64, 17, false);
    default:
        return out + sprintf(out, bits ? "true" : "false");
    }
}

char *bag_numbers_print(const void *data, size_t count, enum bag_dtype dtype, char *out)
{
    const char *element = data;
    *out++ = '[';
    for (size_t i = 0; i < count; i++, element += bag_dtypes[dtype].bytes) {
        out = print_element(out, element, dtype);
        *out++ = ',';
    }
    out -= count > 0;
    *out++ = ']';
    return out;
}
