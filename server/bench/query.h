/* The requests that are sent: bags of random ids, as whole HTTP requests. The same seed gives the
 * same ones. */
#ifndef BAG_BENCH_QUERY_H
#define BAG_BENCH_QUERY_H

#include "array.h"
#include "target.h"

/* The ids of a bag are of one of these. */
struct bag_bench_range {
    uint64_t first_row;
    struct bag_bench_ids ids;
};

/* What is asked of one table. */
struct bag_bench_source {
    struct bag_bench_array keys;    /* data NULL: ids are rows */
    struct bag_bench_range *ranges; /* owned; for bag after bag, and around again */
    size_t num_ranges;
    double row_bytes;
};

struct bag_bench_query {
    const struct bag_bench_options *options; /* borrowed */
    const struct bag_bench_target *target;   /* borrowed */
    struct bag_bench_source *sources;        /* owned; of each table of the model */
    size_t num_sources;
    bool binary_replies; /* whatever the requests are */
};

/* The tensors of one request. All arrays are owned. */
struct bag_bench_tensors {
    uint64_t *ids; /* table by table, bag by bag */
    float *weights;
    size_t num_ids;
    size_t *lengths; /* of bags, table by table */
    size_t num_bags;
};

/* Reads the keys of keyed tables, and checks that the model can be asked so. False with *problem;
 * in any case bag_bench_query_free is due. */
bool bag_bench_query_init(struct bag_bench_query *query, const struct bag_bench_options *options,
                          const struct bag_bench_target *target, struct bag_problem *problem);

void bag_bench_query_free(struct bag_bench_query *query);

/* The last of the files that is for that table of the model; NULL: there is none. */
const char *bag_bench_find_file(const struct bag_bench_files *files,
                                const struct bag_client_model *model,
                                const struct bag_client_table *table);

/* Draws one request. On failure there is nothing to free. */
bool bag_bench_tensors_draw(const struct bag_bench_query *query, uint64_t *state,
                            struct bag_bench_tensors *tensors, struct bag_problem *problem);

void bag_bench_tensors_free(struct bag_bench_tensors *tensors);

/* The request that asks so. On failure there is nothing to free. */
bool bag_bench_request_make(const struct bag_bench_query *query,
                            const struct bag_bench_tensors *tensors,
                            struct bag_bench_request *request, struct bag_problem *problem);

/* Makes the different requests of a run: options->bodies, or as many as fit. NULL with *problem. */
struct bag_bench_request *bag_bench_requests_make(const struct bag_bench_query *query,
                                                  size_t *count, struct bag_problem *problem);

void bag_bench_requests_free(struct bag_bench_request *requests, size_t count);

#endif
