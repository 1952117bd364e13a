/* From a decoded request to what is to be pooled, and to which outputs.
 *
 * A model of a table has its inputs under their own names and one output, BAG_EMBEDDINGS. A
 * collection has them as "<feature>.indices" and so on, or all at once in KeyedJaggedTensor's
 * layout, and an output for each feature, or BAG_EMBEDDINGS for all side by side.
 *
 * Depends on neither buffers nor threads. */
#ifndef BAG_PLAN_H
#define BAG_PLAN_H

#include "ops.h"
#include "proto/v2_reply.h"
#include "server/table/snapshot.h"

/* What one request may ask for. */
struct bag_infer_limits {
    size_t max_body_bytes;          /* decompressed */
    size_t max_decompression_ratio; /* as in struct bag_inflate_limits */
    size_t max_reply_bytes;
    size_t max_reply_ratio;      /* of the reply's bytes to the body's; 0: any */
    size_t max_work_ns_per_byte; /* of the body, or of 1000 bytes where it is shorter; 0: any */
    size_t max_ids;              /* indices, of all features together */
    size_t max_bags;             /* of all features together */
    bool explains;               /* where a request asks for it */
    size_t least_packed_bytes;   /* smaller replies are not compressed */
};

/* Made of a request; lives as long as its body and the arena. */
struct bag_plan {
    struct bag_text id;  /* a part of the body, in quotes; empty: none */
    uint64_t timeout_us; /* the request's own; UINT64_MAX: none */
    struct bag_op *ops;
    size_t num_ops;
    struct bag_v2_reply_output *outputs; /* their `data` are not set */
    size_t num_outputs;
    size_t result_bytes, binary_bytes; /* of all outputs; of those that are sent in binary */
    bool binary;                       /* all of them are */
    struct bag_ops_work work;
    bool projects;             /* some op does */
    bool explains;             /* the reply says what became of every bag */
    size_t missing_keys;       /* that keyed tables do not have */
    uint64_t project_products; /* multiplications that this takes */

    /* What a model of a table needs of these, so that nothing is allocated for it. */
    struct bag_op one_op;
    struct bag_v2_reply_output one_output;
    struct bag_tensor tensors[BAG_INPUT_COUNT];
};

/* Matches the request's tensors to the model's features, and checks them. False with *problem for
 * the client; it names the feature where the model has several. */
bool bag_plan_make(struct bag_plan *plan, const struct bag_model *model,
                   const struct bag_v2_request *request, const struct bag_infer_limits *limits,
                   struct bag_arena *arena, struct bag_problem *problem);

#endif
