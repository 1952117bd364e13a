/* An engine on a real loop with real workers, and jobs over one small table. */
#pragma once

#include "model_fixture.h"
#include "testing.h"

#include "server/engine/engine.h"

#define ROWS     1000
#define COLUMNS  64
#define MAX_JOBS 64

static const struct bag_infer_limits infer_limits = {.max_reply_bytes = 1 << 20};

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
    size_t batch_requests[MAX_JOBS]; /* requests in the batch that ended with the job; 0: no batch
                                        did */
    size_t done, expected;
    bool connected;
} world;

static inline void on_iteration(void *context)
{
    (void)context;
    bag_engine_dispatch(&world.engine);
    if (world.done == world.expected)
        bag_engine_stop(&world.engine);
}

static inline void on_done(struct bag_job *job)
{
    world.batch_requests[job - world.jobs] = job->task ? job->task->num_pooled : 0;
    world.done++;
}

static inline bool is_connected(struct bag_job *job)
{
    (void)job;
    return world.connected;
}

static inline void set_up(unsigned workers, size_t max_queue_size)
{
    struct bag_problem problem;
    struct bag_engine_limits limits = {.max_queue_size = max_queue_size,
                                       .max_queue_work_ns = UINT64_MAX};
    memset(&world, 0, sizeof world);
    world.connected = true;
    world.rows = malloc(ROWS * COLUMNS * sizeof *world.rows);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        world.rows[i] = (float)(i % 977) * 0.37f;
    set_up_model(&world.model, &world.feature, &world.memory, world.rows, ROWS, COLUMNS);
    assert_int_equal(uv_loop_init(&world.loop), 0);
    assert_true(bag_workers_start(&world.workers, workers, 0, &problem));
    assert_true(bag_engine_init(&world.engine, &world.loop, &world.workers, NULL, &limits));
    world.engine.on_iteration = on_iteration;
}

/* A job of two bags, of `count` and one index, in binary both ways. */
static inline struct bag_job *make_job(size_t i, size_t count)
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

/* Checks that the job's reply has the sum of the rows, added in order. */
static inline void check_reply(size_t i, size_t count)
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

static inline void run(size_t expected)
{
    world.expected = expected;
    bag_engine_dispatch(&world.engine);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    assert_int_equal(world.done, expected);
    assert_int_equal(world.engine.queue.load.waiting, 0);
    assert_int_equal(world.engine.queue.bytes, 0);
    assert_int_equal(world.engine.queue.load.waiting_ns, 0);
    assert_int_equal(world.engine.running, 0);
}

static inline void tear_down(size_t jobs)
{
    for (size_t i = 0; i < jobs; i++) {
        bag_infer_free(&world.jobs[i].infer);
        free(world.bodies[i]);
    }
    bag_workers_stop(&world.workers);
    bag_engine_free(&world.engine);
    assert_int_equal(uv_loop_close(&world.loop), 0);
    free(world.rows);
}

static inline bool has_room(uint64_t client)
{
    struct bag_job job = {.client = client};
    return bag_engine_has_room(&world.engine, &job);
}
