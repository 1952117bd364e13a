/* The engine on a real loop with real workers: every job is done once, with the bits of a job
 * alone; the queue is bounded; stale jobs are rejected. */
#include "model_fixture.h"
#include "testing.h"

#include "server/engine/engine.h"

#define ROWS     1000
#define COLUMNS  64
#define MAX_JOBS 64

static const struct bag_infer_limits infer_limits = {
    .max_reply_bytes = 1 << 20, .max_ids = 1 << 20, .max_bags = 1 << 20};

static struct {
    uv_loop_t loop;
    struct bag_workers workers;
    struct bag_engine engine;
    struct bag_model model;
    struct bag_feature feature;
    struct bag_table_memory memory;
    float *rows;
    struct bag_job jobs[MAX_JOBS];
    char *bodies[MAX_JOBS];
    size_t batch_requests[MAX_JOBS]; /* of the batch that ended with the job; 0: none did */
    size_t done, expected;
    bool wanted;
} world;

static void on_turn(void *context)
{
    (void)context;
    bag_engine_dispatch(&world.engine);
    if (world.done == world.expected)
        bag_engine_stop(&world.engine);
}

static void on_done(struct bag_job *job)
{
    world.batch_requests[job - world.jobs] = job->task ? job->task->num_pooled : 0;
    world.done++;
}

static bool is_connected(struct bag_job *job)
{
    (void)job;
    return world.wanted;
}

static void set_up(unsigned workers, size_t max_queue_size)
{
    struct bag_problem problem;
    struct bag_engine_limits limits = {.max_queue_size = max_queue_size,
                                       .max_queue_bytes = 1 << 20,
                                       .max_queue_work_ns = UINT64_MAX,
                                       .allow_timeout_override = true};
    memset(&world, 0, sizeof world);
    world.wanted = true;
    world.rows = malloc(ROWS * COLUMNS * sizeof *world.rows);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        world.rows[i] = (float)(i % 977) * 0.37f;
    set_up_model(&world.model, &world.feature, &world.memory, world.rows, ROWS, COLUMNS);
    assert_int_equal(uv_loop_init(&world.loop), 0);
    assert_true(bag_workers_start(&world.workers, workers, "", 0, &problem));
    assert_true(bag_engine_init(&world.engine, &world.loop, &world.workers, NULL, &limits));
    world.engine.on_turn = on_turn;
}

/* A job of two bags, of `count` and one index, in binary both ways. */
static struct bag_job *make_job(size_t i, size_t count)
{
    struct bag_job *job = &world.jobs[i];
    char header[512];
    int bytes = snprintf(header, sizeof header,
                         "{\"parameters\":{\"binary_data_output\":true},\"inputs\":[{\"name\":"
                         "\"indices\",\"shape\":[%zu],\"datatype\":\"INT64\",\"parameters\":{"
                         "\"binary_data_size\":%zu}},{\"name\":\"offsets\",\"shape\":[2],"
                         "\"datatype\":\"INT64\",\"data\":[0,%zu]}]}",
                         count + 1, 8 * (count + 1), count);
    size_t body_bytes = (size_t)bytes + 8 * (count + 1);
    world.bodies[i] = malloc(body_bytes);
    memcpy(world.bodies[i], header, (size_t)bytes);
    for (size_t k = 0; k <= count; k++) {
        int64_t index = (int64_t)((k * 7919 + i * 104729) % ROWS);
        memcpy(world.bodies[i] + bytes + 8 * k, &index, sizeof index);
    }
    job->infer.input.model = &world.model;
    job->infer.input.body = world.bodies[i];
    job->infer.input.body_bytes = body_bytes;
    job->infer.input.header_bytes = (size_t)bytes;
    job->infer.input.limits = &infer_limits;
    job->done = on_done;
    job->is_connected = is_connected;
    return job;
}

/* What the job's reply must hold: the rows added in order. */
static void check_reply(size_t i, size_t count)
{
    struct bag_job *job = &world.jobs[i];
    float sums[2 * COLUMNS] = {0};
    if (job->failed)
        fail_msg("job %zu: %s", i, job->problem.text);
    for (size_t k = 0; k <= count; k++) {
        const float *row = world.rows + (k * 7919 + i * 104729) % ROWS * COLUMNS;
        for (int c = 0; c < COLUMNS; c++)
            sums[(k < count ? 0 : COLUMNS) + c] += row[c];
    }
    assert_int_equal(job->infer.output.bytes, job->infer.output.header_bytes + sizeof sums);
    assert_memory_equal(job->infer.output.reply + job->infer.output.header_bytes, sums,
                        sizeof sums);
}

