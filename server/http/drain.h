/* Stopping one server without losing a request.
 *
 * First, running requests are finished, while new connections are accepted: they are answered that
 * the server is not ready. Then no connection begins any more, and those that have begun are
 * accepted; then the listening socket is closed. Every answer meanwhile ends its connection; one on
 * which nothing is asked is closed after a moment. Nobody can know that a client is not about to
 * ask on an idle connection: HTTP/1.1 leaves it to clients to ask again on another.
 *
 * Runs on the server's loop. */
#ifndef BAG_HTTP_DRAIN_H
#define BAG_HTTP_DRAIN_H

#include "connection.h"
#include "server/system/sockets.h"
#include "server/metrics/metrics.h"

enum bag_http_drain_stage {
    BAG_HTTP_DRAIN_NONE,
    BAG_HTTP_DRAIN_FINISHING, /* what was asked before it began */
    BAG_HTTP_DRAIN_REJECTING, /* accepting what has begun */
    BAG_HTTP_DRAIN_EMPTYING,  /* answering on the connections that are left */
};

/* A member of the server. */
struct bag_http_drain {
    /* What is drained: set by the server, borrowed. */
    uv_loop_t *loop;
    struct bag_http_connections *connections;
    struct bag_listener *listener;
    void (*stop_accepting)(void *server); /* before the listener is closed */
    void *server;

    enum bag_http_drain_stage stage;
    bag_counter in_flight; /* requests between their head and their end */
    size_t late;           /* of these, requests that came after it began */
    uint64_t begun_ms;     /* on uv_now's clock */
    uint64_t rejecting_ms; /* when the stage REJECTING began */
    uint64_t max_wait_ms;
    uv_timer_t timer;
    void (*done)(void *context);
    void *context;
};

/* Begins to drain; `done` is called when no connection is left, from a timer. New connections are
 * taken for no longer than max_wait_ms. */
void bag_http_drain_start(struct bag_http_drain *drain, uint64_t max_wait_ms,
                          void (*done)(void *context), void *context);

/* A request has begun; the result, whether that was while the server drains, is for its end. */
bool bag_http_drain_on_begin(struct bag_http_drain *drain);
void bag_http_drain_on_end(struct bag_http_drain *drain, bool late);

#endif
