/* Measures the time of one inference, stage by stage.
 *
 * A lap ends one stage and begins the next one. A stage may have several laps, whose times are
 * added: a request that waits twice has both waits in its stage of waiting. */
#pragma once

#include "table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <uv.h>

enum bag_stage {
#define BAG_X(id, ...) BAG_STAGE_##id,
    BAG_STAGES(BAG_X)
#undef BAG_X
        BAG_STAGE_COUNT
};

/* A stopwatch belongs to the thread that works on the inference. Two threads never use it at the
 * same time. */
struct bag_stopwatch {
    bool runs;     /* if false, no function reads the clock */
    uint64_t mark; /* uv_hrtime at the last lap */
    uint64_t stage_ns[BAG_STAGE_COUNT];
};

/* Sets all stages to 0 and, if `runs`, starts the clock. */
static inline void bag_stopwatch_start(struct bag_stopwatch *watch, bool runs)
{
    memset(watch->stage_ns, 0, sizeof watch->stage_ns);
    watch->runs = runs;
    if (runs)
        watch->mark = uv_hrtime();
}

/* Adds the time since the last lap to a stage. */
static inline void bag_stopwatch_lap(struct bag_stopwatch *watch, enum bag_stage stage)
{
    if (!watch->runs)
        return;
    uint64_t now = uv_hrtime();
    watch->stage_ns[stage] += now - watch->mark;
    watch->mark = now;
}

/* Returns the time since the start, or 0 if the stopwatch does not run. */
static inline uint64_t bag_stopwatch_ns(const struct bag_stopwatch *watch)
{
    if (!watch->runs)
        return 0;
    uint64_t ns = uv_hrtime() - watch->mark;
    for (size_t i = 0; i < BAG_STAGE_COUNT; i++)
        ns += watch->stage_ns[i];
    return ns;
}
