/* One inference: from a body to the bytes of its reply.
 *
 * Two steps, each callable on any thread and neither on two at once: bag_infer_plan decodes and
 * checks what the client sent and knows the size of the reply; bag_infer_run pools and writes it.
 * Between them bag_infer_cost_ns says how long the second will take.
 *
 * Must not know: sockets, HTTP, which thread it is on. */
#ifndef BAG_INFER_H
#define BAG_INFER_H

#include "proto/v2_reply.h"
#include "server/table/registry.h"

struct bag_infer {
    /* What the caller sets. All borrowed; they outlive the inference. */
    const struct bag_model *model;
    const char *body;
    size_t body_bytes;
    size_t header_bytes; /* of the JSON in front; body_bytes where all is JSON */
    size_t max_reply_bytes;

    /* What bag_infer_run leaves: the reply, owned by the caller from then on. */
    char *reply;
    size_t reply_bytes;
    size_t reply_header_bytes; /* of the JSON in front of binary tensors; 0: all is JSON */

    /* Between the steps. */
    struct bag_arena arena;
    struct bag_v2_request request;
    struct bag_tensor tensors[BAG_INPUT_COUNT];
    struct bag_pool pool;
    struct bag_v2_reply_output output;
};

/* Decodes and checks; false with *problem for the client. In both cases bag_infer_free is due. */
bool bag_infer_plan(struct bag_infer *infer, struct bag_problem *problem);

/* Pools and writes the reply; fails only for want of memory. */
bool bag_infer_run(struct bag_infer *infer, struct bag_problem *problem);

/* Rough time that bag_infer_plan takes for a body, before it is looked at. */
uint64_t bag_infer_plan_cost_ns(size_t body_bytes, size_t header_bytes);

/* Rough time that bag_infer_run takes, after a plan. */
uint64_t bag_infer_cost_ns(const struct bag_infer *infer);

/* Frees everything but the reply. */
void bag_infer_free(struct bag_infer *infer);

#endif
