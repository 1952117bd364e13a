/* Counting what the server does, without locks, and adding it up when it is asked for.
 *
 * Every loop has a recorder of its own. The functions bag_metrics_on_* are told what happened, each
 * on the thread of its recorder's loop; with metrics off the recorder is NULL and they do nothing.
 * Adding up may be done on any thread. */
#ifndef BAG_METRICS_H
#define BAG_METRICS_H

#include "proto/v2_documents.h"
#include "server/memory/memory.h"
#include "server/models/snapshot.h"
#include "stopwatch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

/* ---- counters -------------------------------------------------------------------------------- */

/* A counter has one writer, the thread of its loop, and is read by any thread at any time: so it is
 * an atomic that is read and written in two steps, which costs no more than a plain one. The
 * structs below are nothing but counters, one after another, so that two are added word by word. */
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

#define BAG_X(status) +1
enum { BAG_ONE_COUNT = 1, BAG_STATUS_LABEL_COUNT = BAG_HTTP_STATUSES(BAG_X) + 1 };
#undef BAG_X

/* How many counters a metric has for each value of its label; a histogram's are one for each bound,
 * one for what is beyond the last, and the sum. */
#define BAG_SLOTS_COUNTER 1
#define BAG_SLOTS_TIME    1
#define BAG_SLOTS_GAUGE   1
#define BAG_SLOTS_MOMENT  1
#define BAG_SLOTS_SECONDS (BAG_SECONDS_BOUND_COUNT + 2)
#define BAG_SLOTS_SIZES   (BAG_SIZES_BOUND_COUNT + 2)

/* How many values a label has. */
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

