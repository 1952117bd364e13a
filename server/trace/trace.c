/* Queues spans and sends them to a collector; see trace.h. */
#include "trace.h"

#include "kernels/random.h"
#include "proto/http_client.h"
#include "server/system/deadline.h"
#include "server/system/log.h"
#include "server/system/monitor.h"
#include "server/system/thread_team.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define SECOND_NS  UINT64_C(1000000000)
#define BATCH      512 /* maximum number of spans in a request */
#define INTERVAL_S 1
#define TIMEOUT_MS 2000 /* time limit for sending a batch */
#define STOP_S     2    /* time limit for sending the last spans */

struct bag_trace {
    struct bag_url url;
    char *endpoint, *path, *resource; /* owned; `path` is what spans are posted to */
    double sample;                    /* fraction that chance samples, from 0 to 1 */
    pthread_t thread;
    atomic_ullong dropped;   /* spans that were not delivered so far */
    _Atomic uint64_t random; /* state of draw() */

    struct bag_monitor monitor; /* guards the members below */
    bool stops, has_ended;
    time_t second;            /* second in which `taken` spans were taken */
    unsigned taken, asked;    /* `asked` of them were requested by clients */
    struct bag_span *waiting; /* owned; capacity BAG_TRACE_WAITING */
    size_t count;             /* spans in `waiting` */

    struct bag_span *sending; /* owned, same capacity; used only by the thread, which swaps both */
    bool is_losing;           /* the last batch was not delivered; used only by the thread */
};

/* ---- the collector --------------------------------------------------------------------------- */

/* Receives the collector's reply. Returns false and sets *problem if it did not accept the spans.
 */
static bool check_reply(const struct bag_trace *trace, int fd, uint64_t deadline_ns,
                        struct bag_problem *problem)
{
    char text[BAG_REPLY_HEAD_BYTES];
    struct bag_reply_head head;
    struct bag_problem ignored;
    size_t used, bytes = bag_deadline_receive_head(fd, text, &used, deadline_ns);
    if (bytes < 12)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "the collector did not answer within %d ms", TIMEOUT_MS);
    /* The body is not read, so a status without a length is accepted, too. */
    if (bag_reply_head_parse(text, bytes, &head, &ignored) ? head.status / 100 == 2
                                                           : text[9] == '2')
        return true;
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "the collector answered %s to POST %s",
                           bag_quote(text + 9, strcspn(text + 9, " \r\n")).text,
                           bag_quote(trace->path, strlen(trace->path)).text);
}

/* Sends the spans. Returns false and sets *problem if the collector does not accept them. */
static bool post(const struct bag_trace *trace, const char *body, struct bag_problem *problem)
{
    const uint64_t deadline_ns = bag_deadline_in_ms(TIMEOUT_MS);
    char *head = NULL;
    int bytes = asprintf(&head,
                         "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: "
                         "application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                         trace->path, trace->url.authority, strlen(body));
    if (bytes < 0)
        return bag_problem_no_memory(problem);
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "the collector did not take the spans within %d ms",
                    TIMEOUT_MS);
    int fd = bag_deadline_connect_host(trace->url.host, trace->url.port, deadline_ns, problem);
    bool ok = fd >= 0 && bag_deadline_send(fd, head, (size_t)bytes, deadline_ns) &&
              bag_deadline_send(fd, body, strlen(body), deadline_ns) &&
              check_reply(trace, fd, deadline_ns, problem);
    if (fd >= 0)
        close(fd);
    free(head);
    return ok;
}

/* Sends a batch. Counts its spans as dropped if the collector does not accept them. Logs the first
 * of several failed deliveries, and the first successful one after them. */
