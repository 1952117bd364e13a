/* Ending connections so that no reply is lost: one by a lingering close, all by a drain; see
 * connection.h. */
#include "connection.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- sockets beside the library's ------------------------------------------------------------ */

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct bag_http_watch *watch = poll->data;
    (void)status, (void)events;
    watch->on_readable(watch);
}

static void on_late(uv_timer_t *timer)
{
    struct bag_http_watch *watch = timer->data;
    watch->on_late(watch);
}

static void on_close(uv_handle_t *handle)
{
    struct bag_http_watch *watch = handle->data;
    if (--watch->open_handles > 0)
        return;
    if (watch->fd >= 0)
        close(watch->fd);
    free(watch);
}

void bag_http_watch_end(struct bag_http_watch *watch, struct bag_http_watch **list)
{
    *(watch->previous ? &watch->previous->next : list) = watch->next;
    if (watch->next)
        watch->next->previous = watch->previous;
    uv_close((uv_handle_t *)&watch->poll, on_close);
    uv_close((uv_handle_t *)&watch->timer, on_close);
}

bool bag_http_watch_start(struct bag_http_watch *watch, uv_loop_t *loop, uint64_t timeout_ms,
                          struct bag_http_watch **list)
{
    if (uv_poll_init(loop, &watch->poll, watch->fd) != 0) {
        close(watch->fd);
        free(watch);
        return false;
    }
    watch->open_handles = 2;
    watch->poll.data = watch->timer.data = watch;
    watch->previous = NULL;
    watch->next = *list;
    if (watch->next)
        watch->next->previous = watch;
    *list = watch;
    uv_timer_init(loop, &watch->timer);
    uv_timer_start(&watch->timer, on_late, timeout_ms, 0);
    if (bag_poll_start(&watch->poll, on_readable))
        return true;
    bag_http_watch_end(watch, list);
    return false;
}

/* ---- lingering close ------------------------------------------------------------------------- */

/* A client that has not read the answer by then never will. */
#define LINGER_MS 2000

/* How often bytes are dropped: by the first time most clients have read their answer and stopped
 * sending. */
#define LINGER_TICK_MS 5

/* To let a client send the rest of a large body costs as much as to answer it. Where more than this
 * linger at once, nothing is dropped, and a connection is reset when its client has had this long
 * to read the answer. */
#define MAX_DRAINED 64
#define STORM_MS    25

struct bag_http_lingering {
    struct bag_http_lingering *next;
    int fd; /* owned */
    uint64_t since_ms;
};

/* Drops what has come; false where no more will. TCP takes no memory for what it is asked to
 * truncate, and copies nothing (tcp(7)); a Unix socket wants to copy it. */
static bool drop_bytes(int fd)
{
    char dropped[65536];
    ssize_t count = recv(fd, NULL, INT_MAX, MSG_DONTWAIT | MSG_TRUNC);
    if (count < 0 && errno == EFAULT)
        count = recv(fd, dropped, sizeof dropped, MSG_DONTWAIT);
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
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

/* The oldest come first. */
static void on_linger(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    struct bag_http_lingering **link = &connections->lingering;
    const uint64_t now_ms = uv_now(timer->loop);
    while (*link && connections->num_lingering > MAX_DRAINED &&
           now_ms >= (*link)->since_ms + STORM_MS)
        end_lingering(connections, link);
    while (*link && connections->num_lingering <= MAX_DRAINED) {
        if (drop_bytes((*link)->fd) && now_ms < (*link)->since_ms + LINGER_MS)
            link = &(*link)->next;
        else
            end_lingering(connections, link);
    }
    if (!connections->lingering)
        uv_timer_stop(timer);
}

/* Each takes a descriptor. More at once than this are reset as soon as they are answered. */
static unsigned max_lingering(const struct bag_http_connections *connections)
{
    return MAX_DRAINED + (unsigned)(connections->limits.connections / 4);
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

void bag_http_watches_stop(struct bag_http_connections *connections)
{
    while (connections->lingering)
        end_lingering(connections, &connections->lingering);
    uv_timer_stop(&connections->linger_timer);
    while (connections->proxied)
        connections->proxied->on_late(connections->proxied);
}

/* ---- draining -------------------------------------------------------------------------------- */

/* How often it is looked whether the next stage can begin. */
#define TICK_MS 20

/* In this time a client whose connection has begun completes it. */
#define HANDSHAKE_MS 100

/* A client that sends one request after another has sent the next one by then. */
#define IDLE_MS 200

bool bag_http_drain_on_begin(struct bag_http_drain *drain)
{
    bool late = drain->stage != BAG_HTTP_DRAIN_NONE;
    bag_counter_add(&drain->in_flight, 1);
    drain->late += late;
    return late;
}

void bag_http_drain_on_end(struct bag_http_drain *drain, bool late)
{
    bag_counter_add(&drain->in_flight, UINT64_MAX);
    drain->late -= late;
}

static void finish_early(struct bag_http_drain *drain, uint64_t now_ms)
{
    if (bag_counter_get(&drain->in_flight) > drain->late &&
        now_ms - drain->begun_ms < drain->max_wait_ms)
        return;
    bag_listener_reject(drain->listener);
    drain->rejecting_ms = now_ms;
    drain->stage = BAG_HTTP_DRAIN_REJECTING;
}

static void close_listener(struct bag_http_drain *drain, uint64_t now_ms)
{
    if (now_ms - drain->rejecting_ms < HANDSHAKE_MS || bag_listener_has_waiting(drain->listener))
        return;
    drain->stop_accepting(drain->server);
    bag_listener_close(drain->listener);
    drain->stage = BAG_HTTP_DRAIN_EMPTYING;
}

static bool is_empty(struct bag_http_drain *drain)
{
    bag_http_connections_close_idle(drain->connections, drain->begun_ms, IDLE_MS);
    return drain->connections->count == 0 && drain->connections->num_lingering == 0 &&
           drain->connections->num_proxied == 0;
}

static void on_tick(uv_timer_t *timer)
{
    struct bag_http_drain *drain = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    if (drain->stage == BAG_HTTP_DRAIN_FINISHING)
        finish_early(drain, now_ms);
    if (drain->stage == BAG_HTTP_DRAIN_REJECTING)
        close_listener(drain, now_ms);
    if (drain->stage != BAG_HTTP_DRAIN_EMPTYING || !is_empty(drain))
        return;
    uv_close((uv_handle_t *)timer, NULL);
    drain->done(drain->context);
}

void bag_http_drain_start(struct bag_http_drain *drain, uint64_t max_wait_ms,
                          void (*done)(void *context), void *context)
{
    drain->stage = BAG_HTTP_DRAIN_FINISHING;
    drain->begun_ms = uv_now(drain->loop);
    drain->max_wait_ms = max_wait_ms;
    drain->done = done;
    drain->context = context;
    uv_timer_init(drain->loop, &drain->timer);
    drain->timer.data = drain;
    uv_timer_start(&drain->timer, on_tick, 0, TICK_MS);
}
