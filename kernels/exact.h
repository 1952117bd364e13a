/* Exact sums of integers. A mean of integers is an exact sum that is divided once. */
#pragma once

#include "pool.h"

#include <string.h>

typedef unsigned __int128 bag_u128;

/* A sum in two's complement with 192 bits. It cannot overflow in 2^63 products of 64-bit
 * factors. */
struct bag_wide {
    bag_u128 low;
    int64_t high;
};

/* A 65-bit integer, which represents both signed and unsigned elements. */
struct bag_number {
    uint64_t magnitude;
    bool negative;
};

/* Returns an element, which is sign-extended to 64 bits if it is signed. */
static inline struct bag_number bag_number_of(uint64_t value, bool is_signed)
{
    bool negative = is_signed && value >> 63;
    return (struct bag_number){negative ? -value : value, negative};
}

/* Returns the weight of an entry of a table of integers. */
static inline struct bag_number bag_weight_number(const struct bag_pool_args *args, size_t entry)
{
    size_t bytes = bag_dtypes[args->weights_dtype].bytes;
    bool is_signed = bag_dtypes[args->weights_dtype].kind == BAG_KIND_SIGNED;
    uint64_t bits = 0, sign = UINT64_C(1) << (8 * bytes - 1);
    memcpy(&bits, (const char *)args->weights + entry * bytes, bytes);
    return bag_number_of(is_signed ? (bits ^ sign) - sign : bits, is_signed);
}

static inline void bag_wide_add_product(struct bag_wide *sum, struct bag_number a,
                                        struct bag_number b)
{
    bag_u128 product = (bag_u128)a.magnitude * b.magnitude;
    if (a.negative != b.negative) {
        sum->high -= sum->low < product;
        sum->low -= product;
    } else {
        sum->low += product;
        sum->high += sum->low < product;
    }
}

static inline struct bag_wide bag_wide_magnitude(struct bag_wide sum)
{
    if (sum.high < 0) {
        sum.low = -sum.low;
        sum.high = (int64_t)(~(uint64_t)sum.high + (sum.low == 0));
    }
    return sum;
}

/* Returns the low 64 bits of sum / divisor, rounded toward zero, or 0 if the divisor is 0. It
 * divides bit by bit. A divisor is below 2^127, so the remainder never loses a bit. */
static inline uint64_t bag_wide_quotient(struct bag_wide sum, struct bag_wide divisor)
{
    bool negative = (sum.high < 0) != (divisor.high < 0);
    struct bag_wide left = bag_wide_magnitude(sum);
    bag_u128 by = bag_wide_magnitude(divisor).low;
    bag_u128 remainder = 0;
    uint64_t quotient = 0;
    if (by == 0)
        return 0;
    for (int bit = 191; bit >= 0; bit--) {
        bag_u128 digit = bit >= 128 ? (uint64_t)left.high >> (bit - 128) : left.low >> bit;
        remainder = remainder << 1 | (digit & 1);
        quotient = quotient << 1 | (remainder >= by);
        remainder -= remainder >= by ? by : 0;
    }
    return negative ? -quotient : quotient;
}

/* ---- as numbers that are sent: three words of 64 bits, the lowest first ---------------------- */

#define BAG_WIDE_WORDS 3
#define BAG_WIDE_BYTES (BAG_WIDE_WORDS * sizeof(uint64_t))

static inline void bag_wide_store(struct bag_wide sum, void *out)
{
    const uint64_t words[BAG_WIDE_WORDS] = {(uint64_t)sum.low, (uint64_t)(sum.low >> 64),
                                            (uint64_t)sum.high};
    memcpy(out, words, sizeof words);
}

static inline struct bag_wide bag_wide_load(const void *from)
{
    uint64_t words[BAG_WIDE_WORDS];
    memcpy(words, from, sizeof words);
    return (struct bag_wide){(bag_u128)words[1] << 64 | words[0], (int64_t)words[2]};
}

/* Adds modulo 2^192. */
static inline struct bag_wide bag_wide_add(struct bag_wide a, struct bag_wide b)
{
    bag_u128 low = a.low + b.low;
    uint64_t high = (uint64_t)a.high + (uint64_t)b.high + (low < a.low);
    return (struct bag_wide){low, (int64_t)high};
}
