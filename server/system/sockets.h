/* Sockets: addresses and Unix-domain sockets as the operator writes them, those that systemd
 * passes, and listening. */
#ifndef BAG_SOCKETS_H
#define BAG_SOCKETS_H

#include "proto/problem.h"

#include <netdb.h>
#include <stdint.h>
#include <sys/stat.h>
#include <uv.h>

/* Whether it is this machine, or this process, that lacks descriptors or memory. */
bool bag_is_lack(int error);

/* The stream addresses of a numeric or resolvable host; `flags` as getaddrinfo takes them. The
 * caller frees the list with freeaddrinfo. NULL with *problem where there are none: NO_MEMORY where
 * that is for a lack. */
struct addrinfo *bag_address_find(const char *host, int64_t port, int flags,
                                  struct bag_problem *problem);

/* Connects to this address. Connecting, and each call on the socket later, gives up after
 * `timeout_ms` (0: never). -1 with errno. */
int bag_address_connect(const void *address, socklen_t bytes, int timeout_ms);

/* The same to the first address of a host at which somebody listens. -1 with *problem. */
int bag_tcp_connect(const char *host, int64_t port, int timeout_ms, struct bag_problem *problem);

/* Sends all of it on a blocking socket. False with errno, which is EAGAIN after its time-out. */
bool bag_send_all(int fd, const void *bytes, size_t count);

/* Reads permissions in octal digits, such as "660". */
bool bag_unix_mode_parse(const char *text, mode_t *mode, struct bag_problem *problem);

/* Connects to a listening one. -1 with *problem. */
int bag_unix_connect(const char *path, struct bag_problem *problem);

/* Binds a non-blocking, close-on-exec one, which is not listening yet, with these permissions from
 * the first moment on. A socket that nobody listens on any more is replaced; anything else at that
 * path is left alone. -1 with *problem. To be called before there are threads. */
int bag_unix_bind(const char *path, mode_t mode, struct bag_problem *problem);

/* uv_poll_start for bytes to read. False, with nothing started, where the kernel has no memory for
 * that: libuv would find out only when the loop waits, and abort the process. */
bool bag_poll_start(uv_poll_t *poll, uv_poll_cb on_readable);

/* ---- systemd --------------------------------------------------------------------------------- */

/* What systemd and a service of it say to each other: sockets that it passes, and how the service
 * is. Without systemd nothing happens. The protocols are documented (sd_listen_fds(3),
 * sd_notify(3)) and take a few lines; libsystemd would bring megabytes of libraries along. */

/* Listening sockets that were passed to this process: the one named admin, and the one of any other
 * name. -1: none. */
struct bag_systemd_sockets {
    int first, admin;
};

/* Takes them. False with *problem where there are more, or they are of another kind. */
bool bag_systemd_take_sockets(struct bag_systemd_sockets *sockets, struct bag_problem *problem);

/* Sends assignments such as "READY=1\nSTATUS=...". Any thread may call it. */
void bag_systemd_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* How often WATCHDOG=1 must be sent, in ms; 0: never. */
uint64_t bag_systemd_watchdog_ms(void);

/* ---- listening sockets ----------------------------------------------------------------------- */

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

/* From here on no connection begins: clients of TCP try again, and are rejected once the socket is
 * closed; a Unix-domain socket is gone. Those that have begun are still to be accepted. A socket
 * that was passed goes on. Any thread may call it, and more than one. */
void bag_listener_reject(const struct bag_listener *listener);

/* Whether connections wait to be accepted that no other process will accept. */
bool bag_listener_has_waiting(const struct bag_listener *listener);

void bag_listener_close(struct bag_listener *listener);

#endif
