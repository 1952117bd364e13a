/* The listening socket. Several loops may accept from it, each with a descriptor of its own: the
 * socket is closed when all of them are. */
#ifndef BAG_HTTP_LISTEN_H
#define BAG_HTTP_LISTEN_H

#include "proto/problem.h"

#include <stdint.h>

struct bag_listener {
    int fd;   /* owned; non-blocking, close-on-exec */
    int port; /* that it is bound to */
};

/* Binds and listens on a numeric or resolvable host and a port (0: any free one). */
bool bag_listener_open(struct bag_listener *listener, const char *host, int64_t port,
                       struct bag_problem *problem);

/* Another descriptor of the same socket, which is to be closed for itself. */
bool bag_listener_share(const struct bag_listener *listener, struct bag_listener *copy);

/* From here on no connection begins: clients try again, and are refused once the socket is closed.
 * Those that have begun are still to be accepted. Any thread may call it, and more than one. */
void bag_listener_refuse(const struct bag_listener *listener);

/* Whether connections wait to be accepted. */
bool bag_listener_has_waiting(const struct bag_listener *listener);

void bag_listener_close(struct bag_listener *listener);

#endif
