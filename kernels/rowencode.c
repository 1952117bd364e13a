/* Encodes rows of f32 and f16 values: computes scale and bias, and writes codes.
 *
 * Replies encode megabytes, and for f16 scale and bias a search may try dozens of grids for each
 * row. The loops over a row are therefore also compiled for AVX2. They keep their order of
 * operations, so they give the same bits. */
#include "isa.h"
#include "rowformat.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* FBGEMM's search. It gives up at most 16 % of 200 steps of the row's range, and stops earlier when
 * the error has grown by a quarter. With fewer steps, or an earlier stop, the mean error is no
 * higher, but one row in ten has a higher error than with FBGEMM. */
#define SEARCH_STEPS    200
#define SEARCH_KEEPS    168
#define SEARCH_GIVES_UP 1.25f

/* The maximum number of rounds of refinement. A round starts only if the one before it gained. */
#define REFINE_ROUNDS 12

/* The number of lanes in which the errors of a row are summed. The compiler turns them into
 * vectors. */
#define LANES 16

/* The number of codes that are packed at a time; a multiple of 4. */
#define WRITE_CODES 64

#define LARGEST_E4M3 448.0f
#define LARGEST_E5M2 57344.0f
#define SMALLEST_F16 0x1p-24f
#define SMALLEST_F32 0x1p-126f /* smallest normal number */

struct row {
    const void *values; /* elements of f32, or of f16 if the loops take them; at any alignment */
    size_t count;
    float least, largest;
    const struct loops *loops; /* loops for this processor */
};

/* The values of codes: code q represents q * scale + bias, for q from `first` to `last`. */
struct grid {
    float scale, bias, first, last;
};

static float largest_magnitude(const struct row *row)
{
    return -row->least > row->largest ? -row->least : row->largest;
}

static bool is_finite(float value)
{
    return (bag_f32_bits(value) & 0x7fffffff) < 0x7f800000;
}

/* ---- scale and bias -------------------------------------------------------------------------- */

static float f16_rounded(float value)
{
    return bag_f32_from_f16(bag_f16_from_f32(value));
}

/* Returns the largest f16 number that is not above a finite one. */
static float f16_below(float value)
{
    uint16_t half = bag_f16_from_f32(value);
    if (bag_f32_from_f16(half) <= value)
        return bag_f32_from_f16(half);
    half = half == 0 ? 0x8001 : (uint16_t)(half & 0x8000 ? half + 1 : half - 1);
    return bag_f32_from_f16(half);
}

/* Returns the grid from `bias`, which is f16, to `high` with an f16 scale. */
static struct grid grid_from(float bias, float high, float last)
{
    float scale = f16_rounded((high - bias) / last);
    return (struct grid){scale > SMALLEST_F16 ? scale : SMALLEST_F16, bias, 0, last};
}

static struct grid grid_between(float low, float high, float last)
{
    return grid_from(f16_rounded(low), high, last);
}

/* Returns the position of a value among the codes, which are whole numbers. `inverse` is 1 /
 * scale. */
static inline float place_of(const struct grid *grid, float inverse, float value)
{
    return (value - grid->bias) * inverse;
}

/* A number so large that a sum with it has no fraction, so that the addition rounds to nearest
 * even. Its lowest bits are those of the whole number that was added. */
#define ROUNDS 0x1.8p23f

/* Returns the sum of ROUNDS and the code nearest to a position. A position that is NaN gets the
 * first code. */
static inline float rounded_code(const struct grid *grid, float place)
{
    place = place > grid->first ? place : grid->first;
    place = place < grid->last ? place : grid->last;
    return place + ROUNDS;
}

static inline float nearest_code(const struct grid *grid, float place)
{
    return rounded_code(grid, place) - ROUNDS;
}

/* Returns the squared error of one value, in units of scale * scale. */
static float squared_error(const struct grid *grid, float inverse, float value)
{
    float place = place_of(grid, inverse, value);
    float error = place - nearest_code(grid, place);
    return error * error;
}

/* ---- loops over a row ------------------------------------------------------------------------ */

