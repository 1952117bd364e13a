/* Replaces keys, and ids of a whole table, by rows in a checked call; see keys.h. */
#include "keys.h"
#include "pool_entries.h"

static bool is_wide(enum bag_dtype dtype)
{
    return bag_dtypes[dtype].bytes == 8;
}

/* Sets *found and returns its status. Adds the type of the keys, which decides whether messages
 * show them as signed. */
static enum bag_status fails(const struct bag_tensor *tensor, struct bag_fault fault,
                             struct bag_fault *found)
{
    fault.got = tensor ? tensor->dtype : BAG_I64;
    *found = fault;
    return fault.status;
}

static bool is_of_other(const struct bag_part_ids *part, uint64_t key)
{
    return part && bag_part_of_key(key, part->part.of) != part->part.index;
}

/* Returns whether an id, perhaps of another part, is that of the row that this one has a copy of.
 */
static bool takes_kept(const struct bag_part_ids *part, int64_t id)
{
    return part && part->takes_kept && id == part->kept_row;
}

static enum bag_status reject_default(const struct bag_resolving *resolving, int64_t id,
                                      struct bag_fault *fault)
{
    const struct bag_part_ids *part = resolving->part;
    const struct bag_tensor *tensor = resolving->inputs->tensor[BAG_DEFAULT_INDEX];
    if (!part || (resolving->keys && !is_of_other(part, (uint64_t)id)))
        return fails(tensor,
                     (struct bag_fault){.status = BAG_STATUS_DEFAULT_KEY_MISSING,
                                        .input = BAG_DEFAULT_INDEX,
                                        .value = id},
                     fault);
    return fails(tensor,
                 (struct bag_fault){.status = BAG_STATUS_DEFAULT_OF_OTHER_PART,
                                    .input = BAG_DEFAULT_INDEX,
                                    .value = id,
                                    .low = part->part.index,
                                    .high = part->part.of},
                 fault);
}

/* Finds the row of the default key. The request's default_index takes precedence over the rules'. A
 * partial call does not give it to empty bags, but reports whether its part has the key. */
static enum bag_status take_default_key(const struct bag_resolving *resolving,
                                        struct bag_pool_args *args, struct bag_fault *fault)
{
    const struct bag_tensor *tensor = resolving->inputs->tensor[BAG_DEFAULT_INDEX];
    int64_t key = resolving->rules->default_index;
    if (tensor) {
        struct bag_ids ids = {tensor->data, 1, is_wide(tensor->dtype)};
        key = bag_id_at(&ids, 0);
    } else if (!resolving->rules->has_default_index) {
        return BAG_STATUS_OK;
    }
    if (resolving->part && resolving->part->is_partial &&
        resolving->rules->missing != BAG_MISSING_DEFAULT &&
        (!tensor || is_of_other(resolving->part, (uint64_t)key)))
        return BAG_STATUS_OK;
    args->default_row = bag_keys_find_one(resolving->keys, (uint64_t)key);
    if (args->default_row >= 0)
        return BAG_STATUS_OK;
    return reject_default(resolving, key, fault);
}

/* Returns the row that replaces a missing entry, or BAG_ROW_MISSING. */
static int64_t row_instead(const struct bag_rules *rules, const struct bag_pool_args *args,
                           uint64_t key)
{
    switch (rules->missing) {
    case BAG_MISSING_DEFAULT:
        return args->default_row;
    case BAG_MISSING_HASH:
        return bag_keys_hashed_row(key, rules->hash_rows);
    case BAG_MISSING_ERROR:
    case BAG_MISSING_SKIP:
    case BAG_MISSING_COUNT:
        break;
    }
    return BAG_ROW_MISSING;
}

/* Leaves out or rejects an entry of another part. */
static enum bag_status leave_to_others(struct bag_resolving *resolving, struct bag_pool_args *args,
                                       size_t entry, int64_t id, struct bag_fault *fault)
{
    const struct bag_part_ids *part = resolving->part;
    resolving->rows[entry] = BAG_ROW_OTHER;
    resolving->num_other++;
    args->skip_outside = true;
    if (part->is_partial)
        return BAG_STATUS_OK;
    return fails(resolving->inputs->tensor[BAG_INDICES],
                 (struct bag_fault){.status = resolving->keys ? BAG_STATUS_KEY_OF_OTHER_PART
                                                              : BAG_STATUS_ROW_OF_OTHER_PART,
                                    .input = BAG_INDICES,
                                    .position = (int64_t)entry,
                                    .value = id,
                                    .low = part->part.index,
                                    .high = part->part.of},
                 fault);
}

/* Replaces an entry whose key has no row. */
static void replace(struct bag_resolving *resolving, const struct bag_pool_args *args, size_t entry,
                    int64_t key)
{
    const struct bag_rules *rules = resolving->rules;
    resolving->rows[entry] = row_instead(rules, args, (uint64_t)key);
    resolving->num_missing++;
    if (resolving->replaced)
        resolving->replaced[entry] = resolving->rows[entry] >= 0;
}

/* Handles the entries after the look-up: padding, which the table may contain; keys of other parts,
 * of which some may be here; and missing keys. */
