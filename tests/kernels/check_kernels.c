/* Every kernel of every usable instruction set against the plain C one, bit for bit, over random
 * calls that lean toward the edges.
 *
 *   check_kernels [SEED [CALLS]]   all of them, or those from SEED on
 *
 * A failure prints the call and its seed; `check_kernels SEED 1` repeats it. NaNs are equal
 * whatever their payload. */
#include "random_call.h"

#include <stdio.h>

/* Bytes in front of a result and behind it that must stay as they are. */
enum { AROUND = 64 };

static unsigned char wanted[MAX_BAGS * (MAX_COLUMNS + MAX_GAP) * 8 + 2 * AROUND + 8];
static unsigned char got[sizeof wanted];

/* ---- comparison ------------------------------------------------------------------------------ */

static void pool(const struct bag_pool_args *args, const struct call *call, unsigned char *out)
{
    memset(out, 0xa5, sizeof wanted);
    bag_pool_run(args, call->range, out + AROUND + call->out_shift);
}

/* Bag by bag, with the plain C kernels: the definition of every result. */
static void pool_singly(const struct bag_pool_args *args, const struct call *call,
                        unsigned char *out)
{
    struct bag_range one = call->range;
    memset(out, 0xa5, sizeof wanted);
    for (size_t bag = call->range.first_bag; bag < call->range.end_bag; bag++) {
        one.first_bag = bag;
        one.end_bag = bag + 1;
        bag_pool_run(args, one, out + AROUND + call->out_shift);
    }
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

/* The first byte that differs, or SIZE_MAX. The bytes around the result are compared, too. */
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

/* A plan has the kernels of the instruction set that is in use when it is made. */
static enum bag_status check_call(enum bag_isa isa, const struct call *call,
                                  const struct bag_inputs *inputs, struct bag_pool_args *args,
                                  struct bag_fault *fault)
{
    static struct bag_pool_plan plan; /* which the call goes on pointing to */
    if (bag_rules_check(&call->table, &call->rules, fault) != BAG_STATUS_OK)
        return fault->status;
    bag_isa_use(isa);
    bag_pool_prepare(&call->table, &call->rules, &plan);
    enum bag_status status = bag_pool_check(&plan, inputs, SIZE_MAX, args, fault);
    if (status == BAG_STATUS_OK)
        args->bag_stride += call->gap * bag_dtypes[args->output_dtype].bytes;
    return status;
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
    if (check_call(BAG_ISA_GENERIC, &call, &inputs, &args, &fault) != BAG_STATUS_OK) {
        printf("FAILED seed %llu: the call is rejected: %s\n", (unsigned long long)seed,
               bag_status_keywords[fault.status]);
        return 1;
    }
    int failed = 0;
    pool_singly(&args, &call, wanted);
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        if (check_call((enum bag_isa)isa, &call, &inputs, &args, &fault) != BAG_STATUS_OK) {
            failed++;
            continue;
        }
        args.streams = seed % 4 == 0;
        pool(&args, &call, got);
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
    const struct bag_table table = {.rows = rows,
                                    .dtype = BAG_F32,
                                    .num_rows = num_rows,
                                    .row_elements = COLUMNS,
                                    .row_format = BAG_ROWS_F8_E4M3};
    const struct bag_rules rules = {.output_dtype = BAG_F32, .default_index = -1};
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        float out[2 * COLUMNS] = {0};
        struct bag_pool_plan plan;
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        bag_isa_use((enum bag_isa)isa);
        bag_pool_prepare(&table, &rules, &plan);
        struct bag_pool_args args = plan.args;
        args.form = BAG_FORM_OFFSETS;
        args.indices = (struct bag_ids){ids, COUNT_OF(ids), true};
        args.groups = (struct bag_ids){starts, COUNT_OF(starts), true};
        args.num_bags = COUNT_OF(starts);
        args.bag_stride = COLUMNS * sizeof(float);
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
    size_t found = bag_ids_valid(ids, bounds) ? ids->count : bag_ids_first_bad(ids, bounds);
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
    if (!make_memory()) {
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
