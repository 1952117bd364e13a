/* Listening sockets, loops and their threads; see loops.h. */
#include "loops.h"

#include "server/system/log.h"
#include "server/system/sockets.h"
#include "server/system/thread_team.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- listening sockets ----------------------------------------------------------------------- */

static bool open_first(struct bag_listener *listener, const struct bag_option_values *options,
                       int passed_fd, struct bag_problem *problem)
{
    mode_t mode;
    if (!bag_unix_mode_parse(options->unix_permissions, &mode, problem))
        return false;
    if (passed_fd >= 0) {
        bag_listener_take(listener, passed_fd);
        return true;
    }
    return options->unix_path
               ? bag_listener_open_unix(listener, options->unix_path, mode, problem)
               : bag_listener_open(listener, options->host, options->port, "--port", problem);
}

static bool names_admin(const struct bag_option_values *options)
{
    return options->admin_port != 0 || options->admin_socket;
}

void bag_listeners_expect(struct bag_listeners *listeners, const struct bag_option_values *options)
{
    listeners->has_admin = names_admin(options);
    listeners->admin.port = options->admin_socket ? -1 : (int)options->admin_port;
}

static bool open_admin(struct bag_listeners *listeners, const struct bag_option_values *options,
                       int passed_fd, struct bag_problem *problem)
{
    mode_t mode;
    listeners->has_admin = passed_fd >= 0 || names_admin(options);
    if (passed_fd >= 0)
        bag_listener_take(&listeners->admin, passed_fd);
    else if (options->admin_socket)
        return bag_unix_mode_parse(options->unix_permissions, &mode, problem) &&
               bag_listener_open_unix(&listeners->admin, options->admin_socket, mode, problem);
    return passed_fd >= 0 || !listeners->has_admin ||
           bag_listener_open(&listeners->admin, options->host, options->admin_port, "--admin-port",
                             problem);
}

bool bag_listeners_open(struct bag_listeners *listeners, const struct bag_option_values *options,
                        struct bag_problem *problem)
{
    struct bag_systemd_sockets passed;
    if (!bag_systemd_take_sockets(&passed, problem) ||
        !open_first(&listeners->first, options, passed.first, problem))
        return false;
    if (open_admin(listeners, options, passed.admin, problem))
        return true;
    bag_listener_reject(&listeners->first);
    bag_listener_close(&listeners->first);
    return false;
}

/* Returns the place of a listener for the log; `host` is that of TCP. */
static const char *place_of(const struct bag_listener *listener, const char *host)
{
    return listener->kind == BAG_LISTENER_TCP    ? host
           : listener->kind == BAG_LISTENER_UNIX ? listener->path
                                                 : "passed by systemd";
}

/* Returns the port as the last field of a log line, or no field if there is no port. */
static struct bag_log_field port_of(const struct bag_listener *listener)
{
    return listener->kind == BAG_LISTENER_TCP
               ? (struct bag_log_field)BAG_LOG_NUMBER("port", listener->port)
               : (struct bag_log_field){0};
}

static bool reject_unguarded(const char *option, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s needs a token_file, with a token of scope admin, or an admin "
                           "listener on a Unix-domain socket: anybody could change the tables",
                           option);
}

bool bag_listeners_check_guard(const struct bag_listeners *listeners, bool has_tokens,
                               const struct bag_option_values *options, struct bag_problem *problem)
{
    bool has_admin = listeners->has_admin;
    bool is_guarded = has_tokens || (has_admin && listeners->admin.port < 0);
    enum bag_model_control control = options->model_control;
    if (options->updates == BAG_SWITCH_ON && !is_guarded)
        return reject_unguarded("updates", problem);
    if (options->updates == BAG_SWITCH_OFF && options->journal_dir)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "journal_dir is for updates of rows, which are off: without them "
                               "what it holds would be left out (updates)");
    if (control == BAG_MODEL_CONTROL_EXPLICIT && !has_admin)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "model_control explicit needs an admin listener, on which models "
                               "are changed: admin_socket or admin_port");
    return control == BAG_MODEL_CONTROL_NONE || !has_admin || is_guarded ||
           reject_unguarded("model_control", problem);
}

