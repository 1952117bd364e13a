/* Rows of f32 values as they are stored: codes, and the scale and bias that suit them.
 *
 * A grid for f16 scale and bias is searched for: dozens are tried for each row, so that the loop
 * that tries one is compiled for AVX2, too. It keeps its order of operations, and gives the same
 * bits. */
#include "isa.h"
#include "rowformat.h"

/* FBGEMM's search: of 200 steps of the row's range at most 16 % are given up, and less where the
 * error has grown by a quarter. With fewer steps, or an earlier end, the mean error is no higher,
 * but one row in ten has a higher one than FBGEMM's. */
#define SEARCH_STEPS    200
#define SEARCH_KEEPS    168
#define SEARCH_GIVES_UP 1.25f

/* Rounds of refinement: each starts only where the one before it gained. */
#define REFINE_ROUNDS 12

/* The errors of a row are summed in so many lanes, which become vectors. */
#define LANES 16

/* So many codes are packed at a time; an even number. */
#define WRITE_CODES 64

#define LARGEST_E4M3 448.0f
#define LARGEST_E5M2 57344.0f
#define SMALLEST_F16 0x1p-24f

struct row {
    const float *values;
    size_t count;
    float least, largest;
    const struct sums *sums; /* for this processor; of integers' codes alone */
};

/* What a code q stands for: q * scale + bias, for q from 0 to `most`. */
struct grid {
    float scale, bias, most;
};

/* ---- the values ------------------------------------------------------------------------------ */

/* Zero times a value, which is no zero where the value is a NaN or an infinity. */
static void widen(float value, float *least, float *largest, float *zero)
{
    *least = value < *least ? value : *least;
    *largest = value > *largest ? value : *largest;
    *zero += value * 0;
}

/* False where a value is a NaN or an infinity. */
static bool find_range(const float *values, size_t count, struct row *row)
{
    float least[LANES] = {0}, largest[LANES] = {0}, zeros[LANES] = {0};
    size_t i = 0;
    for (size_t lane = 0; count > 0 && lane < LANES; lane++)
        least[lane] = largest[lane] = values[0];
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            widen(values[i + lane], &least[lane], &largest[lane], &zeros[lane]);
    for (; i < count; i++)
        widen(values[i], &least[0], &largest[0], &zeros[0]);
    for (size_t lane = 1; lane < LANES; lane++) {
        widen(least[lane], &least[0], &largest[0], &zeros[0]);
        widen(largest[lane], &least[0], &largest[0], &zeros[0]);
        zeros[0] += zeros[lane];
    }
    *row = (struct row){.values = values, .count = count, .least = least[0], .largest = largest[0]};
    return zeros[0] == 0;
}

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

/* The largest f16 number that is not above a finite one. */
static float f16_below(float value)
{
    uint16_t half = bag_f16_from_f32(value);
    if (bag_f32_from_f16(half) <= value)
        return bag_f32_from_f16(half);
    half = half == 0 ? 0x8001 : (uint16_t)(half & 0x8000 ? half + 1 : half - 1);
    return bag_f32_from_f16(half);
}

/* The grid from `bias`, which is f16, to `high` with an f16 scale. */
static struct grid grid_from(float bias, float high, float most)
{
    float scale = f16_rounded((high - bias) / most);
    return (struct grid){scale > SMALLEST_F16 ? scale : SMALLEST_F16, bias, most};
}

static struct grid grid_between(float low, float high, float most)
{
    return grid_from(f16_rounded(low), high, most);
}

/* The place of a value among the codes, which are the whole numbers; `inverse` is 1 / scale. */
static float place_of(const struct grid *grid, float inverse, float value)
{
    return (value - grid->bias) * inverse;
}

/* The code nearest to a place. So large a number has no place for a fraction: the addition rounds.
 */
static float nearest_code(const struct grid *grid, float place)
{
    place = place > 0 ? place : 0;
    place = place < grid->most ? place : grid->most;
    return (place + 0x1.8p23f) - 0x1.8p23f;
}

/* Of one value, in units of scale * scale. */
static float squared_error(const struct grid *grid, float inverse, float value)
{
    float place = place_of(grid, inverse, value);
    float error = place - nearest_code(grid, place);
    return error * error;
}

