/* The I/O loops, each with its own HTTP server. The first loop accepts the connections for all of
 * them. */
#pragma once

#include "config/config.h"
#include "server/http/server.h"
#include "server/system/sockets.h"

#include <stdatomic.h>

/* ---- listening sockets ----------------------------------------------------------------------- */

struct bag_listeners {
    struct bag_listener first, admin;
    bool has_admin;
};

/* Opens the listeners. Uses sockets from systemd in place of those that the options name. On
 * failure returns false, sets *problem and closes all of them except for passed ones. Must be
 * called before threads start. */
bool bag_listeners_open(struct bag_listeners *listeners, const struct bag_option_values *options,
                        struct bag_problem *problem);

/* Fills in what opening the listeners of the options would, without opening any. */
void bag_listeners_expect(struct bag_listeners *listeners, const struct bag_option_values *options);

/* Rejects options with which anybody could change tables: there must be a token, or a socket in a
 * folder with limited access. Only the admin listener changes models; polling needs none. Returns
 * false and sets *problem if the options are unsafe. */
bool bag_listeners_check_guard(const struct bag_listeners *listeners, bool has_tokens,
                               const struct bag_option_values *options,
                               struct bag_problem *problem);

/* Writes the server's address for clients, http://HOST:PORT or unix:PATH, to `url` and returns
 * it. */
#define BAG_LISTENER_URL_BYTES 512
const char *bag_listeners_url(const struct bag_listeners *listeners,
                              const struct bag_option_values *options,
                              char url[BAG_LISTENER_URL_BYTES]);

/* Logs the addresses of the listeners. */
void bag_listeners_log(const struct bag_listeners *listeners,
                       const struct bag_option_values *options);

/* Removes the socket files. Called if the process ends without a drain. */
void bag_listeners_abandon(const struct bag_listeners *listeners);

/* ---- loops ----------------------------------------------------------------------------------- */

struct bag_loop {
    struct bag_loops *loops;
    uv_loop_t *loop; /* the caller's loop, or `own` */
    uv_loop_t own;
    uv_thread_t thread;
    uv_async_t order;     /* order to drain */
    uv_async_t published; /* the registry has a new snapshot */
    struct bag_reader reader;
    struct bag_http_server server;
};

struct bag_loops {
    struct bag_service *service;
    struct bag_loop
        *loops;     /* owned; after the serving loops follows the admin server, on the first loop */
    unsigned count; /* number of serving loops */
    bool has_admin;
    struct bag_http_acceptor acceptor, admin_acceptor; /* both on the first loop */
    atomic_uint left;                                  /* number of loops that have not ended */
    uv_async_t ended; /* on the first loop; signalled when a loop has ended */
    void (*on_ended)(void *context);
    void *context;
};

/* Returns the number of loops for a machine with this many processors. One loop handles about
 * 100,000 small requests per second, which takes several clients' processors, and eight processors
 * pool what one loop can read. */
unsigned bag_loops_default(unsigned processors);

/* Returns the limits of connections for all loops together: `wanted` connections, and a surplus
 * that is answered with 503. Reduces them if less than a quarter of the descriptors would remain
 * for other purposes. */
struct bag_http_limits bag_loops_limit_connections(size_t wanted, size_t descriptors);

/* Starts the loops, and an admin server on the first one if there is an admin listener. `on_ended`
 * is called on the first loop when all have drained. Returns false and sets *problem if that
 * fails. */
bool bag_loops_start(struct bag_loops *loops, uv_loop_t *first, struct bag_service *service,
                     struct bag_listeners *listeners, struct bag_problem *problem);

/* Drains all loops (see http/accept.h), and then the admin server. Closes the listeners. Called on
 * the first loop's thread. */
void bag_loops_drain(struct bag_loops *loops);

/* Returns the number of requests in progress on all loops. */
size_t bag_loops_in_flight(const struct bag_loops *loops);

/* Frees the loops. The first loop must have ended and must not be closed yet. */
void bag_loops_free(struct bag_loops *loops);

/* Raises the limit of descriptors to what the system allows. Every connection needs one, and the
 * usual limit of 1024 is for programs that use select(). */
void bag_loops_raise_descriptors(void);

/* Checks that the loops can have the descriptors that they need, because libuv aborts otherwise.
 * Returns false and sets *problem if they cannot. */
bool bag_loops_check_descriptors(size_t loops, struct bag_problem *problem);
