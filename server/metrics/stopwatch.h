/* Where the time of one inference goes, stage by stage. */
#ifndef BAG_STOPWATCH_H
#define BAG_STOPWATCH_H

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

/* Belongs to whoever has the inference in hand: it is never used by two threads at once, and goes
 * from one to the next together with it. */
struct bag_stopwatch {
    bool runs;     /* otherwise it reads no clock */
    uint64_t mark; /* uv_hrtime at the last lap */
    uint64_t stage_ns[BAG_STAGE_COUNT];
};

/* All stages at 0; from here on where it `runs`. */
static inline void bag_stopwatch_start(struct bag_stopwatch *watch, bool runs)
{
    memset(watch->stage_ns, 0, sizeof watch->stage_ns);
    watch->runs = runs;
    if (runs)
        watch->mark = uv_hrtime();
}

/* What passed since the last lap was spent on this stage. */
static inline void bag_stopwatch_lap(struct bag_stopwatch *watch, enum bag_stage stage)
{
    if (!watch->runs)
        return;
    uint64_t now = uv_hrtime();
    watch->stage_ns[stage] += now - watch->mark;
    watch->mark = now;
}

/* The time from its start until now; 0 for one that does not run. */
static inline uint64_t bag_stopwatch_ns(const struct bag_stopwatch *watch)
{
    if (!watch->runs)
        return 0;
    uint64_t ns = uv_hrtime() - watch->mark;
    for (size_t i = 0; i < BAG_STAGE_COUNT; i++)
        ns += watch->stage_ns[i];
    return ns;
}

#endif
