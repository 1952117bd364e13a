/* Which clock, and how long its tick is; see clock.h. */
#include "clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* How long the two clocks are compared: the scale is as exact as a sample is short of it. */
#define COMPARE_NS 2000000
#define SAMPLES    16

uint64_t bag_ticks_scale;

/* The kernel measures the counters of all processors against each other and against other clocks,
 * and leaves them for another clock where they do not agree. */
static bool is_trusted(void)
{
    char name[32] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (!file)
        return false;
    bool read = fgets(name, sizeof name, file) != NULL;
    fclose(file);
    return read && strcmp(name, "tsc\n") == 0;
}

#ifdef __x86_64__
struct sample {
    uint64_t ns, ticks;
};

/* Both clocks at about one moment: of several samples the one that was over soonest, so that being
 * held up between the two does not count. */
static struct sample take_sample(void)
{
    struct sample best = {0};
    uint64_t shortest_ns = UINT64_MAX;
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t before_ns = uv_hrtime(), ticks = __rdtsc(), took_ns = uv_hrtime() - before_ns;
        if (took_ns < shortest_ns) {
            shortest_ns = took_ns;
            best = (struct sample){before_ns + took_ns / 2, ticks};
        }
    }
    return best;
}
#endif

void bag_ticks_init(void)
{
#ifdef __x86_64__
    if (bag_ticks_scale || !is_trusted())
        return;
    struct sample begin = take_sample(), end;
    do
        end = take_sample();
    while (end.ns - begin.ns < COMPARE_NS);
    bag_ticks_scale =
        (uint64_t)(((unsigned __int128)(end.ns - begin.ns) << 32) / (end.ticks - begin.ticks));
#else
    (void)is_trusted;
#endif
}
