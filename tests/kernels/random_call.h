/* Random calls of the kernels that favour edge cases: sizes around those of vectors and tiles, and
 * special numbers. Their memory is unaligned and ends at a page that cannot be read. Some tables
 * have sizes around the bounds at which kernels prefetch differently. A seed gives the same call
 * every time. */
#pragma once

#include "kernels/pool.h"
#include "kernels/pool_loop.h"
#include "kernels/random.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum {
    MAX_COLUMNS = 1000,
    MAX_GAP = 20,
    MAX_ROWS = 60,
    MAX_ENTRIES = 1400,
    MAX_BAGS = 300,
    LARGE_BYTES = 92 << 20
};

static const size_t dims[] = {1,   2,   3,   4,   5,   6,   7,   8,   9,   15,  16,  17,  31,
                              32,  33,  47,  48,  63,  64,  65,  80,  87,  96,  100, 104, 112,
                              113, 127, 128, 129, 144, 192, 200, 256, 257, 500, 512, 1000};
static const size_t bag_counts[] = {0, 1, 2, 7, 300};
static const size_t bag_lengths[] = {0, 1, 1, 2, 3, 7, 40, 300};

/* ---- random choices -------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t draw(void)
{
    return bag_random(&random_state);
}

static size_t below(size_t limit)
{
    return (size_t)(draw() % limit);
}

static bool one_in(size_t n)
{
    return below(n) == 0;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Bytes between pages that nothing may read. */
struct fenced {
    unsigned char *bytes;
    size_t count;
};

static struct fenced row_memory, index_memory, weight_memory;
static int64_t offsets[MAX_BAGS + 1];

/* LARGE_BYTES whose every word is a finite number of every type. */
static struct fenced large_memory;

/* Returns a place for `bytes` bytes at the end of the memory or near its beginning. */
static unsigned char *place_bytes(const struct fenced *memory, size_t bytes)
{
    return memory->bytes + (one_in(2) ? memory->count - bytes : below(9));
}

struct call {
    struct bag_table table;
    struct bag_rules rules;
    struct bag_tensor indices, offsets, weights;
    bool is_weighted;
    bool is_plain; /* every entry counts, and rows are prefetched: what the fastest loops take */
    size_t num_bags;
    size_t out_shift; /* distance of the result from alignment */
    size_t gap;       /* elements between the result's bags */
    struct bag_range range;
};

static const uint32_t special_f32[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                                       0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0xff7fffff,
                                       0x3f800000, 0xbf800000, 0x477fe000, 0x38800000, 0x33000000,
                                       0x7f800001, 0x7fffffff, 0xffffffff};

/* A number near 1 of the element's type, or a special one. */
static void fill_f32(unsigned char *at, bool special)
{
    uint32_t bits = 0x3f000000 + (uint32_t)below(0x01000000) + ((uint32_t)below(2) << 31);
    if (special)
        bits = special_f32[below(COUNT_OF(special_f32))];
    memcpy(at, &bits, sizeof bits);
}

static void fill_f64(unsigned char *at, bool special)
{
    uint64_t bits = UINT64_C(0x3fe0000000000000) + (draw() >> 11) % (UINT64_C(1) << 53);
    if (special)
        bits = (uint64_t)special_f32[below(COUNT_OF(special_f32))] << 32 | below(2);
    memcpy(at, &bits, sizeof bits);
}

static void fill_f16(unsigned char *at, bool special)
{
    uint16_t bits = special ? (uint16_t)draw() : (uint16_t)(0x3800 + below(0x1000));
    bits |= (uint16_t)(below(2) << 15);
    memcpy(at, &bits, sizeof bits);
}

static void fill_bf16(unsigned char *at, bool special)
{
    uint16_t bits = special ? (uint16_t)draw() : (uint16_t)(0x3f00 + below(0x100));
    bits |= (uint16_t)(below(2) << 15);
    memcpy(at, &bits, sizeof bits);
}

