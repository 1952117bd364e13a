/* Reading floats: each text must give the very bits that the C library's exact conversion gives. */
#include "numbers_fixture.h"

/* Reads `number` alone, and between others, as both types. */
static void check_text(const char *number)
{
    static char text[6000];
    float f32, f32s[3];
    double f64, f64s[3];
    float want_f32 = strtof(number, NULL);
    double want_f64 = strtod(number, NULL);
    sprintf(text, "[%s]", number);
    if (read_text(text, BAG_F32, 1, &f32).ok != !isinf(want_f32))
        fail_msg("%s as FP32, which is %a", number, (double)want_f32);
    if (read_text(text, BAG_F64, 1, &f64).ok != !isinf(want_f64))
        fail_msg("%s as FP64, which is %a", number, want_f64);
    if (!isinf(want_f32) && f32_bits(f32) != f32_bits(want_f32))
        fail_msg("%s is %a, read as %a (seed %llu)", number, (double)want_f32, (double)f32,
                 (unsigned long long)SEED);
    if (!isinf(want_f64) && f64_bits(f64) != f64_bits(want_f64))
        fail_msg("%s is %a, read as %a (seed %llu)", number, want_f64, f64,
                 (unsigned long long)SEED);
    sprintf(text, "[0.5,%s,2]", number);
    if (!isinf(want_f32)) {
        assert_true(read_text(text, BAG_F32, 3, f32s).ok);
        assert_true(f32s[0] == 0.5f && f32_bits(f32s[1]) == f32_bits(f32) && f32s[2] == 2);
    }
    if (!isinf(want_f64)) {
        assert_true(read_text(text, BAG_F64, 3, f64s).ok);
        assert_true(f64s[0] == 0.5 && f64_bits(f64s[1]) == f64_bits(f64) && f64s[2] == 2);
    }
}

/* Numbers as people write them, the bounds of both types, and the bounds of each method of reading,
 * each followed by a space. */
static const char numbers[] =
    "0 -0 0.0 -0.0 0e5 0.000e-400 -0E+99999999999999999999 1 -1 1.5 0.1 0.2 0.3 "
    "123456.789 3.141592653589793238462643383279502884 1e0 1E+0 1e-0 100000000 16777217 "
    "16777219 16777217.0 33554433e0 9007199254740993 9007199254740993.0 "
    "9007199254740995e0 9223372036854775807 18446744073709551615 18446744073709551616 "
    "99999999999999999999 1e22 1e23 8.5e22 9e22 1e-22 1e55 1e56 1e-27 1e-28 1e10 1e11 "
    "1e38 3.4028234e38 3.4028235e38 3.40282356e38 3.4028235677973366e38 "
    "3.4028235677973365e38 3.4028236e38 1e39 1e308 1.7976931348623157e308 "
    "1.7976931348623158e308 1.7976931348623159e308 1.797693134862315807e308 1e309 1e400 "
    "1e99999999999999999999999999 1e-37 1e-38 1.17549435e-38 1.1754943e-38 1e-44 1e-45 "
    "7e-46 7.006492e-46 7.0064923216240853546e-46 7.0064923216240853547e-46 7.1e-46 "
    "1e-46 1e-50 2.2250738585072014e-308 2.2250738585072011e-308 2.2250738585072012e-308 "
    "2.225073858507201e-308 5e-324 4.9e-324 2.5e-324 2.4703282292062327e-324 "
    "2.4703282292062328e-324 2.47e-324 1e-324 1e-342 1e-343 1e-344 1e-400 "
    "9999999999999999999e-342 9999999999999999999e-343 1e-99999999999999999999999999 "
    "0.00000000000000000000000000000000000000000000000000000000000000000012345678901234567 "
    "123456789012345678901234567890123456789e-39 1234567890123456789 "
    "12345678901234567890 1234567890123456789.0 1234567890123456789.00000000000000000000 "
    "0.5e1 5e-1 0.12345678 0.123456789 12345678.12345678 123456789.123456789 1234567.5 "
    "4.35 0.000001 1.1e-5 6.02214076e23 -2.718281828459045 "
    "1000000000000000000000000000000000000000000000000000000000000000000000000000000000000e-84 "
    "0.000000000000000000000000000000000000000000000000000000000000000000000000000000000001e84 ";

TEST(test_reads_what_people_write)
{
    char number[128];
    for (const char *at = numbers; *at; at += strlen(number) + 1) {
        snprintf(number, sizeof number, "%.*s", (int)strcspn(at, " "), at);
        check_text(number);
    }
}

TEST(test_reads_words)
{
    float f32[5];
    double f64[5];
    assert_true(read_text("[NaN,Infinity,-Infinity, NaN ,-0.0]", BAG_F32, 5, f32).ok);
    assert_true(isnan(f32[0]) && f32[1] == INFINITY && f32[2] == -INFINITY && isnan(f32[3]));
    assert_int_equal(f32_bits(f32[4]), UINT32_C(1) << 31);
    assert_true(read_text("[NaN,[Infinity],-Infinity,[[NaN]],-0]", BAG_F64, 5, f64).ok);
    assert_true(isnan(f64[0]) && f64[1] == (double)INFINITY && f64[2] == -(double)INFINITY);
    assert_true(isnan(f64[3]) && f64_bits(f64[4]) == UINT64_C(1) << 63);
}

/* ---- around every bound --------------------------------------------------------------------- */

