/* Rows in place of keys, in a call that was checked; see keys.h. */
#include "keys.h"
#include "pool_entries.h"

static bool is_wide(enum bag_dtype dtype)
{
    return bag_dtypes[dtype].bytes == 8;
}

/* Whether a key is signed says how messages show it. */
static enum bag_status fails(const struct bag_tensor *tensor, struct bag_fault fault,
                             struct bag_fault *found)
{
    fault.got = tensor ? tensor->dtype : BAG_I64;
    *found = fault;
    return fault.status;
}

/* The request's default_index goes before the rules'. */
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
    args->default_row = bag_keys_find_one(resolving->keys, (uint64_t)key);
    if (args->default_row >= 0)
        return BAG_STATUS_OK;
    return fails(tensor,
                 (struct bag_fault){.status = BAG_STATUS_DEFAULT_KEY_MISSING,
                                    .input = BAG_DEFAULT_INDEX,
                                    .value = key},
                 fault);
}

/* The row of an entry that has none of its own. */
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

/* Judges one entry whose key has no row. */
static void replace(struct bag_resolving *resolving, const struct bag_pool_args *args, size_t entry,
                    int64_t key)
{
    const struct bag_rules *rules = resolving->rules;
    resolving->rows[entry] = row_instead(rules, args, (uint64_t)key);
    resolving->num_missing++;
    if (resolving->replaced)
        resolving->replaced[entry] = resolving->rows[entry] >= 0;
}

/* After the look-up: padding, which the table may have or not, and missing keys. */
static enum bag_status judge_keys(struct bag_resolving *resolving, struct bag_pool_args *args,
                                  struct bag_fault *fault)
{
    const struct bag_rules *rules = resolving->rules;
    for (size_t entry = 0; entry < args->indices.count; entry++) {
        int64_t key = bag_id_at(&args->indices, entry);
        if (rules->has_padding_idx && key == rules->padding_idx) {
            resolving->rows[entry] = BAG_ROW_PADDING;
            args->skip_outside = true;
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
    size_t missing = bag_keys_find(resolving->keys, &args->indices,
                                   resolving->fetches ? &args->table : NULL, resolving->rows);
    return missing || resolving->rules->has_padding_idx ? judge_keys(resolving, args, fault)
                                                        : BAG_STATUS_OK;
}

/* A dense table's own rows stay, and so do those that the check said are to be pruned. */
static void resolve_indices(struct bag_resolving *resolving, const struct bag_pool_args *args)
{
    for (size_t entry = 0; entry < args->indices.count; entry++) {
        int64_t index = bag_id_at(&args->indices, entry);
        resolving->rows[entry] = index;
        if (index >= args->table.num_rows || (index < 0 && !args->prunes))
            replace(resolving, args, entry, index);
    }
}

enum bag_status bag_keys_resolve(struct bag_resolving *resolving, struct bag_pool_args *args,
                                 struct bag_fault *fault)
{
    enum bag_status status = BAG_STATUS_OK;
    resolving->num_missing = 0;
    if (resolving->replaced)
        memset(resolving->replaced, 0, args->indices.count);
    if (resolving->keys)
        status = resolve_keys(resolving, args, fault);
    else
        resolve_indices(resolving, args);
    args->indices = (struct bag_ids){resolving->rows, args->indices.count, true};
    args->replaced = resolving->replaced;
    return status;
}
