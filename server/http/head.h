/* What the server wants to know of a request's head, gathered in one pass over its headers. */
#ifndef BAG_HTTP_HEAD_H
#define BAG_HTTP_HEAD_H

#include "client.h"
#include "guard.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#define BAG_HEADER_REQUEST_ID  "X-Request-Id"
#define BAG_HEADER_TRACEPARENT "traceparent"

struct bag_http_head {
    struct bag_guard guard;
    bool has_length; /* Content-Length, which libmicrohttpd has checked to be a number */
    uint64_t length;
    bool chunked;            /* Transfer-Encoding */
    bool expects_continue;   /* Expect */
    const char *tensors;     /* Inference-Header-Content-Length; NULL: absent. The connection's */
    const char *encoding;    /* Content-Encoding, likewise; several are no coding's name */
    const char *accept;      /* Accept-Encoding, likewise */
    const char *origin;      /* Origin, likewise */
    bool preflight;          /* Access-Control-Request-Method */
    const char *request_id;  /* X-Request-Id, likewise; for logs and the reply */
    const char *traceparent; /* traceparent (W3C), likewise */
};

/* The first line as the library hands it out, and whose it is. */
struct bag_first_line {
    const struct bag_client *client;
    const char *method, *target, *version;
};

/* False with *problem where the request must be rejected for its form, or for its client. */
bool bag_http_head_read(struct MHD_Connection *connection, const struct bag_first_line *line,
                        struct bag_http_head *head, struct bag_problem *problem);

/* Whether a body that is not wanted is short enough to be read to its end, so that the connection
 * can be kept; its sender must be about to send it. */
bool bag_http_head_may_drop(const struct bag_http_head *head);

#endif
