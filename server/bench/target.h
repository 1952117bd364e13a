/* The server that is measured: its address, its model, and single requests to it.
 *
 * bag_bench_target_find connects once to find an address that accepts connections, reads the list
 * of models and the metadata of one of them. These requests block, each on a connection of its own;
 * the load itself goes over the connections of connection.h. */
#pragma once

#include "connection.h"
#include "options.h"
#include "proto/v2_client.h"

struct bag_bench_target {
    struct bag_address address;
    char *authority, *path; /* owned; value of the Host header, and prefix of all paths */
    char *token;            /* owned; NULL: none */
    struct bag_client_model model;
    char *metadata; /* owned; JSON of the model; NULL: no model is used */
};

/* A whole reply. */
struct bag_bench_answer {
    struct bag_reply_head head;
    char *body; /* owned; ends with a NUL that `bytes` does not count */
    size_t bytes;
};

/* Finds the server and its model: options->model, or the only model or collection. Uses no model
 * if options->get_path is set. Returns false and sets *problem if there is no such server or model.
 * The caller must call bag_bench_target_free in either case. */
bool bag_bench_target_find(struct bag_bench_target *target, const struct bag_bench_options *options,
                           struct bag_problem *problem);

/* Frees the members. The struct may be all zeros. */
void bag_bench_target_free(struct bag_bench_target *target);

/* Returns whether the model's metadata is unchanged. Also returns true if it cannot be read now, or
 * no model is used. */
bool bag_bench_target_is_same(const struct bag_bench_target *target);

/* Returns "/v2/models/NAME" with the name percent-encoded, followed by `what`. The caller frees it;
 * NULL without memory. */
char *bag_bench_model_path(const char *name, const char *what);

/* Returns the head of a request without the blank line at its end. The caller frees it; NULL
 * without memory. */
char *bag_bench_head(const struct bag_bench_target *target, const char *method, const char *path);

/* Sends a whole request on a connection of its own, and waits for the reply, whose body may have
 * `max_bytes`. Returns false and sets *problem on failure; then nothing is to be freed. */
bool bag_bench_ask(const struct bag_bench_target *target, const void *request, size_t bytes,
                   size_t max_bytes, struct bag_bench_answer *answer, struct bag_problem *problem);

/* Returns the body of GET /v2/models/NAME followed by `what`. The caller frees it. Returns NULL and
 * sets *problem if the status is not 200. */
char *bag_bench_get_model(const struct bag_bench_target *target, const char *name, const char *what,
                          struct bag_problem *problem);
