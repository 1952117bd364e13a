/* The loop's side of the engine; see engine.h.
 *
 * The way of a job: submit puts it in the queue; dispatch moves it into a task; a worker runs the
 * task's jobs one by one and pushes each on `finished`; the loop's wake-up takes them from there
 * and calls `done`. The queue and the spare tasks belong to the loop's thread; a task and its jobs
 * belong to workers from bag_workers_push until they are on `finished`. */
#include "engine.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A batch costs at least this, where there is as much: handing it over costs 5 to 50 us. */
#define MIN_BATCH_NS 100000

/* A batch costs no more than this, but for its last job: what a batch holds is no longer dropped
 * when its client goes or its time passes, and counts no longer as waiting. */
#define MAX_BATCH_NS 10000000

/* A batch takes no more than this part of the latency target. */
#define TARGET_PARTS 8

/* A worker has its next batch waiting behind the one it runs: under load a turn of the loop may
 * take longer than a batch. */
#define TASKS_PER_WORKER 2

/* ---- the queue ------------------------------------------------------------------------------- */

/* An announced job keeps the time and the work ahead that it had then. */
void bag_engine_submit(struct bag_engine *engine, struct bag_job *job)
{
    bool was_announced = job->announced;
    bag_engine_withdraw(engine, job);
    job->failed = false;
    job->splits = 0;
    job->task = NULL;
    job->cost_ns =
        job->planned ? bag_infer_cost_ns(&job->infer) : bag_infer_whole_cost_ns(&job->infer);
    if (!was_announced)
        bag_engine_stamp(engine, job);
    job->bytes = job->infer.input.body_bytes + (job->planned ? job->infer.output.bytes : 0);
    bag_queue_add(&engine->queue, job);
    atomic_fetch_add(&engine->workers->queued, 1);
    atomic_fetch_add(&engine->workers->queued_ns, job->cost_ns);
    bag_metrics_on_queued(engine->recorder, job->infer.input.model);
}

/* Told of every job that leaves the queue. */
static void on_taken(struct bag_engine *engine, const struct bag_job *job)
{
    atomic_fetch_sub(&engine->workers->queued, 1);
    atomic_fetch_sub(&engine->workers->queued_ns, job->cost_ns);
    bag_metrics_on_taken(engine->recorder, job->infer.input.model);
}

/* A job that waited for nothing: its time has passed or its client has gone. */
static bool is_stale(struct bag_engine *engine, struct bag_job *job, uint64_t now_ns)
{
    if (bag_engine_is_overdue(engine, job, now_ns))
        return true;
    if (!job->is_connected(job)) {
        bag_problem_set(&job->problem, BAG_ERROR_CANCELLED, "the client has closed the connection");
        return true;
    }
    return false;
}

static void reject_stale(struct bag_engine *engine, struct bag_job *job)
{
    job->failed = true;
    bag_job_push_finished(engine, job);
}

/* What bag_queue_take_if is asked for. */
struct moment {
    struct bag_engine *engine;
    uint64_t now_ns;
};

static bool is_overdue_now(void *context, struct bag_job *job)
{
    const struct moment *moment = context;
    return bag_engine_is_overdue(moment->engine, job, moment->now_ns);
}

/* Rejects jobs that have waited too long, as far as they are the first of their line: they need no
 * worker. */
static void drop_overdue(struct bag_engine *engine, uint64_t now_ns)
{
    struct moment moment = {engine, now_ns};
    struct bag_job *job;
    while ((job = bag_queue_take_if(&engine->queue, is_overdue_now, &moment)) != NULL) {
        on_taken(engine, job);
        reject_stale(engine, job);
    }
}

