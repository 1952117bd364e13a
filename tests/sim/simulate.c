/* Runs schedules: a server, its clients and its end, each by a seed; see sim.h.
 *
 *   sim [--schedules N] [--seed S] [--show] [--list]
 *
 * N schedules (default 1) from seed S (default 1) on. --show prints all that happens, --list a line
 * for each schedule. */
#include "sim.h"

#include "server/commands.h"
#include "server/loops.h"
#include "server/memory/memory.h"
#include "server/models/hot_rows.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
size_t __sanitizer_get_current_allocated_bytes(void);
void __sanitizer_set_death_callback(void (*callback)(void));
#define on_death(callback) __sanitizer_set_death_callback(callback)
#else
#define on_death(callback) ((void)(callback))
#endif

/* Memory that a schedule frees stays in AddressSanitizer's quarantine for the next schedules. */
SIM_PUBLIC const char *__asan_default_options(void)
{
    return "quarantine_size_mb=8:malloc_context_size=8:detect_stack_use_after_return=0";
}

/* From the signal to the end, but for drain_delay_s. */
#define STOPS_NS (8 * S)

#define MAX_ARGUMENTS 64

static struct {
    char *arguments[MAX_ARGUMENTS];
    int num_arguments;
    bool ended, lists;
    uint64_t ended_ns;
    int exit_code;
} world;

/* ---- options --------------------------------------------------------------------------------- */

/* Returns whether the schedule has a process of its own, which the server may end. */
static bool is_apart(uint64_t seed)
{
    return seed % 32 == 5;
}

static void add_argument(const char *text)
{
    sim_require(world.num_arguments < MAX_ARGUMENTS, "too many arguments");
    size_t bytes = strlen(text) + 1;
    world.arguments[world.num_arguments++] = memcpy(sim_alloc(bytes), text, bytes);
}

static void set(const char *flag, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    add_argument(flag);
    add_argument(text);
}

static void set_text(const char *flag, const char *value)
{
    add_argument(flag);
    add_argument(value);
}

static void choose_limits(void)
{
    story.limits = sim_one_in(4);
    if (!story.limits)
        return;
    if (sim_one_in(2))
        set("--max-queue-size", 1 + sim_below(4));
    if (sim_one_in(3))
        set("--default-timeout-us", 1 + sim_below(5000));
    if (sim_one_in(3))
        set("--latency-target-ms", 1 + sim_below(5));
    if (sim_one_in(3))
        set("--max-connections", 2 + sim_below(6));
    if (sim_one_in(2))
        set("--max-memory", (1 << 20) + sim_below(8 << 20));
}

/* Without a journal updates are kept in memory. */
static void choose_journal(void)
{
    static const char *const syncs[] = {"always", "interval", "off"};
    set_text("--updates", "on");
    if (sim_one_in(3))
        return;
    set_text("--journal-dir", "journal");
    set_text("--journal-sync", syncs[sim_below(3)]);
}

static void choose_timeouts(void)
{
    set("--request-timeout-s", 1 + sim_below(3));
    set("--reply-timeout-s", 1 + sim_below(3));
    story.idle_timeout_s = 2 + sim_below(3);
    set("--idle-timeout-s", story.idle_timeout_s);
}

static void choose_logs(void)
{
    set_text("--access-log", sim_one_in(2) ? "on" : "off");
    set_text("--log-format", sim_one_in(2) ? "json" : "text");
}

static void choose_proxy(void)
{
    story.proxy = sim_one_in(4);
    if (!story.proxy)
        return;
    set_text("--proxy-protocol", "v2");
    set_text("--trusted-proxies", "10.0.0.0/8");
}

static void choose_options(void)
{
    world.num_arguments = 0;
    story = (struct sim_story){.signal_ns = UINT64_MAX, .hurries = is_apart(sim.seed)};
    set("--port", PORT);
    set("--admin-port", ADMIN_PORT);
    set_text("--models", "models");
    set_text("--token-file", "tokens");
    story.polls = sim_one_in(8);
    set_text("--model-control", story.polls ? "poll" : "explicit");
    set("--poll-seconds", POLL_S);
    set("--loops", 1 + sim_below(3));
    set("--workers", 1 + sim_below(3));
    set("--inline-work-us", sim_one_in(2) ? 0 : 50);
    choose_timeouts();
    choose_logs();
    story.drain_delay_s = sim_one_in(4) ? 1 : 0;
    set("--drain-delay-s", story.drain_delay_s);
    choose_proxy();
    choose_limits();
    if (!story.limits)
        set("--max-memory", 256 << 20);
    story.controls = !story.polls && sim_one_in(2);
    story.updates = sim_one_in(2);
    if (story.updates)
        choose_journal();
    story.clients = 1 + sim_below(10);
}

