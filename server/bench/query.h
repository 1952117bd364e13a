/* The requests that are sent: bags of random ids, as whole HTTP requests.
 *
 * A query knows for each table of the model which ids may be drawn: rows of a dense table, or the
 * keys of a file. The function bag_bench_tensors_draw draws the tensors of one request, and
 * bag_bench_request_make puts them into bytes. All requests of a measurement are made before it
 * starts, and are sent in turn. The same seed gives the same requests.
 *
 * A single table gets `indices` and `offsets`, and a collection gets `values` and `lengths`: the
 * forms that clients of each use. Weights are a third tensor. In binary, the tensors follow a JSON
 * header; with --body json, their numbers are in the JSON. A request also stores the bags, rows and
 * bytes that it asks for, from which the report has its rates. */
#pragma once

#include "draw.h"
#include "server/tables/memory.h"
#include "target.h"

/* Rows from which the ids of a bag are drawn. */
struct bag_bench_range {
    uint64_t first_row; /* number of the first row in the whole table */
    struct bag_bench_ids ids;
};

/* Ids of one table. */
struct bag_bench_source {
    struct bag_table_memory keys;   /* owned; without rows: ids are row numbers */
    struct bag_bench_range *ranges; /* owned; bag i uses element i % num_ranges */
    size_t num_ranges;
    double row_bytes; /* mean bytes that pooling reads for a row */
};

struct bag_bench_query {
    const struct bag_bench_options *options; /* borrowed */
    const struct bag_bench_target *target;   /* borrowed */
    struct bag_bench_source *sources;        /* owned; one for each table of the model */
    size_t num_sources;
    bool binary_replies; /* also for requests in JSON */
};

/* The tensors of one request. All arrays are owned. */
struct bag_bench_tensors {
    uint64_t *ids; /* table by table, bag by bag */
    float *weights;
    size_t num_ids;
    size_t *lengths; /* lengths of bags, table by table */
    size_t num_bags;
};

/* Reads the keys of keyed tables, and checks that the options fit the model. Returns false and sets
 * *problem if they do not. The caller must call bag_bench_query_free in either case. */
bool bag_bench_query_init(struct bag_bench_query *query, const struct bag_bench_options *options,
                          const struct bag_bench_target *target, struct bag_problem *problem);

/* Frees the keys and the ranges. */
void bag_bench_query_free(struct bag_bench_query *query);

/* Returns the path of the last file for this table of the model; NULL if there is none. */
const char *bag_bench_find_file(const struct bag_bench_files *files,
                                const struct bag_client_model *model,
                                const struct bag_client_table *table);

/* Draws one request. Returns false and sets *problem on failure; then nothing is to be freed. */
bool bag_bench_tensors_draw(const struct bag_bench_query *query, uint64_t *state,
                            struct bag_bench_tensors *tensors, struct bag_problem *problem);

/* Frees the arrays. */
void bag_bench_tensors_free(struct bag_bench_tensors *tensors);

/* Makes the request with these tensors. Returns false and sets *problem on failure; then nothing is
 * to be freed. */
bool bag_bench_request_make(const struct bag_bench_query *query,
                            const struct bag_bench_tensors *tensors,
                            struct bag_bench_request *request, struct bag_problem *problem);

/* Makes options->bodies different requests, or as many as fit into 64 MiB. Returns NULL and sets
 * *problem on failure. */
struct bag_bench_request *bag_bench_requests_make(const struct bag_bench_query *query,
                                                  size_t *count, struct bag_problem *problem);

/* Frees requests and their bytes. NULL is ignored. */
void bag_bench_requests_free(struct bag_bench_request *requests, size_t count);
