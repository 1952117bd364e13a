/* Connections that were answered before their body was read; see linger.h. */
#include "linger.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client that has not looked at the answer by then never will. */
#define LINGER_MS 2000

/* More than this at once is no accident, and is not worth descriptors. */
#define MOST_LINGERERS 64

struct bag_lingerer {
    struct bag_linger *linger;
    struct bag_lingerer *next;
    int fd;
    uv_poll_t poll;
    uv_timer_t timer;
    unsigned open_handles;
};

static void on_close(uv_handle_t *handle)
{
    struct bag_lingerer *lingerer = handle->data;
    if (--lingerer->open_handles == 0) {
        close(lingerer->fd);
        free(lingerer);
    }
}

static void end(struct bag_lingerer *lingerer)
{
    struct bag_linger *linger = lingerer->linger;
    struct bag_lingerer **link = &linger->first;
    while (*link != lingerer)
        link = &(*link)->next;
    *link = lingerer->next;
    linger->count--;
    uv_close((uv_handle_t *)&lingerer->poll, on_close);
    uv_close((uv_handle_t *)&lingerer->timer, on_close);
}

static void on_timer(uv_timer_t *timer)
{
    end(timer->data);
}

/* One read at a time, so that a fast sender does not keep the loop. */
static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct bag_lingerer *lingerer = poll->data;
    char dropped[65536];
    (void)events;
    ssize_t count = status < 0 ? 0 : recv(lingerer->fd, dropped, sizeof dropped, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
        end(lingerer);
}

void bag_linger_init(struct bag_linger *linger, uv_loop_t *loop)
{
    *linger = (struct bag_linger){.loop = loop};
}

void bag_linger_add(struct bag_linger *linger, int socket_fd)
{
    struct bag_lingerer *lingerer;
    if (linger->count == MOST_LINGERERS || !(lingerer = calloc(1, sizeof *lingerer)))
        return;
    lingerer->fd = dup(socket_fd);
    if (lingerer->fd < 0) {
        free(lingerer);
        return;
    }
    lingerer->linger = linger;
    lingerer->next = linger->first;
    linger->first = lingerer;
    linger->count++;
    lingerer->open_handles = 2;
    uv_poll_init(linger->loop, &lingerer->poll, lingerer->fd);
    lingerer->poll.data = lingerer;
    uv_poll_start(&lingerer->poll, UV_READABLE, on_readable);
    uv_timer_init(linger->loop, &lingerer->timer);
    lingerer->timer.data = lingerer;
    uv_timer_start(&lingerer->timer, on_timer, LINGER_MS, 0);
}

void bag_linger_stop(struct bag_linger *linger)
{
    while (linger->first)
        end(linger->first);
}