static void fill_element(unsigned char *at, enum bag_dtype dtype, bool special)
{
    if (dtype == BAG_F32)
        fill_f32(at, special);
    else if (dtype == BAG_F64)
        fill_f64(at, special);
    else if (dtype == BAG_F16)
        fill_f16(at, special);
    else if (dtype == BAG_BF16)
        fill_bf16(at, special);
    else
        for (size_t i = 0; i < bag_dtypes[dtype].bytes; i++)
            at[i] = (unsigned char)draw();
}

static void fill_plain(const struct bag_table *table, unsigned char *rows, bool special)
{
    size_t bytes = bag_dtypes[table->dtype].bytes;
    size_t count = (size_t)table->num_rows * table->row_elements;
    for (size_t i = 0; i < count; i++)
        fill_element(rows + i * bytes, table->dtype, special && one_in(30));
}

/* Random codes; scale and bias are numbers. */
static void fill_quantised(const struct bag_table *table, unsigned char *rows, bool special)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    size_t row_bytes = bag_row_bytes(table);
    for (size_t i = 0; i < (size_t)table->num_rows * row_bytes; i++)
        rows[i] = (unsigned char)draw();
    /* Without special values f8 has no NaN and no infinity either. */
    if (!special && (layout->kind == BAG_KIND_OF_E4M3 || layout->kind == BAG_KIND_OF_E5M2))
        for (size_t i = 0; i < (size_t)table->num_rows * row_bytes; i++)
            rows[i] &= 0xbf;
    for (size_t row = 0; row < (size_t)table->num_rows; row++) {
        unsigned char *params = rows + row * row_bytes + bag_row_places(table).params_at;
        for (size_t i = 0; i < layout->num_params; i++)
            fill_element(params + i * bag_dtypes[layout->param_dtype].bytes, layout->param_dtype,
                         special && one_in(10));
    }
}

static void fill_rows(struct bag_table *table, unsigned char *rows, bool special)
{
    table->rows = rows;
    if (table->row_format == BAG_ROWS_PLAIN)
        fill_plain(table, rows, special);
    else
        fill_quantised(table, rows, special);
}

static void choose_rows(struct bag_table *table)
{
    bool special = one_in(3);
    table->num_rows = 1 + (int64_t)below(MAX_ROWS);
    unsigned char *rows = place_bytes(&row_memory, (size_t)table->num_rows * bag_row_bytes(table));
    fill_rows(table, rows, special);
}

/* A table of one of the sizes at which rows are prefetched in another way, around the bounds. */
static void choose_large_rows(struct call *call)
{
    static const size_t sizes[] = {20 << 20, 30 << 20, 3 << 20, 90 << 20, 200 << 10, 400 << 10};
    struct bag_table *table = &call->table;
    size_t size = sizes[below(call->is_plain ? 2 : COUNT_OF(sizes))];
    table->num_rows = (int64_t)(size / bag_row_bytes(table));
    table->rows = place_bytes(&large_memory, (size_t)table->num_rows * bag_row_bytes(table));
}

static void choose_table(struct call *call)
{
    static const enum bag_dtype dtypes[] = {BAG_F32, BAG_F32, BAG_F16, BAG_BF16, BAG_F64,
                                            BAG_F32, BAG_I8,  BAG_U16, BAG_I32,  BAG_U64};
    struct bag_table *table = &call->table;
    table->dtype = dtypes[below(COUNT_OF(dtypes))];
    table->row_format = BAG_ROWS_PLAIN;
    if (table->dtype == BAG_F32 && !one_in(3))
        table->row_format = (enum bag_row_format)below(BAG_ROW_FORMAT_COUNT);
    table->row_elements = call->is_plain ? 16 * (1 + below(16)) : dims[below(COUNT_OF(dims))];
    if (call->is_plain || one_in(4))
        choose_large_rows(call);
    else
        choose_rows(table);
}

static bool converts(enum bag_dtype dtype)
{
    return dtype == BAG_F16 || dtype == BAG_BF16 || dtype == BAG_F32;
}

