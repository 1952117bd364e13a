/* Stopping one server without losing a request.
 *
 * First what runs is finished, while new connections are taken: they hear that the server is not
 * ready. Then no connection begins any more, and those that have begun are accepted; then the
 * listening socket is closed. Every answer meanwhile ends its connection; one on which nothing is
 * asked is closed after a moment. Nobody can know that a client is not about to ask on an idle
 * connection: HTTP/1.1 leaves it to clients to ask again on another.
 *
 * Runs on the server's loop. */
#ifndef BAG_HTTP_DRAIN_H
#define BAG_HTTP_DRAIN_H

#include "listen.h"

#include <stddef.h>
#include <uv.h>

struct bag_http_server;

enum bag_drain_stage {
    BAG_DRAIN_NONE,
    BAG_DRAIN_FINISHING, /* what was asked before it began */
    BAG_DRAIN_REFUSING,  /* accepting what has begun */
    BAG_DRAIN_EMPTYING,  /* answering on the connections that are left */
};

/* All zero: none. A member of the server. */
struct bag_drain {
    enum bag_drain_stage stage;
    size_t late;         /* requests in flight that came after it began */
    uint64_t begun_ms;   /* on uv_now's clock */
    uint64_t rejectd_ms; /* when the stage REFUSING began */
    uint64_t patience_ms;
    uv_timer_t timer;
    void (*done)(void *context);
    void *context;
};

/* Begins to drain; `done` is called when no connection is left, from a timer. New connections are
 * taken for no longer than patience_ms. */
void bag_drain_start(struct bag_http_server *server, uint64_t patience_ms,
                     void (*done)(void *context), void *context);

/* A request has begun; the result, whether that was while the server drains, is for its end. */
bool bag_drain_on_begin(struct bag_http_server *server);
void bag_drain_on_end(struct bag_http_server *server, bool late);

#endif
