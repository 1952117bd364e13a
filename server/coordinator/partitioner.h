/* Partitions the entries of ops by shard. An entry is an id of a request, with its weight.
 *
 * Private to server/coordinator/fanout*.c. A partitioner stands for an op of a plan and, one after
 * the other, for the ops that are joined to it (fanout.h). It allocates nothing. */
#pragma once

#include "fanout.h"
#include "kernels/pool_loop.h"
#include "proto/shard.h"
#include "server/shards/remote.h"

/* Pointers are borrowed from the plan. */
struct bag_partitioner {
    struct bag_op *op;
    const struct bag_pool_args *args;
    const struct bag_remote *remote;
    size_t first_bag; /* position of the op's first bag in the calls */
    bool by_columns;  /* every shard gets all entries */
    bool lists_bags;  /* a call has only the bags that have an entry, and lists their positions;
                         false: a call has all bags in their order */
    bool explains;    /* shards report which keys are missing */
};
/* Returns the partitioner of a remote op. */
struct bag_partitioner bag_partitioner_of(const struct bag_infer *infer, size_t op);

/* Advances to the next joined op. Returns false if there is none. */
static inline bool bag_partitioner_next(struct bag_partitioner *partitioner)
{
    if (!partitioner->op->joined)
        return false;
    partitioner->op = partitioner->op->joined;
    partitioner->args = &partitioner->op->args;
    partitioner->first_bag = partitioner->op->first_bag;
    return true;
}

/* Returns whether a shard may pool fewer ids than it is sent: it skips keys that it does not have,
 * and entries that it prunes. */
static inline bool bag_partitioner_may_lose(const struct bag_partitioner *partitioner)
{
    return partitioner->args->keyed && (partitioner->op->keys.missing == BAG_MISSING_SKIP ||
                                        partitioner->args->skip_unweighted);
}

/* Returns whether an entry is sent. Entries of a keyed op that are pruned by weight are sent:
 * shards report missing keys before they prune. */
static inline bool bag_partitioner_keeps(const struct bag_partitioner *partitioner, size_t entry,
                                         int64_t id)
{
    const struct bag_op_keys *keys = &partitioner->op->keys;
    if (partitioner->args->keyed)
        return !keys->has_padding || id != keys->padding;
    return bag_keeps(partitioner->args, entry, id);
}

/* Returns the shard that stores an id. Returns 0 for parts by columns, where every shard stores a
 * part of each row. */
static inline size_t bag_partitioner_shard(const struct bag_partitioner *partitioner, int64_t id)
{
    const uint32_t of = partitioner->remote->part.of;
    if (partitioner->by_columns)
        return 0;
    if (partitioner->remote->part.by == BAG_PART_KEYS)
        return bag_part_of_key((uint64_t)id, of);
    return bag_part_of_row((uint64_t)id, (uint64_t)partitioner->args->table.num_rows, of);
}

/* Returns the first column that a shard of parts by columns stores. */
static inline size_t bag_partitioner_first_column(const struct bag_partitioner *partitioner,
                                                  size_t shard)
{
    return bag_part_begin(partitioner->args->table.row_elements, (uint32_t)shard,
                          partitioner->remote->part.of);
}

/* Returns the index in `bags` of the call's first bag from this one on; num_bags if there is none.
 */
static inline size_t bag_partitioner_find_bag(const struct bag_fanout_call *call, size_t bag)
{
    size_t first = 0, end = call->num_bags;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (call->bags[middle] < bag)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Finds the op whose bag is at this position of a call; SIZE_MAX: any op with the call. Returns its
 * inference and sets *op to its index there. Returns NULL if no inference of the fan-out has such
 * an op. */
const struct bag_infer *bag_fanout_find_op(const struct bag_fanout *fanout, size_t call, size_t bag,
                                           size_t *op);

/* Records in the op what became of its entries, according to the replies to its calls
 * (fanout_explain.c). Joined ops are explained one after the other. */
void bag_partitioner_explain(const struct bag_partitioner *partitioner,
                             struct bag_fanout_call *calls, size_t num_calls);

/* Returns false and sets *problem if a reply does not explain what was sent. */
bool bag_partitioner_check_explanation(const struct bag_fanout_call *call,
                                       struct bag_problem *problem);

/* The outputs that the reply to a call must have: the sums or columns, the counts, and the sums of
 * weights. */
struct bag_fanout_form {
    struct bag_v2_reply_output outputs[3];
    size_t num_outputs;
};
struct bag_fanout_form bag_fanout_form(const struct bag_partitioner *partitioner,
                                       const struct bag_fanout_call *call);
