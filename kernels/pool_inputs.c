/* Checks types and shapes of a call's tensors; see pool_check.c. */
#include "pool_check.h"

/* Checks the type of an index tensor. Keys may be UINT64. */
static enum bag_status check_index_type(const struct bag_check *check, enum bag_input which,
                                        enum bag_status wrong_dtype)
{
    enum bag_dtype dtype = bag_check_input(check, which)->dtype;
    bool is_key = check->rules->keyed && (which == BAG_INDICES || which == BAG_DEFAULT_INDEX);
    if (dtype == BAG_I32 || dtype == BAG_I64 || (is_key && dtype == BAG_U64))
        return BAG_STATUS_OK;
    return bag_check_fails(
        check, (struct bag_fault){.status = is_key ? BAG_STATUS_KEYS_DTYPE : wrong_dtype,
                                  .input = which,
                                  .got = dtype});
}

static enum bag_status find_form(const struct bag_check *check, enum bag_form *form)
{
    bool offsets = bag_check_input(check, BAG_OFFSETS) != NULL;
    bool segments = bag_check_input(check, BAG_SEGMENT_IDS) != NULL;
    if (bag_check_input(check, BAG_INDICES) == NULL)
        return bag_check_fails(
            check, (struct bag_fault){.status = BAG_STATUS_MISSING_INPUT, .input = BAG_INDICES});
    if (offsets && segments)
        return bag_check_fails(check, (struct bag_fault){.status = BAG_STATUS_UNEXPECTED_INPUT,
                                                         .input = BAG_SEGMENT_IDS});
    if (bag_check_input(check, BAG_NUM_SEGMENTS) && !segments)
        return bag_check_fails(check, (struct bag_fault){.status = BAG_STATUS_UNEXPECTED_INPUT,
                                                         .input = BAG_NUM_SEGMENTS});
    *form = offsets ? BAG_FORM_OFFSETS : segments ? BAG_FORM_SEGMENTS : BAG_FORM_PACKED;
    return BAG_STATUS_OK;
}

static __attribute__((noinline)) enum bag_status
check_present_ids(const struct bag_check *check, enum bag_input which, uint32_t rank,
                  enum bag_status wrong_dtype, enum bag_status wrong_rank)
{
    const struct bag_tensor *tensor = bag_check_input(check, which);
    enum bag_status status = check_index_type(check, which, wrong_dtype);
    if (status == BAG_STATUS_OK && tensor->rank != rank)
        return bag_check_fails(
            check, (struct bag_fault){
                       .status = wrong_rank, .input = which, .value = tensor->rank, .low = rank});
    return status;
}

/* Checks an array of ids that must have `rank` dimensions. The input must exist. */
static inline enum bag_status check_ids(const struct bag_check *check, enum bag_input which,
                                        uint32_t rank, enum bag_status wrong_dtype,
                                        enum bag_status wrong_rank)
{
    const struct bag_tensor *tensor = bag_check_input(check, which);
    if ((tensor->dtype == BAG_I32 || tensor->dtype == BAG_I64) && tensor->rank == rank)
        return BAG_STATUS_OK;
    return check_present_ids(check, which, rank, wrong_dtype, wrong_rank);
}

static enum bag_status check_present_scalar(const struct bag_check *check, enum bag_input which,
                                            enum bag_status wrong_dtype, enum bag_status not_scalar)
{
    const struct bag_tensor *tensor = bag_check_input(check, which);
    enum bag_status status = check_index_type(check, which, wrong_dtype);
    if (status == BAG_STATUS_OK && (tensor->rank > 1 || tensor->count != 1))
        return bag_check_fails(check, (struct bag_fault){.status = not_scalar,
                                                         .input = which,
                                                         .value = (int64_t)tensor->count,
                                                         .low = tensor->rank});
    return status;
}

/* A single id of shape [] or [1]; an absent tensor is fine. */
static inline enum bag_status check_scalar(const struct bag_check *check, enum bag_input which,
                                           enum bag_status wrong_dtype, enum bag_status not_scalar)
{
    return bag_check_input(check, which)
               ? check_present_scalar(check, which, wrong_dtype, not_scalar)
               : BAG_STATUS_OK;
}

static enum bag_status check_segment_count(const struct bag_check *check)
{
    const struct bag_tensor *ids = bag_check_input(check, BAG_SEGMENT_IDS);
    size_t num_indices = bag_check_input(check, BAG_INDICES)->count;
    if (ids->count == num_indices)
        return BAG_STATUS_OK;
    return bag_check_fails(check,
                           (struct bag_fault){.status = BAG_STATUS_SEGMENT_IDS_SHAPE_MISMATCH,
                                              .input = BAG_SEGMENT_IDS,
                                              .value = (int64_t)ids->count,
                                              .low = (int64_t)num_indices});
}

/* Returns whether the table accepts weights of this type: its own type, and FP32 for every float
 * table. */
static bool takes_weights(const struct bag_check *check, enum bag_dtype dtype)
{
    enum bag_dtype own = check->table->dtype;
    return dtype == own || (dtype == BAG_F32 && bag_dtypes[own].kind == BAG_KIND_FLOAT);
}

/* Checks that all index tensors have one type. OpenVINO's operations have only one, and a model may
 * require it. */
