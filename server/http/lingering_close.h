/* Connections that were answered before their body was read.
 *
 * Closing a socket with unread bytes resets it, and a client that is still sending may then never
 * see the answer. So the last look at such a connection is ours: bytes are read and dropped until
 * the client closes, for a bounded time. Runs on the loop's thread. */
#ifndef BAG_HTTP_LINGERING_CLOSE_H
#define BAG_HTTP_LINGERING_CLOSE_H

#include <uv.h>

struct bag_lingering {
    uv_loop_t *loop;
    struct bag_lingering_socket *first; /* owned; those that are still being read */
    unsigned count;
};

void bag_lingering_init(struct bag_lingering *linger, uv_loop_t *loop);

/* Goes on reading from a socket that its owner is about to close. Where it cannot (too many, no
 * memory), the connection is reset as it would have been. */
void bag_lingering_add(struct bag_lingering *linger, int socket_fd);

/* Closes all of them; their handles end as the loop goes on. */
void bag_lingering_stop(struct bag_lingering *linger);

#endif
