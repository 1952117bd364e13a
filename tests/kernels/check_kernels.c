/* Every kernel of every usable instruction set against the plain C one, bit for bit, over random
 * calls that lean toward the edges.
 *
 *   check_kernels [SEED [CALLS]]   all of them, or those from SEED on
 *
 * A failure prints the call and its seed; `check_kernels SEED 1` repeats it. NaNs are equal
 * whatever their payload. */
#include "kernels/pool.h"
#include "kernels/pool_entries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

enum {
    MAX_COLUMNS = 1000,
    MAX_GAP = 20,
    MAX_ROWS = 60,
    MAX_ENTRIES = 1400,
    MAX_BAGS = 300,
    AROUND = 64,
    LARGE_BYTES = 92 << 20
};

static const size_t dims[] = {1,   2,   3,   4,   5,   6,   7,   8,   9,   15,  16,  17,
                              31,  32,  33,  47,  48,  63,  64,  65,  80,  96,  100, 112,
                              113, 127, 128, 129, 144, 192, 200, 256, 257, 500, 512, 1000};
static const size_t bag_counts[] = {0, 1, 2, 7, 300};
static const size_t bag_lengths[] = {0, 1, 1, 2, 3, 7, 40, 300};

/* ---- random choices -------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t draw(void)
{
    random_state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = random_state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
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

static unsigned char row_memory[MAX_ROWS * MAX_COLUMNS * 8 + 64];
static unsigned char index_memory[MAX_ENTRIES * 8 + 8], weight_memory[MAX_ENTRIES * 8 + 8];
static int64_t offsets[MAX_BAGS + 1];
static unsigned char wanted[MAX_BAGS * (MAX_COLUMNS + MAX_GAP) * 8 + 2 * AROUND + 8];
static unsigned char got[sizeof wanted];

/* LARGE_BYTES whose every word is a finite number of every type. */
static unsigned char *large_memory;

struct call {
    struct bag_table table;
    struct bag_rules rules;
    struct bag_tensor indices, offsets, weights;
    bool is_weighted;
    bool is_plain; /* every entry counts, and rows are prefetched: what the fastest loops take */
    size_t num_bags;
    size_t out_shift; /* of the result from alignment */
    size_t gap;       /* elements between the result's bags */
    struct bag_range range;
};

static const uint32_t special_f32[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                                       0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0xff7fffff,
                                       0x3f800000, 0xbf800000, 0x477fe000, 0x38800000, 0x33000000};

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

static void choose_rows(struct bag_table *table)
{
    unsigned char *rows = row_memory + (one_in(2) ? 0 : below(64));
    bool special = one_in(3);
    table->rows = rows;
    table->num_rows = 1 + (int64_t)below(MAX_ROWS);
    if (table->row_format == BAG_ROWS_PLAIN)
        fill_plain(table, rows, special);
    else
        fill_quantised(table, rows, special);
}

/* A table of one of the sizes at which rows are prefetched in another way, around the bounds. */
static void choose_large_rows(struct call *call)
{
    static const size_t sizes[] = {20 << 20, 30 << 20, 3 << 20, 90 << 20, 200 << 10, 400 << 10};
    struct bag_table *table = &call->table;
    size_t size = sizes[below(call->is_plain ? 2 : COUNT_OF(sizes))];
    table->rows = large_memory + (one_in(2) ? 0 : below(64));
    table->num_rows = (int64_t)(size / bag_row_bytes(table));
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
    call->is_weighted = rules->reduction != BAG_MAX && one_in(2);
}

