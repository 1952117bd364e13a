/* What the server did in each second of the last 15 minutes, so that a page that is opened after an
 * incident shows it.
 *
 * One thread samples, any thread reads. */
#ifndef BAG_METRICS_HISTORY_H
#define BAG_METRICS_HISTORY_H

#include "metrics.h"
#include "proto/v2_server.h"

#include <pthread.h>

#define BAG_HISTORY_SECONDS 900

/* Levels at the end of a second. */
struct bag_history_levels {
    uint32_t waiting, in_flight, connections, busy_workers;
    uint64_t request_bytes, table_bytes, resident_bytes;
};

/* One second, or one that was held up. */
struct bag_history_sample {
    uint32_t span_ms; /* since the sample before; 0: there is none of this second */
    uint32_t durations[BAG_SECONDS_BOUND_COUNT + 1]; /* successful inferences by duration */
    uint32_t rejected[BAG_REJECTION_COUNT];
    uint64_t rows, cpu_ns;
    struct bag_history_levels levels;
};

/* What counts up, at the last sample. */
struct bag_history_totals {
    uint64_t durations[BAG_SECONDS_BOUND_COUNT + 1];
    uint64_t rejected[BAG_REJECTION_COUNT];
    uint64_t rows, cpu_ns;
};

struct bag_history {
    const struct bag_metrics *metrics; /* borrowed */
    struct bag_history_totals before;  /* the sampling thread's, as is begun_ns */
    uint64_t begun_ns, at_ns;          /* uv_hrtime at the beginning, and of the last sample */
    pthread_mutex_t lock;              /* guards what follows */
    struct bag_history_sample *ring;   /* owned; second N at N % BAG_HISTORY_SECONDS */
    uint64_t seconds;                  /* that have passed */
    uint64_t until_ms;                 /* since 1970: the last sample */
};

/* Takes the memory, and counts from here on, the process's CPU time from `cpu_ns`. False without
 * memory. */
bool bag_history_init(struct bag_history *history, const struct bag_metrics *metrics,
                      uint64_t now_ns, uint64_t cpu_ns);
void bag_history_free(struct bag_history *history);

/* Once a second, at `now_ns` on uv_hrtime's clock. A sample of a second that there is one of
 * already, as a clock may be a little early, is left out: the next one counts it. */
void bag_history_sample(struct bag_history *history, uint64_t now_ns,
                        const struct bag_history_levels *levels, uint64_t cpu_ns);

/* The document of GET /v2/server/history, with `now` beside the columns. The caller frees it; NULL
 * without memory. */
char *bag_history_describe(struct bag_history *history, const struct bag_v2_server *now);

#endif