#define INLINE static inline __attribute__((always_inline))

/* Returns a value of a row. `dtype` is F32 or F16. */
INLINE float load(enum bag_dtype dtype, const void *values, size_t position)
{
    return dtype == BAG_F16 ? bag_f32_from_f16(bag_load_u16(values, position))
                            : bag_load_f32(values, position);
}

/* Defines a function that finds the bits of the least and the largest number, or zeros if there is
 * none. As a signed integer the largest bits belong to the largest number if any is positive. As an
 * unsigned one they belong to the least number if any is negative. If all have one sign, the
 * smallest bits are those of the number nearest to zero. Integers, unlike floats, have an order
 * that compilers make vectors of. */
#define DEFINE_EXTREMES(bits, load_bits)                                                       \
    INLINE void find_extremes_u##bits(const void *values, size_t count, uint##bits##_t *least, \
                                      uint##bits##_t *largest)                                 \
    {                                                                                          \
        int##bits##_t most = count ? INT##bits##_MIN : 0;                                      \
        uint##bits##_t nearest = count ? UINT##bits##_MAX : 0, lowest = 0;                     \
        for (size_t i = 0; i < count; i++) {                                                   \
            uint##bits##_t value = load_bits;                                                  \
            most = (int##bits##_t)value > most ? (int##bits##_t)value : most;                  \
            lowest = value > lowest ? value : lowest;                                          \
            nearest = value < nearest ? value : nearest;                                       \
        }                                                                                      \
        *least = (int##bits##_t)lowest < 0 ? lowest : nearest;                                 \
        *largest = most < 0 ? nearest : (uint##bits##_t)most;                                  \
    }

DEFINE_EXTREMES(16, bag_load_u16(values, i))
DEFINE_EXTREMES(32, bag_f32_bits(bag_load_f32(values, i)))

/* Finds the least and the largest value, of zeros +0. Returns false if a value is a NaN or an
 * infinity, whose bits are beyond those of all numbers. */
INLINE bool find_range(enum bag_dtype dtype, struct row *row)
{
    uint16_t least_half, largest_half;
    uint32_t least, largest;
    if (dtype == BAG_F16) {
        find_extremes_u16(row->values, row->count, &least_half, &largest_half);
        row->least = bag_f32_from_f16(least_half);
        row->largest = bag_f32_from_f16(largest_half);
    } else {
        find_extremes_u32(row->values, row->count, &least, &largest);
        row->least = bag_f32_from_bits(least);
        row->largest = bag_f32_from_bits(largest);
    }
    row->least += 0.0f;
    row->largest += 0.0f;
    return is_finite(row->least) && is_finite(row->largest);
}

/* Writes a byte for each value from `from` on. */
INLINE void write_codes(enum bag_dtype dtype, const void *values, size_t from, size_t count,
                        struct grid grid, unsigned char *restrict codes)
{
    const float inverse = 1 / grid.scale;
    for (size_t i = 0; i < count; i++) {
        float place = place_of(&grid, inverse, load(dtype, values, from + i));
        codes[i] = (unsigned char)bag_f32_bits(rounded_code(&grid, place));
    }
}

/* Adds the lanes in pairs, which need not wait for each other. Overwrites the lanes. */
INLINE float add_lanes(float *lanes)
{
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

/* Returns the sum of squared errors of the values on a grid, whose scale is above zero. */
INLINE float sum_errors(const void *values, size_t count, struct grid grid)
{
    const float inverse = 1 / grid.scale;
    float sums[LANES] = {0}, total = 0;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += squared_error(&grid, inverse, bag_load_f32(values, i + lane));
    for (; i < count; i++)
        total += squared_error(&grid, inverse, bag_load_f32(values, i));
    return (total + add_lanes(sums)) * grid.scale * grid.scale;
}

/* Sums over values: of the codes, of their squares, of the differences between positions and codes,
 * and of these times the codes. */
struct line {
    float codes, squares, beyond, products;
};

INLINE void add_to_line(struct line *line, const struct grid *grid, float inverse, float value)
{
    float place = place_of(grid, inverse, value), code = nearest_code(grid, place);
    float beyond = place - code;
    line->codes += code;
    line->squares += code * code;
    line->beyond += beyond;
    line->products += beyond * code;
}

INLINE void sum_line(const void *values, size_t count, struct grid grid, struct line *total)
{
    const float inverse = 1 / grid.scale;
    float codes[LANES] = {0}, squares[LANES] = {0}, beyond[LANES] = {0}, products[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) {
            struct line one = {codes[lane], squares[lane], beyond[lane], products[lane]};
            add_to_line(&one, &grid, inverse, bag_load_f32(values, i + lane));
            codes[lane] = one.codes;
            squares[lane] = one.squares;
            beyond[lane] = one.beyond;
            products[lane] = one.products;
        }
    *total = (struct line){0};
    for (; i < count; i++)
        add_to_line(total, &grid, inverse, bag_load_f32(values, i));
    total->codes += add_lanes(codes);
    total->squares += add_lanes(squares);
    total->beyond += add_lanes(beyond);
    total->products += add_lanes(products);
}

/* The loops above, for one instruction set and type of values. */
struct loops {
    bool (*range)(struct row *row);
    void (*codes)(const struct row *row, size_t from, size_t count, struct grid grid,
                  unsigned char *codes);
    /* For the search, which takes f32 values; NULL for f16. */
    float (*errors)(const struct row *row, struct grid grid);
    void (*line)(const struct row *row, struct grid grid, struct line *line);
};

#define DEFINE_RANGE(name, dtype, target)            \
    target static bool range_##name(struct row *row) \
    {                                                \
        return find_range(dtype, row);               \
    }

#define DEFINE_CODES(name, dtype, target, write)                                      \
    target static void codes_##name(const struct row *row, size_t from, size_t count, \
                                    struct grid grid, unsigned char *codes)           \
    {                                                                                 \
        write(dtype, row->values, from, count, grid, codes);                          \
    }

/* Defines the loops of an instruction set, for which `write` writes codes. */
#define DEFINE_LOOPS(name, target, write)                                                      \
    DEFINE_RANGE(name##_f32, BAG_F32, target)                                                  \
    DEFINE_RANGE(name##_f16, BAG_F16, target)                                                  \
    DEFINE_CODES(name##_f32, BAG_F32, target, write)                                           \
    DEFINE_CODES(name##_f16, BAG_F16, target, write)                                           \
                                                                                               \
    target static float errors_##name(const struct row *row, struct grid grid)                 \
    {                                                                                          \
        return sum_errors(row->values, row->count, grid);                                      \
    }                                                                                          \
                                                                                               \
    target static void line_##name(const struct row *row, struct grid grid, struct line *line) \
    {                                                                                          \
        sum_line(row->values, row->count, grid, line);                                         \
    }                                                                                          \
                                                                                               \
    static const struct loops loops_##name[] = {                                               \
        {range_##name##_f32, codes_##name##_f32, errors_##name, line_##name},                  \
        {.range = range_##name##_f16, .codes = codes_##name##_f16}};

DEFINE_LOOPS(generic, , write_codes)

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,f16c")))

/* Returns the whole numbers nearest to the positions of eight values. */
AVX2 INLINE __m256i nearest_eight(enum bag_dtype dtype, const void *values, size_t from,
                                  __m256 bias, __m256 inverse)
{
    const char *at = (const char *)values + from * (dtype == BAG_F16 ? 2 : 4);
    __m256 eight = dtype == BAG_F16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)at))
                                    : _mm256_loadu_ps((const float *)(const void *)at);
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(eight, bias), inverse));
}

/* Writes codes as write_codes does, 32 at a time; the last 32 may repeat some. A position that is
 * NaN becomes the least integer, and none is as large as 2^31. Packing brings all integers that
 * have no code to the nearest one. */
AVX2 INLINE void write_codes_avx2(enum bag_dtype dtype, const void *values, size_t from,
                                  size_t count, struct grid grid, unsigned char *restrict codes)
{
    const __m256 bias = _mm256_set1_ps(grid.bias), inverse = _mm256_set1_ps(1 / grid.scale);
    const __m256i first = _mm256_set1_epi8((char)grid.first);
    const __m256i last = _mm256_set1_epi8((char)(unsigned char)grid.last);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    if (count < 32) {
        write_codes(dtype, values, from, count, grid, codes);
        return;
    }
    for (size_t i = 0; i < count; i += 32) {
        const size_t at = i + 32 <= count ? i : count - 32;
        __m256i four[4], low, high, bytes;
        for (size_t k = 0; k < 4; k++)
            four[k] = nearest_eight(dtype, values, from + at + 8 * k, bias, inverse);
        low = _mm256_packs_epi32(four[0], four[1]);
        high = _mm256_packs_epi32(four[2], four[3]);
        bytes = grid.first < 0 ? _mm256_max_epi8(_mm256_packs_epi16(low, high), first)
                               : _mm256_min_epu8(_mm256_packus_epi16(low, high), last);
        _mm256_storeu_si256((__m256i_u *)(codes + at), _mm256_permutevar8x32_epi32(bytes, order));
    }
}

DEFINE_LOOPS(avx2, AVX2, write_codes_avx2)
#endif

/* Returns the loops for this processor and type of values. */
static const struct loops *choose_loops(enum bag_dtype dtype)
{
#if defined(__x86_64__)
    if (bag_isa_used() != BAG_ISA_GENERIC)
        return &loops_avx2[dtype == BAG_F16];
#endif
    return &loops_generic[dtype == BAG_F16];
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Replaces `best` by `next` if its error is smaller. Returns whether it did. */
static bool take_better(const struct row *row, struct grid next, struct grid *best, float *error)
{
    if (!(next.scale > 0) || !is_finite(next.scale) || !is_finite(next.bias))
        return false;
    float next_error = row->loops->errors(row, next);
    if (!(next_error < *error))
        return false;
    *best = next;
    *error = next_error;
    return true;
}

/* Runs FBGEMM's greedy search, which shortens the range by a step at the end that costs less. */
static void search(const struct row *row, struct grid *best, float *error)
{
    float low = row->least, high = row->largest, step = (high - low) / SEARCH_STEPS;
    for (int kept = SEARCH_STEPS; kept > SEARCH_KEEPS; kept--) {
        struct grid raised = grid_between(low + step, high, best->last);
        struct grid lowered = grid_between(low, high - step, best->last);
        float raised_error = row->loops->errors(row, raised);
        float lowered_error = row->loops->errors(row, lowered);
        bool raise = raised_error < lowered_error;
        low += raise ? step : 0;
        high -= raise ? 0 : step;
        if ((raise ? raised_error : lowered_error) < *error) {
            *best = raise ? raised : lowered;
            *error = raise ? raised_error : lowered_error;
        } else if ((raise ? raised_error : lowered_error) > SEARCH_GIVES_UP * *error)
            return;
    }
}

/* Returns the scale and bias that fit the codes of `grid` best, from a line through the values. */
static struct grid fitted(const struct row *row, const struct grid *grid)
{
    struct line line;
    row->loops->line(row, *grid, &line);
    double count = (double)row->count, codes = (double)line.codes, beyond = (double)line.beyond;
    double spread = (double)line.squares * count - codes * codes;
    if (!(spread > 0))
        return *grid;
    double slope = ((double)line.products * count - codes * beyond) / spread;
    double shift = (beyond - slope * codes) / count;
    double scale = (double)grid->scale;
    return (struct grid){f16_rounded((float)(scale * (1 + slope))),
                         f16_rounded((float)((double)grid->bias + scale * shift)), 0, grid->last};
}

/* Returns the f16 number that is `steps` after a value, by magnitude. */
static float f16_beside(float value, int steps)
{
    return bag_f32_from_f16((uint16_t)(bag_f16_from_f32(value) + steps));
}

/* Fits a line, then tries the f16 numbers beside scale and bias until nothing is gained. */
static void refine(const struct row *row, struct grid *best, float *error)
{
    bool gained = true;
    for (int i = 0; i < REFINE_ROUNDS && gained; i++)
        gained = take_better(row, fitted(row, best), best, error);
    gained = true;
    for (int i = 0; i < REFINE_ROUNDS && gained; i++) {
        gained = false;
        for (int steps = -1; steps <= 1; steps += 2) {
            struct grid scaled = *best, moved = *best;
            scaled.scale = f16_beside(best->scale, steps);
            moved.bias = f16_beside(best->bias, steps);
            gained |= take_better(row, scaled, best, error);
            gained |= take_better(row, moved, best, error);
        }
    }
}

/* ---- codes of integers ----------------------------------------------------------------------- */

/* Where a scale would have no inverse, few bits are left. */
static bool choose_grid_f32(const struct row *row, struct grid *grid)
{
    float range = row->largest - row->least, scale = range / grid->last;
    grid->scale = range > 0 && scale < SMALLEST_F32 ? SMALLEST_F32 : scale;
    grid->bias = row->least;
    return is_finite(range) && is_finite(__builtin_fmaf(grid->last, grid->scale, grid->bias));
}

static bool choose_grid_f16(const struct row *row, bool searches, struct grid *grid)
{
    *grid = grid_between(row->least, row->largest, grid->last);
    if (!is_finite(grid->scale) || !is_finite(grid->bias))
        return false;
    if (!searches)
        return true;
    float error = row->loops->errors(row, *grid);
    /* For rows of nearly one value, the scale can compensate for what the bias lacks. */
    take_better(row, grid_from(f16_below(row->least), row->largest, grid->last), grid, &error);
    if (grid->last < 255)
        search(row, grid, &error);
    refine(row, grid, &error);
    return true;
}

/* The largest magnitude gets the last code. */
static bool choose_grid_symmetric(const struct row *row, bool halves, struct grid *grid)
{
    float scale = largest_magnitude(row) / grid->last;
    float least = halves ? SMALLEST_F16 : SMALLEST_F32;
    scale = halves ? -f16_below(-scale) : scale; /* rounded up: no value is beyond the codes */
    grid->scale = scale > least ? scale : least;
    return is_finite(grid->scale);
}

/* Packs several codes into a byte, the first into its lowest bits. */
static void write_packed(const struct row *row, const struct grid *grid, size_t per_byte,
                         unsigned char *out)
{
    unsigned char codes[WRITE_CODES] BAG_UNSET;
    for (size_t done = 0; done < row->count; done += WRITE_CODES) {
        size_t now = row->count - done < WRITE_CODES ? row->count - done : WRITE_CODES;
        row->loops->codes(row, done, now, *grid, codes);
        memset(codes + now, 0, (WRITE_CODES - now) % per_byte);
        for (size_t i = 0; i < now; i += per_byte) {
            unsigned byte = codes[i] | (unsigned)codes[i + 1] << 8 / per_byte;
            if (per_byte == 4)
                byte |= (unsigned)codes[i + 2] << 4 | (unsigned)codes[i + 3] << 6;
            out[(done + i) / per_byte] = (unsigned char)byte;
        }
    }
}

static void write_params(const struct bag_row_layout *layout, float scale, float bias,
                         unsigned char *out)
{
    const float params[] = {scale, bias};
    bag_elements_encode(params, layout->num_params, layout->param_dtype, out);
}

static bool choose_grid(const struct bag_row_layout *layout, const struct row *row, bool searches,
                        struct grid *grid)
{
    const bool halves = layout->param_dtype == BAG_F16;
    if (layout->kind == BAG_KIND_OF_SINT8) {
        *grid = (struct grid){.first = -127, .last = 127};
        return choose_grid_symmetric(row, halves, grid);
    }
    *grid = (struct grid){.last = (float)((1 << 8 / bag_codes_per_byte(layout->kind)) - 1)};
    return halves ? choose_grid_f16(row, searches, grid) : choose_grid_f32(row, grid);
}

static bool encode_integers(const struct bag_table *table, enum bag_dtype dtype, const void *values,
                            bool searches, unsigned char *out)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    const struct bag_row_places places = bag_row_places(table);
    const size_t per_byte = bag_codes_per_byte(layout->kind);
    struct row row = {.values = values, .count = table->row_elements, .loops = choose_loops(dtype)};
    struct grid grid;
    if (!row.loops->range(&row) || !choose_grid(layout, &row, searches, &grid))
        return false;
    if (per_byte > 1)
        write_packed(&row, &grid, per_byte, out + places.codes_at);
    else
        row.loops->codes(&row, 0, row.count, grid, out + places.codes_at);
    write_params(layout, grid.scale, grid.bias, out + places.params_at);
    return true;
}

/* ---- codes of eight-bit floats --------------------------------------------------------------- */

/* Writes the values. Returns false if a finite value becomes infinite, or an infinity cannot be
 * represented: e4m3 has none. */
static bool write_f8(enum bag_row_kind kind, const float *values, size_t count, float scale,
                     unsigned char *out)
{
    unsigned lost = 0;
    if (kind == BAG_KIND_OF_E4M3)
        for (size_t i = 0; i < count; i++) {
            out[i] = bag_e4m3_from_f32(values[i] / scale);
            lost |= (unsigned)((out[i] & 0x7f) == 0x7f && values[i] == values[i]);
        }
    else
        for (size_t i = 0; i < count; i++) {
            out[i] = bag_e5m2_from_f32(values[i] / scale);
            lost |= (unsigned)((out[i] & 0x7f) == 0x7c && is_finite(values[i]));
        }
    return !lost;
}

static bool encode_f8(const struct bag_table *table, const float *values, unsigned char *out)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    float largest = layout->kind == BAG_KIND_OF_E4M3 ? LARGEST_E4M3 : LARGEST_E5M2, scale = 1;
    struct row row = {
        .values = values, .count = table->row_elements, .loops = choose_loops(BAG_F32)};
    if (layout->num_params > 0) {
        if (!row.loops->range(&row))
            return false;
        scale = largest_magnitude(&row) / largest;
        scale =
            scale > SMALLEST_F32 ? scale : SMALLEST_F32; /* a smaller scale would have few bits */
        write_params(layout, scale, 0, out + bag_row_places(table).params_at);
    }
    return write_f8(layout->kind, values, table->row_elements, scale,
                    out + bag_row_places(table).codes_at);
}

/* ---- every format ---------------------------------------------------------------------------- */

static bool encode_plain(const struct bag_table *table, const float *values, unsigned char *out)
{
    unsigned lost = 0;
    bag_elements_encode(values, table->row_elements, table->dtype, out);
    if (table->dtype == BAG_F32)
        return true;
    unsigned infinity = table->dtype == BAG_F16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; i < table->row_elements; i++)
        lost |= (unsigned)((bag_load_u16(out, i) & 0x7fff) == infinity && is_finite(values[i]));
    return !lost;
}

/* Encodes a row of any format. Returns false if the format cannot hold a value. */
static bool encode(const struct bag_table *table, enum bag_dtype dtype, const void *values,
                   bool searches, unsigned char *out)
{
    if (bag_kind_has_params(bag_row_layouts[table->row_format].kind))
        return encode_integers(table, dtype, values, searches, out);
    return table->row_format == BAG_ROWS_PLAIN ? encode_plain(table, values, out)
                                               : encode_f8(table, values, out);
}

bool bag_row_encode(const struct bag_table *table, const float *values, unsigned char *out)
{
    return encode(table, BAG_F32, values, true, out);
}

void bag_row_encode_fast(const struct bag_table *table, enum bag_dtype dtype, const void *values,
                         unsigned char *out)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    if (encode(table, dtype, values, false, out) || layout->num_params == 0)
        return;
    memset(out, 0, bag_row_bytes(table));
    write_params(layout, NAN, NAN, out + bag_row_places(table).params_at);
}
