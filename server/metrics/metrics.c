/* Records events and adds counters up; see metrics.h. */
#include "metrics.h"

#include "server/system/log.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The counters of models are allocated in blocks, which do not move when models are added. */
#define BLOCK_SLOTS 64
#define MAX_BLOCKS  (BAG_METRICS_MAX_SLOTS / BLOCK_SLOTS)

struct bag_recorder {
    struct bag_recorder *next;
    struct bag_loop_counters loop;
    bag_counter durations[BAG_SECONDS_BOUND_COUNT + 1]; /* inferences of all models by duration */
    bag_counter rows;                                   /* rows of all models' inferences */
    struct bag_model_counters *blocks[MAX_BLOCKS];      /* owned; indexed by slot / BLOCK_SLOTS */
};

#define BAG_X(bound) UINT64_C(bound),
const uint64_t bag_seconds_bounds[] = {BAG_SECONDS_BOUNDS(BAG_X) UINT64_MAX};
const uint64_t bag_sizes_bounds[] = {BAG_SIZES_BOUNDS(BAG_X) UINT64_MAX};
#undef BAG_X
uint8_t bag_seconds_first[64], bag_sizes_first[64];

/* The failure by which each rejection counts in the metrics of its model. */
static const enum bag_failure failures[] = {
#define BAG_X(id, value, failure) BAG_FAILURE_##failure,
    BAG_REJECTIONS(BAG_X)
#undef BAG_X
};

/* The statuses that have a counter of their own. */
static const int statuses[] = {
#define BAG_X(http_status) http_status,
    BAG_HTTP_STATUSES(BAG_X)
#undef BAG_X
};

/* ---- beginning and end ----------------------------------------------------------------------- */

/* Sets first[i] to the index of the first bound that is not below 2^i. */
static void find_first(const uint64_t *bounds, uint8_t *first)
{
    uint8_t bound = 0;
    for (int exponent = 0; exponent < 64; exponent++) {
        while (bounds[bound] < UINT64_C(1) << exponent)
            bound++;
        first[exponent] = bound;
    }
}

void bag_metrics_init(struct bag_metrics *metrics, bool on, size_t max_histograms)
{
    find_first(bag_seconds_bounds, bag_seconds_first);
    find_first(bag_sizes_bounds, bag_sizes_first);
    *metrics = (struct bag_metrics){.on = on, .max_histograms = max_histograms};
    metrics->epoch_ms = bag_epoch_ms() - uv_hrtime() / 1000000;
}

void bag_metrics_free(struct bag_metrics *metrics)
{
    while (metrics->first) {
        struct bag_recorder *next = metrics->first->next;
        for (size_t i = 0; i < MAX_BLOCKS; i++)
            free(metrics->first->blocks[i]);
        free(metrics->first);
        metrics->first = next;
    }
}

/* Allocates a block of counters unless it exists. Returns false without memory. */
static bool make_block(struct bag_recorder *recorder, size_t block)
{
    if (!recorder->blocks[block])
        recorder->blocks[block] = calloc(BLOCK_SLOTS, sizeof **recorder->blocks);
    return recorder->blocks[block];
}

/* Returns the counters of a slot, whose block exists. */
static struct bag_model_counters *counters_at(const struct bag_recorder *recorder, size_t slot)
{
    return &recorder->blocks[slot / BLOCK_SLOTS][slot % BLOCK_SLOTS];
}

bool bag_metrics_begin_slot(void *context, size_t slot)
{
    struct bag_metrics *metrics = context;
    if (slot >= BAG_METRICS_MAX_SLOTS)
        return false;
    for (struct bag_recorder *at = metrics->first; at; at = at->next) {
        if (!make_block(at, slot / BLOCK_SLOTS))
            return false;
        memset(counters_at(at, slot), 0, sizeof(struct bag_model_counters));
    }
    if (metrics->num_slots <= slot)
        metrics->num_slots = slot + 1;
    return true;
}

bool bag_metrics_add_loop(struct bag_metrics *metrics, struct bag_recorder **recorder)
{
    *recorder = NULL;
    if (!metrics->on)
        return true;
    *recorder = calloc(1, sizeof **recorder);
    if (!*recorder)
        return false;
    (*recorder)->next = metrics->first;
    metrics->first = *recorder;
    for (size_t slot = 0; slot < metrics->num_slots; slot += BLOCK_SLOTS) {
        if (!make_block(*recorder, slot / BLOCK_SLOTS))
            return false;
    }
    return true;
}

/* ---- what happened --------------------------------------------------------------------------- */

