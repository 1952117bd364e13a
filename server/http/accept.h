/* Accepts connections on one listening socket for all loops, and enforces limits per client.
 *
 * The first loop accepts, and passes each connection to the loop that has the fewest. A socket that
 * all loops poll, or SO_REUSEPORT, would spread them unevenly, and the former wakes all loops for
 * each connection. libmicrohttpd (below: the library) accepts nothing itself: after one failed
 * accept() (no descriptor, no memory) it would not try again before some connection is closed, and
 * it closes no idle connection for a waiting one. The acceptor retries a failed accept() a moment
 * later. At max_connections a new connection evicts another one.
 *
 * A client may have at most max_connections_per_client connections. At max_connections it may have
 * as many surplus ones as there are places left for all clients. Each further one is closed when it
 * is accepted. Otherwise clients that connect all the time would use up the places, and the kernel
 * would reject others while its queue of connections is full. Trusted proxies have no such limits.
 * A trusted proxy may name the client in a PROXY header, which is read before the library gets the
 * socket. The connection then counts for that client.
 *
 * The acceptor's functions run on its loop's thread unless their comment says otherwise. */
#pragma once

#include "overload.h"
#include "server/system/sockets.h"

struct bag_http_acceptor {
    uv_loop_t *loop;               /* borrowed */
    struct bag_listener *listener; /* borrowed; closed when a drain has ended accepting */
    struct bag_http_connections *
        *loops; /* loops that get the connections; set before the start; owned */
    struct bag_http_clients clients; /* clients of the listener */
    uv_poll_t poll;
    uv_timer_t timer;        /* active while accepting is paused, and during a drain */
    bool failed;             /* the last accept() failed, which was logged */
    uint64_t drain_until_ms; /* uv_now() until which earlier requests are awaited; 0: no drain */
    uint64_t rejecting_ms;   /* uv_now() since which no new connection starts; 0: they do */
};

/* Initialises an acceptor for up to `loops` loops. `proxies` lists the networks of trusted proxies.
 * Returns false and sets *problem if that list is invalid or there is no memory. */
bool bag_http_acceptor_init(struct bag_http_acceptor *acceptor, uv_loop_t *loop, size_t loops,
                            struct bag_listener *listener, const struct bag_http_limits *limits,
                            const char *proxies, struct bag_problem *problem);

/* Starts to accept. Returns false and sets *problem (SYSTEM) if the socket cannot be polled. */
bool bag_http_acceptor_start(struct bag_http_acceptor *acceptor, struct bag_problem *problem);

/* Ends accepting without losing a request. While earlier requests are being finished, for at most
 * max_wait_ms, new connections are accepted and answered that the server is not ready. Then no new
 * connection starts, those that have started are accepted, and the listening socket is closed. */
void bag_http_acceptor_drain(struct bag_http_acceptor *acceptor, uint64_t max_wait_ms);

/* Frees the acceptor. Its loop and all others must have ended. */
void bag_http_acceptor_free(struct bag_http_acceptor *acceptor);

/* ---- for each loop, on its thread ------------------------------------------------------------ */

/* Takes the new connections. Each is then decided on by the overload of its loop, if it sends a
 * PROXY header after that has arrived. */
void bag_http_new_connections_take(struct bag_http_overload *overload);
