/* The generator of load; see load.h. */
#include "load.h"

#include "draw.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define MAX_EVENTS 256
#define NS_PER_S   UINT64_C(1000000000)
/* The number of requests that are started in a row before replies are read. */
#define BURST 32
/* The server is gone if all requests failed for this long. */
#define GONE_NS NS_PER_S

struct bag_bench_load {
    const struct bag_bench_options *options;
    const struct bag_address *address;
    const struct bag_bench_request *requests;
    size_t num_requests, next_request;
    FILE *log;
    uint64_t random; /* state of the random due times */
    int epoll_fd;
    struct bag_bench_connection *connections; /* owned; options->connections of them */
    size_t opened;                            /* connections opened so far, including closed ones */
    struct bag_bench_connection *idle;        /* list of free ones, perhaps closed */
    uint64_t freed_ns; /* time at which one became idle after all were busy */
    uint64_t pending;  /* requests without a reply yet */

    /* The plan that is executed. */
    const struct bag_bench_plan *plan;
    struct bag_bench_count *counts; /* owned; element 0 is the warm-up if there is one */
    size_t num_counts, step;        /* step: index in which requests are due now */
    size_t arrival_step;            /* index in which replies arrive now; num_counts: after all */
    uint64_t started;               /* requests of the last step */
    /* The start of the first step that is counted, the time of the last reply of any status, and
     * the number of requests since then that had no reply. */
    uint64_t first_ns, last_reply_ns, failed_in_a_row;
    uint64_t reported_ns, reported_arrived; /* at the last progress */
    struct bag_bench_latency recent;        /* latencies of replies 200 since then */
    char last_failure[200];                 /* reason why the last request had no reply */
    bool gone;                              /* the server does not answer any more */
};

/* Set by SIGINT and SIGTERM. All loops end then. */
static volatile sig_atomic_t stopped;

/* Runs as a signal handler. */
static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

/* Returns the CPU time of this thread. */
static double cpu_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Writes a line of --log, unless the request was part of the warm-up. A status of 0 means that
 * there was no reply. */
static void write_log(const struct bag_bench_load *load,
                      const struct bag_bench_connection *connection, uint64_t now, int status)
{
    const struct bag_bench_count *first = &load->counts[load->plan->warmup_s > 0];
    if (!load->log || &load->counts[connection->step] < first)
        return;
    fprintf(load->log, "%.6f %.1f %.1f %d\n",
            ((double)connection->due_ns - (double)first->start_ns) / 1e9,
            (double)(connection->sent_ns - connection->due_ns) / 1e3,
            (double)(now - connection->due_ns) / 1e3, status);
}

/* Counts a reply. Latency and errors belong to the step in which the request was due, and the rates
 * to the step in which the reply arrived. */
static void count_reply(struct bag_bench_load *load, const struct bag_bench_connection *connection,
                        uint64_t now)
{
    struct bag_bench_count *step = &load->counts[connection->step], *current;
    while (load->arrival_step < load->num_counts && now >= load->counts[load->arrival_step].end_ns)
        load->arrival_step++;
    current = load->arrival_step < load->num_counts ? &load->counts[load->arrival_step] : NULL;
    load->last_reply_ns = now;
    load->failed_in_a_row = 0;
    write_log(load, connection, now, connection->reply.status);
    if (connection->reply.status != 200) {
        bag_bench_count_error(step, connection->due_ns, connection->reply.status, connection->error,
                              connection->error_bytes);
        return;
    }
    bag_bench_count_answer(step, connection->due_ns, now - connection->due_ns);
    bag_bench_latency_add(&load->recent, now - connection->due_ns);
    if (current) {
        current->arrived++;
        current->bags += connection->request->bags;
        current->rows += connection->request->rows;
        current->bytes += connection->request->gathered_bytes;
    }
}

