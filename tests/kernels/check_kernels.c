/* Every kernel of every usable instruction set against the plain C one, bit for bit, over random
 * calls that lean toward the edges.
 *
 *   check_kernels [SEED [CALLS]]   all of them, or those from SEED on, and 20 times as many small
 *
 * A failure prints the call and its seed; `check_kernels SEED 1` repeats it. NaNs are equal
 * whatever their payload. */
#include "small_call.h"

#include <signal.h>
#include <stdio.h>

/* Bytes in front of a result and behind it that must stay as they are; and small calls for each of
 * the others. */
enum { AROUND = 64, SMALL_CALLS = 20 };

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
    static struct bag_pool_plan plan; /* static, because the call keeps a pointer to it */
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

/* ---- a table of more rows than 32 bits can number -------------------------------------------- */

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

/* ---- the check of ids ------------------------------------------------------------------------ */

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
            /* If ids must ascend, the next id is the wrong one if it is less. */
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

/* ---- small calls ----------------------------------------------------------------------------- */

enum { SMALL_RESULT = SMALL_BAGS * (SMALL_COLUMNS * 24 + 16) + 2 * AROUND };

/* Bag by bag as plain C does it; where a bag begins is what the client says. */
static void pool_plainly(const struct bag_pool_args *args, const struct small_call *call)
{
    const struct bag_ids starts = {call->offsets.data, call->offsets.count,
                                   call->offsets.dtype == BAG_I64};
    memset(wanted, 0xa5, SMALL_RESULT);
    for (size_t bag = 0; bag < args->num_bags; bag++) {
        bool is_end = bag + 1 == starts.count;
        int64_t bounds[] = {bag_id_at(&starts, bag),
                            is_end ? (int64_t)call->indices.count : bag_id_at(&starts, bag + 1)};
        struct bag_pool_args one = *args;
        one.groups = (struct bag_ids){bounds, COUNT_OF(bounds), true};
        one.num_bags = 1;
        const struct bag_tiles all = {.end_column = one.table.row_elements};
        bag_ref_loop(&one, &all, 0, 1, (char *)wanted + AROUND + bag * args->bag_stride);
    }
}

/* Two ranges, one of which may have no bag. */
static void pool_in_two(const struct bag_pool_args *args, const struct small_call *call)
{
    struct bag_range range = bag_range_all(args);
    size_t split = call->split < args->num_bags ? call->split : args->num_bags;
    memset(got, 0xa5, SMALL_RESULT);
    range.end_bag = split;
    bag_pool_run(args, range, got + AROUND);
    range.first_bag = split;
    range.end_bag = args->num_bags;
    bag_pool_run(args, range, got + AROUND);
}

/* Returns whether the result has the expected bits and the bytes around it are unchanged. */
static bool is_as_wanted(const struct bag_pool_args *args)
{
    size_t bytes = bag_dtypes[args->output_dtype].bytes;
    size_t per_bag = args->table.row_elements * args->element_bytes;
    for (size_t bag = 0; bag < args->num_bags; bag++)
        for (size_t i = 0; i < per_bag; i += bytes) {
            size_t at = AROUND + bag * args->bag_stride + i;
            if (is_nan(wanted + at, args->output_dtype) && is_nan(got + at, args->output_dtype))
                memcpy(got + at, wanted + at, bytes);
        }
    return memcmp(wanted, got, SMALL_RESULT) == 0;
}

static bool same_ids(const struct bag_ids *a, const struct bag_ids *b)
{
    return a->data == b->data && a->count == b->count && a->wide == b->wide;
}

static bool same_args(const struct bag_pool_args *a, const struct bag_pool_args *b)
{
    return memcmp(&a->table, &b->table, sizeof a->table) == 0 && a->walk == b->walk &&
           a->reduction == b->reduction && a->output_dtype == b->output_dtype &&
           a->element_bytes == b->element_bytes && a->bag_stride == b->bag_stride &&
           a->weights == b->weights && a->weights_dtype == b->weights_dtype &&
           a->divides == b->divides && a->is_general == b->is_general &&
           a->skip_outside == b->skip_outside && a->skip_unweighted == b->skip_unweighted &&
           a->default_row == b->default_row && a->padding_row == b->padding_row &&
           same_ids(&a->indices, &b->indices) && same_ids(&a->groups, &b->groups) &&
           a->form == b->form && a->num_bags == b->num_bags && a->result_bytes == b->result_bytes;
}

/* Checks a call on the fast path that takes it and on the general path. Returns false if the two
 * differ. */
