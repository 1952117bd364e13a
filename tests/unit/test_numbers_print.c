/* Printing numbers: known texts, the shortest digits, the nearest of these, the room it takes. */
#include "numbers_fixture.h"

/* Nothing may be written after the room that is asked for, not even for a moment's use. */
static void check_room(const void *data, size_t count, enum bag_dtype dtype, size_t room)
{
    static const char guard[64] = {0};
    char *out = calloc(1, room + sizeof guard);
    assert_non_null(out);
    bag_numbers_print(data, count, dtype, out);
    assert_memory_equal(out + room, guard, sizeof guard);
    free(out);
}

/* Prints into a heap block of the room that is asked for, so that a sanitizer watches its end. */
static size_t print(const void *data, size_t count, enum bag_dtype dtype, char *text)
{
    size_t room = count * bag_numbers_max_text(dtype) + 2, bytes = count * bag_dtypes[dtype].bytes;
    char *out = malloc(room), *unaligned = malloc(bytes + 1);
    assert_non_null(out);
    assert_non_null(unaligned);
    if (bytes)
        memcpy(unaligned + 1, data, bytes);
    size_t used = (size_t)(bag_numbers_print(unaligned + 1, count, dtype, out) - out);
    assert_in_range(used, 2, room);
    check_room(unaligned + 1, count, dtype, room);
    memcpy(text, out, used);
    text[used] = 0;
    free(unaligned);
    free(out);
    return used;
}

static const float known_f32[] = {0,
                                  -0.0f,
                                  1.5f,
                                  2,
                                  -2.25f,
                                  0.1f,
                                  1e-7f,
                                  1e-5f,
                                  9.9999e-6f,
                                  1.2345e-5f,
                                  0.001234f,
                                  123456.79f,
                                  16777216,
                                  1e9f,
                                  1e15f,
                                  1e16f,
                                  1.25e16f,
                                  3.4028235e38f,
                                  1e-45f,
                                  1.1754944e-38f,
                                  1e23f,
                                  0.3f,
                                  1234567.9f,
                                  -1.2345679e-5f,
                                  8589973504.f,
                                  7.0064923e-45f,
                                  33554432};
static const double known_f64[] = {0.1,
                                   1.0 / 3,
                                   5e-324,
                                   2.2250738585072014e-308,
                                   1.7976931348623157e308,
                                   9007199254740993.0,
                                   1e22,
                                   1e23,
                                   123456789012345680.0,
                                   1234567890123456.0,
                                   9.5e-6,
                                   1e-5,
                                   0.30000000000000004,
                                   2e-323,
                                   -1.2345678901234567e-5,
                                   -1.2345678901234567e-300,
                                   9007199254740991,
                                   4.35,
                                   1e21};

TEST(test_prints_known_floats)
{
    char text[1024];
    print(known_f32, COUNT_OF(known_f32), BAG_F32, text);
    assert_string_equal(
        text, "[0.0,-0.0,1.5,2.0,-2.25,0.1,1e-7,0.00001,9.9999e-6,0.000012345,0.001234,123456.79,"
              "16777216.0,1000000000.0,1000000000000000.0,1e16,1.25e16,3.4028235e38,1e-45,"
              "1.1754944e-38,1e23,0.3,1234567.9,-0.000012345679,8589974000.0,7e-45,33554432.0]");
    print(known_f64, COUNT_OF(known_f64), BAG_F64, text);
    assert_string_equal(
        text, "[0.1,0.3333333333333333,5e-324,2.2250738585072014e-308,1.7976931348623157e308,"
              "9007199254740992.0,1e22,1e23,1.2345678901234568e17,1234567890123456.0,9.5e-6,"
              "0.00001,0.30000000000000004,2e-323,-0.000012345678901234568,"
              "-1.2345678901234568e-300,9007199254740991.0,4.35,1e21]");
}