/* Counts a request without a reply, as unsent if no byte of it left. */
static void count_lost(struct bag_bench_load *load, const struct bag_bench_connection *connection,
                       uint64_t now)
{
    load->failed_in_a_row++;
    snprintf(load->last_failure, sizeof load->last_failure, "%.*s", (int)connection->error_bytes,
             connection->error);
    write_log(load, connection, now, 0);
    struct bag_bench_count *step = &load->counts[connection->step];
    if (connection->sent > 0)
        bag_bench_count_error(step, connection->due_ns, 0, connection->error,
                              connection->error_bytes);
    else
        bag_bench_count_unsent(step, connection->due_ns, connection->error,
                               connection->error_bytes);
}

/* Adds a connection to the idle ones. Stores the time if all were busy: a request that is due
 * earlier waited for a connection. */
static void make_idle(struct bag_bench_load *load, struct bag_bench_connection *connection,
                      uint64_t now)
{
    if (!load->idle && load->opened == load->options->connections)
        load->freed_ns = now;
    connection->next_idle = load->idle;
    load->idle = connection;
}

static void start_request(struct bag_bench_load *load, struct bag_bench_connection *connection,
                          uint64_t due_ns, uint64_t now);

/* Returns whether a connection of the closed loop sends another request. A connection over which
 * nothing was ever received does not: it would fail again at once, without a pause. */
static bool continues(struct bag_bench_load *load, const struct bag_bench_connection *connection,
                      uint64_t now)
{
    if (load->plan->open || stopped || !connection->connected)
        return false;
    while (load->step + 1 < load->num_counts && now >= load->counts[load->step].end_ns)
        load->step++;
    return now < load->counts[load->step].end_ns && load->started < load->plan->requests;
}

