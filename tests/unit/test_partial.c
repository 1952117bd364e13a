/* Random calls of every type and row format, whose entries are partitioned. The merged results of
 * the parts of a table must be the result of the whole table. BAG_SEED=N begins with another
 * one. */
#include "../kernels/random_call.h"
#include "kernels/exact.h"
#include "kernels/partial.h"
#include "pool_fixture.h"

#include <float.h>
#include <math.h>

enum { CALLS = 1000, MAX_SHARES = 80 };

static const size_t part_counts[] = {1, 2, 3, 7, MAX_SHARES};

/* ---- dealing --------------------------------------------------------------------------------- */

/* The call to a part, and its result. */
struct part {
    int64_t *ids, *offsets;
    unsigned char *weights;
    size_t num_ids;
    struct bag_pool_args args;
    char *sums, *counts, *weight_sums;
};

static size_t part_of(int64_t id, size_t num_parts)
{
    return (size_t)((uint64_t)id * UINT64_C(7919) % num_parts);
}

/* The part's entries of every bag, in their order. */
static void deal(const struct call *call, const struct bag_pool_args *whole, size_t index,
                 size_t num_parts, struct part *part)
{
    size_t weight_bytes = bag_dtypes[call->weights.dtype].bytes, hint = 0;
    size_t bounds[MAX_BAGS + 1];
    part->ids = malloc((whole->indices.count + 1) * sizeof *part->ids);
    part->weights = malloc((whole->indices.count + 1) * weight_bytes);
    part->offsets = malloc((whole->num_bags + 1) * sizeof *part->offsets);
    assert_true(part->ids && part->weights && part->offsets);
    bag_pool_bounds(whole, 0, whole->num_bags, &hint, bounds);
    part->num_ids = 0;
    for (size_t bag = 0; bag < whole->num_bags; bag++) {
        part->offsets[bag] = (int64_t)part->num_ids;
        for (size_t entry = bounds[bag]; entry < bounds[bag + 1]; entry++) {
            int64_t id = bag_id_at(&whole->indices, entry);
            if (part_of(id, num_parts) != index)
                continue;
            memcpy(part->weights + part->num_ids * weight_bytes,
                   (const char *)call->weights.data + entry * weight_bytes, weight_bytes);
            part->ids[part->num_ids++] = id;
        }
    }
}

static void ask(const struct call *call, const struct bag_pool_plan *plan, struct part *part)
{
    struct bag_fault fault;
    struct bag_tensor ids = tensor_of(BAG_I64, 1, part->num_ids, part->ids);
    struct bag_tensor starts = tensor_of(BAG_I64, 1, call->num_bags, part->offsets);
    struct bag_tensor weights = tensor_of(call->weights.dtype, 1, part->num_ids, part->weights);
    struct bag_inputs inputs = {{[BAG_INDICES] = &ids,
                                 [BAG_OFFSETS] = &starts,
                                 [BAG_PER_SAMPLE_WEIGHTS] = call->is_weighted ? &weights : NULL}};
    struct bag_pool_args *args = &part->args;
    assert_int_equal(bag_pool_check(plan, &inputs, SIZE_MAX, args, &fault), BAG_STATUS_OK);
    bag_pool_make_partial(args);
    part->sums = malloc(args->result_bytes + 1);
    part->counts = malloc(call->num_bags * sizeof(int64_t) + 1);
    part->weight_sums = malloc(call->num_bags * BAG_WIDE_BYTES + 1);
    assert_true(part->sums && part->counts && part->weight_sums);
    bag_pool_run(args, bag_range_all(args), part->sums);
    bag_pool_counts(args, part->counts);
    if (call->is_weighted)
        bag_pool_weight_sums(args, part->weight_sums);
}

static void forget(struct part *part)
{
    free(part->ids);
    free(part->offsets);
    free(part->weights);
    free(part->sums);
    free(part->counts);
    free(part->weight_sums);
}

