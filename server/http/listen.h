/* The listening socket. Several loops may accept from it, each with a descriptor of its own: the
 * socket is closed when all of them are. */
#ifndef BAG_HTTP_LISTEN_H
#define BAG_HTTP_LISTEN_H

#include "proto/problem.h"

#include <stdint.h>
#include <sys/stat.h>

enum bag_listener_kind {
    BAG_LISTENER_TCP,
    BAG_LISTENER_UNIX,
    BAG_LISTENER_PASSED, /* whoever passed it keeps it open */
};

struct bag_listener {
    enum bag_listener_kind kind;
    int fd;           /* owned; non-blocking, close-on-exec; -1: closed */
    int port;         /* that it is bound to; -1 unless it is TCP's */
    const char *path; /* of UNIX; borrowed */
    struct stat made; /* what stood there when it was bound */
};

/* Binds and listens on a numeric or resolvable host and a port (0: any free one); `flag` is what
 * chooses another one. */
bool bag_listener_open(struct bag_listener *listener, const char *host, int64_t port,
                       const char *flag, struct bag_problem *problem);

/* Binds and listens on a Unix-domain socket, as bag_unix_bind does. */
bool bag_listener_open_unix(struct bag_listener *listener, const char *path, mode_t mode,
                            struct bag_problem *problem);

/* Takes a socket that listens already. */
void bag_listener_take(struct bag_listener *listener, int fd);

/* Another descriptor of the same socket, which is to be closed for itself. */
bool bag_listener_share(const struct bag_listener *listener, struct bag_listener *copy);

/* From here on no connection begins: clients of TCP try again, and are rejected once the socket is
 * closed; a Unix-domain socket is gone. Those that have begun are still to be accepted. A socket
 * that was passed goes on. Any thread may call it, and more than one. */
void bag_listener_reject(const struct bag_listener *listener);

/* Whether connections wait to be accepted, and nobody else will. */
bool bag_listener_has_waiting(const struct bag_listener *listener);

void bag_listener_close(struct bag_listener *listener);

#endif
