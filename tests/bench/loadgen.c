/* A generator of load for bagserve, or any server of the V2 protocol on loopback.
 *
 * Closed loop: each of C connections sends its next request when it has the answer to the last.
 * Open loop: requests are due at random times, at a given rate, and go out on whichever connection
 * is free, or a new one; nobody waits for an answer. Times count from when a request was due, so
 * that a server which falls behind cannot slow its clients down and look well. One thread, one
 * epoll; see loadgen_options.h for what it is told. */
#include "connection.h"
#include "loadgen_options.h"
#include "loadgen_report.h"

#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENTS 256

struct loadgen {
    struct bench_loadgen_options options;
    struct bench_request *requests;
    size_t next_request;
    int epoll_fd;
    struct bench_connection *connections;
    unsigned opened; /* of the connections, ever */
    struct bench_connection *idle;
    uint64_t pending; /* answers that are due */
    struct bench_phase *phases;
    size_t phase; /* that requests become due in */
    size_t at;    /* that answers arrive in; num_phases after the last */
};

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void count_normal(const struct loadgen *loadgen, struct bench_phase *phase,
                         const struct bench_connection *connection, uint64_t ns)
{
    size_t window = (connection->due_ns - phase->start_ns) / BENCH_WINDOW_NS;
    bool normal = connection->status == 200 && (double)ns <= loadgen->options.normal_ms * 1e6;
    phase->normal += normal;
    if (phase->windows && window < phase->num_windows)
        phase->windows[window].normal += normal;
}

static void count_reply(struct loadgen *loadgen, const struct bench_connection *connection,
                        uint64_t now)
{
    struct bench_phase *phase = &loadgen->phases[connection->phase];
    uint64_t ns = now - connection->due_ns;
    count_normal(loadgen, phase, connection, ns);
    while (loadgen->at < loadgen->options.num_phases && now >= loadgen->phases[loadgen->at].end_ns)
        loadgen->at++;
    if (connection->status == 200) {
        bench_latency_add(&phase->ok, ns);
        if (loadgen->at < loadgen->options.num_phases)
            loadgen->phases[loadgen->at].answered++;
    } else if (connection->status == 503) {
        bench_latency_add(&phase->rejected, ns);
        bench_latency_add(&phase->rejected_once_sent, now - connection->sent_ns);
    } else {
        phase->other++;
    }
}

static void make_idle(struct loadgen *loadgen, struct bench_connection *connection)
{
    connection->next_idle = loadgen->idle;
    loadgen->idle = connection;
}

static void start_request(struct loadgen *loadgen, struct bench_connection *connection,
                          uint64_t due_ns);

