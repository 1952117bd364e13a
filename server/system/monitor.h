/* A lock, and a way to wait for what it guards until a deadline.
 *
 * All deadlines are times of uv_hrtime(), in ns; UINT64_MAX: wait without one. */
#ifndef BAG_MONITOR_H
#define BAG_MONITOR_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct bag_monitor {
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Returns false without memory. Then bag_monitor_free() must not be called. */
bool bag_monitor_init(struct bag_monitor *monitor);
void bag_monitor_free(struct bag_monitor *monitor);

static inline void bag_monitor_lock(struct bag_monitor *monitor)
{
    pthread_mutex_lock(&monitor->lock);
}

static inline void bag_monitor_unlock(struct bag_monitor *monitor)
{
    pthread_mutex_unlock(&monitor->lock);
}

/* Wakes one thread that waits, or all of them. With the lock. */
static inline void bag_monitor_wake(struct bag_monitor *monitor)
{
    pthread_cond_signal(&monitor->changed);
}

static inline void bag_monitor_wake_all(struct bag_monitor *monitor)
{
    pthread_cond_broadcast(&monitor->changed);
}

/* Waits with the lock, which is free meanwhile, until another thread wakes this one. Returns false
 * if the deadline has passed. May also return true for no reason: the caller checks again what it
 * waits for. */
bool bag_monitor_wait(struct bag_monitor *monitor, uint64_t until_ns);

#endif