static struct bag_model_counters *counters_of(struct bag_recorder *recorder,
                                              const struct bag_model *model)
{
    return counters_at(recorder, model->slot);
}

void bag_metrics_on_queued(struct bag_recorder *recorder, const struct bag_model *model)
{
    if (recorder)
        bag_counter_add(counters_of(recorder, model)->pending[0], 1);
}

void bag_metrics_on_taken(struct bag_recorder *recorder, const struct bag_model *model)
{
    if (recorder)
        bag_counter_add(counters_of(recorder, model)->pending[0], UINT64_MAX);
}

void bag_metrics_on_batch(struct bag_recorder *recorder, const struct bag_model *model,
                          size_t requests)
{
    if (!recorder || !requests)
        return;
    bag_observe_size(counters_of(recorder, model)->batch[0], requests);
}

/* Records the stages and returns their sum. Most requests skip some stages, and 0 ns counts in the
 * first bucket without a search. */
static uint64_t observe_stages(struct bag_model_counters *counters, const uint64_t *stage_ns)
{
    uint64_t sum_ns = 0;
    for (size_t i = 0; i < BAG_STAGE_COUNT; i++) {
        uint64_t ns = stage_ns[i];
        if (ns)
            bag_observe_ns(counters->stage[i], ns);
        else
            bag_counter_add(counters->stage[i], 1);
        sum_ns += ns;
    }
    return sum_ns;
}

void bag_metrics_on_success(struct bag_recorder *recorder, const struct bag_model *model,
                            const struct bag_metrics_work *work)
{
    if (!recorder)
        return;
    struct bag_model_counters *counters = counters_of(recorder, model);
    uint64_t ns = observe_stages(counters, work->watch->stage_ns);
    size_t bound = bag_seconds_bound_of(ns);
    bag_counter_add(&counters->duration[0][bound], 1);
    bag_counter_add(&recorder->durations[bound], 1);
    bag_counter_add(&recorder->rows, work->rows);
    bag_counter_add(counters->bags[0], work->bags);
    bag_counter_add(counters->rows[0], work->rows);
    bag_counter_add(counters->bytes[0], work->bytes);
    bag_counter_add(counters->defaults[0], work->defaults);
    bag_counter_add(counters->missing[0], work->missing);
    bag_counter_add(counters->others[0], work->others);
    bag_counter_set(counters->last[0], work->now_ms);
}

void bag_metrics_on_rejection(struct bag_recorder *recorder, const struct bag_model *model,
                              enum bag_rejection rejection, const struct bag_stopwatch *watch)
{
    if (!recorder)
        return;
    bag_counter_add(recorder->loop.rejected[rejection], 1);
    if (!model)
        return;
    struct bag_model_counters *counters = counters_of(recorder, model);
    bag_counter_add(counters->failure[failures[rejection]], 1);
    bag_counter_add(counters->failure_ns[0], bag_stopwatch_ns(watch));
}

void bag_metrics_on_answer(struct bag_recorder *recorder, int http_status, size_t body_bytes,
                           size_t reply_bytes)
{
    size_t i = 0;
    if (!recorder)
        return;
    /* The element after the last one counts other statuses. */
    while (i < sizeof statuses / sizeof statuses[0] && statuses[i] != http_status)
        i++;
    bag_counter_add(recorder->loop.responses[i], 1);
    bag_counter_add(recorder->loop.received[0], body_bytes);
    bag_counter_add(recorder->loop.sent[0], reply_bytes);
}

void bag_metrics_on_end(struct bag_recorder *recorder, bool sent)
{
    if (recorder && !sent)
        bag_counter_add(recorder->loop.aborted[0], 1);
}

void bag_metrics_on_levels(struct bag_recorder *recorder, const struct bag_metrics_levels *levels)
{
    if (!recorder)
        return;
    bag_counter_set(recorder->loop.in_flight[0], levels->in_flight);
    bag_counter_set(recorder->loop.connections[0], levels->connections);
    bag_counter_set(recorder->loop.refused_connections[0], levels->refused_connections);
    bag_counter_set(recorder->loop.queued[0], levels->queued);
    bag_counter_set(recorder->loop.queued_bytes[0], levels->queued_bytes);
}

/* ---- adding up ------------------------------------------------------------------------------- */

/* Adds structs of counters word by word. */
static void add_all(bag_counter *sum, const bag_counter *counters, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *sum; i++)
        bag_counter_add(&sum[i], bag_counter_get(&counters[i]));
}

