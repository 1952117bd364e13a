/* The open connections of a loop: what each does, until when it may, and how it ends.
 *
 * The whole of a request, and the whole reading of a reply, have a deadline: each connection is
 * checked once a second, some at a time, and those that are late are shut down, which the library
 * then notices; likewise those on which nothing moves, and those that are between two requests for
 * too long. libmicrohttpd's own time-out is not used: for each piece that it reads or sends it
 * looks at the clock and moves the connection in a list, under a lock.
 *
 * All functions and callbacks run on the loop's thread. */
#ifndef BAG_HTTP_CONNECTION_H
#define BAG_HTTP_CONNECTION_H

#include "guard.h"
#include "message.h"
#include "proto/problem.h"
#include "proto/proxy.h"
#include "server/metrics/metrics.h"
#include "server/system/sockets.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <uv.h>

/* ---- connections ----------------------------------------------------------------------------- */

struct bag_http_reply;

enum bag_http_connection_stage {
    BAG_HTTP_CONNECTION_IDLE,      /* between two requests */
    BAG_HTTP_CONNECTION_BEGINNING, /* a part of a request's first line has come */
    BAG_HTTP_CONNECTION_SENDING,   /* the first line is here, and the rest is on its way */
    BAG_HTTP_CONNECTION_SUSPENDED, /* the client waits for the server */
    BAG_HTTP_CONNECTION_READING,   /* the client reads its reply */
    BAG_HTTP_CONNECTION_CUT_OFF,
};

/* One connection. Lives from its acceptance to its end. */
struct bag_http_connection {
    struct bag_http_connection *next, *previous;
    struct bag_http_connection *next_listed, *previous_listed; /* idle, or active */
    struct bag_http_connection *next_resumed;                  /* see bag_http_mhd */
    struct bag_http_client *client; /* whose it is, see accept.c; NULL: nobody's share */
    struct bag_http_peer peer;
    struct bag_proxy_header *proxy;   /* owned; what has come of it; NULL: there is none to come */
    struct MHD_Connection *handle;    /* the library's; of the request */
    struct bag_http_request *request; /* owned; NULL: there is none whose head is complete */
    int fd;
    bool surplus; /* beyond max_connections: is told so, and closed */
    bool evicted; /* was closed to make room, and no longer counts */
    bool late;    /* its request came while the server drains */
    bool is_held; /* its reply is ready, and goes to the library in the next round */
    enum bag_http_connection_stage stage;
    uint64_t since_ms;         /* on uv_now's clock */
    struct bag_guard guard;    /* checks what it receives */
    size_t ahead;              /* bytes of the body in their place that the library knows not of */
    size_t placed;             /* those that it knows of, and has not handed out */
    unsigned requests;         /* that the library has handed out */
    unsigned completed;        /* of these */
    struct bag_problem *fault; /* owned; ends the connection once the request in front of it is
                                  answered; NULL: none */
};

/* What is known of a connection when it is accepted. */
struct bag_http_arrival {
    struct bag_http_client *client;
    struct bag_http_peer peer;
    bool is_proxied; /* a PROXY header comes first */
};

struct bag_http_connection_limits {
    size_t connections;   /* of all that share `total` */
    atomic_size_t *total; /* open connections; borrowed */
    uint64_t idle_timeout_ms, request_timeout_ms, reply_timeout_ms;
};

/* In the order in which they came into it. */
struct bag_http_connection_list {
    struct bag_http_connection *first, *last;
    size_t count;
};

struct bag_http_connections {
    struct bag_http_connection *first;          /* of all */
    struct bag_http_connection_list idle;       /* without a request, and none beyond the limit */
    struct bag_http_connection_list active;     /* all others: their deadlines are checked */
    struct bag_http_connection *next_checked;   /* of the active ones; NULL: begin at the first */
    struct bag_http_connection *next_unchecked; /* of the idle ones: the first not looked at yet */
    struct bag_http_arrival next;               /* of the next one that is added */
    size_t count;
    struct bag_http_connection **by_fd; /* owned; NULL where a descriptor is none's */
    size_t max_fds;                     /* elements of by_fd */
    bool ended;                         /* set when a connection has; its reader clears it */
    struct bag_http_connection_limits limits;
    uv_timer_t timer;                           /* runs while there are connections */
    struct bag_http_lingering *first_lingering; /* owned */
    unsigned lingering;
};

