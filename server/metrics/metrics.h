/* Metrics: counts what the server does without locks, and adds the counters up for readers.
 *
 * Recording. Each loop has a recorder, which holds its own counters: those of the loop, and those
 * of every version of a model. The functions bag_metrics_on_* record events. They run on the thread
 * of the recorder's loop. If metrics are off, the recorder is NULL and they do nothing.
 *
 * A counter has one writer, so an event costs a load, an addition and a store. Counters that all
 * loops shared would be simpler to read, but every event would then move a cache line between
 * processors. Counters that follow from others are not counted at all: the number of successful
 * requests, for example, is the number of values in the histogram of durations. They are computed
 * when somebody reads.
 *
 * Declarations. All metrics are lines of table.h. The structs of counters below, the output of
 * GET /metrics, its help and the statistics endpoint are generated from these lines. The structs
 * consist only of counters, so the counters of all loops are added word by word.
 *
 * Life of a version's counters. The registry of models gives each version a slot, a small number
 * that no snapshot has. The function bag_metrics_begin_slot() sets the counters of the slot to 0 in
 * all recorders before the snapshot with the version is published. Requests record under the slot
 * of their version. A replaced version is released when no request uses it any more, and its slot
 * can be used again. Blocks of counters are never moved or freed before the end, so that recording
 * needs no lock while models come and go.
 *
 * Reading. GET /metrics (expose.c) adds up the recorders of all loops and prints Prometheus' text
 * format (prometheus.c). history.h samples the sums once a second for the web console. A reader may
 * see one counter of a request and not yet another one: sums are exact only when nothing runs.
 *
 *   table.h      declares all metrics       stopwatch.h   measures the stages of an inference
 *   metrics.c    records and adds up        expose.c      prints metrics and statistics
 *   history.h    the last 15 minutes        prometheus.h  the text format
 *
 * The functions that add up counters may run on any thread. */
#pragma once

#include "proto/json_writer.h"
#include "server/memory/memory.h"
#include "server/models/snapshot.h"
#include "stopwatch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

/* ---- counters -------------------------------------------------------------------------------- */

/* A counter. Only the thread of its loop writes it, but any thread may read it at any time. It is
 * therefore an atomic that is loaded, changed and stored, which costs no more than a plain integer.
 * The structs below consist only of counters, so that two structs can be added word by word. */
typedef _Atomic uint64_t bag_counter;

#define BAG_X(bound) +1
enum {
    BAG_SECONDS_BOUND_COUNT = BAG_SECONDS_BOUNDS(BAG_X),
    BAG_SIZES_BOUND_COUNT = BAG_SIZES_BOUNDS(BAG_X)
};
#undef BAG_X

enum bag_failure {
#define BAG_X(id, value) BAG_FAILURE_##id,
    BAG_FAILURES(BAG_X)
#undef BAG_X
        BAG_FAILURE_COUNT
};

enum bag_rejection {
#define BAG_X(id, ...) BAG_REJECTION_##id,
    BAG_REJECTIONS(BAG_X)
#undef BAG_X
        BAG_REJECTION_COUNT
};

enum { BAG_ONE_COUNT = 1, BAG_STATUS_LABEL_COUNT = BAG_HTTP_STATUSES(BAG_ONE) + 1 };

/* The number of counters of a metric for each value of its label. A histogram has one for each
 * bound, one for values above the last bound, and the sum. */
#define BAG_SLOTS_COUNTER 1
#define BAG_SLOTS_TIME    1
#define BAG_SLOTS_GAUGE   1
#define BAG_SLOTS_MOMENT  1
#define BAG_SLOTS_SECONDS (BAG_SECONDS_BOUND_COUNT + 2)
#define BAG_SLOTS_SIZES   (BAG_SIZES_BOUND_COUNT + 2)

/* The number of values of each label. */
#define BAG_VALUES_ONE       BAG_ONE_COUNT
#define BAG_VALUES_STAGE     BAG_STAGE_COUNT
#define BAG_VALUES_FAILURE   BAG_FAILURE_COUNT
#define BAG_VALUES_REJECTION BAG_REJECTION_COUNT
#define BAG_VALUES_STATUS    BAG_STATUS_LABEL_COUNT

#define BAG_X(member, TYPE, LABEL, ...) bag_counter member[BAG_VALUES_##LABEL][BAG_SLOTS_##TYPE];
struct bag_model_counters {
    BAG_MODEL_METRICS(BAG_X)
};
struct bag_loop_counters {
    BAG_LOOP_METRICS(BAG_X)
};
#undef BAG_X

