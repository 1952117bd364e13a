/* The engine on a real loop with real workers: every job is done once, with the bits of a job
 * alone; the queue is bounded; stale jobs are rejected. */
#include "engine_fixture.h"

TEST(test_every_job_is_done_once)
{
    for (unsigned workers = 1; workers <= 4; workers++) {
        set_up(workers, MAX_JOBS);
        for (size_t i = 0; i < MAX_JOBS; i++)
            bag_engine_submit(&world.engine, make_job(i, i * 3));
        run(MAX_JOBS);
        for (size_t i = 0; i < MAX_JOBS; i++)
            check_reply(i, i * 3);
        tear_down(MAX_JOBS);
    }
}

/* One large job over idle workers: planned by a worker, split over all, and the same bits. */
TEST(test_a_large_job_is_split)
{
    for (unsigned workers = 1; workers <= 4; workers++) {
        set_up(workers, MAX_JOBS);
        bag_engine_submit(&world.engine, make_job(0, 60000));
        run(1);
        check_reply(0, 60000);
        assert_int_equal(world.jobs[0].splits, workers > 1 ? workers : 0);
        tear_down(1);
    }
}

TEST(test_the_queue_is_bounded)
{
    set_up(1, 2);
    assert_true(has_room(0));
    bag_engine_submit(&world.engine, make_job(0, 5));
    assert_true(has_room(0));
    world.engine.limits.max_queue_work_ns = 1;
    assert_false(has_room(0));
    world.engine.limits.max_queue_work_ns = UINT64_MAX;
    bag_engine_submit(&world.engine, make_job(1, 5));
    assert_false(has_room(0));
    run(2);
    tear_down(2);
}

/* A client that fills the queue does not lock out other clients, up to twice the limits. The
 * message to that client has the exact numbers. */
TEST(test_a_full_queue_has_room_for_others)
{
    struct bag_job job = {.client = 1};
    set_up(1, 4);
    for (size_t i = 0; i < 7; i++) {
        make_job(i, 5)->client = i < 4 ? 1 : i;
        assert_int_equal(has_room(world.jobs[i].client), true);
        bag_engine_submit(&world.engine, &world.jobs[i]);
        if (i == 3)
            assert_false(has_room(1));
    }
    assert_false(has_room(8)); /* a fifth of 4 requests is none */
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_string_equal(job.problem.text,
                        "the queue is full: 7 requests wait; the limit (max_queue_size) is 4");
    run(7);
    tear_down(7);

    set_up(1, MAX_JOBS);
    bag_engine_submit(&world.engine, make_job(0, 60000));
    world.jobs[0].client = job.client = 0;
    world.engine.limits.max_queue_work_ns = 1000000;
    world.engine.cost_scale = 1e6 / (double)world.jobs[0].cost_ns * 1.5;
    assert_false(has_room(0));
    assert_true(has_room(1));
    world.engine.cost_scale = 1e6 / (double)world.jobs[0].cost_ns * 2.5;
    assert_false(has_room(1));
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_string_equal(job.problem.text,
                        "the queue is full: 2 ms of work wait for each worker; the limit "
                        "(max_queue_work_ms) is 1 ms");
    world.engine.limits.max_queue_work_ns = UINT64_MAX;
    run(1);
    tear_down(1);
}

/* Jobs of one flow keep their order; another flow's first job has the next turn, and equal work
 * gives equal turns. */
