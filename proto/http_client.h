/* Parsers for a client of HTTP/1.1: URLs, and the heads of replies. The server that sent a reply is
 * not trusted. Chunked bodies are not supported: bagserve never sends them, and a length is needed
 * to find the next reply on the connection. */
#pragma once

#include "problem.h"
#include "text.h"

/* Maximum size of a reply's head, including the blank line that ends it. */
#define BAG_REPLY_HEAD_BYTES 8192

/* The parts of http://HOST[:PORT][/PATH]. */
struct bag_url {
    char host[256];       /* without the brackets of an IPv6 address */
    char authority[264];  /* HOST[:PORT] as written: a Host header's value */
    int port;             /* 80 if the URL has none */
    struct bag_text path; /* borrowed; without slashes at its end: "" or "/a/b" */
};

/* Parses a URL; "http://" may be missing. Returns false and sets *problem (USAGE) if it is not a
 * URL, or has https, a user or a query. */
bool bag_url_parse(const char *text, struct bag_url *url, struct bag_problem *problem);

/* Returns the size of the head at the beginning of a text, with the blank line that ends it.
 * Returns 0 if the blank line has not arrived yet. The first `searched` bytes were searched before.
 */
size_t bag_reply_head_end(const char *text, size_t bytes, size_t searched);

struct bag_reply_head {
    int status;
    uint64_t body_bytes; /* Content-Length */
    uint64_t json_bytes; /* Inference-Header-Content-Length; body_bytes if the header is absent,
                            malformed or larger than the body */
    bool closes;         /* the server closes the connection after this reply */
};

/* Parses a head of `bytes` bytes, which ends with a blank line. Returns false and sets *problem
 * (BAD_REQUEST) if it is not HTTP/1.0 or 1.1, or has no Content-Length although its status is
 * neither 204 nor 304. */
bool bag_reply_head_parse(const char *head, size_t bytes, struct bag_reply_head *reply,
                          struct bag_problem *problem);