static __attribute__((noinline)) enum bag_status check_same_type(const struct bag_check *check)
{
    enum bag_dtype want = bag_check_input(check, BAG_INDICES)->dtype;
    for (int i = 0; i < BAG_INPUT_COUNT; i++) {
        const struct bag_tensor *tensor = bag_check_input(check, (enum bag_input)i);
        if (i != BAG_PER_SAMPLE_WEIGHTS && tensor && tensor->dtype != want)
            return bag_check_fails(check,
                                   (struct bag_fault){.status = BAG_STATUS_INDEX_TYPE_MISMATCH,
                                                      .input = (enum bag_input)i,
                                                      .got = tensor->dtype,
                                                      .want = want});
    }
    return BAG_STATUS_OK;
}

static __attribute__((noinline)) enum bag_status check_segment_inputs(const struct bag_check *check)
{
    enum bag_status status = check_ids(check, BAG_SEGMENT_IDS, 1, BAG_STATUS_SEGMENT_IDS_DTYPE,
                                       BAG_STATUS_SEGMENT_IDS_RANK);
    if (status == BAG_STATUS_OK)
        status = check_segment_count(check);
    return status == BAG_STATUS_OK
               ? check_scalar(check, BAG_NUM_SEGMENTS, BAG_STATUS_NUM_SEGMENTS_DTYPE,
                              BAG_STATUS_NUM_SEGMENTS_NOT_SCALAR)
               : status;
}

/* Checks the inputs of a call that does not pool: indices of any shape, each a bag. */
static enum bag_status check_unpooled_ids(const struct bag_check *check, enum bag_form *form)
{
    enum bag_input segments =
        bag_check_input(check, BAG_SEGMENT_IDS) ? BAG_SEGMENT_IDS : BAG_NUM_SEGMENTS;
    *form = BAG_FORM_PACKED;
    if (!bag_check_input(check, BAG_INDICES))
        return bag_check_fails(
            check, (struct bag_fault){.status = BAG_STATUS_MISSING_INPUT, .input = BAG_INDICES});
    if (bag_check_input(check, segments))
        return bag_check_fails(
            check,
            (struct bag_fault){.status = BAG_STATUS_SEGMENTS_NOT_SUPPORTED, .input = segments});
    return check_index_type(check, BAG_INDICES, BAG_STATUS_INDICES_DTYPE);
}

static enum bag_status check_pooled_ids(const struct bag_check *check, enum bag_form *form)
{
    enum bag_status status = find_form(check, form);
    return status == BAG_STATUS_OK ? check_ids(check, BAG_INDICES, *form == BAG_FORM_PACKED ? 2 : 1,
                                               BAG_STATUS_INDICES_DTYPE, BAG_STATUS_INDICES_RANK)
                                   : status;
}

enum bag_status bag_check_inputs(const struct bag_check *check, enum bag_form *form)
{
    bool pools = check->rules->reduction != BAG_NONE;
    enum bag_status status = (pools ? check_pooled_ids : check_unpooled_ids)(check, form);
    if (status == BAG_STATUS_OK && bag_check_input(check, BAG_OFFSETS))
        status =
            check_ids(check, BAG_OFFSETS, 1, BAG_STATUS_OFFSETS_DTYPE, BAG_STATUS_OFFSETS_RANK);
    if (status == BAG_STATUS_OK && *form == BAG_FORM_SEGMENTS)
        status = check_segment_inputs(check);
    if (status == BAG_STATUS_OK)
        status = check_scalar(check, BAG_DEFAULT_INDEX, BAG_STATUS_DEFAULT_INDEX_DTYPE,
                              BAG_STATUS_DEFAULT_INDEX_NOT_SCALAR);
    return status == BAG_STATUS_OK && check->rules->require_matching_index_types
               ? check_same_type(check)
               : status;
}

static enum bag_dtype wanted_weights(const struct bag_check *check)
{
    return takes_weights(check, BAG_F32) ? BAG_F32 : check->table->dtype;
}

static bool same_shape(const struct bag_tensor *a, const struct bag_tensor *b)
{
    bool same = a->rank == b->rank;
    for (uint32_t i = 0; same && i < a->rank; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

enum bag_status bag_check_weights(const struct bag_check *check)
{
    const struct bag_tensor *weights = bag_check_input(check, BAG_PER_SAMPLE_WEIGHTS);
    const struct bag_tensor *indices = bag_check_input(check, BAG_INDICES);
    const struct bag_rules *rules = check->rules;
    if (!weights)
        return BAG_STATUS_OK;
    struct bag_fault fault = {.input = BAG_PER_SAMPLE_WEIGHTS,
                              .got = weights->dtype,
                              .want = wanted_weights(check),
                              .value = (int64_t)weights->count,
                              .low = weights->rank,
                              .high = (int64_t)indices->count,
                              .reduction = rules->reduction};
    if (rules->reduction == BAG_MAX || rules->reduction == BAG_NONE ||
        (rules->reduction == BAG_MEAN && !rules->weighted_mean))
        fault.status = BAG_STATUS_WEIGHTS_NOT_SUPPORTED;
    else if (!takes_weights(check, weights->dtype))
        fault.status = BAG_STATUS_WEIGHTS_DTYPE_MISMATCH;
    else if (!same_shape(weights, indices))
        fault.status = BAG_STATUS_WEIGHTS_SHAPE_MISMATCH;
    else
        return BAG_STATUS_OK;
    return bag_check_fails(check, fault);
}