/* The point halfway to the next float away from zero, exactly; then just below and just above. */
static void check_halfway(long double half)
{
    static char exact[1200], near[2400];
    snprintf(exact, sizeof exact, "%.*Le", 800, half);
    check_text(exact);
    char *e = strchr(exact, 'e'), *last = e - 1;
    while (*last == '0')
        last--;
    /* More digits than the exact way keeps, and one that counts at their end. */
    snprintf(near, sizeof near, "%.*s%0*d%s", (int)(e - exact), exact, 300, 1, e);
    check_text(near);
    snprintf(near, sizeof near, "%.*s%0*d%s", (int)(last + 1 - exact), exact, 3, 1, e);
    check_text(near);
    --*last;
    snprintf(near, sizeof near, "%.*s9%s", (int)(last + 1 - exact), exact, e);
    check_text(near);
    snprintf(near, sizeof near, "%.*Lf", 20, half); /* and without an exponent */
    check_text(near);
}

static void check_f32(uint32_t bits)
{
    char text[64];
    float value = f32_from(bits);
    for (int digits = 1; digits <= 12; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, (double)value);
        check_text(text);
    }
    uint32_t away = bits + 1;
    if ((away & UINT32_C(0x7F800000)) != UINT32_C(0x7F800000))
        check_halfway(((long double)value + (long double)f32_from(away)) / 2);
}

static void check_f64(uint64_t bits)
{
    char text[64];
    double value = f64_from(bits);
    for (int digits = 15; digits <= 21; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, value);
        check_text(text);
    }
    uint64_t away = bits + 1;
    if ((away & UINT64_C(0x7FF0000000000000)) != UINT64_C(0x7FF0000000000000))
        check_halfway(((long double)value + (long double)f64_from(away)) / 2);
}

TEST(test_f32_around_every_power_of_two)
{
    for_bounds_f32(check_f32);
}

TEST(test_f64_around_every_power_of_two)
{
    for_bounds_f64(check_f64);
}

TEST(test_overflow_starts_halfway)
{
    check_halfway(0x1.FFFFFFp127L);
    check_halfway(0x1.FFFFFFFFFFFFF8p1023L);
}

TEST(test_every_power_of_ten)
{
    static const char *const digits[] = {"1",
                                         "9",
                                         "5",
                                         "9007199254740991",
                                         "9007199254740993",
                                         "1844674407370955161",
                                         "9999999999999999999",
                                         "18446744073709551615",
                                         "99999999999999999999",
                                         "123456789012345678901"};
    char text[64];
    for (int exponent = -370; exponent <= 330; exponent++) {
        for (size_t i = 0; i < COUNT_OF(digits); i++) {
            snprintf(text, sizeof text, "%se%d", digits[i], exponent);
            check_text(text);
        }
    }
}

/* ---- at random ------------------------------------------------------------------------------- */

TEST(test_random_bits)
{
    uint64_t random = SEED;
    char text[64];
    for (int i = 0; i < 30000; i++) {
        uint64_t bits = bag_random(&random);
        float f32 = f32_from((uint32_t)bits);
        double f64 = f64_from(bits);
        if (isfinite(f32)) {
            snprintf(text, sizeof text, "%.9g", (double)f32);
            check_text(text);
        }
        if (isfinite(f64)) {
            snprintf(text, sizeof text, "%.17g", f64);
            check_text(text);
        }
    }
}

/* Digits with the point and the exponent anywhere. */
TEST(test_random_digits)
{
    uint64_t random = SEED;
    char text[128];
    for (int i = 0; i < 60000; i++) {
        size_t whole = 1 + bag_random(&random) % 24, fraction = bag_random(&random) % 24;
        size_t used = 0;
        text[used++] = (char)('1' + bag_random(&random) % 9);
        while (used < whole)
            text[used++] = (char)('0' + bag_random(&random) % 10);
        if (bag_random(&random) % 3 == 0) {
            text[0] = '0';
            used = 1;
        }
        if (fraction)
            text[used++] = '.';
        for (size_t j = 0; j < fraction; j++)
            text[used++] = (char)('0' + bag_random(&random) % 10);
        text[used] = 0;
        if (bag_random(&random) % 2)
            sprintf(text + used, "e%d", (int)(bag_random(&random) % 700) - 350);
        check_text(text);
    }
}

/* Thousands of digits: in front of the point, behind it, as zeros, with what counts at the end. */
TEST(test_huge_texts)
{
    static const struct {
        const char *start;
        char fill;
        const char *end;
    } cases[] = {{"1", '0', "e-2500"},
                 {"0.", '0', "1e2501"},
                 {"0.", '0', "123456789e2500"},
                 {"1.", '0', "1"},
                 {"16777217.", '0', "1"},
                 {"16777217.", '0', "0"},
                 {"16777217", '0', "e-2500"},
                 {"9007199254740993.", '0', "1"},
                 {"9007199254740993.", '0', ""},
                 {"9007199254740992.", '9', ""},
                 {"", '9', "e-2500"},
                 {"", '3', "e-2510"},
                 {"0.", '9', ""},
                 {"0.", '4', "e-40"},
                 {"1", '0', "1e-2501"},
                 {"16777217", '0', "1e-2501"},
                 {"1e", '0', "5"},
                 {"1e-", '0', "5"}};
    char text[2600];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t length = 2498; length <= 2502; length++) {
            size_t used = strlen(cases[i].start);
            memcpy(text, cases[i].start, used);
            memset(text + used, cases[i].fill, length);
            strcpy(text + used + length, cases[i].end);
            check_text(text);
        }
    }
}
