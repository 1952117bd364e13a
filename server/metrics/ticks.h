/* A clock for durations that costs little to read.
 *
 * The system's takes 30 ns on common machines, and an inference is looked at three times: that
 * alone would be more than counting may cost. Where the processor has a counter that runs evenly,
 * and that the system itself trusts as its clock, it is read in its stead. Any thread may. */
#ifndef BAG_TICKS_H
#define BAG_TICKS_H

#include <stdint.h>
#include <uv.h>

#ifdef __x86_64__
#include <x86intrin.h>
#endif

/* Nanoseconds of a tick, times 2^32; 0: ticks are nanoseconds of the system's clock. Set once by
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

/* The time from one look to a later one. Another processor's counter may be some ticks behind. */
static inline uint64_t bag_ticks_ns(uint64_t before, uint64_t now)
{
    if (now <= before)
        return 0;
    return bag_ticks_scale ? (uint64_t)(((unsigned __int128)(now - before) * bag_ticks_scale) >> 32)
                           : now - before;
}

#endif
