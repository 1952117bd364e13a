/* `bagserve serve`: loads tables, answers requests and stops cleanly.
 *
 * Everything in this file runs on the first loop's thread, except for tell_loaded, which the
 * reconciler calls. */
#include "commands.h"
#include "loops.h"
#include "report.h"
#include "server/http/authorize.h"
#include "server/http/mhd.h"
#include "server/memory/memory.h"
#include "server/models/reconciler.h"
#include "server/system/log.h"
#include "server/system/sockets.h"
#include "server/updates/updates.h"

#include <assert.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Blocks of at least this size are returned to the system when they are freed. By default glibc
 * raises this threshold to the size of the first such block, for each thread, so the server would
 * stay large after a burst. Smaller blocks are too many for a mapping each. */
#define LARGE_BLOCK_BYTES        (1 << 20)
#define JOURNAL_SYNC_INTERVAL_MS 100
/* Signals to stop that arrive within this time of the first one count as one. */
#define SAME_SIGNAL_NS UINT64_C(100000000)
/* The workers' nice value. Threads that read and write are preferred if processors are scarce. */
#define WORKER_NICE 5

/* Signals that are caught: SIGTERM and SIGINT stop the server, SIGHUP reloads tokens and models. */
static const int signal_numbers[] = {SIGTERM, SIGINT, SIGHUP};
#define NUM_SIGNALS (sizeof signal_numbers / sizeof signal_numbers[0])

struct serve {
    int argc; /* arguments, to configure again */
    char **argv;
    struct bag_config config;
    struct bag_reconciler reconciler;
    struct bag_service service;
    struct bag_http_tokens tokens; /* used if there is a token file */
    struct bag_workers workers;
    struct bag_updates updates; /* used if rows may change */
    struct bag_listeners listeners;
    struct bag_loops loops;
    uint64_t stopping_ns; /* time of the signal that began to stop the server; 0: none */
    bool first_done;      /* the first tables were published or cannot be loaded */
    int exit_code;
    uv_loop_t loop;
    uv_signal_t signals[NUM_SIGNALS];
    uv_timer_t drain_timer, watchdog;
    uv_timer_t recording; /* samples the server's history */
    uv_timer_t trimming;  /* calls on_trim() once a second */
    struct bag_work trim; /* runs trim_heap() */
    atomic_bool trims;    /* `trim` was pushed and has not ended */
    size_t trim_bytes;    /* most memory of requests and connections since the heap was trimmed */
    unsigned fallen_seconds; /* time for which that has fallen by much; see TRIM_SECONDS */
    uv_async_t loaded;
};

/* ---- stopping -------------------------------------------------------------------------------- */

/* Ends the process immediately. */
static void stop_hard(const struct serve *serve, const char *why, size_t in_flight, int exit_code)
{
    bag_log(BAG_LOG_LEVEL_WARNING, "stopped", BAG_LOG_TEXT("reason", why),
            BAG_LOG_NUMBER("requests_cut_off", in_flight));
    bag_listeners_abandon(&serve->listeners);
    bag_log_stop();
    _exit(exit_code);
}

/* Called when all loops have drained. The first loop ends when its handles have closed. If the
 * first tables are still being loaded, which may take long to cancel, the process ends
 * immediately. */
static void on_ended(void *context)
{
    struct serve *serve = context;
    if (!serve->first_done)
        stop_hard(serve, "signal while loading", 0, BAG_EXIT_OK);
    for (size_t i = 0; i < NUM_SIGNALS; i++)
        uv_close((uv_handle_t *)&serve->signals[i], NULL);
    uv_close((uv_handle_t *)&serve->drain_timer, NULL);
    uv_close((uv_handle_t *)&serve->watchdog, NULL);
    uv_close((uv_handle_t *)&serve->recording, NULL);
    uv_close((uv_handle_t *)&serve->trimming, NULL);
    uv_close((uv_handle_t *)&serve->loaded, NULL);
}

