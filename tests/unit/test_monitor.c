/* Waiting with a deadline: server/system/monitor.h. */
#include "testing.h"

#include "server/system/monitor.h"
#include "server/system/thread_team.h"

#include <uv.h>

#define MS UINT64_C(1000000)

TEST(test_wait_ends_at_deadline)
{
    struct bag_monitor monitor;
    assert_true(bag_monitor_init(&monitor));
    bag_monitor_lock(&monitor);
    uint64_t until_ns = uv_hrtime() + 20 * MS;
    while (bag_monitor_wait(&monitor, until_ns))
        ;
    assert_true(uv_hrtime() >= until_ns);
    assert_false(bag_monitor_wait(&monitor, 0)); /* has passed */
    bag_monitor_unlock(&monitor);
    bag_monitor_free(&monitor);
}

struct turns {
    struct bag_monitor monitor;
    int count; /* guarded by it */
};

/* Answers each odd count with an even one. */
static void *answer(void *context)
{
    struct turns *turns = context;
    bag_monitor_lock(&turns->monitor);
    while (turns->count < 100) {
        if (turns->count % 2 == 1) {
            turns->count++;
            bag_monitor_wake(&turns->monitor);
        } else {
            bag_monitor_wait(&turns->monitor, UINT64_MAX);
        }
    }
    bag_monitor_unlock(&turns->monitor);
    return NULL;
}

TEST(test_wakes_waiting_thread)
{
    struct turns turns = {.count = 0};
    pthread_t thread;
    assert_true(bag_monitor_init(&turns.monitor));
    assert_int_equal(bag_thread_start(&thread, answer, &turns), 0);
    bag_monitor_lock(&turns.monitor);
    while (turns.count < 100) {
        turns.count++;
        bag_monitor_wake_all(&turns.monitor);
        while (turns.count % 2 == 1)
            assert_true(bag_monitor_wait(&turns.monitor, uv_hrtime() + 60000 * MS));
    }
    bag_monitor_unlock(&turns.monitor);
    pthread_join(thread, NULL);
    bag_monitor_free(&turns.monitor);
}
