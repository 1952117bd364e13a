/* libmicrohttpd on a libuv loop; see server.h. */
#include "server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/* Memory of a connection: its request's head must fit, and a body comes in pieces of this. The
 * library clears all of it after every request, which at 32 KiB takes a tenth of a small request's
 * time; below 16 KiB small requests gain no more and large bodies take twice as long. */
#define CONNECTION_BYTES (16 << 10)

/* What a turn of the loop gives the library at most. */
#define MAX_ROUNDS    16
#define MAX_ROUNDS_NS 200000

/* The library's strictest mode. Before 1.0 that adds two checks to the first call's, of which one
 * is answered twice on one connection. */
#if MHD_VERSION >= 0x01000000
#define STRICTEST MHD_OPTION_CLIENT_DISCIPLINE_LVL, 3
#else
#define STRICTEST MHD_OPTION_STRICT_FOR_CLIENT, 0
#endif

/* A head has this long, and so has its first line once it has begun: it is short, and holds a
 * connection of those that all share. */
#define MAX_HEAD_MS 10000

/* To refuse a large body takes the kernel half as long as to pool it: clients who ask again at once
 * would leave no time for those who are let in. So while the queue is full, a connection on which
 * more has come than a small request is held before the library reads it. Where there is room, the
 * newest is let in, whose time has not passed; others are refused, some at a time, or when they
 * have waited for long. Where too many are held, they come whatever becomes of them, and for a
 * while no more are. */
#define HELD_BYTES     (12 << 10)
#define HELD_TICK_MS   5
#define REFUSED_A_TICK 20
#define MAX_HELD_MS    250
#define HELD_PARTS     2 /* of the connections that all, and that one client may have */
#define NONE_HELD_MS   5000

/* How often memory that was not needed in the meantime is given back. */
#define TRIM_MS 1000

/* Smaller replies are not compressed. */
#define MIN_PACKED_BYTES (16 << 10)

/* Paths stay as they were sent: routes decode one segment at a time, so that an encoded slash stays
 * part of a name. */
static size_t keep_escapes(void *context, struct MHD_Connection *connection, char *text)
{
    (void)context, (void)connection;
    return strlen(text);
}

/* The library is called once at the end of a turn, whatever there was in it: sockets that are
 * ready, a time-out, requests that are resumed. */
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

static bool free_some(struct bag_http_context *context)
{
    bool more = bag_buffers_free_some(&context->buffers);
    return bag_buffers_free_some(&context->engine.buffers) || more;
}

static void report_levels(const struct bag_http_server *server)
{
    if (!server->context.recorder)
        return;
    struct bag_metrics_levels levels = {
        .in_flight = bag_counter_get(&server->connections.in_flight),
        .connections = atomic_load(&server->connections.count),
        .queued = server->context.engine.queue.load.waiting,
        .queued_bytes = server->context.engine.queue.bytes,
    };
    bag_metrics_on_levels(server->context.recorder, &levels);
}

/* Some rounds of the library: in each it reads at most half of CONNECTION_BYTES of a body. Whether
 * it wants to be called again without an event, and in how long. */
static bool run_library(struct bag_http_server *server, MHD_UNSIGNED_LONG_LONG *timeout_ms)
{
    uint64_t begun_ns = uv_hrtime(), round_ns = begun_ns;
    bool timed;
    unsigned round = 0;
    do {
        server->context.engine.polled_ns = round_ns;
        MHD_run(server->daemon);
        timed = MHD_get_timeout(server->daemon, timeout_ms) == MHD_YES;
    } while (timed && *timeout_ms == 0 && ++round < MAX_ROUNDS &&
             (round_ns = uv_hrtime()) - begun_ns < MAX_ROUNDS_NS);
    server->connections.busy_ns = uv_hrtime() - begun_ns;
    return timed;
}

/* Whether it would be rejected, were it read now. */
static bool is_untimely(const struct bag_http_server *server,
                        const struct bag_http_connection *connection)
{
    const struct bag_http_connections *connections = &server->connections;
    struct bag_engine *engine = connections->engine;
    int waiting = 0;
    return connection->counts && !connections->on_drained &&
           (connections->lists[BAG_HTTP_CONNECTION_HELD].count > 0 || bag_engine_is_full(engine)) &&
           ioctl(connection->fd, FIONREAD, &waiting) == 0 && waiting >= HELD_BYTES &&
           !bag_engine_is_below_share(engine, bag_http_peer_client(&connection->peer));
}

/* Each loop holds its part of what all may. False where the library is to have it. */
static bool hold(struct bag_http_server *server, struct bag_http_connection *connection)
{
    struct bag_http_connections *connections = &server->connections;
    const struct bag_http_acceptor *acceptor = connections->acceptor;
    const size_t most = acceptor->limits.connections / HELD_PARTS / acceptor->num_loops;
    const uint64_t now_ms = uv_now(server->loop);
    if (!is_untimely(server, connection))
        return false;
    if (connections->lists[BAG_HTTP_CONNECTION_HELD].count >= most ||
        (connection->client &&
         connection->client->connections >= acceptor->limits.per_client / HELD_PARTS))
        server->holds_from_ms = now_ms + NONE_HELD_MS;
    if (now_ms < server->holds_from_ms)
        return false;
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_HELD);
    return true;
}

/* Passes a connection to the library. If the library cannot take the socket, it closes it, and
 * drop_refused() removes the connection. Version 1.0 reports a new connection in its next round.
 * For a Unix-domain socket no address makes the library leave out two failing setsockopt() calls a
 * reply (deploy/upstream.md). */