/* Handles the outcome of a connection's request. The connection is free now, perhaps closed. */
static void finish(struct bag_bench_load *load, struct bag_bench_connection *connection,
                   enum bag_bench_outcome outcome)
{
    uint64_t now = uv_hrtime();
    if (outcome == BAG_BENCH_ENDED)
        return; /* the connection is idle already, and the next request opens it again */
    load->pending--;
    if (outcome == BAG_BENCH_REPLIED)
        count_reply(load, connection, now);
    else
        count_lost(load, connection, now);
    if (continues(load, connection, now))
        start_request(load, connection, now, now);
    else
        make_idle(load, connection, now);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void start_request(struct bag_bench_load *load, struct bag_bench_connection *connection,
                          uint64_t due_ns, uint64_t now)
{
    struct bag_bench_count *step = &load->counts[load->step];
    const struct bag_bench_request *request = &load->requests[load->next_request];
    load->next_request = (load->next_request + 1) % load->num_requests;
    connection->due_ns = due_ns;
    connection->sent_ns = now;
    connection->sent = 0;
    connection->step = (unsigned)load->step;
    load->started += load->step + 1 == load->num_counts;
    load->pending++;
    if (load->plan->open) /* the wait for a connection is not the generator's delay */
        bag_bench_latency_add(&step->late,
                              now - (due_ns > load->freed_ns ? due_ns : load->freed_ns));
    enum bag_bench_outcome outcome = BAG_BENCH_LOST;
    if (connection->fd >= 0 || bag_bench_connection_open(connection, load->epoll_fd, load->address))
        outcome = bag_bench_connection_begin(connection, load->epoll_fd, request);
    if (outcome != BAG_BENCH_PENDING)
        finish(load, connection, outcome);
}

/* Returns an idle connection or a new one; NULL if all are busy. */
static struct bag_bench_connection *free_connection(struct bag_bench_load *load)
{
    struct bag_bench_connection *connection = load->idle;
    if (connection) {
        load->idle = connection->next_idle;
        return connection;
    }
    if (load->opened == load->options->connections)
        return NULL;
    connection = &load->connections[load->opened++];
    connection->fd = -1;
    return connection;
}

/* Calls plan->on_progress once a second, but not during the warm-up. */
static void report_progress(struct bag_bench_load *load, uint64_t now)
{
    const struct bag_bench_count *step = &load->counts[load->step];
    if (!load->plan->on_progress || now < load->reported_ns + NS_PER_S)
        return;
    /* The counters of a step that has just begun may be lower than the reported ones. Nothing is
     * reported then. */
    bool warms = load->plan->warmup_s > 0 && load->step == 0;
    struct bag_bench_progress progress = {.rate = step->rate,
                                          .elapsed_s = (double)(now - load->first_ns) / 1e9,
                                          .requests_per_s =
                                              (double)(step->arrived - load->reported_arrived) /
                                              ((double)(now - load->reported_ns) / 1e9),
                                          .p99_ms = bag_bench_latency_ms(&load->recent, 0.99)};
    for (size_t i = 0; i < step->num_errors; i++)
        progress.errors += step->errors[i].count;
    if (!warms && step->arrived >= load->reported_arrived)
        load->plan->on_progress(&progress);
    load->reported_ns = now;
    load->reported_arrived = step->arrived;
    load->recent = (struct bag_bench_latency){.total = 0};
}

/* Waits for events. epoll_pwait2 needs Linux 5.11. */
static int wait_for_events(int epoll_fd, struct epoll_event *events, uint64_t wait_ns)
{
    static bool is_old;
    struct timespec timeout = {(time_t)(wait_ns / NS_PER_S), (long)(wait_ns % NS_PER_S)};
    int count = is_old ? -1 : epoll_pwait2(epoll_fd, events, MAX_EVENTS, &timeout, NULL);
    if (count >= 0 || (!is_old && errno != ENOSYS))
        return count;
    is_old = true;
    struct pollfd readable = {.fd = epoll_fd, .events = POLLIN};
    return ppoll(&readable, 1, &timeout, NULL) > 0 ? epoll_wait(epoll_fd, events, MAX_EVENTS, 0)
                                                   : 0;
}

/* Waits until `until_ns`, or until sockets are ready, and handles their events. */
static void serve(struct bag_bench_load *load, uint64_t until_ns)
{
    struct epoll_event events[MAX_EVENTS];
    uint64_t now = uv_hrtime();
    report_progress(load, now);
    uint64_t wait_ns = until_ns > now ? until_ns - now : 0;
    if (load->plan->on_progress && wait_ns > NS_PER_S)
        wait_ns = NS_PER_S;
    int count = wait_for_events(load->epoll_fd, events, wait_ns);
    for (int i = 0; i < count; i++) {
        struct bag_bench_connection *connection = events[i].data.ptr;
        if (connection->fd < 0)
            continue; /* an earlier event closed it */
        enum bag_bench_outcome outcome =
            bag_bench_connection_move(connection, load->epoll_fd, events[i].events);
        if (outcome != BAG_BENCH_PENDING)
            finish(load, connection, outcome);
    }
}

/* ---- the loops ------------------------------------------------------------------------------- */

/* Runs the closed loop: starts a request on every connection, and finish() starts the next ones. */
static void run_closed(struct bag_bench_load *load)
{
    uint64_t end_ns = load->counts[load->num_counts - 1].end_ns;
    for (size_t i = 0; i < load->options->connections && load->started < load->plan->requests;
         i++) {
        uint64_t now = uv_hrtime();
        start_request(load, free_connection(load), now, now);
    }
    while (load->pending && !stopped && uv_hrtime() < end_ns)
        serve(load, end_ns);
    load->gone = load->started < load->plan->requests && uv_hrtime() < end_ns;
}

/* Returns the time until the next request is due; exponentially distributed by default. */
static double gap_ns(struct bag_bench_load *load, double rate)
{
    double mean = 1e9 / rate;
    return load->options->constant ? mean : -log1p(-bag_random_unit(&load->random)) * mean;
}

/* Waits until a request is due, and for a connection. Returns NULL after `last_ns`. */
static struct bag_bench_connection *wait_until_due(struct bag_bench_load *load, uint64_t due_ns,
                                                   uint64_t last_ns, unsigned *burst)
{
    uint64_t now;
    while ((now = uv_hrtime()) < due_ns && !stopped) {
        serve(load, due_ns);
        *burst = 0;
    }
    /* If requests are due faster than they can be started, replies must still be read. */
    if (++*burst == BURST) {
        serve(load, now);
        *burst = 0;
    }
    struct bag_bench_connection *connection;
    while (!(connection = free_connection(load)) && !stopped && uv_hrtime() < last_ns)
        serve(load, last_ns);
    return connection;
}

/* Starts the requests of one step when they are due. Requests wait for a connection until
 * `last_ns`. Returns false if the server is gone, or a signal was received. */
static bool run_open_step(struct bag_bench_load *load, uint64_t last_ns)
{
    struct bag_bench_count *step = &load->counts[load->step];
    static const char late[] = "no connection was free for it in time";
    /* Gaps are added up as they are drawn, so that a late request does not move later ones. */
    double due = (double)step->start_ns;
    unsigned burst = 0;
    while ((due += gap_ns(load, step->rate)) < (double)step->end_ns) {
        uint64_t due_ns = (uint64_t)due;
        struct bag_bench_connection *connection = wait_until_due(load, due_ns, last_ns, &burst);
        uint64_t now = uv_hrtime();
        load->gone = load->failed_in_a_row >= 8 && now - load->last_reply_ns > GONE_NS;
        if (stopped || load->gone)
            return false;
        if (connection)
            start_request(load, connection, due_ns, now);
        else
            bag_bench_count_unsent(step, due_ns, late, sizeof late - 1);
    }
    return true;
}

/* Runs the steps one after the other, and then waits for the last replies. */
static void run_open(struct bag_bench_load *load)
{
    uint64_t drain_ns = (uint64_t)(load->plan->drain_s * 1e9);
    uint64_t end_ns = load->counts[load->num_counts - 1].end_ns, last_ns = end_ns + drain_ns;
    for (load->step = 0; load->step < load->num_counts; load->step++) {
        if (!run_open_step(load, last_ns))
            return;
    }
    load->step--; /* the last step, for the progress that is reported meanwhile */
    for (uint64_t now; (now = uv_hrtime()) < (load->pending ? last_ns : end_ns) && !stopped;)
        serve(load, now < end_ns ? end_ns : last_ns);
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* Lays the steps out on the clock from now on, after the warm-up, and resets the state of a plan.
 */
static bool begin_run(struct bag_bench_load *load, const struct bag_bench_plan *plan,
                      struct bag_problem *problem)
{
    size_t warms = plan->warmup_s > 0;
    uint64_t at_ns = uv_hrtime();
    load->plan = plan;
    load->num_counts = plan->num_steps + warms;
    load->counts = calloc(load->num_counts, sizeof *load->counts);
    if (!load->counts)
        return bag_problem_no_memory(problem);
    /* Element 0 is the warm-up if there is one. Each step begins when the one before it ends. */
    for (size_t i = 0; i < load->num_counts; i++) {
        const struct bag_bench_step *step = &plan->steps[i < warms ? 0 : i - warms];
        bag_bench_count_begin(&load->counts[i], step->rate,
                              i < warms ? plan->warmup_s : step->seconds, at_ns);
        at_ns = load->counts[i].end_ns;
    }
    load->step = load->arrival_step = 0;
    load->gone = false;
    load->started = load->failed_in_a_row = load->reported_arrived = 0;
    load->recent = (struct bag_bench_latency){.total = 0};
    load->last_reply_ns = load->freed_ns = load->counts[0].start_ns;
    load->first_ns = load->reported_ns = load->counts[warms].start_ns;
    return true;
}

bool bag_bench_load_run(struct bag_bench_load *load, const struct bag_bench_plan *plan,
                        struct bag_bench_run *runs, size_t *ran, struct bag_problem *problem)
{
    size_t warms = plan->warmup_s > 0;
    double cpu = cpu_seconds();
    *ran = 0;
    if (!begin_run(load, plan, problem))
        return false;
    uint64_t start_ns = load->counts[0].start_ns;
    if (plan->open)
        run_open(load);
    else
        run_closed(load);
    uint64_t end_ns = uv_hrtime();
    /* The share of one processor that the generator used. */
    cpu = (cpu_seconds() - cpu) / ((double)(end_ns - start_ns) / 1e9);
    /* Give up the requests without a reply. A closed loop does not count them at all. */
    static const char late[] = "no answer in time";
    for (size_t i = 0; i < load->opened; i++) {
        struct bag_bench_connection *connection = &load->connections[i];
        if (!connection->busy)
            continue;
        if (load->plan->open && !stopped) {
            connection->error_bytes = sizeof late - 1;
            memcpy(connection->error, late, sizeof late - 1);
            count_lost(load, connection, uv_hrtime());
        }
        bag_bench_connection_close(connection);
        make_idle(load, connection, uv_hrtime());
    }
    load->pending = 0;
    for (size_t i = warms; i < load->num_counts; i++) {
        struct bag_bench_count *count = &load->counts[i];
        if (end_ns <= count->start_ns)
            break;
        /* The rates of a step that was cut short are those of its actual duration. */
        if (end_ns < count->end_ns)
            count->seconds = (double)(end_ns - count->start_ns) / 1e9;
        bag_bench_count_finish(count, cpu, &runs[(*ran)++]);
    }
    free(load->counts);
    load->counts = NULL;
    if (stopped)
        return bag_problem_set(problem, BAG_ERROR_CANCELLED, "stopped by a signal");
    if (!load->gone)
        return true;
    double seconds = ((double)end_ns - (double)load->first_ns) / 1e9;
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "the server has gone after %.1f s: %s",
                           seconds > 0 ? seconds : 0, load->last_failure);
}

/* ---- the generator --------------------------------------------------------------------------- */

/* Raises the limit of descriptors as far as the system allows. Returns false and sets *problem if
 * that is too few. */
static bool raise_descriptors(size_t connections, struct bag_problem *problem)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    return connections + 16 <= files.rlim_cur ||
           bag_problem_set(problem, BAG_ERROR_USAGE,
                           "--connections %zu: the system allows a process %llu descriptors",
                           connections, (unsigned long long)files.rlim_cur);
}

