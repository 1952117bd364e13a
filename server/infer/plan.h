/* The plan of one request: which bags to pool, and into which outputs.
 *
 * bag_plan_make() matches the tensors of a decoded request to the features of a model and checks
 * them. The result is a list of ops. Each op is one call of the kernels for one feature and one
 * output. A list of ops can be split into ranges of about equal work, which different threads pool.
 *
 * The inputs of a table's model have their own names, and its output is BAG_EMBEDDINGS. The inputs
 * of a collection are named "<feature>.indices" and so on, or come for all features at once in
 * KeyedJaggedTensor's layout. A collection has one output for each feature, or BAG_EMBEDDINGS,
 * which holds all features side by side.
 *
 * The life of a plan: bag_plan_make() reads the tensors that belong to each feature, combines the
 * feature's rules with the request's parameters, and lets the kernels check the inputs. Keys, and
 * ids of a part of a table, are replaced by rows. Then it adds the outputs that the request asks
 * for, each with its ops. A feature that two outputs contain is checked once and pooled twice,
 * because the outputs may have different types. The plan says how many bytes the results take and
 * how much work they are, so that limits are checked before anything is pooled. When the reply is
 * allocated, each op gets its position in the results. The plan ends with the request's arena.
 *
 * One plan is made by one thread, without a lock of its own. The ops are not changed while ranges
 * of them are pooled. This file depends on neither buffers nor threads. */
#pragma once

#include "kernels/pool.h"
#include "proto/v2_documents.h"
#include "proto/v2_request.h"
#include "server/models/snapshot.h"
#include "server/tables/memory.h"

/* ---- ops ------------------------------------------------------------------------------------- */

/* How shards look up the keys of an op. The keys themselves are in the op's `args`. */
struct bag_op_keys {
    bool has_padding, has_default;
    int64_t padding, default_key;
    bool default_is_asked; /* the request set the default key; the reply must say if the table does
                              not have it */
    enum bag_missing missing;
    struct bag_ids sent; /* keys as the client sent them */
    enum bag_dtype sent_dtype,
        default_dtype;  /* types in which the client sent the keys and the default key */
    size_t first_value; /* position of the keys in KeyedJaggedTensor's values, if from_values */
    bool from_values;
};

/* Where the rows of an op are stored, and therefore who pools them. */
enum bag_op_kind {
    BAG_OP_LOCAL,  /* in memory */
    BAG_OP_MAPPED, /* in a file; rows are prefetched before pooling and checked after it (mapped.c)
                    */
    BAG_OP_REMOTE  /* on shards, which pool them; server/coordinator merges their replies */
};

static inline enum bag_op_kind bag_op_kind_of(const struct bag_table_memory *memory)
{
    return memory->remote ? BAG_OP_REMOTE : memory->map ? BAG_OP_MAPPED : BAG_OP_LOCAL;
}

/* A checked call of the kernels and the position of its result. The plan for a table's model has
 * one op. The plan for a collection has one or more for each feature. */
struct bag_op {
    enum bag_op_kind kind;                 /* constant after planning, as is `memory` */
    const struct bag_table_memory *memory; /* rows of the feature's table; borrowed */
    struct bag_pool_args args;
    size_t output;  /* index of the output that the result is a part of */
    size_t offset;  /* position of the op's first bag in that output, in bytes */
    char *result;   /* destination of the pooled rows; set when the reply is allocated */
    size_t feature; /* index of the feature in the model */

    /* Mapped ops: number of leading entries whose rows were prefetched. */
    size_t num_prefetched;

    /* Remote ops; the first six are set by server/coordinator: */
    bool is_joined;               /* sent in one subrequest with an earlier op */
    struct bag_op *joined;        /* next op of the same subrequest; NULL: none */
    size_t first_call, num_calls; /* subrequests of the op, one for each shard that is asked */
    size_t first_bag;             /* position of the op's bags in these subrequests */
    bool asks_default;            /* some of its bags may get the default row of a shard */
    struct bag_op_keys keys;      /* used if the table is keyed */
    int64_t *rows;     /* outcome of each entry in the format of bag_keys_resolve; set if the reply
                          explains */
    uint8_t *replaced; /* mark for each entry that was replaced; set if the reply explains */

    /* The format in which the FP32 rows of a local or mapped op are encoded as soon as they are
     * pooled, or in which the shards of a remote op send their stored rows; PLAIN: none. Rows of
     * other ops are encoded last: `is_staged`. */
    enum bag_row_format row_format;
    bool is_staged; /* the op writes FP32 rows of an output that is encoded last */

    /* Ops with a projection pool FP32 rows, which are then projected into the output: */
    const struct bag_projection *projection; /* borrowed; NULL: the op writes to the output */
    enum bag_dtype dtype;                    /* type of the output */
    size_t stride;                           /* distance of the output's rows, in bytes */
    char *target; /* first row in the output; set when the reply is allocated */
};

/* A range of the work: a range of the bags, and one of several equal ranges of the columns of each
 * bag. Bags are counted through all ops in order. */
struct bag_split {
    size_t first_op, first_bag;               /* position of the first bag */
    size_t end_op, end_bag;                   /* position after the last bag; end_bag may be 0 */
    unsigned column_split, num_column_splits; /* index and number of the ranges of columns */
};

/* Returns the maximum number of ranges into which `columns` columns can be split. */
size_t bag_column_steps(size_t columns);

/* Returns the range of all bags and columns. */
struct bag_split bag_split_all(size_t num_ops);

/* Returns the bags and columns of an op that are in the split. */
struct bag_range bag_split_range(const struct bag_split *split, const struct bag_pool_args *args,
                                 size_t op);

