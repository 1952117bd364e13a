/* libmicrohttpd in external mode, driven by a libuv loop.
 *
 * The daemon has no thread of its own: the loop polls its epoll descriptor and calls MHD_run. With
 * its own epoll thread the library stalls at 128 ready sockets; from outside it does not. All
 * functions and callbacks run on the loop's thread; only inference may be on a worker. */
#ifndef BAG_HTTP_SERVER_H
#define BAG_HTTP_SERVER_H

#include "accept.h"
#include "connection.h"
#include "request.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <sys/types.h>

/* ---- the library's callbacks (mhd.c) --------------------------------------------------------- */

/* What it hands out goes to requests and connections, and what they decide goes back to it. Their
 * context is the server. */

/* MHD_NotifyConnectionCallback: a connection has begun, or ends. */
void bag_http_mhd_on_connection(void *server, struct MHD_Connection *handle, void **connection,
                                enum MHD_ConnectionNotificationCode what);

/* MHD_OPTION_URI_LOG_CALLBACK: the first line of a request is here. Returns the connection (NULL
 * without memory), which is the state of all further callbacks of the request. */
void *bag_http_mhd_on_target(void *server, const char *target, struct MHD_Connection *handle);

/* MHD_AccessHandlerCallback: the head is here, then pieces of the body, then its end. */
enum MHD_Result bag_http_mhd_on_access(void *server, struct MHD_Connection *handle, const char *url,
                                       const char *method, const char *version, const char *data,
                                       size_t *data_bytes, void **connection);

/* MHD_LogCallback: the library says what it rejects itself. */
__attribute__((format(printf, 2, 0))) void bag_http_mhd_on_log(void *server, const char *format,
                                                               va_list arguments);

/* connections.on_late: tells a client that its request takes too long. */
void bag_http_mhd_on_late(void *server, struct bag_http_connection *connection);

/* MHD_RequestCompletedCallback: the reply has left, or the client has. */
void bag_http_mhd_on_completed(void *server, struct MHD_Connection *handle, void **connection,
                               enum MHD_RequestTerminationCode why);

/* ---- the server ------------------------------------------------------------------------------ */

struct bag_http_server {
    uv_loop_t *loop;                         /* borrowed */
    struct bag_http_context context;         /* what requests share */
    struct bag_http_connections connections; /* the open ones */
    bool checks_host;                        /* its listener is on a loopback address */
    struct MHD_Daemon *daemon;               /* owned */
    uv_poll_t poll;                          /* on the daemon's epoll descriptor */
    uv_timer_t timer;                        /* the daemon's next time-out, and held connections */
    uint64_t refused_ms;                     /* when some of these were given to the daemon */
    uint64_t holds_from_ms;                  /* before, none is held */
    uv_timer_t trim;                         /* of kept memory */
    uv_idle_t again;                         /* runs while the daemon has more to do at once */
    uv_prepare_t turn;                       /* the end of each turn of the loop */
    bool is_due;                             /* the daemon is called there */
};

/* Serves the connections that the acceptor hands over; `reader` is open and the loop's. One that
 * does not infer rejects that, and answers all else. */
bool bag_http_server_start(struct bag_http_server *server, uv_loop_t *loop,
                           struct bag_service *service, struct bag_reader *reader,
                           struct bag_http_acceptor *acceptor, bool infers,
                           struct bag_problem *problem);

/* Ends the library's daemon after a drain. The handles close as the
 * loop goes on; `server` must live until then. */
void bag_http_server_stop(struct bag_http_server *server);

/* Frees what the server holds, after its loop has ended. */
void bag_http_server_free(struct bag_http_server *server);

#endif
