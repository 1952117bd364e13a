/* The check of usual calls: indices and offsets, perhaps with weights. The general check would take
 * longer than pooling if there are only few ids. Included once for plain C and once for each
 * instruction set, after simd_ids.h. It defines check_usual. */
#include "pool_loop.h"

/* Copies the plan's part of a call by vectors. The last one overlaps the one before it. */
static inline void copy_part(const struct bag_pool_plan *plan, struct bag_pool_args *args)
{
    const size_t bytes = offsetof(struct bag_pool_args, tiles);
    ids64v some;
#pragma GCC unroll 8
    for (size_t i = 0; i < bytes; i += sizeof some) {
        const size_t at = i + sizeof some <= bytes ? i : bytes - sizeof some;
        memcpy(&some, (const char *)&plan->args + at, sizeof some);
        memcpy((char *)args + at, &some, sizeof some);
    }
}

/* Returns whether both are INT32 or INT64 and have one dimension. Needs only one test. */
static inline bool are_lists(const struct bag_tensor *a, const struct bag_tensor *b)
{
    const uint64_t least = (uint64_t)1 << 32 | BAG_I32;
    const uint64_t first = ((uint64_t)a->rank << 32 | (uint32_t)a->dtype) - least;
    const uint64_t second = ((uint64_t)b->rank << 32 | (uint32_t)b->dtype) - least;
    return (first | second) <= BAG_I64 - BAG_I32;
}

static inline bool brings_more(const struct bag_tensor *const *tensor)
{
    return ((uintptr_t)tensor[BAG_SEGMENT_IDS] | (uintptr_t)tensor[BAG_NUM_SEGMENTS] |
            (uintptr_t)tensor[BAG_DEFAULT_INDEX]) != 0;
}

/* Returns whether weights are FP32, one for each index, and the plan accepts them. */
static inline bool are_usual_weights(const struct bag_pool_plan *plan,
                                     const struct bag_tensor *weights,
                                     const struct bag_tensor *indices)
{
    return plan->takes_weights && weights->dtype == BAG_F32 && weights->rank == 1 &&
           weights->shape[0] == indices->shape[0];
}

/* Returns the ids of a list that are_lists accepts. */
static inline struct bag_ids list_of(const struct bag_tensor *tensor)
{
    return (struct bag_ids){tensor->data, tensor->count, tensor->dtype != BAG_I32};
}

/* Returns whether the offsets and ids of a usual call are right. */
static inline bool are_right(const struct bag_ids *ids, const struct bag_ids *groups, int64_t high)
{
    if ((uint64_t)bag_id_at(groups, groups->count - 1) > ids->count ||
        (groups->count > 1 && !(groups->wide ? ascends_64(groups->data, groups->count)
                                             : ascends_32(groups->data, groups->count))))
        return false;
    return ids->wide ? in_range_64(ids->data, ids->count, (uint64_t)high, false)
                     : in_range_32(ids->data, ids->count, narrow_high(high), false);
}

/* Checks a call by the shortest path; see bag_check_fn. It fills `args` before it checks ids, and
 * has few values to keep then. */
static bool check_usual(const struct bag_pool_plan *plan, const struct bag_inputs *inputs,
                        size_t max_result_bytes, struct bag_pool_args *args)
{
    const struct bag_tensor *const *tensor = inputs->tensor;
    const struct bag_tensor *indices = tensor[BAG_INDICES], *offsets = tensor[BAG_OFFSETS];
    const struct bag_tensor *weights = tensor[BAG_PER_SAMPLE_WEIGHTS];
    if (!indices || !offsets || brings_more(tensor) || !are_lists(indices, offsets) ||
        (weights && !are_usual_weights(plan, weights, indices)))
        return false;
    const struct bag_ids ids = list_of(indices), groups = list_of(offsets);
    const size_t num_bags = groups.count - plan->rules.include_last_offset;
    const size_t result_bytes = num_bags * plan->args.bag_stride;
    const int64_t high = plan->args.table.num_rows - 1;
    if (groups.count == 0 || (num_bags | ids.count) > UINT32_MAX || result_bytes > max_result_bytes)
        return false;
    copy_part(plan, args);
    args->tiles = plan->tiles[0];
    if (weights) {
        args->weights = weights->data;
        args->weights_dtype = BAG_F32;
        args->tiles = plan->tiles[1];
    }
    /* Bags of many ids may be equal: see bag_pool_range. */
    if (num_bags > 1 && ids.count >= num_bags * BAG_EQUAL_LEAST_ENTRIES)
        args->tiles = NULL;
    args->indices = ids;
    bag_set_ahead(&plan->walk, ids.count, args);
    args->groups = groups;
    args->form = BAG_FORM_OFFSETS;
    args->num_bags = num_bags;
    args->result_bytes = result_bytes;
    return are_right(&ids, &groups, high);
}
