/* Blocking exchanges with one deadline, for threads and commands that may wait.
 *
 * A deadline is a time on uv_hrtime's clock. It holds for a whole exchange: for connecting to one
 * address after the other, for sending, and for receiving a reply byte by byte, and for looking up
 * a name. The caller passes the same deadline to each function.
 *
 * The C library cannot end a look-up. A thread of its own does it, and goes on alone if the
 * deadline passes. If BAG_DEADLINE_MAX_LOOKUPS of these threads have no answer yet, names are not
 * looked up.
 *
 * The sockets are blocking ones. Functions fail with errno ETIMEDOUT after the deadline. They may
 * be called on any thread. */
#pragma once

#include "proto/http_client.h"

#include <netdb.h>
#include <sys/socket.h>

#define BAG_DEADLINE_MAX_LOOKUPS 16

/* Returns the deadline `timeout_ms` from now. */
uint64_t bag_deadline_in_ms(uint64_t timeout_ms);

/* Connects to an address. Returns -1 with errno if nobody listens there, or not in time. */
int bag_deadline_connect(const void *address, socklen_t bytes, uint64_t deadline_ns);

/* Returns the addresses of a host as bag_address_find does. Returns NULL and sets *problem also if
 * they are not known in time. */
struct addrinfo *bag_deadline_find(const char *host, int64_t port, uint64_t deadline_ns,
                                   struct bag_problem *problem);

/* Connects to the first address of a host at which somebody listens. Returns -1 and sets *problem
 * if there is none. */
int bag_deadline_connect_host(const char *host, int64_t port, uint64_t deadline_ns,
                              struct bag_problem *problem);

/* Sends all bytes. Returns false and sets errno if that fails. */
bool bag_deadline_send(int fd, const void *bytes, size_t count, uint64_t deadline_ns);

/* Receives at most `room` bytes, which must be at least 1. Returns 0 if the peer has closed the
 * connection, and -1 with errno if receiving fails. */
ssize_t bag_deadline_receive(int fd, void *buffer, size_t room, uint64_t deadline_ns);

/* Receives until the head of a reply is complete. Sets *used to the number of bytes received: those
 * of the head, and any after it. Returns the length of the head with its blank line. Returns 0 with
 * errno if the connection fails before, with errno 0 if it was closed, and with EMSGSIZE if the
 * head is too long. */
size_t bag_deadline_receive_head(int fd, char text[BAG_REPLY_HEAD_BYTES], size_t *used,
                                 uint64_t deadline_ns);
