/* Counts, logs and traces requests: metrics, the access log, slow requests, and spans.
 *
 * All functions run on the loop's thread. */
#pragma once

#include "config/config.h"
#include "message.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/trace/trace.h"

/* The record of one request. */
struct bag_http_access {
    const struct bag_option_values *options;
    struct bag_recorder *recorder; /* NULL: metrics are off */
    struct bag_trace *trace;       /* NULL: nothing is traced */
    const struct bag_http_first_line *line;
    const struct bag_http_head *head;
    uint64_t begun_ns; /* uv_hrtime() at its start; 0: neither logged nor traced */
    size_t received_bytes;
    char id[65]; /* the "id" of the body, truncated; empty: none */
    bool is_placed;
    struct bag_span_place place; /* place of its span; valid if is_placed */
};

/* Starts to record a request. The first five members are set, the others are zero. */
void bag_http_access_begin(struct bag_http_access *access);

/* Copies the id of the body, which must still be in memory. */
void bag_http_access_keep_id(struct bag_http_access *access, const struct bag_infer *infer);

/* Returns the place of the request's span, which is the parent of other spans. It is decided by the
 * first call. Returns NULL if tracing is off, or the client wants no trace. */
const struct bag_span_place *bag_http_access_place(struct bag_http_access *access);

/* Counts, logs and traces the reply. `model` is that of an inference, whose job was done if the
 * reply is a success; NULL: the request counts for no model. `route` is the pattern of the route,
 * or empty. `now_ms` is uv_now(). */
void bag_http_access_end(struct bag_http_access *access, const struct bag_model *model,
                         const struct bag_job *job, const struct bag_http_reply *reply,
                         const char *route, uint64_t now_ms);

/* Counts and logs a reply that libmicrohttpd has sent itself, before there was a request. Neither
 * the client nor the target is known. */
void bag_http_access_reject(const struct bag_option_values *options, struct bag_recorder *recorder,
                            int status, const char *reason);
