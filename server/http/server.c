/* libmicrohttpd on a libuv loop; see server.h. */
#include "server.h"

#include "routes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/* The memory of a connection. A request head must fit, and a body is read in pieces of half of it.
 * The library clears all of it after every request, which takes a tenth of the time of a small
 * request at 32 KiB. Below 16 KiB small requests gain nothing and large bodies take twice as long.
 */
#define CONNECTION_BYTES (16 << 10)

/* The library gets at most this much of one iteration of the loop. */
#define MAX_ROUNDS    16
#define MAX_ROUNDS_NS 200000

/* The strictest mode of the library. Before 1.0 the strict mode adds two checks, and one of them is
 * answered twice on one connection, so it is off. */
#if MHD_VERSION >= 0x01000000
#define STRICTEST MHD_OPTION_CLIENT_DISCIPLINE_LVL, 3
#else
#define STRICTEST MHD_OPTION_STRICT_FOR_CLIENT, 0
#endif

/* The maximum time of a request head, and of a request line once its first byte has arrived. A head
 * is short, and meanwhile it uses one of the connections that all clients share. */
#define MAX_HEAD_MS 10000

/* Rejecting a large body takes the kernel half as long as pooling it, so clients that retry at once
 * would leave no time for admitted requests. While the engine is full, a new connection on which
 * more than a small request has arrived is therefore deferred: the library does not read it yet.
 * When the engine has capacity, the newest deferred connection is admitted, because its client has
 * waited the least. The others are passed to the library a few per tick, or after MAX_DEFERRED_MS,
 * and are usually rejected. If too many are deferred, no more are for PAUSE_MS. With 1,000 clients
 * in a closed loop on one processor, 0.2 to 0.5 of the peak are answered in time, and none without
 * this (tests/bench/overload). */
#define DEFERRED_BYTES    (12 << 10)
#define DEFERRED_TICK_MS  5
#define REJECTED_PER_TICK 20
#define MAX_DEFERRED_MS   250
#define DEFERRED_PARTS    2 /* 1 / this of all connections, and of one client's, may be deferred */
#define PAUSE_MS          5000

/* The interval in which memory that was not needed is returned to the system. */
#define TRIM_MS 1000

/* The minimum size of a reply that is compressed. */
#define MIN_PACKED_BYTES (16 << 10)

/* Leaves paths as they were sent. Routes decode one segment at a time, so that an encoded slash is
 * part of a name. */
static size_t keep_escapes(void *context, struct MHD_Connection *connection, char *text)
{
    (void)context, (void)connection;
    return strlen(text);
}

/* Has the library called at the end of this iteration, once for all reasons: ready sockets, a
 * timeout, resumed requests. */
static void call_library(struct bag_http_server *server)
{
    server->is_due = true;
}

