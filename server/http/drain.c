/* Stopping one server without losing a request; see drain.h. */
#include "drain.h"

#include "server.h"

#define TICK_MS 20

/* In this time a client whose connection has begun completes it. */
#define HANDSHAKE_MS 100

/* A client that asks one thing after another has asked again by then. */
#define IDLE_MS 200

bool bag_drain_on_begin(struct bag_http_server *server)
{
    bool late = server->drain.stage != BAG_DRAIN_NONE;
    bag_counter_add(&server->in_flight, 1);
    server->drain.late += late;
    return late;
}

void bag_drain_on_end(struct bag_http_server *server, bool late)
{
    bag_counter_add(&server->in_flight, UINT64_MAX);
    server->drain.late -= late;
}

static void finish_early(struct bag_http_server *server, uint64_t now_ms)
{
    struct bag_drain *drain = &server->drain;
    if (bag_counter_get(&server->in_flight) > drain->late &&
        now_ms - drain->begun_ms < drain->patience_ms)
        return;
    bag_listener_reject(&server->listener);
    drain->rejectd_ms = now_ms;
    drain->stage = BAG_DRAIN_REFUSING;
}

static void close_listener(struct bag_http_server *server, uint64_t now_ms)
{
    struct bag_drain *drain = &server->drain;
    if (now_ms - drain->rejectd_ms < HANDSHAKE_MS || bag_listener_has_waiting(&server->listener))
        return;
    MHD_quiesce_daemon(server->daemon);
    bag_listener_close(&server->listener);
    drain->stage = BAG_DRAIN_EMPTYING;
}

static bool is_empty(struct bag_http_server *server)
{
    bag_clients_close_idle(&server->clients, server->drain.begun_ms, IDLE_MS);
    return server->clients.count == 0 && server->linger.count == 0;
}

static void on_tick(uv_timer_t *timer)
{
    struct bag_http_server *server = timer->data;
    struct bag_drain *drain = &server->drain;
    uint64_t now_ms = uv_now(timer->loop);
    if (drain->stage == BAG_DRAIN_FINISHING)
        finish_early(server, now_ms);
    if (drain->stage == BAG_DRAIN_REFUSING)
        close_listener(server, now_ms);
    if (drain->stage != BAG_DRAIN_EMPTYING || !is_empty(server))
        return;
    uv_close((uv_handle_t *)timer, NULL);
    drain->done(drain->context);
}

void bag_drain_start(struct bag_http_server *server, uint64_t patience_ms,
                     void (*done)(void *context), void *context)
{
    server->drain = (struct bag_drain){.stage = BAG_DRAIN_FINISHING,
                                       .begun_ms = uv_now(server->loop),
                                       .patience_ms = patience_ms,
                                       .done = done,
                                       .context = context};
    uv_timer_init(server->loop, &server->drain.timer);
    server->drain.timer.data = server;
    uv_timer_start(&server->drain.timer, on_tick, 0, TICK_MS);
}
