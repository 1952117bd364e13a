/* Half-precision numbers: every f16 and bf16 pattern, and rounding at every border. */
#include "kernels/rowformat.h"
#include "pool_fixture.h"

#include <math.h>

/* What a pattern means, by the definition of the format. */
static double meaning(uint16_t half, int fraction_bits, int bias)
{
    int exponent_bits = 15 - fraction_bits;
    int exponent = (half >> fraction_bits) & ((1 << exponent_bits) - 1);
    int fraction = half & ((1 << fraction_bits) - 1);
    double sign = half & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static void assert_same_number(float got, double want)
{
    assert_int_equal(isnan(got) != 0, isnan(want) != 0);
    if (!isnan(want)) {
        assert_true(got == want);
        assert_int_equal(signbit(got) != 0, signbit(want) != 0);
    }
}

static void widens_every_pattern(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= UINT16_MAX; half++) {
        assert_same_number(bag_f32_from_f16((uint16_t)half), meaning((uint16_t)half, 10, 15));
        assert_same_number(bag_f32_from_bf16((uint16_t)half), meaning((uint16_t)half, 7, 127));
    }
}

static void narrowing_undoes_widening(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= UINT16_MAX; half++) {
        float wide = bag_f32_from_f16((uint16_t)half);
        if (!isnan(wide))
            assert_int_equal(bag_f16_from_f32(wide), half);
        wide = bag_f32_from_bf16((uint16_t)half);
        if (!isnan(wide))
            assert_int_equal(bag_bf16_from_f32(wide), half);
    }
}

/* Between two neighbours: the middle goes to the even one, a hair beside it to the nearer one. */
static void rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7bff; half++) {
        float low = bag_f32_from_f16((uint16_t)half);
        float high = bag_f32_from_f16((uint16_t)(half + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(bag_f16_from_f32(middle), half + (half & 1));
        assert_int_equal(bag_f16_from_f32(nextafterf(middle, 0)), half);
        assert_int_equal(bag_f16_from_f32(nextafterf(middle, INFINITY)), half + 1);
        assert_int_equal(bag_f16_from_f32(-middle), 0x8000 | (half + (half & 1)));
    }
    for (uint32_t half = 0; half < 0x7f7f; half++) {
        uint32_t middle = half << 16 | 0x8000;
        assert_int_equal(bag_bf16_from_f32(bag_f32_from_bits(middle)), half + (half & 1));
        assert_int_equal(bag_bf16_from_f32(bag_f32_from_bits(middle - 1)), half);
        assert_int_equal(bag_bf16_from_f32(bag_f32_from_bits(middle + 1)), half + 1);
    }
}

static void overflows_to_infinity_and_keeps_nan(void **state)
{
    (void)state;
    assert_int_equal(bag_f16_from_f32(65504.0f), 0x7bff);
    assert_int_equal(bag_f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(bag_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(bag_f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(bag_f16_from_f32(INFINITY), 0x7c00);
    assert_true(isnan(bag_f32_from_f16(bag_f16_from_f32(NAN))));
    assert_int_equal(bag_bf16_from_f32(bag_f32_from_bits(0x7f7fffff)), 0x7f80);
    for (uint32_t payload = 1; payload <= 0x7fffff; payload = payload * 2 + 1) {
        float nan = bag_f32_from_bits(0xff800000 | payload);
        assert_true(isnan(bag_f32_from_f16(bag_f16_from_f32(nan))));
        assert_true(isnan(bag_f32_from_bf16(bag_bf16_from_f32(nan))));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widens_every_pattern),
        cmocka_unit_test(narrowing_undoes_widening),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(overflows_to_infinity_and_keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
