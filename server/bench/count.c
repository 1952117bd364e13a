/* Counters of one run; see count.h. */
#include "count.h"

#include "proto/v2_client.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void bag_bench_count_begin(struct bag_bench_count *count, double rate, double seconds,
                           uint64_t start_ns)
{
    memset(count, 0, sizeof *count);
    count->rate = rate;
    count->seconds = seconds;
    count->start_ns = start_ns;
    count->end_ns = start_ns + (uint64_t)(seconds * 1e9);
}

/* Returns the window of a due time. The windows divide the run evenly. */
static size_t window_of(const struct bag_bench_count *count, uint64_t due_ns)
{
    if (due_ns <= count->start_ns)
        return 0;
    if (due_ns >= count->end_ns)
        return BAG_BENCH_WINDOWS - 1;
    double share = (double)(due_ns - count->start_ns) / (double)(count->end_ns - count->start_ns);
    size_t window = (size_t)(share * BAG_BENCH_WINDOWS);
    return window < BAG_BENCH_WINDOWS ? window : BAG_BENCH_WINDOWS - 1;
}

void bag_bench_count_answer(struct bag_bench_count *count, uint64_t due_ns, uint64_t ns)
{
    count->sent++;
    count->answered++;
    bag_bench_latency_add(&count->times, ns);
    bag_bench_latency_add(&count->windows[window_of(count, due_ns)], ns);
}

/* Returns the counter of a kind of error. When all are in use, the last one also counts other
 * kinds. */
static struct bag_bench_error *find_error(struct bag_bench_count *count, const char *kind)
{
    for (size_t i = 0; i < count->num_errors; i++) {
        if (strcmp(count->errors[i].kind, kind) == 0)
            return &count->errors[i];
    }
    if (count->num_errors == BAG_BENCH_MAX_ERRORS)
        return &count->errors[BAG_BENCH_MAX_ERRORS - 1];
    struct bag_bench_error *error = &count->errors[count->num_errors++];
    snprintf(error->kind, sizeof error->kind, "%s", kind);
    return error;
}

/* Counts an error by its status ("lost" if there is no reply), and keeps the text of the first one
 * of each kind. */
static void add_error(struct bag_bench_count *count, uint64_t due_ns, int status, const char *text,
                      size_t bytes)
{
    char kind[8] = "lost";
    if (status)
        snprintf(kind, sizeof kind, "%d", status % 1000);
    struct bag_bench_error *error = find_error(count, kind);
    if (error->count++ == 0)
        bag_client_read_error(text, bytes, error->first, sizeof error->first);
    count->window_errors[window_of(count, due_ns)]++;
}

void bag_bench_count_error(struct bag_bench_count *count, uint64_t due_ns, int status,
                           const char *text, size_t bytes)
{
    add_error(count, due_ns, status, text, bytes);
    count->sent++;
}

void bag_bench_count_unsent(struct bag_bench_count *count, uint64_t due_ns, const char *text,
                            size_t bytes)
{
    add_error(count, due_ns, 0, text, bytes);
}

void bag_bench_count_finish(const struct bag_bench_count *count, double generator_cpu,
                            struct bag_bench_run *run)
{
    double seconds = count->seconds > 0 ? count->seconds : 1;
    *run = (struct bag_bench_run){.rate = count->rate,
                                  .seconds = count->seconds,
                                  .sent = count->sent,
                                  .answered = count->answered,
                                  .num_errors = count->num_errors,
                                  .requests_per_s = (double)count->arrived / seconds,
                                  .bags_per_s = (double)count->bags / seconds,
                                  .rows_per_s = (double)count->rows / seconds,
                                  .bytes_gathered_per_s = count->bytes / seconds,
                                  .late_p50_ms = bag_bench_latency_ms(&count->late, 0.5),
                                  .late_p99_ms = bag_bench_latency_ms(&count->late, 0.99),
                                  .generator_cpu = generator_cpu};
    memcpy(run->errors, count->errors, sizeof run->errors);
#define BAG_X(member, key, share) \
    run->latency_ms.member = bag_bench_latency_ms(&count->times, share);
    BAG_BENCH_PERCENTILES(BAG_X)
#undef BAG_X
    run->window_s = count->seconds / BAG_BENCH_WINDOWS;
    for (size_t i = 0; i < BAG_BENCH_WINDOWS; i++) {
        const struct bag_bench_latency *times = &count->windows[i];
        run->windows[i] = (struct bag_bench_window){.answered = times->total,
                                                    .errors = count->window_errors[i],
                                                    .p50_ms = bag_bench_latency_ms(times, 0.5),
                                                    .p99_ms = bag_bench_latency_ms(times, 0.99)};
    }
    /* The curve has percentiles that approach 1, eight for each nine. */
    for (size_t i = 0; i < BAG_BENCH_CURVE; i++)
        run->curve_ms[i] = bag_bench_latency_ms(&count->times, 1 - pow(10, -(double)i / 8));
}
