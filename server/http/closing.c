/* Lingering closes; see closing.h. */
#include "closing.h"

#include "accept.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client that has not read the answer by then never will. */
#define LINGER_MS 2000

/* How often bytes are dropped: by the first time most clients have read their answer and stopped
 * sending. */
#define LINGER_TICK_MS 5

/* To let clients send the rest of large bodies takes the kernel as long as to answer them: so much
 * is dropped of all each time. Where more than so many linger, nothing is, and a connection is
 * reset when its client has had this long to read the answer. */
#define DROPPED_A_TICK ((ssize_t)1 << 20)
#define MAX_DRAINED    16
#define STORM_MS       25

struct bag_http_lingering {
    struct bag_http_lingering *next;
    int fd; /* owned */
    uint64_t since_ms;
};

/* Drops what has come, as recv does. TCP takes no memory for what it is asked to truncate, and
 * copies nothing (tcp(7)); a Unix socket wants to copy it. */
static ssize_t drop_bytes(int fd, size_t most)
{
    char dropped[65536];
    ssize_t count = recv(fd, NULL, most, MSG_DONTWAIT | MSG_TRUNC);
    if (count < 0 && errno == EFAULT)
        count = recv(fd, dropped, sizeof dropped, MSG_DONTWAIT);
    return count;
}

static void end_lingering(struct bag_http_connections *connections,
                          struct bag_http_lingering **link)
{
    struct bag_http_lingering *lingering = *link;
    *link = lingering->next;
    if (!lingering->next)
        connections->last_lingering = link;
    close(lingering->fd);
    free(lingering);
    connections->num_lingering--;
}

/* Drops what the oldest have sent. */
static void drain(struct bag_http_connections *connections, uint64_t now_ms)
{
    struct bag_http_lingering **link = &connections->lingering;
    ssize_t left = DROPPED_A_TICK;
    while (*link && left > 0) {
        ssize_t count = drop_bytes((*link)->fd, (size_t)left);
        bool has_ended = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
        left -= count > 0 ? count : 0;
        if (has_ended || now_ms >= (*link)->since_ms + LINGER_MS)
            end_lingering(connections, link);
        else
            link = &(*link)->next;
    }
}

static void on_linger(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    const uint64_t now_ms = uv_now(timer->loop);
    while (connections->num_lingering > MAX_DRAINED &&
           now_ms >= connections->lingering->since_ms + STORM_MS)
        end_lingering(connections, &connections->lingering);
    if (connections->num_lingering <= MAX_DRAINED)
        drain(connections, now_ms);
    if (!connections->lingering)
        uv_timer_stop(timer);
}

/* Each takes a descriptor. More at once than this are reset as soon as they are answered. */
static unsigned max_lingering(const struct bag_http_connections *connections)
{
    return MAX_DRAINED + (unsigned)(connections->acceptor->limits.connections / 4);
}

void bag_http_connection_linger(struct bag_http_connections *connections, int fd)
{
    uv_timer_t *timer = &connections->linger_timer;
    struct bag_http_lingering *lingering =
        connections->num_lingering < max_lingering(connections) ? malloc(sizeof *lingering) : NULL;
    int own_fd = lingering ? dup(fd) : -1;
    if (own_fd < 0) {
        free(lingering);
        return;
    }
    *lingering = (struct bag_http_lingering){NULL, own_fd, uv_now(timer->loop)};
    *connections->last_lingering = lingering;
    connections->last_lingering = &lingering->next;
    if (connections->num_lingering++ == 0)
        uv_timer_start(timer, on_linger, LINGER_TICK_MS, LINGER_TICK_MS);
}