static void run(size_t expected)
{
    world.expected = expected;
    bag_engine_dispatch(&world.engine);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_int_equal(world.done, expected);
    assert_int_equal(world.engine.queue.count, 0);
    assert_int_equal(world.engine.queue.bytes, 0);
    assert_int_equal(world.engine.queue.cost_ns, 0);
    assert_int_equal(world.engine.running, 0);
}

static void tear_down(size_t jobs)
{
    for (size_t i = 0; i < jobs; i++) {
        bag_buffers_put(world.jobs[i].infer.output.reply);
        bag_infer_free(&world.jobs[i].infer);
        free(world.bodies[i]);
    }
    bag_workers_stop(&world.workers);
    bag_engine_free(&world.engine);
    assert_int_equal(uv_loop_close(&world.loop), 0);
    free(world.rows);
}

static void test_every_job_is_done_once(void **state)
{
    (void)state;
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
static void test_a_large_job_is_split(void **state)
{
    (void)state;
    for (unsigned workers = 1; workers <= 4; workers++) {
        set_up(workers, MAX_JOBS);
        bag_engine_submit(&world.engine, make_job(0, 60000));
        run(1);
        check_reply(0, 60000);
        assert_int_equal(world.jobs[0].splits, workers > 1 ? workers : 0);
        tear_down(1);
    }
}

static bool has_room(uint64_t flow, size_t bytes)
{
    struct bag_job job = {.flow = flow, .infer.input.body_bytes = bytes};
    return bag_engine_has_room(&world.engine, &job);
}

static void test_the_queue_is_bounded(void **state)
{
    (void)state;
    set_up(1, 2);
    assert_true(has_room(0, (1 << 20) + 1)); /* alone, any size */
    bag_engine_submit(&world.engine, make_job(0, 5));
    assert_true(has_room(0, 100));
    assert_false(has_room(0, 1 << 20));
    world.engine.limits.max_queue_work_ns = 1;
    assert_false(has_room(0, 100));
    world.engine.limits.max_queue_work_ns = UINT64_MAX;
    bag_engine_submit(&world.engine, make_job(1, 5));
    assert_false(has_room(0, 0));
    run(2);
    tear_down(2);
}

/* Who fills the queue locks out nobody else, up to twice the limits; what he says of it is exact.
 */
static void test_a_full_queue_has_room_for_others(void **state)
{
    struct bag_job job = {.flow = 1};
    (void)state;
    set_up(1, 4);
    for (size_t i = 0; i < 7; i++) {
        make_job(i, 5)->flow = i < 4 ? 1 : i;
        assert_int_equal(has_room(world.jobs[i].flow, 0), true);
        bag_engine_submit(&world.engine, &world.jobs[i]);
        if (i == 3)
            assert_false(has_room(1, 0));
    }
    assert_false(has_room(8, 0)); /* a fifth of 4 requests is none */
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_string_equal(job.problem.text,
                        "the queue is full: 7 requests wait; the limit (max_queue_size) is 4");
    run(7);
    tear_down(7);

    set_up(1, MAX_JOBS);
    bag_engine_submit(&world.engine, make_job(0, 60000));
    world.jobs[0].flow = job.flow = 0;
    world.engine.limits.max_queue_work_ns = 1000000;
    world.engine.cost_scale = 1e6 / (double)world.jobs[0].cost_ns * 1.5;
    assert_false(has_room(0, 0));
    assert_true(has_room(1, 0));
    world.engine.cost_scale = 1e6 / (double)world.jobs[0].cost_ns * 2.5;
    assert_false(has_room(1, 0));
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_string_equal(job.problem.text,
                        "the queue is full: 2 ms of work wait for each worker; the limit "
                        "(max_queue_work_ms) is 1 ms");
    world.engine.limits.max_queue_work_ns = UINT64_MAX;
    world.engine.limits.max_queue_bytes = world.jobs[0].bytes + 9;
    job.infer.input.body_bytes = 10;
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_non_null(strstr(job.problem.text, "this request has 10; the limit (max_queue_bytes)"));
    run(1);
    tear_down(1);
}

/* Jobs of one flow keep their order; another flow's first job has the next turn, and equal work
 * gives equal turns. */
static void test_flows_take_turns(void **state)
{
    static const size_t order[] = {0, 4, 5, 1, 6, 7, 2, 3};
    struct bag_queue queue;
    (void)state;
    memset(&world, 0, sizeof world);
    bag_queue_init(&queue);
    assert_int_equal(bag_queue_oldest_ns(&queue), UINT64_MAX);
    for (size_t i = 0; i < 8; i++) {
        world.jobs[i].flow = i < 4 ? 1 : 2;
        world.jobs[i].cost_ns = i < 4 ? 2000 : 1000;
        world.jobs[i].queued_ns = 10 + i;
        world.jobs[i].bytes = 1;
        bag_queue_add(&queue, &world.jobs[i]);
    }
    assert_int_equal(bag_queue_oldest_ns(&queue), 10);
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        struct bag_job *job = bag_queue_take(&queue, NULL, SIZE_MAX);
        assert_int_equal(job - world.jobs, order[i]);
    }
    assert_null(bag_queue_take(&queue, NULL, SIZE_MAX));
    assert_int_equal(queue.count + queue.bytes + queue.cost_ns + queue.num_flows, 0);
    /* A flow that was away does not make up for it: it has the next turn, and no more. */
    bag_queue_add(&queue, &world.jobs[0]);
    bag_queue_take(&queue, NULL, SIZE_MAX);
    bag_queue_add(&queue, &world.jobs[1]);
    bag_queue_take(&queue, NULL, SIZE_MAX);
    bag_queue_add(&queue, &world.jobs[2]);
    bag_queue_add(&queue, &world.jobs[4]);
    bag_queue_add(&queue, &world.jobs[5]);
    bag_queue_add(&queue, &world.jobs[6]);
    assert_ptr_equal(bag_queue_take(&queue, NULL, SIZE_MAX), &world.jobs[4]);
}

