/* The I/O loops, each with a server of its own; the first accepts for all of them. */
#ifndef BAG_LOOPS_H
#define BAG_LOOPS_H

#include "config/config.h"
#include "server/http/server.h"
#include "server/system/sockets.h"

#include <stdatomic.h>

/* ---- listening sockets ----------------------------------------------------------------------- */

struct bag_listeners {
    struct bag_listener first, admin;
    bool has_admin;
};

/* Opens them; what systemd passes is taken in their place. Nothing is left open on failure, but for
 * what was passed. To be called before there are threads. */
bool bag_listeners_open(struct bag_listeners *listeners, const struct bag_option_values *options,
                        struct bag_problem *problem);

/* Says what opening them would, for those that the options name, without opening any. */
void bag_listeners_expect(struct bag_listeners *listeners, const struct bag_option_values *options);

/* Rejects options by which anybody could change tables, without a token or access to a socket in a
 * folder. Models are changed on the admin listener alone: polling goes without one. */
bool bag_listeners_check_guard(const struct bag_listeners *listeners, bool has_tokens,
                               const struct bag_option_values *options,
                               struct bag_problem *problem);

/* Where clients ask: http://HOST:PORT, or unix:PATH; `url` has room for it, and is returned. */
#define BAG_LISTENER_URL_BYTES 512
const char *bag_listeners_url(const struct bag_listeners *listeners,
                              const struct bag_option_values *options,
                              char url[BAG_LISTENER_URL_BYTES]);

/* Logs where clients find the server. */
void bag_listeners_log(const struct bag_listeners *listeners,
                       const struct bag_option_values *options);

/* Removes what would be left behind where the process ends without a drain. */
void bag_listeners_abandon(const struct bag_listeners *listeners);

/* ---- loops ----------------------------------------------------------------------------------- */

struct bag_loop {
    struct bag_loops *loops;
    uv_loop_t *loop; /* the caller's, or `own` */
    uv_loop_t own;
    uv_thread_t thread;
    uv_async_t order;     /* to drain */
    uv_async_t published; /* the registry has another snapshot */
    struct bag_reader reader;
    struct bag_http_server server;
};

struct bag_loops {
    struct bag_service *service;
    struct bag_loop *loops; /* owned; behind them the one for admin, which is the first's */
    unsigned count;         /* of loops that serve */
    bool has_admin;
    struct bag_http_acceptor acceptor, admin_acceptor; /* on the first loop */
    atomic_uint left;                                  /* that have not ended */
    uv_async_t ended;                                  /* on the first loop: one of them has */
    void (*on_ended)(void *context);
    void *context;
};

/* How many loops a machine of so many processors should have: one holds about 100,000 small
 * requests a second, which a few processors ask for, and eight of them pool what one can read. */
unsigned bag_loops_default(unsigned processors);

/* What the loops let in together: as many connections as are wanted, and some that are answered
 * 503, or fewer where a quarter of the descriptors would not be left for other things. */
struct bag_http_acceptor_limits bag_loops_limit_connections(size_t wanted, size_t descriptors);

/* As many loops as the options say, and a server for admin on the first where there is a listener
 * for it. `on_ended` is called on the first loop when all have drained. */
bool bag_loops_start(struct bag_loops *loops, uv_loop_t *first, struct bag_service *service,
                     struct bag_listeners *listeners, struct bag_problem *problem);

/* Lets all of them finish what runs, see http/accept.h, and then the one for admin; closes the
 * listeners. On the first loop's thread. */
void bag_loops_drain(struct bag_loops *loops);

/* Requests that all of them are at. */
size_t bag_loops_in_flight(const struct bag_loops *loops);

/* Frees them, when the first loop has run to its end and is not closed yet. */
void bag_loops_free(struct bag_loops *loops);

/* Every connection is a descriptor, and the usual limit of 1024 is meant for programs that use
 * select(): it becomes what the system allows. */
void bag_loops_raise_descriptors(void);

/* Whether so many loops can have the descriptors that they need: libuv calls abort() where one
 * cannot. */
bool bag_loops_check_descriptors(size_t loops, struct bag_problem *problem);

#endif
