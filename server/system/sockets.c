/* Addresses, Unix-domain sockets, systemd's sockets and listening sockets; see sockets.h. */
#include "sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool bag_is_lack(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

struct addrinfo *bag_address_find(const char *host, int64_t port, int flags,
                                  struct bag_problem *problem)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", (int)port);
    int error = getaddrinfo(host, service, &hints, &list);
    if (!error)
        return list;
    bool lacks = error == EAI_MEMORY || (error == EAI_SYSTEM && bag_is_lack(errno));
    bag_problem_set(problem, lacks ? BAG_ERROR_NO_MEMORY : BAG_ERROR_SYSTEM, "host '%s': %s", host,
                    error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    return NULL;
}

int bag_address_connect(const void *address, socklen_t bytes, int timeout_ms)
{
    const struct timeval timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    sa_family_t family = ((const struct sockaddr *)address)->sa_family;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
        connect(fd, address, bytes) == 0)
        return fd;
    int error = errno == EINPROGRESS ? ETIMEDOUT : errno; /* EINPROGRESS means a timeout here */
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

bool bag_send_all(int fd, const void *bytes, size_t count)
{
    for (const char *at = bytes, *end = at + count; at < end;) {
        ssize_t sent = send(fd, at, (size_t)(end - at), MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return false;
        at += sent > 0 ? sent : 0;
    }
    return true;
}

/* libuv adds the descriptor to epoll only when the loop waits. If epoll has it already, libuv uses
 * it as it is, and that needs no memory. So the descriptor is added here, where a failure can be
 * handled. */
bool bag_poll_start(uv_poll_t *poll, uv_poll_cb on_readable)
{
    struct epoll_event event = {.events = EPOLLIN};
    uv_os_fd_t fd;
    if (uv_fileno((const uv_handle_t *)poll, &fd) != 0 ||
        uv_poll_start(poll, UV_READABLE, on_readable) != 0)
        return false;
    event.data.fd = fd;
    if (epoll_ctl(uv_backend_fd(poll->loop), EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST)
        return true;
    uv_poll_stop(poll);
    return false;
}

/* ---- Unix-domain sockets --------------------------------------------------------------------- */

bool bag_unix_mode_parse(const char *text, mode_t *mode, struct bag_problem *problem)
{
    size_t digits = strspn(text, "01234567");
    *mode = (mode_t)strtoul(text, NULL, 8);
    if (digits > 0 && digits <= 4 && !text[digits] && *mode <= 0777)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "unix_permissions '%s': must be octal digits from 0 to 777", text);
}

static bool make_address(const char *path, struct sockaddr_un *address, struct bag_problem *problem)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address->sun_path)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "socket '%s': the path must be shorter than %zu bytes", path,
                               sizeof address->sun_path);
    strcpy(address->sun_path, path);
    return true;
}

int bag_unix_connect(const char *path, struct bag_problem *problem)
{
    struct sockaddr_un address;
    if (!make_address(path, &address, problem))
        return -1;
    int fd = bag_address_connect(&address, sizeof address, 0);
    if (fd < 0)
        bag_problem_set(problem, BAG_ERROR_SYSTEM, "socket '%s': %s", path, strerror(errno));
    return fd;
}

/* Binds with the permissions set by umask, because a client could connect between bind and
 * chmod. */
static bool bind_to(int fd, const struct sockaddr_un *address, mode_t mode)
{
    mode_t before = umask(0777 & ~mode);
    int result = bind(fd, (const struct sockaddr *)address, sizeof *address);
    int error = errno;
    umask(before);
    errno = error;
    return result == 0;
}

/* Removes a socket that a server has left behind. Returns false if something else is at the
 * path. */
static bool remove_stale(const char *path, const struct sockaddr_un *address)
{
    struct stat there;
    if (lstat(path, &there) != 0)
        return errno == ENOENT;
    if (!S_ISSOCK(there.st_mode))
        return false;
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool rejected = probe >= 0 &&
                    connect(probe, (const struct sockaddr *)address, sizeof *address) != 0 &&
                    errno == ECONNREFUSED;
    if (probe >= 0)
        close(probe);
    return rejected && unlink(path) == 0;
}

int bag_unix_bind(const char *path, mode_t mode, struct bag_problem *problem)
{
    struct sockaddr_un address;
    if (!make_address(path, &address, problem))
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool is_bound = fd >= 0 && bind_to(fd, &address, mode);
    int error = errno;
    if (!is_bound && fd >= 0 && error == EADDRINUSE && remove_stale(path, &address)) {
        is_bound = bind_to(fd, &address, mode);
        error = errno;
    }
    if (is_bound)
        return fd;
    struct stat there;
    bool is_used = error == EADDRINUSE;
    bool is_other = is_used && lstat(path, &there) == 0 && !S_ISSOCK(there.st_mode);
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "cannot listen on the socket '%s': %s%s", path,
                    is_other ? "what is there is not a socket" : strerror(error),
                    is_other  ? "; remove it or choose another path"
                    : is_used ? "; stop what listens there or choose another path"
                              : "");
    if (fd >= 0)
        close(fd);
    return -1;
}