TEST(test_prints_words)
{
    static const float f32[] = {NAN, INFINITY, -INFINITY};
    static const double f64[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    static const uint32_t negative_nan = UINT32_C(0xFFC00001);
    static const uint8_t bools[] = {1, 0, 1};
    char text[64];
    print(f32, 3, BAG_F32, text);
    assert_string_equal(text, "[NaN,Infinity,-Infinity]");
    print(f64, 3, BAG_F64, text);
    assert_string_equal(text, "[NaN,Infinity,-Infinity]");
    print(&negative_nan, 1, BAG_F32, text);
    assert_string_equal(text, "[NaN]");
    print(bools, 3, BAG_BOOL, text);
    assert_string_equal(text, "[true,false,true]");
    print(NULL, 0, BAG_F32, text);
    assert_string_equal(text, "[]");
}

/* ---- integers -------------------------------------------------------------------------------- */

static void check_integers(enum bag_dtype dtype, uint64_t bits)
{
    size_t bytes = bag_dtypes[dtype].bytes;
    unsigned unused = 64 - 8 * (unsigned)bytes;
    uint64_t values[2] = {0, 0};
    char text[64], want[64];
    memcpy(values, &bits, bytes);
    memcpy((char *)values + bytes, &bits, bytes);
    if (bag_dtypes[dtype].kind == BAG_KIND_SIGNED)
        sprintf(want, "[%1$lld,%1$lld]", (long long)((int64_t)(bits << unused) >> unused));
    else
        sprintf(want, "[%1$llu,%1$llu]", (unsigned long long)(bits << unused >> unused));
    print(values, 2, dtype, text);
    assert_string_equal(text, want);
}

TEST(test_prints_integers)
{
    uint64_t random = SEED, power = 1;
    for (int dtype = BAG_U8; dtype <= BAG_I64; dtype++) {
        for (int bit = 0; bit < 64; bit++) {
            for (int step = -1; step <= 1; step++)
                check_integers((enum bag_dtype)dtype, (UINT64_C(1) << bit) + (uint64_t)step);
        }
        power = 1;
        for (int digits = 1; digits <= 20; digits++, power *= 10) {
            check_integers((enum bag_dtype)dtype, power);
            check_integers((enum bag_dtype)dtype, power - 1);
            check_integers((enum bag_dtype)dtype, 0 - power);
        }
        for (int i = 0; i < 5000; i++)
            check_integers((enum bag_dtype)dtype,
                           bag_random(&random) >> (bag_random(&random) % 64));
    }
}

/* ---- the shortest, and the nearest of the shortest ------------------------------------------- */

/* Digits without zeros at either end, and their exponent. */
struct digits {
    unsigned long long digits;
    int exponent, count;
};

static struct digits digits_of(const char *text)
{
    struct digits d = {0, 0, 0};
    bool fraction = false;
    for (; *text && *text != 'e' && *text != ']'; text++) {
        if (*text == '.') {
            fraction = true;
        } else if (*text >= '0' && *text <= '9') {
            d.digits = 10 * d.digits + (unsigned)(*text - '0');
            d.exponent -= fraction;
        }
    }
    if (*text == 'e')
        d.exponent += atoi(text + 1);
    while (d.digits && d.digits % 10 == 0) {
        d.digits /= 10;
        d.exponent++;
    }
    for (unsigned long long rest = d.digits; rest; rest /= 10)
        d.count++;
    return d;
}

static bool reads_back(unsigned long long digits, int exponent, double value, bool narrow)
{
    char text[64];
    snprintf(text, sizeof text, "%llue%d", digits, exponent);
    return narrow ? (double)strtof(text, NULL) == value : strtod(text, NULL) == value;
}

static void check_shortest(const char *text, double value, bool narrow)
{
    char reference[64];
    struct digits ours = digits_of(text);
    value = fabs(value);
    assert_true(strpbrk(text, ".e") != NULL);
    if (!reads_back(ours.digits, ours.exponent, value, narrow))
        fail_msg("%a became %s", value, text);
    /* With one digit less, neither decimal around the value reads back. */
    if (ours.count > 1) {
        unsigned long long below = ours.digits / 10;
        if (reads_back(below, ours.exponent + 1, value, narrow) ||
            reads_back(below + 1, ours.exponent + 1, value, narrow))
            fail_msg("%a became %s, which could be shorter", value, text);
    }
    snprintf(reference, sizeof reference, "%.*e", ours.count - 1, value);
    struct digits nearest = digits_of(reference);
    if (reads_back(nearest.digits, nearest.exponent, value, narrow) &&
        (nearest.digits != ours.digits || nearest.exponent != ours.exponent))
        fail_msg("%a became %s; %s is nearer", value, text, reference);
}

/* Prints, and reads back with our own reader, too. */
static void check_f32(uint32_t bits)
{
    char text[64];
    float value = f32_from(bits), back;
    if (value == 0 || !isfinite(value))
        return;
    print(&value, 1, BAG_F32, text);
    check_shortest(text + 1, (double)value, true);
    assert_true(read_text(text, BAG_F32, 1, &back).ok);
    assert_int_equal(f32_bits(back), bits);
}

static void check_f64(uint64_t bits)
{
    char text[64];
    double value = f64_from(bits), back;
    if (value == 0 || !isfinite(value))
        return;
    print(&value, 1, BAG_F64, text);
    check_shortest(text + 1, value, false);
    assert_true(read_text(text, BAG_F64, 1, &back).ok);
    assert_int_equal(f64_bits(back), bits);
}

TEST(test_shortest_around_every_power_of_two)
{
    for_bounds_f32(check_f32);
    for_bounds_f64(check_f64);
}

TEST(test_shortest_around_every_power_of_ten)
{
    char text[16];
    for (int exponent = -323; exponent <= 308; exponent++) {
        snprintf(text, sizeof text, "1e%d", exponent);
        for (uint64_t step = 0; step < 5; step++) {
            check_f64(f64_bits(strtod(text, NULL)) + step - 2);
            if (exponent >= -45 && exponent <= 38)
                check_f32(f32_bits(strtof(text, NULL)) + (uint32_t)step - 2);
        }
    }
}

TEST(test_shortest_of_random_bits)
{
    uint64_t random = SEED;
    print_message("seed %llu\n", (unsigned long long)SEED);
    for (int i = 0; i < 50000; i++) {
        uint64_t bits = bag_random(&random);
        check_f32((uint32_t)bits);
        check_f64(bits);
        check_f32((uint32_t)bits >> (9 + bits % 20));    /* subnormal */
        check_f64(bits >> (12 + bits % 50));             /* subnormal too */
        check_f32(f32_bits((float)(bits >> 40) / 1e6f)); /* as people's data are */
        check_f64(f64_bits((double)(int64_t)(bits >> 20) / 1e9));
        check_f64(f64_bits((double)(bits >> bits % 12))); /* halfway points are whole numbers */
    }
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Every count up to some, so that the last elements' way is met with each; the longest texts. */
TEST(test_stays_in_its_room)
{
    static const uint64_t longest[BAG_DTYPE_COUNT] = {[BAG_U8] = UINT8_MAX,
                                                      [BAG_U16] = UINT16_MAX,
                                                      [BAG_U32] = UINT32_MAX,
                                                      [BAG_U64] = UINT64_MAX,
                                                      [BAG_I8] = (uint64_t)INT8_MIN,
                                                      [BAG_I16] = (uint64_t)INT16_MIN,
                                                      [BAG_I32] = (uint64_t)INT32_MIN,
                                                      [BAG_I64] = (uint64_t)INT64_MIN};
    char data[100 * 8], text[100 * 32];
    for (int dtype = 0; dtype < BAG_DTYPE_COUNT; dtype++) {
        uint64_t bits = longest[dtype], f32 = f32_bits(-1.2345678e15f);
        uint64_t f64 = f64_bits(-1.2345678901234567e-300);
        size_t bytes = bag_dtypes[dtype].bytes, most = bag_numbers_max_text((enum bag_dtype)dtype);
        if (most == 0)
            continue;
        for (size_t i = 0; i < 100; i++)
            memcpy(data + i * bytes,
                   dtype == BAG_F32   ? &f32
                   : dtype == BAG_F64 ? &f64
                                      : &bits,
                   bytes);
        for (size_t count = 0; count <= 100; count++) {
            size_t used = print(data, count, (enum bag_dtype)dtype, text);
            assert_int_equal(used, count ? count * most + 1 : 2);
        }
    }
}

TEST(test_some_have_no_json_form)
{
    assert_int_equal(bag_numbers_max_text(BAG_F16), 0);
    assert_int_equal(bag_numbers_max_text(BAG_BF16), 0);
    assert_int_equal(bag_numbers_max_text(BAG_BYTES), 0);
}
