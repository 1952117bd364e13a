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
 *   bag_http_connections   one for each loop of a listener: stages, deadlines (connection.h)
 *   bag_http_server        one for each loop of a listener: calls the library (this file)
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
 * 3. The library reads the request line (bag_http_mhd_on_target) and the head
 *    (bag_http_mhd_on_access). head.c checks the lines, and the request finds its route, checks the
 *    token and asks the route whether it accepts the head.
 * 4. The library passes the body piece by piece. After the last piece the handler is called. It
 *    fills the reply at once, or suspends the connection while another thread or a shard
 *    works on it.
 * 5. mhd.c gives the reply to the library. In the middle of a body the library accepts no reply, so
 *    it is written directly to the socket. If a part of the body was not read, the connection
 *    lingers when it is closed (connection.h), so that the client can read the reply.
 * 6. bag_http_mhd_on_completed() ends the request, which is kept for reuse. The connection is idle
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
 * would restart them.
 *
 * All functions and callbacks run on the loop's thread. */
#pragma once

#include "accept.h"
#include "connection.h"
#include "request.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <sys/types.h>

/* ---- the library's callbacks (mhd.c) --------------------------------------------------------- */

/* The callbacks pass the events of the library to connections and requests, and return their
 * decisions to the library. Their context is the server. */

/* MHD_NotifyConnectionCallback: the library has taken a connection, or is about to close it. */
void bag_http_mhd_on_connection(void *server, struct MHD_Connection *handle, void **connection,
                                enum MHD_ConnectionNotificationCode what);

/* MHD_OPTION_URI_LOG_CALLBACK: a request line is complete. Returns the connection, which is the
 * state of all further callbacks of the request, or NULL if there is no memory. */
void *bag_http_mhd_on_target(void *server, const char *target, struct MHD_Connection *handle);

/* MHD_AccessHandlerCallback: called for the head, then for pieces of the body, then for its end. */
enum MHD_Result bag_http_mhd_on_access(void *server, struct MHD_Connection *handle, const char *url,
                                       const char *method, const char *version, const char *data,
                                       size_t *data_bytes, void **connection);

/* MHD_LogCallback: the library reports what it rejects itself. */
__attribute__((format(printf, 2, 0))) void bag_http_mhd_on_log(void *server, const char *format,
                                                               va_list arguments);

/* connections.on_late: sends an error to a client whose request takes too long. */
void bag_http_mhd_on_late(void *server, struct bag_http_connection *connection);

/* MHD_RequestCompletedCallback: the reply was sent, or the client has disconnected. */
void bag_http_mhd_on_completed(void *server, struct MHD_Connection *handle, void **connection,
                               enum MHD_RequestTerminationCode why);

/* ---- the server ------------------------------------------------------------------------------ */

struct bag_http_server {
    uv_loop_t *loop;                         /* borrowed */
    struct bag_http_context context;         /* shared by requests */
    struct bag_http_connections connections; /* the open ones */
    bool checks_host;                        /* the listener is on a loopback address */
    struct MHD_Daemon *daemon;               /* owned */
    unsigned num_rejected;                   /* with 503, in this iteration of the loop */
    uint64_t storm_ends_ms;    /* until this uv_now() connections are paused; see mhd.c */
    uv_poll_t poll;            /* on the daemon's epoll descriptor */
    uv_timer_t timer;          /* for the daemon's next timeout; deferred and paused ones */
    uint64_t deferred_tick_ms; /* uv_now() when some of these were last rejected */
    uint64_t defers_from_ms;   /* no connection is deferred before this uv_now() */
    uv_timer_t trim;           /* returns unused memory to the system */
    uv_idle_t again;           /* active while the daemon has more to do at once */
    uv_prepare_t iteration;    /* called at the end of each iteration of the loop */
    bool is_due;               /* the daemon must be called at the end of this iteration */
};

/* Lets the library send the replies of the connections that have been paused for long enough, and
 * counts the rejections of a new iteration from 0. Called once in each iteration of the loop,
 * before the library. */
void bag_http_mhd_resume_paused(struct bag_http_server *server);

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
