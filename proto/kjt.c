/* Reads KeyedJaggedTensor's layout; see v2_request.h. */
#include "v2_request.h"

#include "kernels/pool_entries.h"

const char *const bag_kjt_input_names[BAG_KJT_INPUT_COUNT] = {BAG_KJT_INPUTS(BAG_NAME)};

/* ---- types and shapes ------------------------------------------------------------------------ */

/* Checks the type and the rank of a tensor. A tensor that was not sent is right. */
static bool check_tensor(const struct bag_kjt *kjt, enum bag_kjt_input which,
                         struct bag_problem *problem)
{
    const struct bag_tensor *tensor = kjt->tensors[which];
    const char *name = bag_kjt_input_names[which];
    if (!tensor)
        return true;
    bool is_weights = which == BAG_KJT_WEIGHTS;
    /* Each feature checks whether it accepts UINT64, which only keys may have. */
    bool fits = is_weights ? tensor->dtype == BAG_F32
                           : tensor->dtype == BAG_I32 || tensor->dtype == BAG_I64 ||
                                 (tensor->dtype == BAG_U64 && which == BAG_KJT_VALUES);
    if (!fits)
        return bag_problem_set(
            problem, BAG_ERROR_BAD_REQUEST, "'%s' has datatype %s; it must be %s", name,
            bag_dtypes[tensor->dtype].name,
            is_weights                ? "FP32"
            : which == BAG_KJT_VALUES ? "INT32 or INT64, or UINT64 where they are keys"
                                      : "INT32 or INT64");
    return tensor->rank == 1 ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "'%s' has %u dimensions; it must have 1",
                           name, (unsigned)tensor->rank);
}

/* Returns the tensor that divides the values among the bags: the lengths, or the offsets.
 * bag_kjt_read() has made sure that there is exactly one. */
static const struct bag_tensor *bounds_of(const struct bag_kjt *kjt)
{
    const struct bag_tensor *lengths = kjt->tensors[BAG_KJT_LENGTHS];
    return lengths ? lengths : kjt->tensors[BAG_KJT_OFFSETS];
}

/* Checks that there are as many weights as values, or none. */
static bool check_weights(const struct bag_kjt *kjt, struct bag_problem *problem)
{
    const struct bag_tensor *weights = kjt->tensors[BAG_KJT_WEIGHTS];
    size_t count = kjt->tensors[BAG_KJT_VALUES]->count;
    return !weights || weights->count == count ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "'weights' has %zu elements; 'values' has %zu, and both must have as "
                           "many",
                           weights->count, count);
}

/* Divides the bags among the features by `stride_per_key`. */
static bool read_strides(struct bag_kjt *kjt, const struct bag_kjt_features *features,
                         struct bag_problem *problem)
{
    /* Offsets have one element more than bags, the end of the last bag. */
    const struct bag_tensor *strides = kjt->tensors[BAG_KJT_STRIDES];
    const struct bag_ids ids = {strides->data, strides->count, strides->dtype == BAG_I64};
    const size_t extra = kjt->tensors[BAG_KJT_LENGTHS] ? 0 : 1, count = bounds_of(kjt)->count;
    const size_t num_bags = count < extra ? 0 : count - extra;
    size_t sum = 0;
    if (strides->count != features->count)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "'stride_per_key' has %zu elements; it must have %zu, the number of "
                               "features",
                               strides->count, features->count);
    for (size_t feature = 0; feature < features->count; feature++) {
        int64_t stride = bag_id_at(&ids, feature);
        kjt->first_bags[feature] = sum;
        if (stride < 0 || (uint64_t)stride > num_bags - sum) {
            bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                            "'stride_per_key' at position %zu (feature '%s') is %lld; it must be "
                            "from 0 to %zu, as many bags as '%s' has left",
                            feature, features->name_of(features->context, feature),
                            (long long)stride, num_bags - sum,
                            bag_kjt_input_names[extra ? BAG_KJT_OFFSETS : BAG_KJT_LENGTHS]);
            return bag_problem_at(problem, "stride_per_key", feature);
        }
        sum += (size_t)stride;
    }
    kjt->first_bags[features->count] = sum;
    return (count >= extra && sum == num_bags) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "'stride_per_key' adds up to %zu bags; '%s' has %zu elements and must "
                           "have %zu",
                           sum, bag_kjt_input_names[extra ? BAG_KJT_OFFSETS : BAG_KJT_LENGTHS],
                           count, sum + extra);
}

