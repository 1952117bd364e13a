/* What the server keeps of a request's head, which the guard has found valid. */
#ifndef BAG_HTTP_HEAD_H
#define BAG_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BAG_HEADER_JSON_LENGTH "Inference-Header-Content-Length"
#define BAG_HEADER_REQUEST_ID  "X-Request-Id"
#define BAG_HEADER_TRACEPARENT "traceparent"

/* The first line as it was sent, on which socket. The texts are the connection's. */
struct bag_http_first_line {
    const char *method, *target, *version;
    int fd;
};

/* The texts are the connection's; NULL: absent. */
struct bag_http_head {
    bool has_length; /* Content-Length */
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

/* Keeps a header line, if the server wants to know of it. `value` ends with NUL. */
void bag_http_head_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                        const char *value);

/* Whether a body that is not wanted is short enough to be read to its end, so that the connection
 * can be kept; its sender must be about to send it. */
bool bag_http_head_may_drop(const struct bag_http_head *head);

/* The path of a valid target, which may be a whole URL. */
const char *bag_http_head_path(const char *target);

#endif