static inline uint64_t bag_counter_get(const bag_counter *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void bag_counter_set(bag_counter *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

/* By the writer alone; a gauge is taken from by adding the complement. */
static inline void bag_counter_add(bag_counter *counter, uint64_t value)
{
    bag_counter_set(counter, bag_counter_get(counter) + value);
}

/* A histogram's bounds, each at least twice the one before. After the last comes UINT64_MAX. */
extern const uint64_t bag_seconds_bounds[BAG_SECONDS_BOUND_COUNT + 1]; /* in ns */
extern const uint64_t bag_sizes_bounds[BAG_SIZES_BOUND_COUNT + 1];

/* The first bound that is not below a power of two, by its exponent. Set by bag_metrics_init. */
extern uint8_t bag_seconds_first[64], bag_sizes_first[64];

/* The first bound that is not below the value. From one power of two up to the next there is one
 * bound at most: no search, whose branches the processor would guess wrong. */
static inline size_t bag_bound_of(const uint64_t *bounds, const uint8_t *first, uint64_t value)
{
    size_t i = first[63 ^ __builtin_clzll(value | 1)];
    return i + (value > bounds[i]);
}

static inline size_t bag_seconds_bound_of(uint64_t ns)
{
    return bag_bound_of(bag_seconds_bounds, bag_seconds_first, ns);
}

static inline void bag_observe_ns(bag_counter *histogram, uint64_t ns)
{
    bag_counter_add(&histogram[bag_seconds_bound_of(ns)], 1);
    bag_counter_add(&histogram[BAG_SLOTS_SECONDS - 1], ns);
}

static inline void bag_observe_size(bag_counter *histogram, uint64_t size)
{
    size_t bound = bag_bound_of(bag_sizes_bounds, bag_sizes_first, size);
    bag_counter_add(&histogram[bound], 1);
    bag_counter_add(&histogram[BAG_SLOTS_SIZES - 1], size);
}

/* ---- recording ------------------------------------------------------------------------------- */

/* Most names and versions that are there at one time. */
#define BAG_METRICS_MAX_SLOTS ((size_t)65536)

/* Of the server. Set up before the loops start. */
struct bag_load_status;
struct bag_metrics {
    bool on;
    size_t max_histograms;              /* slots from this one on are exposed without histograms */
    uint64_t latency_target_ms;         /* 0: there is none */
    const struct bag_budget *budget;    /* borrowed; of requests' memory; NULL: none is shown */
    struct bag_load_status *loading;    /* borrowed; of tables; NULL: none is shown */
    const atomic_ullong *spans_dropped; /* borrowed; NULL: nothing is traced */
    atomic_uint busy_workers;   /* when /metrics was last asked for, before a worker makes it */
    size_t num_slots;           /* that have begun */
    uint64_t epoch_ms;          /* when uv_now was 0, since 1970 */
    struct bag_recorder *first; /* owned; one for each loop */
};

void bag_metrics_init(struct bag_metrics *metrics, bool on, size_t max_histograms);

/* Sets the counters of a slot to 0, with room for them where there was none; `metrics` is a struct
 * bag_metrics. Nobody uses the slot: the snapshot that does is published later. False without
 * memory, or beyond BAG_METRICS_MAX_SLOTS. */
bool bag_metrics_begin_slot(void *metrics, size_t slot);

/* Frees all recorders; their loops have ended. */
void bag_metrics_free(struct bag_metrics *metrics);

/* A recorder for one more loop, before any of them runs. *recorder is NULL where metrics are off;
 * false without memory. */
bool bag_metrics_add_loop(struct bag_metrics *metrics, struct bag_recorder **recorder);

/* ---- what happened --------------------------------------------------------------------------- */

/* A job waits for a worker, or does not any more. */
void bag_metrics_on_queued(struct bag_recorder *recorder, const struct bag_model *model);
void bag_metrics_on_taken(struct bag_recorder *recorder, const struct bag_model *model);

/* So many requests were pooled together; none: no batch. */
void bag_metrics_on_batch(struct bag_recorder *recorder, const struct bag_model *model,
                          size_t requests);

/* An inference was answered with its result. */
struct bag_metrics_work {
    size_t bags, rows, bytes, defaults, missing, others;
    const struct bag_stopwatch *watch;
    uint64_t now_ms; /* uv_now */
};
void bag_metrics_on_success(struct bag_recorder *recorder, const struct bag_model *model,
                            const struct bag_metrics_work *work);

/* A request was answered with an error; `model` is NULL where it was for none, `watch` does not run
 * where its body was not read. */
void bag_metrics_on_rejection(struct bag_recorder *recorder, const struct bag_model *model,
                              enum bag_rejection rejection, const struct bag_stopwatch *watch);

/* Any request was answered. */
void bag_metrics_on_answer(struct bag_recorder *recorder, int http_status, size_t body_bytes,
                           size_t reply_bytes);

/* A request has ended: its reply has left, or its connection has broken before. */
void bag_metrics_on_end(struct bag_recorder *recorder, bool sent);

/* The present levels; set at least before the loop waits. */
struct bag_metrics_levels {
    size_t in_flight, connections, queued, queued_bytes;
};
void bag_metrics_on_levels(struct bag_recorder *recorder, const struct bag_metrics_levels *levels);

/* ---- adding up ------------------------------------------------------------------------------- */

/* The sum over all loops, of a model in a snapshot that the caller has acquired. */
void bag_metrics_sum_model(const struct bag_metrics *metrics, const struct bag_model *model,
                           struct bag_model_counters *sum);
void bag_metrics_sum_loops(const struct bag_metrics *metrics, struct bag_loop_counters *sum);

/* The answered inferences of all models there have ever been, by their duration, and their rows. */
void bag_metrics_sum_work(const struct bag_metrics *metrics,
                          uint64_t durations[BAG_SECONDS_BOUND_COUNT + 1], uint64_t *rows);

/* How many values a histogram of durations holds. */
uint64_t bag_histogram_count(const bag_counter *histogram);

/* A time of uv_now in ms since 1970; 0 stays 0. */
uint64_t bag_metrics_epoch_ms(const struct bag_metrics *metrics, uint64_t loop_ms);

/* What is sampled when somebody asks. */
struct bag_process_stats {
#define BAG_X(member, ...) uint64_t member;
    BAG_PROCESS_METRICS(BAG_X)
#undef BAG_X
};

/* What changes from one second to the next, and costs little to read; 0 where it cannot be. */
struct bag_process_load {
    uint64_t cpu_ns, resident_bytes;
};
void bag_process_sample_load(struct bag_process_load *load);

/* Fills in what the system says of this process (CPU time, memory, descriptors); a number that
 * cannot be read is 0. */
void bag_process_sample(struct bag_process_stats *counters);

/* ---- exposing (expose.c) --------------------------------------------------------------------- */

#define BAG_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* The answer to GET /metrics: all metrics in Prometheus' text format. The caller frees it; NULL
 * without memory. The snapshot is one that the caller has acquired. */
char *bag_expose_prometheus(const struct bag_metrics *metrics, const struct bag_snapshot *snapshot,
                            const char *version);

/* The same of some versions of a model alone, with all of their histograms. */
char *bag_expose_models(const struct bag_metrics *metrics, struct bag_model *const *models,
                        size_t count);

/* One model's statistics, as the protocol's statistics endpoint shows them. */
void bag_expose_statistics(const struct bag_metrics *metrics, const struct bag_model *model,
                           struct bag_v2_statistics *statistics);

#endif