static void on_drain_timeout(uv_timer_t *timer)
{
    struct serve *serve = timer->data;
    stop_hard(serve, "drain_timeout_s has passed", bag_loops_in_flight(&serve->loops),
              BAG_EXIT_FAILED);
}

static void drain(struct serve *serve)
{
    serve->service.state = BAG_SERVICE_DRAINING;
    bag_log(BAG_LOG_LEVEL_INFO, "draining",
            BAG_LOG_NUMBER("in_flight", bag_loops_in_flight(&serve->loops)));
    bag_systemd_notify("STOPPING=1\nSTATUS=Finishing requests");
    bag_reconciler_cancel(&serve->reconciler);
    uv_timer_start(&serve->drain_timer, on_drain_timeout,
                   (uint64_t)serve->config.options.drain_timeout_s * 1000, 0);
    bag_loops_drain(&serve->loops);
}

static void on_delay_passed(uv_timer_t *timer)
{
    drain(timer->data);
}

static void on_configuration(struct bag_change *change)
{
    free(change);
}

/* Configures the server again. Called on the reconciler's thread, which then serves the new
 * models. */
static bool read_again(void *context, struct bag_config *config, struct bag_problem *problem)
{
    struct serve *serve = context;
    if (!bag_configure_serve(config, serve->argc, serve->argv, problem) ||
        !bag_config_validate(config, problem))
        return false;
    if (!bag_config_same_options(&serve->config, config))
        bag_log(BAG_LOG_LEVEL_WARNING, "options unchanged",
                BAG_LOG_TEXT("reason", "only models are read again; restart the server for "
                                       "other options"));
    return true;
}

static void reload_models(struct serve *serve)
{
    struct bag_change *change = calloc(1, sizeof *change);
    struct bag_problem problem;
    if (!change) {
        bag_log(BAG_LOG_LEVEL_ERROR, "not reloaded", BAG_LOG_TEXT("reason", "not enough memory"));
        return;
    }
    *change = (struct bag_change){
        .kind = BAG_CHANGE_CONFIGURATION, .who = "SIGHUP", .on_done = on_configuration};
    if (bag_reconciler_submit(&serve->reconciler, change, &problem))
        return;
    free(change);
    bag_log(BAG_LOG_LEVEL_ERROR, "not reloaded", BAG_LOG_TEXT("reason", problem.text));
}

static void on_signal(uv_signal_t *handle, int signal_number)
{
    struct serve *serve = handle->data;
    size_t in_flight = bag_loops_in_flight(&serve->loops);
    if (signal_number == SIGHUP) {
        /* Reload tokens, and all models if they may change. */
        bool controls = serve->config.options.model_control != BAG_MODEL_CONTROL_NONE;
        const char *token_file = serve->config.options.token_file;
        struct bag_problem problem;
        if (token_file && !bag_http_tokens_load(&serve->tokens, token_file, &problem))
            bag_log(BAG_LOG_LEVEL_ERROR, "not reloaded", BAG_LOG_TEXT("reason", problem.text));
        else if (token_file)
            bag_log(BAG_LOG_LEVEL_INFO, "reloaded",
                    BAG_LOG_NUMBER("tokens", bag_http_tokens_count(&serve->tokens)));
        if (controls && serve->service.state == BAG_SERVICE_READY)
            reload_models(serve);
        if (!controls && !token_file)
            bag_log(BAG_LOG_LEVEL_WARNING, "not reloaded",
                    BAG_LOG_TEXT("reason",
                                 "SIGHUP changes nothing without a token_file or "
                                 "model_control; restart the server to load other tables"));
        return;
    }
    /* timeout(1) and others send a signal to the process and again to its group. These two count as
     * one. */
    uint64_t now_ns = uv_hrtime();
    if (serve->stopping_ns && now_ns - serve->stopping_ns < SAME_SIGNAL_NS)
        return;
    serve->stopping_ns = now_ns;
    if (serve->service.state == BAG_SERVICE_DRAINING)
        stop_hard(serve, "signal while draining", in_flight, BAG_EXIT_FAILED);
    bag_log(BAG_LOG_LEVEL_INFO, "stopping",
            BAG_LOG_TEXT("signal", signal_number == SIGTERM ? "SIGTERM" : "SIGINT"));
    if (serve->service.state == BAG_SERVICE_READY && serve->config.options.drain_delay_s > 0) {
        /* Keep serving for a while, because a load balancer notices only at its next health check
         * that it must send requests elsewhere. */
        uint64_t delay_s = (uint64_t)serve->config.options.drain_delay_s;
        serve->service.state = BAG_SERVICE_LEAVING;
        bag_log(BAG_LOG_LEVEL_INFO, "leaving", BAG_LOG_NUMBER("drain_delay_s", delay_s));
        bag_systemd_notify("STOPPING=1\nSTATUS=Serving until load balancers have turned away");
        uv_timer_start(&serve->drain_timer, on_delay_passed, delay_s * 1000, 0);
    } else {
        drain(serve);
    }
}