static void on_timer(uv_timer_t *timer)
{
    call_library(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    call_library(poll->data);
}

static void on_again(uv_idle_t *again)
{
    call_library(again->data);
}

static void on_resumed(void *context)
{
    call_library(context);
}

/* Frees a part of the memory that is to be returned to the system. Returns true if there is more.
 */
static bool free_some(struct bag_http_context *context)
{
    bool more = bag_buffers_free_some(&context->buffers);
    return bag_buffers_free_some(&context->engine.buffers) || more;
}

/* Reports the gauges of this loop to its recorder. */
static void report_levels(const struct bag_http_server *server)
{
    if (!server->context.recorder)
        return;
    struct bag_metrics_levels levels = {
        .in_flight = bag_counter_get(&server->connections.in_flight),
        .connections = atomic_load(&server->connections.count),
        .refused_connections = atomic_load(&server->connections.refused),
        .queued = server->context.engine.queue.load.waiting,
        .queued_bytes = server->context.engine.queue.bytes,
    };
    bag_metrics_on_levels(server->context.recorder, &levels);
}

/* Runs some rounds of the library. In each it reads at most half of CONNECTION_BYTES of a body.
 * Returns true if it must be called again without an event, in *timeout_ms. */
static bool run_library(struct bag_http_server *server, MHD_UNSIGNED_LONG_LONG *timeout_ms)
{
    uint64_t started_ns = uv_hrtime(), round_ns = started_ns;
    bool timed;
    unsigned round = 0;
    do {
        server->context.engine.polled_ns = round_ns;
        MHD_run(server->daemon);
        timed = MHD_get_timeout(server->daemon, timeout_ms) == MHD_YES;
    } while (timed && *timeout_ms == 0 && ++round < MAX_ROUNDS &&
             (round_ns = uv_hrtime()) - started_ns < MAX_ROUNDS_NS);
    server->connections.busy_ns = uv_hrtime() - started_ns;
    return timed;
}

/* Returns true if the request on a connection would be rejected if it were read now. */
static bool would_be_rejected(const struct bag_http_server *server,
                              const struct bag_http_connection *connection)
{
    const struct bag_http_connections *connections = &server->connections;
    struct bag_engine *engine = connections->engine;
    int waiting = 0;
    return connection->counts && !connections->on_drained &&
           (connections->lists[BAG_HTTP_CONNECTION_DEFERRED].count > 0 ||
            bag_engine_is_full(engine)) &&
           ioctl(connection->fd, FIONREAD, &waiting) == 0 && waiting >= DEFERRED_BYTES &&
           !bag_engine_is_below_share(engine, bag_http_peer_client(&connection->peer));
}

/* Defers a connection if its request would be rejected. Each loop may defer an equal part. Returns
 * false if the connection must be passed to the library. */
static bool defer(struct bag_http_server *server, struct bag_http_connection *connection)
{
    struct bag_http_connections *connections = &server->connections;
    const struct bag_http_acceptor *acceptor = connections->acceptor;
    const size_t max_count = acceptor->limits.connections / DEFERRED_PARTS / acceptor->num_loops;
    const uint64_t now_ms = uv_now(server->loop);
    if (!would_be_rejected(server, connection))
        return false;
    if (connections->lists[BAG_HTTP_CONNECTION_DEFERRED].count >= max_count ||
        (connection->client &&
         connection->client->connections >= acceptor->limits.per_client / DEFERRED_PARTS))
        server->defers_from_ms = now_ms + PAUSE_MS;
    if (now_ms < server->defers_from_ms)
        return false;
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_DEFERRED);
    return true;
}

/* Passes a connection to the library. If the library cannot take the socket, it closes it, and
 * remove_untaken() removes the connection. Version 1.0 reports a new connection in its next round.
 * For a Unix-domain socket no address makes the library leave out two failing setsockopt() calls a
 * reply (deploy/upstream.md). */
static void pass_to_library(struct bag_http_server *server, struct bag_http_connection *connection)
{
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof from;
    getpeername(connection->fd, (struct sockaddr *)&from, &bytes);
    MHD_add_connection(server->daemon, connection->fd, (struct sockaddr *)&from, bytes);
}

/* Passes a deferred connection to the library. */
static void admit(struct bag_http_server *server, struct bag_http_connection *connection)
{
    bag_http_connection_enter(&server->connections, connection, BAG_HTTP_CONNECTION_ADMITTED);
    pass_to_library(server, connection);
}

/* Admits the newest deferred connection if the engine has capacity, and the oldest ones if it is
 * time. */
