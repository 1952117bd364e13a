/* One inference: computes the bytes of a reply from the body of a request.
 *
 * An inference goes through these steps, each a function below:
 *
 *   bag_infer_unpack   decompresses a compressed body
 *   bag_infer_plan     decodes and checks the request; afterwards the size of the reply is known
 *   bag_infer_prefetch starts reading the rows of mapped tables from the disk
 *   bag_infer_prepare  allocates the reply and writes the bytes before the numbers
 *   bag_infer_pool     pools a range of the bags; threads may pool disjoint ranges at the same time
 *   bag_infer_check    checks that all rows of mapped tables could be read
 *   bag_infer_finish   prints the numbers if the reply is JSON, and compresses the reply if asked
 *
 * The caller calls the steps in this order, bag_infer_pool once for each range. It may leave out
 * bag_infer_prefetch. It may make the plan again, as long as the inference is not prepared. Any
 * thread may call a step. Only bag_infer_pool may run on several threads at a time.
 *
 * Main objects. struct bag_infer is one inference: its inputs, its outputs, and what the steps pass
 * to each other. struct bag_plan (plan.h) is the checked request: a list of ops and a list of
 * outputs. An op is one call of the kernels; its kind says who pools it. Rows in memory and in
 * mapped files (mapped.c) are pooled here. Rows on shards are not: server/coordinator sends the op
 * to the shards and merges their sums into the same results before bag_infer_finish.
 *
 * Memory. A plan lives in the arena of the inference, whose size is limited by the size of the
 * body, and it points into the body. The reply comes from shared buffers, and is allocated at its
 * maximum size when the inference is prepared. A failed step leaves no reply allocated. A finished
 * inference can be used for the next request after bag_infer_reset, with the same arena.
 *
 * Locks. If the model has tables whose rows change, the caller holds bag_model_read from the plan,
 * which looks up keys, to the check. If it releases the lock after the plan, keys may belong to
 * other rows: a model that resolves ids must then be planned again.
 *
 * The caller uses the cost functions to choose between the loop's thread and a worker. After the
 * plan, bag_infer_cost_ns estimates the time of the remaining steps. The steps are separate because
 * their callers differ. The loop runs a cheap request in one call. A worker splits an expensive one
 * into ranges. Several inferences of one model share the multiplication by its matrix.
 *
 * This folder depends on neither sockets, HTTP nor threads. */
#pragma once

#include "kernels/pool_encode.h"
#include "plan.h"
#include "proto/coding.h"
#include "proto/v2_request.h"
#include "server/memory/memory.h"
#include "server/metrics/stopwatch.h"
#include "server/tables/map.h"

/* The inputs of an inference, set by the caller. All pointers are borrowed and outlive the
 * inference. */
struct bag_infer_input {
    const struct bag_model *model;
    const struct bag_infer_limits *limits;
    const char *body;
    size_t body_bytes;
    size_t header_bytes; /* length of the JSON header before the binary data; body_bytes if the body
                            is all JSON */
    enum bag_coding coding;       /* coding of the body; IDENTITY after bag_infer_unpack */
    const char *header_length;    /* value of Inference-Header-Content-Length if the body is
                                     compressed, or NULL */
    enum bag_coding reply_coding; /* coding that the client accepts */
    struct bag_buffers *memory;   /* source of memory for decoding; shared with other inferences */
};

/* The outputs of an inference. */
struct bag_infer_output {
    char *reply; /* allocated by bag_buffers_get; owned by the caller after bag_infer_finish */
    size_t bytes;
    size_t header_bytes;    /* length of the JSON header before binary tensors; 0: the reply is all
                               JSON */
    enum bag_coding coding; /* coding of the reply */
    size_t default_bags;    /* number of bags without an index that got the row default_index */
};

/* Data that the steps pass to each other. Pointers are owned unless their comment says
 * otherwise. */
