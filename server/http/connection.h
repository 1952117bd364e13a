/* The open connections of a loop: their stages, their deadlines, and how they are closed.
 *
 * libmicrohttpd (below: the library) reads requests and writes replies. This module enforces
 * deadlines for a whole request head, request and reply. When the server stops, it drains the
 * connections without losing a reply. Which connections are admitted, deferred, paused or evicted
 * is decided in overload.h.
 *
 * The life of a connection:
 *
 *   ACCEPTED -> PROXIED -> ADMITTED -> IDLE -> HEAD -> BODY -> WAITING -> SENDING_REPLY -> IDLE ...
 *
 *   - Only connections of trusted proxies are PROXIED.
 *   - If the engine is full and a large request has arrived, an ADMITTED connection is DEFERRED
 *     until it is ADMITTED again.
 *   - Beyond max_connections it is SURPLUS in place of IDLE and HEAD, and is answered with 503.
 *   - While too many requests are rejected, a connection whose request is rejected again is PAUSED,
 *     then WAITING.
 *   - Every request is in BODY once its head is complete, even if it has no body.
 *   - A connection that this server ends early is SHUT_DOWN until the library has noticed.
 *   - LINGERING is a duplicate of a socket that the library has closed.
 *
 * Each stage has a list, ordered by the time from which its deadline counts. All connections of a
 * stage have the same deadline, so a timer checks only the beginning of each list. A sweep finds
 * what no deadline covers. At every tick it checks a part of each list that has a deadline, for
 * three things: a client that has disconnected, a connection on which nothing moves, and a partial
 * request line.
 *
 * This module never closes the socket of a connection that the library serves. It shuts the socket
 * down, the library notices, closes the connection and reports it. The library's own timeout would
 * be restarted by each received byte. It is used only for Unix-domain sockets, which do not report
 * when bytes were last received.
 *
 * All functions and callbacks run on the loop's thread unless their comment says otherwise. */
#pragma once

#include "clients.h"
#include "server/metrics/metrics.h"
#include "server/system/handoff.h"

#include <stdatomic.h>
#include <sys/queue.h>
#include <uv.h>

/* The stage of a connection. connection.c lists which stage may follow which, and asserts it. */
enum bag_http_connection_stage {
    BAG_HTTP_CONNECTION_ACCEPTED, /* accepted, and not taken by its loop yet; in no list of a stage
                                   */
    BAG_HTTP_CONNECTION_PROXIED,  /* receiving a PROXY header */
    BAG_HTTP_CONNECTION_DEFERRED, /* not read yet, because the engine would reject it now */
    BAG_HTTP_CONNECTION_ADMITTED, /* about to be passed to the library */
    BAG_HTTP_CONNECTION_SURPLUS,  /* beyond max_connections; its head is not complete */
    BAG_HTTP_CONNECTION_IDLE,     /* no complete request line since the last reply */
    BAG_HTTP_CONNECTION_HEAD,     /* receiving a request head, or a request line for too long */
    BAG_HTTP_CONNECTION_BODY,     /* receiving a request body */
    BAG_HTTP_CONNECTION_WAITING,  /* the request is complete and is being processed */
    BAG_HTTP_CONNECTION_PAUSED,   /* suspended before its reply, another 503, is sent */
    BAG_HTTP_CONNECTION_SENDING_REPLY, /* the client is reading its reply */
    BAG_HTTP_CONNECTION_SHUT_DOWN,     /* shut down; the library has not noticed yet */
    BAG_HTTP_CONNECTION_LINGERING, /* a duplicate of a closed socket, whose input is discarded */
    BAG_HTTP_CONNECTION_STAGES
};

/* A connection. Exists from accept() until the socket is closed. */
struct bag_http_connection {
    TAILQ_ENTRY(bag_http_connection) link; /* in the list of its stage */
    struct bag_handoff_item accepted;      /* passes it to its loop */
    struct bag_http_client *client;        /* NULL: not counted for any client */
    struct bag_http_peer peer;
    struct MHD_Connection *handle;    /* the library's object; NULL: not passed to it yet */
    struct bag_http_request *request; /* owned; NULL: no complete request head */
    const char *target_fault;         /* static description of an invalid target; NULL: valid */
    size_t target_bytes;              /* length of the last request's target as it was sent */
    uint64_t taken_bytes; /* received bytes that belong to PROXY header, heads or bodies */
    int fd;
    bool is_unix;     /* a Unix-domain socket */
    bool has_timeout; /* the library's own timeout is set */
    bool counts;      /* counted in max_connections. False while its PROXY header is received, if it
                         is over the limit, or if it was evicted */
    bool late;        /* the request arrived during a drain */
    bool is_answered; /* the reply was sent directly, without the library */
    uint64_t rejected_ms; /* uv_now() when it was last sent a 503; 0: never, or just paused */
    enum bag_http_connection_stage stage;
    uint64_t since_ms; /* uv_now() when the stage began; HEAD and BODY: when the request line was
                          received */
};