void bag_http_connections_init(struct bag_http_connections *connections, uv_loop_t *loop,
                               const struct bag_http_connection_limits *limits);

/* Closes the handles. All connections and lingering closes have ended. */
void bag_http_connections_stop(struct bag_http_connections *connections);

/* Frees what they hold, after their loop has ended. */
void bag_http_connections_free(struct bag_http_connections *connections);

/* A connection on a socket, which remains the library's. NULL without memory. */
struct bag_http_connection *bag_http_connection_add(struct bag_http_connections *connections,
                                                    int fd);

/* The connection on a socket; NULL: it is none's. */
struct bag_http_connection *bag_http_connection_find(const struct bag_http_connections *connections,
                                                     int fd);

/* Its socket is about to be closed. */
void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection);

/* From now on the connection does this. */
void bag_http_connection_enter(struct bag_http_connections *connections,
                               struct bag_http_connection *connection,
                               enum bag_http_connection_stage stage);

/* False where the client has left; a suspended connection does not notice by itself. */
bool bag_http_connection_is_open(const struct bag_http_connection *connection);

/* At the limit, ends the connection that has been idle for longest, if it has been for a second. */
void bag_http_connections_make_room(struct bag_http_connections *connections);

/* Writes a whole reply past libmicrohttpd: for a request in whose midst it takes no response, and
 * for which nothing else was sent. False where the socket does not take it at once. */
bool bag_http_connection_send_raw(const struct bag_http_connection *connection,
                                  const struct bag_http_reply *reply);

/* Ends connections on which nothing was asked for idle_ms, counted from since_ms on, and nothing is
 * on its way, as far as can be known. */
void bag_http_connections_close_idle(struct bag_http_connections *connections, uint64_t since_ms,
                                     uint64_t idle_ms);

/* ---- lingering close (closing.c) ------------------------------------------------------------- */

/* A connection that was answered before its body was read is closed in two steps: closing a socket
 * with unread bytes resets it, and a client that is still sending may then never see the answer. So
 * its bytes are read and dropped until the client closes, for a bounded time. */

/* Goes on reading from a socket that its owner is about to close. Where it cannot (too many, no
 * memory), the connection is reset as it would have been. */
void bag_http_connection_linger(struct bag_http_connections *connections, int fd);

/* Ends all lingering closes. */
void bag_http_lingering_stop(struct bag_http_connections *connections);

/* ---- draining (closing.c) -------------------------------------------------------------------- */

/* Stopping one server without losing a request.
 *
 * First, running requests are finished, while new connections are accepted: they are answered that
 * the server is not ready. Then no connection begins any more, and those that have begun are
 * accepted; then the listening socket is closed. Every answer meanwhile ends its connection; one on
 * which nothing is asked is closed after a moment. Nobody can know that a client is not about to
 * ask on an idle connection: HTTP/1.1 leaves it to clients to ask again on another. */

enum bag_http_drain_stage {
    BAG_HTTP_DRAIN_NONE,
    BAG_HTTP_DRAIN_FINISHING, /* what was asked before it began */
    BAG_HTTP_DRAIN_REJECTING, /* accepting what has begun */
    BAG_HTTP_DRAIN_EMPTYING,  /* answering on the connections that are left */
};

/* A member of the server. */
struct bag_http_drain {
    /* What is drained: set by the server, borrowed. */
    uv_loop_t *loop;
    struct bag_http_connections *connections;
    struct bag_listener *listener;
    void (*stop_accepting)(void *server); /* before the listener is closed */
    void *server;

    enum bag_http_drain_stage stage;
    bag_counter in_flight; /* requests between their head and their end */
    size_t late;           /* of these, requests that came after it began */
    uint64_t begun_ms;     /* on uv_now's clock */
    uint64_t rejecting_ms; /* when the stage REJECTING began */
    uint64_t max_wait_ms;
    uv_timer_t timer;
    void (*done)(void *context);
    void *context;
};

/* Begins to drain; `done` is called when no connection is left, from a timer. New connections are
 * taken for no longer than max_wait_ms. */
