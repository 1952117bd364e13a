/* One inference: from a body to the bytes of its reply.
 *
 *   bag_infer_unpack   decompresses a body that came compressed
 *   bag_infer_plan     decodes and checks what the client sent; the size of the reply is known then
 *   bag_infer_prefetch of mapped tables: has its rows read from the disk while others are pooled
 *   bag_infer_prepare  takes memory for the reply and writes what comes before the numbers
 *   bag_infer_pool     pools a range of it; several threads may do disjoint ranges at once
 *   bag_infer_check    of mapped tables: finds out whether all rows could be read
 *   bag_infer_finish   prints the numbers where JSON is wanted, and compresses the reply where
 *                      that is
 *
 * Each is called once, in this order (pool: once per range), on any thread but on one at a time
 * where nothing else is said. bag_infer_cost_ns says, after the plan, how long the rest will take.
 *
 * Depends on neither sockets, HTTP nor threads. */
#ifndef BAG_INFER_H
#define BAG_INFER_H

#include "plan.h"
#include "proto/coding.h"
#include "proto/v2_request.h"
#include "server/memory/memory.h"
#include "server/metrics/stopwatch.h"
#include "server/tables/map.h"

/* What the caller sets. All pointers are borrowed and outlive the inference. */
struct bag_infer_input {
    const struct bag_model *model;
    const struct bag_infer_limits *limits;
    const char *body;
    size_t body_bytes;
    size_t header_bytes;       /* of the JSON in front; body_bytes where all is JSON */
    enum bag_coding coding;    /* of the body; IDENTITY after bag_infer_unpack */
    const char *header_length; /* of a compressed body: Inference-Header-Content-Length, or NULL */
    enum bag_coding reply_coding; /* that the client would like */
    struct bag_buffers *memory;   /* for decoding; a shared pool */
};

/* What is left at the end. */
struct bag_infer_output {
    char *reply; /* from bag_buffers_get; the caller's from bag_infer_finish on */
    size_t bytes;
    size_t header_bytes;    /* of the JSON in front of binary tensors; 0: all is JSON */
    enum bag_coding coding; /* of the reply */
    size_t default_bags;    /* that got the row default_index, having no index */
};

/* What the steps hold between them; owned where nothing else is said. */
struct bag_infer_scratch {
    char *unpacked;              /* from bag_buffers_get: the decompressed body */
    size_t packed_bytes;         /* of the body as it was sent, where it came compressed; 0: not */
    struct bag_buffers *buffers; /* borrowed; of the reply */
    struct bag_arena arena;      /* of the plan */
    char *explanation;
    size_t explanation_bytes;   /* at first the most, then as many as it has */
    void *pooled;               /* rows yet to be projected, where nobody else has them */
    struct bag_map_epoch epoch; /* of mapped tables, before they were pooled */
    char *results;              /* of all outputs; a part of the reply where that is binary */
    char *absent;               /* of a model that does without unavailable shards: a JSON array
                                   of those, in the arena, with blanks for as many as there are */
    size_t absent_bytes;        /* 0: there is none */
};

/* One inference. Points into itself: it stays where it is from the plan on. */
struct bag_infer {
    struct bag_infer_input input;
    struct bag_infer_output output;
    struct bag_plan plan;
    struct bag_infer_scratch scratch;
    struct bag_stopwatch watch; /* started by the caller */
};

/* Makes a zeroed inference ready for its first use, or a finished one for its next; gives the
 * decompressed body back. */
void bag_infer_reset(struct bag_infer *infer);

/* Decompresses the body, where it is compressed, to at most `max_bytes`, and sets header_bytes.
 * False with *problem for the client: TOO_LARGE where there is more, and then a larger limit may be
 * tried. */
bool bag_infer_unpack(struct bag_infer *infer, struct bag_buffers *buffers, size_t max_bytes,
                      struct bag_problem *problem);

/* Decodes and checks; false with *problem for the client. `header_cache` may be NULL. */
bool bag_infer_plan(struct bag_infer *infer, struct bag_header_cache *header_cache,
                    struct bag_problem *problem);

/* Prefetches the first rows, as many as may wait in memory; the rest follow while it is pooled. */
void bag_infer_prefetch(struct bag_infer *infer);

/* Takes the memory for the reply. Fails only where there is none. */
bool bag_infer_prepare(struct bag_infer *infer, struct bag_buffers *buffers,
                       struct bag_problem *problem);

