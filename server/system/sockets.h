/* Sockets: TCP and Unix-domain addresses, sockets that systemd passes, and listening sockets. */
#pragma once

#include "proto/problem.h"

#include <netdb.h>
#include <stdint.h>
#include <sys/stat.h>
#include <uv.h>

/* Returns whether the error means that this machine or process is out of descriptors or memory. */
bool bag_is_lack(int error);

/* An address of a socket, of either kind. */
struct bag_address {
    struct sockaddr_storage address;
    socklen_t bytes;
};

/* Returns the stream addresses of a numeric or resolvable host. `flags` are getaddrinfo's. The
 * caller frees the list with freeaddrinfo. Returns NULL and sets *problem if there are none;
 * *problem is NO_MEMORY if memory or descriptors are short. */
struct addrinfo *bag_address_find(const char *host, int64_t port, int flags,
                                  struct bag_problem *problem);

/* Connects to an address. Connecting, and each later call on the socket, times out after
 * `timeout_ms` (0: never). Returns -1 with errno if that fails. */
int bag_address_connect(const void *address, socklen_t bytes, int timeout_ms);

/* Sends all bytes on a blocking socket. Returns false with errno if that fails; errno is EAGAIN
 * after the socket's timeout. */
bool bag_send_all(int fd, const void *bytes, size_t count);

/* Reads permissions in octal digits, such as "660". Returns false and sets *problem if the text is
 * anything else. */
bool bag_unix_mode_parse(const char *text, mode_t *mode, struct bag_problem *problem);

/* Connects to a Unix-domain socket. Returns -1 and sets *problem if that fails. */
int bag_unix_connect(const char *path, struct bag_problem *problem);

/* Binds a non-blocking, close-on-exec Unix-domain socket with these permissions, and does not
 * listen yet. Replaces a socket that no process listens on. Returns -1 and sets *problem if
 * anything else is at the path. Must be called before threads start, because it changes the
 * umask. */
int bag_unix_bind(const char *path, mode_t mode, struct bag_problem *problem);

/* Calls uv_poll_start for bytes to read. Returns false and starts nothing if the kernel has no
 * memory for it. libuv would only notice that when the loop waits, and abort the process. */
bool bag_poll_start(uv_poll_t *poll, uv_poll_cb on_readable);

/* ---- systemd --------------------------------------------------------------------------------- */

/* The protocol between systemd and a service: systemd passes sockets, and the service reports its
 * status. Without systemd the functions do nothing. The protocols are documented (sd_listen_fds(3),
 * sd_notify(3)) and take a few lines; libsystemd would add megabytes of libraries. */

/* The listening sockets that were passed to this process: the one named admin, and one with any
 * other name. -1: none. */
struct bag_systemd_sockets {
    int first, admin;
};

/* Takes the passed sockets. Returns false and sets *problem if there are more, or they are of
 * another kind. */
bool bag_systemd_take_sockets(struct bag_systemd_sockets *sockets, struct bag_problem *problem);

/* Sends assignments such as "READY=1\nSTATUS=...". May be called on any thread. */
void bag_systemd_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns how often WATCHDOG=1 must be sent, in ms, or 0 if never. */
uint64_t bag_systemd_watchdog_ms(void);

/* ---- listening sockets ----------------------------------------------------------------------- */

enum bag_listener_kind {
    BAG_LISTENER_TCP,
    BAG_LISTENER_UNIX,
    BAG_LISTENER_PASSED, /* the process that passed it keeps it open */
};

struct bag_listener {
    enum bag_listener_kind kind;
    int fd;           /* owned; non-blocking, close-on-exec; -1: closed */
    int port;         /* bound TCP port; -1: not a TCP socket */
    const char *path; /* path of a UNIX socket; borrowed */
    struct stat made; /* state of the path when it was bound */
};

/* Binds and listens on a numeric or resolvable host and a port (0: any free one). `flag` is the
 * flag that chooses another port. Returns false and sets *problem if that fails. */
bool bag_listener_open(struct bag_listener *listener, const char *host, int64_t port,
                       const char *flag, struct bag_problem *problem);

/* Binds and listens on a Unix-domain socket, which it binds with bag_unix_bind. Returns false and
 * sets *problem if that fails. */
bool bag_listener_open_unix(struct bag_listener *listener, const char *path, mode_t mode,
                            struct bag_problem *problem);

/* Takes over a socket that listens already. */
void bag_listener_take(struct bag_listener *listener, int fd);

/* Rejects new connections. A TCP client tries again and is rejected when the socket is closed; a
 * Unix-domain socket is removed. Connections that the kernel completed before can still be
 * accepted. Does nothing to a socket that was passed. May be called on any thread, and
 * repeatedly. */
void bag_listener_reject(const struct bag_listener *listener);

/* Returns whether connections wait to be accepted that no other process will accept. */
bool bag_listener_has_waiting(const struct bag_listener *listener);

void bag_listener_close(struct bag_listener *listener);
