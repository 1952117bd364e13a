/* The messages of HTTP as plain values: what the server keeps of a request's head, whether it is
 * valid, replies, and the errors among them. */
#ifndef BAG_HTTP_MESSAGE_H
#define BAG_HTTP_MESSAGE_H

#include "proto/problem.h"
#include "server/metrics/metrics.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* ---- heads ----------------------------------------------------------------------------------- */

#define BAG_HEADER_JSON_LENGTH "Inference-Header-Content-Length"
#define BAG_HEADER_REQUEST_ID  "X-Request-Id"
#define BAG_HEADER_TRACEPARENT "traceparent"

#define BAG_HTTP_PEER_BYTES 64

/* Who is at the other end of a connection: by its socket, or as a trusted proxy says. */
struct bag_http_peer {
    bool known;          /* false: it has no IP address, as those of Unix-domain sockets */
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint16_t port;
    char text[BAG_HTTP_PEER_BYTES]; /* see bag_http_peer_text; empty: nobody has asked for it */
};

/* The peer of an address. */
struct bag_http_peer bag_http_peer_of(const struct sockaddr_storage *address);

bool bag_http_peer_is_ipv4(const struct bag_http_peer *peer);

/* Equal for all connections of one client: an address, of IPv6 a network of 64 bits. */
uint64_t bag_http_peer_client(const struct bag_http_peer *peer);

/* "127.0.0.1:5000", "[::1]:5000", or "unix"; the peer's. */
const char *bag_http_peer_text(struct bag_http_peer *peer);

/* The first line, its target without the query, and by whom it was sent. All are the connection's.
 */
struct bag_http_first_line {
    const char *method, *target, *version;
    struct bag_http_peer *peer;
    atomic_size_t *client_bytes; /* memory of the client's bodies; NULL: has no bound of its own */
};

/* The texts are the connection's; NULL: absent. */
struct bag_http_head {
    unsigned hosts, lengths, codings; /* lines of Host, Content-Length, Transfer-Encoding */
    const char *host;
    bool has_length; /* Content-Length */
    uint64_t length;
    bool chunked;              /* Transfer-Encoding */
    bool expects_continue;     /* Expect */
    bool may_be_cut;           /* what follows may belong to it: the connection ends with it */
    const char *json_length;   /* Inference-Header-Content-Length */
    const char *encoding;      /* Content-Encoding; several are no coding's name */
    const char *accept;        /* Accept-Encoding */
    bool wants_html;           /* Accept: a browser's */
    const char *authorization; /* Authorization; empty where there are several */
    const char *origin;        /* Origin */
    bool preflight;            /* Access-Control-Request-Method */
    const char *request_id;    /* X-Request-Id; for logs and the reply */
    const char *traceparent;   /* traceparent (W3C), likewise */
};

/* The library reads more than a request may be: where two readers can differ about where a request
 * ends, one client can write another's request. What a head may not have is found here. */

/* A head may take so much, where each of its lines counts more than it has: what the library keeps
 * of it must fit into a connection's memory beside the reply's head. */
#define BAG_HTTP_MAX_HEAD_BYTES (13 << 10)
#define BAG_HTTP_LINE_BYTES     64

/* Keeps a header line, if the server wants to know of it. `value` ends with NUL. False with
 * *problem where it is wrong. */
bool bag_http_head_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes, struct bag_problem *problem);

/* Whether the head, whose lines are kept, is one of HTTP/1.0 or 1.1, with one Host and one way to
 * say where its body ends. The target is the path or URL in front of the query. */
bool bag_http_head_check(const struct bag_http_head *head, const struct bag_http_first_line *line,
                         struct bag_problem *problem);

/* What is wrong with a whole target, with its query; NULL: nothing. Static. */
const char *bag_http_target_fault(const char *target);

/* A query has at most so many arguments: the library, which keeps each for nobody, must have room
 * for them. */
#define BAG_HTTP_MAX_ARGUMENTS 64

bool bag_http_target_has_room(const char *target);

/* Whether a Host (NULL: none) names an address, this machine, or one of `names`, with commas
 * between them: on a loopback address, where a page of a stranger's site reaches the server by the
 * stranger's name (DNS rebinding). */
