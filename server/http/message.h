/* The messages of HTTP as plain values: what the server keeps of a request's head, whether it is
 * valid, replies, and the errors among them. */
#pragma once

#include "proto/problem.h"
#include "server/metrics/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* ---- heads ----------------------------------------------------------------------------------- */

#define BAG_HEADER_JSON_LENGTH "Inference-Header-Content-Length"
#define BAG_HEADER_REQUEST_ID  "X-Request-Id"
#define BAG_HEADER_TRACEPARENT "traceparent"

#define BAG_HTTP_PEER_BYTES 64

/* The client of a connection: the peer of its socket, or the client that a trusted proxy reports.
 */
struct bag_http_peer {
    bool known;          /* a Unix-domain socket has no address: false */
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint16_t port;
    char text[BAG_HTTP_PEER_BYTES]; /* cache of bag_http_peer_text(); empty: not made yet */
};

/* Returns the peer with an address. */
struct bag_http_peer bag_http_peer_of(const struct sockaddr_storage *address);

/* Returns whether the peer has an IPv4 address. */
bool bag_http_peer_is_ipv4(const struct bag_http_peer *peer);

/* Returns a number that is equal for all connections of one client: an IPv4 address or an IPv6 /64
 * network. It is 0 for all clients on Unix-domain sockets, which count as one. */
uint64_t bag_http_peer_client(const struct bag_http_peer *peer);

/* Returns "127.0.0.1:5000", "[::1]:5000", or "unix". Owned by the peer. */
const char *bag_http_peer_text(struct bag_http_peer *peer);

struct bag_http_client;

/* The request line, its target without the query, and the client. Borrowed from the connection. */
struct bag_http_first_line {
    const char *method, *target, *version;
    struct bag_http_peer *peer;
    struct bag_http_client *client; /* NULL: the connection belongs to none */
};

/* The parts of a head that the server keeps. The texts are borrowed from the connection; NULL:
 * absent. */
struct bag_http_head {
    unsigned hosts, lengths, codings; /* number of lines Host, Content-Length, Transfer-Encoding */
    const char *host;
    bool has_length; /* Content-Length */
    uint64_t length;
    bool chunked;              /* Transfer-Encoding */
    bool expects_continue;     /* Expect */
    bool may_be_cut;           /* the next bytes may belong to this head; closes the connection */
    const char *json_length;   /* Inference-Header-Content-Length */
    const char *encoding;      /* Content-Encoding; several are an unknown coding */
    const char *accept;        /* Accept-Encoding */
    bool wants_html;           /* Accept prefers HTML, as that of a browser */
    const char *authorization; /* Authorization; empty if there are several */
    const char *origin;        /* Origin */
    bool preflight;            /* Access-Control-Request-Method */
    const char *request_id;    /* X-Request-Id; for logs and the reply */
    const char *traceparent;   /* traceparent (W3C), likewise */
};

/* libmicrohttpd accepts more than HTTP allows. If a proxy and the server disagree about where a
 * request ends, one client can write a part of another one's request. These functions therefore
 * reject what is not strictly valid. */

/* The maximum length of a head, with BAG_HTTP_LINE_BYTES added for each line. The parts that
 * libmicrohttpd keeps must fit into a connection's memory beside the head of the reply. */
#define BAG_HTTP_MAX_HEAD_BYTES (13 << 10)
#define BAG_HTTP_LINE_BYTES     64

/* Keeps a header line that the server uses. `value` ends with NUL. Returns false and sets *problem
 * if the line is invalid. */
bool bag_http_head_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes, struct bag_problem *problem);

/* Returns false and sets *problem unless the head, whose lines were kept, is one of HTTP/1.0
 * or 1.1, with one Host and one length of the body. The target is the path or URL before the query.
 */
bool bag_http_head_check(const struct bag_http_head *head, const struct bag_http_first_line *line,
                         struct bag_problem *problem);

/* Returns a static description of what is wrong with a target and its query, or NULL. */
const char *bag_http_target_fault(const char *target);

/* The maximum number of arguments in a query. libmicrohttpd keeps them, although nobody reads them,
 * and must have memory for them. */
#define BAG_HTTP_MAX_ARGUMENTS 64

/* Returns whether a target has at most BAG_HTTP_MAX_ARGUMENTS arguments. */
bool bag_http_target_has_room(const char *target);

/* Returns true if a Host (NULL: none) is an address, this machine, or one of `names`, which are
 * separated by commas. It is checked if the server listens on a loopback address, where a page of
 * another site can reach it by a name of its own (DNS rebinding). `own` is the listener's address
 * with its port. Most clients send it as the Host, so it is compared first. */
