/* Ids and entries: checks arrays of ids, determines the status of entries and their bags, and sorts
 * unsorted segments. */
#include "pool_entries.h"

#include "pool_loop.h"
#include "sort_ids.h"

#define BAG_ID_VECTOR_BYTES 16
#include "simd_ids.h"

#include "pool_check_tmpl.h"

bool bag_ref_check(const struct bag_pool_plan *plan, const struct bag_inputs *inputs,
                   size_t max_result_bytes, struct bag_pool_args *args)
{
    return check_usual(plan, inputs, max_result_bytes, args);
}

/* ---- arrays of ids --------------------------------------------------------------------------- */

bool bag_ref_ids_in_range(const void *ids, size_t count, bool wide, int64_t high, bool any_negative)
{
    return ids_in_range(ids, count, wide, high, any_negative);
}

bool bag_ref_ids_ascend(const void *ids, size_t count, bool wide)
{
    return ids_ascend(ids, count, wide);
}

size_t bag_ids_first_bad(const struct bag_ids *ids, const struct bag_id_bounds *bounds)
{
    for (size_t i = 0; i < ids->count; i++) {
        int64_t id = bag_id_at(ids, i);
        bool bad = id > bounds->high || (id < 0 && !bounds->any_negative);
        if (bad || (bounds->ascending && i > 0 && id < bag_id_at(ids, i - 1)))
            return i;
    }
    return ids->count;
}

int64_t bag_ids_max(const struct bag_ids *ids)
{
    int64_t largest = -1;
    for (size_t i = 0; i < ids->count; i++) {
        int64_t id = bag_id_at(ids, i);
        largest = id > largest ? id : largest;
    }
    return largest;
}

size_t bag_ids_lower_bound(const struct bag_ids *ids, size_t from, int64_t value)
{
    size_t end = ids->count;
    while (from < end) {
        size_t middle = from + (end - from) / 2;
        if (bag_id_at(ids, middle) < value)
            from = middle + 1;
        else
            end = middle;
    }
    return from;
}

/* ---- status ---------------------------------------------------------------------------------- */

const char *const bag_entry_status_names[BAG_ENTRY_COUNT] = {BAG_ENTRY_STATUSES(BAG_NAME)};

enum bag_entry_status bag_pool_entry_status(const struct bag_pool_args *args, size_t entry)
{
    int64_t row = bag_id_at(&args->indices, entry);
    if (args->replaced && args->replaced[entry])
        return args->keyed ? BAG_ENTRY_MISSING : BAG_ENTRY_OUTSIDE;
    if (bag_keeps(args, entry, row))
        return BAG_ENTRY_KEPT;
    if (args->is_part && row == BAG_ROW_OTHER)
        return BAG_ENTRY_OTHER;
    if (args->padding_row != -1 && row == args->padding_row)
        return BAG_ENTRY_PADDING;
    if (args->keyed && row < 0)
        return BAG_ENTRY_MISSING;
    if (row >= args->table.num_rows || (row < 0 && !args->prunes))
        return BAG_ENTRY_OUTSIDE;
    return BAG_ENTRY_PRUNED;
}

bool bag_weight_counts(const struct bag_pool_args *args, size_t entry)
{
    if (args->weights_dtype == BAG_F64)
        return bag_load_f64(args->weights, entry) > 0;
    if (bag_dtypes[args->weights_dtype].kind == BAG_KIND_FLOAT)
        return bag_weight_f32(args, entry) > 0;
    size_t bytes = bag_dtypes[args->weights_dtype].bytes;
    const char *at = (const char *)args->weights + entry * bytes;
    uint64_t bits = 0;
    memcpy(&bits, at, bytes);
    bool negative =
        bag_dtypes[args->weights_dtype].kind == BAG_KIND_SIGNED && (bits >> (8 * bytes - 1) & 1);
    return bits != 0 && !negative;
}

size_t bag_count_kept(const struct bag_pool_args *args, size_t first, size_t end)
{
    if (bag_keeps_all(args))
        return end - first;
    size_t kept = 0;
    for (size_t entry = first; entry < end; entry++)
        kept += bag_keeps(args, entry, bag_id_at(&args->indices, entry));
    return kept;
}

/* ---- bags ------------------------------------------------------------------------------------ */

