/* Which clock, and how long its tick is; see ticks.h. */
#include "ticks.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* How long the two clocks are compared: the scale is as exact as a look at them is short of it. */
#define COMPARE_NS 2000000

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

void bag_ticks_init(void)
{
#ifdef __x86_64__
    if (bag_ticks_scale || !is_trusted())
        return;
    uint64_t begin_ns = uv_hrtime(), begin = __rdtsc(), ns, ticks;
    do {
        ns = uv_hrtime() - begin_ns;
        ticks = __rdtsc() - begin;
    } while (ns < COMPARE_NS);
    bag_ticks_scale = (uint64_t)(((unsigned __int128)ns << 32) / ticks);
#else
    (void)is_trusted;
#endif
}