TEST(test_flows_take_turns)
{
    static const size_t order[] = {0, 4, 5, 1, 6, 7, 2, 3};
    struct bag_queue queue;
    memset(&world, 0, sizeof world);
    bag_queue_init(&queue);
    for (size_t i = 0; i < 8; i++) {
        world.jobs[i].client = i < 4 ? 1 : 2;
        world.jobs[i].cost_ns = i < 4 ? 2000 : 1000;
        world.jobs[i].queued_ns = 10 + i;
        world.jobs[i].bytes = 1;
        bag_queue_add(&queue, &world.jobs[i]);
    }
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        struct bag_job *job = bag_queue_take(&queue, NULL);
        assert_int_equal(job - world.jobs, order[i]);
    }
    assert_null(bag_queue_take(&queue, NULL));
    assert_int_equal(queue.load.present + queue.bytes + queue.load.waiting_ns + queue.num_flows, 0);
    /* A flow that was away does not make up for it: it has the next turn, and no more. */
    bag_queue_add(&queue, &world.jobs[0]);
    bag_queue_take(&queue, NULL);
    bag_queue_add(&queue, &world.jobs[1]);
    bag_queue_take(&queue, NULL);
    bag_queue_add(&queue, &world.jobs[2]);
    bag_queue_add(&queue, &world.jobs[4]);
    bag_queue_add(&queue, &world.jobs[5]);
    bag_queue_add(&queue, &world.jobs[6]);
    assert_ptr_equal(bag_queue_take(&queue, NULL), &world.jobs[4]);
}

/* Work of each client among the first `count` jobs that are taken. */
static void count_turns(struct bag_queue *queue, size_t count, size_t turns[2])
{
    turns[0] = turns[1] = 0;
    for (size_t i = 0; i < count; i++)
        turns[bag_queue_take(queue, NULL)->client]++;
}

/* A client who asks 100 models has as many turns as one who asks one, and each of his models has as
 * many as another. */
TEST(test_clients_come_before_models)
{
    static struct bag_job jobs[400];
    struct bag_queue queue;
    size_t turns[2], of_first_model = 0;
    bag_queue_init(&queue);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        jobs[i] = (struct bag_job){.client = i % 2,
                                   .model_slot = i % 2 ? i / 2 % 100 : 0,
                                   .cost_ns = 1000,
                                   .queued_ns = i};
        bag_queue_add(&queue, &jobs[i]);
    }
    count_turns(&queue, 100, turns);
    assert_int_equal(turns[0], 50);
    assert_int_equal(turns[1], 50);
    while (queue.load.waiting)
        bag_queue_take(&queue, NULL);
    /* 90 jobs for one model and then 10 for another: they take turns. */
    for (size_t i = 0; i < 100; i++) {
        jobs[i] = (struct bag_job){.model_slot = i >= 90, .cost_ns = 1000, .queued_ns = i};
        bag_queue_add(&queue, &jobs[i]);
    }
    for (size_t i = 0; i < 20; i++)
        of_first_model += bag_queue_take(&queue, NULL)->model_slot == 0;
    assert_int_equal(of_first_model, 10);
    assert_int_equal(queue.flows[0].num_queues, 1);
}

/* A client who fills the queue with one model has room for another, though not as much as others
 * have. */
TEST(test_a_full_queue_has_room_for_other_models)
{
    set_up(1, 8);
    for (size_t i = 0; i < 10; i++) {
        struct bag_job *job = make_job(i, 5);
        job->client = i == 8 ? 2 : 1;
        job->model_slot = i == 9;
        assert_true(bag_engine_has_room(&world.engine, job));
        bag_engine_submit(&world.engine, job);
    }
    struct bag_job job = {.client = 1, .model_slot = 1};
    assert_true(bag_engine_has_room(&world.engine, &job));  /* the client has 1 of 8 / 2 / 2 */
    bag_engine_submit(&world.engine, make_job(10, 5));      /* clients 0, 1 and 2 wait */
    assert_false(bag_engine_has_room(&world.engine, &job)); /* 1 of 8 / 3 / 2 */
    run(11);
    tear_down(11);
}

/* If 64 clients differ in one byte only, few of them share a place, whichever byte it is; IPv4
 * clients of one network differ in the highest byte. The same holds for 8 models. */