static void deliver(struct bag_trace *trace, const struct bag_span *spans, size_t count)
{
    struct bag_problem problem;
    char *body = bag_otlp_print(spans, count, trace->resource);
    bool arrived = body ? post(trace, body, &problem) : bag_problem_no_memory(&problem);
    if (!arrived)
        atomic_fetch_add(&trace->dropped, count);
    if (!arrived && !trace->is_losing)
        bag_log(BAG_LOG_LEVEL_WARNING, "spans lost", BAG_LOG_TEXT("otlp_endpoint", trace->endpoint),
                BAG_LOG_TEXT("reason", problem.text));
    if (arrived && trace->is_losing)
        bag_log(BAG_LOG_LEVEL_INFO, "spans arrive again",
                BAG_LOG_TEXT("otlp_endpoint", trace->endpoint));
    trace->is_losing = !arrived;
    free(body);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Sends batches until the thread must stop. Spans that were queued before are still sent. */
static void *run(void *context)
{
    struct bag_trace *trace = context;
    bag_monitor_lock(&trace->monitor);
    for (;;) {
        /* Wait until a batch is complete, the interval is over, or the thread must stop. */
        uint64_t until_ns = uv_hrtime() + INTERVAL_S * SECOND_NS;
        while (!trace->stops && trace->count < BATCH && bag_monitor_wait(&trace->monitor, until_ns))
            ;
        struct bag_span *spans = trace->waiting;
        size_t count = trace->count;
        bool stops = trace->stops;
        trace->waiting = trace->sending;
        trace->sending = spans;
        trace->count = 0;
        bag_monitor_unlock(&trace->monitor);
        for (size_t i = 0; i < count; i += BATCH)
            deliver(trace, spans + i, count - i < BATCH ? count - i : BATCH);
        bag_monitor_lock(&trace->monitor);
        if (stops)
            break;
    }
    trace->has_ended = true;
    bag_monitor_wake(&trace->monitor);
    bag_monitor_unlock(&trace->monitor);
    return NULL;
}

static void free_trace(struct bag_trace *trace)
{
    free(trace->endpoint);
    free(trace->path);
    free(trace->resource);
    free(trace->waiting);
    free(trace->sending);
    bag_monitor_free(&trace->monitor);
    free(trace);
}

/* Returns the path that spans are posted to, which the caller frees. Returns NULL without memory.
 */
static char *path_of(const struct bag_url *url)
{
    char *path = NULL;
    size_t bytes = url->path.bytes;
    while (bytes > 0 && url->path.data[bytes - 1] == '/')
        bytes--;
    bool is_whole = bag_text_ends_with((struct bag_text){url->path.data, bytes}, BAG_OTLP_PATH);
    if (asprintf(&path, "%.*s%s", (int)bytes, url->path.data, is_whole ? "" : BAG_OTLP_PATH) < 0)
        return NULL;
    return path;
}

struct bag_trace *bag_trace_start(const char *endpoint, double sample, const char *resource,
                                  struct bag_problem *problem)
{
    struct bag_trace *trace = calloc(1, sizeof *trace);
    uint64_t random;
    if (!trace || !bag_monitor_init(&trace->monitor)) {
        free(trace);
        bag_problem_no_memory(problem);
        return NULL;
    }
    trace->sample = sample;
    trace->endpoint = strdup(endpoint);
    trace->resource = strdup(resource);
    trace->waiting = calloc(BAG_TRACE_WAITING, sizeof *trace->waiting);
    trace->sending = calloc(BAG_TRACE_WAITING, sizeof *trace->sending);
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        random = (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
    trace->random = random;
    bool ok = trace->endpoint && trace->resource && trace->waiting && trace->sending
                  ? bag_url_parse(trace->endpoint, &trace->url, problem)
                  : bag_problem_no_memory(problem);
    if (ok && !(trace->path = path_of(&trace->url)))
        ok = bag_problem_no_memory(problem);
    int error = ok ? bag_thread_start(&trace->thread, run, trace) : 0;
    if (error)
        ok = bag_problem_set(problem, BAG_ERROR_SYSTEM, "a thread cannot be started: %s",
                             strerror(error));
    if (ok)
        return trace;
    free_trace(trace);
    return NULL;
}

/* Waits at most STOP_S for the thread, so that a slow collector or resolver cannot delay the end of
 * the process. */
void bag_trace_stop(struct bag_trace *trace)
{
    uint64_t until_ns = uv_hrtime() + STOP_S * SECOND_NS;
    if (!trace)
        return;
    bag_monitor_lock(&trace->monitor);
    trace->stops = true;
    bag_monitor_wake(&trace->monitor);
    while (!trace->has_ended && bag_monitor_wait(&trace->monitor, until_ns))
        ;
    bool has_ended = trace->has_ended;
    bag_monitor_unlock(&trace->monitor);
    if (!has_ended)
        return;
    pthread_join(trace->thread, NULL);
    free_trace(trace);
}

/* ---- the loops' side ------------------------------------------------------------------------- */

/* Returns a random number. Threads share one state, from which each takes a step. */
static uint64_t draw(struct bag_trace *trace)
{
    return bag_mix(
        atomic_fetch_add_explicit(&trace->random, BAG_RANDOM_STEP, memory_order_relaxed));
}

/* Draws again if the number is 0, which is not a valid id. Two zeros in a row are practically
 * impossible. */
uint64_t bag_trace_id(struct bag_trace *trace)
{
    uint64_t id = draw(trace);
    return id ? id : draw(trace);
}

struct bag_span_place bag_trace_place(struct bag_trace *trace, const char *traceparent)
{
    struct bag_span_place told = {.is_asked = true};
    if (traceparent && bag_traceparent_parse(traceparent, &told)) {
        told.id = told.sampled ? bag_trace_id(trace) : 0;
        return told.sampled ? told : (struct bag_span_place){0};
    }
    bool is_sampled = bag_unit(draw(trace)) < trace->sample;
    uint64_t id = bag_trace_id(trace);
    return (struct bag_span_place){
        {bag_trace_id(trace), bag_trace_id(trace)}, id, 0, is_sampled, false};
}

void bag_trace_time(struct bag_span *span, uint64_t begun_ns)
{
    struct timespec now;
    uint64_t took_ns = uv_hrtime() - begun_ns;
    clock_gettime(CLOCK_REALTIME, &now);
    span->end_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    span->begin_ns = span->end_ns - took_ns;
}

void bag_trace_add(struct bag_trace *trace, const struct bag_span *span)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    bag_monitor_lock(&trace->monitor);
    if (now.tv_sec != trace->second) {
        trace->second = now.tv_sec;
        trace->taken = trace->asked = 0;
    }
    bool fits = trace->count < BAG_TRACE_WAITING && trace->taken < BAG_TRACE_PER_SECOND &&
                (!span->place.is_asked || trace->asked < BAG_TRACE_ASKED_PER_SECOND);
    if (fits) {
        trace->taken++;
        trace->asked += span->place.is_asked;
        trace->waiting[trace->count++] = *span;
        if (trace->count == BATCH)
            bag_monitor_wake(&trace->monitor);
    }
    bag_monitor_unlock(&trace->monitor);
    if (!fits)
        atomic_fetch_add(&trace->dropped, 1);
}

const atomic_ullong *bag_trace_dropped(const struct bag_trace *trace)
{
    return &trace->dropped;
}