/* ---- merging --------------------------------------------------------------------------------- */

/* The share of each part in a bag; returns how many entries they have. */
static size_t share_out(const struct part *parts, size_t num_parts, size_t bag,
                        struct bag_share *shares)
{
    size_t entries = 0;
    for (size_t i = 0; i < num_parts; i++) {
        const struct bag_pool_args *args = &parts[i].args;
        struct bag_partial_form form =
            bag_partial_form(args->table.dtype, (enum bag_reduction)args->whole_reduction);
        size_t weight_bytes = form.weight_words * bag_dtypes[form.weights_dtype].bytes;
        int64_t count;
        memcpy(&count, parts[i].counts + bag * sizeof count, sizeof count);
        shares[i] = (struct bag_share){parts[i].sums + bag * args->bag_stride,
                                       parts[i].weight_sums + bag * weight_bytes, (uint64_t)count};
        entries += (size_t)count;
    }
    return entries;
}

static double element_of(const void *data, enum bag_dtype dtype, size_t position)
{
    float value;
    switch (dtype) {
    case BAG_F16:
        return (double)bag_f32_from_f16(bag_load_u16(data, position));
    case BAG_BF16:
        return (double)bag_f32_from_bf16(bag_load_u16(data, position));
    case BAG_F64:
        return bag_load_f64(data, position);
    default:
        value = bag_load_f32(data, position);
        return (double)value;
    }
}

/* ---- the bound ------------------------------------------------------------------------------- */

/* Sums for a bag and a column: the absolute values of the pooled entries, and their weights. */
struct magnitudes {
    size_t count;
    double rows, weights, squares;
    bool mixed;  /* weights of both signs */
    bool finite; /* all of it, with room before the type's largest */
};