/* ---- loading --------------------------------------------------------------------------------- */

static void tell_loaded(void *context)
{
    struct serve *serve = context;
    uv_async_send(&serve->loaded);
}

static void on_loaded(uv_async_t *loaded)
{
    struct serve *serve = loaded->data;
    struct bag_problem problem;
    char url[BAG_LISTENER_URL_BYTES];
    signal(SIGABRT, SIG_DFL);
    serve->first_done = true;
    if (serve->service.state != BAG_SERVICE_LOADING)
        return; /* a signal came first */
    if (!bag_reconciler_succeeded(&serve->reconciler, &problem)) {
        bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", problem.text));
        serve->exit_code = BAG_EXIT_FAILED;
        drain(serve);
        return;
    }
    size_t count = serve->reconciler.first_models;
    serve->service.state = BAG_SERVICE_READY;
    bag_systemd_notify("READY=1\nSTATUS=Serving %zu models", count);
    bag_log(BAG_LOG_LEVEL_INFO, "ready", BAG_LOG_NUMBER("models", count),
            BAG_LOG_NUMBER("bytes", serve->reconciler.first_bytes),
            BAG_LOG_TEXT("url", bag_listeners_url(&serve->listeners, &serve->config.options, url)));
}

/* ---- the history of the last minutes, for the console ---------------------------------------- */

/* Samples the server once a second. */
static void on_second(uv_timer_t *timer)
{
    struct serve *serve = timer->data;
    struct bag_loop_counters sum;
    struct bag_process_load load;
    bag_process_sample_load(&load);
    bag_metrics_sum_loops(&serve->service.metrics, &sum);
    const struct bag_history_levels levels = {
        .waiting = (uint32_t)bag_counter_get(sum.queued[0]),
        .in_flight = (uint32_t)bag_counter_get(sum.in_flight[0]),
        .connections = (uint32_t)bag_counter_get(sum.connections[0]),
        .busy_workers = serve->workers.count - bag_workers_idle(&serve->workers),
        .request_bytes = atomic_load(&serve->service.budget.used_bytes),
        .table_bytes = bag_pages_used(),
        .resident_bytes = load.resident_bytes};
    bag_history_sample(&serve->service.history, uv_hrtime(), &levels, load.cpu_ns);
}

/* Starts the timer, after the workers and before any loop answers. It stays idle if the console or
 * metrics are off. Returns false and sets *problem without memory. */
static bool start_recording(struct serve *serve, struct bag_problem *problem)
{
    struct bag_service *service = &serve->service;
    struct bag_process_load load;
    serve->recording.data = serve;
    uv_timer_init(&serve->loop, &serve->recording);
    if (!service->metrics.on || serve->config.options.console == BAG_SWITCH_OFF)
        return true;
    bag_process_sample_load(&load);
    if (!bag_history_init(&service->history, &service->metrics, uv_hrtime(), load.cpu_ns))
        return bag_problem_no_memory(problem);
    uv_timer_start(&serve->recording, on_second, 1000, 1000);
    return true;
}

