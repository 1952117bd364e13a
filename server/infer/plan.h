/* From a decoded request to what is to be pooled, and to which outputs.
 *
 * A model of a table has its inputs under their own names and one output, BAG_EMBEDDINGS. A
 * collection has them as "<feature>.indices" and so on, or all at once in KeyedJaggedTensor's
 * layout, and an output for each feature, or BAG_EMBEDDINGS for all side by side.
 *
 * Depends on neither buffers nor threads. */
#ifndef BAG_PLAN_H
#define BAG_PLAN_H

#include "kernels/pool.h"
#include "proto/v2_documents.h"
#include "proto/v2_request.h"
#include "server/models/snapshot.h"
#include "server/tables/memory.h"

/* ---- ops ------------------------------------------------------------------------------------- */

/* What is said of keys that are looked up elsewhere; `args` has the keys themselves. */
struct bag_op_keys {
    bool has_padding, has_default;
    int64_t padding, default_key;
    bool default_is_asked; /* the request brought it: whether the table has it is to be said */
    enum bag_missing missing;
    struct bag_ids sent;                      /* as the client sent them */
    enum bag_dtype sent_dtype, default_dtype; /* likewise */
    size_t first_value; /* of KeyedJaggedTensor's values, where they are from there */
    bool from_values;
};

/* Where the rows of an op are, which decides who pools them. */
enum bag_op_kind {
    BAG_OP_LOCAL,  /* in memory */
    BAG_OP_MAPPED, /* in a file: prefetched before, and checked after they are pooled (mapped.c) */
    BAG_OP_REMOTE  /* on shards, which pool them; server/coordinator merges their replies */
};

static inline enum bag_op_kind bag_op_kind_of(const struct bag_table_memory *memory)
{
    return memory->remote ? BAG_OP_REMOTE : memory->map ? BAG_OP_MAPPED : BAG_OP_LOCAL;
}

/* A list of checked calls of the kernels, each with the place of its result. A request for a table
 * has one, one for a collection has one or more for each feature. */
struct bag_op {
    enum bag_op_kind kind;                 /* never changes once the op is planned, as the memory */
    const struct bag_table_memory *memory; /* of the feature's table; borrowed */
    struct bag_pool_args args;
    size_t output;  /* of which of the reply's outputs the result is a part */
    size_t offset;  /* of its first bag in that output, in bytes */
    char *result;   /* where the op writes, once there is memory */
    size_t feature; /* of the model */

    /* Of a mapped op: the number of its first entries whose rows have been prefetched. */
    size_t num_prefetched;

    /* Of a remote op. */
    bool is_joined;          /* asked with those of an earlier op; set by server/coordinator */
    struct bag_op *joined;   /* the next one that is joined; NULL: none; likewise */
    struct bag_op_keys keys; /* if the table is keyed */
    int64_t *rows;           /* if the reply explains: room for what became of each entry, as
                                bag_keys_resolve reports it */
    uint8_t *replaced;       /* likewise */

    /* Where pooled rows, in FP32, are yet to be projected into the output. */
    const struct bag_projection *projection; /* borrowed; NULL: the op writes to the output */
    enum bag_dtype dtype;                    /* of the output */
    size_t stride;                           /* of the output's rows, in bytes */
    char *target;                            /* its first row, once there is memory */
};

/* A range of the work: bags of the list, counted as if they were one after the other, and of all of
 * them a range of the columns. */
struct bag_split {
    size_t first_op, first_bag;               /* from here on */
    size_t end_op, end_bag;                   /* up to here, where no bag of it has begun */
    unsigned column_split, num_column_splits; /* columns: this one of so many */
};

/* Into how many ranges so many columns can be split. */
size_t bag_column_steps(size_t columns);

/* All of it. */
struct bag_split bag_split_all(size_t num_ops);

/* Bags and columns of an op that are in the split. */
struct bag_range bag_split_range(const struct bag_split *split, const struct bag_pool_args *args,
                                 size_t op);

/* How much a list pools. Indices that are shared by two ops count twice. */
struct bag_ops_work {
    size_t bags, rows, bytes; /* bytes of the rows */
    size_t unsorted;          /* rows whose segments are yet to be sorted */
};
struct bag_ops_work bag_ops_count_work(const struct bag_op *ops, size_t count);

/* For the statistics: bags that brought no index, where those get a row. */
size_t bag_ops_default_bags(const struct bag_op *ops, size_t count);

/* ---- plans ----------------------------------------------------------------------------------- */

/* What one request may ask for. */
struct bag_infer_limits {
    size_t max_body_bytes; /* decompressed */
    size_t max_reply_bytes;
    size_t max_reply_ratio;      /* of the bytes of bags beyond the ids to the body's; 0: any */
    size_t max_work_ns_per_byte; /* of the body, or of 2000 bytes where it is shorter; 0: any */
    bool explains;               /* where a request asks for it */
    size_t min_packed_bytes;     /* smaller replies are not compressed */
};

/* Made of a request; lives as long as its body and the arena. */
struct bag_plan {
    struct bag_text id;       /* a part of the body, in quotes; empty: none */
    struct bag_text warnings; /* the request's, in its arena; empty: none */
    uint64_t timeout_us;      /* the request's own; UINT64_MAX: none */
    struct bag_op *ops;
    size_t num_ops;
    struct bag_v2_reply_output *outputs; /* their `data` are not set */
    size_t num_outputs;
    size_t result_bytes, binary_bytes; /* of all outputs; of those that are sent in binary */
    bool binary;                       /* all of them are */
    struct bag_ops_work work;
    bool projects;             /* some op does */
    bool explains;             /* the reply says what became of every bag */
    bool partial;              /* of each op, the counts of its bags are the next output, and with
                                  weights their sums the one behind it */
    size_t missing_keys;       /* that keyed tables do not have */
    size_t other_ids;          /* that are of other parts, and left out */
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

/* ---- a plan in the making -------------------------------------------------------------------- */

/* Private to server/infer/plan*.c. */

struct bag_planner {
    struct bag_plan *plan;
    const struct bag_model *model;
    const struct bag_v2_request *request;
    const struct bag_infer_limits *limits;
    struct bag_arena *arena;
    struct bag_problem *problem;
    struct bag_inputs *inputs;  /* of each feature; none where the request leaves it out */
    struct bag_pool_args *args; /* of each feature that has inputs */
    struct bag_op_keys *keys;   /* of each feature; NULL: no keys are looked up elsewhere */
    struct bag_kjt *kjt;        /* the inputs of all features at once; NULL: `inputs` are theirs */
};

/* Whether the request brought anything for a feature. */
static inline bool bag_planner_has(const struct bag_planner *planner, size_t feature)
{
    bool any = planner->kjt != NULL;
    for (int i = 0; !any && i < BAG_INPUT_COUNT; i++)
        any = planner->inputs[feature].tensor[i] != NULL;
    return any;
}

/* Says that the arena has no more; returns false. */
static inline bool bag_planner_no_memory(const struct bag_planner *planner)
{
    return bag_problem_set(planner->problem, BAG_ERROR_NO_MEMORY,
                           "not enough memory to decode the request");
}

static inline enum bag_input bag_planner_input(struct bag_text name)
{
    enum bag_input input = 0;
    while (input < BAG_INPUT_COUNT && !bag_text_is(name, bag_input_names[input]))
        input++;
    return input;
}

/* Fills inputs or kjt from a request for a collection. */
bool bag_planner_match_collection(struct bag_planner *planner);

/* Makes room for the outputs and fills them as the request asks. */
bool bag_planner_make_outputs(struct bag_planner *planner);

#endif