/* The connections in one stage, ordered by since_ms. */
struct bag_http_connection_list {
    TAILQ_HEAD(bag_http_connection_queue, bag_http_connection) queue;
    struct bag_http_connection *next_swept; /* next connection to check; NULL: the first */
    size_t count;
};

struct bag_http_connections {
    /* Set by the server, which also initialises the timers. Borrowed. */
    struct bag_http_clients *clients; /* shared by all loops of the listener */
    struct bag_engine *engine;        /* used by other threads to wake the loop */
    /* Sends an error to a client whose request has passed its deadline. */
    void (*on_late)(void *context, struct bag_http_connection *connection);
    void *context;
    uint64_t idle_timeout_ms;
    uint64_t timeouts_ms[BAG_HTTP_CONNECTION_STAGES]; /* by stage; 0: no deadline */

    atomic_size_t count;   /* accepted and not yet closed */
    atomic_size_t refused; /* closed since the start because their client had its share */
    struct bag_handoff new_connections; /* from the acceptor; owned */
    struct bag_http_connection_list lists[BAG_HTTP_CONNECTION_STAGES]; /* owned */
    uint64_t busy_ns;        /* time the library used in the last loop iteration */
    uv_timer_t timer;        /* active while there are connections or the loop is draining */
    uv_timer_t linger_timer; /* active while connections are lingering */
    bag_counter in_flight;   /* requests whose head was received and that have not finished */
    bag_counter late;        /* requests counted in `in_flight` that arrived during the drain */
    uint64_t drained_since_ms;
    void (*on_drained)(void *context); /* NULL: the loop is not draining */
    void *drain_context;
};

/* Initialises the lists of a zeroed struct. */
void bag_http_connections_init(struct bag_http_connections *connections);

/* ---- a connection's life --------------------------------------------------------------------- */

/* Moves a connection to another stage, which must be allowed to follow the current one, and
 * restarts its deadline, except that BODY continues the deadline of HEAD. Does nothing if the
 * connection has been shut down. */
void bag_http_connection_enter(struct bag_http_connections *connections,
                               struct bag_http_connection *connection,
                               enum bag_http_connection_stage stage);

/* Shuts down the socket. The library closes the connection in its next round. A connection that
 * waits for its PROXY header is closed by accept.c. */
void bag_http_connection_shut_down(struct bag_http_connections *connections,
                                   struct bag_http_connection *connection);

/* Count a connection in max_connections, unless that many are counted already, and stop counting
 * it. */
void bag_http_connection_count(struct bag_http_connections *connections,
                               struct bag_http_connection *connection);
void bag_http_connection_uncount(struct bag_http_connections *connections,
                                 struct bag_http_connection *connection);

/* Removes and frees a connection whose socket is closed or about to be closed. */
void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection);

/* Returns false if the client has closed the connection or its sending side, even if a request is
 * still pending. The library does not notice this on a suspended connection. May be called on any
 * thread for a suspended connection. */
bool bag_http_connection_is_open(const struct bag_http_connection *connection);

/* Returns the time since the kernel received the last bytes, accurate to a few milliseconds. The
 * bytes may have been waiting in the socket buffer since then. Returns 0 for a Unix-domain socket.
 */
uint64_t bag_http_connection_quiet_ns(const struct bag_http_connection *connection);

/* Returns whether the connection has bytes that the library has not read. */
bool bag_http_connection_has_unread(const struct bag_http_connection *connection);

/* Performs a lingering close on a socket that its owner is about to close. Closing a socket that
 * has unread bytes sends a reset, and a client that is still sending might then lose the reply.
 * This function therefore keeps the socket open and discards its input until the client closes it
 * or a timeout expires. If too many connections are lingering, the oldest one is reset. If there is
 * no memory or descriptor, this one is. */
void bag_http_connection_linger(struct bag_http_connections *connections, int fd);

/* ---- all of them ----------------------------------------------------------------------------- */

/* Drains the connections, then calls `done` from a timer. From now on each connection is closed
 * after its reply. After the acceptor has closed, a connection that stays idle for a moment is
 * closed too. A client may be about to send a request on such a connection; HTTP/1.1 expects it to
 * retry on another one. */
void bag_http_connections_drain(struct bag_http_connections *connections,
                                void (*done)(void *context), void *context);
