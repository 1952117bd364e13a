/* SplitMix64: a counter whose values are mixed. It makes numbers that a seed repeats, and the row
 * that replaces a missing key. */
#pragma once

#include <stdint.h>

#define BAG_RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)

/* Mixes a number. It is a bijection. */
static inline uint64_t bag_mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Returns a number from 0 to 2^64 - 1. `state` may start with any value. */
static inline uint64_t bag_random(uint64_t *state)
{
    return bag_mix(*state += BAG_RANDOM_STEP);
}

/* Maps a number to [0, 1). */
static inline double bag_unit(uint64_t number)
{
    return (double)(number >> 11) * 0x1p-53;
}

static inline double bag_random_unit(uint64_t *state)
{
    return bag_unit(bag_random(state));
}
