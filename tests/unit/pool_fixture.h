/* Requests to the kernels, written as C arrays. */
#pragma once

#include "kernels/pool.h"
#include "testing.h"

/* A tensor over a C array: TENSOR(I64, 1, array) is one-dimensional. */
#define TENSOR(id, rank, array) tensor_of(BAG_##id, rank, COUNT_OF(array), array)

static inline struct bag_tensor tensor_of(enum bag_dtype dtype, uint32_t rank, size_t count,
                                          const void *data)
{
    struct bag_tensor tensor = {.dtype = dtype, .rank = rank, .count = count, .data = data};
    for (uint32_t i = 0; i < rank; i++)
        tensor.shape[i] = i == 0 ? (int64_t)count : 1;
    return tensor;
}

static inline struct bag_tensor with_shape(struct bag_tensor tensor, int64_t first, int64_t second)
{
    tensor.rank = 2;
    tensor.shape[0] = first;
    tensor.shape[1] = second;
    tensor.count = (size_t)(first * second);
    return tensor;
}

static inline struct bag_table table_of(enum bag_dtype dtype, int64_t num_rows, size_t row_elements,
                                        const void *rows)
{
    return (struct bag_table){
        .rows = rows, .dtype = dtype, .num_rows = num_rows, .row_elements = row_elements};
}

static inline struct bag_rules rules_for(enum bag_dtype dtype, enum bag_reduction reduction)
{
    return (struct bag_rules){.reduction = reduction, .output_dtype = dtype, .default_index = -1};
}

/* A call of the kernels. Weights have the shape of the ids, and a tensor without data is absent. */
struct given {
    struct bag_table table;
    struct bag_rules rules;
    struct bag_tensor ids, offsets, segments, weights;
};

/* A table, ids and other tensors from their elements. BAGS: `count` bags of as many ids each. */
#define TABLE(id, type, columns, ...)                                                     \
    table_of(BAG_##id, (int64_t)(COUNT_OF(((type[]){__VA_ARGS__})) / (columns)), columns, \
             (const type[]){__VA_ARGS__})
#define ELEMENTS(id, type, ...) \
    tensor_of(BAG_##id, 1, COUNT_OF(((type[]){__VA_ARGS__})), (const type[]){__VA_ARGS__})
#define IDS(...) ELEMENTS(I64, int64_t, __VA_ARGS__)
#define BAGS(count, ...) \
    with_shape(IDS(__VA_ARGS__), count, (int64_t)COUNT_OF(((int64_t[]){__VA_ARGS__})) / (count))

static inline struct given given_of(struct bag_table table, enum bag_reduction reduction,
                                    struct bag_tensor ids)
{
    return (struct given){.table = table, .rules = rules_for(table.dtype, reduction), .ids = ids};
}

/* Checks, sorts and pools the whole; the result is compared with `expected` byte by byte, and what
 * stands around it must stay. */
static inline void expect_pooled(const struct given *given, const void *expected,
                                 size_t expected_bytes)
{
    struct bag_tensor weights = given->ids;
    weights.dtype = given->weights.dtype;
    weights.data = given->weights.data;
    const struct bag_inputs inputs = {
        {[BAG_INDICES] = &given->ids,
         [BAG_OFFSETS] = given->offsets.data ? &given->offsets : NULL,
         [BAG_SEGMENT_IDS] = given->segments.data ? &given->segments : NULL,
         [BAG_PER_SAMPLE_WEIGHTS] = weights.data ? &weights : NULL}};
    struct bag_fault fault;
    struct bag_pool_args args;
    struct bag_pool_plan plan;
    assert_int_equal(bag_rules_check(&given->table, &given->rules, &fault), BAG_STATUS_OK);
    bag_pool_prepare(&given->table, &given->rules, &plan);
    assert_int_equal(bag_pool_check(&plan, &inputs, 1 << 20, &args, &fault), BAG_STATUS_OK);
    assert_int_equal(args.result_bytes, expected_bytes);
    void *scratch = malloc(bag_pool_scratch_bytes(&args) + 1);
    unsigned char *out = malloc(expected_bytes + 2), *around = malloc(expected_bytes + 2);
    assert_true(scratch && out && around);
    memset(out, 0xa5, expected_bytes + 2);
    memset(around, 0xa5, expected_bytes + 2);
    memcpy(around + 1, expected, expected_bytes);
    bag_pool_sort(&args, scratch);
    bag_pool_run(&args, bag_range_all(&args), out + 1);
    assert_memory_equal(out, around, expected_bytes + 2);
    free(around);
    free(out);
    free(scratch);
}

#define POOLS(given, type, ...) \
    expect_pooled(&(given), (const type[]){__VA_ARGS__}, sizeof((type[]){__VA_ARGS__}))