/* Returns the value of a counter. Any thread. */
static inline uint64_t bag_counter_get(const bag_counter *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Sets a counter. Only its writer may call this. */
static inline void bag_counter_set(bag_counter *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

/* Adds to a counter. Only the writer may call it. It adds the two's complement to decrease a
 * gauge. */
static inline void bag_counter_add(bag_counter *counter, uint64_t value)
{
    bag_counter_set(counter, bag_counter_get(counter) + value);
}

/* The bounds of histograms. Each is at least twice the previous one. UINT64_MAX follows the
 * last. */
extern const uint64_t bag_seconds_bounds[BAG_SECONDS_BOUND_COUNT + 1]; /* in ns */
extern const uint64_t bag_sizes_bounds[BAG_SIZES_BOUND_COUNT + 1];

/* The index of the first bound that is not below 2^i, indexed by i. Set by bag_metrics_init. */
extern uint8_t bag_seconds_first[64], bag_sizes_first[64];

/* Returns the index of the first bound that is not below the value. There is at most one bound
 * between two powers of two, so no search is needed, whose branches the processor could not
 * predict. */
static inline size_t bag_bound_of(const uint64_t *bounds, const uint8_t *first, uint64_t value)
{
    size_t i = first[63 ^ __builtin_clzll(value | 1)];
    return i + (value > bounds[i]);
}

static inline size_t bag_seconds_bound_of(uint64_t ns)
{
    return bag_bound_of(bag_seconds_bounds, bag_seconds_first, ns);
}

/* Adds a duration to a histogram. Only its writer may call this. */
static inline void bag_observe_ns(bag_counter *histogram, uint64_t ns)
{
    bag_counter_add(&histogram[bag_seconds_bound_of(ns)], 1);
    bag_counter_add(&histogram[BAG_SLOTS_SECONDS - 1], ns);
}

/* Adds a number to a histogram of sizes. Only its writer may call this. */
static inline void bag_observe_size(bag_counter *histogram, uint64_t size)
{
    size_t bound = bag_bound_of(bag_sizes_bounds, bag_sizes_first, size);
    bag_counter_add(&histogram[bound], 1);
    bag_counter_add(&histogram[BAG_SLOTS_SIZES - 1], size);
}

/* ---- recording ------------------------------------------------------------------------------- */

/* The maximum number of versions of models at one time. */
#define BAG_METRICS_MAX_SLOTS ((size_t)65536)

/* The metrics of the server. Initialised before the loops start. */
struct bag_load_status;
struct bag_metrics {
    bool on;
    size_t max_histograms;           /* slots from this one on are exposed without histograms */
    uint64_t latency_target_ms;      /* 0: no target */
    const struct bag_budget *budget; /* borrowed; memory of requests; NULL: exposed as 0 */
    struct bag_load_status *loading; /* borrowed; progress of loading tables; NULL: exposed as 0 */
    const atomic_ullong *spans_dropped; /* borrowed; NULL: tracing is off, exposed as 0 */
    atomic_uint busy_workers;   /* busy workers at the last request for /metrics, counted before a
                                   worker answers it */
    size_t num_slots;           /* number of slots in use so far */
    uint64_t epoch_ms;          /* time in ms since 1970 at which uv_now was 0 */
    struct bag_recorder *first; /* owned; one for each loop */
};

/* Initialises the metrics without loops, and the indexes of the bounds. */
void bag_metrics_init(struct bag_metrics *metrics, bool on, size_t max_histograms);

/* Sets the counters of a slot to 0, and allocates them if needed. `metrics` is a struct
 * bag_metrics. No other thread may use the slot yet; the snapshot that uses it is published later.
 * Returns false if there is not enough memory or the slot is not below BAG_METRICS_MAX_SLOTS. */
bool bag_metrics_begin_slot(void *metrics, size_t slot);

/* Frees all recorders. Their loops must have ended. */
void bag_metrics_free(struct bag_metrics *metrics);

/* Adds a recorder for one more loop. Called before any loop runs. Sets *recorder to NULL if metrics
 * are off. Returns false if there is not enough memory; the recorder is then freed with the others.
 */
bool bag_metrics_add_loop(struct bag_metrics *metrics, struct bag_recorder **recorder);

/* ---- what happened --------------------------------------------------------------------------- */

/* Record that a job begins to wait for a worker, and that it no longer waits. */
void bag_metrics_on_queued(struct bag_recorder *recorder, const struct bag_model *model);
void bag_metrics_on_taken(struct bag_recorder *recorder, const struct bag_model *model);

/* Records a batch of `requests` requests. Does nothing if `requests` is 0. */
void bag_metrics_on_batch(struct bag_recorder *recorder, const struct bag_model *model,
                          size_t requests);

/* The work of an inference that was answered with its result. */
struct bag_metrics_work {
    size_t bags, rows, bytes, defaults, missing, others; /* as in BAG_MODEL_METRICS */
    const struct bag_stopwatch *watch;                   /* borrowed; all stages are over */
    uint64_t now_ms;                                     /* uv_now */
};
void bag_metrics_on_success(struct bag_recorder *recorder, const struct bag_model *model,
                            const struct bag_metrics_work *work);

/* Records that a request was answered with an error. `model` is NULL if the request was for no
 * model. `watch` does not run if the body was not read. */
void bag_metrics_on_rejection(struct bag_recorder *recorder, const struct bag_model *model,
                              enum bag_rejection rejection, const struct bag_stopwatch *watch);

/* Records the reply to any request. */
void bag_metrics_on_answer(struct bag_recorder *recorder, int http_status, size_t body_bytes,
                           size_t reply_bytes);

/* Records the end of a request. `sent` is false if its connection was closed before the reply was
 * sent. */
void bag_metrics_on_end(struct bag_recorder *recorder, bool sent);

/* The current levels, and the refused connections since the start. The loop sets them at least once
 * before it waits. */
struct bag_metrics_levels {
    size_t in_flight, connections, queued, queued_bytes, refused_connections;
};
void bag_metrics_on_levels(struct bag_recorder *recorder, const struct bag_metrics_levels *levels);

/* ---- adding up ------------------------------------------------------------------------------- */

/* Set *sum to the sum over all loops. The caller holds the snapshot that contains the model. */
void bag_metrics_sum_model(const struct bag_metrics *metrics, const struct bag_model *model,
                           struct bag_model_counters *sum);
void bag_metrics_sum_loops(const struct bag_metrics *metrics, struct bag_loop_counters *sum);

/* Adds up the durations and rows of the answered inferences of all models since the start. */
void bag_metrics_sum_work(const struct bag_metrics *metrics,
                          uint64_t durations[BAG_SECONDS_BOUND_COUNT + 1], uint64_t *rows);

/* Returns the number of values in a histogram of durations. Its last element, the sum, is not
 * counted. */
uint64_t bag_histogram_count(const bag_counter *histogram);

/* Converts a time of uv_now to ms since 1970. Returns 0 for 0. */
uint64_t bag_metrics_epoch_ms(const struct bag_metrics *metrics, uint64_t loop_ms);

/* Values that are read from the system when metrics are exposed. */
struct bag_process_stats {
#define BAG_X(member, ...) uint64_t member;
    BAG_PROCESS_METRICS(BAG_X)
#undef BAG_X
};

/* Values that change every second and are cheap to read. A value that cannot be read is 0. */
struct bag_process_load {
    uint64_t cpu_ns, resident_bytes;
};
void bag_process_sample_load(struct bag_process_load *load);

/* Fills in the CPU time, memory and descriptors of this process. A value that cannot be read is
 * 0. */
void bag_process_sample(struct bag_process_stats *counters);

/* ---- exposing (expose.c) --------------------------------------------------------------------- */

#define BAG_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Returns the reply to GET /metrics: all metrics in Prometheus' text format. Returns NULL if there
 * is not enough memory. The caller frees the text and holds the snapshot. */
char *bag_expose_prometheus(const struct bag_metrics *metrics, const struct bag_snapshot *snapshot,
                            const char *version);

/* Returns the metrics of some versions of a model only, with all histograms. The text is as for
 * bag_expose_prometheus(). */
char *bag_expose_models(const struct bag_metrics *metrics, struct bag_model *const *models,
                        size_t count);

/* Writes one model's statistics for the protocol's statistics endpoint. `hot_rows`: with the
 * hottest rows of its features. */
void bag_expose_statistics(const struct bag_metrics *metrics, const struct bag_model *model,
                           bool hot_rows, struct bag_json_writer *json);
