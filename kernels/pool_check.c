/* The whole check of a call: from what a client sent to a struct bag_pool_args, or to the first
 * fault.
 *
 * Cheap facts come first: types and shapes, then scalars and the size of the result, and only then
 * the loops over offsets, segment ids and indices.
 *
 * Must not know: how rows are pooled. */
#include "pool_ids.h"
#include "pool_inputs.h"

static struct bag_ids ids_of(const struct bag_tensor *tensor)
{
    return (struct bag_ids){tensor->data, tensor->count, tensor->dtype == BAG_I64};
}

static int64_t scalar_of(const struct bag_tensor *tensor)
{
    struct bag_ids ids = ids_of(tensor);
    return bag_id_at(&ids, 0);
}

static enum bag_status take_default_row(const struct bag_check *check, struct bag_pool_args *args)
{
    const struct bag_tensor *tensor = check->inputs->tensor[BAG_DEFAULT_INDEX];
    int64_t last_row = check->table->num_rows - 1;
    args->default_row = tensor ? scalar_of(tensor) : check->rules->default_index;
    if (args->default_row >= -1 && args->default_row <= last_row)
        return BAG_STATUS_OK;
    return bag_check_fails(check,
                           (struct bag_fault){.status = BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE,
                                              .input = BAG_DEFAULT_INDEX,
                                              .value = args->default_row,
                                              .low = 0,
                                              .high = last_row});
}

static enum bag_status count_offsets(const struct bag_check *check, struct bag_pool_args *args)
{
    args->num_bags = args->groups.count;
    if (!check->rules->include_last_offset)
        return BAG_STATUS_OK;
    if (args->groups.count == 0)
        return bag_check_fails(check, (struct bag_fault){.status = BAG_STATUS_OFFSETS_TOO_SHORT,
                                                         .input = BAG_OFFSETS});
    args->num_bags--;
    return BAG_STATUS_OK;
}

/* Without num_segments the last id says how many there are; ids that are wrong are found later. */
static enum bag_status count_segments(const struct bag_check *check, struct bag_pool_args *args)
{
    const struct bag_tensor *num_segments = check->inputs->tensor[BAG_NUM_SEGMENTS];
    const struct bag_ids *ids = &args->groups;
    int64_t last = -1;
    if (num_segments)
        last = scalar_of(num_segments);
    else if (args->unsorted)
        last = bag_ids_max(ids);
    else if (ids->count > 0)
        last = bag_id_at(ids, ids->count - 1);
    if (num_segments && last < 0)
        return bag_check_fails(check, (struct bag_fault){.status = BAG_STATUS_NUM_SEGMENTS_NEGATIVE,
                                                         .input = BAG_NUM_SEGMENTS,
                                                         .value = last});
    if (num_segments)
        args->num_bags = (size_t)last;
    else
        args->num_bags = last < 0 ? 0 : (size_t)last + 1;
    return BAG_STATUS_OK;
}

static enum bag_status count_bags(const struct bag_check *check, struct bag_pool_args *args)
{
    const struct bag_tensor *indices = check->inputs->tensor[BAG_INDICES];
    switch (args->form) {
    case BAG_FORM_OFFSETS:
        args->groups = ids_of(check->inputs->tensor[BAG_OFFSETS]);
        return count_offsets(check, args);
    case BAG_FORM_SEGMENTS:
        args->groups = ids_of(check->inputs->tensor[BAG_SEGMENT_IDS]);
        return count_segments(check, args);
    case BAG_FORM_PACKED:
        break;
    }
    args->num_bags = (size_t)indices->shape[0];
    args->bag_length = (size_t)indices->shape[1];
    return BAG_STATUS_OK;
}

static int64_t signed_size(size_t size)
{
    return size > INT64_MAX ? INT64_MAX : (int64_t)size;
}

static enum bag_status check_size(const struct bag_check *check, size_t max_result_bytes,
                                  struct bag_pool_args *args)
{
    size_t element_bytes = bag_dtypes[args->output_dtype].bytes;
    size_t bag_bytes;
    bool overflow = __builtin_mul_overflow(check->table->row_elements, element_bytes, &bag_bytes);
    overflow |= __builtin_mul_overflow(args->num_bags, bag_bytes, &args->result_bytes);
    args->bag_stride = bag_bytes;
    if (!overflow && args->result_bytes <= max_result_bytes)
        return BAG_STATUS_OK;
    return bag_check_fails(check, (struct bag_fault){.status = BAG_STATUS_RESULT_TOO_LARGE,
                                                     .value = signed_size(args->num_bags),
                                                     .low = signed_size(bag_bytes),
                                                     .high = signed_size(max_result_bytes)});
}

static enum bag_status fails_at(const struct bag_check *check, enum bag_status status,
                                enum bag_input which, const struct bag_ids *ids, size_t position,
                                int64_t low, int64_t high)
{
    return bag_check_fails(check, (struct bag_fault){.status = status,
                                                     .input = which,
                                                     .position = (int64_t)position,
                                                     .value = bag_id_at(ids, position),
                                                     .low = low,
                                                     .high = high});
}

