/* Hosts and ports; see address.h. */
#include "address.h"

#include <stdio.h>
#include <sys/socket.h>

struct addrinfo *bag_address_find(const char *host, int64_t port, int flags,
                                  struct bag_problem *problem)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", (int)port);
    int error = getaddrinfo(host, service, &hints, &list);
    if (!error)
        return list;
    bag_problem_set(problem, 500, "host '%s': %s", host, gai_strerror(error));
    return NULL;
}
