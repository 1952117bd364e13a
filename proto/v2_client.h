/* Parsers for a client of the V2 protocol: a server's models, the inputs of one of them, errors and
 * tensors. The server is not trusted, so everything is checked. */
#pragma once

#include "kernels/part.h"
#include "kernels/table.h"
#include "problem.h"
#include "text.h"

/* Maximum number of tables of a collection. */
#define BAG_CLIENT_MAX_TABLES 4096

/* ---- the models ------------------------------------------------------------------------------ */

struct bag_client_names {
    char **names; /* owned */
    size_t count;
};

/* Parses the reply to GET /v2/models, or to POST /v2/repository/index. From an index it takes the
 * models that are READY, each name once. Returns false and sets *problem if the reply is invalid;
 * nothing needs to be freed then. */
bool bag_client_read_names(const char *text, size_t bytes, struct bag_client_names *names,
                           struct bag_problem *problem);

/* Frees the names. A zeroed list is allowed. */
void bag_client_names_free(struct bag_client_names *names);

/* ---- one model ------------------------------------------------------------------------------- */

/* The table of a model, or of a feature of a collection. */
struct bag_client_table {
    char *name;                     /* name of the output; owned */
    char *model;                    /* model of a feature's table; owned; NULL: the model itself */
    int64_t rows;                   /* -1: unknown */
    size_t row_elements;            /* 0: unknown */
    enum bag_row_format row_format; /* BAG_ROW_FORMAT_COUNT: an unknown name; PLAIN: absent */
    uint64_t bytes;                 /* size of all rows; 0: unknown */
    bool keyed;
    struct bag_part part;        /* part.of is 0 if the table is not a part */
    int64_t first_row;           /* first row of a part by rows, in the whole table */
    size_t output_elements;      /* elements of an output row; 0: unknown */
    enum bag_dtype output_dtype; /* type of the output's elements; BAG_DTYPE_COUNT: unknown */

    /* Pooling rules, set by bag_client_read_rules. */
    enum bag_reduction reduction;
    bool weighted_mean, projected;
    bool has_padding, has_default;
    int64_t padding, default_id; /* row numbers or keys; default_id is for empty bags */
};

struct bag_client_model {
    char *name, *version; /* owned */
    bool is_collection;   /* takes values and lengths instead of indices and offsets */
    bool takes_weights;
    bool pools; /* lists inputs that say which ids are a bag, or weights of them */
    enum bag_dtype ids_dtype;
    struct bag_client_table *tables; /* owned; at least 1 */
    size_t num_tables;
};

/* Parses the reply to GET /v2/models/M. Returns false and sets *problem if the reply is invalid or
 * the model takes other inputs than bags; the sentence names those inputs. Then nothing needs to be
 * freed. */
bool bag_client_read_model(const char *text, size_t bytes, struct bag_client_model *model,
                           struct bag_problem *problem);

/* Parses the pooling rules of the tables from the reply to GET /v2/models/M/config. Returns false
 * and sets *problem if the reply is invalid. */
bool bag_client_read_rules(const char *text, size_t bytes, struct bag_client_model *model,
                           struct bag_problem *problem);

/* Frees the members of a model and zeroes it. A zeroed model is allowed. */
void bag_client_model_free(struct bag_client_model *model);

/* ---- replies --------------------------------------------------------------------------------- */

/* Reads the member `name` of a JSON object, or of its member `within` if that is not NULL. Returns
 * false unless it is a whole number from 0 to 2^53 - 1. */
bool bag_client_read_number(const char *text, size_t bytes, const char *within, const char *name,
                            uint64_t *number);

/* Writes the sentence of {"error": sentence} to `sentence`, or the text that was sent instead,
 * without control characters and truncated to `room` bytes with the NUL. */
void bag_client_read_error(const char *text, size_t bytes, char *sentence, size_t room);

/* The members of an error that programs read. The texts are empty and the position
 * BAG_PROBLEM_NOWHERE if they are absent, as in errors of a server of version 0.1.0. */
struct bag_client_error {
    char code[32], input[32];
    size_t position;
};

/* Reads them from the body of an error reply. Returns false if it has no code. */
bool bag_client_read_code(const char *text, size_t bytes, struct bag_client_error *error);

/* A binary output of a reply. */
struct bag_client_output {
    enum bag_dtype dtype;
    enum bag_row_format row_format; /* format of encoded rows, whose type is U8; PLAIN: none */
    const void *data;               /* in the reply, at any alignment */
};

/* Finds the binary output with that name in a reply whose first `json_bytes` bytes are JSON. It
 * must have `num_rows` rows of `row_elements` elements, which may be encoded. Returns false and
 * sets *problem if there is no such output. */
bool bag_client_find_output(const char *body, size_t bytes, size_t json_bytes, const char *name,
                            size_t num_rows, size_t row_elements, struct bag_client_output *output,
                            struct bag_problem *problem);
