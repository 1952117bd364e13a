/* Shared by the tests of numbers: reading from memory of the exact size, random bits, floats. */
#pragma once

#include "kernels/random.h"
#include "proto/numbers.h"

#include "testing.h"

#include <math.h>

/* Numbers drawn at random follow from this one; a failure prints it with the value. */
#define SEED UINT64_C(20240917)

struct outcome {
    bool ok;
    size_t end, error_at; /* positions in the text */
    struct bag_problem problem;
};

/* Reads `text` from a heap block of its size into one of exactly `count` elements, which begins one
 * byte off any alignment, and copies that to `out`. */
static inline struct outcome read_bytes(const char *text, size_t bytes, enum bag_dtype dtype,
                                        size_t count, void *out)
{
    struct outcome outcome = {.problem.text = ""};
    size_t out_bytes = count * bag_dtypes[dtype].bytes;
    const char *end = NULL, *error_at = NULL;
    char *copy = exact_copy(text, bytes), *room = malloc(out_bytes + 1);
    assert_non_null(room);
    memset(room, 0xA5, out_bytes + 1);
    outcome.ok =
        bag_numbers_parse(copy, bytes, dtype, count, room + 1, &end, &error_at, &outcome.problem);
    assert_true((outcome.ok ? end : error_at) != NULL);
    if (outcome.ok)
        outcome.end = (size_t)(end - copy);
    else
        outcome.error_at = (size_t)(error_at - copy);
    if (out_bytes)
        memcpy(out, room + 1, out_bytes);
    free(room);
    free(copy);
    return outcome;
}

static inline struct outcome read_text(const char *text, enum bag_dtype dtype, size_t count,
                                       void *out)
{
    return read_bytes(text, strlen(text), dtype, count, out);
}

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint64_t f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double f64_from(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Calls `check` with the bits of every float next to a bound: zero, each power of two with its two
 * neighbours on either side, the least and the largest. Signs alternate. */
static inline void for_bounds_f32(void (*check)(uint32_t bits))
{
    for (uint32_t field = 0; field < 255; field++) {
        for (int step = -2; step <= 2; step++) {
            uint32_t bits = (field << 23) + (uint32_t)step;
            if (bits < UINT32_C(0x7F800000))
                check(bits | field << 31);
        }
    }
    check(UINT32_C(0x7F7FFFFF));
}

static inline void for_bounds_f64(void (*check)(uint64_t bits))
{
    for (uint64_t field = 0; field < 2047; field++) {
        for (int step = -2; step <= 2; step++) {
            uint64_t bits = (field << 52) + (uint64_t)(int64_t)step;
            if (bits < UINT64_C(0x7FF0000000000000))
                check(bits | field << 63);
        }
    }
    check(UINT64_C(0x7FEFFFFFFFFFFFFF));
}