/* ---- the heap -------------------------------------------------------------------------------- */

/* The number of threads that share one heap. Each of several heaps stays as large as it once was,
 * and together they would have a multiple of the budget. Binary requests need no heap, and those in
 * JSON spend 2 % of their time under its lock. */
#define THREADS_PER_HEAP 16

/* The heap is trimmed if the memory of requests and connections has fallen by at least this, and to
 * half, and has stayed there for so many seconds. By then pools and lists have freed what they
 * kept. */
#define TRIM_BYTES   ((size_t)16 << 20)
#define TRIM_SECONDS 3

/* Returns the free parts of the heap to the system. glibc returns only its ends by itself. Takes
 * some milliseconds for each 100 MiB, so a worker does it. */
static void trim_heap(struct bag_work *work)
{
    struct serve *serve = (void *)((char *)work - offsetof(struct serve, trim));
    malloc_trim(0);
    atomic_store(&serve->trims, false);
}

/* Has the heap trimmed after a burst of requests or connections. A steady load keeps what it uses
 * again. */
static void on_trim(uv_timer_t *timer)
{
    struct serve *serve = timer->data;
    struct bag_budget *budget = &serve->service.budget;
    size_t connections =
        atomic_load(&serve->loops.acceptor.clients.open) * BAG_HTTP_CONNECTION_BYTES;
    size_t bytes = atomic_load(&budget->used_bytes) + connections;
    size_t most = atomic_load(&budget->most_bytes) + connections;
    if (most > serve->trim_bytes)
        serve->trim_bytes = most;
    bool has_fallen = bytes <= serve->trim_bytes / 2 && serve->trim_bytes - bytes >= TRIM_BYTES;
    serve->fallen_seconds = has_fallen ? serve->fallen_seconds + 1 : 0;
    bag_budget_forget_most(budget);
    if (serve->fallen_seconds < TRIM_SECONDS || atomic_exchange(&serve->trims, true))
        return;
    serve->trim_bytes = bytes;
    serve->fallen_seconds = 0;
    bag_workers_push(&serve->workers, &serve->trim, BAG_WORK_IN_ORDER);
}

static void start_trimming(struct serve *serve)
{
    serve->trimming.data = serve;
    serve->trim.run = trim_heap;
    uv_timer_init(&serve->loop, &serve->trimming);
    uv_timer_start(&serve->trimming, on_trim, 1000, 1000);
}

/* ---- starting -------------------------------------------------------------------------------- */

static bool load_tokens(struct serve *serve, struct bag_problem *problem)
{
    const char *path = serve->config.options.token_file;
    if (!path)
        return true;
    if (!bag_http_tokens_init(&serve->tokens))
        return bag_problem_no_memory(problem);
    serve->service.tokens = &serve->tokens;
    return bag_http_tokens_load(&serve->tokens, path, problem);
}

static bool configure(struct serve *serve, int argc, char *argv[], struct bag_problem *problem)
{
    struct bag_config *config = &serve->config;
    if (!bag_configure_serve(config, argc, argv, problem))
        return false;
    bag_log_configure(config->options.log_format, config->options.log_level);
    mode_t mode;
    if (!bag_isa_choose(config->options.isa, problem))
        return bag_config_reject_value(config, "isa", problem);
    if (!bag_unix_mode_parse(config->options.unix_permissions, &mode, problem))
        return bag_config_reject_value(config, "unix_permissions", problem);
    if (config->options.load == BAG_LOAD_MAP && config->options.updates == BAG_SWITCH_ON)
        bag_log(BAG_LOG_LEVEL_WARNING, "updates have no effect",
                BAG_LOG_TEXT("reason", "with load map, tables stay in their files, and updates of "
                                       "their rows are rejected; set load copy, here or for the "
                                       "models that change"));
    bag_blas_prepare();
    bag_pages_configure(&config->options);
    if (config->options.numa == BAG_NUMA_INTERLEAVE && bag_pages_nodes() == 1)
        bag_log(BAG_LOG_LEVEL_INFO, "numa",
                BAG_LOG_TEXT("message", "there is one memory node: interleave changes nothing"));
    return bag_config_validate(config, problem) && load_tokens(serve, problem) &&
           bag_reconciler_open(&serve->reconciler, config, &serve->service.registry, bag_blas_load,
                               problem);
}

