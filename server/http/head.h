/* What the server wants to know of a request's head, gathered in one pass over its headers. */
#ifndef BAG_HTTP_HEAD_H
#define BAG_HTTP_HEAD_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

struct bag_http_head {
    bool has_length; /* Content-Length, which libmicrohttpd has checked to be a number */
    uint64_t length;
    bool chunked;          /* Transfer-Encoding */
    bool expects_continue; /* Expect */
    const char *tensors;   /* Inference-Header-Content-Length; NULL: absent. The connection's */
    const char *encoding;  /* Content-Encoding, likewise; several are no coding's name */
    const char *accept;    /* Accept-Encoding, likewise */
    const char *origin;    /* Origin, likewise */
    bool preflight;        /* Access-Control-Request-Method */
};

void bag_http_head_read(struct MHD_Connection *connection, struct bag_http_head *head);

#endif
