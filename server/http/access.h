/* A request's metrics, and its line in the access log or among the slow requests.
 *
 * Everything here runs on the loop's thread. */
#ifndef BAG_HTTP_ACCESS_H
#define BAG_HTTP_ACCESS_H

#include "config/config.h"
#include "message.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/trace/trace.h"

/* Of one request, from its head on. All pointers are borrowed and live as long as the request. */
struct bag_http_access {
    const struct bag_option_values *options;
    struct bag_recorder *recorder; /* NULL: metrics are off */
    struct bag_trace *trace;       /* NULL: nothing is traced */
    const struct bag_http_first_line *line;
    const struct bag_http_head *head;
    uint64_t begun_ns; /* on uv_hrtime's clock; 0: nothing is logged or traced */
    size_t received_bytes;
    char id[65]; /* of the body, truncated; empty: none */
    bool is_placed;
    struct bag_span_place place; /* of its span; where is_placed */
};

/* The first line is here; the members above it are set, those below are zero. */
void bag_http_access_begin(struct bag_http_access *access);

/* Keeps the body's id, as long as the body is there. */
void bag_http_access_keep_id(struct bag_http_access *access, const struct bag_infer *infer);

/* Where the request's span is, which is decided once: others hang theirs below it. NULL: nothing is
 * traced, or its client wants no trace. */
const struct bag_span_place *bag_http_access_place(struct bag_http_access *access);

/* Counts, logs and traces what the request is answered with. Its job has a model where it was an
 * inference, and was done where the reply is a success. `route` is the pattern of its route, or
 * empty; `now_ms` is the loop's time. */
void bag_http_access_end(struct bag_http_access *access, const struct bag_job *job,
                         const struct bag_http_reply *reply, const char *route, uint64_t now_ms);

/* Counts and logs what the library answered with this status, for this reason, before there was a
 * request: it says neither to whom nor what was asked. */
void bag_http_access_reject(const struct bag_option_values *options, struct bag_recorder *recorder,
                            int status, const char *reason);

#endif