void bag_infer_pool(const struct bag_infer *infer, struct bag_split split);

/* When all is pooled; may pool again, where a file was changed meanwhile. False, with *problem and
 * the inference ended, where a row is missing in its file. */
bool bag_infer_check(struct bag_infer *infer, struct bag_problem *problem);

void bag_infer_finish(struct bag_infer *infer);

/* Before it is finished: names shards that were unavailable in the reply of a model that does
 * without them. */
void bag_infer_tell_absent(struct bag_infer *infer, const char *const *addresses, size_t count);

/* Ends an inference that was prepared, and will not be finished. */
void bag_infer_drop(struct bag_infer *infer);

/* The name of how the finished reply is compressed; NULL: it is not. */
const char *bag_infer_reply_coding(const struct bag_infer *infer);

/* Prepare, pool and finish in one. */
bool bag_infer_run(struct bag_infer *infer, struct bag_buffers *buffers,
                   struct bag_problem *problem);

/* Most inferences that are run together. */
#define BAG_INFER_TOGETHER 64

/* The same of up to so many at once, all of one model that projects: each feature's matrix is
 * multiplied once. made[i] says whether the i-th was, problems[i] why not. */
void bag_infer_run_together(struct bag_infer *const *infers, bool *made,
                            struct bag_problem *const *problems, size_t count,
                            struct bag_buffers *buffers);

/* Whether the body's JSON header is like one of the cache; otherwise the cache is told of it. */
bool bag_infer_knows_header(const struct bag_infer *infer, struct bag_header_cache *header_cache);

/* Rough time that bag_infer_plan takes for a body, before it is decoded; `known`: as if its header
 * were in the cache. */
uint64_t bag_infer_plan_cost_ns(const struct bag_infer *infer, bool known);

/* Rough time that all of it takes, before a plan: as if the body held little but 64-bit indices. */
uint64_t bag_infer_whole_cost_ns(const struct bag_infer *infer);

/* Rough time that the rest takes, after a plan; and the part of it that ranges share. */
uint64_t bag_infer_cost_ns(const struct bag_infer *infer);
uint64_t bag_infer_pool_cost_ns(const struct bag_infer *infer);

/* Frees the memory of decoding and sorting, all but a small block: of large bodies that takes
 * milliseconds, which a worker has and a loop has not. The plan's ops and outputs are gone. */
void bag_infer_free_scratch(struct bag_infer *infer);

/* Frees what the inference holds, but for the reply. */
void bag_infer_free(struct bag_infer *infer);

/* ---- the bytes of the reply ------------------------------------------------------------------ */

/* How many it can take, its JSON header, its numbers: reply.c. Called by infer.c alone. */

/* Bytes of the body as it was sent: what a client pays for a reply, and for work. */
static inline size_t bag_infer_sent_bytes(const struct bag_infer *infer)
{
    return infer->scratch.packed_bytes ? infer->scratch.packed_bytes : infer->input.body_bytes;
}

/* After the plan: sets output.bytes to the most that the reply can take; false with *problem where
 * that passes a limit. */
bool bag_reply_bound(struct bag_infer *infer, struct bag_problem *problem);

/* Takes memory for the reply, writes what comes in front of the numbers, and gives every op its
 * place. False, holding nothing of it, without memory. */
bool bag_reply_begin(struct bag_infer *infer);

/* When all is pooled: prints the numbers where JSON is wanted, and compresses the reply where that
 * is. Returns whether there was anything to do. */
bool bag_reply_end(struct bag_infer *infer);

/* Gives back what bag_reply_begin took. */
void bag_reply_drop(struct bag_infer *infer);

/* How many numbers will be printed. */
uint64_t bag_reply_count_printed(const struct bag_infer *infer);

/* How many bytes will be compressed. */
size_t bag_reply_count_packed(const struct bag_infer *infer);

/* ---- tables that stay in their files: mapped.c ----------------------------------------------- */

/* Called by infer.c alone. */

/* Pools a range of a mapped op in windows. The rows of the next window are prefetched while one is
 * pooled. */
void bag_mapped_pool(const struct bag_op *op, struct bag_range range);

/* Checks that every row of the mapped ops could be read. Called when all ops are pooled; pools the
 * mapped ones again if a file was changed meanwhile. Returns false and sets *problem if a row is
 * missing: the reply must not be sent then. */
bool bag_mapped_check(struct bag_infer *infer, struct bag_problem *problem);

#endif
