/* The calls of joined ops. Private to server/coordinator/fanout*.c. */
#ifndef BAG_COORDINATOR_PARTITIONER_H
#define BAG_COORDINATOR_PARTITIONER_H

#include "fanout.h"
#include "kernels/pool_block.h"
#include "proto/shard.h"
#include "server/tables/remote.h"

/* Whose the entries of an op are, of those that are joined one at a time. */
struct bag_partitioner {
    struct bag_op *op;
    const struct bag_pool_args *args;
    const struct bag_remote *remote;
    size_t first_bag; /* of the op in the calls */
    bool by_columns;  /* every shard gets all of them */
    bool explains;    /* which keys are missing is to be said */
};
struct bag_partitioner bag_partitioner_of(const struct bag_infer *infer, size_t op);

/* Goes on to the next op that is joined; false: there is none. */
static inline bool bag_partitioner_next(struct bag_partitioner *partitioner)
{
    if (!partitioner->op->joined)
        return false;
    partitioner->first_bag += partitioner->args->num_bags;
    partitioner->op = partitioner->op->joined;
    partitioner->args = &partitioner->op->args;
    return true;
}

/* Whether a shard may pool fewer ids than it is sent: without keys that it does not have, and
 * entries that it prunes. */
static inline bool bag_partitioner_may_lose(const struct bag_partitioner *partitioner)
{
    return partitioner->args->keyed && (partitioner->op->keys.missing == BAG_MISSING_SKIP ||
                                        partitioner->args->skip_unweighted);
}

/* Whether an entry stays. What is left of a keyed call's prunes by weight is the shards' to do:
 * they say first which keys are missing. */
static inline bool bag_partitioner_keeps(const struct bag_partitioner *partitioner, size_t entry,
                                         int64_t id)
{
    const struct bag_op_keys *keys = &partitioner->op->keys;
    if (partitioner->args->keyed)
        return !keys->has_padding || id != keys->padding;
    return bag_keeps(partitioner->args, entry, id);
}

/* Whose an id is; by columns it is everybody's. */
static inline size_t bag_partitioner_shard(const struct bag_partitioner *partitioner, int64_t id)
{
    const uint32_t of = partitioner->remote->part.of;
    if (partitioner->by_columns)
        return 0;
    if (partitioner->remote->part.by == BAG_PART_KEYS)
        return bag_part_of_key((uint64_t)id, of);
    return bag_part_of_row((uint64_t)id, (uint64_t)partitioner->args->table.num_rows, of);
}

/* Says in the op what became of its entries, by the replies to its calls (fanout_explain.c). Of
 * joined ops one after the other. */
void bag_partitioner_explain(const struct bag_partitioner *partitioner,
                             struct bag_fanout_call *calls, size_t num_calls);

/* Whether the reply explains what was sent. */
bool bag_partitioner_check_explanation(const struct bag_fanout_call *call,
                                       struct bag_problem *problem);

/* The outputs that a call's reply must have, by its num_bags and asks_default. */
struct bag_fanout_form {
    struct bag_v2_reply_output outputs[3];
    size_t num_outputs;
};
struct bag_fanout_form bag_fanout_form(const struct bag_partitioner *partitioner,
                                       const struct bag_fanout_call *call);

#endif