struct bag_infer_scratch {
    char *unpacked;      /* decompressed body, from bag_buffers_get */
    size_t packed_bytes; /* length of the body as it was sent if it was compressed, else 0 */
    struct bag_buffers *buffers; /* borrowed; allocates the reply */
    struct bag_arena arena;      /* memory of the plan */
    char *explanation;
    size_t explanation_bytes; /* an upper bound until the explanation is printed, then its length */
    void *pooled;             /* rows to project, unless a batch owns them */
    char *staged;             /* FP32 rows of outputs that are encoded last */
    struct bag_map_epoch epoch; /* epoch of the mapped tables before they were pooled */
    bool is_recorded;           /* the rows of mapped tables were recorded as touched */
    char *results; /* results of all outputs; a part of the reply if the reply is binary */
    char *absent;  /* JSON array of unavailable shards, in the arena, if the model answers without
                      them; padded with blanks to the length of an array of all shards */
    size_t absent_bytes; /* 0: the reply has no such array */
};

/* One inference. It points into itself and must not move after bag_infer_plan. */
struct bag_infer {
    struct bag_infer_input input;
    struct bag_infer_output output;
    struct bag_plan plan;
    struct bag_infer_scratch scratch;
    struct bag_stopwatch watch; /* started by the caller */
};

/* Prepares a zeroed inference for its first use, or one that ended at any step for its next. Frees
 * all memory that the inference owns except a small block for the next plan. A reply that the
 * caller has taken must not be in `output` any more. */
void bag_infer_reset(struct bag_infer *infer);

/* Returns whether the inference owns no memory, except the block that bag_infer_reset() keeps. For
 * assertions. */
bool bag_infer_is_reset(const struct bag_infer *infer);

/* Decompresses the body to at most `max_bytes` and sets header_bytes. Does nothing if the body is
 * not compressed. Returns false and sets *problem for the client if the body cannot be
 * decompressed. *problem is TOO_LARGE if the body is larger than `max_bytes`; the caller may then
 * try again with a larger limit. */
bool bag_infer_unpack(struct bag_infer *infer, struct bag_buffers *buffers, size_t max_bytes,
                      struct bag_problem *problem);

/* Decodes and checks the request, and checks the limits of reply size and work. Returns false and
 * sets *problem for the client if the request is wrong. `header_cache` may be NULL; otherwise it
 * belongs to the calling thread. */
bool bag_infer_plan(struct bag_infer *infer, struct bag_header_cache *header_cache,
                    struct bag_problem *problem);

/* Prefetches the first rows of mapped tables, as many as may wait in memory. bag_infer_pool
 * prefetches the remaining rows. */
void bag_infer_prefetch(struct bag_infer *infer);

/* Sorts segments, allocates the reply and the memory for projections, and writes the bytes before
 * the numbers. Returns false and sets *problem if there is not enough memory; nothing of these
 * stays allocated then. */
bool bag_infer_prepare(struct bag_infer *infer, struct bag_buffers *buffers,
                       struct bag_problem *problem);

/* Pools the bags and columns of `split` into the reply. */
void bag_infer_pool(const struct bag_infer *infer, struct bag_split split);

/* Returns whether all rows that a plan needs of mapped tables are in memory as far as is known, so
 * that pooling does not wait for a disk. The caller pools them at once then. */
bool bag_infer_is_in_memory(struct bag_infer *infer);

/* Checks mapped tables after all ranges were pooled. Pools them again if a file was changed
 * meanwhile. Returns false and sets *problem if a row is missing in its file; the inference is
 * dropped then. */
bool bag_infer_check(struct bag_infer *infer, struct bag_problem *problem);

/* Completes the reply: projects the pooled rows, prints the numbers if the reply is JSON, and
 * compresses it if the client accepts a coding and the reply is large enough. */
void bag_infer_finish(struct bag_infer *infer);

/* Adds the addresses of unavailable shards to the reply of a model that answers without them. The
 * caller must call this before bag_infer_finish. */
void bag_infer_add_absent(struct bag_infer *infer, const char *const *addresses, size_t count);

/* Ends an inference that was prepared and will not be finished. Frees its reply. */
void bag_infer_drop(struct bag_infer *infer);

/* Returns the name of the coding of the finished reply, or NULL if it is not compressed. */
const char *bag_infer_reply_coding(const struct bag_infer *infer);

/* Prepares, pools, checks and finishes the inference in one call. Returns false and sets *problem
 * if one of these steps fails; nothing has to be freed then. */
bool bag_infer_run(struct bag_infer *infer, struct bag_buffers *buffers,
                   struct bag_problem *problem);