struct bag_bench_load *bag_bench_load_make(const struct bag_bench_options *options,
                                           const struct bag_address *address,
                                           const struct bag_bench_request *requests,
                                           size_t num_requests, FILE *log,
                                           struct bag_problem *problem)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct bag_bench_load *load;
    if (!raise_descriptors(options->connections, problem))
        return NULL;
    if (!(load = calloc(1, sizeof *load))) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    *load = (struct bag_bench_load){.options = options,
                                    .address = address,
                                    .requests = requests,
                                    .num_requests = num_requests,
                                    .log = log,
                                    .random = options->seed};
    load->connections = calloc(options->connections, sizeof *load->connections);
    load->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!load->connections || load->epoll_fd < 0) {
        bag_problem_no_memory(problem);
        bag_bench_load_free(load);
        return NULL;
    }
    /* By default the kernel may end a wait 50 us late. Requests are often due at shorter intervals.
     */
    prctl(PR_SET_TIMERSLACK, 1000);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return load;
}

void bag_bench_load_free(struct bag_bench_load *load)
{
    if (!load)
        return;
    for (size_t i = 0; load->connections && i < load->opened; i++) {
        if (load->connections[i].fd >= 0)
            bag_bench_connection_close(&load->connections[i]);
    }
    if (load->epoll_fd >= 0)
        close(load->epoll_fd);
    free(load->connections);
    free(load);
}
