/* Worker threads: order, turns and nice value. */
#include "testing.h"

#include "server/engine/engine.h"

#include <sys/resource.h>
#include <uv.h>

#define WORK_COUNT 100

/* Observations of each piece of work, in the order of execution. */
static struct {
    struct bag_workers workers;
    struct bag_work work[WORK_COUNT];
    atomic_size_t count;
    struct bag_work *order[WORK_COUNT];
    int nice[WORK_COUNT];
    uv_sem_t gate;
} world;

static void note(struct bag_work *work)
{
    size_t place = atomic_fetch_add(&world.count, 1);
    world.order[place] = work;
    world.nice[place] = getpriority(PRIO_PROCESS, 0);
}

static void wait_at_gate(struct bag_work *work)
{
    uv_sem_wait(&world.gate);
    note(work);
}

static void start(unsigned count, int nice)
{
    struct bag_problem problem;
    memset(&world, 0, sizeof world);
    assert_int_equal(uv_sem_init(&world.gate, 0), 0);
    if (!bag_workers_start(&world.workers, count, nice, &problem))
        fail_msg("%s", problem.text);
}

static void stop(void)
{
    bag_workers_stop(&world.workers);
    uv_sem_destroy(&world.gate);
}

static void push(size_t i, enum bag_work_order order)
{
    world.work[i].run = note;
    bag_workers_push(&world.workers, &world.work[i], order);
}

/* All pushed work is run before the pool ends. */
TEST(test_all_work_is_run_once)
{
    for (unsigned count = 1; count <= 4; count++) {
        start(count, 0);
        assert_int_equal(bag_workers_idle(&world.workers), count);
        for (size_t i = 0; i < WORK_COUNT; i++)
            push(i, (enum bag_work_order)(i % 3));
        stop();
        assert_int_equal(world.count, WORK_COUNT);
        assert_int_equal(bag_workers_idle(&world.workers), count);
    }
}

static bool has_waiting(void)
{
    uv_mutex_lock(&world.workers.lock);
    bool waiting = !TAILQ_EMPTY(&world.workers.waiting) || !TAILQ_EMPTY(&world.workers.metadata);
    uv_mutex_unlock(&world.workers.lock);
    return waiting;
}

/* Starts workers, the first of which waits at the gate with this work. */
static void start_at_gate(size_t count, enum bag_work_order order)
{
    start(count, 0);
    world.work[0].run = wait_at_gate;
    bag_workers_push(&world.workers, &world.work[0], order);
    while (has_waiting())
        sched_yield();
}

/* Opens the gate; work ends in this order. */
static void expect_order(const size_t *order, size_t count)
{
    uv_sem_post(&world.gate);
    stop();
    for (size_t i = 0; i < count; i++)
        assert_ptr_equal(world.order[i], &world.work[order[i]]);
}

/* One worker: what is urgent goes first, all else in its order. */
TEST(test_urgent_work_goes_first)
{
    static const size_t order[] = {0, 4, 3, 1, 2};
    start_at_gate(1, BAG_WORK_IN_ORDER);
    push(1, BAG_WORK_IN_ORDER);
    push(2, BAG_WORK_IN_ORDER);
    push(3, BAG_WORK_URGENT);
    push(4, BAG_WORK_URGENT);
    assert_int_equal(bag_workers_idle(&world.workers), 0);
    expect_order(order, COUNT_OF(order));
}

/* One worker alternates between metadata and other work, each in its order. */
TEST(test_alternates_between_metadata_and_other_work)
{
    static const size_t order[] = {0, 1, 4, 2, 5, 3, 6};
    start_at_gate(1, BAG_WORK_METADATA);
    for (size_t i = 4; i <= 6; i++)
        push(i, BAG_WORK_METADATA);
    for (size_t i = 1; i <= 3; i++)
        push(i, BAG_WORK_IN_ORDER);
    expect_order(order, COUNT_OF(order));
}

/* One worker makes one metadata response of each client before the second of any. */
TEST(test_clients_take_turns_for_metadata)
{
    static const size_t order[] = {0, 1, 4, 6, 2, 5, 3};
    static const uint64_t clients[] = {9, 1, 1, 1, 2, 2, 3};
    start_at_gate(1, BAG_WORK_METADATA);
    for (size_t i = 1; i < COUNT_OF(order); i++) {
        world.work[i].client = clients[i];
        push(i, BAG_WORK_METADATA);
    }
    expect_order(order, COUNT_OF(order));
}

/* While one of two workers makes a metadata response, the other makes none. */
TEST(test_makes_one_metadata_response_at_a_time)
{
    static const size_t order[] = {2, 3, 0, 1};
    start_at_gate(2, BAG_WORK_METADATA);
    push(1, BAG_WORK_METADATA);
    push(2, BAG_WORK_IN_ORDER);
    push(3, BAG_WORK_IN_ORDER);
    while (atomic_load(&world.count) < 2)
        sched_yield();
    expect_order(order, COUNT_OF(order));
}

/* The caller keeps its own. */
TEST(test_workers_have_their_nice_value)
{
    int nice = getpriority(PRIO_PROCESS, 0);
    start(1, 0);
    push(0, BAG_WORK_IN_ORDER);
    stop();
    assert_int_equal(world.nice[0], nice);

    start(1, 3);
    push(0, BAG_WORK_IN_ORDER);
    stop();
    assert_int_equal(world.nice[0], nice + 3 < 19 ? nice + 3 : 19);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
}