/* Divides the bags evenly among the features. */
static bool divide_bags(struct bag_kjt *kjt, size_t num_features, struct bag_problem *problem)
{
    const struct bag_tensor *lengths = kjt->tensors[BAG_KJT_LENGTHS];
    size_t count = bounds_of(kjt)->count;
    size_t extra = lengths ? 0 : 1; /* the end of the last bag */
    if (count >= extra && (count - extra) % num_features == 0) {
        for (size_t feature = 0; feature <= num_features; feature++)
            kjt->first_bags[feature] = (count - extra) / num_features * feature;
        return true;
    }
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "'%s' has %zu elements; it must have %s of %zu, the number of features",
                           lengths ? "lengths" : "offsets", count,
                           lengths ? "a multiple" : "one more than a multiple", num_features);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* The state of reading the layout. */
struct walk {
    struct bag_kjt *kjt;
    const struct bag_kjt_features *features;
    struct bag_problem *problem;
    struct bag_ids ids; /* lengths or offsets */
    bool by_length;
    size_t num_values;
};

/* Rejects an element of the lengths or offsets and names the feature and the bag that it belongs
 * to. `low` is where the bag begins in the values. Returns false. */
static bool reject_element(const struct walk *walk, size_t position, int64_t value, size_t low)
{
    /* Find the feature that has the bag. */
    size_t bag = position - (walk->by_length ? 0 : 1), number = 0;
    while (bag >= walk->kjt->first_bags[number + 1])
        number++;
    const char *feature = walk->features->name_of(walk->features->context, number);
    bag -= walk->kjt->first_bags[number];
    if (walk->by_length)
        bag_problem_set(walk->problem, BAG_ERROR_BAD_REQUEST,
                        "'lengths' at position %zu (feature '%s', bag %zu) is %lld; it must "
                        "be from 0 to %zu, as many 'values' as are left",
                        position, feature, bag, (long long)value, walk->num_values - low);
    else
        bag_problem_set(walk->problem, BAG_ERROR_BAD_REQUEST,
                        "'offsets' at position %zu (the end of feature '%s', bag %zu) is %lld; "
                        "it must be from %zu, where the bag begins, to %zu, the number of "
                        "'values'",
                        position, feature, bag, (long long)value, low, walk->num_values);
    return bag_problem_at(walk->problem, walk->by_length ? "lengths" : "offsets", position);
}

/* Finds the end of bag number `bag` of all, which begins at `begin`. */
static bool find_end(const struct walk *walk, size_t bag, size_t begin, size_t *end)
{
    size_t position = bag + (walk->by_length ? 0 : 1);
    size_t most = walk->num_values - (walk->by_length ? begin : 0);
    size_t least = walk->by_length ? 0 : begin;
    int64_t value = bag_id_at(&walk->ids, position);
    if (value < 0 || (uint64_t)value > most || (uint64_t)value < least)
        return reject_element(walk, position, value, begin);
    *end = (size_t)value + (walk->by_length ? begin : 0);
    return true;
}

/* Checks that the first offset is 0. Lengths have no such element. */
static bool check_start(const struct walk *walk)
{
    if (walk->by_length || bag_id_at(&walk->ids, 0) == 0)
        return true;
    bag_problem_set(walk->problem, BAG_ERROR_BAD_REQUEST,
                    "'offsets' at position 0 is %lld; it must be 0",
                    (long long)bag_id_at(&walk->ids, 0));
    return bag_problem_at(walk->problem, "offsets", 0);
}

/* Fills kjt->offsets and kjt->firsts by walking over the bags of all features. Returns false and
 * sets the problem if the bags do not cover exactly the values. */
static bool read_offsets(const struct walk *walk)
{
    struct bag_kjt *kjt = walk->kjt;
    int64_t *out = kjt->offsets;
    size_t begin = 0, end = 0;
    for (size_t feature = 0; feature < walk->features->count; feature++) {
        size_t first = begin;
        kjt->firsts[feature] = first;
        *out++ = 0;
        for (size_t bag = kjt->first_bags[feature]; bag < kjt->first_bags[feature + 1]; bag++) {
            if (!find_end(walk, bag, begin, &end))
                return false;
            *out++ = (int64_t)(end - first);
            begin = end;
        }
    }
    kjt->firsts[walk->features->count] = end;
    return end == walk->num_values ||
           bag_problem_set(walk->problem, BAG_ERROR_BAD_REQUEST,
                           "'%s' counts %zu 'values', of which there are %zu: each must belong to "
                           "a bag",
                           walk->by_length ? "lengths" : "offsets", end, walk->num_values);
}