/* The maximum number of inferences in one call of bag_infer_run_together. */
#define BAG_INFER_TOGETHER 64

/* Runs up to BAG_INFER_TOGETHER inferences of one model with projections, so that each feature's
 * matrix is multiplied once for all of them. Sets made[i] to whether inference i succeeded, and
 * *problems[i] if it did not. */
void bag_infer_run_together(struct bag_infer *const *infers, bool *made,
                            struct bag_problem *const *problems, size_t count,
                            struct bag_buffers *buffers);

/* Returns whether the cache has a JSON header like the body's. Reports a miss to
 * bag_header_cache_learn(). */
bool bag_infer_knows_header(const struct bag_infer *infer, struct bag_header_cache *header_cache);

/* Estimates the time of bag_infer_plan from the size of the body. `known`: assume that the cache
 * has the header. */
uint64_t bag_infer_plan_cost_ns(const struct bag_infer *infer, bool known);

/* Estimates the time of the whole inference before a plan. Assumes that the body is mostly 64-bit
 * indices. */
uint64_t bag_infer_whole_cost_ns(const struct bag_infer *infer);

/* Estimate the time of the steps after the plan, and the part of it that can be split into
 * ranges. */
uint64_t bag_infer_cost_ns(const struct bag_infer *infer);
uint64_t bag_infer_pool_cost_ns(const struct bag_infer *infer);

/* Frees the memory of decoding and sorting except for a small block. Freeing the memory of a large
 * body takes milliseconds, so a worker calls this before it returns the inference to the loop.
 * Invalidates the plan's ops and outputs. */
void bag_infer_free_scratch(struct bag_infer *infer);

/* Frees all memory that the inference owns. */
void bag_infer_free(struct bag_infer *infer);

/* ---- the bytes of the reply ------------------------------------------------------------------ */

/* The functions below are in reply.c. They compute the maximum size of the reply, print its JSON
 * header and print the numbers. Only infer.c calls them. */

/* Returns the length of the body as the client sent it. The limits of reply size and work are
 * multiples of it. */
static inline size_t bag_infer_sent_bytes(const struct bag_infer *infer)
{
    return infer->scratch.packed_bytes ? infer->scratch.packed_bytes : infer->input.body_bytes;
}

/* Sets output.bytes to the maximum size of the reply. Called after the plan. Returns false and sets
 * *problem if the size exceeds a limit. */
bool bag_reply_bound(struct bag_infer *infer, struct bag_problem *problem);

/* Allocates the reply, writes the bytes before the numbers, and sets each op's position in the
 * results. Returns false and frees all of it if there is not enough memory. */
bool bag_reply_begin(struct bag_infer *infer);

/* Completes the reply after all ranges were pooled: prints the numbers if the reply is JSON, and
 * compresses it if the client accepts a coding. Returns whether it printed or compressed
 * anything. */
bool bag_reply_end(struct bag_infer *infer);

/* Frees the memory that bag_reply_begin allocated. */
void bag_reply_drop(struct bag_infer *infer);

/* Returns the number of elements to print as JSON. */
uint64_t bag_reply_count_printed(const struct bag_infer *infer);

/* Returns the number of bytes to compress. */
size_t bag_reply_count_packed(const struct bag_infer *infer);

/* ---- tables that stay in their files: mapped.c ----------------------------------------------- */

/* Called by infer.c alone. */

/* Pools a range of a local or mapped op, and encodes it if a row format is asked for. */
static inline void bag_op_pool(const struct bag_op *op, struct bag_range range)
{
    if (op->row_format == BAG_ROWS_PLAIN)
        bag_pool_run(&op->args, range, op->result);
    else
        bag_pool_encode(&op->args, op->row_format, &range, op->result);
}

/* Pools a range of a mapped op in windows. The rows of the next window are prefetched while one is
 * pooled. */
void bag_mapped_pool(const struct bag_op *op, struct bag_range range);

/* Checks that every row of the mapped ops could be read. Called when all ops are pooled; pools the
 * mapped ones again if a file was changed meanwhile. Returns false and sets *problem if a row is
 * missing: the reply must not be sent then. */
bool bag_mapped_check(struct bag_infer *infer, struct bag_problem *problem);
