/* One op's calls. Private to server/front/fanout*.c. */
#ifndef BAG_FRONT_DEAL_H
#define BAG_FRONT_DEAL_H

#include "fanout.h"
#include "kernels/pool_block.h"
#include "proto/shard.h"
#include "server/tables/remote.h"

/* Whose the entries of an op are. */
struct bag_deal {
    const struct bag_op *op;
    const struct bag_pool_args *args;
    const struct bag_remote *remote;
    bool by_columns; /* every shard gets all of them */
};
struct bag_deal bag_deal_of(const struct bag_infer *infer, size_t op);

/* Whether a shard may pool fewer ids than it is sent: without keys that it does not have, and
 * entries that it prunes. */
static inline bool bag_deal_may_lose(const struct bag_deal *deal)
{
    return deal->args->keyed &&
           (deal->op->keys.missing == BAG_MISSING_SKIP || deal->args->skip_unweighted);
}

/* The outputs that a call's reply must have, by its num_bags and asks_default. */
struct bag_fanout_form {
    struct bag_shard_output outputs[3];
    size_t num_outputs;
};
struct bag_fanout_form bag_fanout_form(const struct bag_deal *deal,
                                       const struct bag_fanout_call *call);

#endif