static bool check_both(enum bag_isa isa, const struct small_call *call, struct bag_pool_args *args,
                       enum bag_status *status)
{
    static struct bag_pool_plan plan; /* static, because the call keeps a pointer to it */
    const struct bag_inputs inputs = {
        {[BAG_INDICES] = &call->indices,
         [BAG_OFFSETS] = &call->offsets,
         [BAG_PER_SAMPLE_WEIGHTS] = call->is_weighted ? &call->weights : NULL}};
    struct bag_pool_args general;
    struct bag_fault fault;
    bag_isa_use(isa);
    bag_pool_prepare(&call->table, &call->rules, &plan);
    *status = bag_pool_check(&plan, &inputs, call->max_result_bytes, args, &fault);
    if (bag_pool_check_all(&plan, &inputs, call->max_result_bytes, &general, &fault) != *status)
        return false;
    return *status != BAG_STATUS_OK || same_args(args, &general);
}

/* Returns whether memory has all rows that the call reads; a table may claim more rows than are in
 * memory. */
static bool is_readable(const struct bag_pool_args *args, const struct small_call *call)
{
    for (size_t i = 0; i < args->indices.count; i++) {
        int64_t id = bag_id_at(&args->indices, i);
        if (id >= call->readable_rows && id < args->table.num_rows)
            return false;
    }
    return true;
}

/* Sets the arguments that a caller of the check may change. */
static void adapt(const struct small_call *call, struct bag_pool_args *args)
{
    args->streams = call->streams;
    if (call->is_partial)
        bag_pool_make_partial(args);
    else if (call->is_widened && converts(args->output_dtype))
        bag_pool_widen(args);
    args->bag_stride += call->gap;
}

static int fails_small(uint64_t seed, enum bag_isa isa, const struct small_call *call,
                       const char *what)
{
    printf("FAILED small call, seed %llu isa %s: %s: %lld %s rows of %zu %s, %s into %s%s%s, "
           "%zu offsets%s, %zu ids\n",
           (unsigned long long)seed, bag_isa_names[isa], what, (long long)call->table.num_rows,
           bag_row_format_names[call->table.row_format], call->table.row_elements,
           bag_dtypes[call->table.dtype].name, bag_reduction_names[call->rules.reduction],
           bag_dtypes[call->rules.output_dtype].name, call->is_weighted ? ", weighted" : "",
           call->is_partial ? ", partial" : "", call->offsets.count,
           call->rules.include_last_offset ? " with the end" : "", call->indices.count);
    return 1;
}

/* The small call that is being made. */
static volatile uint64_t small_seed;

static void tell_seed(int signal)
{
    char text[80];
    (void)signal;
    int bytes = snprintf(text, sizeof text, "FAILED small call, seed %llu: reads outside\n",
                         (unsigned long long)small_seed);
    _exit(write(STDOUT_FILENO, text, (size_t)bytes) == bytes ? 1 : 2);
}

static void tell_seed_where_read_outside(void)
{
    fflush(stdout);
    signal(SIGSEGV, tell_seed);
}

/* How many instruction sets differ from plain C, or in their ways of checking. */
static int check_small(uint64_t seed)
{
    struct small_call call;
    struct bag_fault fault;
    struct bag_pool_args args;
    enum bag_status status, first = BAG_STATUS_OK;
    int failed = 0;
    small_seed = seed;
    choose_small(seed, &call);
    if (bag_rules_check(&call.table, &call.rules, &fault) != BAG_STATUS_OK)
        return fails_small(seed, BAG_ISA_GENERIC, &call, bag_status_keywords[fault.status]);
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        bool same = check_both((enum bag_isa)isa, &call, &args, &status);
        first = isa == BAG_ISA_GENERIC ? status : first;
        if (!same || status != first)
            failed += fails_small(seed, (enum bag_isa)isa, &call, "two checks differ");
        if (status != BAG_STATUS_OK || !is_readable(&args, &call))
            continue;
        adapt(&call, &args);
        if (isa == BAG_ISA_GENERIC)
            pool_plainly(&args, &call);
        pool_in_two(&args, &call);
        if (!is_as_wanted(&args))
            failed += fails_small(seed, (enum bag_isa)isa, &call, "other bytes than plain C's");
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
    if (!make_memory() || !make_small_memory()) {
        printf("FAILED: no memory of %d bytes\n", LARGE_BYTES);
        return 1;
    }
    failed += check_many_rows();
    failed += check_ids();
    for (uint64_t i = 0; i < calls && failed < 10; i++)
        failed += check(seed + i);
    tell_seed_where_read_outside();
    for (uint64_t i = 0; i < SMALL_CALLS * calls && failed < 10; i++)
        failed += check_small(seed + i);
    printf("%llu calls from seed %llu, %d differences\n", (unsigned long long)calls,
           (unsigned long long)seed, failed);
    return failed == 0 ? 0 : 1;
}