static void choose_rules(struct call *call)
{
    static const enum bag_dtype outputs[] = {BAG_F16, BAG_BF16, BAG_F32};
    enum bag_dtype dtype = call->table.dtype;
    bool is_float = bag_dtypes[dtype].kind == BAG_KIND_FLOAT;
    struct bag_rules *rules = &call->rules;
    memset(rules, 0, sizeof *rules);
    rules->reduction = (enum bag_reduction)below(is_float ? 4 : 3);
    rules->output_dtype = dtype;
    if (converts(dtype) && one_in(2))
        rules->output_dtype = outputs[below(COUNT_OF(outputs))];
    rules->default_index = one_in(2) ? -1 : (int64_t)below((size_t)call->table.num_rows);
    rules->has_padding_idx = one_in(3);
    rules->padding_idx = (int64_t)below((size_t)call->table.num_rows);
    rules->weighted_mean = true;
    rules->prune_invalid = one_in(4);
    rules->missing = one_in(4) ? BAG_MISSING_SKIP : BAG_MISSING_ERROR;
    if (call->is_plain) {
        rules->reduction = one_in(2) ? BAG_MEAN : BAG_SUM;
        rules->has_padding_idx = rules->prune_invalid = false;
        rules->missing = BAG_MISSING_ERROR;
    }
    if (!call->is_plain && one_in(6))
        rules->reduction = BAG_NONE;
    call->is_weighted = rules->reduction != BAG_MAX && rules->reduction != BAG_NONE && one_in(2);
}

/* Bags of any length, or most of the same, until the entries are used up; the first may begin after
 * entry 0. */
static size_t choose_offsets(struct call *call)
{
    size_t entries = one_in(4) ? below(3) : 0;
    size_t same = one_in(2) ? bag_lengths[below(COUNT_OF(bag_lengths))] : SIZE_MAX;
    call->num_bags = bag_counts[below(COUNT_OF(bag_counts))];
    for (size_t bag = 0; bag < call->num_bags; bag++) {
        bool differs = same == SIZE_MAX || one_in(40);
        size_t length = differs ? bag_lengths[below(COUNT_OF(bag_lengths))] : same;
        offsets[bag] = (int64_t)entries;
        if (entries + length <= MAX_ENTRIES)
            entries += length;
    }
    call->offsets = (struct bag_tensor){.dtype = BAG_I64,
                                        .rank = 1,
                                        .shape = {(int64_t)call->num_bags},
                                        .count = call->num_bags,
                                        .data = offsets};
    return entries;
}

/* Makes most bags equal to the previous bag if both have the same length. */
static void repeat_bags(const struct call *call, unsigned char *ids, size_t id_bytes,
                        unsigned char *weights, size_t weight_bytes)
{
    for (size_t bag = 1; bag + 1 < call->num_bags; bag++) {
        size_t first = (size_t)offsets[bag], count = (size_t)offsets[bag + 1] - first;
        if (count != first - (size_t)offsets[bag - 1] || one_in(5))
            continue;
        memmove(ids + first * id_bytes, ids + (first - count) * id_bytes, count * id_bytes);
        if (!one_in(5))
            memmove(weights + first * weight_bytes, weights + (first - count) * weight_bytes,
                    count * weight_bytes);
    }
}