/* ---- sums over a row ------------------------------------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))

/* In pairs, which need not wait for each other; overwrites the lanes. */
INLINE float add_lanes(float *lanes)
{
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

/* The sum of squared errors of the values on a grid, whose scale is above zero. */
INLINE float sum_errors(const float *values, size_t count, struct grid grid)
{
    const float inverse = 1 / grid.scale;
    float sums[LANES] = {0}, total = 0;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += squared_error(&grid, inverse, values[i + lane]);
    for (; i < count; i++)
        total += squared_error(&grid, inverse, values[i]);
    return (total + add_lanes(sums)) * grid.scale * grid.scale;
}

/* Of values: the codes, their squares, what the places have beyond the codes, and that times the
 * codes. */
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

INLINE void sum_line(const float *values, size_t count, struct grid grid, struct line *total)
{
    const float inverse = 1 / grid.scale;
    float codes[LANES] = {0}, squares[LANES] = {0}, beyond[LANES] = {0}, products[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) {
            struct line one = {codes[lane], squares[lane], beyond[lane], products[lane]};
            add_to_line(&one, &grid, inverse, values[i + lane]);
            codes[lane] = one.codes;
            squares[lane] = one.squares;
            beyond[lane] = one.beyond;
            products[lane] = one.products;
        }
    *total = (struct line){0};
    for (; i < count; i++)
        add_to_line(total, &grid, inverse, values[i]);
    total->codes += add_lanes(codes);
    total->squares += add_lanes(squares);
    total->beyond += add_lanes(beyond);
    total->products += add_lanes(products);
}

/* These loops, for one instruction set. */
struct sums {
    float (*errors)(const struct row *row, struct grid grid);
    void (*line)(const struct row *row, struct grid grid, struct line *line);
};

#define DEFINE_SUMS(name, target)                                                              \
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
    static const struct sums sums_##name = {errors_##name, line_##name};

DEFINE_SUMS(generic, )
#if defined(__x86_64__)
DEFINE_SUMS(avx2, __attribute__((target("avx2"))))
#endif

static const struct sums *choose_sums(void)
{
#if defined(__x86_64__)
    if (bag_isa_used() != BAG_ISA_GENERIC)
        return &sums_avx2;
#endif
    return &sums_generic;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Takes `next` in place of `best` where its error is less. */
static bool take_better(const struct row *row, struct grid next, struct grid *best, float *error)
{
    if (!(next.scale > 0) || !is_finite(next.scale) || !is_finite(next.bias))
        return false;
    float next_error = row->sums->errors(row, next);
    if (!(next_error < *error))
        return false;
    *best = next;
    *error = next_error;
    return true;
}

/* FBGEMM's greedy search: gives up a step of the range at that end where it costs less. */
static void search(const struct row *row, struct grid *best, float *error)
{
    float low = row->least, high = row->largest, step = (high - low) / SEARCH_STEPS;
    for (int kept = SEARCH_STEPS; kept > SEARCH_KEEPS; kept--) {
        struct grid raised = grid_between(low + step, high, best->most);
        struct grid lowered = grid_between(low, high - step, best->most);
        float raised_error = row->sums->errors(row, raised);
        float lowered_error = row->sums->errors(row, lowered);
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

/* The scale and bias that suit the codes of `grid` best: a line through the values. */
static struct grid fitted(const struct row *row, const struct grid *grid)
{
    struct line line;
    row->sums->line(row, *grid, &line);
    double count = (double)row->count, codes = (double)line.codes, beyond = (double)line.beyond;
    double spread = (double)line.squares * count - codes * codes;
    if (!(spread > 0))
        return *grid;
    double slope = ((double)line.products * count - codes * beyond) / spread;
    double shift = (beyond - slope * codes) / count;
    double scale = (double)grid->scale;
    return (struct grid){f16_rounded((float)(scale * (1 + slope))),
                         f16_rounded((float)((double)grid->bias + scale * shift)), grid->most};
}

/* The f16 number `steps` places above one, by magnitude. */
static float f16_beside(float value, int steps)
{
    return bag_f32_from_f16((uint16_t)(bag_f16_from_f32(value) + steps));
}

/* Fits a line, then tries the f16 numbers beside scale and bias, until nothing is gained. */
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

static bool choose_grid_f32(const struct row *row, struct grid *grid)
{
    double range = (double)row->largest - (double)row->least;
    grid->scale = (float)(range / (double)grid->most);
    grid->bias = row->least;
    return is_finite(__builtin_fmaf(grid->most, grid->scale, grid->bias));
}

static bool choose_grid_f16(const struct row *row, bool searches, struct grid *grid)
{
    *grid = grid_between(row->least, row->largest, grid->most);
    if (!is_finite(grid->scale) || !is_finite(grid->bias))
        return false;
    float error = row->sums->errors(row, *grid);
    /* Rows of nearly one value: what the bias lacks the scale can give. */
    take_better(row, grid_from(f16_below(row->least), row->largest, grid->most), grid, &error);
    if (searches)
        search(row, grid, &error);
    refine(row, grid, &error);
    return true;
}

static unsigned char code_of(const struct grid *grid, double scale, float value)
{
    double place = ((double)value - (double)grid->bias) / scale + 0.5;
    place = place > 0 ? place : 0;
    return (unsigned char)(int32_t)(place < (double)grid->most ? place : (double)grid->most);
}

/* A byte for each value. */
static void write_codes(const struct grid *grid, const float *values, size_t count,
                        unsigned char *codes)
{
    const struct grid copy = *grid;
    const double scale = copy.scale > 0 ? (double)copy.scale : 1;
    for (size_t i = 0; i < count; i++)
        codes[i] = code_of(&copy, scale, values[i]);
}

static void write_pairs(const struct row *row, const struct grid *grid, unsigned char *out)
{
    unsigned char codes[WRITE_CODES + 1] BAG_UNSET;
    for (size_t done = 0; done < row->count; done += WRITE_CODES) {
        size_t now = row->count - done < WRITE_CODES ? row->count - done : WRITE_CODES;
        write_codes(grid, row->values + done, now, codes);
        codes[now] = 0;
        for (size_t i = 0; i < now; i += 2)
            out[(done + i) / 2] = (unsigned char)(codes[i] | codes[i + 1] << 4);
    }
}

static void write_params(const struct grid *grid, enum bag_dtype dtype, unsigned char *out)
{
    const float params[] = {grid->scale, grid->bias};
    bag_elements_encode(params, 2, dtype, out);
}

static bool encode_integers(const struct bag_table *table, const float *values, unsigned char *out)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    bool pairs = layout->kind == BAG_KIND_OF_INT4, halves = layout->param_dtype == BAG_F16;
    struct grid grid = {.most = pairs ? 15 : 255};
    struct row row;
    if (!find_range(values, table->row_elements, &row))
        return false;
    row.sums = choose_sums();
    if (!(halves ? choose_grid_f16(&row, pairs, &grid) : choose_grid_f32(&row, &grid)))
        return false;
    if (pairs)
        write_pairs(&row, &grid, out + bag_row_places(table).codes_at);
    else
        write_codes(&grid, row.values, row.count, out + bag_row_places(table).codes_at);
    write_params(&grid, layout->param_dtype, out + bag_row_places(table).params_at);
    return true;
}

/* ---- codes of eight-bit floats --------------------------------------------------------------- */

/* Whether all values that are finite stay finite, and infinities what they are where there are any:
 * e4m3 has none. */
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
    struct row row;
    if (layout->num_params > 0) {
        if (!find_range(values, table->row_elements, &row))
            return false;
        scale = largest_magnitude(&row) / largest;
        scale = scale > 0x1p-126f ? scale : 0x1p-126f; /* where it is less, few bits are left */
        memcpy(out + bag_row_places(table).params_at, &scale, sizeof scale);
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

bool bag_row_encode(const struct bag_table *table, const float *values, unsigned char *out)
{
    switch (bag_row_kind(table)) {
    case BAG_KIND_OF_INT8:
    case BAG_KIND_OF_INT4:
        return encode_integers(table, values, out);
    case BAG_KIND_OF_E4M3:
    case BAG_KIND_OF_E5M2:
        return encode_f8(table, values, out);
    default:
        return encode_plain(table, values, out);
    }
}
