/* Replies of the V2 protocol: the JSON header, with the numbers of JSON outputs inside it.
 *
 * Allocates nothing; the caller gives room as bag_v2_reply_bound says. */
#ifndef BAG_V2_REPLY_H
#define BAG_V2_REPLY_H

#include "v2_request.h"

#include "kernels/pool.h"

struct bag_v2_reply_output {
    const char *name; /* needs no escaping in JSON */
    enum bag_dtype dtype;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    size_t count; /* product of the shape */
    bool binary;
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
};

/* The most bytes that bag_v2_reply_header writes, SIZE_MAX where that cannot be counted. */
size_t bag_v2_reply_bound(const struct bag_v2_reply *reply);

/* Writes the JSON part; returns its end. Where an output is binary, spaces follow the object so
 * that the raw tensors after it start at a multiple of 64 bytes from `out`. */
char *bag_v2_reply_header(const struct bag_v2_reply *reply, char *out);

/* False, with BAD_REQUEST and the two ways out, for an output that has no JSON form. */
bool bag_v2_reply_check_json(const char *name, enum bag_dtype dtype, struct bag_problem *problem);

/* The most bytes that bag_v2_explain writes for that pool and name; SIZE_MAX where it cannot be
 * counted. */
size_t bag_v2_explain_bound(const struct bag_pool_args *args, const char *name);

/* Writes {"name": name, "bags": [{"rows": ..., "default": ...}, ...]}, with the positions in
 * `indices` of entries that left their bag as "padding", "pruned" and "out_of_range" where there
 * are some; returns the end. `name` needs no escaping. The pool is one that bag_pool_sort need not
 * be called for. */
char *bag_v2_explain(const struct bag_pool_args *args, const char *name, char *out);

#endif
