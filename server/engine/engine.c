/* The loop's side of the engine; see engine.h.
 *
 * The way of a job: submit puts it in the queue; dispatch moves it into a task; a worker runs the
 * task's jobs one by one and pushes each on `finished`; the loop's wake-up takes them from there
 * and calls `done`. The queue and the spare tasks belong to the loop's thread; a task and its jobs
 * belong to workers from bag_workers_push until they are on `finished`. */
#include "engine.h"

#include "task.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A batch costs at least this, where there is as much: handing it over costs 5 to 50 us. */
#define LEAST_BATCH_NS 100000

/* A batch costs no more than this, but for its last job: what a batch holds is no longer dropped
 * when its client goes or its time passes, and counts no longer as waiting. */
#define MOST_BATCH_NS 10000000

/* Bounds of what estimates are multiplied with. */
#define LEAST_COST_SCALE (1.0 / 16)
#define MOST_COST_SCALE  16.0

/* A worker has its next batch waiting behind the one it runs: under load a turn of the loop may
 * take longer than a batch. */
#define TASKS_PER_WORKER 2

/* ---- the queue ------------------------------------------------------------------------------- */

/* How long work of that estimate really takes here, by what the last tasks took. */
static uint64_t scaled_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return (uint64_t)((double)cost_ns * engine->cost_scale);
}

/* Work that waits for each worker. */
static uint64_t queued_work_ns(const struct bag_engine *engine)
{
    return scaled_ns(engine, engine->queued_cost_ns) / engine->workers->count;
}

bool bag_engine_has_room(const struct bag_engine *engine, size_t bytes)
{
    const struct bag_engine_limits *limits = &engine->limits;
    return engine->queued == 0 || (engine->queued < limits->max_queue_size &&
                                   queued_work_ns(engine) < limits->max_queue_work_ns &&
                                   engine->queued_bytes <= limits->max_queue_bytes &&
                                   bytes <= limits->max_queue_bytes - engine->queued_bytes);
}

void bag_engine_reject(const struct bag_engine *engine, struct bag_job *job)
{
    const struct bag_engine_limits *limits = &engine->limits;
    struct bag_problem *problem = &job->problem;
    if (engine->queued >= limits->max_queue_size)
        bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                        "the queue is full: %zu requests wait; the limit (max_queue_size) is %zu",
                        engine->queued, limits->max_queue_size);
    else if (queued_work_ns(engine) >= limits->max_queue_work_ns)
        bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                        "the queue is full: %llu ms of work wait for each worker; the limit "
                        "(max_queue_work_ms) is %llu ms",
                        (unsigned long long)queued_work_ns(engine) / 1000000,
                        (unsigned long long)limits->max_queue_work_ns / 1000000);
    else
        bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                        "the queue is full: %zu bytes wait, and this request has %zu; the limit "
                        "(max_queue_bytes) is %zu",
                        engine->queued_bytes, job->infer.input.body_bytes, limits->max_queue_bytes);
}

static void append(struct bag_engine *engine, struct bag_job *job)
{
    job->next = NULL;
    job->task = NULL;
    job->cost_ns =
        job->planned ? bag_infer_cost_ns(&job->infer) : bag_infer_whole_cost_ns(&job->infer);
    job->bytes = job->infer.input.body_bytes + (job->planned ? job->infer.output.bytes : 0);
    *engine->last = job;
    engine->last = &job->next;
    engine->queued++;
    engine->queued_bytes += job->bytes;
    engine->queued_cost_ns += job->cost_ns;
    bag_metrics_on_queued(engine->recorder, job->infer.input.model);
}

/* Takes the job that *link points to out of the queue. */
static struct bag_job *take(struct bag_engine *engine, struct bag_job **link)
{
    struct bag_job *job = *link;
    *link = job->next;
    if (!*link)
        engine->last = link;
    job->next = NULL;
    engine->queued--;
    engine->released -= engine->released > 0;
    engine->queued_bytes -= job->bytes;
    engine->queued_cost_ns -= job->cost_ns;
    bag_metrics_on_taken(engine->recorder, job->infer.input.model);
    return job;
}

void bag_engine_submit(struct bag_engine *engine, struct bag_job *job)
{
    job->failed = false;
    job->splits = 0;
    job->queued_ns = uv_hrtime();
    append(engine, job);
}

/* A job that waited for nothing: its time has passed or its client has gone. */
static bool is_stale(const struct bag_engine *engine, struct bag_job *job, uint64_t now_ns)
{
    if (bag_job_is_late(engine, job, now_ns))
        return !bag_job_reject_late(job);
    if (!job->is_connected(job)) {
        bag_problem_set(&job->problem, BAG_ERROR_CANCELLED, "the client has closed the connection");
        return true;
    }
    return false;
}