/* The next job that somebody still waits for. */
static struct bag_job *take(struct bag_engine *engine, const struct bag_model *model,
                            uint64_t now_ns)
{
    for (;;) {
        struct bag_job *job = bag_queue_take(&engine->queue, model);
        if (job)
            on_taken(engine, job);
        if (!job || !is_stale(engine, job, now_ns))
            return job;
        reject_stale(engine, job);
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* How much work a batch holds: one idle worker's part of the queue. */
static uint64_t batch_budget_ns(const struct bag_engine *engine)
{
    uint64_t part_ns = bag_engine_shared_ns(engine, engine->queue.load.waiting_ns) / 2;
    uint64_t budget_ns = part_ns > MIN_BATCH_NS ? part_ns : MIN_BATCH_NS;
    uint64_t target_ns = engine->limits.latency_target_ns / TARGET_PARTS;
    uint64_t max_ns = target_ns && target_ns < MAX_BATCH_NS ? target_ns : MAX_BATCH_NS;
    return budget_ns < max_ns ? budget_ns : max_ns;
}

/* The next job and others of its model, as much as one idle worker's part of the queue. */
static void start_batch(struct bag_engine *engine, uint64_t now_ns)
{
    uint64_t budget_ns = batch_budget_ns(engine), cost_ns = 0;
    struct bag_job *jobs = NULL, **end = &jobs;
    while (bag_engine_scaled_ns(engine, cost_ns) < budget_ns) {
        struct bag_job *job = take(engine, jobs ? jobs->infer.input.model : NULL, now_ns);
        if (!job)
            break;
        *end = job;
        end = &job->next;
        job->running = true;
        bag_queue_begin(&engine->queue, job);
        cost_ns += job->cost_ns;
    }
    if (!jobs)
        return;
    struct bag_task *task = engine->spare_tasks;
    engine->spare_tasks = task->next;
    task->jobs = jobs;
    task->cost_ns = cost_ns;
    engine->running++;
    bag_workers_push(engine->workers, &task->work, BAG_WORK_IN_ORDER);
}

void bag_engine_dispatch(struct bag_engine *engine)
{
    while (engine->queue.load.waiting) {
        uint64_t now_ns = engine->clock();
        drop_overdue(engine, now_ns);
        if (!engine->queue.load.waiting || engine->running >= engine->num_tasks)
            return;
        start_batch(engine, now_ns);
    }
}

/* ---- the loop's side ------------------------------------------------------------------------- */

/* Takes what workers have finished, oldest first. */
static void on_wake(uv_poll_t *wake, int status, int events)
{
    struct bag_engine *engine = wake->data;
    eventfd_t ignored;
    (void)status;
    (void)events;
    eventfd_read(engine->wake_fd, &ignored);
    struct bag_job *newest =
        atomic_exchange_explicit(&engine->finished, NULL, memory_order_acquire);
    struct bag_job *oldest = NULL;
    while (newest) {
        struct bag_job *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    for (struct bag_job *job = oldest, *next; job; job = next) {
        struct bag_task *task = job->task;
        next = job->next;
        if (job->running) {
            job->running = false;
            bag_queue_end(&engine->queue, job);
            if (!job->failed)
                bag_engine_learn_wait(engine, job);
        }
        bag_metrics_on_batch(engine->recorder, job->infer.input.model, task ? task->num_pooled : 0);
        job->done(job);
        if (task) {
            bag_engine_learn_cost(engine, task);
            task->next = engine->spare_tasks;
            engine->spare_tasks = task;
            engine->running--;
        }
    }
    engine->on_turn(engine->context);
}

/* Not a uv_async_t: in libuv 1.44 a loop that one wakes spins until its waker has gone on, which
 * may be long where the loop has taken the waker's processor. */
static bool init_wake(struct bag_engine *engine)
{
    engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return engine->wake_fd >= 0 &&
           uv_poll_init(engine->loop, &engine->wake, engine->wake_fd) == 0 &&
           uv_poll_start(&engine->wake, UV_READABLE, on_wake) == 0;
}

static bool init_tasks(struct bag_engine *engine)
{
    engine->num_tasks = TASKS_PER_WORKER * engine->workers->count;
    engine->tasks = calloc(engine->num_tasks, sizeof *engine->tasks);
    for (unsigned i = 0; engine->tasks && i < engine->num_tasks; i++) {
        struct bag_task *task = &engine->tasks[i];
        task->engine = engine;
        task->work.run = bag_task_run;
        task->next = engine->spare_tasks;
        engine->spare_tasks = task;
    }
    return engine->tasks != NULL;
}

bool bag_engine_init(struct bag_engine *engine, uv_loop_t *loop, struct bag_workers *workers,
                     struct bag_budget *budget, const struct bag_engine_limits *limits)
{
    *engine = (struct bag_engine){.loop = loop,
                                  .workers = workers,
                                  .limits = *limits,
                                  .cost_scale = 1,
                                  .wake_fd = -1,
                                  .wait_scale = 1.0 / workers->count,
                                  .clock = uv_hrtime};
    workers->num_engines++;
    bag_queue_init(&engine->queue);
    engine->wake.data = engine;
    return init_tasks(engine) && bag_buffers_init(&engine->buffers, true, budget) &&
           init_wake(engine);
}

void bag_engine_stop(struct bag_engine *engine)
{
    uv_close((uv_handle_t *)&engine->wake, NULL);
}

void bag_engine_free(struct bag_engine *engine)
{
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    free(engine->tasks);
    bag_buffers_free(&engine->buffers);
}
