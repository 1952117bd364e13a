/* Counting what the server does, without locks, and adding it up for whoever asks.
 *
 * Every loop has a recorder of its own. The functions bag_metrics_on_* are told what happened, each
 * on the thread of its recorder's loop; with metrics off the recorder is NULL and they do nothing.
 * Adding up may be done on any loop's thread.
 *
 * Must not know: HTTP, how figures are shown. */
#ifndef BAG_METRICS_H
#define BAG_METRICS_H

#include "counters.h"
#include "server/table/registry.h"

/* Of the server. Set up before the loops start. */
struct bag_metrics {
    bool on;
    const struct bag_registry *registry; /* borrowed */
    size_t max_models;                   /* that it will hold */
    uint64_t epoch_ms;                   /* when uv_now was 0, since 1970 */
    struct bag_recorder *first;          /* owned; one for each loop */
};

void bag_metrics_init(struct bag_metrics *metrics, bool on, const struct bag_registry *registry,
                      size_t max_models);

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
    size_t bags, rows, bytes, defaults;
    const struct bag_stopwatch *watch;
    uint64_t now_ms; /* uv_now */
};
void bag_metrics_on_success(struct bag_recorder *recorder, const struct bag_model *model,
                            const struct bag_metrics_work *work);

/* A request was answered with an error; `model` is NULL where it was for none. */
void bag_metrics_on_rejection(struct bag_recorder *recorder, const struct bag_model *model,
                              int http_status, enum bag_rejection rejection);

/* Any request was answered. */
void bag_metrics_on_answer(struct bag_recorder *recorder, int http_status, size_t body_bytes,
                           size_t reply_bytes);

/* A request has ended: its reply has left, or its connection has broken before. */
void bag_metrics_on_end(struct bag_recorder *recorder, bool sent);

/* How things stand now; told at least before the loop waits. */
struct bag_metrics_levels {
    size_t in_flight, connections, queued, queued_bytes, running;
};
void bag_metrics_on_levels(struct bag_recorder *recorder, const struct bag_metrics_levels *levels);

/* ---- adding up ------------------------------------------------------------------------------- */

/* The sum over all loops; `index` is the model's position in the registry. */
void bag_metrics_sum_model(const struct bag_metrics *metrics, size_t index,
                           struct bag_model_counters *sum);
void bag_metrics_sum_loops(const struct bag_metrics *metrics, struct bag_loop_counters *sum);

/* How many values a histogram of durations holds. */
uint64_t bag_histogram_count(const bag_counter *histogram);

/* A time of uv_now in ms since 1970; 0 stays 0. */
uint64_t bag_metrics_epoch_ms(const struct bag_metrics *metrics, uint64_t loop_ms);

#endif