/* As PARTS.md states it; and what rounding to the output's type adds. */
static double bound_of(const struct bag_pool_args *args, const struct magnitudes *found,
                       double value)
{
    double unit = args->table.dtype == BAG_F64 ? 0x1p-53 : 0x1p-24;
    double steps = (double)(2 * found->count + 2) * unit, gamma = steps / (1 - steps);
    double divisor = 1, least = args->table.dtype == BAG_F64 ? DBL_MIN : (double)FLT_MIN;
    if (args->reduction == BAG_MEAN)
        divisor = args->weights ? found->weights : (double)found->count;
    if (args->reduction == BAG_SQRTN)
        divisor = sqrt(args->weights ? found->squares : (double)found->count);
    double bound = divisor == 0 ? 0 : 2 * gamma * found->rows / divisor + least;
    double last = args->output_dtype == BAG_F16    ? 0x1p-10
                  : args->output_dtype == BAG_BF16 ? 0x1p-7
                                                   : 0;
    return bound + last * (fabs(value) + bound) + (last > 0 ? 0x1p-24 : 0);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool same_number(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void compare_column(const struct bag_pool_args *args, size_t first, size_t end,
                           size_t column, const char *whole, const char *merged, uint64_t seed)
{
    double want = element_of(whole, args->output_dtype, column);
    double got = element_of(merged, args->output_dtype, column);
    if (same_number(want, got))
        return;
    struct magnitudes found = {.finite = true};
    bool is_double = args->table.dtype == BAG_F64, above = false, below_zero = false;
    for (size_t entry = first; entry < end; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        double value, weight = 1;
        float single;
        if (!bag_keeps(args, entry, row))
            continue;
        if (is_double) {
            value = bag_load_f64(args->table.rows, (size_t)row * args->table.row_elements + column);
        } else {
            bag_row_decode(&args->table, row, column, 1, &single);
            value = (double)single;
        }
        if (args->weights)
            weight = is_double ? bag_weight_f64(args, entry) : (double)bag_weight_f32(args, entry);
        found.count++;
        found.rows += fabs(value * weight);
        found.weights += fabs(weight);
        found.squares += weight * weight;
        above |= weight > 0;
        below_zero |= weight < 0;
    }
    found.mixed = above && below_zero;
    double largest = is_double ? 1e150 : 1e15;
    found.finite = found.rows < largest && found.weights < largest && found.squares < largest;
    bool skips = !found.finite || (found.mixed && args->reduction == BAG_MEAN);
    if (!skips && fabs(want - got) <= bound_of(args, &found, want))
        return;
    if (!skips || args->reduction == BAG_MAX)
        fail_msg("seed %llu: column %zu of %zu entries is %.17g instead of %.17g, bound %g",
                 (unsigned long long)seed, column, found.count, got, want,
                 bound_of(args, &found, want));
}

/* One bag; `exact`: to the bit. */
static void compare_bag(const struct bag_pool_args *args, size_t first, size_t end,
                        const char *whole, const char *merged, bool exact, uint64_t seed)
{
    size_t bytes = args->table.row_elements * args->element_bytes;
    bool is_float = bag_dtypes[args->table.dtype].kind == BAG_KIND_FLOAT;
    if (memcmp(whole, merged, bytes) == 0)
        return;
    if (!is_float)
        fail_msg("seed %llu: integers differ", (unsigned long long)seed);
    for (size_t column = 0; column < args->table.row_elements; column++) {
        double want = element_of(whole, args->output_dtype, column);
        double got = element_of(merged, args->output_dtype, column);
        if (exact && !same_number(want, got))
            fail_msg("seed %llu: column %zu of one part is %.17g instead of %.17g",
                     (unsigned long long)seed, column, got, want);
        compare_column(args, first, end, column, whole, merged, seed);
    }
}

static void compare(const struct bag_pool_args *args, const struct part *parts, size_t num_parts,
                    const char *whole, uint64_t seed)
{
    struct bag_share shares[MAX_SHARES];
    struct bag_merge merge = {args->table.dtype, args->reduction, args->weights != NULL,
                              args->output_dtype, args->table.row_elements};
    size_t bytes = args->table.row_elements * args->element_bytes;
    char *merged = malloc(bytes + 2);
    assert_non_null(merged);
    for (size_t bag = 0; bag < args->num_bags; bag++) {
        size_t first = bag_pool_first_entry(args, bag), end = bag_pool_first_entry(args, bag + 1);
        size_t entries = share_out(parts, num_parts, bag, shares);
        assert_int_equal(entries, bag_count_kept(args, first, end));
        merged[0] = merged[bytes + 1] = 0x5a;
        bag_merge(&merge, shares, num_parts, merged + 1);
        assert_true(merged[0] == 0x5a && merged[bytes + 1] == 0x5a);
        if (entries > 0)
            compare_bag(args, first, end, whole + bag * args->bag_stride, merged + 1,
                        num_parts == 1, seed);
        for (size_t i = 0; entries == 0 && i < bytes; i++)
            assert_int_equal(merged[1 + i], 0);
    }
    free(merged);
}

static void check_call(uint64_t seed)
{
    struct call call;
    struct bag_fault fault;
    struct bag_pool_plan plan;
    struct bag_pool_args args;
    struct part parts[MAX_SHARES];
    choose_call(seed, &call);
    if (call.rules.reduction ==
        BAG_NONE) /* an id has one part, see rows_without_a_reduction_are_copied */
        return;
    size_t num_parts = part_counts[below(COUNT_OF(part_counts))];
    struct bag_inputs inputs = {
        {[BAG_INDICES] = &call.indices,
         [BAG_OFFSETS] = &call.offsets,
         [BAG_PER_SAMPLE_WEIGHTS] = call.is_weighted ? &call.weights : NULL}};
    bag_pool_prepare(&call.table, &call.rules, &plan);
    assert_int_equal(bag_pool_check(&plan, &inputs, SIZE_MAX, &args, &fault), BAG_STATUS_OK);
    char *whole = malloc(args.result_bytes + 1);
    assert_non_null(whole);
    bag_pool_run(&args, bag_range_all(&args), whole);
    for (size_t i = 0; i < num_parts; i++) {
        deal(&call, &args, i, num_parts, &parts[i]);
        ask(&call, &plan, &parts[i]);
    }
    compare(&args, parts, num_parts, whole, seed);
    for (size_t i = 0; i < num_parts; i++)
        forget(&parts[i]);
    free(whole);
}

TEST(parts_make_the_whole)
{
    const char *given = getenv("BAG_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : 1;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)first + CALLS - 1);
    assert_true(make_memory());
    bag_isa_use(bag_isa_best());
    for (uint64_t seed = first; seed < first + CALLS; seed++)
        check_call(seed);
}

/* ---- rows that are not pooled ---------------------------------------------------------------- */

TEST(rows_without_a_reduction_are_copied)
{
    const uint16_t rows[] = {0x8000, 0x7d01}; /* -0, and a NaN with a payload */
    const int64_t ids[] = {0, 1, 7};
    struct bag_table table = table_of(BAG_F16, 2, 1, rows);
    struct bag_rules rules = rules_for(BAG_F16, BAG_NONE);
    struct bag_pool_plan plan;
    struct bag_fault fault;
    struct bag_pool_args args;
    struct bag_tensor entries = TENSOR(I64, 1, ids);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    rules.missing = BAG_MISSING_SKIP;
    rules.output_dtype = BAG_F32;
    bag_pool_prepare(&table, &rules, &plan);
    assert_int_equal(bag_pool_check(&plan, &inputs, 64, &args, &fault), BAG_STATUS_OK);
    bag_pool_make_partial(&args);
    assert_int_equal(args.output_dtype, BAG_F16);
    uint16_t found[3];
    int64_t counts[3];
    bag_pool_run(&args, bag_range_all(&args), found);
    bag_pool_counts(&args, counts);
    assert_memory_equal(found, ((uint16_t[]){rows[0], rows[1], 0}), sizeof found);
    assert_memory_equal(counts, ((int64_t[]){1, 1, 0}), sizeof counts);
    for (int i = 0; i < 3; i++) {
        const struct bag_share shares[] = {{rows, NULL, 0}, {&found[i], NULL, (uint64_t)counts[i]}};
        struct bag_merge merge = {BAG_F16, BAG_NONE, false, BAG_F16, 1};
        uint16_t same;
        float wide;
        bag_merge(&merge, shares, 2, &same);
        assert_int_equal(same, found[i]);
        merge.output_dtype = BAG_F32;
        bag_merge(&merge, shares, 2, &wide);
        assert_true(i == 1 ? isnan(wide) : wide == 0 && !!signbit(wide) == (i == 0));
    }
}

/* ---- exact values ---------------------------------------------------------------------------- */

/* Sums that no 64 bits hold, of both signs, with weights: the mean is that of all entries. */
TEST(integer_means_are_exact)
{
    const int64_t rows[] = {INT64_MIN, INT64_MAX, -7, 5};
    const int64_t ids[] = {0, 0, 1}, others[] = {2, 3}, starts[] = {0};
    struct bag_table table = table_of(BAG_I64, 4, 1, rows);
    struct bag_rules rules = rules_for(BAG_I64, BAG_MEAN);
    struct bag_pool_plan plan;
    struct bag_fault fault;
    struct bag_share shares[2];
    uint64_t sums[2][BAG_WIDE_WORDS];
    int64_t counts[2], mean;
    bag_pool_prepare(&table, &rules, &plan);
    for (int i = 0; i < 2; i++) {
        struct bag_tensor entries = i ? TENSOR(I64, 1, others) : TENSOR(I64, 1, ids);
        struct bag_tensor offsets_of = TENSOR(I64, 1, starts);
        struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_OFFSETS] = &offsets_of}};
        struct bag_pool_args args;
        assert_int_equal(bag_pool_check(&plan, &inputs, 64, &args, &fault), BAG_STATUS_OK);
        bag_pool_make_partial(&args);
        assert_int_equal(args.result_bytes, sizeof sums[i]);
        assert_int_equal(args.output_dtype, BAG_U64);
        bag_pool_run(&args, bag_range_all(&args), sums[i]);
        bag_pool_counts(&args, &counts[i]);
        shares[i] = (struct bag_share){sums[i], NULL, (uint64_t)counts[i]};
    }
    /* 2 * -2^63 + 2^63 - 1 = -2^63 - 1 */
    const uint64_t expected[] = {UINT64_C(0x7fffffffffffffff), UINT64_MAX, UINT64_MAX};
    assert_memory_equal(sums[0], expected, sizeof expected);
    assert_true(counts[0] == 3 && counts[1] == 2);
    struct bag_merge merge = {BAG_I64, BAG_MEAN, false, BAG_I64, 1};
    bag_merge(&merge, shares, 2, &mean);
    assert_true(mean == INT64_MIN / 5 - 1); /* (-2^63 - 1 - 7 + 5) / 5, toward zero */
}