/* Initialises the streams of updates, to which the reconciler attaches tables. */
static bool init_updates(struct serve *serve, struct bag_problem *problem)
{
    const struct bag_option_values *options = &serve->config.options;
    struct bag_updates_settings settings = {.journal_dir = options->journal_dir,
                                            .sync = options->journal_sync,
                                            .sync_interval_ms = JOURNAL_SYNC_INTERVAL_MS,
                                            .disk = &bag_system_disk,
                                            .journal_file_bytes = BAG_JOURNAL_FILE_BYTES,
                                            .journal_kept_bytes =
                                                (uint64_t)options->journal_kept_bytes,
                                            .kept_bytes = (size_t)options->updates_memory,
                                            .ready_file = options->ready_file};
    if (options->updates == BAG_SWITCH_OFF)
        return true;
    if (!bag_updates_init(&serve->updates, &settings))
        return bag_problem_no_memory(problem);
    serve->service.updates = serve->reconciler.models.updates = &serve->updates;
    return bag_updates_start(&serve->updates, problem);
}

/* Ignores signals that would end the process with all its requests, and SIGHUP until it is caught.
 * With SIGXFSZ ignored, a write beyond the limit of file sizes fails as on a full disk. */
static void ignore_signals(void)
{
    static const int numbers[] = {SIGPIPE, SIGHUP, SIGUSR1, SIGUSR2, SIGXFSZ};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        signal(numbers[i], SIG_IGN);
}

static bool catch_signals(struct serve *serve, struct bag_problem *problem)
{
    for (size_t i = 0; i < NUM_SIGNALS; i++) {
        int error = uv_signal_init(&serve->loop, &serve->signals[i]);
        serve->signals[i].data = serve;
        if (!error)
            error = uv_signal_start(&serve->signals[i], on_signal, signal_numbers[i]);
        if (error)
            return bag_problem_set(problem, BAG_ERROR_SYSTEM, "signals cannot be caught: %s",
                                   uv_strerror(error));
    }
    return true;
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    bag_systemd_notify("WATCHDOG=1");
}

/* Initialises the handles of the first loop besides its server. */
static bool init_handles(struct serve *serve, struct bag_problem *problem)
{
    uint64_t watchdog_ms = bag_systemd_watchdog_ms();
    uv_timer_init(&serve->loop, &serve->drain_timer);
    uv_timer_init(&serve->loop, &serve->watchdog);
    serve->drain_timer.data = serve->loaded.data = serve;
    start_trimming(serve);
    int error = uv_async_init(&serve->loop, &serve->loaded, on_loaded);
    if (error)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "a loop cannot be started: %s",
                               uv_strerror(error));
    /* The watchdog watches the first loop: while that runs, the process answers. */
    if (watchdog_ms)
        uv_timer_start(&serve->watchdog, on_watchdog, 0, watchdog_ms);
    return catch_signals(serve, problem);
}

static bool start_loops(struct serve *serve, struct bag_problem *problem)
{
    serve->loops.on_ended = on_ended;
    serve->loops.context = serve;
    if (!bag_listeners_open(&serve->listeners, &serve->config.options, problem) ||
        !bag_listeners_check_guard(&serve->listeners, serve->service.tokens != NULL,
                                   &serve->config.options, problem))
        return false;
    serve->service.has_admin = serve->listeners.has_admin;
    return bag_loops_start(&serve->loops, &serve->loop, &serve->service, &serve->listeners,
                           problem);
}

