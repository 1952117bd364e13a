/* The latency target, with a clock that the tests set. Jobs that would wait too long are rejected,
 * and jobs that have waited too long are dropped. The cost scale follows the measured times. */
#include "engine_fixture.h"

static uint64_t fake_ns;

static uint64_t fake_clock(void)
{
    return fake_ns;
}

/* A target of 100 ms, with a clock that stands still, and one unit of estimated work as long as one
 * of waiting. */
static void set_up_target(void)
{
    set_up(1, MAX_JOBS);
    fake_ns = UINT64_C(1000000000);
    world.engine.clock = fake_clock;
    world.engine.wait_scale = 1;
    world.engine.limits.latency_target_ns = 100000000;
}

/* Waiting and running work counts by its measured duration; 65 of 100 ms are allowed. */
TEST(test_a_job_that_would_wait_too_long_is_rejected)
{
    struct bag_job job = {.client = 0};
    set_up_target();
    bag_engine_submit(&world.engine, make_job(0, 60000));
    double cost_ns = (double)world.jobs[0].cost_ns;
    assert_int_equal(world.jobs[0].ahead_ns, world.jobs[0].cost_ns);
    world.engine.wait_scale = 64.9e6 / cost_ns;
    assert_true(has_room(0));
    world.engine.wait_scale = 65.1e6 / cost_ns;
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_int_equal(job.problem.kind, BAG_ERROR_QUEUE_FULL);
    assert_string_equal(job.problem.text,
                        "the queue is full: a request would wait 65 ms; 65 % of the target "
                        "(latency_target_ms), which is 100 ms, are allowed");
    assert_true(has_room(1)); /* another client's, up to twice as much, of each the limit at most */
    world.engine.wait_scale = 130.1e6 / cost_ns;
    assert_true(has_room(1));
    struct bag_job others = {
        .client = 2, .cost_ns = world.jobs[0].cost_ns, .queued_ns = fake_ns, .is_reserved = true};
    bag_queue_reserve(&world.engine.queue, &others);
    assert_false(has_room(1));
    bag_queue_cancel(&world.engine.queue, &others);
    struct bag_job large = {.client = 1, .cost_ns = world.jobs[0].cost_ns / 2};
    assert_false(bag_engine_has_room(&world.engine, &large)); /* nobody's share */
    world.engine.wait_scale = 40e6 / cost_ns;
    world.engine.queue.load.running_ns = world.jobs[0].cost_ns;
    assert_false(has_room(0));
    world.engine.limits.latency_target_ns = 0;
    assert_true(has_room(0));
    world.engine.queue.load.running_ns = 0;
    run(1);
    assert_int_equal(world.engine.queue.load.running_ns, 0);
    tear_down(1);
}

/* The time for which a job has waited for the loop counts: it reduces the time that the job may
 * still wait, is part of its waiting time, and is part of the time that the scale follows. */
TEST(test_waiting_for_the_loop_counts)
{
    struct bag_job job = {.client = 0};
    set_up_target();
    world.engine.polled_ns = fake_ns;
    bag_engine_submit(&world.engine, make_job(0, 60000));
    world.engine.wait_scale = 40e6 / (double)world.jobs[0].cost_ns;
    assert_true(has_room(0));
    fake_ns += 24900000;
    assert_true(has_room(0));
    fake_ns += 200000;
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_non_null(strstr(job.problem.text, "a request would wait 65 ms; 65 % of the target"));
    fake_ns += 60000000;
    assert_false(has_room(0)); /* the job has waited for longer than is allowed */
    assert_true(has_room(1));  /* another client's does not wait for its own */
    bag_engine_submit(&world.engine, make_job(1, 5));
    fake_ns += 4900000;
    world.expected = 2;
    world.engine.wait_scale = 1.0 / 1024;
    run(2); /* within 90 ms */
    check_reply(1, 5);
    assert_true(world.engine.wait_scale > 1.0 / 1024);
    tear_down(2);
}

/* A job that has waited for 90 % of the target is dropped without being computed, even if no worker
 * is free. */
TEST(test_a_job_that_has_waited_too_long_is_dropped)
{
    for (int workers_are_busy = 0; workers_are_busy <= 1; workers_are_busy++) {
        set_up_target();
        bag_engine_submit(&world.engine, make_job(0, 5));
        fake_ns++;
        bag_engine_submit(&world.engine, make_job(1, 5));
        fake_ns += 90000000;
        world.expected = 2;
        world.engine.running = workers_are_busy ? world.engine.num_tasks : 0;
        bag_engine_dispatch(&world.engine);
        assert_int_equal(world.engine.queue.load.waiting, workers_are_busy);
        world.engine.running = workers_are_busy ? 0 : world.engine.running;
        run(2);
        assert_true(world.jobs[0].failed);
        assert_int_equal(world.jobs[0].problem.kind, BAG_ERROR_QUEUE_FULL);
        assert_string_equal(world.jobs[0].problem.text,
                            "the request has waited 90 ms; the target (latency_target_ms) is "
                            "100 ms");
        check_reply(1, 5);
        tear_down(2);
    }
}