/* ---- the end --------------------------------------------------------------------------------- */

bool sim_has_stopped(void)
{
    return world.ended;
}

static void check_ended(void *context)
{
    (void)context;
    sim_require(world.ended, "the server has not ended %d s after the signal", (int)(STOPS_NS / S));
}

/* A second signal ends the delay. */
static void hurry_server(void *context)
{
    (void)context;
    sim_signal(SIGTERM);
}

static void end_server(void *context)
{
    (void)context;
    if (story.signal_ns != UINT64_MAX)
        return;
    story.signal_ns = sim.now_ns;
    if (story.drain_delay_s && !story.hurries && sim_one_in(3))
        sim_at(sim.now_ns + sim_below(S / 2), hurry_server, NULL);
    sim_signal(sim_one_in(2) ? SIGTERM : SIGINT);
    sim_at(sim.now_ns + story.drain_delay_s * S + STOPS_NS, check_ended, NULL);
}

void sim_on_clients_done(void)
{
    sim_at(sim.now_ns + sim_below(20 * MS), end_server, NULL);
}

/* Makes the server read the configuration and the tokens again, which are unchanged. */
static void reload_server(void *context)
{
    (void)context;
    sim_signal(SIGHUP);
}

/* In half of all schedules the signal comes while clients are at work. */
void sim_on_ready(void)
{
    while (sim_one_in(4))
        sim_at(sim.now_ns + sim_below(50 * MS), reload_server, NULL);
    uint64_t within_ns = story.polls ? 10 * POLL_S * S : sim_one_in(2) ? 20 * MS : 200 * MS;
    if (sim_one_in(2))
        sim_at(sim.now_ns + sim_below(within_ns), end_server, NULL);
    if (story.polls)
        sim_tables_publish();
}

void __real_bag_loops_free(struct bag_loops *loops);

/* Frees what the loop's pools keep for later requests. The second trim finds that nothing was used
 * since the first. */
static void free_kept(struct bag_loop *loop)
{
    struct bag_http_context *context = &loop->server.context;
    struct bag_buffers *const pools[] = {&context->buffers, &context->engine.buffers};
    for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++) {
        bag_buffers_trim(pools[i]);
        bag_buffers_trim(pools[i]);
        while (bag_buffers_free_some(pools[i]))
            continue;
    }
}

/* All requests have ended: what they held was given back before the server frees its loops. */
void __wrap_bag_loops_free(struct bag_loops *loops)
{
    struct bag_service *service = loops->service;
    sim_require(atomic_load(&loops->acceptor.clients.counted) == 0, "%zu connections are left",
                atomic_load(&loops->acceptor.clients.counted));
    sim_require(bag_loops_in_flight(loops) == 0, "%zu requests are in flight",
                bag_loops_in_flight(loops));
    for (unsigned i = 0; i < loops->count + loops->has_admin; i++)
        free_kept(&loops->loops[i]);
    sim_require(atomic_load(&service->budget.used_bytes) == 0, "ended requests hold %zu bytes",
                atomic_load(&service->budget.used_bytes));
    __real_bag_loops_free(loops);
    sim_require(atomic_load(&service->budget.used_bytes) == 0, "%zu bytes of the budget are left",
                atomic_load(&service->budget.used_bytes));
    bag_registry_collect(&service->registry);
    sim_require(!service->registry.left, "snapshots are left");
}

/* ---- schedules ------------------------------------------------------------------------------- */

static void serve(void *context)
{
    (void)context;
    world.exit_code = bag_cmd_serve(world.num_arguments, world.arguments);
    world.ended = true;
    sim_note("ended", (uint64_t)world.exit_code, 0);
}

static void begin_schedule(void *context)
{
    choose_options();
    sim_clients_begin();
    if (story.hurries)
        sim_at(sim.now_ns + sim_below(sim_one_in(2) ? 2 * MS : 20 * MS), end_server, NULL);
    serve(context);
}

static void run_schedule(uint64_t seed)
{
    static const uint64_t switches[] = {2, 4, 16, 64};
    bool shows = sim.shows;
    sim = (struct sim){.seed = seed, .shows = shows, .now_ns = 1000 * S};
    sim.switches_in = switches[seed % 4];
    sim.slow_in = seed / 4 % 2 ? 50 : 1000;
    world.ended = false;
    bag_hot_sampling = (struct bag_hot_sampling){0, 0};
    sim_network_begin();
    sim_run_threads(begin_schedule, NULL);
    sim_network_end();
    if (story.updates)
        sim_empty_folder("journal");
    sim_tables_forget_published();
    sim_require(bag_pages_used() == 0, "%zu bytes of tables are left", bag_pages_used());
    sim_require(world.ended && world.exit_code == 0, "exit code %d", world.exit_code);
    if (shows || world.lists)
        printf("seed %llu: trace %016llx, %llu turns, %.3f s\n", (unsigned long long)seed,
               (unsigned long long)sim.trace, (unsigned long long)sim.steps,
               (double)(sim.now_ns - 1000 * S) / 1e9);
}