/* Ids that must lie in [0, high] and, where `descending` is a fault, must not decrease: the first
 * position at which either is so. */
static enum bag_status check_groups(const struct bag_check *check, enum bag_input which,
                                    const struct bag_ids *ids, int64_t high,
                                    enum bag_status outside, enum bag_status descending)
{
    struct bag_id_bounds bounds = {.high = high, .ascending = descending != BAG_STATUS_OK};
    size_t bad = bag_ids_first_bad(ids, &bounds);
    if (bad == ids->count)
        return BAG_STATUS_OK;
    int64_t id = bag_id_at(ids, bad);
    if (id < 0 || id > high)
        return fails_at(check, outside, which, ids, bad, 0, high);
    return fails_at(check, descending, which, ids, bad, bag_id_at(ids, bad - 1), high);
}

static enum bag_status check_offsets(const struct bag_check *check,
                                     const struct bag_pool_args *args)
{
    enum bag_status status =
        check_groups(check, BAG_OFFSETS, &args->groups, (int64_t)args->indices.count,
                     BAG_STATUS_OFFSET_OUT_OF_RANGE, BAG_STATUS_OFFSETS_NOT_MONOTONIC);
    if (status == BAG_STATUS_OK && check->rules->require_zero_first_offset &&
        args->groups.count > 0 && bag_id_at(&args->groups, 0) != 0)
        return fails_at(check, BAG_STATUS_OFFSETS_NOT_STARTING_AT_ZERO, BAG_OFFSETS, &args->groups,
                        0, 0, 0);
    return status;
}

/* Without num_segments no id is too large: sorted ones cannot exceed the last. */
static enum bag_status check_segments(const struct bag_check *check,
                                      const struct bag_pool_args *args)
{
    bool counted = check->inputs->tensor[BAG_NUM_SEGMENTS] != NULL;
    return check_groups(check, BAG_SEGMENT_IDS, &args->groups,
                        counted ? (int64_t)args->num_bags - 1 : INT64_MAX,
                        BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE,
                        args->unsorted ? BAG_STATUS_OK : BAG_STATUS_SEGMENT_IDS_NOT_SORTED);
}

static enum bag_status check_indices(const struct bag_check *check,
                                     const struct bag_pool_args *args)
{
    struct bag_id_bounds bounds = {.any_negative = check->rules->prune_invalid,
                                   .high = check->table->num_rows - 1};
    if (check->rules->skip_out_of_range)
        return BAG_STATUS_OK;
    size_t bad = bag_ids_first_bad(&args->indices, &bounds);
    if (bad == args->indices.count)
        return BAG_STATUS_OK;
    return fails_at(check, BAG_STATUS_INDEX_OUT_OF_RANGE, BAG_INDICES, &args->indices, bad, 0,
                    bounds.high);
}

static void take_rules(const struct bag_check *check, enum bag_form form,
                       struct bag_pool_args *args)
{
    const struct bag_rules *rules = check->rules;
    const struct bag_tensor *weights = check->inputs->tensor[BAG_PER_SAMPLE_WEIGHTS];
    bool weight_divides = rules->reduction == BAG_MEAN || rules->reduction == BAG_SQRTN;
    *args = (struct bag_pool_args){
        .table = *check->table,
        .form = form,
        .reduction = rules->reduction,
        .output_dtype = rules->output_dtype,
        .indices = ids_of(check->inputs->tensor[BAG_INDICES]),
        .weights = weights ? weights->data : NULL,
        .weights_dtype = weights ? weights->dtype : check->table->dtype,
        .padding_row = -1,
        .last_offset_ends = rules->include_last_offset,
        .skip_outside = rules->skip_out_of_range || rules->prune_invalid,
        .prunes = rules->prune_invalid,
        .skip_unweighted = weights && rules->prune_invalid && weight_divides,
        .unsorted = rules->unsorted_segments && form == BAG_FORM_SEGMENTS,
    };
    if (rules->has_padding_idx)
        args->padding_row = rules->padding_idx < 0 ? rules->padding_idx + check->table->num_rows
                                                   : rules->padding_idx;
}

enum bag_status bag_pool_check(const struct bag_table *table, const struct bag_rules *rules,
                               const struct bag_inputs *inputs, size_t max_result_bytes,
                               struct bag_pool_args *args, struct bag_fault *fault)
{
    struct bag_check check = {table, rules, inputs, fault};
    enum bag_form form;
    enum bag_status status = bag_check_inputs(&check, &form);
    if (status == BAG_STATUS_OK)
        status = bag_check_weights(&check);
    if (status != BAG_STATUS_OK)
        return status;
    take_rules(&check, form, args);
    status = take_default_row(&check, args);
    if (status == BAG_STATUS_OK)
        status = count_bags(&check, args);
    if (status == BAG_STATUS_OK)
        status = check_size(&check, max_result_bytes, args);
    if (status == BAG_STATUS_OK && form == BAG_FORM_OFFSETS)
        status = check_offsets(&check, args);
    if (status == BAG_STATUS_OK && form == BAG_FORM_SEGMENTS)
        status = check_segments(&check, args);
    return status == BAG_STATUS_OK ? check_indices(&check, args) : status;
}
