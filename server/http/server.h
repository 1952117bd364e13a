/* Runs libmicrohttpd (below: the library) on a libuv loop.
 *
 * The library's daemon has no thread of its own: the loop polls its epoll descriptor and calls
 * MHD_run(). With its own epoll thread the library stalls at 128 ready sockets. All functions and
 * callbacks run on the loop's thread. */
#ifndef BAG_HTTP_SERVER_H
#define BAG_HTTP_SERVER_H

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
    uv_poll_t poll;                          /* on the daemon's epoll descriptor */
    uv_timer_t timer;          /* for the daemon's next timeout, and deferred connections */
    uint64_t deferred_tick_ms; /* uv_now() when some of these were last rejected */
    uint64_t defers_from_ms;   /* no connection is deferred before this uv_now() */
    uv_timer_t trim;           /* returns unused memory to the system */
    uv_idle_t again;           /* active while the daemon has more to do at once */
    uv_prepare_t iteration;    /* called at the end of each iteration of the loop */
    bool is_due;               /* the daemon must be called there */
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

#endif
