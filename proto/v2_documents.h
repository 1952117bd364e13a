/* The inputs that metadata lists, and replies of the V2 protocol with tensors. */
#pragma once

#include "embedded.h"
#include "kernels/part.h"
#include "kernels/table.h"
#include "v2_request.h"

struct bag_pool_args; /* kernels/pool.h */

/* Which optional inputs metadata lists. A client that sends all listed inputs may not want to send
 * the optional ones. X(ID, name in a configuration) */
#define BAG_V2_OPTIONAL_INPUTS(X) \
    X(ALL, "all")                 \
    X(WEIGHTS, "weights")         \
    X(NONE, "none")

enum bag_v2_optional_inputs {
#define BAG_X(id, name) BAG_V2_OPTIONAL_##id,
    BAG_V2_OPTIONAL_INPUTS(BAG_X)
#undef BAG_X
};

/* The inputs that the metadata of a table's model lists. The model accepts every form and every
 * input in any case. */
struct bag_v2_shown {
    enum bag_form form;
    enum bag_v2_optional_inputs optional_inputs;
};

/* The document of GET /openapi.json: proto/openapi.json, which the build embeds into the
 * program. */
extern const struct bag_embedded bag_openapi[];

/* ---- replies with tensors (v2_reply.c) ------------------------------------------------------- */

/* Replies of the V2 protocol: the JSON header, which contains the numbers of JSON outputs.
 *
 * The functions below allocate nothing. The caller provides a buffer of bag_v2_reply_bound()
 * bytes. */

struct bag_v2_reply_output {
    const char *name; /* must need no escaping in JSON */
    enum bag_dtype dtype;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    size_t count; /* product of the shape */
    bool binary;
    enum bag_row_format row_format; /* PLAIN: elements; otherwise the output is UINT8, and its
                                       last dimension is the size of a row of row_elements FP32
                                       elements */
    size_t row_elements;
    const void *data; /* read only for JSON outputs; may have any alignment */
};

struct bag_v2_reply {
    const char *model_name; /* must need no escaping in JSON */
    const char *model_version;
    struct bag_text id; /* JSON string with its quotes; bytes 0: none */
    const struct bag_v2_reply_output *outputs;
    size_t num_outputs;
    struct bag_text explanation;    /* JSON array for "parameters"; bytes 0: none */
    struct bag_text warnings;       /* JSON array for "parameters"; bytes 0: none */
    struct bag_text absent;         /* JSON array for "parameters"; bytes 0: none */
    struct bag_text table_versions; /* JSON object for "parameters"; bytes 0: none */
};

/* Returns the maximum number of bytes that bag_v2_reply_header writes, or SIZE_MAX if it
 * overflows. */
size_t bag_v2_reply_bound(const struct bag_v2_reply *reply);

/* Writes the JSON part and returns its end. If an output is binary, spaces follow the object, so
 * that the raw tensors after it begin at a multiple of 64 bytes from `out`. */
char *bag_v2_reply_header(const struct bag_v2_reply *reply, char *out);

/* Returns false and sets *problem (BAD_REQUEST) if the type has no JSON form. The sentence names
 * both alternatives. */
bool bag_v2_reply_check_json(const char *name, enum bag_dtype dtype, struct bag_problem *problem);

/* Returns the maximum number of bytes that bag_v2_explain writes for these arguments and this name,
 * or SIZE_MAX if it overflows. */
size_t bag_v2_explain_bound(const struct bag_pool_args *args, const char *name);

/* Writes {"name": name, "bags": [{"rows": ..., "default": ...}, ...]} and returns the end. A bag
 * also lists the positions in `indices` of entries with another status (pool_entries.h). `name`
 * must need no escaping. The arguments must not have unsorted segments. */
char *bag_v2_explain(const struct bag_pool_args *args, const char *name, char *out);
