/* The listening socket; see listen.h. */
#include "listen.h"

#include "server/address.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections that wait to be accepted; the kernel cuts it to net.core.somaxconn. */
#define BACKLOG 4096

static int port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        return -1;
    if (address.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

/* One of the host's addresses; -1 with errno set. */
static int listen_on(const struct addrinfo *address)
{
    int yes = 1, no = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no); /* "::" takes IPv4 as well */
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int bag_http_listen(const char *host, int64_t port, int *bound_port, struct bag_problem *problem)
{
    struct addrinfo *list = bag_address_find(host, port, AI_PASSIVE, problem);
    int fd = -1;
    if (!list)
        return -1;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
        fd = listen_on(at);
    int error = errno;
    freeaddrinfo(list);
    if (fd < 0) {
        bag_problem_set(problem, 500, "cannot listen on %s port %d: %s%s", host, (int)port,
                        strerror(error),
                        error == EADDRINUSE ? "; stop what uses it or choose another --port" : "");
        return -1;
    }
    *bound_port = port_of(fd);
    return fd;
}
