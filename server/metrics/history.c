/* Samples and describes the last 15 minutes; see history.h. */
#include "history.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define SECOND_NS UINT64_C(1000000000)

/* How early a sample may be taken before its second is over. */
#define EARLY_NS (SECOND_NS / 20)

/* The number of seconds that "now" covers. */
#define RECENT_SECONDS 10

/* ---- sampling -------------------------------------------------------------------------------- */

/* Reads the counters of all loops. `cpu_ns` is stored with them. */
static void read_totals(const struct bag_metrics *metrics, uint64_t cpu_ns,
                        struct bag_history_totals *totals)
{
    struct bag_loop_counters loops;
    bag_metrics_sum_loops(metrics, &loops);
    bag_metrics_sum_work(metrics, totals->durations, &totals->rows);
    for (size_t i = 0; i < BAG_REJECTION_COUNT; i++)
        totals->rejected[i] = bag_counter_get(&loops.rejected[i][0]);
    totals->cpu_ns = cpu_ns;
}

bool bag_history_init(struct bag_history *history, const struct bag_metrics *metrics,
                      uint64_t now_ns, uint64_t cpu_ns)
{
    *history = (struct bag_history){.metrics = metrics,
                                    .begun_ns = now_ns,
                                    .at_ns = now_ns,
                                    .until_ms = bag_metrics_epoch_ms(metrics, now_ns / 1000000),
                                    .ring = calloc(BAG_HISTORY_SECONDS, sizeof *history->ring)};
    read_totals(metrics, cpu_ns, &history->before);
    return history->ring && pthread_mutex_init(&history->lock, NULL) == 0;
}

void bag_history_free(struct bag_history *history)
{
    if (!history->ring)
        return;
    free(history->ring);
    history->ring = NULL;
    pthread_mutex_destroy(&history->lock);
}

void bag_history_sample(struct bag_history *history, uint64_t now_ns,
                        const struct bag_history_levels *levels, uint64_t cpu_ns)
{
    struct bag_history_totals totals;
    struct bag_history_sample sample = {.span_ms = (uint32_t)((now_ns - history->at_ns) / 1000000),
                                        .levels = *levels};
    uint64_t seconds = (now_ns - history->begun_ns + EARLY_NS) / SECOND_NS;
    if (seconds == history->seconds)
        return;
    read_totals(history->metrics, cpu_ns, &totals);
    /* Set the sample to the difference between two totals. */
    const struct bag_history_totals *before = &history->before;
    for (size_t i = 0; i <= BAG_SECONDS_BOUND_COUNT; i++)
        sample.durations[i] = (uint32_t)(totals.durations[i] - before->durations[i]);
    for (size_t i = 0; i < BAG_REJECTION_COUNT; i++)
        sample.rejected[i] = (uint32_t)(totals.rejected[i] - before->rejected[i]);
    sample.rows = totals.rows - before->rows;
    sample.cpu_ns = totals.cpu_ns - before->cpu_ns;
    history->before = totals;
    history->at_ns = now_ns;
    pthread_mutex_lock(&history->lock);
    /* Mark the seconds that were skipped: they have no sample of their own. */
    uint64_t first = history->seconds;
    if (seconds - first > BAG_HISTORY_SECONDS)
        first = seconds - BAG_HISTORY_SECONDS;
    for (; first < seconds - 1; first++)
        history->ring[first % BAG_HISTORY_SECONDS] = (struct bag_history_sample){.span_ms = 0};
    history->ring[first % BAG_HISTORY_SECONDS] = sample;
    history->seconds = seconds;
    history->until_ms = bag_metrics_epoch_ms(history->metrics, now_ns / 1000000);
    pthread_mutex_unlock(&history->lock);
}

/* ---- describing ------------------------------------------------------------------------------ */

/* X(name, value of a sample). The values are levels, or counts per second. */
#define COLUMNS(X)                                          \
    X(requests, per_second(sample, count(sample)))          \
    X(rows, per_second(sample, sample->rows))               \
    X(p50_ns, quantile(sample->durations, 50))              \
    X(p99_ns, quantile(sample->durations, 99))              \
    X(waiting, sample->levels.waiting)                      \
    X(in_flight, sample->levels.in_flight)                  \
    X(connections, sample->levels.connections)              \
    X(busy_workers, sample->levels.busy_workers)            \
    X(cpu_ms, per_second(sample, sample->cpu_ns / 1000000)) \
    X(request_bytes, sample->levels.request_bytes)          \
    X(table_bytes, sample->levels.table_bytes)              \
    X(resident_bytes, sample->levels.resident_bytes)

/* The value of a second without a sample, or of a percentile without requests. */
#define UNKNOWN UINT64_MAX

static const char *const rejection_names[] = {
#define BAG_X(id, value, ...) value,
    BAG_REJECTIONS(BAG_X)
#undef BAG_X
};

/* Returns the number of successful inferences. */
static uint64_t count(const struct bag_history_sample *sample)
{
    uint64_t sum = 0;
    for (size_t i = 0; i <= BAG_SECONDS_BOUND_COUNT; i++)
        sum += sample->durations[i];
    return sum;
}

