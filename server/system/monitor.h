/* A monitor: a lock and a condition that threads wait for until a deadline.
 *
 * All deadlines are times of uv_hrtime() in ns. UINT64_MAX: no deadline. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct bag_monitor {
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Returns false if there is not enough memory. bag_monitor_free() must not be called then. */
bool bag_monitor_init(struct bag_monitor *monitor);
void bag_monitor_free(struct bag_monitor *monitor);

/* Initialises only the condition of a static monitor, whose lock has a static initialiser and may
 * be in use. Returns false if there is not enough memory. */
bool bag_monitor_init_condition(struct bag_monitor *monitor);

static inline void bag_monitor_lock(struct bag_monitor *monitor)
{
    pthread_mutex_lock(&monitor->lock);
}

static inline void bag_monitor_unlock(struct bag_monitor *monitor)
{
    pthread_mutex_unlock(&monitor->lock);
}

/* Wake one waiting thread, or all of them. The caller holds the lock. */
static inline void bag_monitor_wake(struct bag_monitor *monitor)
{
    pthread_cond_signal(&monitor->changed);
}

static inline void bag_monitor_wake_all(struct bag_monitor *monitor)
{
    pthread_cond_broadcast(&monitor->changed);
}

/* Waits until another thread wakes this one. The caller holds the lock, which is released during
 * the wait. Returns false if the deadline has passed. May also return true without a reason, so the
 * caller must check its condition again. */
bool bag_monitor_wait(struct bag_monitor *monitor, uint64_t until_ns);