static void admit_deferred(struct bag_http_server *server)
{
    const struct bag_http_connection_list *deferred =
        &server->connections.lists[BAG_HTTP_CONNECTION_DEFERRED];
    const uint64_t now_ms = uv_now(server->loop);
    const bool is_tick = now_ms >= server->deferred_tick_ms + DEFERRED_TICK_MS;
    if (is_tick)
        server->deferred_tick_ms = now_ms;
    if (deferred->count && !bag_engine_is_full(&server->context.engine))
        admit(server, TAILQ_LAST(&deferred->queue, bag_http_connection_queue));
    for (unsigned left = REJECTED_PER_TICK; deferred->count && left > 0; left--) {
        struct bag_http_connection *oldest = TAILQ_FIRST(&deferred->queue);
        if (!is_tick && now_ms < oldest->since_ms + MAX_DEFERRED_MS)
            break;
        admit(server, oldest);
    }
}

/* Passes new connections to the library, or defers them. */
static void pass_new_connections(struct bag_http_server *server)
{
    const struct bag_http_connection_list *admitted =
        &server->connections.lists[BAG_HTTP_CONNECTION_ADMITTED];
    struct bag_http_connection *next;
    bag_http_new_connections_take(&server->connections);
    for (struct bag_http_connection *one = TAILQ_FIRST(&admitted->queue); one; one = next) {
        next = TAILQ_NEXT(one, link);
        if (!defer(server, one))
            pass_to_library(server, one);
    }
    admit_deferred(server);
}

/* Removes the connections that the library has not taken. */
static void remove_untaken(struct bag_http_connections *connections)
{
    struct bag_http_connection_list *admitted = &connections->lists[BAG_HTTP_CONNECTION_ADMITTED];
    while (admitted->count)
        bag_http_connection_remove(connections, TAILQ_FIRST(&admitted->queue));
}

/* If the library has more to do, or there is memory to free, the next iteration starts without
 * sleeping, after signals and finished work were handled. A timer of 0 ms that is set in its own
 * callback would keep libuv from handling them. */
static void run_iteration(struct bag_http_server *server)
{
    MHD_UNSIGNED_LONG_LONG timeout_ms;
    pass_new_connections(server);
    bag_http_mhd_resume_paused(server);
    bool timed = run_library(server, &timeout_ms);
    remove_untaken(&server->connections);
    bag_engine_dispatch(&server->context.engine);
    if (free_some(&server->context) || (timed && timeout_ms == 0))
        uv_idle_start(&server->again, on_again);
    else
        uv_idle_stop(&server->again);
    report_levels(server);
    const struct bag_http_connection_list *lists = server->connections.lists;
    if ((lists[BAG_HTTP_CONNECTION_DEFERRED].count || lists[BAG_HTTP_CONNECTION_PAUSED].count) &&
        (!timed || timeout_ms > DEFERRED_TICK_MS)) {
        timed = true;
        timeout_ms = DEFERRED_TICK_MS;
    }
    if (timed && timeout_ms > 0)
        uv_timer_start(&server->timer, on_timer, timeout_ms, 0);
    else
        uv_timer_stop(&server->timer);
}

static void on_iteration(uv_prepare_t *iteration)
{
    struct bag_http_server *server = iteration->data;
    if (!server->is_due)
        return;
    server->is_due = false;
    run_iteration(server);
}

/* Frees memory that was not needed since the last call, so that the process shrinks after a burst.
 */
static void on_trim(uv_timer_t *trim)
{
    struct bag_http_server *server = trim->data;
    bag_coordinator_close_idle(&server->context.coordinator);
    bag_buffers_trim(&server->context.buffers);
    bag_buffers_trim(&server->context.engine.buffers);
    if (free_some(&server->context))
        uv_idle_start(&server->again, on_again);
}

/* Starts the library without threads and without a listening socket. Its own Date header is off,
 * because message.c writes one. */
static struct MHD_Daemon *start_daemon(struct bag_http_server *server)
{
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
            MHD_USE_SUPPRESS_DATE_NO_CLOCK,
        0, NULL, NULL, bag_http_mhd_on_access, server, MHD_OPTION_EXTERNAL_LOGGER,
        bag_http_mhd_on_log, server, STRICTEST, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_COMPLETED, bag_http_mhd_on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, bag_http_mhd_on_connection, server,
        MHD_OPTION_URI_LOG_CALLBACK, bag_http_mhd_on_target, server, MHD_OPTION_UNESCAPE_CALLBACK,
        keep_escapes, NULL, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)server->connections.acceptor->limits.accepted, MHD_OPTION_END);
}

