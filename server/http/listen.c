/* The listening socket; see listen.h. */
#include "listen.h"

#include "server/system/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections that wait to be accepted; the kernel limits it to net.core.somaxconn. */
#define BACKLOG 4096

/* What the kernel holds of a reply that its client has not read, which it doubles. Left to itself
 * it takes up to 4 MiB for each connection, and copies as much in one call: 2 to 3 ms of the loop.
 */
#define SEND_BUFFER_BYTES (256 << 10)

static int port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        return -1;
    if (address.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return address.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&address)->sin_port) : -1;
}

/* One of the host's addresses; -1 with errno set. */
static int listen_on(const struct addrinfo *address)
{
    static const int yes = 1, no = 0, send_bytes = SEND_BUFFER_BYTES;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    if (address->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no); /* "::" takes IPv4 as well */
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

bool bag_listener_open(struct bag_listener *listener, const char *host, int64_t port,
                       const char *flag, struct bag_problem *problem)
{
    struct addrinfo *list = bag_address_find(host, port, AI_PASSIVE, problem);
    *listener = (struct bag_listener){.kind = BAG_LISTENER_TCP, .fd = -1};
    if (!list)
        return false;
    for (const struct addrinfo *at = list; at && listener->fd < 0; at = at->ai_next)
        listener->fd = listen_on(at);
    int error = errno;
    freeaddrinfo(list);
    if (listener->fd < 0 && error == EADDRINUSE)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "cannot listen on %s port %d: %s; stop what uses it or choose "
                               "another %s",
                               host, (int)port, strerror(error), flag);
    if (listener->fd < 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "cannot listen on %s port %d: %s", host,
                               (int)port, strerror(error));
    listener->port = port_of(listener->fd);
    return true;
}

bool bag_listener_open_unix(struct bag_listener *listener, const char *path, mode_t mode,
                            struct bag_problem *problem)
{
    *listener = (struct bag_listener){.kind = BAG_LISTENER_UNIX, .port = -1, .path = path};
    listener->fd = bag_unix_bind(path, mode, problem);
    if (listener->fd < 0)
        return false;
    if (listen(listener->fd, BACKLOG) == 0 && lstat(path, &listener->made) == 0)
        return true;
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "cannot listen on the socket '%s': %s", path,
                    strerror(errno));
    bag_listener_close(listener);
    return false;
}

void bag_listener_take(struct bag_listener *listener, int fd)
{
    *listener = (struct bag_listener){.kind = BAG_LISTENER_PASSED, .fd = fd, .port = port_of(fd)};
}

bool bag_listener_share(const struct bag_listener *listener, struct bag_listener *copy)
{
    *copy = *listener;
    copy->fd = fcntl(listener->fd, F_DUPFD_CLOEXEC, 0);
    return copy->fd >= 0;
}

/* Drops a TCP segment that would begin a connection, and lets all others pass: those that complete
 * a connection which has begun, too. Closing the socket would reset what is on its way; a client
 * whose first segment is dropped sends it again a second later. The 13th byte holds the flags. */
static struct sock_filter no_syn[] = {
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13),
    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x12), /* SYN and ACK */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x02, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, 0),
    BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
};

/* Removes the socket, unless another server has put its own there. */
static void remove_path(const struct bag_listener *listener)
{
    struct stat there;
    if (lstat(listener->path, &there) == 0 && there.st_ino == listener->made.st_ino &&
        there.st_dev == listener->made.st_dev)
        unlink(listener->path);
}

void bag_listener_reject(const struct bag_listener *listener)
{
    if (listener->kind == BAG_LISTENER_UNIX)
        remove_path(listener);
    if (listener->kind != BAG_LISTENER_TCP)
        return;
    struct sock_fprog program = {sizeof no_syn / sizeof no_syn[0], no_syn};
    /* Where the kernel rejects, a client that connects in the last moment may be reset. */
    setsockopt(listener->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

bool bag_listener_has_waiting(const struct bag_listener *listener)
{
    struct pollfd poll_fd = {.fd = listener->fd, .events = POLLIN};
    return listener->kind != BAG_LISTENER_PASSED && poll(&poll_fd, 1, 0) > 0;
}

void bag_listener_close(struct bag_listener *listener)
{
    close(listener->fd);
    listener->fd = -1;
}