bool bag_http_host_is_ours(const char *host, const char *own, const char *names);

/* Returns true if the request comes from a page of this server: its origin has the host of the
 * request.
 */
bool bag_http_origin_is_ours(const char *origin, const char *host);

/* Returns true if an unwanted body is so short that it is read and discarded, which keeps the
 * connection open. Returns false if its length is unknown, or if the client waits for 100 Continue
 * before it sends the body. */
bool bag_http_head_may_drop(const struct bag_http_head *head);

/* Returns the path of a valid target, which may be a whole URL. */
const char *bag_http_head_path(const char *target);

/* ---- replies --------------------------------------------------------------------------------- */

/* A reply. The request owns it from the moment in which a handler or a rejection fills it until the
 * request ends: then the last byte of `body` was sent or never will be. Borrowed members must exist
 * as long. The members decide all headers but Content-Length. */
struct bag_http_reply {
    int status;           /* 0: no reply yet */
    enum bag_error error; /* the reason, if the status is 400 or more */
    char *body;           /* owned; NULL: none */
    void (*free_body)(void *body);
    size_t body_bytes;
    const char *coding;     /* for Content-Encoding; static; NULL: not compressed */
    bool varies_by_coding;  /* other requests may get another compression */
    bool no_store;          /* changes all the time; no cache may keep it */
    bool varies_by_accept;  /* browsers get another reply */
    bool is_page;           /* a part of the console; restricts what browsers do with it */
    const char *type;       /* for Content-Type; static; NULL: the type of JSON or of tensors */
    size_t header_bytes;    /* length of the JSON before binary tensors; 0: none */
    const char *allow;      /* for Allow of a 405 or OPTIONS; static; NULL: none */
    const char *challenge;  /* for WWW-Authenticate of a 401 or 403; static; NULL: none */
    unsigned retry_after_s; /* for Retry-After; 0: none */

    /* The values of the request; borrowed; NULL: none. */
    const char *request_id, *traceparent;

    /* For browsers; set if CORS is configured. */
    const char *allow_origin; /* origin that may read the reply; borrowed; NULL: none */
    bool varies_by_origin;
    bool preflight; /* the reply to a preflight request */

    bool close; /* the connection is closed after this reply */
};

/* Fills a reply with a document, which the reply owns then. It is JSON unless `type` is set. NULL
 * (no memory) makes the reply an error. */
void bag_http_reply_json(struct bag_http_reply *reply, int status, char *document);

/* Fills a reply with an empty body and without Content-Type. Without memory the reply becomes an
 * error. */
void bag_http_reply_empty(struct bag_http_reply *reply, int status);

/* Fills a reply with an error and a document (or NULL), which the reply owns then. The error
 * decides the status. A 503 gets Retry-After. */
void bag_http_reply_failure(struct bag_http_reply *reply, enum bag_error error, char *document);

/* Fill a reply with an error and its document: the sentence, the code of its kind, and its place if
 * it has one. */
void bag_http_reply_problem(struct bag_http_reply *reply, const struct bag_problem *problem);
void bag_http_reply_error(struct bag_http_reply *reply, enum bag_error error, const char *format,
                          ...) __attribute__((format(printf, 3, 4)));

/* Sets the members that depend on the request's head: ids for tracing, and members for browsers if
 * `origins`, the operator's list, is not NULL. The reply borrows from the head. */
void bag_http_reply_to(struct bag_http_reply *reply, const struct bag_http_head *head,
                       const char *origins);

/* Calls `add` for each header. Returns false as soon as `add` returns false. */
typedef bool bag_http_add_header(void *context, const char *name, const char *value);
bool bag_http_reply_headers(const struct bag_http_reply *reply, bag_http_add_header *add,
                            void *context);

/* Returns true if bag_http_reply_headers() adds nothing but headers that depend on the lengths of
 * the body and on the time. */
bool bag_http_reply_is_plain(const struct bag_http_reply *reply);

/* Frees the body. */
void bag_http_reply_drop(struct bag_http_reply *reply);

/* ---- errors ---------------------------------------------------------------------------------- */

/* Return the status that a client sees for a kind of error, and the reason that metrics count. One
 * table in message.c has both. */
int bag_http_error_status(enum bag_error kind);
enum bag_rejection bag_http_error_reason(enum bag_error kind);

/* Returns the reason of the first kind with the status. */
enum bag_rejection bag_http_status_reason(int status);
