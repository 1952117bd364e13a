/* libmicrohttpd in external mode, driven by a libuv loop.
 *
 * The daemon has no thread of its own: the loop polls its epoll descriptor and calls MHD_run. With
 * its own epoll thread the library stalls at 128 ready sockets; from outside it does not. All
 * functions and callbacks run on the loop's thread; only inference may be on a worker. */
#ifndef BAG_HTTP_SERVER_H
#define BAG_HTTP_SERVER_H

#include "mhd.h"

struct bag_http_server {
    uv_loop_t *loop;                         /* borrowed */
    struct bag_http_context context;         /* what requests share */
    struct bag_http_connections connections; /* the open ones */
    struct bag_http_acceptor acceptor;
    struct bag_http_drain drain;
    struct bag_http_mhd mhd;      /* the library's callbacks' */
    struct bag_listener listener; /* owned; closed by the drain */
    struct MHD_Daemon *daemon;    /* owned */
    uv_poll_t poll;               /* on the daemon's epoll descriptor */
    uv_timer_t timer;             /* the daemon's next time-out */
    uv_timer_t trim;              /* of kept memory */
    uv_idle_t again;              /* runs while the daemon has more to do at once */
};

/* Serves on a listening socket, of which it takes a descriptor of its own, what `reader`, which is
 * open and the loop's, reads. One that does not infer
 * rejects that, and answers all else. */
bool bag_http_server_start(struct bag_http_server *server, uv_loop_t *loop,
                           struct bag_service *service, struct bag_reader *reader,
                           const struct bag_listener *listener, bool infers,
                           struct bag_problem *problem);

/* Lets the daemon do what it can at once; to be called after every resume. */
void bag_http_server_run(struct bag_http_server *server);

/* Ends the library's daemon after a drain, which has closed its socket. The handles close as the
 * loop goes on; `server` must live until then. */
void bag_http_server_stop(struct bag_http_server *server);

/* Frees what the server holds, after its loop has ended. */
void bag_http_server_free(struct bag_http_server *server);

#endif
