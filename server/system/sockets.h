/* Addresses and Unix-domain sockets as the operator writes them. */
#ifndef BAG_SOCKETS_H
#define BAG_SOCKETS_H

#include "proto/problem.h"

#include <netdb.h>
#include <sys/stat.h>

/* The stream addresses of a numeric or resolvable host; `flags` as getaddrinfo takes them. The
 * caller frees the list with freeaddrinfo. NULL with *problem where there are none. */
struct addrinfo *bag_address_find(const char *host, int64_t port, int flags,
                                  struct bag_problem *problem);

/* Reads permissions in octal digits, such as "660". */
bool bag_unix_mode_parse(const char *text, mode_t *mode, struct bag_problem *problem);

/* Connects to a listening one. -1 with *problem. */
int bag_unix_connect(const char *path, struct bag_problem *problem);

/* Binds a non-blocking, close-on-exec one, which is not listening yet, with these permissions from
 * the first moment on. A socket that nobody listens on any more is replaced; anything else at that
 * path is left alone. -1 with *problem. To be called before there are threads. */
int bag_unix_bind(const char *path, mode_t mode, struct bag_problem *problem);

#endif