/* Reserves so much work for a client. */
static bool reserve(size_t i, uint64_t client, uint64_t cost_ns)
{
    world.jobs[i].client = client;
    world.jobs[i].cost_ns = cost_ns;
    return bag_engine_reserve(&world.engine, &world.jobs[i]);
}

static void expect_empty(void)
{
    const struct bag_queue *queue = &world.engine.queue;
    assert_int_equal(queue->load.present + queue->load.reserved_ns + queue->num_flows, 0);
    assert_true(TAILQ_EMPTY(&queue->reserved));
}

/* Reserved work counts until its body has arrived, until it is cancelled, or until the body takes
 * longer than the target. A body that arrives in time is admitted even if others have filled the
 * queue, and its wait counts from the reservation. */
TEST(test_reserved_work_counts)
{
    set_up_target();
    assert_true(reserve(0, 0, 40000000));
    assert_true(reserve(1, 0, 24000000));
    assert_true(reserve(2, 0, 2000000));
    assert_false(reserve(3, 0, 1));
    assert_false(world.jobs[3].is_reserved);
    assert_true(reserve(3, 1, 1)); /* another client's share */
    bag_engine_cancel(&world.engine, &world.jobs[3]);
    bag_engine_cancel(&world.engine, &world.jobs[1]);
    bag_engine_cancel(&world.engine, &world.jobs[1]);
    assert_true(reserve(4, 0, 1));
    assert_int_equal(world.jobs[4].ahead_ns, 42000001);
    uint64_t reserved_ns = fake_ns;
    fake_ns += 50000000;
    bag_engine_submit(&world.engine, make_job(4, 5));
    assert_int_equal(world.jobs[4].queued_ns, reserved_ns);
    assert_int_equal(world.jobs[4].ahead_ns, 42000001);
    fake_ns += 110000000;
    assert_true(reserve(5, 0, 1));
    bag_engine_cancel(&world.engine, &world.jobs[5]);
    assert_true(world.jobs[0].is_reserved); /* the job may take four times its 40 ms */
    fake_ns++;
    assert_true(reserve(5, 0, 1));
    assert_false(world.jobs[0].is_reserved || world.jobs[2].is_reserved);
    bag_engine_cancel(&world.engine, &world.jobs[5]);
    fake_ns = reserved_ns;
    run(1);
    expect_empty();
    world.engine.limits.latency_target_ns = 0; /* without a target nothing is counted */
    assert_true(reserve(0, 0, UINT64_MAX));
    expect_empty();
    free(world.bodies[4]);
    bag_infer_free(&world.jobs[4].infer);
    tear_down(0);
}

/* The engine is full while reserved, waiting and running work takes longer than 65 of 100 ms. A
 * client without work is below its share, unless all together have twice as much. */
TEST(test_full)
{
    set_up_target();
    assert_false(bag_engine_is_full(&world.engine));
    assert_true(reserve(0, 1, 64999999));
    assert_false(bag_engine_is_full(&world.engine));
    assert_true(reserve(1, 1, 1));
    assert_true(bag_engine_is_full(&world.engine));
    assert_false(bag_engine_is_below_share(&world.engine, 1));
    assert_true(bag_engine_is_below_share(&world.engine, 2));
    assert_true(reserve(2, 2, 32499999));
    assert_true(bag_engine_is_below_share(&world.engine, 2));
    assert_true(reserve(3, 2, 1));
    assert_false(bag_engine_is_below_share(&world.engine, 2));
    assert_true(bag_engine_is_below_share(&world.engine, 3));
    assert_true(reserve(4, 3, 32500000));
    assert_false(bag_engine_is_below_share(&world.engine, 4));
    fake_ns += 4 * UINT64_C(64999999) + 1; /* these bodies keep nobody out any more */
    assert_false(bag_engine_is_full(&world.engine));
    expect_empty();
    world.engine.limits.latency_target_ns = 0;
    assert_true(reserve(0, 1, UINT64_MAX));
    assert_false(bag_engine_is_full(&world.engine));
    bag_engine_stop(&world.engine);
    run(0);
    tear_down(0);
}

