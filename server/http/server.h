/* The HTTP server of one loop and listener. This is the main header of server/http/, the room
 * between sockets and requests.
 *
 * libmicrohttpd (below: the library) parses HTTP and libuv waits for sockets. The room connects
 * both and adds what neither has: limits for each client, deadlines for whole requests, a drain
 * that loses no reply, access tokens and routes. One place counts and sends every reply.
 *
 * The main objects, from the socket upwards:
 *
 *   bag_http_acceptor      one for each listener, on the first loop: accepts (accept.h)
 *   bag_http_clients       one for each listener: clients and their shares (clients.h)
 *   bag_http_connections   one for each loop of a listener: stages, deadlines (connection.h)
 *   bag_http_overload      one for each loop of a listener: admits, defers, evicts (overload.h)
 *   bag_http_server        one for each loop of a listener: has the library called (this file)
 *   bag_http_request       one request, a state machine without sockets (request.h)
 *   bag_http_target        the route and the model of a request (target.h)
 *   bag_http_route         a method and path with its functions (routes.h)
 *   bag_http_reply         a reply as a plain value (message.h)
 *   bag_service            what all loops share: configuration, models, budget (service.h)
 *
 * The life of a connection with one request:
 *
 * 1. The acceptor accepts the socket, counts it for its client, and pushes it to the loop with the
 *    fewest connections. A connection of a trusted proxy waits there for its PROXY header, and is
 *    counted for the client that the header names.
 * 2. At the end of the loop's iteration, run_iteration() passes it to the library. If the engine is
 *    full and a large request has arrived, the connection is deferred for a moment instead.
 * 3. The library reads the request line and the head, and reports both (on_target() and on_access()
 *    in mhd.c). head.c checks the lines, and the request finds its route, checks the token and asks
 *    the route whether it accepts the head.
 * 4. The library passes the body piece by piece. After the last piece the handler is called. It
 *    fills the reply at once, or is late: the connection is suspended while another thread or a
 *    shard works on it.
 * 5. mhd.c gives the reply to the library. In the middle of a body the library accepts no reply, so
 *    it is written directly to the socket. If a part of the body was not read, the connection
 *    lingers when it is closed (connection.h), so that the client can read the reply.
 * 6. on_completed() ends the request, which is kept for reuse. The connection is idle
 *    until the next request, its deadline or its eviction.
 *
 * Threads: everything about a connection runs on the thread of its loop. Workers, the update
 * thread and the reconciler get a suspended request, fill its reply and hand it back
 * (bag_http_request_complete).
 *
 * The library has no thread of its own: the loop polls its epoll descriptor and calls MHD_run().
 * With its own epoll thread it stalls at 128 ready sockets. It is called once at the end of an
 * iteration, for all reasons together, and gets a limited time, so that signals and finished work
 * are not delayed. Its timeouts are used only for Unix-domain sockets, because each received byte
 * would restart them. The list of what it gets wrong is in mhd.c.
 *
 * All functions and callbacks run on the loop's thread. */
#pragma once

#include "accept.h"
#include "overload.h"
#include "request.h"

struct bag_http_server {
    uv_loop_t *loop;                         /* borrowed */
    struct bag_http_context context;         /* shared by requests */
    struct bag_http_connections connections; /* the open ones */
    struct bag_http_overload overload;       /* decides about them if there are too many */
    struct bag_http_peer own;                /* the listener's address, with its text */
    bool checks_host;                        /* the listener has a loopback address */
    struct MHD_Daemon *daemon;               /* owned */
    uv_poll_t poll;                          /* on the daemon's epoll descriptor */
    uv_timer_t timer;       /* for the daemon's next timeout; deferred and paused ones */
    uv_timer_t trim;        /* returns unused memory to the system */
    uv_idle_t again;        /* active while the daemon has more to do at once */
    uv_prepare_t iteration; /* called at the end of each iteration of the loop */
    bool is_due;            /* the daemon must be called at the end of this iteration */
};

/* Starts to serve the connections that the acceptor passes to the loop. `reader` is open and
 * belongs to the loop. A server that does not infer rejects inference, and answers all other
 * requests. Returns false and sets *problem if it cannot start. */
bool bag_http_server_start(struct bag_http_server *server, uv_loop_t *loop,
                           struct bag_service *service, struct bag_reader *reader,
                           struct bag_http_acceptor *acceptor, bool infers,
                           struct bag_problem *problem);

/* Stops the library's daemon after a drain. The libuv handles close in the next iteration of the
 * loop, and `server` must exist until then. */
void bag_http_server_stop(struct bag_http_server *server);

/* Frees the memory of the server. Its loop must have ended. */
void bag_http_server_free(struct bag_http_server *server);
