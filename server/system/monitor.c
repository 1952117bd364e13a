/* Initialises monitors and waits with a deadline; see monitor.h. */
#include "monitor.h"

#include <time.h>

#define SECOND_NS UINT64_C(1000000000)

bool bag_monitor_init_condition(struct bag_monitor *monitor)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    bool ok = pthread_cond_init(&monitor->changed, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return ok;
}

bool bag_monitor_init(struct bag_monitor *monitor)
{
    if (!bag_monitor_init_condition(monitor))
        return false;
    if (pthread_mutex_init(&monitor->lock, NULL) == 0)
        return true;
    pthread_cond_destroy(&monitor->changed);
    return false;
}

void bag_monitor_free(struct bag_monitor *monitor)
{
    pthread_cond_destroy(&monitor->changed);
    pthread_mutex_destroy(&monitor->lock);
}

bool bag_monitor_wait(struct bag_monitor *monitor, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / SECOND_NS),
                                   .tv_nsec = (long)(until_ns % SECOND_NS)};
    return (until_ns == UINT64_MAX
                ? pthread_cond_wait(&monitor->changed, &monitor->lock)
                : pthread_cond_timedwait(&monitor->changed, &monitor->lock, &until)) == 0;
}
