/* Ids and entries. An entry is a position of the indices: a row, with a weight if there are
 * weights. These functions determine which entries count, by what the sum of a bag is divided, and
 * to which bag an entry belongs. */
#pragma once

#include "pool.h"
#include "rowformat.h"

#include <string.h>

/* ---- ids: int32 or int64 elements at any alignment ------------------------------------------- */

static inline int64_t bag_id_at(const struct bag_ids *ids, size_t position)
{
    if (ids->wide) {
        int64_t value;
        memcpy(&value, (const char *)ids->data + position * sizeof value, sizeof value);
        return value;
    }
    int32_t value;
    memcpy(&value, (const char *)ids->data + position * sizeof value, sizeof value);
    return value;
}

/* The bounds of an array of ids. */
struct bag_id_bounds {
    bool any_negative; /* negative ids are allowed */
    int64_t high;      /* largest allowed id; at least -1 */
    bool ascending;    /* no id may be less than the one before it, or negative */
};

/* Returns the first position whose id is not within the bounds, or ids->count if there is none.
 * bag_ids_valid determines faster whether there is one. */
size_t bag_ids_first_bad(const struct bag_ids *ids, const struct bag_id_bounds *bounds);

/* Returns the largest id, or -1 if all are negative or there are none. */
int64_t bag_ids_max(const struct bag_ids *ids);

/* Returns the first position in [from, ids->count] from which on all ids, which are sorted, are at
 * least `value`. */
size_t bag_ids_lower_bound(const struct bag_ids *ids, size_t from, int64_t value);

/* ---- status, to explain a result ------------------------------------------------------------- */

/* X(ID, name) */
#define BAG_ENTRY_STATUSES(X)  \
    X(KEPT, "kept")            \
    X(PADDING, "padding")      \
    X(PRUNED, "pruned")        \
    X(OUTSIDE, "out_of_range") \
    X(MISSING, "missing")      \
    X(OTHER, "other_part")

enum bag_entry_status {
#define BAG_X(id, name) BAG_ENTRY_##id,
    BAG_ENTRY_STATUSES(BAG_X)
#undef BAG_X
        BAG_ENTRY_COUNT
};

extern const char *const bag_entry_status_names[BAG_ENTRY_COUNT];

/* Values with which bag_keys_resolve replaces indices and keys that have no row. PADDING stands for
 * padding, OTHER for ids of another part, and MISSING for all others. BEHIND stands for indices
 * after the last row of a table of which this is a part. */
#define BAG_ROW_MISSING (-1)
#define BAG_ROW_PADDING (-2)
#define BAG_ROW_OTHER   (-3)
#define BAG_ROW_BEHIND  INT64_MAX

/* Returns the status of an entry: why it does not count. If another row replaced the entry, returns
 * why it was replaced, OUTSIDE or MISSING, whether the row counts or not. */
enum bag_entry_status bag_pool_entry_status(const struct bag_pool_args *args, size_t entry);

/* ---- bags ------------------------------------------------------------------------------------ */

/* Returns the first entry of bag number `bag`, 0 <= bag <= num_bags. For num_bags it is the end of
 * the last bag. */
size_t bag_pool_first_entry(const struct bag_pool_args *args, size_t bag);

/* Returns the first entry of a bag in the offsets form. After the last offset it is the end of the
 * last bag. */
static inline size_t bag_offset_at(const struct bag_pool_args *args, size_t bag)
{
    return bag < args->groups.count ? (size_t)bag_id_at(&args->groups, bag) : args->indices.count;
}

/* The number of bags whose bounds are found at a time, in a small array on the stack. */
#define BAG_BOUNDS 256

/* Fills bounds[0 .. end_bag - first_bag] with the first entries of bags of the result. `*hint` is 0
 * before the first call and carries the search from one run of bags to the next. */
void bag_pool_bounds(const struct bag_pool_args *args, size_t first_bag, size_t end_bag,
                     size_t *hint, size_t *bounds);

/* ---- weights --------------------------------------------------------------------------------- */

/* Returns the weight of an entry with weights of f16, bf16 or f32. */
static inline float bag_weight_f32(const struct bag_pool_args *args, size_t entry)
{
    if (args->weights_dtype == BAG_F16)
        return bag_f32_from_f16(bag_load_u16(args->weights, entry));
    if (args->weights_dtype == BAG_BF16)
        return bag_f32_from_bf16(bag_load_u16(args->weights, entry));
    return bag_load_f32(args->weights, entry);
}

/* Returns the weight of an entry of a table of f64. */
static inline double bag_weight_f64(const struct bag_pool_args *args, size_t entry)
{
    return args->weights_dtype == BAG_F32 ? (double)bag_load_f32(args->weights, entry)
                                          : bag_load_f64(args->weights, entry);
}

/* Returns whether the weight is above zero. A NaN is not. */
bool bag_weight_counts(const struct bag_pool_args *args, size_t entry);

/* ---- which entries count --------------------------------------------------------------------- */

/* Returns whether every entry counts, so that entries need not be tested. */
static inline bool bag_keeps_all(const struct bag_pool_args *args)
{
    return !((args->padding_row >= 0) | args->skip_outside | args->skip_unweighted);
}

/* Returns whether an entry, whose index is `row`, stays in its bag. */
static inline bool bag_keeps(const struct bag_pool_args *args, size_t entry, int64_t row)
{
    if (row == args->padding_row)
        return false;
    if (args->skip_outside && (row < 0 || row >= args->table.num_rows))
        return false;
    return !args->skip_unweighted || bag_weight_counts(args, entry);
}

/* Returns the number of entries of [first, end) that stay. */
size_t bag_count_kept(const struct bag_pool_args *args, size_t first, size_t end);

/* ---- divisors -------------------------------------------------------------------------------- */

/* The divisor of a bag's sum: the number of entries that stay or, with weights, the sum of their
 * weights (of the squares for sqrtn). Every kernel adds them in index order. If it is zero, the
 * result is zero instead of a quotient. */
#define BAG_DEFINE_DIVISOR(type, real, fused, root)                                                \
    static inline real bag_weights_##type(const struct bag_pool_args *args, bool squared,          \
                                          size_t first, size_t end)                                \
    {                                                                                              \
        real sum = 0;                                                                              \
        for (size_t entry = first; entry < end; entry++) {                                         \
            if (!bag_keeps_all(args) && !bag_keeps(args, entry, bag_id_at(&args->indices, entry))) \
                continue;                                                                          \
            real weight = bag_weight_##type(args, entry);                                          \
            sum = squared ? fused(weight, weight, sum) : sum + weight;                             \
        }                                                                                          \
        return sum;                                                                                \
    }                                                                                              \
                                                                                                   \
    static inline real bag_divisor_##type(const struct bag_pool_args *args, size_t first,          \
                                          size_t end, size_t kept)                                 \
    {                                                                                              \
        bool is_mean = args->reduction == BAG_MEAN;                                                \
        real sum = args->weights ? bag_weights_##type(args, !is_mean, first, end) : (real)kept;    \
        return is_mean ? sum : root(sum);                                                          \
    }

BAG_DEFINE_DIVISOR(f32, float, __builtin_fmaf, __builtin_sqrtf)
BAG_DEFINE_DIVISOR(f64, double, __builtin_fma, __builtin_sqrt)