/* ---- schedules in which the server may end itself -------------------------------------------- */

/* Shared by the process of such a schedule. */
static struct report {
    struct sim sim;
    struct sim_counters counters;
} * report;

static void leave_apart(void)
{
    *report = (struct report){sim, counters};
    fflush(NULL);
    syscall(SYS_exit_group, 0);
    abort();
}

/* Without a thread of its own any more; clients still get what was sent. */
void sim_on_exit(int code)
{
    sim_require(story.hurries && story.signal_ns != UINT64_MAX && code == 0,
                "the server ends itself: exit code %d", code);
    sim_note("exit", 0, 0);
    world.ended = true;
    sim_network_close();
    sim_end_threads();
    leave_apart();
    abort();
}

static void run_apart(uint64_t seed)
{
    int status;
    if (!report)
        report =
            mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run_schedule(seed);
        leave_apart();
    }
    if (report == MAP_FAILED || waitpid(child, &status, 0) != child || status != 0)
        exit(1);
    sim = report->sim;
    counters = report->counters;
}

/* glibc without a sanitizer counts what it keeps for the next ones: unknown there. */
static size_t bytes_in_use(void)
{
#ifdef __SANITIZE_ADDRESS__
    return __sanitizer_get_current_allocated_bytes();
#else
    return 0;
#endif
}

/* Runs one schedule. A schedule may leave memory in the heap only once (buffers of streams, and the
 * like): the same schedule runs again, and then must leave nothing. Some of that memory comes with
 * the second run only, so a third one decides. */
static void run_clean(uint64_t seed)
{
    size_t before, left = 0;
    uint64_t trace = 0;
    if (is_apart(seed)) {
        run_apart(seed);
        return;
    }
    for (int run = 0; run == 0 || (left && run < 3); run++) {
        before = bytes_in_use();
        run_schedule(seed);
        left = bytes_in_use() > before ? bytes_in_use() - before : 0;
        sim_require(run == 0 || sim.trace == trace, "the seed does not repeat");
        trace = sim.trace;
    }
    sim_require(!left, "%zu bytes leak", left);
}

static double real_seconds(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The sanitizer has found something. */
static void tell_seed(void)
{
    fprintf(stderr, "seed %llu\n", (unsigned long long)sim.seed);
    fflush(stdout);
}

/* Returns false if the arguments are wrong. */
static bool read_arguments(int argc, char *argv[], uint64_t *schedules, uint64_t *first)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--schedules") == 0 && i + 1 < argc)
            *schedules = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            *first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--show") == 0)
            sim.shows = true;
        else if (strcmp(argv[i], "--list") == 0)
            world.lists = true;
        else
            return false;
    }
    return true;
}

static void run_schedules(uint64_t schedules, uint64_t first)
{
    double begun = real_seconds();
    uint64_t all = 0, turns = 0;
    for (uint64_t i = 0; i < schedules; i++) {
        run_clean(first + i);
        all = all * 31 + sim.trace;
        turns += sim.steps;
    }
    double took = real_seconds() - begun;
    printf("%llu schedules from seed %llu: %.1f s, %.2f ms and %llu turns each; trace %016llx\n",
           (unsigned long long)schedules, (unsigned long long)first, took,
           took * 1000 / (double)schedules, (unsigned long long)(turns / schedules),
           (unsigned long long)all);
    printf(
        "requests %llu, answered %llu, rejected %llu, aborted %llu; changes %llu, updates %llu\n",
        (unsigned long long)counters.asked, (unsigned long long)counters.answered,
        (unsigned long long)counters.rejected, (unsigned long long)counters.aborted,
        (unsigned long long)counters.changes, (unsigned long long)counters.updates);
}

int main(int argc, char *argv[])
{
    uint64_t schedules = 1, first = 1;
    on_death(tell_seed);
    if (!read_arguments(argc, argv, &schedules, &first))
        return fputs("sim [--schedules N] [--seed S] [--show] [--list]\n", stderr), 2;
    sim_tables_write();
    run_schedules(schedules, first);
    sim_tables_remove();
    return 0;
}