/* Of 64 flows that differ in one byte alone, whichever it is, few share a place: IPv4 clients of
 * one network differ in the highest. */
static void test_flows_spread(void **state)
{
    struct bag_queue queue;
    size_t num_flows;
    (void)state;
    bag_queue_init(&queue);
    for (unsigned shift = 0; shift < 64; shift += 8) {
        const struct bag_flow *before = NULL;
        uint64_t used = 0;
        for (uint64_t i = 1; i <= BAG_QUEUE_FLOWS; i++) {
            struct bag_job job = {.flow = UINT64_C(0xffff0000) ^ i << shift};
            const struct bag_flow *flow = bag_queue_flow(&queue, &job, &num_flows);
            used |= UINT64_C(1) << (flow - queue.flows);
            assert_ptr_not_equal(flow, before);
            before = flow;
        }
        assert_in_range(__builtin_popcountll(used), BAG_QUEUE_FLOWS / 4, BAG_QUEUE_FLOWS);
    }
}

/* Work that takes three times what was estimated counts as that in the queue. */
static void test_the_cost_scale_counts(void **state)
{
    (void)state;
    set_up(1, MAX_JOBS);
    bag_engine_submit(&world.engine, make_job(0, 5));
    world.engine.limits.max_queue_work_ns = 2 * world.engine.queue.cost_ns;
    assert_true(has_room(0, 100));
    world.engine.cost_scale = 3;
    assert_false(has_room(0, 100));
    run(1);
    assert_true(world.engine.cost_scale != 3);
    tear_down(1);
}

