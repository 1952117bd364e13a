/* Stopping one server without losing a request; see drain.h. */
#include "drain.h"

#define TICK_MS 20

/* In this time a client whose connection has begun completes it. */
#define HANDSHAKE_MS 100

/* A client that asks one thing after another has asked again by then. */
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