/* Returns a count per second. A sample of about one second is returned as it was counted. */
static uint64_t per_second(const struct bag_history_sample *sample, uint64_t value)
{
    return sample->span_ms < 1500 ? value : (value * 1000 + sample->span_ms / 2) / sample->span_ms;
}

/* Returns the quantile in ns, interpolated linearly between two bounds, or UNKNOWN if there were no
 * requests. Durations above the last bound count as that bound. */
static uint64_t quantile(const uint32_t *durations, uint64_t percent)
{
    uint64_t sum = 0, below = 0;
    size_t i = 0;
    for (size_t j = 0; j <= BAG_SECONDS_BOUND_COUNT; j++)
        sum += durations[j];
    if (sum == 0)
        return UNKNOWN;
    uint64_t wanted = (sum * percent + 99) / 100;
    while (below + durations[i] < wanted)
        below += durations[i++];
    uint64_t low = i ? bag_seconds_bounds[i - 1] : 0;
    if (i == BAG_SECONDS_BOUND_COUNT)
        return low;
    return low + (bag_seconds_bounds[i] - low) * (wanted - below) / durations[i];
}

/* Writes a number, or null if it is UNKNOWN. */
static void write_value(struct bag_json_writer *json, const char *key, uint64_t value)
{
    if (value == UNKNOWN)
        bag_json_raw(json, key, "null");
    else
        bag_json_count(json, key, value);
}

/* A copy of the samples in their order. */
struct view {
    struct bag_history_sample samples[BAG_HISTORY_SECONDS];
    size_t seconds;
    uint64_t until_ms;
};

/* Writes the last seconds as one sample. */
static void write_recent(struct bag_json_writer *json, const struct view *view)
{
    struct bag_history_sample sum = {.span_ms = 0};
    uint64_t rejected = 0;
    size_t first = view->seconds > RECENT_SECONDS ? view->seconds - RECENT_SECONDS : 0;
    for (size_t i = first; i < view->seconds; i++) {
        const struct bag_history_sample *sample = &view->samples[i];
        for (size_t j = 0; j <= BAG_SECONDS_BOUND_COUNT; j++)
            sum.durations[j] += sample->durations[j];
        for (size_t j = 0; j < BAG_REJECTION_COUNT; j++)
            rejected += sample->rejected[j];
        sum.rows += sample->rows;
        sum.cpu_ns += sample->cpu_ns;
        sum.span_ms += sample->span_ms;
    }
    bag_json_open(json, "recent", '{');
    write_value(json, "span_ms", sum.span_ms);
    write_value(json, "requests", count(&sum));
    write_value(json, "rows", sum.rows);
    write_value(json, "p50_ns", quantile(sum.durations, 50));
    write_value(json, "p99_ns", quantile(sum.durations, 99));
    write_value(json, "rejected", rejected);
    write_value(json, "cpu_ms", sum.cpu_ns / 1000000);
    bag_json_close(json);
}

void bag_history_write(struct bag_history *history, struct bag_json_writer *json)
{
    struct view *view = malloc(sizeof *view);
    if (!view) {
        json->text.failed = true;
        return;
    }
    /* Copy the samples from the oldest to the newest, so that the lock is not held while JSON is
     * written. */
    pthread_mutex_lock(&history->lock);
    view->until_ms = history->until_ms;
    view->seconds = history->seconds < BAG_HISTORY_SECONDS ? (size_t)history->seconds
                                                           : (size_t)BAG_HISTORY_SECONDS;
    for (size_t i = 0; i < view->seconds; i++)
        view->samples[i] =
            history->ring[(history->seconds - view->seconds + i) % BAG_HISTORY_SECONDS];
    pthread_mutex_unlock(&history->lock);
    BAG_JSON_WRITE(json, BAG_KEY("until_ms", view->until_ms), BAG_KEY("seconds", view->seconds));
    write_recent(json, view);
    /* Write an array for each column, with one element for each second. */
    bag_json_open(json, "columns", '{');
#define BAG_X(name, value)                                                \
    bag_json_open(json, #name, '[');                                      \
    for (size_t i = 0; i < view->seconds; i++) {                          \
        const struct bag_history_sample *sample = &view->samples[i];      \
        write_value(json, NULL, sample->span_ms > 0 ? (value) : UNKNOWN); \
    }                                                                     \
    bag_json_close(json);
    COLUMNS(BAG_X)
#undef BAG_X
    bag_json_close(json);
    /* Write the number of rejected requests in each second, with an array for each reason that
     * occurred. */
    bag_json_open(json, "rejected", '{');
    for (size_t reason = 0; reason < BAG_REJECTION_COUNT; reason++) {
        size_t first = 0;
        while (first < view->seconds && !view->samples[first].rejected[reason])
            first++;
        if (first == view->seconds)
            continue;
        bag_json_open(json, rejection_names[reason], '[');
        for (size_t i = 0; i < view->seconds; i++) {
            const struct bag_history_sample *sample = &view->samples[i];
            write_value(json, NULL,
                        sample->span_ms > 0 ? per_second(sample, sample->rejected[reason])
                                            : UNKNOWN);
        }
        bag_json_close(json);
    }
    bag_json_close(json);
    free(view);
}
