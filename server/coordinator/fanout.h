/* One inference's requests to shards: made of its plan, checked as they are answered, and put
 * together in its results.
 *
 *   bag_fanout_make   after bag_infer_prepare: the bodies of all calls
 *   bag_fanout_check  of each reply of status 200: whether it is what was asked for
 *   bag_fanout_blame  of a reply of status 400: whether the client's ids are its cause
 *   bag_fanout_merge  when all that were not absent are checked: writes the results of remote ops
 *   bag_fanout_free
 *
 * Ops of local features are pooled as ever, before, after or meanwhile: bag_infer_pool leaves out
 * those of remote ones. Knows neither sockets nor threads; all but bag_fanout_check of different
 * calls is for one thread at a time. */
#ifndef BAG_FANOUT_H
#define BAG_FANOUT_H

#include "kernels/partial.h"
#include "proto/shard.h"
#include "server/infer/infer.h"

/* A request to one shard: of an op, and of those that are joined to it, whose bags are counted one
 * op behind the other. By rows and keys a shard that has no id of theirs gets none. */
struct bag_fanout_call {
    /* Set by bag_fanout_make. */
    size_t op;       /* of the plan; the first of those that are joined */
    size_t feature;  /* of the model: its memory's `remote` says whom to ask */
    uint64_t number; /* of the request */
    size_t shard;    /* of the remote table's group, which is also the number of its part */
    char *body;      /* owned, until bag_fanout_free; for POST .../infer */
    size_t body_bytes;
    size_t header_bytes;    /* of the JSON: Inference-Header-Content-Length */
    size_t max_reply_bytes; /* of a reply of status 200; a longer one need not be read */
    size_t num_bags;        /* without that of default_index */
    size_t num_ids;         /* with it */

    /* Set by who sends it. */
    char *reply; /* owned from then on, from bag_buffers_get; NULL: none came */
    size_t reply_bytes, reply_header_bytes;
    bool is_absent; /* the shard's rows count as missing */

    /* Private to server/coordinator/fanout*.c. */
    uint32_t *bags;           /* whose ids were sent, ascending; by columns unset: all of them */
    bool asks_default;        /* one bag more was sent, of default_index alone */
    enum bag_dtype ids_dtype; /* of the ids, and of the offsets */
    char *offsets;            /* in the body */
    char *next_id, *next_offset, *next_weight; /* likewise, while it is written */
    size_t last_op;                            /* while ops are joined */
    size_t last_bag, next_bag;                 /* while bags are counted, and merged */
    const char *sums, *counts, *weight_sums;   /* of the reply, at any alignment */
    struct bag_shard_missing missing;          /* of its explanation */
    size_t next_told, next_missing;            /* while that is read */
};

struct bag_fanout {
    struct bag_fanout_call *calls; /* owned; in the order of ops, then of shards */
    size_t count;                  /* 0: no shard need be asked */
    uint32_t *bags;                /* owned; of all calls */
    struct bag_share *shares;      /* owned; room to merge a bag */
};

/* Makes the calls of a planned and prepared inference. False, holding nothing, with *problem where
 * there is no memory; bag_fanout_free is due otherwise. */
bool bag_fanout_make(const struct bag_infer *infer, struct bag_fanout *fanout,
                     struct bag_problem *problem);

/* Whether a reply of status 200 is what was asked for: names, types, shapes and sizes of its
 * tensors, the version of the model, how many ids were pooled. False with *problem of kind
 * BAD_GATEWAY and a sentence that begins behind the shard's name ("answered ..."). */
bool bag_fanout_check(const struct bag_infer *infer, struct bag_fanout *fanout, size_t call,
                      struct bag_problem *problem);

/* Of a reply of status 400: whether it is about an id of the client's that only a shard can judge,
 * a key that the table does not have. Then *problem is BAD_REQUEST, as one server says it, with the
 * client's position and feature. Otherwise false: the reply is the shard's or the coordinator's
 * fault. */
bool bag_fanout_blame(const struct bag_infer *infer, const struct bag_fanout *fanout, size_t call,
                      struct bag_problem *problem);

/* Writes the results of all remote ops of an inference that is prepared. */
void bag_fanout_merge(struct bag_infer *infer, const struct bag_fanout *fanout);

/* Frees bodies, replies and calls; one of zeros is allowed. */
void bag_fanout_free(struct bag_fanout *fanout);

#endif
