/* Where the time of one inference goes.
 *
 * Belongs to whoever has the inference in hand: it is never used by two threads at once, and goes
 * from one to the next together with it. One that does not run reads no clock. */
#ifndef BAG_STOPWATCH_H
#define BAG_STOPWATCH_H

#include "table.h"
#include "ticks.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum bag_stage {
#define BAG_X(id, ...) BAG_STAGE_##id,
    BAG_STAGES(BAG_X)
#undef BAG_X
        BAG_STAGE_COUNT
};

struct bag_stopwatch {
    bool runs;
    uint64_t mark; /* the last look at the clock, which is bag_ticks_now's */
    uint64_t stage_ns[BAG_STAGE_COUNT];
};

/* All stages at 0; from here on where it `runs`. */
static inline void bag_stopwatch_start(struct bag_stopwatch *watch, bool runs)
{
    memset(watch->stage_ns, 0, sizeof watch->stage_ns);
    watch->runs = runs;
    if (runs)
        watch->mark = bag_ticks_now();
}

/* What passed since the last look was spent on this stage. */
static inline void bag_stopwatch_lap(struct bag_stopwatch *watch, enum bag_stage stage)
{
    if (!watch->runs)
        return;
    uint64_t now = bag_ticks_now();
    watch->stage_ns[stage] += bag_ticks_ns(watch->mark, now);
    watch->mark = now;
}

#endif
