/* What the kernel knows of an open TCP connection. */
#ifndef BAG_TCP_H
#define BAG_TCP_H

#include <stdbool.h>
#include <stdint.h>

struct bag_tcp_state {
    uint64_t received_bytes; /* in all, read or not; 0 on a kernel that does not tell */
    uint32_t received_ms;    /* since the last bytes came */
    uint32_t sent_ms;        /* since the last bytes were sent */
};

/* Returns false if the socket is not one of TCP. */
bool bag_tcp_read_state(int fd, struct bag_tcp_state *state);

#endif