void bag_http_drain_start(struct bag_http_drain *drain, uint64_t max_wait_ms,
                          void (*done)(void *context), void *context);

/* A request has begun; the result, whether that was while the server drains, is for its end. */
bool bag_http_drain_on_begin(struct bag_http_drain *drain);
void bag_http_drain_on_end(struct bag_http_drain *drain, bool late);

/* ---- accepting (accept.c) -------------------------------------------------------------------- */

/* Accepting connections for one server, and who may have how many.
 *
 * The library accepts nothing itself: after one failed accept (no descriptor, no memory) it would
 * not try again before some connection ends, and it closes nothing idle for those who wait. Here a
 * failed accept is tried again a moment later; at max_connections the connection that has been idle
 * for longest makes room; and one address may have at most max_connections_per_client of them,
 * unless it is a trusted proxy's. Such a proxy may say in a PROXY header whose the connection is:
 * then that counts. Each server counts for itself. Runs on the loop's thread. */

/* Networks of proxies, which bring the connections of many clients. */
struct bag_http_networks {
    struct bag_http_network {
        uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
        unsigned bits;       /* that count, from the first one on */
    } list[64];
    size_t count;
};

bool bag_http_networks_have(const struct bag_http_networks *networks,
                            const struct bag_http_peer *peer);

/* The peer of an address. */
struct bag_http_peer bag_http_peer_of(const struct sockaddr_storage *address);

/* Reads addresses and networks ("10.0.0.0/8, ::1") with commas between them; NULL: none. */
bool bag_http_networks_parse(struct bag_http_networks *networks, const char *text,
                             struct bag_problem *problem);

struct bag_http_acceptor {
    /* Set by the server; borrowed. */
    uv_loop_t *loop;
    struct bag_listener *listener;
    struct bag_http_connections *connections;
    size_t max_connections; /* that are accepted, with those that are answered 503 */
    size_t max_per_client;
    bool reads_proxy_headers; /* of `proxies` */
    /* Takes a socket over: adds it to the connections, or closes it. */
    void (*take)(void *server, int fd, const struct sockaddr *address, socklen_t bytes);
    void *server;

    struct bag_http_networks proxies;
    struct bag_http_client *clients[256]; /* owned; chains of those who are connected, by hash */
    uv_poll_t poll;
    uv_timer_t retry; /* runs while accepting makes no sense */
    bool failed;      /* the last accept has, and the log says so */
};

/* Begins to accept; the members above `proxies` are set, the others zero. */
bool bag_http_acceptor_start(struct bag_http_acceptor *acceptor, const char *trusted_proxies,
                             struct bag_problem *problem);

/* Tries again at once, if it waits, because a connection has ended. */
void bag_http_acceptor_on_ended(struct bag_http_acceptor *acceptor);

/* Accepts no more, and closes the handles: before the listener, whose descriptor another file may
 * get then. */
void bag_http_acceptor_stop(struct bag_http_acceptor *acceptor);

/* Whether a peer may have another connection. *client is whose it is then; NULL: it is not counted.
 */
bool bag_http_client_acquire(struct bag_http_acceptor *acceptor, const struct bag_http_peer *peer,
                             struct bag_http_client **client);

/* A connection has ended: its client, if it is counted, has one less. */
void bag_http_client_release(struct bag_http_acceptor *acceptor, struct bag_http_client *client);

/* ---- the bytes before the library ------------------------------------------------------------ */

/* libmicrohttpd reads sockets by recv(), and offers no place to check what it read before it parses
 * it. This program defines recv() itself: the dynamic linker prefers a program's symbols to those
 * of libraries, so the library calls ours, which leaves reading to a receiver. A library that read
 * in another way would go unseen: whoever relies on the receiver checks that it has seen what the
 * library hands out. */

/* Receives in place of a plain recv() of `bytes`, and returns what that would. recv() with flags
 * reads the socket. */
typedef ssize_t bag_http_receiver(void *context, int fd, char *data, size_t bytes);

/* From now on this thread's recv() calls without flags are the receiver's; NULL: no more. */
void bag_http_intercept(bag_http_receiver *receiver, void *context);

#endif
