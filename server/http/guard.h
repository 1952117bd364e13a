/* Which requests are rejected for their form, before anything is done with them.
 *
 * libmicrohttpd lets pass what another server in front of this one may read differently: two
 * lengths, a length beside chunks, a folded line. Where two readers can differ about where a
 * request ends, one client can write another's request; such a request is rejected and its
 * connection closed. */
#ifndef BAG_HTTP_GUARD_H
#define BAG_HTTP_GUARD_H

#include "proto/problem.h"

#include <stdint.h>

#define BAG_HEADER_JSON_LENGTH "Inference-Header-Content-Length"
#define BAG_HEADER_REQUEST_ID  "X-Request-Id"
#define BAG_HEADER_TRACEPARENT "traceparent"

/* A head is checked in three steps, as its parts are handed out: the first line, each header line,
 * the end. The texts must lie in one memory as they came, with NULs only where a part ends: what
 * the library joined, cut or left out then shows as a gap between two of them. */
struct bag_guard {
    const char *next; /* where the next line must begin */
    bool http_1_0;
    unsigned hosts, lengths, codings; /* how many lines of each there are */
    const char *host, *coding;        /* the last one's value */
};

/* The target goes from `target` to `target_end`, where a blank was. */
bool bag_guard_first_line(struct bag_guard *guard, const char *method, const char *target,
                          const char *target_end, const char *version, struct bag_problem *problem);

/* One name, which is a token, and one value, without control bytes. */
bool bag_guard_line(struct bag_guard *guard, const char *name, size_t name_bytes, const char *value,
                    size_t value_bytes, struct bag_problem *problem);

/* The head ends at `end`, and its headers, taken together, say in one way where the body does. */
bool bag_guard_end(const struct bag_guard *guard, const char *end, struct bag_problem *problem);

/* The first line as it was sent, on which socket. The texts are the connection's. */
struct bag_http_first_line {
    const char *method, *target, *version;
    int fd;
};

/* What the server wants to know of a head. The texts are the connection's; NULL: absent. */
struct bag_http_head {
    struct bag_guard guard;
    bool has_length; /* Content-Length, which libmicrohttpd has checked to be a number */
    uint64_t length;
    bool chunked;              /* Transfer-Encoding */
    bool expects_continue;     /* Expect */
    const char *json_length;   /* Inference-Header-Content-Length */
    const char *encoding;      /* Content-Encoding; several are no coding's name */
    const char *accept;        /* Accept-Encoding */
    const char *authorization; /* Authorization; empty where there are several */
    const char *origin;        /* Origin */
    bool preflight;            /* Access-Control-Request-Method */
    const char *request_id;    /* X-Request-Id; for logs and the reply */
    const char *traceparent;   /* traceparent (W3C), likewise */
};

/* bag_guard_line, which also keeps what the server wants to know. */
bool bag_http_head_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes, struct bag_problem *problem);

/* Whether a body that is not wanted is short enough to be read to its end, so that the connection
 * can be kept; its sender must be about to send it. */
bool bag_http_head_may_drop(const struct bag_http_head *head);

/* Why a request's target cannot be one, as a sentence; NULL where it can. `target` is all between
 * the method and the version. */
const char *bag_guard_target(const char *target);

/* The path of a valid target, which may be a whole URL. */
const char *bag_guard_path(const char *target);

#endif