static void test_a_batch_is_short(void **state)
{
    (void)state;
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

static void test_stale_jobs_are_rejected(void **state)
{
    (void)state;
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
    world.wanted = false;
    bag_engine_submit(&world.engine, make_job(0, 5));
    run(1);
    assert_true(world.jobs[0].failed);
    assert_int_equal(world.jobs[0].problem.kind, BAG_ERROR_CANCELLED);
    tear_down(1);
}

/* A job that waits for a batch leaves at once when no more will come, and so does the next. */
static void test_nobody_waits_for_a_batch_at_the_end(void **state)
{
    (void)state;
    set_up(1, MAX_JOBS);
    world.engine.limits.preferred_batch_size = 10;
    world.engine.limits.max_queue_delay_us = UINT64_C(3600000000);
    bag_engine_submit(&world.engine, make_job(0, 5));
    bag_engine_dispatch(&world.engine);
    assert_int_equal(world.engine.queue.count, 1);
    world.expected = 2;
    bag_engine_hurry(&world.engine);
    assert_int_equal(world.engine.queue.count, 0);
    bag_engine_submit(&world.engine, make_job(1, 5));
    run(2);
    check_reply(0, 5);
    check_reply(1, 5);
    tear_down(2);
}

/* ---- the latency target ---------------------------------------------------------------------- */

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

/* What waits and what runs count, by how long such work took: 65 of 100 ms are allowed. */
static void test_a_job_that_would_wait_too_long_is_rejected(void **state)
{
    struct bag_job job = {.flow = 0};
    (void)state;
    set_up_target();
    bag_engine_submit(&world.engine, make_job(0, 60000));
    double cost_ns = (double)world.jobs[0].cost_ns;
    assert_int_equal(world.jobs[0].ahead_ns, world.jobs[0].cost_ns);
    world.engine.wait_scale = 64.9e6 / cost_ns;
    assert_true(has_room(0, 0));
    world.engine.wait_scale = 65.1e6 / cost_ns;
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_int_equal(job.problem.kind, BAG_ERROR_QUEUE_FULL);
    assert_string_equal(job.problem.text,
                        "the queue is full: a request would wait 65 ms; 65 % of the target "
                        "(latency_target_ms), which is 100 ms, are allowed");
    assert_true(has_room(1, 0)); /* another client's, up to twice as much */
    world.engine.wait_scale = 130.1e6 / cost_ns;
    assert_false(has_room(1, 0));
    world.engine.wait_scale = 40e6 / cost_ns;
    world.engine.running_ns = world.jobs[0].cost_ns;
    assert_false(has_room(0, 0));
    world.engine.limits.latency_target_ns = 0;
    assert_true(has_room(0, 0));
    world.engine.running_ns = 0;
    run(1);
    assert_int_equal(world.engine.running_ns, 0);
    tear_down(1);
}

/* What a job has waited for the loop counts: against what it may still wait, as waiting, and in
 * what the scale follows. */
static void test_waiting_for_the_loop_counts(void **state)
{
    struct bag_job job = {.flow = 0};
    (void)state;
    set_up_target();
    world.engine.polled_ns = fake_ns;
    bag_engine_submit(&world.engine, make_job(0, 60000));
    world.engine.wait_scale = 40e6 / (double)world.jobs[0].cost_ns;
    assert_true(has_room(0, 0));
    fake_ns += 24900000;
    assert_true(has_room(0, 0));
    fake_ns += 200000;
    assert_false(bag_engine_has_room(&world.engine, &job));
    assert_non_null(strstr(job.problem.text, "a request would wait 65 ms; 65 % of the target"));
    fake_ns += 60000000;
    assert_false(has_room(0, 0)); /* it has waited for longer than it may at all */
    assert_false(has_room(1, 0));
    bag_engine_submit(&world.engine, make_job(1, 5));
    fake_ns += 4900000;
    world.expected = 2;
    world.engine.wait_scale = 1.0 / 1024;
    run(2); /* within 90 ms */
    check_reply(1, 5);
    assert_true(world.engine.wait_scale > 1.0 / 1024);
    tear_down(2);
}

/* Of a job that has waited for 90 % of the target nothing is computed, also where no worker is
 * free. */
static void test_a_job_that_has_waited_too_long_is_dropped(void **state)
{
    (void)state;
    for (int workers_are_busy = 0; workers_are_busy <= 1; workers_are_busy++) {
        set_up_target();
        bag_engine_submit(&world.engine, make_job(0, 5));
        fake_ns++;
        bag_engine_submit(&world.engine, make_job(1, 5));
        fake_ns += 90000000;
        world.expected = 2;
        world.engine.running = workers_are_busy ? world.engine.num_tasks : 0;
        bag_engine_dispatch(&world.engine);
        assert_int_equal(world.engine.queue.count, workers_are_busy);
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
static void test_the_wait_scale_follows(void **state)
{
    (void)state;
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
static void test_the_wait_scale_is_of_jobs_that_waited(void **state)
{
    (void)state;
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
static void test_a_batch_is_a_part_of_the_target(void **state)
{
    (void)state;
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

static void test_a_bad_job_costs_no_other(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_job_is_done_once),
        cmocka_unit_test(test_a_large_job_is_split),
        cmocka_unit_test(test_the_queue_is_bounded),
        cmocka_unit_test(test_a_full_queue_has_room_for_others),
        cmocka_unit_test(test_flows_take_turns),
        cmocka_unit_test(test_flows_spread),
        cmocka_unit_test(test_the_cost_scale_counts),
        cmocka_unit_test(test_a_batch_is_short),
        cmocka_unit_test(test_stale_jobs_are_rejected),
        cmocka_unit_test(test_nobody_waits_for_a_batch_at_the_end),
        cmocka_unit_test(test_a_job_that_would_wait_too_long_is_rejected),
        cmocka_unit_test(test_waiting_for_the_loop_counts),
        cmocka_unit_test(test_a_job_that_has_waited_too_long_is_dropped),
        cmocka_unit_test(test_the_wait_scale_follows),
        cmocka_unit_test(test_the_wait_scale_is_of_jobs_that_waited),
        cmocka_unit_test(test_a_batch_is_a_part_of_the_target),
        cmocka_unit_test(test_a_bad_job_costs_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