static void choose_entries(struct call *call, size_t count)
{
    bool wide = one_in(2), special = one_in(4);
    enum bag_dtype weights_dtype = call->table.dtype;
    if (bag_dtypes[weights_dtype].kind == BAG_KIND_FLOAT && one_in(3))
        weights_dtype = BAG_F32;
    size_t weight_bytes = bag_dtypes[weights_dtype].bytes;
    unsigned char *ids = place_bytes(&index_memory, count * (wide ? 8 : 4));
    unsigned char *weights = place_bytes(&weight_memory, count * weight_bytes);
    for (size_t i = 0; i < count; i++) {
        int64_t id = call->table.num_rows - 1;
        if (!one_in(20))
            id = (int64_t)below((size_t)call->table.num_rows);
        if (call->rules.missing == BAG_MISSING_SKIP && one_in(6))
            id = one_in(2) ? -1 - (int64_t)below(1000) : INT32_MAX - (int64_t)below(1000);
        int32_t narrow = (int32_t)id;
        if (wide)
            memcpy(ids + i * sizeof id, &id, sizeof id);
        else
            memcpy(ids + i * sizeof narrow, &narrow, sizeof narrow);
        fill_element(weights + i * weight_bytes, weights_dtype, special && one_in(10));
    }
    if (one_in(3))
        repeat_bags(call, ids, wide ? 8 : 4, weights, weight_bytes);
    call->indices = (struct bag_tensor){.dtype = wide ? BAG_I64 : BAG_I32,
                                        .rank = 1,
                                        .shape = {(int64_t)count},
                                        .count = count,
                                        .data = ids};
    call->weights = call->indices;
    call->weights.dtype = weights_dtype;
    call->weights.data = weights;
}

/* Every index is a bag, of as many as there is memory for. */
static void make_rows(struct call *call)
{
    size_t count = call->indices.count < MAX_BAGS ? call->indices.count : MAX_BAGS;
    call->indices.count = call->num_bags = count;
    call->indices.shape[0] = (int64_t)count;
    call->offsets.count = 0;
    call->offsets.shape[0] = 0;
}

static void choose_range(struct call *call)
{
    size_t columns = call->table.row_elements;
    call->range = (struct bag_range){0, call->num_bags, 0, columns};
    if (one_in(2))
        return;
    call->range.first_bag = below(call->num_bags + 1);
    call->range.end_bag = call->range.first_bag + below(call->num_bags - call->range.first_bag + 1);
    call->range.first_column = below(columns);
    call->range.end_column =
        call->range.first_column + 1 + below(columns - call->range.first_column);
}

/* A table may say that it has more rows than there are: which they are decides how rows are fetched
 * ahead, and whether ids fit in four bytes. */
static void claim_rows(struct call *call)
{
    static const int64_t claims[] = {30000, 2000000, 1000000000, INT64_C(1) << 33};
    int64_t claimed = claims[below(COUNT_OF(claims))];
    if (one_in(2) && call->rules.missing != BAG_MISSING_SKIP && call->table.num_rows <= MAX_ROWS)
        call->table.num_rows = claimed;
}

static bool fence(struct fenced *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    memory->count = (bytes + page - 1) / page * page;
    unsigned char *at =
        mmap(NULL, memory->count + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory->bytes = at + page;
    return at != MAP_FAILED && mprotect(memory->bytes, memory->count, PROT_READ | PROT_WRITE) == 0;
}

static bool make_memory(void)
{
    if (!fence(&row_memory, MAX_ROWS * MAX_COLUMNS * 8 + 64) ||
        !fence(&index_memory, MAX_ENTRIES * 8 + 8) || !fence(&weight_memory, MAX_ENTRIES * 8 + 8) ||
        !fence(&large_memory, LARGE_BYTES))
        return false;
    for (size_t i = 0; i < large_memory.count; i += sizeof(uint64_t)) {
        uint64_t word = UINT64_C(0x3d003c003d003c00) | (draw() & UINT64_C(0x80ff80ff80ff80ff));
        memcpy(large_memory.bytes + i, &word, sizeof word);
    }
    return true;
}

static void choose_call(uint64_t seed, struct call *call)
{
    random_state = seed * UINT64_C(0x2545f4914f6cdd1d);
    call->is_plain = one_in(2);
    choose_table(call);
    choose_rules(call);
    choose_entries(call, choose_offsets(call));
    if (call->rules.reduction == BAG_NONE)
        make_rows(call);
    choose_range(call);
    call->out_shift = one_in(2) ? 0 : below(8);
    call->gap = one_in(2) ? 0 : below(MAX_GAP + 1);
    claim_rows(call);
}
