/* The clock of durations, and where the time of one inference goes. */
#ifndef BAG_METRICS_CLOCK_H
#define BAG_METRICS_CLOCK_H

#include "table.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <uv.h>

#ifdef __x86_64__
#include <x86intrin.h>
#endif

/* ---- the clock ------------------------------------------------------------------------------- */

/* A clock for durations that costs little to read.
 *
 * The system's takes 30 ns on common machines, and an inference is timed three times: that alone
 * would be more than counting may cost. Where the processor has a counter that runs evenly, and
 * that the system itself trusts as its clock, it is read in its stead. Any thread may.
 *
 * Nanoseconds of a tick, times 2^32; 0: ticks are nanoseconds of the system's clock. Set once by
 * bag_ticks_init, before there are threads. */
extern uint64_t bag_ticks_scale;

/* Finds the clock and its scale, in about 2 ms. */
void bag_ticks_init(void);

static inline uint64_t bag_ticks_now(void)
{
#ifdef __x86_64__
    if (bag_ticks_scale)
        return __rdtsc();
#endif
    return uv_hrtime();
}

/* The time from one reading to a later one. Another processor's counter may be some ticks behind.
 */
static inline uint64_t bag_ticks_ns(uint64_t before, uint64_t now)
{
    if (now <= before)
        return 0;
    return bag_ticks_scale ? (uint64_t)(((unsigned __int128)(now - before) * bag_ticks_scale) >> 32)
                           : now - before;
}

/* ---- the stopwatch --------------------------------------------------------------------------- */

/* Where the time of one inference goes. Belongs to whoever has the inference in hand: it is never
 * used by two threads at once, and goes from one to the next together with it. */
enum bag_stage {
#define BAG_X(id, ...) BAG_STAGE_##id,
    BAG_STAGES(BAG_X)
#undef BAG_X
        BAG_STAGE_COUNT
};

struct bag_stopwatch {
    bool runs;     /* otherwise it reads no clock */
    uint64_t mark; /* bag_ticks_now at the last lap */
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

/* What passed since the last lap was spent on this stage. */
static inline void bag_stopwatch_lap(struct bag_stopwatch *watch, enum bag_stage stage)
{
    if (!watch->runs)
        return;
    uint64_t now = bag_ticks_now();
    watch->stage_ns[stage] += bag_ticks_ns(watch->mark, now);
    watch->mark = now;
}

/* The time from its start until now; 0 for one that does not run. */
static inline uint64_t bag_stopwatch_ns(const struct bag_stopwatch *watch)
{
    if (!watch->runs)
        return 0;
    uint64_t ns = bag_ticks_ns(watch->mark, bag_ticks_now());
    for (size_t i = 0; i < BAG_STAGE_COUNT; i++)
        ns += watch->stage_ns[i];
    return ns;
}

#endif
