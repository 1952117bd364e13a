/* What a client reads of a server of the V2 protocol: its models, what one of them takes, errors
 * and tensors. Anybody may have answered: all of it is checked. */
#ifndef BAG_V2_CLIENT_H
#define BAG_V2_CLIENT_H

#include "kernels/part.h"
#include "kernels/table.h"
#include "problem.h"
#include "text.h"

/* More tables than this in one collection are rejected. */
#define BAG_CLIENT_MAX_TABLES 4096

/* ---- the models ------------------------------------------------------------------------------ */

struct bag_client_names {
    char **names; /* owned */
    size_t count;
};

/* Reads GET /v2/models, or POST /v2/repository/index, of which the models that are READY are taken,
 * each name once. On failure there is nothing to free. */
bool bag_client_read_names(const char *text, size_t bytes, struct bag_client_names *names,
                           struct bag_problem *problem);

void bag_client_names_free(struct bag_client_names *names);

/* ---- one model ------------------------------------------------------------------------------- */

/* A table that is asked: a model's own, or that of a feature. */
struct bag_client_table {
    char *name;          /* owned; of the output */
    char *model;         /* owned; whose table it is; NULL: the model's own */
    int64_t rows;        /* -1: not said */
    size_t row_elements; /* 0: not said */
    enum bag_row_format
        row_format; /* BAG_ROW_FORMAT_COUNT: one that is not known; PLAIN: not said */
    uint64_t bytes; /* of all rows; 0: not said */
    bool keyed;
    struct bag_part part;   /* of 0: it is not said to be a part of a table; of one by rows those */
    int64_t first_row;      /* begin here that it has */
    size_t output_elements; /* of a bag's row in the reply; 0: not said */
    enum bag_dtype output_dtype; /* of these; BAG_DTYPE_COUNT: not said */

    /* How it pools, after bag_client_read_rules. */
    enum bag_reduction reduction;
    bool weighted_mean, projected;
    bool has_padding, has_default;
    int64_t padding, default_id; /* rows from 0, or keys; the default is of empty bags */
};

struct bag_client_model {
    char *name, *version; /* owned */
    bool is_collection;   /* values and lengths, otherwise indices and offsets */
    bool takes_weights;
    enum bag_dtype ids_dtype;
    struct bag_client_table *tables; /* owned; at least 1 */
    size_t num_tables;
};

/* Reads GET /v2/models/M. Rejects a model that takes other inputs than bags, and names those that
 * it takes. On failure there is nothing to free. */
bool bag_client_read_model(const char *text, size_t bytes, struct bag_client_model *model,
                           struct bag_problem *problem);

/* Reads of GET /v2/models/M/config how the tables pool. */
bool bag_client_read_rules(const char *text, size_t bytes, struct bag_client_model *model,
                           struct bag_problem *problem);

void bag_client_model_free(struct bag_client_model *model);

/* ---- replies --------------------------------------------------------------------------------- */

/* The whole number `name` of a JSON object, or of the object `within` inside it where that is not
 * NULL: from 0 to 2^53 - 1. False where there is none. */
bool bag_client_read_number(const char *text, size_t bytes, const char *within, const char *name,
                            uint64_t *number);

/* The sentence of {"error": sentence}, or what was sent in its place, shortened to `room` bytes
 * with the NUL, without control characters. */
void bag_client_read_error(const char *text, size_t bytes, char *sentence, size_t room);

/* Finds the binary output of that name, `count` floats or integers of *dtype at *data, which is in
 * `body`, at any alignment, in a reply whose first `json_bytes` are JSON. */
bool bag_client_find_output(const char *body, size_t bytes, size_t json_bytes, const char *name,
                            size_t count, enum bag_dtype *dtype, const void **data,
                            struct bag_problem *problem);

#endif
