/* Reads the kernel's state of an open TCP connection. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct bag_tcp_state {
    uint64_t received_bytes; /* total, whether read or not; 0 if the kernel does not report it */
    uint32_t received_ms;    /* time since the last bytes were received */
    uint32_t sent_ms;        /* time since the last bytes were sent */
};

/* Reads the state. Returns false if the socket is not a TCP socket. */
bool bag_tcp_read_state(int fd, struct bag_tcp_state *state);
