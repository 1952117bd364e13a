/* KeyedJaggedTensor's layout; see v2_request.h. */
#include "v2_request.h"

#include "kernels/pool_entries.h"

const char *const bag_kjt_input_names[BAG_KJT_INPUT_COUNT] = {
#define BAG_X(id, name) [BAG_KJT_##id] = name,
    BAG_KJT_INPUTS(BAG_X)
#undef BAG_X
};

/* ---- types and shapes ------------------------------------------------------------------------ */

static bool check_tensor(const struct bag_kjt *kjt, enum bag_kjt_input which,
                         struct bag_problem *problem)
{
    const struct bag_tensor *tensor = kjt->tensors[which];
    const char *name = bag_kjt_input_names[which];
    if (!tensor)
        return true;
    bool is_weights = which == BAG_KJT_WEIGHTS;
    /* Which features take UINT64, as keys, each of them says itself. */
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

/* Values, and either lengths or offsets. */
static bool check_presence(const struct bag_kjt *kjt, struct bag_problem *problem)
{
    bool lengths = kjt->tensors[BAG_KJT_LENGTHS], offsets = kjt->tensors[BAG_KJT_OFFSETS];
    if (!kjt->tensors[BAG_KJT_VALUES])
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "input 'values' is missing");
    if (!lengths && !offsets)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "inputs 'lengths' and 'offsets' are missing; 'values' needs one of "
                               "them");
    if (lengths && offsets)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "inputs 'lengths' and 'offsets' say the same; send one of them");
    return true;
}

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

static bool count_bags(struct bag_kjt *kjt, size_t num_features, struct bag_problem *problem)
{
    const struct bag_tensor *lengths = kjt->tensors[BAG_KJT_LENGTHS];
    size_t count = lengths ? lengths->count : kjt->tensors[BAG_KJT_OFFSETS]->count;
    size_t extra = lengths ? 0 : 1; /* the end of the last bag */
    if (count >= extra && (count - extra) % num_features == 0) {
        kjt->num_bags = (count - extra) / num_features;
        return true;
    }
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "'%s' has %zu elements; it must have %s of %zu, the number of features",
                           lengths ? "lengths" : "offsets", count,
                           lengths ? "a multiple" : "one more than a multiple", num_features);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Where the layout is being read. */
struct walk {
    struct bag_kjt *kjt;
    const struct bag_kjt_features *features;
    struct bag_problem *problem;
    struct bag_ids ids; /* lengths or offsets */
    bool by_length;
    size_t num_values;
};

static bool reject_element(const struct walk *walk, size_t position, int64_t value, size_t low)
{
    size_t bag = position - (walk->by_length ? 0 : 1);
    const char *feature =
        walk->features->name_of(walk->features->context, bag / walk->kjt->num_bags);
    bag %= walk->kjt->num_bags;
    if (walk->by_length)
        return bag_problem_set(walk->problem, BAG_ERROR_BAD_REQUEST,
                               "'lengths' at position %zu (feature '%s', bag %zu) is %lld; it must "
                               "be from 0 to %zu, as many 'values' as are left",
                               position, feature, bag, (long long)value, walk->num_values - low);
    return bag_problem_set(walk->problem, BAG_ERROR_BAD_REQUEST,
                           "'offsets' at position %zu (the end of feature '%s', bag %zu) is %lld; "
                           "it must be from %zu, where the bag begins, to %zu, the number of "
                           "'values'",
                           position, feature, bag, (long long)value, low, walk->num_values);
}

/* Where bag number `bag` of all ends, having begun at `begin`. */
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

static bool check_start(const struct walk *walk)
{
    if (walk->by_length || bag_id_at(&walk->ids, 0) == 0)
        return true;
    return bag_problem_set(walk->problem, BAG_ERROR_BAD_REQUEST,
                           "'offsets' at position 0 is %lld; it must be 0",
                           (long long)bag_id_at(&walk->ids, 0));
}

static bool read_offsets(const struct walk *walk)
{
    struct bag_kjt *kjt = walk->kjt;
    int64_t *out = kjt->offsets;
    size_t begin = 0, end = 0;
    for (size_t feature = 0; feature < walk->features->count; feature++) {
        size_t first = begin;
        kjt->firsts[feature] = first;
        *out++ = 0;
        for (size_t bag = 0; bag < kjt->num_bags; bag++) {
            if (!find_end(walk, feature * kjt->num_bags + bag, begin, &end))
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

static bool take_memory(struct bag_kjt *kjt, size_t num_features, struct bag_arena *arena,
                        struct bag_problem *problem)
{
    size_t count;
    if (__builtin_mul_overflow(kjt->num_bags + 1, num_features, &count))
        count = SIZE_MAX; /* which no arena has */
    kjt->offsets = bag_arena_array(arena, count, sizeof *kjt->offsets);
    kjt->firsts = bag_arena_array(arena, num_features + 1, sizeof *kjt->firsts);
    return (kjt->offsets && kjt->firsts) ||
           bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory to decode the request");
}

bool bag_kjt_read(struct bag_kjt *kjt, const struct bag_kjt_features *features,
                  struct bag_arena *arena, struct bag_problem *problem)
{
    if (!check_presence(kjt, problem))
        return false;
    for (int i = 0; i < BAG_KJT_INPUT_COUNT; i++) {
        if (!check_tensor(kjt, (enum bag_kjt_input)i, problem))
            return false;
    }
    if (!check_weights(kjt, problem) || !count_bags(kjt, features->count, problem) ||
        !take_memory(kjt, features->count, arena, problem))
        return false;
    const struct bag_tensor *lengths = kjt->tensors[BAG_KJT_LENGTHS];
    const struct bag_tensor *ends = lengths ? lengths : kjt->tensors[BAG_KJT_OFFSETS];
    struct walk walk = {.kjt = kjt,
                        .features = features,
                        .problem = problem,
                        .ids = {ends->data, ends->count, ends->dtype == BAG_I64},
                        .by_length = lengths != NULL,
                        .num_values = kjt->tensors[BAG_KJT_VALUES]->count};
    return check_start(&walk) && read_offsets(&walk);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* `count` elements of a tensor, from `first` on. */
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
    part->offsets.dtype = BAG_I64;
    part->offsets.rank = 1;
    part->offsets.shape[0] = (int64_t)(kjt->num_bags + 1);
    part->offsets.count = kjt->num_bags + 1;
    part->offsets.data = kjt->offsets + feature * (kjt->num_bags + 1);
}