void bag_metrics_sum_model(const struct bag_metrics *metrics, const struct bag_model *model,
                           struct bag_model_counters *sum)
{
    uint64_t last_ms = 0;
    memset(sum, 0, sizeof *sum);
    for (const struct bag_recorder *at = metrics->first; at; at = at->next) {
        const struct bag_model_counters *counters = counters_at(at, model->slot);
        uint64_t its_last_ms = bag_counter_get(counters->last[0]);
        add_all((bag_counter *)sum, (const bag_counter *)counters, sizeof *sum);
        last_ms = its_last_ms > last_ms ? its_last_ms : last_ms;
    }
    bag_counter_set(sum->last[0], last_ms);
    /* Set the counters that follow from others: the executions from the batches, the successes from
     * the durations, and the sum of durations from those of the stages. */
    for (size_t i = 0; i <= BAG_SIZES_BOUND_COUNT; i++)
        bag_counter_add(sum->executions[0], bag_counter_get(&sum->batch[0][i]));
    bag_counter_set(sum->success[0], bag_histogram_count(sum->duration[0]));
    for (int i = 0; i < BAG_STAGE_COUNT; i++)
        bag_counter_add(&sum->duration[0][BAG_SLOTS_SECONDS - 1],
                        bag_counter_get(&sum->stage[i][BAG_SLOTS_SECONDS - 1]));
}

void bag_metrics_sum_loops(const struct bag_metrics *metrics, struct bag_loop_counters *sum)
{
    memset(sum, 0, sizeof *sum);
    for (const struct bag_recorder *at = metrics->first; at; at = at->next)
        add_all((bag_counter *)sum, (const bag_counter *)&at->loop, sizeof *sum);
}

void bag_metrics_sum_work(const struct bag_metrics *metrics,
                          uint64_t durations[BAG_SECONDS_BOUND_COUNT + 1], uint64_t *rows)
{
    memset(durations, 0, (BAG_SECONDS_BOUND_COUNT + 1) * sizeof *durations);
    *rows = 0;
    for (const struct bag_recorder *at = metrics->first; at; at = at->next) {
        for (size_t i = 0; i <= BAG_SECONDS_BOUND_COUNT; i++)
            durations[i] += bag_counter_get(&at->durations[i]);
        *rows += bag_counter_get(&at->rows);
    }
}

uint64_t bag_histogram_count(const bag_counter *histogram)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= BAG_SECONDS_BOUND_COUNT; i++)
        count += bag_counter_get(&histogram[i]);
    return count;
}

uint64_t bag_metrics_epoch_ms(const struct bag_metrics *metrics, uint64_t loop_ms)
{
    return loop_ms ? metrics->epoch_ms + loop_ms : 0;
}

/* ---- the process, as /proc shows it ---------------------------------------------------------- */

/* Returns the number of open descriptors without the one that lists them. */
static uint64_t count_open_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;
    if (!folder)
        return 0;
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1;
}

static uint64_t ns_of(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_usec * 1000;
}

/* Returns the time of the machine's start in seconds since 1970. The difference of two clocks would
 * drift; btime does not. */
static uint64_t boot_s(void)
{
    char line[256];
    unsigned long long seconds = 0;
    FILE *file = fopen("/proc/stat", "re");
    while (file && !seconds && fgets(line, sizeof line, file))
        sscanf(line, "btime %llu", &seconds);
    if (file)
        fclose(file);
    return seconds;
}

/* Returns the user and system time of the process, or 0. */
static uint64_t read_cpu_ns(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? ns_of(usage.ru_utime) + ns_of(usage.ru_stime) : 0;
}

void bag_process_sample_load(struct bag_process_load *load)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    *load = (struct bag_process_load){read_cpu_ns(), pages * (uint64_t)sysconf(_SC_PAGESIZE)};
}

void bag_process_sample(struct bag_process_stats *counters)
{
    struct rlimit fds;
    memset(counters, 0, sizeof *counters);
    counters->cpu_ns = read_cpu_ns();
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0)
        counters->max_fds = fds.rlim_cur;
    counters->open_fds = count_open_fds();
    counters->dropped_lines = bag_log_dropped();
    /* Read /proc/self/stat after the name, which may contain any character. The start time is field
     * 22, the sizes are fields 23 (bytes) and 24 (pages). */
    char text[1024];
    unsigned long long ticks, bytes, pages;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *name_end = strrchr(text, ')');
    if (!name_end || sscanf(name_end + 1,
                            " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                            "%*d %*d %llu %llu %llu",
                            &ticks, &bytes, &pages) != 3)
        return;
    counters->start_ns =
        boot_s() * 1000000000 + ticks * (1000000000 / (uint64_t)sysconf(_SC_CLK_TCK));
    counters->virtual_bytes = bytes;
    counters->resident_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
}