/* Allocates the arrays of *kjt. All offsets together are at most the bags and, for each feature,
 * one end. Returns false and sets *problem if the arena is used up. */
static bool take_memory(struct bag_kjt *kjt, size_t num_features, struct bag_arena *arena,
                        struct bag_problem *problem)
{
    size_t count;
    if (__builtin_add_overflow(bounds_of(kjt)->count, num_features, &count))
        count = SIZE_MAX; /* no arena has this much */
    kjt->offsets = bag_arena_array(arena, count, sizeof *kjt->offsets);
    kjt->firsts = bag_arena_array(arena, 2 * (num_features + 1), sizeof *kjt->firsts);
    kjt->first_bags = kjt->firsts + num_features + 1;
    return (kjt->offsets && kjt->firsts) ||
           bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory to decode the request");
}

bool bag_kjt_read(struct bag_kjt *kjt, const struct bag_kjt_features *features,
                  struct bag_arena *arena, struct bag_problem *problem)
{
    /* Check that there are values, and either lengths or offsets. */
    bool lengths = kjt->tensors[BAG_KJT_LENGTHS], offsets = kjt->tensors[BAG_KJT_OFFSETS];
    if (!lengths && !offsets && kjt->tensors[BAG_KJT_STRIDES])
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "'stride_per_key' needs 'values' and 'lengths', or 'offsets', "
                               "whose bags it divides among the features");
    if (!kjt->tensors[BAG_KJT_VALUES])
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "input 'values' is missing");
    if (!lengths && !offsets)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "inputs 'lengths' and 'offsets' are missing; 'values' needs one of "
                               "them");
    if (lengths && offsets)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "inputs 'lengths' and 'offsets' say the same; send one of them");
    for (int i = 0; i < BAG_KJT_INPUT_COUNT; i++) {
        if (!check_tensor(kjt, (enum bag_kjt_input)i, problem))
            return false;
    }
    if (!check_weights(kjt, problem) || !take_memory(kjt, features->count, arena, problem) ||
        !(kjt->tensors[BAG_KJT_STRIDES] ? read_strides(kjt, features, problem)
                                        : divide_bags(kjt, features->count, problem)))
        return false;
    const struct bag_tensor *ends = bounds_of(kjt);
    struct walk walk = {.kjt = kjt,
                        .features = features,
                        .problem = problem,
                        .ids = {ends->data, ends->count, ends->dtype == BAG_I64},
                        .by_length = kjt->tensors[BAG_KJT_LENGTHS] != NULL,
                        .num_values = kjt->tensors[BAG_KJT_VALUES]->count};
    return check_start(&walk) && read_offsets(&walk);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Sets *part to `count` elements of a tensor, from `first` on. */
static void split(const struct bag_tensor *whole, size_t first, size_t count,
                  struct bag_tensor *part)
{
    part->dtype = whole->dtype;
    part->rank = 1;
    part->shape[0] = (int64_t)count;
    part->count = count;
    part->data = (const char *)whole->data + first * bag_dtypes[whole->dtype].bytes;
}

void bag_kjt_part(const struct bag_kjt *kjt, size_t feature, struct bag_kjt_part *part)
{
    size_t first = kjt->firsts[feature], count = kjt->firsts[feature + 1] - first;
    split(kjt->tensors[BAG_KJT_VALUES], first, count, &part->indices);
    if (kjt->tensors[BAG_KJT_WEIGHTS])
        split(kjt->tensors[BAG_KJT_WEIGHTS], first, count, &part->weights);
    const size_t first_bag = kjt->first_bags[feature];
    const size_t num_offsets = kjt->first_bags[feature + 1] - first_bag + 1;
    part->offsets.dtype = BAG_I64;
    part->offsets.rank = 1;
    part->offsets.shape[0] = (int64_t)num_offsets;
    part->offsets.count = num_offsets;
    part->offsets.data = kjt->offsets + first_bag + feature;
}