/* The amount of work of a list of ops. Indices that two ops share count twice. */
struct bag_ops_work {
    size_t bags, rows, bytes; /* `bytes` is the size of the rows */
    size_t unsorted;          /* rows whose segments must be sorted first */
};

/* Returns the work of the ops. */
struct bag_ops_work bag_ops_count_work(const struct bag_op *ops, size_t count);

/* Returns the number of bags without an index that get the default row, for the statistics. */
size_t bag_ops_default_bags(const struct bag_op *ops, size_t count);

/* ---- plans ----------------------------------------------------------------------------------- */

/* The limits of one request. */
struct bag_infer_limits {
    size_t max_body_bytes; /* maximum size of the body after decompression */
    size_t max_reply_bytes;
    size_t max_reply_ratio; /* maximum ratio of the reply's bytes for bags beyond the number of ids
                               to the body's bytes; 0: no limit */
    size_t max_work_ns_per_byte; /* maximum work for each byte of the body; bodies below 2000 bytes
                                    count as 2000; 0: no limit */
    bool explains;               /* requests may ask for an explanation */
    bool samples;                /* sampled ids are counted (hot_rows.h) */
    size_t min_packed_bytes;     /* size from which replies are compressed */
};

/* The plan of one request. Lives as long as the request's body and arena. */
struct bag_plan {
    struct bag_text id;             /* JSON string in the body, with its quotes; empty: none */
    struct bag_text warnings;       /* warnings of the request, in its arena; empty: none */
    struct bag_text table_versions; /* JSON object in the arena, see `shows_versions` */
    uint64_t timeout_us;            /* timeout that the request asks for; UINT64_MAX: none */
    struct bag_op *ops;
    size_t num_ops;
    struct bag_v2_reply_output *outputs; /* the tensors without their `data` */
    size_t num_outputs;
    size_t result_bytes, binary_bytes; /* bytes of all outputs, and of the binary outputs */
    size_t staged_bytes;               /* bytes of the FP32 rows of outputs that are encoded last */
    uint64_t encoded_elements;         /* elements of all rows that are encoded */
    bool binary;                       /* all outputs are binary */
    struct bag_ops_work work;
    bool projects;       /* at least one op has a projection */
    bool explains;       /* the reply reports how each bag was pooled */
    bool shows_versions; /* the reply says which versions of tables answered */
    bool sampled;        /* ids of the request were sampled; set to false before its first plan */
    bool partial; /* the reply is for a coordinator: the output after each op's sums holds the
                     counts of its bags, and with weights the next one holds the sums of weights */
    size_t missing_keys;       /* keys that the tables do not have */
    size_t other_ids;          /* ids of other parts of the tables, which were left out */
    uint64_t project_products; /* multiplications of all projections */

    /* Storage for the plan of a table's model, which needs no allocation. */
    struct bag_op one_op;
    struct bag_v2_reply_output one_output;
    struct bag_tensor tensors[BAG_INPUT_COUNT];
};

/* Matches the request's tensors to the model's features and checks them. Returns false and sets
 * *problem for the client if they do not fit. *problem names the feature if the model has
 * several. */
bool bag_plan_make(struct bag_plan *plan, const struct bag_model *model,
                   const struct bag_v2_request *request, const struct bag_infer_limits *limits,
                   struct bag_arena *arena, struct bag_problem *problem);

/* ---- a plan in the making -------------------------------------------------------------------- */

/* The rest of this file is private to server/infer/plan*.c. */

/* The state of bag_plan_make while it makes a plan. */
struct bag_planner {
    struct bag_plan *plan;
    const struct bag_model *model;
    const struct bag_v2_request *request;
    const struct bag_infer_limits *limits;
    struct bag_arena *arena;
    struct bag_problem *problem;
    struct bag_inputs
        *inputs; /* indexed by feature; all NULL if the request has no inputs for it */
    struct bag_pool_args *args; /* indexed by feature; unset if the request has no inputs for it */
    struct bag_op_keys *keys;   /* indexed by feature; NULL: the server looks up all keys itself */
    struct bag_kjt *kjt;        /* inputs of all features at once; NULL: `inputs` has them */
    bool warned;                /* the plan warns of indices that are in no bag */
};

/* Returns whether the request has any input for a feature. */
static inline bool bag_planner_has(const struct bag_planner *planner, size_t feature)
{
    bool any = planner->kjt != NULL;
    for (int i = 0; !any && i < BAG_INPUT_COUNT; i++)
        any = planner->inputs[feature].tensor[i] != NULL;
    return any;
}

/* Sets the problem that the arena is exhausted. Returns false. */
static inline bool bag_planner_no_memory(const struct bag_planner *planner)
{
    return bag_problem_set(planner->problem, BAG_ERROR_NO_MEMORY,
                           "not enough memory to decode the request");
}

/* Returns the row format of a feature in an output: the request's, or the feature's own. That one
 * is not for a part's sums, nor for a request that names a datatype and so wants its elements. */
static inline enum bag_row_format bag_planner_row_format(const struct bag_planner *planner,
                                                         size_t feature)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    if (overrides->has_row_format)
        return overrides->row_format;
    return overrides->has_output_dtype || overrides->partial
               ? BAG_ROWS_PLAIN
               : planner->model->features[feature].output_row_format;
}

/* Fills `inputs`, or `kjt` if the request has that layout. Returns false and sets the problem if an
 * input is unknown or wrong. */
bool bag_planner_match(struct bag_planner *planner);

/* Allocates the outputs and ops, and fills them in as the request asks. Returns false and sets the
 * problem if an output is unknown or cannot be made, or without memory. */
bool bag_planner_make_outputs(struct bag_planner *planner);