/* Bags until the entries are used up; the first may begin after entry 0. */
static size_t choose_offsets(struct call *call)
{
    size_t entries = one_in(4) ? below(3) : 0;
    size_t same = one_in(2) ? bag_lengths[below(COUNT_OF(bag_lengths))] : SIZE_MAX;
    call->num_bags = bag_counts[below(COUNT_OF(bag_counts))];
    for (size_t bag = 0; bag < call->num_bags; bag++) {
        size_t length = same == SIZE_MAX ? bag_lengths[below(COUNT_OF(bag_lengths))] : same;
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

static void choose_entries(struct call *call, size_t count)
{
    unsigned char *ids = index_memory + below(8), *weights = weight_memory + below(8);
    bool wide = one_in(2), special = one_in(4);
    enum bag_dtype weights_dtype = call->table.dtype;
    if (bag_dtypes[weights_dtype].kind == BAG_KIND_FLOAT && one_in(3))
        weights_dtype = BAG_F32;
    size_t weight_bytes = bag_dtypes[weights_dtype].bytes;
    for (size_t i = 0; i < count; i++) {
        int64_t id = (int64_t)below((size_t)call->table.num_rows);
        if (call->rules.missing == BAG_MISSING_SKIP && one_in(6))
            id = one_in(2) ? -1 - (int64_t)below(1000) : INT32_MAX - (int64_t)below(1000);
        int32_t narrow = (int32_t)id;
        if (wide)
            memcpy(ids + i * sizeof id, &id, sizeof id);
        else
            memcpy(ids + i * sizeof narrow, &narrow, sizeof narrow);
        fill_element(weights + i * weight_bytes, weights_dtype, special && one_in(10));
    }
    call->indices = (struct bag_tensor){.dtype = wide ? BAG_I64 : BAG_I32,
                                        .rank = 1,
                                        .shape = {(int64_t)count},
                                        .count = count,
                                        .data = ids};
    call->weights = call->indices;
    call->weights.dtype = weights_dtype;
    call->weights.data = weights;
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

static bool fill_large_memory(void)
{
    void *memory =
        mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    uint64_t *words = memory;
    for (size_t i = 0; i < LARGE_BYTES / sizeof *words; i++)
        words[i] = UINT64_C(0x3d003c003d003c00) | (draw() & UINT64_C(0x80ff80ff80ff80ff));
    large_memory = memory;
    return true;
}

static void choose_call(uint64_t seed, struct call *call)
{
    random_state = seed * UINT64_C(0x2545f4914f6cdd1d);
    call->is_plain = one_in(2);
    choose_table(call);
    choose_rules(call);
    choose_entries(call, choose_offsets(call));
    choose_range(call);
    call->out_shift = one_in(2) ? 0 : below(8);
    call->gap = one_in(2) ? 0 : below(MAX_GAP + 1);
    claim_rows(call);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static void pool_with(enum bag_isa isa, const struct bag_pool_args *args, const struct call *call,
                      unsigned char *out)
{
    memset(out, 0xa5, sizeof wanted);
    bag_isa_use(isa);
    bag_pool_run(args, call->range, out + AROUND + call->out_shift);
}

static bool is_nan(const unsigned char *at, enum bag_dtype dtype)
{
    uint64_t bits = 0;
    memcpy(&bits, at, bag_dtypes[dtype].bytes);
    switch (dtype) {
    case BAG_F16:
        return (bits & 0x7fff) > 0x7c00;
    case BAG_BF16:
        return (bits & 0x7fff) > 0x7f80;
    case BAG_F32:
        return (bits & 0x7fffffff) > 0x7f800000;
    case BAG_F64:
        return (bits & INT64_MAX) > UINT64_C(0x7ff0000000000000);
    default:
        return false;
    }
}

/* The first byte that differs, or SIZE_MAX. What stands around the result is compared, too. */
static size_t first_difference(const struct bag_pool_args *args, const struct call *call)
{
    size_t bytes = bag_dtypes[args->output_dtype].bytes, start = AROUND + call->out_shift;
    if (memcmp(wanted, got, sizeof wanted) == 0)
        return SIZE_MAX;
    for (size_t at = 0; at < sizeof wanted; at++) {
        if (wanted[at] == got[at])
            continue;
        size_t element = at < start ? at : start + (at - start) / bytes * bytes;
        if (at < start || !is_nan(wanted + element, args->output_dtype) ||
            !is_nan(got + element, args->output_dtype))
            return at;
    }
    return SIZE_MAX;
}

static void print_call(uint64_t seed, enum bag_isa isa, const struct call *call, size_t at)
{
    printf("FAILED seed %llu isa %s: %lld %s rows of %zu %s, %s into %s%s, %zu bags, %zu %s ids, "
           "bags [%zu, %zu), columns [%zu, %zu), byte %zd of the result is %02x instead of %02x\n",
           (unsigned long long)seed, bag_isa_names[isa], (long long)call->table.num_rows,
           bag_row_format_names[call->table.row_format], call->table.row_elements,
           bag_dtypes[call->table.dtype].name, bag_reduction_names[call->rules.reduction],
           bag_dtypes[call->rules.output_dtype].name, call->is_weighted ? ", weighted" : "",
           call->num_bags, call->indices.count, bag_dtypes[call->indices.dtype].name,
           call->range.first_bag, call->range.end_bag, call->range.first_column,
           call->range.end_column, (ssize_t)at - (ssize_t)(AROUND + call->out_shift), got[at],
           wanted[at]);
}

/* How many instruction sets gave other bits than plain C. */
static int check(uint64_t seed)
{
    static struct call call;
    struct bag_fault fault;
    struct bag_pool_args args;
    choose_call(seed, &call);
    struct bag_inputs inputs = {
        {[BAG_INDICES] = &call.indices,
         [BAG_OFFSETS] = &call.offsets,
         [BAG_PER_SAMPLE_WEIGHTS] = call.is_weighted ? &call.weights : NULL}};
    if (bag_rules_check(&call.table, &call.rules, &fault) != BAG_STATUS_OK ||
        bag_pool_check(&call.table, &call.rules, &inputs, SIZE_MAX, &args, &fault) !=
            BAG_STATUS_OK) {
        printf("FAILED seed %llu: the call is rejected: %s\n", (unsigned long long)seed,
               bag_status_keywords[fault.status]);
        return 1;
    }
    int failed = 0;
    args.bag_stride += call.gap * bag_dtypes[args.output_dtype].bytes;
    pool_with(BAG_ISA_GENERIC, &args, &call, wanted);
    for (int isa = BAG_ISA_GENERIC + 1; isa < BAG_ISA_COUNT; isa++) {
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        pool_with((enum bag_isa)isa, &args, &call, got);
        size_t at = first_difference(&args, &call);
        if (at != SIZE_MAX) {
            print_call(seed, (enum bag_isa)isa, &call, at);
            failed++;
        }
    }
    return failed;
}

/* ---- a table of more rows than 32 bits can number ----------------------------------------------
 */

/* Rows of e4m3: 1 in row 5, and 2 in the row whose number has the same lower 32 bits. */
static unsigned char *many_rows(size_t row_bytes, int64_t num_rows)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    unsigned char *rows =
        mmap(NULL, row_bytes * (size_t)num_rows, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (rows == MAP_FAILED)
        return NULL;
    memset(rows + 5 * row_bytes, 0x38, row_bytes);
    memset(rows + ((UINT64_C(1) << 32) + 5) * row_bytes, 0x40, row_bytes);
    return rows;
}

/* How many instruction sets take one row for the other. */
static int check_many_rows(void)
{
    enum { COLUMNS = 16 };
    static const int64_t ids[] = {(INT64_C(1) << 32) + 5, 5, (INT64_C(1) << 32) + 5};
    static const int64_t starts[] = {0, 1};
    const int64_t num_rows = (INT64_C(1) << 32) + 100;
    int failed = 0;
    unsigned char *rows = many_rows(COLUMNS, num_rows);
    if (!rows) {
        printf("skipped: no %lld bytes of address space\n", (long long)num_rows * COLUMNS);
        return 0;
    }
    struct bag_pool_args args = {.table = {.rows = rows,
                                           .dtype = BAG_F32,
                                           .num_rows = num_rows,
                                           .row_elements = COLUMNS,
                                           .row_format = BAG_ROWS_F8_E4M3},
                                 .form = BAG_FORM_OFFSETS,
                                 .output_dtype = BAG_F32,
                                 .indices = {ids, COUNT_OF(ids), true},
                                 .groups = {starts, COUNT_OF(starts), true},
                                 .num_bags = COUNT_OF(starts),
                                 .bag_stride = COLUMNS * sizeof(float),
                                 .default_row = -1,
                                 .padding_row = -1};
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        float out[2 * COLUMNS] = {0};
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        bag_isa_use((enum bag_isa)isa);
        bag_pool_run(&args, bag_range_all(&args), out);
        for (size_t i = 0; i < 2 * COLUMNS; i++)
            if (out[i] != (i < COLUMNS ? 2 : 3)) {
                printf("FAILED many rows, %s: %g at %zu\n", bag_isa_names[isa], (double)out[i], i);
                failed++;
                break;
            }
    }
    munmap(rows, COLUMNS * (size_t)num_rows);
    return failed;
}

/* ---- the check of ids ---------------------------------------------------------------------------
 */

enum { MAX_IDS = 70 };

/* Ids in order, all within the bounds, but for one of `bad` at `position`. */
static void place_ids(struct bag_ids *ids, unsigned char *memory, int64_t step, size_t position,
                      int64_t bad)
{
    size_t bytes = ids->wide ? sizeof(int64_t) : sizeof(int32_t);
    ids->data = memory;
    for (size_t i = 0; i < ids->count; i++) {
        int64_t id = i == position ? bad : (int64_t)i * step;
        int32_t narrow = (int32_t)id;
        memcpy(memory + i * bytes, ids->wide ? (void *)&id : (void *)&narrow, bytes);
    }
}

/* Ids of that width that are out of bounds. */
static size_t bad_ids(const struct bag_ids *ids, const struct bag_id_bounds *bounds, int64_t *bad)
{
    size_t count = 0;
    int64_t least = ids->wide ? INT64_MIN : INT32_MIN, most = ids->wide ? INT64_MAX : INT32_MAX;
    if (!bounds->any_negative) {
        bad[count++] = -1;
        bad[count++] = least;
        bad[count++] = least + 1;
    }
    if (bounds->high < most) {
        bad[count++] = bounds->high + 1;
        bad[count++] = most;
    }
    return count;
}

static bool finds(const struct bag_ids *ids, const struct bag_id_bounds *bounds, size_t expected)
{
    size_t found = bag_ids_first_bad(ids, bounds);
    if (found == expected)
        return true;
    printf("FAILED ids, %s: position %zu instead of %zu of %zu, int%d, %s%s, up to %lld\n",
           bag_isa_names[bag_isa_used()], found, expected, ids->count, ids->wide ? 64 : 32,
           bounds->ascending ? "ascending" : "in any order",
           bounds->any_negative ? " or negative" : "", (long long)bounds->high);
    return false;
}

/* One bad id at each position of arrays of each length, and none. */
static int check_ids_of(struct bag_ids *ids, const struct bag_id_bounds *bounds)
{
    static unsigned char memory[MAX_IDS * 8 + 8];
    int64_t bad[5], step = bounds->high >= MAX_IDS ? bounds->high / MAX_IDS : 0;
    size_t num_bad = bad_ids(ids, bounds, bad);
    unsigned char *at = memory + below(8);
    if (!ids->wide && step > INT32_MAX / MAX_IDS)
        step = INT32_MAX / MAX_IDS;
    int failed = 0;
    for (ids->count = 0; ids->count <= MAX_IDS; ids->count++) {
        place_ids(ids, at, step, SIZE_MAX, 0);
        failed += !finds(ids, bounds, ids->count);
        for (size_t position = 0; position < ids->count; position++) {
            for (size_t i = 0; i < num_bad; i++) {
                place_ids(ids, at, step, position, bad[i]);
                failed += !finds(ids, bounds, position);
            }
            /* Of ids that must ascend the one after is wrong, if it is less. */
            place_ids(ids, at, step, position, bounds->high);
            bool descends = bounds->ascending && position + 1 < ids->count &&
                            (int64_t)(position + 1) * step < bounds->high;
            failed += !finds(ids, bounds, descends ? position + 1 : ids->count);
        }
    }
    return failed;
}

static int check_ids(void)
{
    static const int64_t highs[] = {0, 5, 1000, INT32_MAX - 1, INT32_MAX, INT64_MAX - 1, INT64_MAX};
    int failed = 0;
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        bag_isa_use((enum bag_isa)isa);
        for (size_t i = 0; i < COUNT_OF(highs); i++)
            for (int kind = 0; kind < 6; kind++) {
                struct bag_ids ids = {.wide = kind % 2};
                struct bag_id_bounds bounds = {
                    .high = highs[i], .ascending = kind / 2 == 1, .any_negative = kind / 2 == 2};
                if (ids.wide || highs[i] <= INT32_MAX)
                    failed += check_ids_of(&ids, &bounds);
            }
    }
    return failed;
}

int main(int argc, char *argv[])
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t calls = argc > 2 ? strtoull(argv[2], NULL, 10) : 6000;
    int failed = 0;
    printf("instruction sets:");
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++)
        if (bag_isa_usable((enum bag_isa)isa))
            printf(" %s", bag_isa_names[isa]);
    printf("\n");
    if (!fill_large_memory()) {
        printf("FAILED: no memory of %d bytes\n", LARGE_BYTES);
        return 1;
    }
    failed += check_many_rows();
    failed += check_ids();
    for (uint64_t i = 0; i < calls && failed < 10; i++)
        failed += check(seed + i);
    printf("%llu calls from seed %llu, %d differences\n", (unsigned long long)calls,
           (unsigned long long)seed, failed);
    return failed == 0 ? 0 : 1;
}
