/* Checks a call: the rules of a model before any request, and then the tensors of a client. The
 * result is a struct bag_pool_args, or the first fault.
 *
 * A request's cheap properties are checked first: types and shapes (pool_inputs.c), then scalars
 * and the size of the result. The loops over offsets, segment ids and indices come last. */
#include "pool_check.h"
#include "pool_loop.h"

/* ---- rules ----------------------------------------------------------------------------------- */

/* Returns whether the type is one of those that a result can be converted between. */
static bool converts(enum bag_dtype dtype)
{
    return dtype == BAG_F16 || dtype == BAG_BF16 || dtype == BAG_F32;
}

static enum bag_status out_of_range(enum bag_status status, int64_t value, int64_t low,
                                    int64_t high, struct bag_fault *fault)
{
    *fault = (struct bag_fault){.status = status, .value = value, .low = low, .high = high};
    return status;
}

enum bag_status bag_rules_check(const struct bag_table *table, const struct bag_rules *rules,
                                struct bag_fault *fault)
{
    *fault = (struct bag_fault){.got = table->dtype, .want = table->dtype};
    if (rules->reduction == BAG_SQRTN && bag_dtypes[table->dtype].kind != BAG_KIND_FLOAT)
        return fault->status = BAG_STATUS_UNSUPPORTED_REDUCTION;
    if (rules->output_dtype != table->dtype &&
        !(converts(rules->output_dtype) && converts(table->dtype))) {
        fault->got = rules->output_dtype;
        return fault->status = BAG_STATUS_OUTPUT_DTYPE;
    }
    int64_t last_row = table->num_rows - 1;
    if (rules->keyed)
        return BAG_STATUS_OK;
    if (rules->default_index < -1 || rules->default_index > last_row)
        return out_of_range(BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE, rules->default_index, 0,
                            last_row, fault);
    if (rules->has_padding_idx &&
        (rules->padding_idx < -table->num_rows || rules->padding_idx > last_row))
        return out_of_range(BAG_STATUS_PADDING_IDX_OUT_OF_RANGE, rules->padding_idx,
                            -table->num_rows, last_row, fault);
    return BAG_STATUS_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static struct bag_ids ids_of(const struct bag_tensor *tensor)
{
    return (struct bag_ids){tensor->data, tensor->count, tensor->dtype != BAG_I32};
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
    if (!tensor && check->rules->missing != BAG_MISSING_DEFAULT)
        return BAG_STATUS_OK;
    args->default_row = tensor ? scalar_of(tensor) : check->rules->default_index;
    if (check->rules->keyed) {
        args->default_row = -1;
        return BAG_STATUS_OK;
    }
    if (args->default_row == -1 && check->rules->missing == BAG_MISSING_DEFAULT)
        return bag_check_fails(check, (struct bag_fault){.status = BAG_STATUS_DEFAULT_ROW_NEEDED,
                                                         .input = BAG_DEFAULT_INDEX,
                                                         .low = 0,
                                                         .high = last_row});
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

/* Counts the segments. Without num_segments, the last id determines their number. Wrong ids are
 * found later. */
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

/* Makes every index a bag. Bags of offsets are counted only to check them. The default row only
 * replaces indices outside the table. */
static enum bag_status count_rows(const struct bag_check *check, struct bag_pool_args *args)
{
    const struct bag_tensor *offsets = bag_check_input(check, BAG_OFFSETS);
    enum bag_status status = BAG_STATUS_OK;
    if (offsets) {
        args->groups = ids_of(offsets);
        status = count_offsets(check, args);
    }
    if (check->rules->missing != BAG_MISSING_DEFAULT)
        args->default_row = -1;
    args->num_bags = args->indices.count;
    args->bag_length = 1;
    return status;
}

static enum bag_status count_bags(const struct bag_check *check, struct bag_pool_args *args)
{
    const struct bag_tensor *indices = check->inputs->tensor[BAG_INDICES];
    if (args->reduction == BAG_NONE)
        return count_rows(check, args);
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
    size_t bag_bytes;
    bool overflow =
        __builtin_mul_overflow(check->table->row_elements, args->element_bytes, &bag_bytes);
    overflow |= __builtin_mul_overflow(args->num_bags, bag_bytes, &args->result_bytes);
    args->bag_stride = bag_bytes;
    if (!overflow && args->result_bytes <= max_result_bytes)
        return BAG_STATUS_OK;
    enum bag_input says = args->form == BAG_FORM_OFFSETS             ? BAG_OFFSETS
                          : args->form == BAG_FORM_PACKED            ? BAG_INDICES
                          : bag_check_input(check, BAG_NUM_SEGMENTS) ? BAG_NUM_SEGMENTS
                                                                     : BAG_SEGMENT_IDS;
    return bag_check_fails(check, (struct bag_fault){.status = BAG_STATUS_RESULT_TOO_LARGE,
                                                     .input = says,
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

/* Finds the first position at which an id is outside of the bounds or, if that is a fault, less
 * than the one before. */
static __attribute__((noinline)) enum bag_status
find_bad_group(const struct bag_check *check, enum bag_input which, const struct bag_ids *ids,
               int64_t high, enum bag_status outside, enum bag_status descending)
{
    struct bag_id_bounds bounds = {.high = high, .ascending = descending != BAG_STATUS_OK};
    size_t bad = bag_ids_first_bad(ids, &bounds);
    int64_t id = bag_id_at(ids, bad);
    if (id < 0 || id > high)
        return fails_at(check, outside, which, ids, bad, 0, high);
    return fails_at(check, descending, which, ids, bad, bag_id_at(ids, bad - 1), high);
}

/* Checks that ids are in [0, high] and, if `descending` is a fault, do not decrease. */
static inline enum bag_status check_groups(const struct bag_check *check, enum bag_input which,
                                           const struct bag_ids *ids, int64_t high,
                                           enum bag_status outside, enum bag_status descending)
{
    struct bag_id_bounds bounds = {.high = high, .ascending = descending != BAG_STATUS_OK};
    if (bag_ids_valid(ids, &bounds))
        return BAG_STATUS_OK;
    return find_bad_group(check, which, ids, high, outside, descending);
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

/* Checks the segment ids. Without num_segments no id is too large, because sorted ids cannot exceed
 * the last one. */
static enum bag_status check_segments(const struct bag_check *check,
                                      const struct bag_pool_args *args)
{
    bool counted = check->inputs->tensor[BAG_NUM_SEGMENTS] != NULL;
    return check_groups(check, BAG_SEGMENT_IDS, &args->groups,
                        counted ? (int64_t)args->num_bags - 1 : INT64_MAX,
                        BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE,
                        args->unsorted ? BAG_STATUS_OK : BAG_STATUS_SEGMENT_IDS_NOT_SORTED);
}

static __attribute__((noinline)) enum bag_status find_bad_index(const struct bag_check *check,
                                                                const struct bag_ids *ids)
{
    struct bag_id_bounds bounds = {.any_negative = check->rules->prune_invalid,
                                   .high = check->table->num_rows - 1};
    size_t bad = bag_ids_first_bad(ids, &bounds);
    return fails_at(check, BAG_STATUS_INDEX_OUT_OF_RANGE, BAG_INDICES, ids, bad, 0, bounds.high);
}

static enum bag_status check_indices(const struct bag_check *check,
                                     const struct bag_pool_args *args)
{
    struct bag_id_bounds bounds = {.any_negative = check->rules->prune_invalid,
                                   .high = check->table->num_rows - 1};
    if (check->rules->keyed || check->rules->missing != BAG_MISSING_ERROR)
        return BAG_STATUS_OK;
    return bag_ids_valid(&args->indices, &bounds) ? BAG_STATUS_OK
                                                  : find_bad_index(check, &args->indices);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Copies the plan's part of a call, and sets the tensors. */
static void take_inputs(const struct bag_check *check, enum bag_form form,
                        struct bag_pool_args *args)
{
    const struct bag_rules *rules = check->rules;
    const struct bag_tensor *weights = bag_check_input(check, BAG_PER_SAMPLE_WEIGHTS);
    memcpy(args, &check->plan->args, offsetof(struct bag_pool_args, indices));
    args->tiles = NULL;
    args->form = form;
    args->indices = ids_of(bag_check_input(check, BAG_INDICES));
    bag_set_ahead(&check->plan->walk, args->indices.count, args);
    if (form == BAG_FORM_SEGMENTS)
        args->unsorted = rules->unsorted_segments;
    if (!weights)
        return;
    args->weights = weights->data;
    args->weights_dtype = weights->dtype;
    args->skip_unweighted =
        rules->prune_invalid && (rules->reduction == BAG_MEAN || rules->reduction == BAG_SQRTN);
}

enum bag_status bag_pool_check_all(const struct bag_pool_plan *plan,
                                   const struct bag_inputs *inputs, size_t max_result_bytes,
                                   struct bag_pool_args *args, struct bag_fault *fault)
{
    const struct bag_check check = {plan, &plan->args.table, &plan->rules, inputs, fault};
    enum bag_form form;
    enum bag_status status = bag_check_inputs(&check, &form);
    if (status == BAG_STATUS_OK)
        status = bag_check_weights(&check);
    if (status != BAG_STATUS_OK)
        return status;
    take_inputs(&check, form, args);
    status = take_default_row(&check, args);
    if (status == BAG_STATUS_OK)
        status = count_bags(&check, args);
    if (status == BAG_STATUS_OK)
        status = check_size(&check, max_result_bytes, args);
    if (status == BAG_STATUS_OK && bag_check_input(&check, BAG_OFFSETS))
        status = check_offsets(&check, args);
    if (status == BAG_STATUS_OK && form == BAG_FORM_SEGMENTS)
        status = check_segments(&check, args);
    return status == BAG_STATUS_OK ? check_indices(&check, args) : status;
}