/* Returns false and sets *problem if the library is older than the header that this program was
 * built with, because it would not know some options. */
static bool check_version(struct bag_problem *problem)
{
    unsigned long built = MHD_VERSION >> 24, major = strtoul(MHD_get_version(), NULL, 10);
    return major >= built ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "libmicrohttpd %s is too old: this program was built with %lu.x",
                           MHD_get_version(), built);
}

/* Returns true if the listener has a loopback address. A page of another site can reach such a
 * server from a browser by a name of its own (DNS rebinding). */
static bool is_on_loopback(const struct bag_listener *listener)
{
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof own;
    getsockname(listener->fd, (struct sockaddr *)&own, &bytes);
    struct bag_http_peer address = bag_http_peer_of(&own);
    return address.known && bag_address_is_loopback(address.address);
}

static struct bag_engine_limits engine_limits(const struct bag_option_values *options)
{
    return (struct bag_engine_limits){
        .max_queue_size = (size_t)options->max_queue_size,
        .max_queue_work_ns = (uint64_t)options->max_queue_work_ms * 1000000,
        .default_timeout_us = (uint64_t)options->default_timeout_us,
        .latency_target_ns = (uint64_t)options->latency_target_ms * 1000000,
    };
}

static struct bag_infer_limits infer_limits(const struct bag_option_values *options)
{
    return (struct bag_infer_limits){
        .max_body_bytes = (size_t)options->max_body_bytes,
        .max_reply_bytes = (size_t)options->max_reply_bytes,
        .max_reply_ratio = (size_t)options->max_reply_ratio,
        .max_work_ns_per_byte = (size_t)options->max_work_us_per_byte * 1000,
        .min_packed_bytes = MIN_PACKED_BYTES,
        .explains = options->explain == BAG_SWITCH_ON,
        .samples = options->metrics != BAG_METRICS_OFF,
    };
}

/* Sets the deadlines of the stages, and initialises the lists and timers. */
static void init_connections(struct bag_http_server *server, struct bag_http_acceptor *acceptor)
{
    const struct bag_option_values *options = &server->context.service->config->options;
    uint64_t request_ms = (uint64_t)options->request_timeout_s * 1000;
    uint64_t head_ms = request_ms < MAX_HEAD_MS ? request_ms : MAX_HEAD_MS;
    server->connections = (struct bag_http_connections){
        .acceptor = acceptor,
        .engine = &server->context.engine,
        .on_late = bag_http_mhd_on_late,
        .context = server,
        .idle_timeout_ms = (uint64_t)options->idle_timeout_s * 1000,
        .timeouts_ms = {[BAG_HTTP_CONNECTION_PROXIED] = head_ms,
                        [BAG_HTTP_CONNECTION_SURPLUS] = head_ms,
                        [BAG_HTTP_CONNECTION_IDLE] = (uint64_t)options->idle_timeout_s * 1000,
                        [BAG_HTTP_CONNECTION_HEAD] = head_ms,
                        [BAG_HTTP_CONNECTION_BODY] = request_ms,
                        [BAG_HTTP_CONNECTION_SENDING_REPLY] =
                            (uint64_t)options->reply_timeout_s * 1000}};
    bag_http_connections_init(&server->connections);
    uv_timer_init(server->loop, &server->connections.timer);
    uv_timer_init(server->loop, &server->connections.linger_timer);
    server->connections.timer.data = server->connections.linger_timer.data = &server->connections;
}