TEST(test_flows_spread)
{
    struct bag_queue queue;
    bag_queue_init(&queue);
    for (unsigned shift = 0; shift < 64; shift += 8) {
        const struct bag_flow *before = NULL;
        uint64_t used = 0;
        for (uint64_t i = 1; i <= BAG_QUEUE_FLOWS; i++) {
            struct bag_job job = {.client = UINT64_C(0xffff0000) ^ i << shift};
            const struct bag_flow *flow = bag_queue_share(&queue, job.client, job.model_slot).flow;
            used |= UINT64_C(1) << (flow - queue.flows);
            assert_ptr_not_equal(flow, before);
            before = flow;
        }
        assert_in_range(__builtin_popcountll(used), BAG_QUEUE_FLOWS / 4, BAG_QUEUE_FLOWS);
    }
    unsigned queues = 0;
    for (size_t i = 0; i < BAG_FLOW_QUEUES; i++) {
        struct bag_job job = {.model_slot = i};
        queues |= 1u << (bag_queue_share(&queue, job.client, job.model_slot).model_queue -
                         queue.flows[0].queues);
    }
    assert_in_range(__builtin_popcount(queues), BAG_FLOW_QUEUES / 2, BAG_FLOW_QUEUES);
}

/* If work takes three times its estimate, queued work counts three times as well. */
TEST(test_the_cost_scale_counts)
{
    set_up(1, MAX_JOBS);
    bag_engine_submit(&world.engine, make_job(0, 5));
    world.engine.limits.max_queue_work_ns = 2 * world.engine.queue.load.waiting_ns;
    assert_true(has_room(0));
    world.engine.cost_scale = 3;
    assert_false(has_room(0));
    run(1);
    assert_true(world.engine.cost_scale != 3);
    tear_down(1);
}

TEST(test_a_batch_is_short)
{
    set_up(1, MAX_JOBS);
    for (size_t i = 0; i < 20; i++)
        bag_engine_submit(&world.engine, make_job(i, 60000));
    uint64_t cost_ns = world.jobs[0].cost_ns;
    assert_in_range(cost_ns, 1000000, 4000000); /* the queue holds several batches of 10 ms */
    run(20);
    for (size_t i = 0; i < (10000000 + cost_ns - 1) / cost_ns - 1; i++)
        assert_int_equal(world.batch_requests[i], 0);
    assert_int_equal(world.batch_requests[(10000000 + cost_ns - 1) / cost_ns - 1],
                     (10000000 + cost_ns - 1) / cost_ns);
    tear_down(20);
}

TEST(test_stale_jobs_are_rejected)
{
    set_up(1, MAX_JOBS);
    world.engine.limits.default_timeout_us = UINT64_C(3600000000);
    bag_engine_submit(&world.engine, make_job(0, 5));
    world.jobs[0].queued_ns -= UINT64_C(3600000001000); /* as if it had waited that long */
    bag_engine_submit(&world.engine, make_job(1, 5));
    run(2);
    assert_true(world.jobs[0].failed);
    assert_int_equal(world.jobs[0].problem.kind, BAG_ERROR_TIMED_OUT_IN_QUEUE);
    check_reply(1, 5);
    tear_down(2);

    set_up(1, MAX_JOBS);
    world.connected = false;
    bag_engine_submit(&world.engine, make_job(0, 5));
    run(1);
    assert_true(world.jobs[0].failed);
    assert_int_equal(world.jobs[0].problem.kind, BAG_ERROR_CANCELLED);
    tear_down(1);
}

TEST(test_a_bad_job_costs_no_other)
{
    set_up(2, MAX_JOBS);
    bag_engine_submit(&world.engine, make_job(0, 5));
    make_job(1, 5)->infer.input.header_bytes--;
    bag_engine_submit(&world.engine, &world.jobs[1]);
    bag_engine_submit(&world.engine, make_job(2, 5));
    run(3);
    check_reply(0, 5);
    assert_true(world.jobs[1].failed);
    assert_int_equal(world.jobs[1].problem.kind, BAG_ERROR_BAD_REQUEST);
    check_reply(2, 5);
    tear_down(3);
}
