/* Fan-out: turns inferences into requests to shards, and the replies into their results. It knows
 * neither sockets nor threads.
 *
 * A plan consists of ops, each of which pools ids of one feature. For every remote op the ids are
 * partitioned by shard (partitioner.h), and each shard that has some of them gets a call: the body
 * of one request. Ops on the same table with the same rules are joined, so that each shard gets one
 * request for all of them. The bags of an op follow those of the op before. Several inferences of
 * one model may share a fan-out: ops are joined whichever inference they belong to.
 *
 * The content of a call depends on how the table is divided. By columns, every shard gets all ids
 * and replies its columns of the result. By rows and by keys, each shard gets its own ids in the
 * bags that have some, and replies sums, which are added up here. The default row of empty bags is
 * one more bag of the call to the shard that stores it. If absent shards are skipped, several
 * shards are asked for their copies of it.
 *
 *   bag_fanout_make               after bag_infer_prepare: makes the calls
 *   bag_fanout_check              for each reply of status 200
 *   bag_fanout_find_client_error  for a reply of status 400
 *   bag_fanout_merge              for each inference, when its calls are checked or absent
 *   bag_fanout_leave              when an inference ends before the others
 *   bag_fanout_free
 *
 * bag_infer_pool pools the local ops at any time between bag_infer_prepare and the end; it skips
 * remote ones.
 *
 * Threads: bag_fanout_check of different calls may run at the same time. All other functions run on
 * one thread at a time. */
#pragma once

#include "kernels/partial.h"
#include "proto/shard.h"
#include "server/infer/infer.h"

/* A request to one shard, for an op and the ops that are joined to it. */
struct bag_fanout_call {
    /* Set by bag_fanout_make. */
    const struct bag_infer *infer; /* inference of a joined op; borrowed; NULL: all have left */
    size_t op;                     /* index of that op in its plan */
    size_t feature;                /* index of its feature in the model */
    uint64_t number;               /* id of the request, which the reply must repeat */
    size_t shard; /* index of the shard, and of its part, in the feature's remote table */
    char *body;   /* owned; for POST .../infer */
    size_t body_bytes;
    size_t header_bytes;    /* bytes of the JSON in front: Inference-Header-Content-Length */
    size_t max_reply_bytes; /* maximum size of a reply of status 200 */
    size_t num_bags;        /* without the bag of the default row */
    size_t num_ids;         /* including the default row */

    /* Set by the sender. */
    char *reply; /* owned; from bag_buffers_get; NULL: none */
    size_t reply_bytes, reply_header_bytes;
    bool is_absent; /* the shard's rows count as missing */

    /* Set by bag_fanout_find_client_error. */
    bool has_wrong_id;             /* one inference has a wrong id, and others may be well */
    const struct bag_infer *wrong; /* the one; borrowed; NULL: it has left */

    /* Private to server/coordinator/fanout*.c. */
    uint32_t *bags;           /* the bags that were sent, ascending; unset: all bags */
    bool asks_default;        /* one more bag was sent, of the default row alone */
    enum bag_dtype ids_dtype; /* type of the ids and of the offsets */
    char *offsets;            /* in `body` */
    char *next_id, *next_offset, *next_weight; /* in `body`, while it is written */
    struct bag_op *last_op;                    /* last joined op, while ops are joined */
    size_t last_bag, next_bag;                 /* positions while bags are counted and merged */
    const char *sums, *counts, *weight_sums;   /* in `reply`, at any alignment; sums of NULL: no
                                                  reply was checked */
    struct bag_shard_missing missing;          /* reader of the explanation in `reply` */
    size_t next_told, next_missing; /* position of the element and of the next missing one */
};

struct bag_fanout {
    struct bag_infer **infers;     /* owned list of borrowed inferences that have not left */
    size_t num_infers, num_made;   /* num_made: number of those that it was made for */
    struct bag_fanout_call *calls; /* owned; in the order of ops, then of shards */
    size_t count;                  /* 0: no shard is asked */
    uint32_t *bags;                /* owned; memory for `bags` of all calls */
    struct bag_share *shares;      /* owned; memory to merge one bag */
};

/* Makes the calls of planned and prepared inferences of one model, which must stay in place until
 * they leave or the fan-out is freed. If there are several, none may explain its bags. Returns
 * false and sets *problem if there is not enough memory; then nothing is to be freed. */
bool bag_fanout_make(struct bag_infer *const *infers, size_t num_infers, struct bag_fanout *fanout,
                     struct bag_problem *problem);

/* Checks a reply of status 200: its number, the model's version, the names, types, shapes and sizes
 * of its tensors, and the number of ids that were pooled. Returns false and sets *problem if the
 * reply is not what was asked for. The kind is BAD_GATEWAY, or NO_MEMORY. The text follows the
 * shard's name ("answered ..."). */
bool bag_fanout_check(struct bag_fanout *fanout, size_t call, struct bag_problem *problem);

/* Finds out whether a reply of status 400 is about an id of the client's that only a shard can
 * judge: a key that the table does not have. Returns true and sets *problem, of kind BAD_REQUEST,
 * to what a single server would say, with the client's position and feature, and the members of the
 * call. Returns false if the shard or the coordinator is at fault. */
bool bag_fanout_find_client_error(struct bag_fanout *fanout, size_t call,
                                  struct bag_problem *problem);

/* Counts how often an inference uses the replies to the calls from `first` to `end`, exclusive: an
 * op has some of its ids, or perhaps its default row, in a call. */
size_t bag_fanout_count_uses(const struct bag_fanout *fanout, const struct bag_infer *infer,
                             size_t first, size_t end);

/* Writes the results of all remote ops of an inference. All calls that it uses were checked or are
 * absent. */
void bag_fanout_merge(const struct bag_fanout *fanout, const struct bag_infer *infer);

/* Removes an inference, which may then be freed. Calls that only it had get no inference. */
void bag_fanout_leave(struct bag_fanout *fanout, const struct bag_infer *infer);

/* Frees calls, bodies and replies. A zeroed fan-out is allowed. */
void bag_fanout_free(struct bag_fanout *fanout);
