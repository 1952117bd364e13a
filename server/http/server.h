/* libmicrohttpd in external mode, driven by a libuv loop.
 *
 * The daemon has no thread of its own: the loop polls its epoll descriptor and calls MHD_run. With
 * its own epoll thread the library stalls at 128 ready sockets; from outside it does not. All
 * functions and callbacks run on the loop's thread; only inference may be on a worker. */
#ifndef BAG_HTTP_SERVER_H
#define BAG_HTTP_SERVER_H

#include "client.h"
#include "drain.h"
#include "lingering_close.h"
#include "route_cache.h"
#include "routes.h"
#include "server/engine/engine.h"
#include "server/service.h"

#include <uv.h>

struct MHD_Daemon;

struct bag_http_server {
    struct bag_service *service;  /* borrowed */
    uv_loop_t *loop;              /* borrowed */
    bool infers;                  /* or is for admin alone */
    struct bag_listener listener; /* owned; closed by the drain */
    struct MHD_Daemon *daemon;    /* owned */
    uv_poll_t poll;               /* on the daemon's epoll descriptor */
    uv_timer_t timer;             /* the daemon's next time-out */
    uv_idle_t again;              /* runs while the daemon has more to do at once */
    struct bag_clients clients;   /* the open connections */
    struct bag_lingering linger;  /* connections answered before their body was read */
    struct bag_engine engine;     /* expensive work */
    struct bag_infer_limits infer_limits;
    uint64_t inline_cost_ns;       /* work estimated above this goes to the engine */
    struct bag_recorder *recorder; /* the metrics'; NULL: they are off */
    struct bag_buffers buffers;    /* of bodies and replies */
    struct bag_header_cache header_cache;
    struct bag_http_request *spare; /* finished exchanges, for the next requests */
    struct bag_http_route_cache route_cache;
    bag_counter in_flight; /* requests between their first and their last callback */
    struct bag_drain drain;
};

/* Serves on a listening socket, of which it takes a descriptor of its own. One that does not infer
 * rejects that, and answers all else. */
bool bag_http_server_start(struct bag_http_server *server, uv_loop_t *loop,
                           struct bag_service *service, const struct bag_listener *listener,
                           bool infers, struct bag_problem *problem);

/* Lets the daemon do what it can at once; to be called after every resume. */
void bag_http_server_run(struct bag_http_server *server);

/* Ends the library's daemon after a drain, which has closed its socket. The handles close as the
 * loop goes on; `server` must live until then. */
void bag_http_server_stop(struct bag_http_server *server);

/* Frees what the server holds, after its loop has ended. */
void bag_http_server_free(struct bag_http_server *server);

#endif
