/* The queries that the benchmarks ask: bags of random ids, as arrays and as whole HTTP requests.
 *
 * The same seed gives the same ids to a program that asks over HTTP and to one that calls the
 * kernels. Must not know: sockets, time. */
#ifndef BENCH_QUERY_H
#define BENCH_QUERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_query {
    const char *model;
    int64_t rows; /* ids are from 0 to rows - 1, all equally likely */
    unsigned bags, ids_per_bag;
    bool json;            /* both ways; otherwise binary tensors both ways */
    const char *get_path; /* not NULL: asked for instead, without a body */
};

/* A number from 0 to 2^64 - 1; `state` may start anywhere. */
uint64_t bench_random(uint64_t *state);

/* A number from 0, included, to 1, excluded. */
double bench_random_unit(uint64_t *state);

/* The ids of one query, bags * ids_per_bag of them, and where its bags start. */
void bench_query_ids(const struct bench_query *query, uint64_t *state, int64_t *ids);
void bench_query_offsets(const struct bench_query *query, int64_t *offsets);

/* A request as it goes over the wire. */
struct bench_request {
    char *bytes; /* owned */
    size_t count;
};

/* Makes `count` requests with ids of their own. Ends the program where there is no memory. */
struct bench_request *bench_requests_make(const struct bench_query *query, size_t count,
                                          uint64_t seed, unsigned port);

#endif
