/* The listening socket. */
#ifndef BAG_HTTP_LISTEN_H
#define BAG_HTTP_LISTEN_H

#include "proto/problem.h"

#include <stdint.h>

/* Binds and listens on a numeric or resolvable host and a port (0: any free one). Returns the
 * socket (non-blocking, close-on-exec) and sets *bound_port, or returns -1 with *problem. */
int bag_http_listen(const char *host, int64_t port, int *bound_port, struct bag_problem *problem);

#endif
