/* Ending connections so that no reply is lost: one by a lingering close, all by a drain; see
 * connection.h. */
#include "connection.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- lingering close ------------------------------------------------------------------------- */

/* A client that has not read the answer by then never will. */
#define LINGER_MS 2000

/* Each takes a descriptor. More at once are likely to be an attack, and are reset. */
#define MAX_LINGERING 64

struct bag_http_lingering {
    struct bag_http_connections *connections;
    struct bag_http_lingering *next;
    int fd; /* owned; a duplicate */
    uv_poll_t poll;
    uv_timer_t timer;
    unsigned open_handles;
};

static void on_close(uv_handle_t *handle)
{
    struct bag_http_lingering *lingering = handle->data;
    if (--lingering->open_handles == 0) {
        close(lingering->fd);
        free(lingering);
    }
}

static void end_lingering(struct bag_http_lingering *lingering)
{
    struct bag_http_connections *connections = lingering->connections;
    struct bag_http_lingering **link = &connections->first_lingering;
    while (*link != lingering)
        link = &(*link)->next;
    *link = lingering->next;
    connections->lingering--;
    uv_close((uv_handle_t *)&lingering->poll, on_close);
    uv_close((uv_handle_t *)&lingering->timer, on_close);
}

static void on_linger_timer(uv_timer_t *timer)
{
    end_lingering(timer->data);
}

/* One read at a time, so that a fast sender does not keep the loop. */
static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct bag_http_lingering *lingering = poll->data;
    char dropped[65536];
    (void)events;
    ssize_t count = status < 0 ? 0 : recv(lingering->fd, dropped, sizeof dropped, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
        end_lingering(lingering);
}

/* False, with nothing kept, where the loop cannot wait for the socket. */
static bool start_lingering(struct bag_http_connections *connections,
                            struct bag_http_lingering *lingering)
{
    uv_loop_t *loop = connections->timer.loop;
    if (uv_poll_init(loop, &lingering->poll, lingering->fd) != 0)
        return false;
    lingering->connections = connections;
    lingering->next = connections->first_lingering;
    connections->first_lingering = lingering;
    connections->lingering++;
    lingering->open_handles = 2;
    lingering->poll.data = lingering->timer.data = lingering;
    uv_timer_init(loop, &lingering->timer);
    uv_timer_start(&lingering->timer, on_linger_timer, LINGER_MS, 0);
    if (!bag_poll_start(&lingering->poll, on_readable))
        end_lingering(lingering);
    return true;
}

void bag_http_connection_linger(struct bag_http_connections *connections, int fd)
{
    struct bag_http_lingering *lingering;
    if (connections->lingering == MAX_LINGERING || !(lingering = calloc(1, sizeof *lingering)))
        return;
    lingering->fd = dup(fd);
    if (lingering->fd >= 0 && start_lingering(connections, lingering))
        return;
    if (lingering->fd >= 0)
        close(lingering->fd);
    free(lingering);
}

void bag_http_lingering_stop(struct bag_http_connections *connections)
{
    while (connections->first_lingering)
        end_lingering(connections->first_lingering);
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
    return drain->connections->count == 0 && drain->connections->lingering == 0;
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
