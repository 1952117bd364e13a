/* One bag of ids of a table of four rows, or of a part of it, which bag_keys_resolve replaces by
 * rows. */
#pragma once

#include "kernels/keys.h"
#include "kernels/pool_entries.h"
#include "proto/problem.h"
#include "testing.h"

static const float values[4][1] = {{1}, {2}, {4}, {8}};
static const struct bag_table table = {
    .rows = values, .dtype = BAG_F32, .num_rows = 4, .row_elements = 1};

struct call {
    struct bag_rules rules;
    const struct bag_keys *keys; /* NULL: ids are rows */
    struct bag_part_ids part;    /* used if part.part.of is not 0 */
    struct bag_tensor indices, default_index, weights;
    struct bag_inputs inputs;
    struct bag_pool_args args;
    struct bag_resolving resolving;
    struct bag_fault fault;
    int64_t rows[8];
    uint8_t replaced[8];
};

static inline enum bag_status resolve(struct call *call, enum bag_dtype dtype, const void *ids,
                                      size_t count)
{
    static struct bag_pool_plan plan; /* static, because the call keeps a pointer to it */
    const bool is_part = call->part.part.of > 0;
    call->rules.output_dtype = BAG_F32;
    call->rules.keyed = call->keys != NULL;
    call->indices = (struct bag_tensor){
        .dtype = dtype, .rank = 2, .shape = {1, (int64_t)count}, .count = count, .data = ids};
    call->inputs.tensor[BAG_INDICES] = &call->indices;
    bag_pool_prepare(&table, &call->rules, &plan);
    assert_int_equal(plan.needs_rows,
                     call->rules.keyed || call->rules.missing == BAG_MISSING_DEFAULT);
    if (is_part)
        bag_pool_prepare_part(&plan, call->keys ? 4 : 10);
    assert_true(plan.needs_rows || !is_part);
    call->resolving = (struct bag_resolving){.keys = call->keys,
                                             .part = is_part ? &call->part : NULL,
                                             .rules = &call->rules,
                                             .inputs = &call->inputs,
                                             .rows = call->rows,
                                             .replaced = call->replaced};
    enum bag_status status = bag_pool_check(&plan, &call->inputs, 1000, &call->args, &call->fault);
    return status == BAG_STATUS_OK ? bag_keys_resolve(&call->resolving, &call->args, &call->fault)
                                   : status;
}

static inline float pool(const struct call *call)
{
    float sum;
    bag_pool_run(&call->args, bag_range_all(&call->args), &sum);
    return sum;
}

static inline void expect_statuses(const struct call *call, const enum bag_entry_status *statuses)
{
    for (size_t i = 0; i < call->args.indices.count; i++)
        assert_string_equal(bag_entry_status_names[bag_pool_entry_status(&call->args, i)],
                            bag_entry_status_names[statuses[i]]);
}

#define EXPECT_STATUSES(call, ...) \
    expect_statuses((call), (const enum bag_entry_status[]){__VA_ARGS__})

static inline void expect_rejected(enum bag_status status, const struct call *call,
                                   const char *sentence)
{
    struct bag_problem problem;
    assert_int_not_equal(status, BAG_STATUS_OK);
    bag_problem_from_fault(&problem, &call->fault);
    assert_string_equal(problem.text, sentence);
}
