/* The server that is measured: where it is, what it serves, and single requests to it. */
#ifndef BAG_BENCH_TARGET_H
#define BAG_BENCH_TARGET_H

#include "connection.h"
#include "options.h"
#include "proto/v2_client.h"

struct bag_bench_target {
    struct bag_bench_address address;
    char *authority, *path; /* owned; a Host header's value, and what is before /v2 */
    char *token;            /* owned; NULL: none */
    struct bag_client_model model;
    char *metadata; /* owned; of the model, as it was answered; NULL: not asked */
};

struct bag_bench_answer {
    struct bag_reply_head head;
    char *body; /* owned; a NUL follows */
    size_t bytes;
};

/* Finds the server and what it serves: options->model, or the only model or collection. With
 * options->get_path no model is asked for. False with *problem; in any case bag_bench_target_free
 * is due. */
bool bag_bench_target_find(struct bag_bench_target *target, const struct bag_bench_options *options,
                           struct bag_problem *problem);

void bag_bench_target_free(struct bag_bench_target *target);

/* Whether the model's metadata is still what it was, or cannot be asked for. */
bool bag_bench_target_is_same(const struct bag_bench_target *target);

/* "/v2/models/NAME" and what follows, with the name percent-encoded; for the caller to free. NULL
 * without memory. */
char *bag_bench_model_path(const char *name, const char *what);

/* The lines of a request's head up to the blank one, which is left out; for the caller to free.
 * NULL without memory. `method` and `path` as in "GET", "/v2". */
char *bag_bench_head(const struct bag_bench_target *target, const char *method, const char *path);

/* Sends a whole request on a connection of its own, and waits for its answer, of at most
 * `max_bytes`. On failure there is nothing to free. */
bool bag_bench_ask(const struct bag_bench_target *target, const void *request, size_t bytes,
                   size_t max_bytes, struct bag_bench_answer *answer, struct bag_problem *problem);

#endif