/* Takes stale jobs from the queue's front. */
static void drop_stale(struct bag_engine *engine, uint64_t now_ns)
{
    while (engine->first && is_stale(engine, engine->first, now_ns)) {
        struct bag_job *job = take(engine, &engine->first);
        job->failed = true;
        bag_job_push_finished(engine, job);
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static struct bag_task *get_task(struct bag_engine *engine)
{
    struct bag_task *task = engine->spare_tasks;
    engine->spare_tasks = task->next;
    return task;
}

/* Lets the scale follow what a task took. One task may be far off: it moves the scale by an eighth
 * at most. */
static void update_cost_scale(struct bag_engine *engine, const struct bag_task *task)
{
    double took = (double)task->cpu_ns / ((double)task->cost_ns + 1);
    double ratio = took / engine->cost_scale;
    engine->cost_scale *= ratio > 2 ? 1.125 : ratio < 0.5 ? 0.875 : 1 + (ratio - 1) / 8;
    if (engine->cost_scale < LEAST_COST_SCALE)
        engine->cost_scale = LEAST_COST_SCALE;
    if (engine->cost_scale > MOST_COST_SCALE)
        engine->cost_scale = MOST_COST_SCALE;
}

/* All jobs of the task are done. */
static void end_task(struct bag_engine *engine, struct bag_task *task)
{
    update_cost_scale(engine, task);
    task->next = engine->spare_tasks;
    engine->spare_tasks = task;
    engine->running--;
}

/* How much work a batch holds: one idle worker's share of the queue. */
static uint64_t batch_budget_ns(const struct bag_engine *engine)
{
    uint64_t share_ns = queued_work_ns(engine) / 2;
    uint64_t budget_ns = share_ns > LEAST_BATCH_NS ? share_ns : LEAST_BATCH_NS;
    return budget_ns < MOST_BATCH_NS ? budget_ns : MOST_BATCH_NS;
}

/* The oldest job and others of its model, as much as one idle worker's share of the queue. */
static void start_batch(struct bag_engine *engine)
{
    const struct bag_model *model = engine->first->infer.input.model;
    uint64_t budget_ns = batch_budget_ns(engine);
    size_t most_bags = engine->limits.max_batch_bags ? engine->limits.max_batch_bags : SIZE_MAX;
    uint64_t cost_ns = 0;
    size_t bags = 0;
    struct bag_task *task = get_task(engine);
    struct bag_job **end = &task->jobs, **link = &engine->first;
    while (*link && scaled_ns(engine, cost_ns) < budget_ns && bags < most_bags) {
        if ((*link)->infer.input.model != model ||
            (bags && (*link)->planned && (*link)->infer.plan.work.bags > most_bags - bags)) {
            link = &(*link)->next;
            continue;
        }
        *end = take(engine, link);
        cost_ns += (*end)->cost_ns;
        bags += (*end)->planned ? (*end)->infer.plan.work.bags : 1;
        end = &(*end)->next;
    }
    *end = NULL;
    task->cost_ns = cost_ns;
    engine->running++;
    bag_workers_push(engine->workers, &task->work, false);
}

static void on_delay(uv_timer_t *timer)
{
    bag_engine_dispatch(timer->data);
}

/* Whether the oldest job should wait for others to make up a batch of the preferred size. Those
 * that have waited enough are released, all at once. libuv's timers count milliseconds: a wait ends
 * at the first one after its time. */
static bool should_wait(struct bag_engine *engine, uint64_t now_ns)
{
    uint64_t delay_ns = engine->limits.max_queue_delay_us * 1000;
    uint64_t waited_ns = now_ns - engine->first->queued_ns;
    if (waited_ns >= delay_ns || engine->queued >= engine->limits.preferred_batch_size)
        engine->released = engine->queued;
    if (engine->released)
        return false;
    uv_timer_start(&engine->delay, on_delay, (delay_ns - waited_ns + 999999) / 1000000, 0);
    return true;
}

void bag_engine_dispatch(struct bag_engine *engine)
{
    while (engine->first) {
        uint64_t now_ns = uv_hrtime();
        drop_stale(engine, now_ns);
        if (!engine->first || engine->running >= engine->num_tasks || should_wait(engine, now_ns))
            return;
        start_batch(engine);
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
        bag_metrics_on_batch(engine->recorder, job->infer.input.model, task ? task->num_pooled : 0);
        job->done(job);
        if (task)
            end_task(engine, task);
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
    *engine = (struct bag_engine){
        .loop = loop, .workers = workers, .limits = *limits, .cost_scale = 1, .wake_fd = -1};
    engine->last = &engine->first;
    engine->wake.data = engine->delay.data = engine;
    return init_tasks(engine) && bag_buffers_init(&engine->buffers, true, budget) &&
           uv_timer_init(loop, &engine->delay) == 0 && init_wake(engine);
}

void bag_engine_stop(struct bag_engine *engine)
{
    uv_close((uv_handle_t *)&engine->wake, NULL);
    uv_close((uv_handle_t *)&engine->delay, NULL);
}

void bag_engine_free(struct bag_engine *engine)
{
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    free(engine->tasks);
    bag_buffers_free(&engine->buffers);
}