static enum bag_status judge_keys(struct bag_resolving *resolving, struct bag_pool_args *args,
                                  struct bag_fault *fault)
{
    const struct bag_rules *rules = resolving->rules;
    for (size_t entry = 0; entry < args->indices.count; entry++) {
        int64_t key = bag_id_at(&args->indices, entry);
        if (rules->has_padding_idx && key == rules->padding_idx) {
            resolving->rows[entry] = BAG_ROW_PADDING;
            args->skip_outside = true;
        } else if (is_of_other(resolving->part, (uint64_t)key) &&
                   !takes_kept(resolving->part, key)) {
            if (leave_to_others(resolving, args, entry, key, fault) != BAG_STATUS_OK)
                return fault->status;
        } else if (resolving->rows[entry] < 0) {
            if (rules->missing == BAG_MISSING_ERROR)
                return fails(resolving->inputs->tensor[BAG_INDICES],
                             (struct bag_fault){.status = BAG_STATUS_KEY_MISSING,
                                                .input = BAG_INDICES,
                                                .position = (int64_t)entry,
                                                .value = key},
                             fault);
            replace(resolving, args, entry, key);
            args->skip_outside |= resolving->rows[entry] < 0;
        }
    }
    return BAG_STATUS_OK;
}

static enum bag_status resolve_keys(struct bag_resolving *resolving, struct bag_pool_args *args,
                                    struct bag_fault *fault)
{
    enum bag_status status = take_default_key(resolving, args, fault);
    if (status != BAG_STATUS_OK)
        return status;
    size_t missing = bag_keys_find(resolving->keys, &args->indices, resolving->rows);
    return missing || resolving->rules->has_padding_idx || resolving->part
               ? judge_keys(resolving, args, fault)
               : BAG_STATUS_OK;
}

/* Resolves the indices of a dense table. Padding is left out first, because the default row that
 * replaces other indices may be the padding row. Negative indices are left out if the rules prune
 * them. */
static void resolve_indices(struct bag_resolving *resolving, struct bag_pool_args *args)
{
    for (size_t entry = 0; entry < args->indices.count; entry++) {
        int64_t index = bag_id_at(&args->indices, entry);
        resolving->rows[entry] = index;
        if (args->padding_row != -1 && index == args->padding_row) {
            resolving->rows[entry] = BAG_ROW_PADDING;
            args->skip_outside = true;
        } else if (index < 0 && args->prunes) {
            resolving->rows[entry] = BAG_ROW_MISSING;
        } else if (index < 0 || index >= args->table.num_rows) {
            replace(resolving, args, entry, index);
        }
    }
}

/* ---- ids of a whole table, on a part by rows ------------------------------------------------- */

/* Returns the row in this server's memory, or -1 if it is not here. */
static int64_t local_row(const struct bag_part_ids *part, int64_t row)
{
    int64_t local = row - part->first_row;
    if (local >= 0 && local < part->own_rows)
        return local;
    return row == part->kept_row ? part->own_rows : -1;
}

/* Finds the default row. A partial call has none. */
static enum bag_status find_default_row(const struct bag_resolving *resolving,
                                        struct bag_pool_args *args, struct bag_fault *fault)
{
    const struct bag_part_ids *part = resolving->part;
    int64_t row = args->default_row;
    if (row < 0 || part->is_partial) {
        args->default_row = -1;
        return BAG_STATUS_OK;
    }
    args->default_row = local_row(part, row);
    if (args->default_row >= 0)
        return BAG_STATUS_OK;
    return reject_default(resolving, row, fault);
}

/* Handles an index outside of the whole table, which the check accepted because the rules allow it.
 * The index is left out, or the default row replaces it. */
static void replace_outside(struct bag_resolving *resolving, const struct bag_pool_args *args,
                            size_t entry, int64_t index)
{
    if (index < 0 && args->prunes)
        resolving->rows[entry] = BAG_ROW_MISSING;
    else if (resolving->rules->missing == BAG_MISSING_DEFAULT)
        replace(resolving, args, entry, index);
    else
        resolving->rows[entry] = index < 0 ? BAG_ROW_MISSING : BAG_ROW_BEHIND;
}

static enum bag_status resolve_part(struct bag_resolving *resolving, struct bag_pool_args *args,
                                    struct bag_fault *fault)
{
    const struct bag_part_ids *part = resolving->part;
    const int64_t whole_rows = args->table.num_rows;
    enum bag_status status = find_default_row(resolving, args, fault);
    for (size_t entry = 0; status == BAG_STATUS_OK && entry < args->indices.count; entry++) {
        int64_t index = bag_id_at(&args->indices, entry);
        int64_t local = (int64_t)((uint64_t)index - (uint64_t)part->first_row);
        resolving->rows[entry] = local;
        if (args->padding_row != -1 && index == args->padding_row) {
            resolving->rows[entry] = BAG_ROW_PADDING;
            args->skip_outside = true;
        } else if (index < 0 || index >= whole_rows) {
            replace_outside(resolving, args, entry, index);
        } else if (takes_kept(part, index)) {
            resolving->rows[entry] = local_row(part, index);
        } else if (local < 0 || local >= part->own_rows) {
            status = leave_to_others(resolving, args, entry, index, fault);
        }
    }
    args->table.num_rows = part->local_rows;
    return status;
}

enum bag_status bag_keys_resolve(struct bag_resolving *resolving, struct bag_pool_args *args,
                                 struct bag_fault *fault)
{
    enum bag_status status = BAG_STATUS_OK;
    resolving->num_missing = resolving->num_other = 0;
    args->tiles = NULL;
    if (resolving->replaced)
        memset(resolving->replaced, 0, args->indices.count);
    if (resolving->keys)
        status = resolve_keys(resolving, args, fault);
    else if (resolving->part)
        status = resolve_part(resolving, args, fault);
    else
        resolve_indices(resolving, args);
    args->indices = (struct bag_ids){resolving->rows, args->indices.count, true};
    args->padding_row = BAG_ROW_PADDING;
    if (args->reduction == BAG_NONE)
        args->default_row = -1; /* the caller has replaced the missing indices already */
    args->replaced = resolving->replaced;
    args->is_part = resolving->part != NULL;
    return status;
}
