/* Explains to the client what became of entries that shards pool; see fanout.h.
 *
 * Shards explain which keys the table does not have. Everything else is known here. */
#include "partitioner.h"

bool bag_partitioner_check_explanation(const struct bag_fanout_call *call,
                                       struct bag_problem *problem)
{
    struct bag_shard_missing missing;
    size_t position = 0;
    bool ok = bag_shard_missing_begin(&missing, call->reply, call->reply_header_bytes);
    while (ok && (position = bag_shard_missing_next(&missing)) < call->num_ids)
        ;
    return (ok && !missing.is_wrong && position == SIZE_MAX) ||
           bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY,
                           "answered without an explanation of what it was asked for");
}

/* Returns the call with the ids of a shard; by columns, any call that has a reply. Returns NULL if
 * there is none. */
static struct bag_fanout_call *find_call(const struct bag_partitioner *partitioner,
                                         struct bag_fanout_call *calls, size_t num_calls,
                                         size_t shard)
{
    /* Calls are in the order of their shards, and shards without a call are left out. */
    size_t first = 0, end = num_calls;
    if (partitioner->by_columns) {
        while (first < end && calls[first].is_absent)
            first++;
        return first < end ? &calls[first] : NULL;
    }
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (calls[middle].shard < shard)
            first = middle + 1;
        else
            end = middle;
    }
    return first < num_calls && !calls[first].is_absent ? &calls[first] : NULL;
}

/* Returns whether the next id of the call is a key that the table does not have. */
static bool is_missing(struct bag_fanout_call *call)
{
    if (call->next_told++ < call->next_missing)
        return false;
    call->next_missing = bag_shard_missing_next(&call->missing);
    return true;
}

/* Returns the row by which bag_keys_resolve would have replaced an entry. */
static int64_t row_of(const struct bag_partitioner *partitioner, struct bag_fanout_call *calls,
                      size_t num_calls, size_t entry, uint8_t *replaced)
{
    const struct bag_pool_args *args = partitioner->args;
    const int64_t id = bag_id_at(&args->indices, entry);
    *replaced = args->replaced ? args->replaced[entry] : 0;
    if (!bag_partitioner_keeps(partitioner, entry, id)) {
        if (args->keyed)
            return BAG_ROW_PADDING;
        return id < 0 && id != args->padding_row ? BAG_ROW_MISSING : id;
    }
    struct bag_fanout_call *call =
        find_call(partitioner, calls, num_calls, bag_partitioner_shard(partitioner, id));
    if (!call)
        return BAG_ROW_OTHER;
    if (!args->keyed)
        return id;
    if (!is_missing(call))
        return 0; /* some row */
    *replaced = partitioner->op->keys.missing != BAG_MISSING_SKIP;
    return *replaced ? 0 : BAG_ROW_MISSING;
}

void bag_partitioner_explain(const struct bag_partitioner *partitioner,
                             struct bag_fanout_call *calls, size_t num_calls)
{
    struct bag_op *op = partitioner->op;
    struct bag_pool_args *args = &op->args;
    const size_t end = bag_pool_first_entry(args, args->num_bags);
    bool has_other = false, asks_default = false, has_default = false;
    /* The first of several joined ops starts the readers of all explanations; the others continue.
     */
    for (size_t i = 0; partitioner->explains && partitioner->first_bag == 0 && i < num_calls; i++) {
        struct bag_fanout_call *call = &calls[i];
        call->next_told = 0;
        if (!call->is_absent &&
            bag_shard_missing_begin(&call->missing, call->reply, call->reply_header_bytes))
            call->next_missing = bag_shard_missing_next(&call->missing);
    }
    for (size_t i = 0; i < num_calls; i++) {
        asks_default |= calls[i].asks_default;
        has_default |= calls[i].asks_default && !calls[i].is_absent;
    }
    if (asks_default && !has_default)
        args->default_row = -1; /* no bag got it */
    for (size_t entry = bag_pool_first_entry(args, 0); entry < end; entry++) {
        op->rows[entry] = row_of(partitioner, calls, num_calls, entry, &op->replaced[entry]);
        has_other |= op->rows[entry] == BAG_ROW_OTHER;
    }
    args->indices = (struct bag_ids){op->rows, args->indices.count, true};
    args->replaced = op->replaced;
    args->is_part = true;
    args->skip_outside |= args->keyed || has_other;
    if (args->keyed)
        args->padding_row = BAG_ROW_PADDING;
}
