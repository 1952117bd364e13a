/* What is answered in the V2 protocol: small JSON documents, and replies with tensors.
 *
 * Each function of a document returns it on the heap, for the caller to free(), or NULL where
 * there is no memory. */
#ifndef BAG_V2_DOCUMENTS_H
#define BAG_V2_DOCUMENTS_H

#include "embedded.h"
#include "kernels/part.h"
#include "kernels/table.h"
#include "v2_request.h"

struct bag_pool_args; /* kernels/pool.h */

/* Which optional inputs metadata shows: a client that fills all that it is shown may need fewer.
 * X(ID, name in a configuration) */
#define BAG_V2_OPTIONAL_INPUTS(X) \
    X(ALL, "all")                 \
    X(WEIGHTS, "weights")         \
    X(NONE, "none")

enum bag_v2_optional_inputs {
#define BAG_X(id, name) BAG_V2_OPTIONAL_##id,
    BAG_V2_OPTIONAL_INPUTS(BAG_X)
#undef BAG_X
};

/* What a model of a table shows of itself; it takes every form and every input all the same. */
struct bag_v2_shown {
    enum bag_form form;
    enum bag_v2_optional_inputs optional_inputs;
};

/* The bags of a table, with the output that they make. */
struct bag_v2_feature {
    const char *name;  /* of the output */
    const char *table; /* the model whose table it is */
    const struct bag_table *rows;
    int64_t num_rows;         /* of a keyed table the keys that it has now */
    size_t table_bytes;       /* of its rows, and of its index of keys */
    uint64_t updates_through; /* the last update of its rows */
    enum bag_dtype output_dtype;
    enum bag_row_format output_row_format;
    enum bag_dtype keys_dtype; /* of a keyed table */
    const int64_t *row_shape;  /* the output's dimensions after the first */
    uint32_t row_rank;
    size_t row_elements; /* their product */
    bool projected;      /* they are those of a matrix that pooled rows are multiplied with */
    const struct bag_rules *rules;
    struct bag_part part;    /* of a table of whole_rows rows; of 0: it is the whole table */
    uint64_t whole_rows;     /* of a part's table, with its own */
    uint64_t whole_elements; /* of a row of it */
    uint64_t digest;         /* of what the part was cut from */
    size_t num_shards;       /* other servers that have its parts; 0: the rows are here */
};

/* A model as its metadata shows it. */
struct bag_v2_model {
    const char *name;
    const char *const *versions;
    size_t num_versions;
    const struct bag_v2_feature *features; /* at least 1 */
    size_t num_features;
    bool is_collection; /* otherwise its one feature is its own table */
    /* Which versions are served: the last ones, so many, or `specific` ones, or all. */
    int64_t latest; /* 0: not the last ones */
    const int64_t *specific;
    size_t num_specific;
    struct bag_v2_shown shown;
};

/* GET /v2/models/M, -1 for any size: the inputs of the form that it shows, and the output; of a
 * collection the inputs of KeyedJaggedTensor's layout with lengths, and as outputs the features
 * and, where they have one type, all of them side by side. As parameters what the tables are. */
char *bag_v2_describe_model(const struct bag_v2_model *model);

/* GET /v2/models/M/config: the same facts under the names of Triton's ModelConfig, and the rules by
 * which the model pools as its parameters. */
char *bag_v2_describe_config(const struct bag_v2_model *model);

/* GET /openapi.json: proto/openapi.json, which the build puts into the program. */
extern const struct bag_embedded bag_openapi[];

/* ---- replies with tensors (v2_reply.c) ------------------------------------------------------- */

/* Replies of the V2 protocol: the JSON header, with the numbers of JSON outputs inside it.
 *
 * Allocates nothing; the caller gives room as bag_v2_reply_bound says. */

struct bag_v2_reply_output {
    const char *name; /* needs no escaping in JSON */
    enum bag_dtype dtype;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    size_t count; /* product of the shape */
    bool binary;
    enum bag_row_format row_format; /* PLAIN: elements; otherwise the last dimension, of UINT8, is
                                       the bytes of a row of row_elements FP32 elements */
    size_t row_elements;
    const void *data; /* read only for JSON outputs; any alignment */
};

struct bag_v2_reply {
    const char *model_name; /* needs no escaping in JSON */
    const char *model_version;
    struct bag_text id; /* a JSON string with its quotes; bytes 0: none */
    const struct bag_v2_reply_output *outputs;
    size_t num_outputs;
    struct bag_text explanation; /* a JSON array, under "parameters"; bytes 0: none */
    struct bag_text warnings;    /* likewise */
    struct bag_text absent;      /* likewise */
};

/* The most bytes that bag_v2_reply_header writes, SIZE_MAX where that cannot be counted. */
size_t bag_v2_reply_bound(const struct bag_v2_reply *reply);

/* Writes the JSON part; returns its end. Where an output is binary, spaces follow the object so
 * that the raw tensors after it start at a multiple of 64 bytes from `out`. */
char *bag_v2_reply_header(const struct bag_v2_reply *reply, char *out);

/* False, with BAD_REQUEST and the two ways out, for an output that has no JSON form. */
bool bag_v2_reply_check_json(const char *name, enum bag_dtype dtype, struct bag_problem *problem);

/* The most bytes that bag_v2_explain writes for that call and name; SIZE_MAX where it cannot be
 * counted. */
size_t bag_v2_explain_bound(const struct bag_pool_args *args, const char *name);

/* Writes {"name": name, "bags": [{"rows": ..., "default": ...}, ...]}, with the positions in
 * `indices` of entries by their status (pool_entries.h) where there are some; returns the end.
 * `name` needs no escaping. The call is not one of unsorted segments. */
char *bag_v2_explain(const struct bag_pool_args *args, const char *name, char *out);

#endif
