/* What systemd and a service of it say to each other: sockets that it passes, and how the service
 * is. Without systemd nothing happens.
 *
 * The protocols are documented (sd_listen_fds(3), sd_notify(3)) and take a few lines; libsystemd
 * would bring megabytes of libraries along for them. */
#ifndef BAG_SYSTEMD_H
#define BAG_SYSTEMD_H

#include "proto/problem.h"

#include <stdint.h>

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

#endif