static void give(struct bag_http_server *server, struct bag_http_connection *connection)
{
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof from;
    getpeername(connection->fd, (struct sockaddr *)&from, &bytes);
    MHD_add_connection(server->daemon, connection->fd, (struct sockaddr *)&from, bytes);
}

static void let_in(struct bag_http_server *server, struct bag_http_connection *connection)
{
    bag_http_connection_enter(&server->connections, connection, BAG_HTTP_CONNECTION_ADMITTED);
    give(server, connection);
}

static void let_in_held(struct bag_http_server *server)
{
    const struct bag_http_connection_list *held =
        &server->connections.lists[BAG_HTTP_CONNECTION_HELD];
    const uint64_t now_ms = uv_now(server->loop);
    const bool is_due = now_ms >= server->refused_ms + HELD_TICK_MS;
    if (is_due)
        server->refused_ms = now_ms;
    if (held->count && !bag_engine_is_full(&server->context.engine))
        let_in(server, TAILQ_LAST(&held->queue, bag_http_connection_queue));
    for (unsigned left = REFUSED_A_TICK; held->count && left > 0; left--) {
        struct bag_http_connection *oldest = TAILQ_FIRST(&held->queue);
        if (!is_due && now_ms < oldest->since_ms + MAX_HELD_MS)
            break;
        let_in(server, oldest);
    }
}

static void give_arrivals(struct bag_http_server *server)
{
    const struct bag_http_connection_list *admitted =
        &server->connections.lists[BAG_HTTP_CONNECTION_ADMITTED];
    struct bag_http_connection *next;
    bag_http_arrivals_take(&server->connections);
    for (struct bag_http_connection *one = TAILQ_FIRST(&admitted->queue); one; one = next) {
        next = TAILQ_NEXT(one, link);
        if (!hold(server, one))
            give(server, one);
    }
    let_in_held(server);
}

static void drop_refused(struct bag_http_connections *connections)
{
    struct bag_http_connection_list *admitted = &connections->lists[BAG_HTTP_CONNECTION_ADMITTED];
    while (admitted->count)
        bag_http_connection_remove(connections, TAILQ_FIRST(&admitted->queue));
}

/* Where the library has more to do than its rounds, or memory to give back, the loop comes back
 * without sleeping, after signals and finished work had their turn: a timer of 0 ms that is set
 * from its own callback would keep libuv from ever getting there. */
static void run_turn(struct bag_http_server *server)
{
    MHD_UNSIGNED_LONG_LONG timeout_ms;
    give_arrivals(server);
    bool timed = run_library(server, &timeout_ms);
    drop_refused(&server->connections);
    bag_engine_dispatch(&server->context.engine);
    if (free_some(&server->context) || (timed && timeout_ms == 0))
        uv_idle_start(&server->again, on_again);
    else
        uv_idle_stop(&server->again);
    report_levels(server);
    if (server->connections.lists[BAG_HTTP_CONNECTION_HELD].count > 0 &&
        (!timed || timeout_ms > HELD_TICK_MS)) {
        timed = true;
        timeout_ms = HELD_TICK_MS;
    }
    if (timed && timeout_ms > 0)
        uv_timer_start(&server->timer, on_timer, timeout_ms, 0);
    else
        uv_timer_stop(&server->timer);
}

static void on_turn(uv_prepare_t *turn)
{
    struct bag_http_server *server = turn->data;
    if (!server->is_due)
        return;
    server->is_due = false;
    run_turn(server);
}

/* After a burst the process becomes small again. */
static void on_trim(uv_timer_t *trim)
{
    struct bag_http_server *server = trim->data;
    bag_coordinator_close_idle(&server->context.coordinator);
    bag_buffers_trim(&server->context.buffers);
    bag_buffers_trim(&server->context.engine.buffers);
    if (free_some(&server->context))
        uv_idle_start(&server->again, on_again);
}

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

/* Options of a library that is older than its header are not known to it. */
static bool check_version(struct bag_problem *problem)
{
    unsigned long built = MHD_VERSION >> 24, major = strtoul(MHD_get_version(), NULL, 10);
    return major >= built ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "libmicrohttpd %s is too old: this program was built with %lu.x",
                           MHD_get_version(), built);
}

/* A stranger's page in a browser can reach it by a name of its own. */
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
    };
}

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
                        [BAG_HTTP_CONNECTION_READING] = (uint64_t)options->reply_timeout_s * 1000}};
    bag_http_connections_init(&server->connections);
    uv_timer_init(server->loop, &server->connections.timer);
    uv_timer_init(server->loop, &server->connections.linger_timer);
    server->connections.timer.data = server->connections.linger_timer.data = &server->connections;
}

/* The members of the context that are neither the caller's nor zero. */
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

/* The loop calls the daemon when its sockets are ready, when its next time-out passes, and at once
 * where it has more to do. */
static bool watch_daemon(struct bag_http_server *server)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    uv_timer_init(server->loop, &server->timer);
    uv_timer_init(server->loop, &server->trim);
    uv_idle_init(server->loop, &server->again);
    uv_prepare_init(server->loop, &server->turn);
    server->timer.data = server->trim.data = server->again.data = server->turn.data = server;
    uv_timer_start(&server->trim, on_trim, TRIM_MS, TRIM_MS);
    uv_prepare_start(&server->turn, on_turn);
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
    server->context.reader = reader;
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
    uv_close((uv_handle_t *)&server->turn, NULL);
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