static void copy_offsets(const struct bag_pool_args *args, size_t first_bag, size_t num_bags,
                         size_t *bounds)
{
    const struct bag_ids *offsets = &args->groups;
    /* The last bag may have no offset after it. */
    size_t count = first_bag + num_bags < offsets->count ? num_bags + 1 : num_bags;
    bounds[num_bags] = args->indices.count;
    if (offsets->wide && sizeof *bounds == sizeof(int64_t)) {
        memcpy(bounds, (const char *)offsets->data + first_bag * sizeof(int64_t),
               count * sizeof *bounds);
        return;
    }
    for (size_t i = 0; i < count; i++)
        bounds[i] = (size_t)bag_id_at(offsets, first_bag + i);
}

/* Finds the bounds of bags. Starts at the first entry of `first_bag`. */
static size_t walk_segments(const struct bag_pool_args *args, size_t entry, size_t first_bag,
                            size_t num_bags, size_t *bounds)
{
    for (size_t i = 0; i <= num_bags; i++) {
        int64_t bag = (int64_t)(first_bag + i);
        while (entry < args->groups.count && bag_id_at(&args->groups, entry) < bag)
            entry++;
        bounds[i] = entry;
    }
    return entry;
}

void bag_pool_bounds(const struct bag_pool_args *args, size_t first_bag, size_t end_bag,
                     size_t *hint, size_t *bounds)
{
    size_t num_bags = end_bag - first_bag;
    switch (args->form) {
    case BAG_FORM_OFFSETS:
        copy_offsets(args, first_bag, num_bags, bounds);
        break;
    case BAG_FORM_PACKED:
        for (size_t i = 0; i <= num_bags; i++)
            bounds[i] = (first_bag + i) * args->bag_length;
        break;
    case BAG_FORM_SEGMENTS:
        *hint = bag_ids_lower_bound(&args->groups, *hint, (int64_t)first_bag);
        *hint = walk_segments(args, *hint, first_bag, num_bags, bounds);
        break;
    }
}

size_t bag_pool_first_entry(const struct bag_pool_args *args, size_t bag)
{
    size_t entry, hint = 0;
    bag_pool_bounds(args, bag, bag, &hint, &entry);
    return entry;
}

size_t bag_pool_entries_before(const struct bag_pool_args *args, size_t bag)
{
    switch (args->form) {
    case BAG_FORM_OFFSETS:
        return args->num_bags == 0 ? 0 : bag_offset_at(args, bag) - bag_offset_at(args, 0);
    case BAG_FORM_PACKED:
        return bag * args->bag_length;
    case BAG_FORM_SEGMENTS:
        break;
    }
    return bag_ids_lower_bound(&args->groups, 0, (int64_t)bag);
}

/* ---- unsorted segments ----------------------------------------------------------------------- */

struct placed_id {
    uint64_t id, position;
};

/* The sort uses two arrays. The second one holds the indices and ids afterwards. */
size_t bag_pool_scratch_bytes(const struct bag_pool_args *args)
{
    size_t weight_bytes = args->weights ? bag_dtypes[args->weights_dtype].bytes : 0;
    if (!args->unsorted)
        return 0;
    return args->groups.count * (2 * sizeof(struct placed_id) + weight_bytes);
}

/* Writes the tensors in the order of `sorted` and makes `args` point to them. */
static void rearrange(struct bag_pool_args *args, const struct placed_id *sorted, int64_t *indices,
                      int64_t *ids, char *weights)
{
    size_t count = args->groups.count;
    size_t weight_bytes = bag_dtypes[args->weights_dtype].bytes;
    for (size_t i = 0; i < count; i++) {
        indices[i] = bag_id_at(&args->indices, sorted[i].position);
        ids[i] = (int64_t)sorted[i].id;
        if (args->weights)
            memcpy(weights + i * weight_bytes,
                   (const char *)args->weights + sorted[i].position * weight_bytes, weight_bytes);
    }
    args->indices = (struct bag_ids){indices, count, true};
    args->groups = (struct bag_ids){ids, count, true};
    args->weights = args->weights ? weights : NULL;
    args->unsorted = false;
}

void bag_pool_sort(struct bag_pool_args *args, void *scratch)
{
    size_t count = args->groups.count;
    if (!args->unsorted)
        return;
    struct placed_id *ids = scratch;
    for (size_t i = 0; i < count; i++)
        ids[i] = (struct placed_id){(uint64_t)bag_id_at(&args->groups, i), i};
    struct placed_id *sorted =
        bag_sort_ids(ids, ids + count, count, sizeof *ids, args->num_bags - 1);
    int64_t *rest = (int64_t *)(void *)(sorted == ids ? ids + count : ids);
    rearrange(args, sorted, rest, rest + count, (char *)(ids + 2 * count));
}