/* ---- sockets from systemd, and news for it --------------------------------------------------- */

/* The first passed descriptor. */
#define FIRST_FD 3

/* The name of the socket for health, metrics and models. */
#define ADMIN "admin"

/* Returns a positive number from the environment, or 0 if there is none. */
static uint64_t read_number(const char *name)
{
    const char *text = getenv(name);
    return text && *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : 0;
}

/* Returns whether a variable that names a process names this one. Child processes inherit the
 * variables, too. */
static bool is_for_us(const char *name)
{
    return read_number(name) == (uint64_t)getpid();
}

static bool is_listening(int fd)
{
    int type = 0, listening = 0;
    socklen_t bytes = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) == 0 && listening;
}

static bool take(int fd, int *place, uint64_t count, struct bag_problem *problem)
{
    if (*place >= 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "%llu sockets were passed (LISTEN_FDS); one is served, and beside "
                               "it one that is named admin (LISTEN_FDNAMES, of a unit's "
                               "FileDescriptorName)",
                               (unsigned long long)count);
    if (!is_listening(fd))
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "descriptor %d, which was passed (LISTEN_FDS), must be a listening "
                               "stream socket",
                               fd);
    *place = fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return true;
}

/* Sockets without a name have the name of their unit. */
bool bag_systemd_take_sockets(struct bag_systemd_sockets *sockets, struct bag_problem *problem)
{
    uint64_t count = is_for_us("LISTEN_PID") ? read_number("LISTEN_FDS") : 0;
    const char *names = getenv("LISTEN_FDNAMES");
    *sockets = (struct bag_systemd_sockets){.first = -1, .admin = -1};
    for (uint64_t i = 0; i < count; i++) {
        size_t bytes = names ? strcspn(names, ":") : 0;
        bool is_admin = bytes == strlen(ADMIN) && memcmp(names, ADMIN, bytes) == 0;
        if (!take(FIRST_FD + (int)i, is_admin ? &sockets->admin : &sockets->first, count, problem))
            return false;
        names = names && names[bytes] ? names + bytes + 1 : NULL;
    }
    return true;
}

void bag_systemd_notify(const char *format, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[512];
    va_list arguments;
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof address.sun_path)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    strcpy(address.sun_path, path);
    if (*path == '@')
        address.sun_path[0] = 0; /* an abstract address */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    /* An error is ignored, because systemd cannot be reached in any other way. */
    sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&address,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
    close(fd);
}

/* Returns half of the watchdog's timeout. */
uint64_t bag_systemd_watchdog_ms(void)
{
    if (getenv("WATCHDOG_PID") && !is_for_us("WATCHDOG_PID"))
        return 0;
    uint64_t ms = read_number("WATCHDOG_USEC") / 2000;
    return ms > 0 || !read_number("WATCHDOG_USEC") ? ms : 1;
}

/* ---- listening sockets ----------------------------------------------------------------------- */

/* The maximum number of connections that wait to be accepted. The kernel limits it to
 * net.core.somaxconn. */
#define BACKLOG 4096

/* The kernel's buffer for a reply that its client has not read yet; the kernel doubles this size,
 * and cuts it to net.core.wmem_max. The kernel's default grows to 4 MiB for each connection, which
 * it copies in one call: 2 to 3 ms of the loop. With half of this size, a reply of several MiB
 * takes 6 to 16 % more of the processor, because the loop wakes more often. */
#define SEND_BUFFER_BYTES (512 << 10)

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

/* Binds and listens on one address. Returns -1 with errno if that fails. */
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

/* A packet filter that drops TCP segments with SYN but without ACK, which begin a connection, and
 * passes all others. Closing the socket would reset connections that are being established. A
 * client whose first segment is dropped sends it again a second later. Byte 13 holds the flags. */
static struct sock_filter no_syn[] = {
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13),
    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x12), /* SYN and ACK */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x02, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, 0),
    BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
};

void bag_listener_reject(const struct bag_listener *listener)
{
    if (listener->kind == BAG_LISTENER_UNIX) {
        /* Remove the socket, unless another server has replaced it with its own. */
        struct stat there;
        if (lstat(listener->path, &there) == 0 && there.st_ino == listener->made.st_ino &&
            there.st_dev == listener->made.st_dev)
            unlink(listener->path);
    }
    if (listener->kind != BAG_LISTENER_TCP)
        return;
    struct sock_fprog program = {sizeof no_syn / sizeof no_syn[0], no_syn};
    /* If the kernel rejects the filter, a client that connects at the last moment may be reset. */
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
