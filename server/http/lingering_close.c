/* Connections that were answered before their body was read; see lingering_close.h. */
#include "lingering_close.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client that has not looked at the answer by then never will. */
#define LINGER_MS 2000

/* More than this at once is no accident, and is not worth descriptors. */
#define MOST_LINGERING_SOCKETS 64

struct bag_lingering_socket {
    struct bag_lingering *linger;
    struct bag_lingering_socket *next;
    int fd;
    uv_poll_t poll;
    uv_timer_t timer;
    unsigned open_handles;
};

static void on_close(uv_handle_t *handle)
{
    struct bag_lingering_socket *lingering_socket = handle->data;
    if (--lingering_socket->open_handles == 0) {
        close(lingering_socket->fd);
        free(lingering_socket);
    }
}

static void end(struct bag_lingering_socket *lingering_socket)
{
    struct bag_lingering *linger = lingering_socket->linger;
    struct bag_lingering_socket **link = &linger->first;
    while (*link != lingering_socket)
        link = &(*link)->next;
    *link = lingering_socket->next;
    linger->count--;
    uv_close((uv_handle_t *)&lingering_socket->poll, on_close);
    uv_close((uv_handle_t *)&lingering_socket->timer, on_close);
}

static void on_timer(uv_timer_t *timer)
{
    end(timer->data);
}

/* One read at a time, so that a fast sender does not keep the loop. */
static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct bag_lingering_socket *lingering_socket = poll->data;
    char dropped[65536];
    (void)events;
    ssize_t count =
        status < 0 ? 0 : recv(lingering_socket->fd, dropped, sizeof dropped, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
        end(lingering_socket);
}

void bag_lingering_init(struct bag_lingering *linger, uv_loop_t *loop)
{
    *linger = (struct bag_lingering){.loop = loop};
}

void bag_lingering_add(struct bag_lingering *linger, int socket_fd)
{
    struct bag_lingering_socket *lingering_socket;
    if (linger->count == MOST_LINGERING_SOCKETS ||
        !(lingering_socket = calloc(1, sizeof *lingering_socket)))
        return;
    lingering_socket->fd = dup(socket_fd);
    if (lingering_socket->fd < 0) {
        free(lingering_socket);
        return;
    }
    lingering_socket->linger = linger;
    lingering_socket->next = linger->first;
    linger->first = lingering_socket;
    linger->count++;
    lingering_socket->open_handles = 2;
    uv_poll_init(linger->loop, &lingering_socket->poll, lingering_socket->fd);
    lingering_socket->poll.data = lingering_socket;
    uv_poll_start(&lingering_socket->poll, UV_READABLE, on_readable);
    uv_timer_init(linger->loop, &lingering_socket->timer);
    lingering_socket->timer.data = lingering_socket;
    uv_timer_start(&lingering_socket->timer, on_timer, LINGER_MS, 0);
}

void bag_lingering_stop(struct bag_lingering *linger)
{
    while (linger->first)
        end(linger->first);
}