static bool start_reconciler(struct serve *serve, struct bag_problem *problem)
{
    bag_listeners_log(&serve->listeners, &serve->config.options);
    bag_systemd_notify("STATUS=Loading %zu models", serve->reconciler.first_models);
    serve->reconciler.on_loaded = tell_loaded;
    serve->reconciler.configure = read_again;
    serve->reconciler.context = serve;
    return bag_reconciler_start(&serve->reconciler, problem);
}

/* Initialises the metrics and the registry, which each loop and the admin listener read. */
static bool start_registry(struct serve *serve, struct bag_problem *problem)
{
    struct bag_service *service = &serve->service;
    bag_metrics_init(&service->metrics, serve->config.options.metrics != BAG_METRICS_OFF,
                     serve->config.options.metric_histograms);
    service->metrics.latency_target_ms = (uint64_t)serve->config.options.latency_target_ms;
    if (!bag_registry_init(&service->registry, (size_t)serve->config.options.loops + 1))
        return bag_problem_no_memory(problem);
    service->registry.on_slot = bag_metrics_begin_slot;
    service->registry.slot_context = &service->metrics;
    return bag_reconciler_announce(&serve->reconciler, problem);
}

static bool start_trace(struct serve *serve, struct bag_problem *problem)
{
    const struct bag_option_values *options = &serve->config.options;
    double sample;
    if (!options->otlp_endpoint)
        return true;
    bag_fraction_parse(options->trace_sample, &sample); /* the value was validated before */
    bool ignores;
    char *resource = bag_otlp_resource(BAG_VERSION, getenv("OTEL_SERVICE_NAME"),
                                       getenv("OTEL_RESOURCE_ATTRIBUTES"), &ignores);
    if (!resource)
        return bag_problem_no_memory(problem);
    if (ignores)
        bag_log(BAG_LOG_LEVEL_WARNING, "OTEL_RESOURCE_ATTRIBUTES ignored",
                BAG_LOG_TEXT("reason", "it must be KEY=VALUE pairs with commas between them, in "
                                       "which %XX stands for a byte"));
    serve->service.trace = bag_trace_start(options->otlp_endpoint, sample, resource, problem);
    free(resource);
    if (serve->service.trace)
        serve->service.metrics.spans_dropped = bag_trace_dropped(serve->service.trace);
    return serve->service.trace != NULL;
}

static bool start(struct serve *serve, struct bag_problem *problem)
{
    int error;
    bag_loops_raise_descriptors();
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES);
    mallopt(M_ARENA_MAX, 1 + (int)(serve->config.options.loops + serve->config.options.workers) /
                                 THREADS_PER_HEAP);
    bag_budget_init(&serve->service.budget, (size_t)serve->config.options.max_memory,
                    serve->reconciler.first_bytes);
    serve->service.workers = &serve->workers;
    serve->service.metrics.budget = &serve->service.budget;
    serve->service.metrics.loading = &serve->reconciler.models.status;
    return bag_log_start(problem) && start_trace(serve, problem) &&
           bag_workers_start(&serve->workers, (unsigned)serve->config.options.workers, WORKER_NICE,
                             problem) &&
           init_updates(serve, problem) &&
           bag_loops_check_descriptors((size_t)serve->config.options.loops, problem) &&
           ((error = uv_loop_init(&serve->loop)) == 0 ||
            bag_problem_set(problem, BAG_ERROR_SYSTEM, "a loop cannot be started: %s",
                            uv_strerror(error))) &&
           start_recording(serve, problem) && start_loops(serve, problem) &&
           init_handles(serve, problem) && start_reconciler(serve, problem);
}

/* Explains an abort during the start. libuv aborts without a message if a system call fails. */
static void on_abort(int signal_number)
{
    static const char text[] =
        "bagserve: the start was aborted: the system lacks memory, descriptors or threads\n";
    (void)signal_number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(BAG_EXIT_FAILED);
    _exit(BAG_EXIT_FAILED);
}

