/* Stored numbers: every f16, bf16 and f8 pattern, rounding at every bound, quantised rows, decoded
 * and encoded. */
#include "kernels/rowformat.h"
#include "pool_fixture.h"

#include <math.h>

/* Returns the value of a pattern by the definition of the format. */
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

TEST(widens_every_pattern)
{
    for (uint32_t half = 0; half <= UINT16_MAX; half++) {
        assert_same_number(bag_f32_from_f16((uint16_t)half), meaning((uint16_t)half, 10, 15));
        assert_same_number(bag_f32_from_bf16((uint16_t)half), meaning((uint16_t)half, 7, 127));
    }
}

TEST(narrowing_undoes_widening)
{
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
TEST(rounds_to_nearest_even)
{
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

TEST(overflows_to_infinity_and_keeps_nan)
{
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

/* ---- eight bits ------------------------------------------------------------------------------ */

TEST(widens_every_byte)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        assert_same_number(bag_f32_from_e5m2((uint8_t)byte),
                           meaning((uint16_t)(byte << 8), 10, 15));
        int exponent = byte >> 3 & 15, fraction = byte & 7;
        double sign = byte & 0x80 ? -1 : 1;
        double want = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
        assert_same_number(bag_f32_from_e4m3((uint8_t)byte, 256),
                           (byte & 0x7f) == 0x7f ? (double)NAN : sign * want);
    }
}

static float from_e4m3(uint8_t byte)
{
    return bag_f32_from_e4m3(byte, 256);
}

/* Each number comes back; the middle of two neighbours goes to the even one, a hair beside it to
 * the nearer one. */
static void check_narrowing(float widen(uint8_t), uint8_t narrow(float), unsigned largest)
{
    for (unsigned byte = 0; byte < largest; byte++) {
        float low = widen((uint8_t)byte), high = widen((uint8_t)(byte + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(narrow(low), byte);
        assert_int_equal(narrow(-low), 0x80 | byte);
        assert_int_equal(narrow(middle), byte + (byte & 1));
        assert_int_equal(narrow(nextafterf(middle, 0)), byte);
        assert_int_equal(narrow(nextafterf(middle, INFINITY)), byte + 1);
        assert_int_equal(narrow(-middle), 0x80 | (byte + (byte & 1)));
    }
    assert_int_equal(narrow(widen((uint8_t)largest)), largest);
}

TEST(narrows_to_bytes)
{
    check_narrowing(from_e4m3, bag_e4m3_from_f32, 0x7e);
    check_narrowing(bag_f32_from_e5m2, bag_e5m2_from_f32, 0x7b);
    assert_int_equal(bag_e4m3_from_f32(464), 0x7e);
    assert_int_equal(bag_e4m3_from_f32(464.0001f), 0x7f);
    assert_int_equal(bag_e4m3_from_f32(-480), 0xff);
    assert_int_equal(bag_e4m3_from_f32(INFINITY), 0x7f);
    assert_int_equal(bag_e4m3_from_f32(NAN) & 0x7f, 0x7f);
    assert_int_equal(bag_e5m2_from_f32(61439.996f), 0x7b);
    assert_int_equal(bag_e5m2_from_f32(61440), 0x7c);
    assert_int_equal(bag_e5m2_from_f32(-INFINITY), 0xfc);
    assert_true(isnan(bag_f32_from_e5m2(bag_e5m2_from_f32(NAN))));
    /* Over f16 this would be rounded twice, and go up to 0x3d. */
    assert_int_equal(bag_e5m2_from_f32(nextafterf(1.125f, 0)), 0x3c);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static struct bag_table quantised(enum bag_row_format format, size_t row_elements, const void *rows)
{
    struct bag_table table = table_of(BAG_F32, 2, row_elements, rows);
    table.row_format = format;
    return table;
}

TEST(knows_the_bytes_of_rows)
{
    static const size_t bytes[] = {20, 13, 7, 5, 5, 9, 7, 9, 9, 9, 9, 7, 6, 6};
    for (int format = 0; format < BAG_ROW_FORMAT_COUNT; format++) {
        struct bag_table table = quantised((enum bag_row_format)format, 5, NULL);
        assert_int_equal(bag_row_bytes(&table), bytes[format]);
        assert_int_equal(
            bag_row_format_find(bag_row_format_names[format], strlen(bag_row_format_names[format])),
            format);
    }
    assert_int_equal(bag_row_elements(BAG_ROWS_INT8, 9), 1);
    assert_int_equal(bag_row_elements(BAG_ROWS_INT8, 8), 0);
    assert_int_equal(bag_row_elements(BAG_ROWS_INT4, 6), 4);
    assert_int_equal(bag_row_elements(BAG_ROWS_INT4, 3), 0);
    assert_int_equal(bag_row_elements(BAG_ROWS_F8_E4M3, 3), 3);
    assert_int_equal(bag_row_elements(BAG_ROWS_INT8_F16_FRONT, 5), 1);
    assert_int_equal(bag_row_elements(BAG_ROWS_INT4_F16_FRONT, 5), 2);
    assert_int_equal(bag_row_elements(BAG_ROWS_INT8_SYMMETRIC_F16, 5), 3);
    assert_int_equal(bag_row_elements(BAG_ROWS_INT2, 6), 8);
    assert_int_equal(bag_row_elements(BAG_ROWS_F8_E4M3_SCALED, 4), 0);
    assert_int_equal(bag_row_elements(BAG_ROWS_F8_E5M2_SCALED, 5), 1);
    assert_int_equal(bag_row_format_find("int9", 4), BAG_ROW_FORMAT_COUNT);
}

/* A row of each format, and its values. Scales are 0.5, and 0.125 of 8-bit floats. */
static const struct {
    enum bag_row_format format;
    const char *bytes;
    size_t columns;
    float values[5];
} decoded[] = {{BAG_ROWS_INT8, "\0\7\xff\0\0\0\x3f\0\0\x40\xc0", 3, {-3, 0.5f, 124.5f}},
               {BAG_ROWS_INT8_F16_FRONT, "\0\x38\0\xbc\0\7\xff", 3, {-1, 2.5f, 126.5f}},
               {BAG_ROWS_INT8_F16_BACK, "\0\7\xff\0\x38\0\xbc", 3, {-1, 2.5f, 126.5f}},
               {BAG_ROWS_INT8_SYMMETRIC, "\x80\0\x7f\0\0\0\x3f", 3, {-64, 0, 63.5f}},
               {BAG_ROWS_INT8_SYMMETRIC_F16, "\x80\0\x7f\0\x38", 3, {-64, 0, 63.5f}},
               /* The low bits first. */
               {BAG_ROWS_INT4, "\xf2\1\0\x38\0\xbc", 3, {0, 6.5f, -0.5f}},
               {BAG_ROWS_INT4_F16_FRONT, "\0\x38\0\xbc\xf2\1", 3, {0, 6.5f, -0.5f}},
               {BAG_ROWS_INT2, "\xe4\xfe\0\x38\0\xbc", 5, {-1, -0.5f, 0, 0.5f, 0}},
               {BAG_ROWS_INT2_F16_FRONT, "\0\x38\0\xbc\xe4\xfe", 5, {-1, -0.5f, 0, 0.5f, 0}},
               {BAG_ROWS_F8_E4M3_SCALED, "\x38\xb9\1\0\0\0\x3e", 3, {0.125f, -0.140625f, 0x1p-12f}},
               {BAG_ROWS_F8_E5M2_SCALED, "\x3c\xbd\1\0\0\0\x3e", 3, {0.125f, -0.15625f, 0x1p-19f}}};

TEST(decodes_rows_from_every_column)
{
    for (size_t i = 0; i < COUNT_OF(decoded); i++) {
        unsigned char rows[2 * 16] = {0};
        struct bag_table table = quantised(decoded[i].format, decoded[i].columns, rows);
        memcpy(rows + bag_row_bytes(&table), decoded[i].bytes, bag_row_bytes(&table));
        for (size_t first = 0; first < decoded[i].columns; first++) {
            size_t count = decoded[i].columns - first;
            float values[5];
            bag_row_decode(&table, 1, first, count, values);
            if (memcmp(values, decoded[i].values + first, count * sizeof *values) != 0)
                fail_msg("%s, from column %zu: %g instead of %g",
                         bag_row_format_names[decoded[i].format], first, (double)values[0],
                         (double)decoded[i].values[first]);
        }
    }
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* Checks the bytes of a row of three values and their number. */
static void assert_encoded(enum bag_row_format format, const float *values, const char *bytes)
{
    struct bag_table table = quantised(format, 3, NULL);
    unsigned char out[16];
    size_t count = bag_row_bytes(&table);
    memset(out, 0xa5, sizeof out);
    assert_true(bag_row_encode(&table, values, out + 1));
    assert_memory_equal(out + 1, bytes, count);
    assert_int_equal(out[0], 0xa5);
    assert_int_equal(out[1 + count], 0xa5);
}

TEST(encodes_rows)
{
    const float ints[] = {-1, 0.5f, 126.5f}, few[] = {-1, 6.5f, 0}, eighths[] = {56, -14, 0.125f};
    const float signs[] = {-63.5f, 0.5f, 32}, fours[] = {-1, 0.5f, 0};
    const float sames[] = {0.5f, 0.5f, 0.5f}, zeros[] = {0, 0, 0}, large[] = {7168, -7168, 1};
    assert_encoded(BAG_ROWS_INT8, ints, "\0\3\xff\0\0\0\x3f\0\0\x80\xbf");
    assert_encoded(BAG_ROWS_INT8, sames, "\0\0\0\0\0\0\0\0\0\0\x3f");
    assert_encoded(BAG_ROWS_INT8_F16_FRONT, ints, "\0\x38\0\xbc\0\3\xff");
    assert_encoded(BAG_ROWS_INT4, few, "\xf0\2\0\x38\0\xbc");
    assert_encoded(BAG_ROWS_INT4_F16_FRONT, few, "\0\x38\0\xbc\xf0\2");
    assert_encoded(BAG_ROWS_INT8_F16_BACK, ints, "\0\3\xff\0\x38\0\xbc");
    assert_encoded(BAG_ROWS_INT8_SYMMETRIC, signs, "\x81\1\x40\0\0\0\x3f");
    assert_encoded(BAG_ROWS_INT8_SYMMETRIC_F16, signs, "\x81\1\x40\0\x38");
    assert_encoded(BAG_ROWS_INT2, fours, "\x2c\0\x38\0\xbc");
    assert_encoded(BAG_ROWS_INT2_F16_FRONT, fours, "\0\x38\0\xbc\x2c");
    assert_encoded(BAG_ROWS_F8_E4M3, eighths, "\x66\xd6\x20");
    assert_encoded(BAG_ROWS_F8_E4M3_SCALED, eighths, "\x7e\xee\x38\0\0\0\x3e");
    assert_encoded(BAG_ROWS_F8_E5M2, eighths, "\x53\xcb\x30");
    assert_encoded(BAG_ROWS_F8_E5M2_SCALED, large, "\x7b\xfb\x48\0\0\0\x3e");
    assert_encoded(BAG_ROWS_F8_E4M3_SCALED, zeros, "\0\0\0\0\0\x80\0");
}

TEST(encodes_plain_rows)
{
    const float values[] = {1, -2, 65504};
    unsigned char out[12];
    struct bag_table table = table_of(BAG_F16, 1, 3, NULL);
    assert_true(bag_row_encode(&table, values, out));
    assert_memory_equal(out, "\0\x3c\0\xc0\xff\x7b", 6);
    table.dtype = BAG_BF16;
    assert_true(bag_row_encode(&table, values, out));
    assert_memory_equal(out, "\x80\x3f\0\xc0\x80\x47", 6);
    table.dtype = BAG_F32;
    assert_true(bag_row_encode(&table, values, out));
    assert_memory_equal(out, values, sizeof values);
}

/* The search of scale and bias finds the same on every instruction set, whatever the width. */
TEST(encodes_the_same_on_every_instruction_set)
{
    uint32_t random = 1;
    for (size_t width = 1; width <= 140; width++) {
        float values[140];
        unsigned char generic[256], out[256];
        for (size_t i = 0; i < width; i++) {
            random = random * 1664525 + 1013904223;
            values[i] = (float)(int32_t)random * 0x1p-35f + (i == 7 ? 0.5f : 0);
        }
        for (int format = BAG_ROWS_PLAIN + 1; format < BAG_ROW_FORMAT_COUNT; format++) {
            struct bag_table table = quantised((enum bag_row_format)format, width, NULL);
            bag_isa_use(BAG_ISA_GENERIC);
            assert_true(bag_row_encode(&table, values, generic));
            bag_isa_use(bag_isa_best());
            assert_true(bag_row_encode(&table, values, out));
            assert_memory_equal(out, generic, bag_row_bytes(&table));
            bag_row_encode_fast(&table, BAG_F32, values, out);
            bag_isa_use(BAG_ISA_GENERIC);
            bag_row_encode_fast(&table, BAG_F32, values, generic);
            assert_memory_equal(out, generic, bag_row_bytes(&table));
        }
    }
}

/* Checks the scale and the bias of an int8 row of finite values. */
static void check_int8_range(const struct bag_table *table, const float *values,
                             const unsigned char *row)
{
    float least = table->row_elements ? values[0] : 0, largest = least;
    for (size_t i = 0; i < table->row_elements; i++) {
        if (!isfinite(values[i]))
            return;
        least = values[i] < least ? values[i] : least;
        largest = values[i] > largest ? values[i] : largest;
    }
    const float params[] = {(largest - least) / 255, least + 0.0f};
    assert_memory_equal(row + table->row_elements, params, sizeof params);
}

/* Checks that a row of f32 values and the same values as f16 elements at an odd address have the
 * same bytes on every instruction set. */
static void check_halves(const struct bag_table *table, const float *values)
{
    const size_t row_bytes = bag_row_bytes(table);
    unsigned char expected[256], out[256], halves[1 + 2 * 140];
    bag_elements_encode(values, table->row_elements, BAG_F16, halves + 1);
    bag_isa_use(BAG_ISA_GENERIC);
    bag_row_encode_fast(table, BAG_F32, values, expected);
    if (table->row_format == BAG_ROWS_INT8)
        check_int8_range(table, values, expected);
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        bag_isa_use((enum bag_isa)isa);
        for (int is_half = 0; is_half < 2; is_half++) {
            out[row_bytes] = 0xaa; /* bytes after the row are not written */
            bag_row_encode_fast(table, is_half ? BAG_F16 : BAG_F32,
                                is_half ? (const void *)(halves + 1) : values, out);
            assert_memory_equal(out, expected, row_bytes);
            assert_int_equal(out[row_bytes], 0xaa);
        }
    }
    bag_isa_use(bag_isa_best());
}

/* Rows of one sign, of zeros, and of numbers at the ends of f16 have the same bytes, too. */
TEST(encodes_halves_as_the_numbers_that_they_are)
{
    static const float special[][3] = {
        {0, -0.0f, 0},        {-0.0f, -0.0f, -0.0f},   {1, 2, 3},
        {-1, -2, -3},         {-0.0f, 1, 2},           {0, -1, -2},
        {65504, -65504, 1},   {65504, 65504, 65472},   {5, 5, 5},
        {0x1p-24f, 0, 0},     {-0x1p-24f, 0x1p-24f},   {0x1p-14f},
        {NAN, 1, 2},          {1, INFINITY, 0},        {-INFINITY, 1},
        {1, -NAN, -INFINITY}, {-65504, -65504, -65504}};
    float values[140];
    uint32_t random = 7;
    for (int format = BAG_ROWS_PLAIN + 1; format < BAG_ROW_FORMAT_COUNT; format++) {
        if (!bag_kind_has_params(bag_row_layouts[format].kind))
            continue;
        for (size_t width = 0; width <= 140; width++) {
            struct bag_table table = quantised((enum bag_row_format)format, width, NULL);
            for (size_t i = 0; i < width; i++) {
                random = random * 1664525 + 1013904223;
                values[i] = bag_f32_from_f16((uint16_t)(random >> 16 & 0xbfff));
            }
            check_halves(&table, values);
            for (size_t row = 0; row < sizeof special / sizeof *special; row++) {
                for (size_t i = 0; i < width; i++)
                    values[i] = special[row][(i + width) % 3];
                check_halves(&table, values);
            }
        }
    }
}

/* A row for a reply is what FBGEMM's quantisers make of it; zeros stay zeros. */
TEST(encodes_for_replies)
{
    const float values[] = {-1, 0.25f, 0.5f, 2.75f}, zeros[4] = {0};
    for (int format = BAG_ROWS_PLAIN + 1; format < BAG_ROW_FORMAT_COUNT; format++) {
        struct bag_table table = quantised((enum bag_row_format)format, 4, NULL);
        bool has_scale = bag_row_layouts[format].num_params > 0;
        unsigned char out[32];
        float back[4];
        table.rows = out;
        bag_row_encode_fast(&table, BAG_F32, zeros, out);
        bag_row_decode(&table, 0, 0, 4, back);
        assert_memory_equal(back, zeros, sizeof zeros);
        bag_row_encode_fast(&table, BAG_F32, (float[]){1, NAN, INFINITY, 2}, out);
        bag_row_decode(&table, 0, 0, 4, back);
        assert_true(isnan(back[1]));
        assert_int_equal(isnan(back[0]), has_scale);
    }
    unsigned char out[8];
    struct bag_table table = quantised(BAG_ROWS_INT2, 4, NULL);
    bag_row_encode_fast(&table, BAG_F32, values, out);
    assert_memory_equal(out, "\xd4\0\x3d\0\xbc", 5); /* codes 0, 1, 1, 3 of 1.25 */
}

/* Values that a format cannot represent are rejected instead of written as other values. */
TEST(rejects_what_a_format_cannot_hold)
{
    unsigned char out[32];
    for (int format = 0; format < BAG_ROW_FORMAT_COUNT; format++) {
        const struct bag_row_layout *layout = &bag_row_layouts[format];
        struct bag_table table = quantised((enum bag_row_format)format, 3, NULL);
        bool keeps_nan = layout->num_params == 0;
        bool keeps_infinity = keeps_nan && layout->kind != BAG_KIND_OF_E4M3;
        bool is_f32 = format == BAG_ROWS_PLAIN || layout->param_dtype == BAG_F32;
        bool keeps_large = is_f32 && (!keeps_nan || format == BAG_ROWS_PLAIN);
        assert_int_equal(bag_row_encode(&table, (float[]){1, NAN, 2}, out), keeps_nan);
        assert_int_equal(bag_row_encode(&table, (float[]){1, 2, INFINITY}, out), keeps_infinity);
        assert_int_equal(bag_row_encode(&table, (float[]){-1, 1e30f, 2}, out), keeps_large);
    }
    struct bag_table table = table_of(BAG_F16, 1, 3, NULL);
    assert_false(bag_row_encode(&table, (float[]){1, 2, 65520}, out));
    assert_true(bag_row_encode(&table, (float[]){1, NAN, -INFINITY}, out));
    table.dtype = BAG_BF16;
    assert_false(bag_row_encode(&table, (float[]){bag_f32_from_bits(0x7f7fffff), 2, 0}, out));
}
