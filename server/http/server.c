/* The server of a loop; see server.h. */
#include "mhd.h"
#include "routes.h"

#include <stdlib.h>
#include <string.h>

/* The maximum time of a request head, and of a request line once its first byte has arrived. A head
 * is short, and meanwhile it uses one of the connections that all clients share. */
#define MAX_HEAD_MS 10000

/* The interval in which memory that was not needed is returned to the system. */
#define TRIM_MS 1000

/* The minimum size of a reply that is compressed. */
#define MIN_PACKED_BYTES (16 << 10)

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

/* Removes the connections that the library has not taken. */
static void remove_untaken(struct bag_http_connections *connections)
{
    struct bag_http_connection_list *admitted = &connections->lists[BAG_HTTP_CONNECTION_ADMITTED];
    while (admitted->count)
        bag_http_connection_remove(connections, TAILQ_FIRST(&admitted->queue));
}

/* Calls the library once for all that has happened: new connections, ready sockets, replies.
 *
 * If it has more to do, or there is memory to free, the next iteration starts without sleeping,
 * after signals and finished work were handled. A timer of 0 ms that is set in its own callback
 * would keep libuv from handling them. */
static void run_iteration(struct bag_http_server *server)
{
    const struct bag_http_connection_list *admitted =
        &server->connections.lists[BAG_HTTP_CONNECTION_ADMITTED];
    struct bag_http_connection *next;
    uint64_t timeout_ms;
    bag_http_new_connections_take(&server->overload);
    bag_http_overload_tick(&server->overload);
    for (struct bag_http_connection *one = TAILQ_FIRST(&admitted->queue); one; one = next) {
        next = TAILQ_NEXT(one, link);
        bag_http_mhd_add(server, one);
    }
    bool is_timed = bag_http_mhd_run(server, &timeout_ms);
    remove_untaken(&server->connections);
    bag_engine_dispatch(&server->context.engine);
    bag_coordinator_dispatch(&server->context.coordinator);
    if (free_some(&server->context) || (is_timed && timeout_ms == 0))
        uv_idle_start(&server->again, on_again);
    else
        uv_idle_stop(&server->again);
    report_levels(server);
    const uint64_t due_ms = bag_http_overload_due_ms(&server->overload);
    if (!is_timed || due_ms < timeout_ms)
        timeout_ms = due_ms;
    if (timeout_ms == 0 || timeout_ms == UINT64_MAX)
        uv_timer_stop(&server->timer);
    else
        uv_timer_start(&server->timer, on_timer, timeout_ms, 0);
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
    bag_http_requests_trim(&server->context);
    bag_buffers_trim(&server->context.buffers);
    bag_buffers_trim(&server->context.engine.buffers);
    if (free_some(&server->context))
        uv_idle_start(&server->again, on_again);
}

/* Keeps the address of the listener, and checks the Host of requests if it is a loopback address. A
 * page of another site can reach such a server from a browser by a name of its own (DNS
 * rebinding). */
static void init_own(struct bag_http_server *server, const struct bag_listener *listener)
{
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof own;
    getsockname(listener->fd, (struct sockaddr *)&own, &bytes);
    server->own = bag_http_peer_of(&own);
    bag_http_peer_text(&server->own);
    server->checks_host = server->own.known && bag_address_is_loopback(server->own.address);
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
        .clients = &acceptor->clients,
        .engine = &server->context.engine,
        .idle_timeout_ms = (uint64_t)options->idle_timeout_s * 1000,
        .timeouts_ms = {[BAG_HTTP_CONNECTION_PROXIED] = head_ms,
                        [BAG_HTTP_CONNECTION_SURPLUS] = head_ms,
                        [BAG_HTTP_CONNECTION_IDLE] = (uint64_t)options->idle_timeout_s * 1000,
                        [BAG_HTTP_CONNECTION_HEAD] = head_ms,
                        [BAG_HTTP_CONNECTION_BODY] = request_ms,
                        [BAG_HTTP_CONNECTION_SENDING_REPLY] =
                            (uint64_t)options->reply_timeout_s * 1000}};
    bag_http_connections_init(&server->connections);
    server->overload.connections = &server->connections;
    server->overload.engine = &server->context.engine;
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
    const int epoll_fd = bag_http_mhd_epoll_fd(server);
    uv_timer_init(server->loop, &server->timer);
    uv_timer_init(server->loop, &server->trim);
    uv_idle_init(server->loop, &server->again);
    uv_prepare_init(server->loop, &server->iteration);
    server->timer.data = server->trim.data = server->again.data = server->iteration.data = server;
    uv_timer_start(&server->trim, on_trim, TRIM_MS, TRIM_MS);
    uv_prepare_start(&server->iteration, on_iteration);
    if (epoll_fd < 0 || uv_poll_init(server->loop, &server->poll, epoll_fd) != 0)
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
    init_own(server, acceptor->listener);
    init_connections(server, acceptor);
    if (!init_context(server))
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "a loop cannot start: too few descriptors or too little memory");
    if (!bag_http_mhd_start(server, problem))
        return false;
    if (!watch_daemon(server))
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "a loop cannot be started");
    call_library(server);
    acceptor->loops[acceptor->clients.num_loops++] = &server->connections;
    return true;
}

void bag_http_server_stop(struct bag_http_server *server)
{
    uv_poll_stop(&server->poll);
    uv_timer_stop(&server->timer);
    uv_idle_stop(&server->again);
    bag_http_mhd_stop(server);
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
