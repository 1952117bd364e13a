/* Runs of columns: decoding every row format to f32, and writing results. */
#include "rowformat.h"

#include <math.h>

/* Results are rounded through a small array, so that the loops may ignore its alignment. */
#define RUN_COLUMNS 64

const struct bag_row_layout bag_row_layouts[BAG_ROW_FORMAT_COUNT] = {
#define BAG_X(id, name, kind, param_dtype, num_params, params_first) \
    [BAG_ROWS_##id] = {BAG_KIND_##kind, BAG_##param_dtype, num_params, params_first},
    BAG_ROW_FORMATS(BAG_X)
#undef BAG_X
};

/* ---- sizes ----------------------------------------------------------------------------------- */

enum bag_row_kind bag_row_kind(const struct bag_table *table)
{
    if (table->row_format != BAG_ROWS_PLAIN)
        return bag_row_layouts[table->row_format].kind;
    switch (table->dtype) {
    case BAG_F32:
        return BAG_KIND_OF_F32;
    case BAG_F16:
        return BAG_KIND_OF_F16;
    case BAG_BF16:
        return BAG_KIND_OF_BF16;
    case BAG_F64:
        return BAG_KIND_OF_F64;
    default:
        return BAG_KIND_OF_INTEGERS;
    }
}

size_t bag_row_params_bytes(enum bag_row_format format)
{
    const struct bag_row_layout *layout = &bag_row_layouts[format];
    return layout->num_params * bag_dtypes[layout->param_dtype].bytes;
}

/* Bytes of a row but for scale and bias. */
static size_t codes_bytes(const struct bag_table *table)
{
    if (table->row_format == BAG_ROWS_PLAIN)
        return table->row_elements * bag_dtypes[table->dtype].bytes;
    if (bag_row_layouts[table->row_format].kind == BAG_KIND_OF_INT4)
        return table->row_elements / 2 + table->row_elements % 2;
    return table->row_elements;
}

size_t bag_row_bytes(const struct bag_table *table)
{
    return codes_bytes(table) + bag_row_params_bytes(table->row_format);
}

size_t bag_row_codes_at(const struct bag_table *table)
{
    bool params_first = bag_row_layouts[table->row_format].params_first;
    return params_first ? bag_row_params_bytes(table->row_format) : 0;
}

size_t bag_row_params_at(const struct bag_table *table)
{
    return bag_row_layouts[table->row_format].params_first ? 0 : codes_bytes(table);
}

size_t bag_row_elements(enum bag_row_format format, size_t row_bytes)
{
    size_t params = bag_row_params_bytes(format);
    size_t codes = row_bytes > params ? row_bytes - params : 0;
    return bag_row_layouts[format].kind == BAG_KIND_OF_INT4 ? 2 * codes : codes;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Scale (number 0) or bias (1) of a row. */
static float param(const struct bag_row_layout *layout, const char *params, size_t number)
{
    if (layout->param_dtype == BAG_F16)
        return bag_f32_from_f16(bag_load_u16(params, number));
    return bag_load_f32(params, number);
}

static void decode_plain(enum bag_dtype dtype, const char *from, size_t count, float *values)
{
    if (dtype == BAG_F32)
        memcpy(values, from, count * sizeof *values);
    else if (dtype == BAG_F16)
        for (size_t i = 0; i < count; i++)
            values[i] = bag_f32_from_f16(bag_load_u16(from, i));
    else
        for (size_t i = 0; i < count; i++)
            values[i] = bag_f32_from_bf16(bag_load_u16(from, i));
}

static void decode_int8(const char *codes, float scale, float bias, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = __builtin_fmaf((uint8_t)codes[i], scale, bias);
}

static void decode_int4(const char *codes, size_t column, float scale, float bias, size_t count,
                        float *values)
{
    for (size_t i = 0; i < count; i++) {
        unsigned pair = (uint8_t)codes[(column + i) / 2];
        unsigned code = (column + i) % 2 ? pair >> 4 : pair & 15;
        values[i] = __builtin_fmaf((float)code, scale, bias);
    }
}

static void decode_e4m3(const char *codes, float scale, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = bag_f32_from_e4m3((uint8_t)codes[i], scale * 256);
}

static void decode_e5m2(const char *codes, float scale, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = bag_f32_from_e5m2((uint8_t)codes[i]) * scale;
}

void bag_row_decode(const struct bag_table *table, int64_t row, size_t column, size_t count,
                    float *values)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    const char *from = (const char *)table->rows + (size_t)row * bag_row_bytes(table);
    const char *codes = from + bag_row_codes_at(table), *params = from + bag_row_params_at(table);
    float scale = layout->num_params > 0 ? param(layout, params, 0) : 1;
    float bias = layout->num_params > 1 ? param(layout, params, 1) : 0;
    switch (bag_row_kind(table)) {
    case BAG_KIND_OF_INT8:
        decode_int8(codes + column, scale, bias, count, values);
        break;
    case BAG_KIND_OF_INT4:
        decode_int4(codes, column, scale, bias, count, values);
        break;
    case BAG_KIND_OF_E4M3:
        decode_e4m3(codes + column, scale, count, values);
        break;
    case BAG_KIND_OF_E5M2:
        decode_e5m2(codes + column, scale, count, values);
        break;
    default:
        codes += column * bag_dtypes[table->dtype].bytes;
        decode_plain(table->dtype, codes, count, values);
        break;
    }
}

/* ---- results --------------------------------------------------------------------------------- */

static void encode_halves(const float *values, size_t count, enum bag_dtype dtype, char *out)
{
    uint16_t halves[RUN_COLUMNS] BAG_UNSET;
    if (dtype == BAG_F16)
        for (size_t i = 0; i < count; i++)
            halves[i] = bag_f16_from_f32(values[i]);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = bag_bf16_from_f32(values[i]);
    memcpy(out, halves, count * sizeof *halves);
}

void bag_elements_encode(const float *values, size_t count, enum bag_dtype dtype, void *out)
{
    if (dtype == BAG_F32) {
        memcpy(out, values, count * sizeof *values);
        return;
    }
    for (size_t done = 0; done < count; done += RUN_COLUMNS) {
        size_t now = count - done < RUN_COLUMNS ? count - done : RUN_COLUMNS;
        encode_halves(values + done, now, dtype, (char *)out + done * sizeof(uint16_t));
    }
}

/* ---- encoding rows --------------------------------------------------------------------------- */

/* FBGEMM's search: of 200 steps of the row's range, at most 16 % are given up. */
#define SEARCH_STEPS 200
#define SEARCH_KEEPS 168

/* Rounds of refinement: each starts only where the one before it gained. */
#define REFINE_ROUNDS 12

/* The errors of a row are summed in so many lanes, which become vectors. */
#define LANES 8

#define LARGEST_E4M3 448.0f
#define LARGEST_E5M2 57344.0f
#define SMALLEST_F16 0x1p-24f

struct row {
    const float *values;
    size_t count;
    float least, largest;
};

/* What a code q stands for: q * scale + bias, for q from 0 to `most`. */
struct grid {
    float scale, bias, most;
};

/* ---- the values ------------------------------------------------------------------------------ */

/* False where a value is a NaN or an infinity. */
static bool find_range(const float *values, size_t count, struct row *row)
{
    uint32_t largest_bits = 0;
    *row = (struct row){values, count, count ? values[0] : 0, count ? values[0] : 0};
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bag_f32_bits(values[i]) & 0x7fffffff;
        largest_bits = bits > largest_bits ? bits : largest_bits;
        row->least = values[i] < row->least ? values[i] : row->least;
        row->largest = values[i] > row->largest ? values[i] : row->largest;
    }
    return largest_bits < 0x7f800000;
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

static float squared_error(const struct grid *grid, float inverse, float value)
{
    float place = (value - grid->bias) * inverse;
    place = place > 0 ? place : 0;
    place = place < grid->most ? place : grid->most;
    float error = (float)(int32_t)(place + 0.5f) * grid->scale + grid->bias - value;
    return error * error;
}

/* The sum of squared errors of the row on a grid, whose scale is above zero. */
static float total_error(const struct row *row, const struct grid *grid)
{
    const struct grid copy = *grid;
    const float inverse = 1 / copy.scale;
    float sums[LANES] = {0}, total = 0;
    size_t i = 0;
    for (; i + LANES <= row->count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += squared_error(&copy, inverse, row->values[i + lane]);
    for (; i < row->count; i++)
        total += squared_error(&copy, inverse, row->values[i]);
    for (size_t lane = 0; lane < LANES; lane++)
        total += sums[lane];
    return total;
}

/* Takes `next` in place of `best` where its error is less. */
static bool take_better(const struct row *row, struct grid next, struct grid *best, float *error)
{
    if (!(next.scale > 0) || !is_finite(next.scale) || !is_finite(next.bias))
        return false;
    float next_error = total_error(row, &next);
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
        float raised_error = total_error(row, &raised);
        float lowered_error = total_error(row, &lowered);
        bool raise = raised_error < lowered_error;
        low += raise ? step : 0;
        high -= raise ? 0 : step;
        if ((raise ? raised_error : lowered_error) < *error) {
            *best = raise ? raised : lowered;
            *error = raise ? raised_error : lowered_error;
        }
    }
}

static unsigned code_of(const struct grid *grid, float value)
{
    double place = ((double)value - (double)grid->bias) / (double)grid->scale + 0.5;
    place = place > 0 ? place : 0;
    return (unsigned)(place < (double)grid->most ? place : (double)grid->most);
}

/* The scale and bias that suit the codes of `grid` best: a line through the values. */
static struct grid fitted(const struct row *row, const struct grid *grid)
{
    double codes = 0, values = 0, squares = 0, products = 0, count = (double)row->count;
    for (size_t i = 0; i < row->count; i++) {
        double code = code_of(grid, row->values[i]), value = (double)row->values[i];
        codes += code;
        values += value;
        squares += code * code;
        products += code * value;
    }
    double spread = squares * count - codes * codes;
    if (!(spread > 0))
        return *grid;
    double scale = (products * count - codes * values) / spread;
    double bias = (values - scale * codes) / count;
    return (struct grid){f16_rounded((float)scale), f16_rounded((float)bias), grid->most};
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
    float error = total_error(row, grid);
    /* Rows of nearly one value: what the bias lacks the scale can give. */
    take_better(row, grid_from(f16_below(row->least), row->largest, grid->most), grid, &error);
    if (searches)
        search(row, grid, &error);
    refine(row, grid, &error);
    return true;
}

static void write_bytes(const struct row *row, const struct grid *grid, unsigned char *out)
{
    for (size_t i = 0; i < row->count; i++)
        out[i] = (unsigned char)(grid->scale > 0 ? code_of(grid, row->values[i]) : 0);
}

static void write_pairs(const struct row *row, const struct grid *grid, unsigned char *out)
{
    for (size_t i = 0; i < row->count; i += 2) {
        unsigned low = code_of(grid, row->values[i]);
        unsigned high = i + 1 < row->count ? code_of(grid, row->values[i + 1]) : 0;
        out[i / 2] = (unsigned char)(low | high << 4);
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
    if (!(halves ? choose_grid_f16(&row, pairs, &grid) : choose_grid_f32(&row, &grid)))
        return false;
    if (pairs)
        write_pairs(&row, &grid, out + bag_row_codes_at(table));
    else
        write_bytes(&row, &grid, out + bag_row_codes_at(table));
    write_params(&grid, layout->param_dtype, out + bag_row_params_at(table));
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
        memcpy(out + bag_row_params_at(table), &scale, sizeof scale);
    }
    return write_f8(layout->kind, values, table->row_elements, scale,
                    out + bag_row_codes_at(table));
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
