/* The queries that the benchmarks ask: bags of random ids, as arrays and as whole HTTP requests.
 *
 * The same seed gives the same ids to a program that asks over HTTP and to one that calls the
 * kernels. */
#ifndef BENCH_QUERY_H
#define BENCH_QUERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_MAX_FEATURES 32

/* Bags of one table: ids are from 0 to rows - 1. */
struct bench_feature {
    int64_t rows;
    unsigned ids_per_bag;
};

struct bench_query {
    const char *model;
    unsigned bags; /* of each feature */
    size_t num_features;
    struct bench_feature features[BENCH_MAX_FEATURES];
    bool collection; /* values and lengths; otherwise one table that holds the rows of all features,
                        one after the other, by indices and offsets */
    bool json;       /* both ways; otherwise binary tensors both ways */
    bool varied;     /* each request has an id of its own, and bags of 1 to ids_per_bag ids */
    double zipf;     /* the exponent of Zipf's law, id 0 the likeliest; 0: all equally likely */
    const char *get_path; /* not NULL: asked for instead, without a body */
};

/* A number from 0 to 2^64 - 1; `state` may start anywhere. */
uint64_t bench_random(uint64_t *state);

/* A number from 0, included, to 1, excluded. */
double bench_random_unit(uint64_t *state);

/* How many ids a query has. */
size_t bench_query_count(const struct bench_query *query);

/* The ids of one query, feature by feature; and of its bags, feature by feature, where they start
 * or, in a collection, their lengths. */
void bench_query_ids(const struct bench_query *query, uint64_t *state, int64_t *ids);
void bench_query_bags(const struct bench_query *query, int64_t *bags);

/* Fills the features from "ROWS:IDS,ROWS:IDS,..."; false where the text is another. */
bool bench_query_read_features(struct bench_query *query, const char *text);

/* A request as it goes over the wire. */
struct bench_request {
    char *bytes; /* owned */
    size_t count;
};

/* Makes `count` requests with ids of their own. Ends the program where there is no memory. */
struct bench_request *bench_requests_make(const struct bench_query *query, size_t count,
                                          uint64_t seed, unsigned port);

#endif