/* Runs the server. A failed start is not undone, because threads may run already. */
static void run(struct serve *serve)
{
    struct bag_problem problem;
    serve->service.config = &serve->config;
    serve->service.reconciler = &serve->reconciler;
    serve->service.shards = serve->reconciler.shards;
    serve->service.state = BAG_SERVICE_LOADING;
    signal(SIGABRT, on_abort);
    if (!start_registry(serve, &problem) || !start(serve, &problem)) {
        bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", problem.text));
        bag_listeners_abandon(&serve->listeners);
        bag_log_stop();
        _exit(BAG_EXIT_FAILED);
    }
    uv_run(&serve->loop, UV_RUN_DEFAULT);
    bag_workers_stop(&serve->workers);
    if (serve->service.updates) /* after the last request and before the tables are freed */
        bag_updates_stop(&serve->updates);
    bag_reconciler_stop(&serve->reconciler);
    bag_loops_free(&serve->loops);
    assert(atomic_load(&serve->service.budget.used_bytes) == 0);
    bag_log(BAG_LOG_LEVEL_INFO, "stopped");
    uv_loop_close(&serve->loop);
    bag_history_free(&serve->service.history);
    serve->service.metrics.spans_dropped = NULL;
    bag_trace_stop(serve->service.trace);
    bag_metrics_free(&serve->service.metrics);
    bag_registry_free(&serve->service.registry);
    bag_reconciler_close(&serve->reconciler);
    if (serve->service.updates)
        bag_updates_free(&serve->updates);
}

/* Lists all models for --check, including those that cannot be served. Returns false and sets
 * *problem if there are any of the latter. */
static bool check_models(const struct bag_reconciler *reconciler, struct bag_problem *problem)
{
    struct bag_check check;
    bool ok = bag_reconciler_check(reconciler, &check, problem);
    if (ok)
        bag_report_checked(reconciler, &check);
    if (ok && check.count > 0)
        ok = bag_problem_set(problem, BAG_ERROR_FILE, "%zu version%s cannot be served", check.count,
                             check.count == 1 ? "" : "s");
    bag_check_free(&check);
    return ok;
}

/* Does the work of --check. */
static bool check(struct serve *serve, struct bag_problem *problem)
{
    const struct bag_option_values *options = &serve->config.options;
    bag_listeners_expect(&serve->listeners, options);
    return bag_listeners_check_guard(&serve->listeners, serve->service.tokens != NULL, options,
                                     problem) &&
           check_models(&serve->reconciler, problem);
}

int bag_cmd_serve(int argc, char *argv[])
{
    struct bag_problem problem;
    bool all = bag_arguments_have(argc, argv, "--help-all");
    if (all || bag_arguments_ask_help(argc, argv)) {
        bag_config_print_help(stdout, all);
        return BAG_EXIT_OK;
    }
    if (bag_arguments_have(argc, argv, "--version"))
        return bag_cmd_version(argc, argv);
    struct serve *serve = calloc(1, sizeof *serve);
    if (!serve) {
        fputs("bagserve: not enough memory\n", stderr);
        return BAG_EXIT_FAILED;
    }
    ignore_signals();
    serve->argc = argc;
    serve->argv = argv;
    bool ok = configure(serve, argc, argv, &problem);
    bool is_usage = !ok && problem.kind == BAG_ERROR_USAGE;
    if (ok && serve->config.check)
        ok = check(serve, &problem);
    else if (ok)
        run(serve);
    if (is_usage) {
        fprintf(stderr, "bagserve: %s\n", problem.text);
        serve->exit_code = BAG_EXIT_USAGE;
    } else if (!ok) {
        bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", problem.text));
        serve->exit_code = BAG_EXIT_FAILED;
    }
    int exit_code = serve->exit_code;
    bag_log_stop();
    if (serve->service.tokens)
        bag_http_tokens_free(&serve->tokens);
    bag_reconciler_close(&serve->reconciler);
    bag_config_free(&serve->config);
    free(serve);
    return exit_code;
}
