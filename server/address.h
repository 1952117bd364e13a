/* Hosts and ports as the operator writes them. */
#ifndef BAG_ADDRESS_H
#define BAG_ADDRESS_H

#include "proto/problem.h"

#include <netdb.h>

/* The stream addresses of a numeric or resolvable host; `flags` as getaddrinfo takes them. The
 * caller frees the list with freeaddrinfo. NULL with *problem where there are none. */
struct addrinfo *bag_address_find(const char *host, int64_t port, int flags,
                                  struct bag_problem *problem);

#endif
