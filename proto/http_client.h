/* What a client of HTTP/1.1 reads: URLs, and the heads of replies, which anybody may have sent. */
#ifndef BAG_HTTP_CLIENT_H
#define BAG_HTTP_CLIENT_H

#include "problem.h"
#include "text.h"

/* The longest head that is read, with the blank line behind it. */
#define BAG_REPLY_HEAD_BYTES 8192

/* Of http://HOST[:PORT][/PATH]. */
struct bag_url {
    char host[256];       /* without the brackets of an IPv6 address */
    char authority[264];  /* HOST[:PORT] as written: a Host header's value */
    int port;             /* 80 where none is written */
    struct bag_text path; /* borrowed; without slashes at its end: "" or "/a/b" */
};

/* Rejects (USAGE) https, users, queries and what is no URL; http:// may be left out. */
bool bag_url_parse(const char *text, struct bag_url *url, struct bag_problem *problem);

struct bag_reply_head {
    int status;
    uint64_t body_bytes; /* Content-Length */
    uint64_t json_bytes; /* Inference-Header-Content-Length; body_bytes where there is none */
    bool closes;         /* the server closes behind this reply */
};

/* Reads a head of `bytes` bytes, which ends with the blank line. Rejects (BAD_REQUEST) what is not
 * HTTP/1.0 or 1.1, and bodies without a Content-Length, of which only 204 and 304 have none. */
bool bag_reply_head_parse(const char *head, size_t bytes, struct bag_reply_head *reply,
                          struct bag_problem *problem);

#endif
