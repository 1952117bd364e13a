/* Accepting connections for one server, and who may have how many.
 *
 * The library accepts nothing itself: after one failed accept (no descriptor, no memory) it would
 * not try again before some connection ends, and it closes nothing idle for those who wait. Here a
 * failed accept is tried again a moment later; at max_connections the connection that has been idle
 * for longest makes room; and one address may have at most max_connections_per_client of them,
 * unless it is a trusted proxy's. Each server counts for itself. Runs on the loop's thread. */
#ifndef BAG_HTTP_ACCEPT_H
#define BAG_HTTP_ACCEPT_H

#include "connection.h"
#include "server/system/sockets.h"

#include <sys/socket.h>
#include <sys/types.h>

/* Networks of proxies, which bring the connections of many clients. */
struct bag_http_networks {
    struct bag_http_network {
        uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
        unsigned bits;       /* that count, from the first one on */
    } list[64];
    size_t count;
};

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

/* A connection has ended: its client, if it is counted, has one less. */
void bag_http_client_release(struct bag_http_acceptor *acceptor, struct bag_http_client *client);

/* ---- the bytes before the library ------------------------------------------------------------ */

/* libmicrohttpd reads sockets by recv(), and offers no place to check what it read before it parses
 * it. This program defines recv() itself: the dynamic linker prefers a program's symbols to those
 * of libraries, so the library calls ours, which reads as libc's does and passes on what an
 * observer makes of it. A library that read in another way would go unseen: whoever relies on the
 * observer checks that it has seen what the library hands out. */

/* Gets a socket, what was read and recv's result (errno is set where it is -1); returns the result
 * for the caller, with errno likewise. It may take bytes out of what was read; where none is left,
 * more is read. */
typedef ssize_t bag_http_observer(void *context, int fd, char *data, ssize_t result);

/* From now on this thread's plain recv() calls (without flags) are observed; NULL: no more. */
void bag_http_intercept(bag_http_observer *observer, void *context);

#endif