/* A request whose body is complete drops the reservations of slow bodies, too. */
TEST(test_slow_bodies_keep_nobody_out)
{
    set_up_target();
    assert_true(reserve(0, 1, 30000000));
    assert_true(reserve(1, 2, 30000000));
    assert_true(reserve(2, 1, 60000000));
    assert_true(reserve(3, 2, 60000000));
    assert_false(has_room(4));
    fake_ns += 120000000;
    assert_false(has_room(4));
    fake_ns += 120000001;
    assert_true(has_room(4));
    expect_empty();
    bag_engine_stop(&world.engine);
    run(0);
    tear_down(0);
}

/* A job that is dropped took as long as it waited, at least. */
TEST(test_dropped_jobs_raise_the_wait_scale)
{
    set_up_target();
    bag_engine_submit(&world.engine, make_job(0, 5));
    world.jobs[0].ahead_ns = 182000000 - 1;
    fake_ns += 91000000;
    run(1);
    assert_true(world.jobs[0].failed);
    assert_true(world.engine.wait_scale == 1); /* half of it says nothing */
    tear_down(1);
    set_up_target();
    bag_engine_submit(&world.engine, make_job(0, 5));
    world.jobs[0].ahead_ns = 45500000 - 1;
    fake_ns += 91000000;
    run(1);
    assert_true(world.engine.wait_scale == 1 + 1.0 / 16);
    tear_down(1);
}

/* The running work of a client does not keep other clients out, and a job that waits for it is done
 * late rather than dropped. */
TEST(test_others_work_that_runs_keeps_nobody_out)
{
    struct bag_job large = {.client = 1, .cost_ns = 500000000};
    set_up_target();
    bag_queue_begin(&world.engine.queue, &large);
    assert_true(reserve(0, 2, 1000000));
    bag_engine_submit(&world.engine, make_job(0, 5));
    assert_true(has_room(2));
    assert_false(has_room(1));
    fake_ns += 200000000;
    run(1);
    check_reply(0, 5);
    bag_queue_end(&world.engine.queue, &large);
    expect_empty();
    tear_down(1);
}

/* Runs one job that takes so long by the fake clock; the scale afterwards. */
static double scale_after(double scale, uint64_t took_ns)
{
    set_up_target();
    world.engine.wait_scale = scale;
    bag_engine_submit(&world.engine, make_job(0, 60000));
    world.jobs[0].queued_ns = fake_ns;
    world.jobs[0].ahead_ns = 40000000 - 1;
    world.expected = 1;
    bag_engine_dispatch(&world.engine);
    fake_ns += took_ns;
    uv_run(&world.loop, UV_RUN_DEFAULT);
    scale = world.engine.wait_scale;
    tear_down(1);
    return scale;
}

/* The scale follows by a sixteenth of the difference. */
TEST(test_the_wait_scale_follows)
{
    assert_true(scale_after(1, 40000000) == 1);
    assert_true(scale_after(1, 60000000) == 1 + 0.5 / 16);
    assert_true(scale_after(1, 900000000) == 1 + 1.0 / 16);
    assert_true(scale_after(1, 20000000) == 1 - 0.5 / 16);
    assert_true(scale_after(0.125, 12499999) < 0.1875); /* short of an eighth of the target */
    assert_true(scale_after(0.125, 12499999) == 0.125);
    assert_true(scale_after(0.125, 12500000) > 0.125);
    assert_true(scale_after(1, 4000000) < 1);
    assert_true(scale_after(64, UINT64_C(1000000000000)) == 64);
}

/* A job that only takes the way back to the loop says nothing of the queue, however old it is. */
TEST(test_the_wait_scale_is_of_jobs_that_waited)
{
    set_up_target();
    struct bag_job *job = make_job(0, 60000);
    job->failed = false;
    job->queued_ns = 0;
    job->ahead_ns = 1;
    world.expected = 1;
    bag_job_push_finished(&world.engine, job);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_true(world.engine.wait_scale == 1);
    tear_down(1);
}

/* A batch is an eighth of the target at most. */
TEST(test_a_batch_is_a_part_of_the_target)
{
    set_up(1, MAX_JOBS);
    world.engine.limits.latency_target_ns = 8;
    world.engine.wait_scale = 0;
    for (size_t i = 0; i < 4; i++)
        bag_engine_submit(&world.engine, make_job(i, 60000));
    world.engine.clock = fake_clock;
    for (size_t i = 0; i < 4; i++)
        world.jobs[i].queued_ns = fake_ns;
    run(4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(world.batch_requests[i], 1);
    tear_down(4);
}