/* Initialises the members of the context that are neither set by the caller nor zero. */
static bool init_context(struct bag_http_server *server)
{
    struct bag_http_context *context = &server->context;
    struct bag_service *service = context->service;
    const struct bag_option_values *options = &service->config->options;
    struct bag_engine_limits limits = engine_limits(options);
    context->inline_cost_ns = (uint64_t)options->inline_work_us * 1000;
    context->infer_limits = infer_limits(options);
    if (!bag_buffers_init(&context->buffers, false, &service->budget) ||
        !bag_engine_init(&context->engine, server->loop, service->workers, &service->budget,
                         &limits) ||
        !bag_coordinator_init(&context->coordinator, server->loop, &context->engine.buffers,
                              (uint64_t)options->shard_timeout_ms) ||
        !bag_metrics_add_loop(&service->metrics, &context->recorder))
        return false;
    context->engine.recorder = context->recorder;
    context->engine.on_iteration = context->coordinator.on_turn = on_resumed;
    context->engine.context = context->coordinator.context = server;
    return true;
}

/* Has the loop call the daemon when its sockets are ready, when its next timeout passes, and at
 * once if it has more to do. */
static bool watch_daemon(struct bag_http_server *server)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    uv_timer_init(server->loop, &server->timer);
    uv_timer_init(server->loop, &server->trim);
    uv_idle_init(server->loop, &server->again);
    uv_prepare_init(server->loop, &server->iteration);
    server->timer.data = server->trim.data = server->again.data = server->iteration.data = server;
    uv_timer_start(&server->trim, on_trim, TRIM_MS, TRIM_MS);
    uv_prepare_start(&server->iteration, on_iteration);
    if (!info || uv_poll_init(server->loop, &server->poll, info->epoll_fd) != 0)
        return false;
    server->poll.data = server;
    uv_poll_start(&server->poll, UV_READABLE, on_poll);
    return true;
}

bool bag_http_server_start(struct bag_http_server *server, uv_loop_t *loop,
                           struct bag_service *service, struct bag_reader *reader,
                           struct bag_http_acceptor *acceptor, bool infers,
                           struct bag_problem *problem)
{
    memset(server, 0, sizeof *server);
    server->loop = loop;
    server->context.service = service;
    server->context.targets.reader = reader;
    server->context.targets.routes = bag_http_routes;
    server->context.infers = infers;
    server->checks_host = is_on_loopback(acceptor->listener);
    if (!check_version(problem))
        return false;
    init_connections(server, acceptor);
    server->daemon = init_context(server) ? start_daemon(server) : NULL;
    if (!server->daemon)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "libmicrohttpd cannot start: too few descriptors or "
                               "too little memory");
    if (!watch_daemon(server))
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "a loop cannot be started");
    call_library(server);
    acceptor->loops[acceptor->num_loops++] = &server->connections;
    return true;
}

void bag_http_server_stop(struct bag_http_server *server)
{
    uv_poll_stop(&server->poll);
    uv_timer_stop(&server->timer);
    uv_idle_stop(&server->again);
    MHD_stop_daemon(server->daemon);
    uv_close((uv_handle_t *)&server->connections.timer, NULL);
    uv_close((uv_handle_t *)&server->connections.linger_timer, NULL);
    bag_engine_stop(&server->context.engine);
    bag_coordinator_stop(&server->context.coordinator);
    uv_close((uv_handle_t *)&server->poll, NULL);
    uv_close((uv_handle_t *)&server->timer, NULL);
    uv_close((uv_handle_t *)&server->trim, NULL);
    uv_close((uv_handle_t *)&server->again, NULL);
    uv_close((uv_handle_t *)&server->iteration, NULL);
}

void bag_http_server_free(struct bag_http_server *server)
{
    /* Spare requests keep memory of the engine's buffers. */
    bag_http_requests_free(&server->context);
    bag_engine_free(&server->context.engine);
    bag_coordinator_free(&server->context.coordinator);
    bag_header_cache_free(&server->context.header_cache);
    bag_buffers_free(&server->context.buffers);
}
