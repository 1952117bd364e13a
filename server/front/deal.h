/* The calls of joined ops. Private to server/front/fanout*.c. */
#ifndef BAG_FRONT_DEAL_H
#define BAG_FRONT_DEAL_H

#include "fanout.h"
#include "kernels/pool_block.h"
#include "proto/shard.h"
#include "server/tables/remote.h"

/* Whose the entries of an op are, of those that are joined one at a time. */
struct bag_deal {
    struct bag_op *op;
    const struct bag_pool_args *args;
    const struct bag_remote *remote;
    size_t first_bag; /* of the op in the calls */
    bool by_columns;  /* every shard gets all of them */
    bool explains;    /* which keys are missing is to be said */
};
struct bag_deal bag_deal_of(const struct bag_infer *infer, size_t op);

/* Goes on to the next op that is joined; false: there is none. */
static inline bool bag_deal_next(struct bag_deal *deal)
{
    if (!deal->op->joined)
        return false;
    deal->first_bag += deal->args->num_bags;
    deal->op = deal->op->joined;
    deal->args = &deal->op->args;
    return true;
}

/* Whether a shard may pool fewer ids than it is sent: without keys that it does not have, and
 * entries that it prunes. */
static inline bool bag_deal_may_lose(const struct bag_deal *deal)
{
    return deal->args->keyed &&
           (deal->op->keys.missing == BAG_MISSING_SKIP || deal->args->skip_unweighted);
}

/* Whether an entry stays. What is left of a keyed call's prunes by weight is the shards' to do:
 * they say first which keys are missing. */
static inline bool bag_deal_keeps(const struct bag_deal *deal, size_t entry, int64_t id)
{
    const struct bag_op_keys *keys = &deal->op->keys;
    if (deal->args->keyed)
        return !keys->has_padding || id != keys->padding;
    return bag_keeps(deal->args, entry, id);
}

/* Whose an id is; by columns it is everybody's. */
static inline size_t bag_deal_shard(const struct bag_deal *deal, int64_t id)
{
    const uint32_t of = deal->remote->part.of;
    if (deal->by_columns)
        return 0;
    if (deal->remote->part.by == BAG_PART_KEYS)
        return bag_part_of_key((uint64_t)id, of);
    return bag_part_of_row((uint64_t)id, (uint64_t)deal->args->table.num_rows, of);
}

/* Says in the op what became of its entries, by the replies to its calls (fanout_explain.c). Of
 * joined ops one after the other. */
void bag_deal_explain(const struct bag_deal *deal, struct bag_fanout_call *calls, size_t num_calls);

/* Whether the reply explains what was sent. */
bool bag_deal_check_explanation(const struct bag_fanout_call *call, struct bag_problem *problem);

/* The outputs that a call's reply must have, by its num_bags and asks_default. */
struct bag_fanout_form {
    struct bag_v2_reply_output outputs[3];
    size_t num_outputs;
};
struct bag_fanout_form bag_fanout_form(const struct bag_deal *deal,
                                       const struct bag_fanout_call *call);

#endif
