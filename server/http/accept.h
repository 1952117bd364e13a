/* Accepting connections on one listening socket for all loops, and who may have how many.
 *
 * The first loop accepts, and hands each connection over to the loop that has the fewest: sockets
 * that all loops poll, or SO_REUSEPORT, spread them unevenly, and the former wakes all loops for
 * each. The library accepts nothing itself: after one failed accept (no descriptor, no memory) it
 * would not try again before some connection ends, and it closes nothing idle for those who wait.
 * Here a failed accept is tried again a moment later; at max_connections another connection makes
 * room; and one address may have at most max_connections_per_client of them, unless it is a trusted
 * proxy's. Such a proxy may say in a PROXY header whose the connection is, which is read before the
 * library has the socket: then that counts.
 *
 * The acceptor's functions run on its loop's thread, unless they say otherwise. */
#ifndef BAG_HTTP_ACCEPT_H
#define BAG_HTTP_ACCEPT_H

#include "connection.h"
#include "proto/network.h"
#include "server/system/sockets.h"

/* What a listener lets in. */
struct bag_http_acceptor_limits {
    size_t connections;       /* that are served */
    size_t accepted;          /* with those that are answered 503 */
    size_t per_client;        /* of one address */
    bool reads_proxy_headers; /* of trusted proxies */
};

struct bag_http_acceptor {
    uv_loop_t *loop;                     /* borrowed */
    struct bag_listener *listener;       /* borrowed; closed when no more are accepted */
    struct bag_http_connections **loops; /* to whom it hands over, set before it starts; owned */
    size_t num_loops;
    struct bag_http_acceptor_limits limits;
    struct bag_networks proxies;
    atomic_size_t total; /* connections that count among limits.connections */
    uv_mutex_t lock;     /* of `clients` */
    void *clients;       /* of those who are connected, by address; see tsearch(3) */
    uv_poll_t poll;
    uv_timer_t timer;        /* runs while accepting makes no sense, and in a drain */
    bool failed;             /* the last accept has, and the log says so */
    uint64_t drain_until_ms; /* others' requests are waited for, on uv_now's clock; 0: no drain */
    uint64_t rejecting_ms;   /* since when no connection begins; 0: they do */
    atomic_bool closed;      /* no more connections are handed over */
};

/* Has room for so many loops, and none yet. `proxies` are the networks of trusted ones. */
bool bag_http_acceptor_init(struct bag_http_acceptor *acceptor, uv_loop_t *loop, size_t loops,
                            struct bag_listener *listener,
                            const struct bag_http_acceptor_limits *limits, const char *proxies,
                            struct bag_problem *problem);

/* Begins to accept. */
bool bag_http_acceptor_start(struct bag_http_acceptor *acceptor, struct bag_problem *problem);

/* Ends without losing a request. While those that run come to their end, for max_wait_ms at most,
 * new connections are accepted: they are answered that the server is not ready. Then no connection
 * begins any more, and those that have begun are accepted; then the listening socket is closed. */
void bag_http_acceptor_drain(struct bag_http_acceptor *acceptor, uint64_t max_wait_ms);

/* After its loop and all others have ended. */
void bag_http_acceptor_free(struct bag_http_acceptor *acceptor);

/* ---- what each loop does with them, on its thread ------------------------------------------- */

/* Takes those that were handed over: admits them, or waits for their PROXY header first. */
void bag_http_arrivals_take(struct bag_http_connections *connections);

/* A connection has ended: its client, if it is counted, has one less. Any thread. */
void bag_http_client_release(struct bag_http_acceptor *acceptor, struct bag_http_client *client);

#endif