const char *bag_listeners_url(const struct bag_listeners *listeners,
                              const struct bag_option_values *options,
                              char url[BAG_LISTENER_URL_BYTES])
{
    const struct bag_listener *first = &listeners->first;
    const char *host = options->host;
    const bool is_ipv6 = strchr(host, ':') != NULL;
    if (first->kind == BAG_LISTENER_TCP)
        snprintf(url, BAG_LISTENER_URL_BYTES, is_ipv6 ? "http://[%s]:%d" : "http://%s:%d", host,
                 first->port);
    else if (first->kind == BAG_LISTENER_UNIX)
        snprintf(url, BAG_LISTENER_URL_BYTES, "unix:%s", first->path);
    else
        snprintf(url, BAG_LISTENER_URL_BYTES, "a socket of systemd's");
    return url;
}

/* Returns true if everybody may connect to the socket on which tables are changed without a
 * token. */
static bool is_open_to_all(const struct bag_option_values *options)
{
    mode_t mode;
    struct bag_problem ignored;
    bool changes =
        options->updates == BAG_SWITCH_ON || options->model_control != BAG_MODEL_CONTROL_NONE;
    return changes && !options->token_file && options->admin_socket &&
           bag_unix_mode_parse(options->unix_permissions, &mode, &ignored) && (mode & S_IWOTH);
}

void bag_listeners_log(const struct bag_listeners *listeners,
                       const struct bag_option_values *options)
{
    const struct bag_listener *first = &listeners->first, *admin = &listeners->admin;
    bag_log(BAG_LOG_LEVEL_INFO, "listening", BAG_LOG_TEXT("version", BAG_VERSION),
            BAG_LOG_TEXT("isa", bag_isa_names[bag_isa_used()]),
            BAG_LOG_TEXT("host", place_of(first, options->host)), port_of(first));
    if (listeners->has_admin)
        bag_log(BAG_LOG_LEVEL_INFO, "listening for admin",
                BAG_LOG_TEXT("host", place_of(admin, options->host)), port_of(admin));
    if (is_open_to_all(options))
        bag_log(BAG_LOG_LEVEL_WARNING, "tables unguarded",
                BAG_LOG_TEXT("reason", "every user of this machine may change the tables: "
                                       "unix_permissions lets all of them connect, and there is no "
                                       "token_file"));
}

