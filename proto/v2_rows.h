/* The body of POST /v2/models/M/rows: a batch of rows that replaces or adds some, and its reply.
 *
 * Framed as an inference is (v2_request.h), with the inputs indices or keys, and rows. */
#ifndef BAG_V2_ROWS_H
#define BAG_V2_ROWS_H

#include "v2_request.h"

struct bag_v2_rows {
    struct bag_text id; /* as in struct bag_v2_request */
    bool has_keys;      /* `ids` are keys, and not indices */
    struct bag_tensor ids, rows;
    bool has_sequence;
    uint64_t sequence; /* from 1 */
    bool deletes;      /* there are no rows */
};

/* Decodes a body; its parts and `arena` live as long as *rows is used. Rejects other inputs and
 * parameters: what changes a table is not guessed. */
bool bag_v2_rows_decode(const char *body, size_t body_bytes, size_t header_bytes,
                        const struct bag_json_limits *limits, struct bag_arena *arena,
                        struct bag_v2_rows *rows, struct bag_problem *problem);

struct bag_v2_rows_reply {
    const char *model_name, *model_version;
    struct bag_text id;
    uint64_t sequence;
    bool applied; /* or it had been before */
    size_t rows;
};

/* The reply, owned by the caller (free); NULL without memory. */
char *bag_v2_rows_reply(const struct bag_v2_rows_reply *reply);

#endif