/* A mean of half precision is rounded once, after the division. */
TEST(rounds_once_at_the_end)
{
    const float sums[] = {2049, 1}; /* 2049 is no FP16 number; a third of 2050 is none either */
    const struct bag_share shares[] = {{&sums[0], NULL, 2}, {&sums[1], NULL, 1}};
    struct bag_merge merge = {BAG_F16, BAG_MEAN, false, BAG_F16, 1};
    uint16_t mean;
    bag_merge(&merge, shares, 2, &mean);
    assert_int_equal(mean, bag_f16_from_f32(2050.0f / 3));
}

/* A part without an entry has zeros, which count neither as a sum nor as the largest. */
TEST(leaves_out_parts_without_entries)
{
    const float sums[] = {0, -5, -0.0f}, weights[] = {7, 2, 1};
    const struct bag_share shares[] = {
        {&sums[0], &weights[0], 0}, {&sums[1], &weights[1], 3}, {&sums[2], &weights[2], 1}};
    struct bag_merge merge = {BAG_F32, BAG_MAX, false, BAG_F32, 1};
    float result;
    bag_merge(&merge, shares, 2, &result);
    assert_true(result == -5);
    merge.reduction = BAG_SUM;
    const struct bag_share zeros[] = {shares[0], shares[2]};
    bag_merge(&merge, zeros, 2, &result);
    assert_true(result == 0 && signbit(result));
    merge = (struct bag_merge){BAG_F32, BAG_MEAN, true, BAG_F32, 1};
    bag_merge(&merge, shares, 3, &result);
    assert_true(result == -5.0f / 3);
    bag_merge(&merge, shares, 1, &result);
    assert_true(result == 0 && !signbit(result));
}

/* Words that no shard sends are not numbers, and do no harm. */
TEST(takes_any_words)
{
    const uint64_t words[] = {0, 0, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    const struct bag_share shares[] = {
        {&words[0], &words[0], UINT64_MAX}, {&words[3], &words[3], 1}, {&words[0], &words[3], 1}};
    struct bag_merge merge = {BAG_I8, BAG_MEAN, true, BAG_I8, 1};
    int8_t result;
    for (size_t i = 1; i <= 3; i++)
        bag_merge(&merge, shares, i, &result);
    merge.is_weighted = false;
    for (size_t i = 1; i <= 3; i++)
        bag_merge(&merge, shares, i, &result);
}

TEST(sizes_do_not_overflow)
{
    struct bag_pool_args args = {.table = {.dtype = BAG_I8, .row_elements = SIZE_MAX / 8},
                                 .reduction = BAG_MEAN,
                                 .num_bags = 2};
    bag_pool_make_partial(&args);
    assert_true(args.result_bytes == SIZE_MAX);
}