void bag_listeners_abandon(const struct bag_listeners *listeners)
{
    if (listeners->first.kind == BAG_LISTENER_UNIX)
        bag_listener_reject(&listeners->first);
    if (listeners->has_admin && listeners->admin.kind == BAG_LISTENER_UNIX)
        bag_listener_reject(&listeners->admin);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* The descriptors of libuv, libmicrohttpd and the engine, and one for a first connection. */
#define DESCRIPTORS_PER_LOOP 12

void bag_loops_raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

bool bag_loops_check_descriptors(size_t loops, struct bag_problem *problem)
{
    size_t needed = 8 + DESCRIPTORS_PER_LOOP * loops, had = 0;
    int *fds = calloc(needed, sizeof *fds);
    if (!fds)
        return bag_problem_no_memory(problem);
    while (had < needed && (fds[had] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        had++;
    int error = errno;
    for (size_t i = 0; i < had; i++)
        close(fds[i]);
    free(fds);
    return had == needed ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "%zu loops need %zu file descriptors, and %zu can be had: %s; raise the "
                           "limit of open files (ulimit -n)",
                           loops, needed, had, strerror(error));
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void wake_reader(void *context)
{
    struct bag_loop *loop = context;
    uv_async_send(&loop->published);
}

static void on_published(uv_async_t *published)
{
    struct bag_loop *loop = published->data;
    bag_reader_move(&loop->reader);
}

static void on_drained(void *context)
{
    struct bag_loop *loop = context;
    struct bag_loops *loops = loop->loops;
    bag_http_server_stop(&loop->server);
    bag_reader_close(&loop->reader);
    uv_close((uv_handle_t *)&loop->published, NULL);
    uv_close((uv_handle_t *)&loop->order, NULL);
    atomic_fetch_sub(&loops->left, 1);
    uv_async_send(&loops->ended);
}

static void on_order(uv_async_t *order)
{
    struct bag_loop *loop = order->data;
    struct bag_http_connections *connections = &loop->server.connections;
    if (!connections->on_drained)
        bag_http_connections_drain(connections, on_drained, loop);
}

/* Drains an acceptor. A client that does not finish its request keeps the listening socket open for
 * half of the timeout. The other half is for connections that arrived meanwhile. */
static void drain_acceptor(const struct bag_loops *loops, struct bag_http_acceptor *acceptor)
{
    uint64_t timeout_s = (uint64_t)loops->service->config->options.drain_timeout_s;
    bag_http_acceptor_drain(acceptor, timeout_s * 1000 / 2);
}

/* Called when a loop has ended. The admin server answers until all others have drained. */
static void on_ended(uv_async_t *ended)
{
    struct bag_loops *loops = ended->data;
    unsigned left = atomic_load(&loops->left);
    if (left == 1 && loops->has_admin) {
        drain_acceptor(loops, &loops->admin_acceptor);
        uv_async_send(&loops->loops[loops->count].order);
    }
    if (left > 0 || uv_is_closing((uv_handle_t *)ended))
        return;
    uv_close((uv_handle_t *)ended, NULL);
    loops->on_ended(loops->context);
}

static void *run_thread(void *argument)
{
    struct bag_loop *loop = argument;
    uv_run(loop->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* The number of processors for each loop, and the option's maximum. */
#define LOOP_PROCESSORS 8
#define MAX_LOOPS       256

unsigned bag_loops_default(unsigned processors)
{
    unsigned loops = processors / LOOP_PROCESSORS;
    return loops < 1 ? 1 : loops < MAX_LOOPS ? loops : MAX_LOOPS;
}

/* Returns the number of connections beyond max_connections that are accepted and answered with
 * 503. */
static size_t surplus_of(size_t connections)
{
    return connections / 8 + 16;
}

struct bag_http_limits bag_loops_limit_connections(size_t wanted, size_t descriptors)
{
    size_t usable = descriptors / 4 * 3, connections = wanted;
    if (wanted + surplus_of(wanted) > usable)
        connections = usable > surplus_of(0) ? (usable - surplus_of(0)) / 9 * 8 : 1;
    if (connections == 0)
        connections = 1;
    return (struct bag_http_limits){.connections = connections,
                                    .accepted = connections + surplus_of(connections)};
}

/* The minimum limit of connections from one address, unless the option sets it. */
#define MIN_SHARE 64

/* The number of connections beyond the admin listener's limit that are answered with 503. */
#define ADMIN_SURPLUS 4

static struct bag_http_limits limit_connections(const struct bag_option_values *options)
{
    struct rlimit descriptors = {.rlim_cur = RLIM_INFINITY};
    getrlimit(RLIMIT_NOFILE, &descriptors);
    struct bag_http_limits limits =
        bag_loops_limit_connections((size_t)options->max_connections, descriptors.rlim_cur);
    if (limits.connections < (size_t)options->max_connections)
        bag_log(BAG_LOG_LEVEL_WARNING, "fewer connections",
                BAG_LOG_TEXT("reason", "the limit of open files (ulimit -n)"),
                BAG_LOG_NUMBER("open_files", descriptors.rlim_cur),
                BAG_LOG_NUMBER("max_connections", limits.connections));
    size_t share = (size_t)options->max_connections_per_client;
    /* By default one client has half of all connections, so that it cannot lock out the others. If
     * there are only few, evicting idle ones is enough. */
    if (!share)
        share = limits.connections > 2 * MIN_SHARE ? limits.connections / 2 : MIN_SHARE;
    limits.per_client = share;
    limits.reads_proxy_headers = options->proxy_protocol == BAG_PROXY_PROTOCOL_V2;
    return limits;
}

/* Initialises the acceptors. The admin listener has its own limit, so that clients which use up all
 * connections cannot lock out a probe. */
static bool init_acceptors(struct bag_loops *loops, uv_loop_t *first,
                           struct bag_listeners *listeners, struct bag_problem *problem)
{
    const struct bag_option_values *options = &loops->service->config->options;
    const char *proxies = options->trusted_proxies;
    struct bag_http_limits limits = limit_connections(options), admin = limits;
    loops->service->max_connections = limits.connections;
    loops->service->max_connections_per_client = limits.per_client;
    admin.connections = limits.connections / 8 + 4;
    admin.accepted = admin.connections + ADMIN_SURPLUS;
    admin.reads_proxy_headers = false;
    return bag_http_acceptor_init(&loops->acceptor, first, loops->count, &listeners->first, &limits,
                                  proxies, problem) &&
           (!loops->has_admin ||
            bag_http_acceptor_init(&loops->admin_acceptor, first, 1, &listeners->admin, &admin,
                                   proxies, problem));
}

static bool start_servers(struct bag_loops *loops, uv_loop_t *first, struct bag_problem *problem)
{
    for (unsigned i = 0; i < loops->count + loops->has_admin; i++) {
        struct bag_loop *loop = &loops->loops[i];
        bool is_admin = i == loops->count;
        loop->loops = loops;
        loop->loop = i == 0 || is_admin ? first : &loop->own;
        if (loop->loop != first && uv_loop_init(loop->loop) != 0)
            return bag_problem_set(problem, BAG_ERROR_SYSTEM, "too few descriptors for %u loops",
                                   loops->count);
        loop->order.data = loop->published.data = loop;
        if (uv_async_init(loop->loop, &loop->order, on_order) != 0 ||
            uv_async_init(loop->loop, &loop->published, on_published) != 0 ||
            !bag_reader_open(&loop->reader, &loops->service->registry, wake_reader, loop))
            return bag_problem_set(problem, BAG_ERROR_SYSTEM, "a loop cannot be started");
        if (!bag_http_server_start(&loop->server, loop->loop, loops->service, &loop->reader,
                                   is_admin ? &loops->admin_acceptor : &loops->acceptor, !is_admin,
                                   problem))
            return false;
    }
    return true;
}

bool bag_loops_start(struct bag_loops *loops, uv_loop_t *first, struct bag_service *service,
                     struct bag_listeners *listeners, struct bag_problem *problem)
{
    loops->service = service;
    loops->count = (unsigned)service->config->options.loops;
    loops->has_admin = listeners->has_admin;
    atomic_init(&loops->left, loops->count + loops->has_admin);
    loops->loops = calloc(loops->count + 1, sizeof *loops->loops);
    if (!loops->loops)
        return bag_problem_no_memory(problem);
    loops->ended.data = loops;
    if (uv_async_init(first, &loops->ended, on_ended) != 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "a loop cannot be started");
    /* All recorders of metrics must exist before the first request. */
    if (!init_acceptors(loops, first, listeners, problem) ||
        !start_servers(loops, first, problem) ||
        !bag_http_acceptor_start(&loops->acceptor, problem) ||
        (loops->has_admin && !bag_http_acceptor_start(&loops->admin_acceptor, problem)))
        return false;
    for (unsigned i = 1; i < loops->count; i++) {
        if (bag_thread_start(&loops->loops[i].thread, run_thread, &loops->loops[i]) != 0)
            return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                                   "the system has no thread for another loop");
    }
    return true;
}

void bag_loops_drain(struct bag_loops *loops)
{
    drain_acceptor(loops, &loops->acceptor);
    for (unsigned i = 0; i < loops->count; i++)
        uv_async_send(&loops->loops[i].order);
}

size_t bag_loops_in_flight(const struct bag_loops *loops)
{
    size_t sum = 0;
    for (unsigned i = 0; i < loops->count; i++)
        sum += bag_counter_get(&loops->loops[i].server.connections.in_flight);
    return sum;
}

void bag_loops_free(struct bag_loops *loops)
{
    for (unsigned i = 0; i < loops->count + loops->has_admin; i++) {
        struct bag_loop *loop = &loops->loops[i];
        if (loop->loop == &loop->own) {
            uv_thread_join(&loop->thread);
            uv_loop_close(loop->loop);
        }
        bag_http_server_free(&loop->server);
    }
    bag_http_acceptor_free(&loops->acceptor);
    if (loops->has_admin)
        bag_http_acceptor_free(&loops->admin_acceptor);
    free(loops->loops);
}
