/* The tables of powers of ten, made by exact integer arithmetic; see decimal.h. */
#include "decimal.h"

struct bag_power bag_powers[BAG_POWER_MOST - BAG_POWER_LEAST + 1];

uint64_t bag_tens[20] = {1};

/* 1,024 bits, the lowest first: 5^324 takes 753 of them, and 2^1023 / 5^342 leaves 229. */
#define WORDS 32

static uint64_t pair(const uint32_t *words, int index)
{
    uint64_t high = index >= 0 ? words[index] : 0, low = index >= 1 ? words[index - 1] : 0;
    return high << 32 | low;
}

/* The 128 bits from the first that is set. Powers of two that a number is multiplied with do not
 * change them, so that 10^q and 5^q have the same. */
static struct bag_power first_bits(const uint32_t *words)
{
    int top = WORDS - 1;
    while (words[top] == 0)
        top--;
    int zeros = __builtin_clz(words[top]);
    uint64_t high = pair(words, top), low = pair(words, top - 2), rest = pair(words, top - 4);
    if (zeros == 0)
        return (struct bag_power){high, low};
    return (struct bag_power){high << zeros | low >> (64 - zeros),
                              low << zeros | rest >> (64 - zeros)};
}

static void multiply_by_5(uint32_t *words)
{
    uint64_t carry = 0;
    for (int i = 0; i < WORDS; i++) {
        carry += (uint64_t)words[i] * 5;
        words[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* Rounds down, and so does a chain of these: the whole part of x / 5 / 5 is that of x / 25. */
static void divide_by_5(uint32_t *words)
{
    uint64_t rest = 0;
    for (int i = WORDS - 1; i >= 0; i--) {
        rest = rest << 32 | words[i];
        words[i] = (uint32_t)(rest / 5);
        rest %= 5;
    }
}

/* Before main, so that no reader needs a lock or a check; it takes some 50 us. */
__attribute__((constructor)) static void fill_powers(void)
{
    uint32_t up[WORDS] = {1}, down[WORDS] = {[WORDS - 1] = UINT32_C(1) << 31};
    for (int n = 1; n < 20; n++)
        bag_tens[n] = 10 * bag_tens[n - 1];
    for (int q = 0; q <= BAG_POWER_MOST; q++, multiply_by_5(up))
        bag_powers[q - BAG_POWER_LEAST] = first_bits(up);
    for (int q = -1; q >= BAG_POWER_LEAST; q--) {
        divide_by_5(down);
        bag_powers[q - BAG_POWER_LEAST] = first_bits(down);
    }
}