bool bag_http_host_is_ours(const char *host, const char *names);

/* Whether a page that this server sent asks: its origin names the host that the request does. */
bool bag_http_origin_is_ours(const char *origin, const char *host);

/* Whether a body that is not wanted is short enough to be read to its end, so that the connection
 * can be kept; its sender must be about to send it. */
bool bag_http_head_may_drop(const struct bag_http_head *head);

/* The path of a valid target, which may be a whole URL. */
const char *bag_http_head_path(const char *target);

/* ---- replies --------------------------------------------------------------------------------- */

/* The request owns its reply from the moment a handler or a rejection fills it until the request
 * ends, when the last byte of `body` has left or never will. What is borrowed lives as long. All
 * headers but Content-Length are decided here. */
struct bag_http_reply {
    int status;           /* 0: there is no reply yet */
    enum bag_error error; /* why; where the status is 400 or more */
    char *body;           /* owned; NULL: there is none */
    void (*free_body)(void *body);
    size_t body_bytes;
    const char *coding;     /* for Content-Encoding; static; NULL: the body is as it is */
    bool varies_by_coding;  /* other requests get it compressed otherwise */
    bool no_store;          /* it is out of date at once: no cache may keep it */
    bool varies_by_accept;  /* browsers get another one */
    bool is_page;           /* a part of the console: browsers must take it for nothing else */
    const char *type;       /* for Content-Type; static; NULL: JSON, or what tensors are in */
    size_t header_bytes;    /* of the JSON in front of binary tensors; 0: there are none */
    const char *allow;      /* of a 405 and of OPTIONS: the methods that there are; static */
    const char *challenge;  /* for WWW-Authenticate of a 401 or 403; static; NULL: none */
    unsigned retry_after_s; /* of a 503; 0: none */

    /* As the request had them; borrowed; NULL: it had none. */
    const char *request_id, *traceparent;

    /* For browsers; set where CORS is configured. */
    const char *allow_origin; /* whose pages may see the reply; borrowed; NULL: none */
    bool varies_by_origin;
    bool preflight; /* the browser asks before it sends */

    bool close; /* the connection ends with this reply */
};

/* A document (JSON, until `type` says otherwise), which the reply takes over; NULL (no
 * memory) makes it an error. */
void bag_http_reply_json(struct bag_http_reply *reply, int status, char *document);

/* Neither body nor Content-Type. */
void bag_http_reply_empty(struct bag_http_reply *reply, int status);

/* An error with a document of its own, which the reply takes over, or NULL. The status follows from
 * the error; 503 gets a Retry-After. */
void bag_http_reply_failure(struct bag_http_reply *reply, enum bag_error error, char *document);

/* The same with {"error": ...}. */
void bag_http_reply_problem(struct bag_http_reply *reply, const struct bag_problem *problem);
void bag_http_reply_error(struct bag_http_reply *reply, enum bag_error error, const char *format,
                          ...) __attribute__((format(printf, 3, 4)));

/* Sets what a reply repeats from its request's head or owes to it: ids for tracing, and members for
 * browsers where `origins`, the operator's list, is not NULL. The reply borrows from the head. */
void bag_http_reply_to(struct bag_http_reply *reply, const struct bag_http_head *head,
                       const char *origins);

/* Calls `add` for each header, until it returns false; false where it did. */
typedef bool bag_http_add_header(void *context, const char *name, const char *value);
bool bag_http_reply_headers(const struct bag_http_reply *reply, bag_http_add_header *add,
                            void *context);

/* Whether its headers follow from the lengths of its body and the time alone. */
bool bag_http_reply_is_plain(const struct bag_http_reply *reply);

/* Frees the body. */
void bag_http_reply_drop(struct bag_http_reply *reply);

/* ---- errors ---------------------------------------------------------------------------------- */

/* The one table from the kind of an error to the status that a client sees and to the reason that
 * metrics count. */

int bag_http_error_status(enum bag_error kind);

enum bag_rejection bag_http_error_reason(enum bag_error kind);

/* The reason of the first kind that has the status. */
enum bag_rejection bag_http_status_reason(int status);

#endif