/* Something came of a connection's request; the connection is free, perhaps closed. */
static void finish(struct loadgen *loadgen, struct bench_connection *connection,
                   enum bench_outcome outcome)
{
    uint64_t now = now_ns();
    struct bench_phase *phase = &loadgen->phases[connection->phase];
    if (outcome == BENCH_ENDED)
        return; /* it is among the idle ones, and opened again when its turn comes */
    loadgen->pending--;
    if (outcome == BENCH_REPLIED)
        count_reply(loadgen, connection, now);
    else
        *(outcome == BENCH_LOST ? &phase->lost : &phase->other) += 1;
    if (!loadgen->options.open && now < phase->end_ns && phase->due < loadgen->options.requests) {
        start_request(loadgen, connection, now);
        return;
    }
    make_idle(loadgen, connection);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* No connection can be had, for want of ports or because nobody listens any more. A client of the
 * closed loop ends with that, instead of trying without a pause. */
static void give_up(struct loadgen *loadgen, struct bench_connection *connection)
{
    loadgen->phases[connection->phase].lost++;
    loadgen->pending--;
    make_idle(loadgen, connection);
}

static void start_request(struct loadgen *loadgen, struct bench_connection *connection,
                          uint64_t due_ns)
{
    struct bench_phase *phase = &loadgen->phases[loadgen->phase];
    const struct bench_request *request = &loadgen->requests[loadgen->next_request];
    loadgen->next_request = (loadgen->next_request + 1) % loadgen->options.bodies;
    connection->due_ns = due_ns;
    connection->sent_ns = now_ns();
    connection->phase = (unsigned)loadgen->phase;
    phase->due++;
    loadgen->pending++;
    if (connection->fd < 0 &&
        !bench_connection_open(connection, loadgen->epoll_fd, loadgen->options.port)) {
        give_up(loadgen, connection);
        return;
    }
    enum bench_outcome outcome = bench_connection_begin(connection, loadgen->epoll_fd, request);
    if (loadgen->options.open)
        bench_latency_add(&phase->late, connection->sent_ns - due_ns);
    if (outcome != BENCH_PENDING)
        finish(loadgen, connection, outcome);
}

/* A connection that is free, or a new one; NULL where all that may be are busy. */
static struct bench_connection *free_connection(struct loadgen *loadgen)
{
    struct bench_connection *connection = loadgen->idle;
    if (connection) {
        loadgen->idle = connection->next_idle;
        return connection;
    }
    if (loadgen->opened == loadgen->options.connections)
        return NULL;
    connection = &loadgen->connections[loadgen->opened++];
    connection->fd = -1;
    return connection;
}

/* Waits until `until_ns`, or until sockets are ready, and serves those. */
static void serve(struct loadgen *loadgen, uint64_t until_ns)
{
    struct epoll_event events[MAX_EVENTS];
    uint64_t now = now_ns(), wait_ns = until_ns > now ? until_ns - now : 0;
    struct timespec timeout = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
    int count = epoll_pwait2(loadgen->epoll_fd, events, MAX_EVENTS, &timeout, NULL);
    for (int i = 0; i < count; i++) {
        struct bench_connection *connection = events[i].data.ptr;
        enum bench_outcome outcome =
            bench_connection_move(connection, loadgen->epoll_fd, events[i].events);
        if (outcome != BENCH_PENDING)
            finish(loadgen, connection, outcome);
    }
}

/* ---- the loops ------------------------------------------------------------------------------- */

static void start_phases(struct loadgen *loadgen)
{
    uint64_t start = now_ns();
    for (size_t i = 0; i < loadgen->options.num_phases; i++) {
        struct bench_phase *phase = &loadgen->phases[i];
        phase->rate = loadgen->options.phases[i].rate;
        phase->seconds = loadgen->options.phases[i].seconds;
        phase->start_ns = start;
        phase->end_ns = start += (uint64_t)(phase->seconds * 1e9);
        if (loadgen->options.open) {
            phase->num_windows = (phase->end_ns - phase->start_ns) / BENCH_WINDOW_NS + 1;
            phase->windows = calloc(phase->num_windows, sizeof *phase->windows);
            if (!phase->windows)
                die("windows");
        }
    }
}

static void run_closed(struct loadgen *loadgen)
{
    struct bench_phase *phase = &loadgen->phases[0];
    uint64_t end = phase->end_ns;
    for (unsigned i = 0; i < loadgen->options.connections && phase->due < loadgen->options.requests;
         i++)
        start_request(loadgen, free_connection(loadgen), now_ns());
    while (loadgen->pending && now_ns() < end)
        serve(loadgen, end);
    phase->seconds = (double)(now_ns() - phase->start_ns) / 1e9;
}

/* One request is due: it is sent, unless there is no connection for it. */
static void arrive(struct loadgen *loadgen, uint64_t due_ns)
{
    struct bench_phase *phase = &loadgen->phases[loadgen->phase];
    struct bench_connection *connection = free_connection(loadgen);
    phase->windows[(due_ns - phase->start_ns) / BENCH_WINDOW_NS].due++;
    if (connection) {
        start_request(loadgen, connection, due_ns);
    } else {
        phase->due++;
        phase->unsent++;
    }
}

/* The gaps of a Poisson process are exponential. A gap that crosses into the next phase starts
 * anew there. */
static void run_open(struct loadgen *loadgen)
{
    uint64_t random = loadgen->options.seed, drain_ns;
    for (loadgen->phase = 0; loadgen->phase < loadgen->options.num_phases; loadgen->phase++) {
        struct bench_phase *phase = &loadgen->phases[loadgen->phase];
        double due = (double)phase->start_ns;
        while ((due += -log1p(-bench_random_unit(&random)) * 1e9 / phase->rate) <
               (double)phase->end_ns) {
            while (now_ns() < (uint64_t)due)
                serve(loadgen, (uint64_t)due);
            arrive(loadgen, (uint64_t)due);
        }
    }
    loadgen->phase--;
    drain_ns =
        loadgen->phases[loadgen->phase].end_ns + (uint64_t)(loadgen->options.drain_seconds * 1e9);
    while (loadgen->pending && now_ns() < drain_ns)
        serve(loadgen, drain_ns);
}

/* Whether anybody listens: afterwards connections may come and go. */
static void check_server(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("cannot connect to 127.0.0.1");
    close(fd);
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void prepare(struct loadgen *loadgen)
{
    const struct bench_loadgen_options *options = &loadgen->options;
    struct rlimit files;
    check_server(options->port);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    /* The kernel may wake a sleeper 50 us late by default; arrivals are closer than that. */
    prctl(PR_SET_TIMERSLACK, 1000);
    loadgen->requests =
        bench_requests_make(&options->query, options->bodies, options->seed, options->port);
    loadgen->connections = calloc(options->connections, sizeof *loadgen->connections);
    loadgen->phases = calloc(options->num_phases, sizeof *loadgen->phases);
    loadgen->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!loadgen->connections || !loadgen->phases || loadgen->epoll_fd < 0)
        die("cannot start");
}

/* What the process holds goes with it. */
int main(int count, char **arguments)
{
    static struct loadgen loadgen;
    bench_loadgen_options_read(&loadgen.options, count, arguments);
    prepare(&loadgen);
    double before = cpu_seconds();
    start_phases(&loadgen);
    if (loadgen.options.open)
        run_open(&loadgen);
    else
        run_closed(&loadgen);
    bench_report_print(&(struct bench_report){.open = loadgen.options.open,
                                              .connections = loadgen.opened,
                                              .cpu_seconds = cpu_seconds() - before,
                                              .normal_ms = loadgen.options.normal_ms,
                                              .phases = loadgen.phases,
                                              .num_phases = loadgen.options.num_phases});
    return 0;
}
