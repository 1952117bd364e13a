/* The activity of the server in each second of the last 15 minutes, so that a page that is opened
 * after an incident can show it.
 *
 * The history is a ring of samples, one for each second since the start. A sample has the levels at
 * its end, and the differences of counters since the previous sample.
 *
 * One thread calls bag_history_sample once a second. Any thread may read. */
#pragma once

#include "metrics.h"
#include "proto/json_writer.h"

#include <pthread.h>

#define BAG_HISTORY_SECONDS 900

/* Levels at the end of a second. */
struct bag_history_levels {
    uint32_t waiting, in_flight, connections, busy_workers;
    uint64_t request_bytes, table_bytes, resident_bytes;
};

/* The sample of one second, or of a longer time if sampling was delayed. */
struct bag_history_sample {
    uint32_t span_ms; /* time since the previous sample; 0: no sample was taken in this second */
    uint32_t durations[BAG_SECONDS_BOUND_COUNT + 1]; /* successful inferences by duration */
    uint32_t rejected[BAG_REJECTION_COUNT];
    uint64_t rows, cpu_ns; /* rows that were gathered; CPU time of the process */
    struct bag_history_levels levels;
};

/* The values of all counters at the last sample. */
struct bag_history_totals {
    uint64_t durations[BAG_SECONDS_BOUND_COUNT + 1];
    uint64_t rejected[BAG_REJECTION_COUNT];
    uint64_t rows, cpu_ns;
};

struct bag_history {
    const struct bag_metrics *metrics; /* borrowed */
    struct bag_history_totals before;  /* used only by the sampling thread, as is begun_ns */
    uint64_t begun_ns, at_ns;          /* uv_hrtime at the start and of the last sample */
    pthread_mutex_t lock;              /* guards the members below */
    struct bag_history_sample
        *ring;         /* owned; the sample of second N is at index N % BAG_HISTORY_SECONDS */
    uint64_t seconds;  /* number of seconds since the start */
    uint64_t until_ms; /* time of the last sample, in ms since 1970 */
};

/* Allocates the history and starts to count. `cpu_ns` is the CPU time of the process until now.
 * Returns false if there is not enough memory. */
bool bag_history_init(struct bag_history *history, const struct bag_metrics *metrics,
                      uint64_t now_ns, uint64_t cpu_ns);
/* Frees the ring. The struct may be all zeros. */
void bag_history_free(struct bag_history *history);

/* Takes a sample. Called once a second with `now_ns` on uv_hrtime's clock. Does nothing if this
 * second already has a sample, because a timer may fire slightly early. The next sample then covers
 * the time. */
void bag_history_sample(struct bag_history *history, uint64_t now_ns,
                        const struct bag_history_levels *levels, uint64_t cpu_ns);

/* Writes the members of GET /v2/server/history that are about the past: until_ms, seconds, recent,
 * columns and rejected. Any thread. */
void bag_history_write(struct bag_history *history, struct bag_json_writer *json);
