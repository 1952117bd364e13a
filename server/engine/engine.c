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

/* Bounds of what estimates are multiplied with. */
#define MIN_COST_SCALE (1.0 / 16)
#define MAX_COST_SCALE 16.0

/* Likewise of the work ahead, which many workers share and other processes delay. */
#define MIN_WAIT_SCALE (1.0 / 1024)
#define MAX_WAIT_SCALE 64.0

/* Parts of the latency target, in percent: what a job may have to wait when it comes, so that its
 * own work and the noise of the machine have room; and how long one may have waited when it is
 * taken. */
#define ADMITTED_PERCENT 65
#define WAITED_PERCENT   90

/* A batch takes no more than this part of the latency target, and a job that took less tells
 * nothing of how long a queue takes. */
#define TARGET_PARTS 8

/* A worker has its next batch waiting behind the one it runs: under load a turn of the loop may
 * take longer than a batch. */
#define TASKS_PER_WORKER 2

/* ---- the queue ------------------------------------------------------------------------------- */

/* How long work of that estimate really takes here, by what the last tasks took. */
static uint64_t scaled_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return (uint64_t)((double)cost_ns * engine->cost_scale);
}

/* How long each worker takes for work of that estimate, if all share it. */
static uint64_t shared_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return scaled_ns(engine, cost_ns) / engine->workers->count;
}

/* What is used of a limit: by all, by the job's client, and by what he asks of its model. */
struct usage {
    uint64_t all, client, model;
};

/* Whether that leaves room. Beyond the limit a client has room who holds less than an equal part of
 * it, and a model that holds less than an equal part of its client's, until all together have twice
 * as much. */
static bool is_below(uint64_t limit, struct usage usage, const struct bag_queue_share *share)
{
    uint64_t part = limit / share->num_flows;
    return usage.all < limit || (usage.all / 2 < limit &&
                                 (usage.client < part || usage.model < part / share->num_lines));
}

static bool reject_count(const struct bag_engine *engine, uint64_t count,
                         struct bag_problem *problem)
{
    return bag_problem_set(
        problem, BAG_ERROR_QUEUE_FULL,
        "the queue is full: %llu requests wait; the limit (max_queue_size) is %zu",
        (unsigned long long)count, engine->limits.max_queue_size);
}

static bool reject_work(const struct bag_engine *engine, uint64_t work_ns,
                        struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                           "the queue is full: %llu ms of work wait for each worker; the limit "
                           "(max_queue_work_ms) is %llu ms",
                           (unsigned long long)work_ns / 1000000,
                           (unsigned long long)engine->limits.max_queue_work_ns / 1000000);
}

/* When what the loop handles now was there at the latest. */
static uint64_t arrived_ns(const struct bag_engine *engine)
{
    return engine->polled_ns ? engine->polled_ns : engine->clock();
}

/* How long a job that comes now is likely to wait. */
static uint64_t expected_wait_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return (uint64_t)((double)cost_ns * engine->wait_scale);
}

static bool reject_wait(uint64_t wait_ns, const struct bag_engine *engine,
                        struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                           "the queue is full: a request would wait %llu ms; %d %% of the target "
                           "(latency_target_ms), which is %llu ms, are allowed",
                           (unsigned long long)wait_ns / 1000000, ADMITTED_PERCENT,
                           (unsigned long long)engine->limits.latency_target_ns / 1000000);
}

static struct usage expected_waits_ns(const struct bag_engine *engine,
                                      const struct bag_queue_share *share)
{
    return (struct usage){expected_wait_ns(engine, engine->queue.cost_ns),
                          expected_wait_ns(engine, share->flow->cost_ns),
                          expected_wait_ns(engine, share->line->cost_ns)};
}

/* Whether a job would wait no longer than the latency target allows: it has waited for the loop
 * already, what runs comes first in any case, and the rest is for what waits. */
static bool is_soon_enough(const struct bag_engine *engine, const struct bag_queue_share *share,
                           struct bag_problem *problem)
{
    uint64_t limit_ns = engine->limits.latency_target_ns / 100 * ADMITTED_PERCENT;
    if (limit_ns == 0)
        return true;
    uint64_t before_ns = engine->clock() - arrived_ns(engine);
    before_ns += expected_wait_ns(engine, engine->running_ns);
    struct usage waits_ns = expected_waits_ns(engine, share);
    return (before_ns < limit_ns && is_below(limit_ns - before_ns, waits_ns, share)) ||
           reject_wait(before_ns + waits_ns.all, engine, problem);
}

bool bag_engine_has_room(const struct bag_engine *engine, struct bag_job *job)
{
    const struct bag_engine_limits *limits = &engine->limits;
    const struct bag_workers *workers = engine->workers;
    const struct bag_queue_share share = bag_queue_share(&engine->queue, job);
    /* A client counts as if he had as much with each engine, so that he leaves room for others. */
    const size_t parts = workers->num_engines;
    const struct usage count = {atomic_load(&workers->queued), share.flow->count * parts,
                                share.line->count * parts};
    const struct usage work_ns = {shared_ns(engine, atomic_load(&workers->queued_ns)),
                                  shared_ns(engine, share.flow->cost_ns) * parts,
                                  shared_ns(engine, share.line->cost_ns) * parts};
    if (count.all == 0)
        return true;
    if (!is_below(limits->max_queue_size, count, &share))
        return reject_count(engine, count.all, &job->problem);
    if (!is_below(limits->max_queue_work_ns, work_ns, &share))
        return reject_work(engine, work_ns.all, &job->problem);
    return is_soon_enough(engine, &share, &job->problem);
}

void bag_engine_submit(struct bag_engine *engine, struct bag_job *job)
{
    job->failed = false;
    job->splits = 0;
    job->queued_ns = arrived_ns(engine);
    job->task = NULL;
    job->cost_ns =
        job->planned ? bag_infer_cost_ns(&job->infer) : bag_infer_whole_cost_ns(&job->infer);
    job->ahead_ns = engine->queue.cost_ns + engine->running_ns + job->cost_ns;
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

/* A job that has waited for longer than its timeout or the latency target allows. */
static bool is_overdue(const struct bag_engine *engine, struct bag_job *job, uint64_t now_ns)
{
    uint64_t target_ns = engine->limits.latency_target_ns, waited_ns = now_ns - job->queued_ns;
    if (bag_job_is_late(engine, job, now_ns))
        return !bag_job_reject_late(job);
    if (target_ns == 0 || waited_ns <= target_ns / 100 * WAITED_PERCENT)
        return false;
    bag_problem_set(&job->problem, BAG_ERROR_QUEUE_FULL,
                    "the request has waited %llu ms; the target (latency_target_ms) is %llu ms",
                    (unsigned long long)waited_ns / 1000000,
                    (unsigned long long)target_ns / 1000000);
    return true;
}

/* A job that waited for nothing: its time has passed or its client has gone. */
static bool is_stale(const struct bag_engine *engine, struct bag_job *job, uint64_t now_ns)
{
    if (is_overdue(engine, job, now_ns))
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
    const struct bag_engine *engine;
    uint64_t now_ns;
};

static bool is_overdue_now(void *context, struct bag_job *job)
{
    const struct moment *moment = context;
    return is_overdue(moment->engine, job, moment->now_ns);
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

static struct bag_task *get_task(struct bag_engine *engine)
{
    struct bag_task *task = engine->spare_tasks;
    engine->spare_tasks = task->next;
    return task;
}

/* Lets a scale follow what was measured, by a part of the difference. One measurement may be far
 * off: it counts as twice the scale at most. */
static double follow(double scale, double measured, double parts, double least, double most)
{
    double ratio = measured / scale;
    scale *= 1 + ((ratio > 2 ? 2 : ratio) - 1) / parts;
    return scale < least ? least : scale > most ? most : scale;
}

static void update_cost_scale(struct bag_engine *engine, const struct bag_task *task)
{
    double took = (double)task->cpu_ns / ((double)task->cost_ns + 1);
    engine->cost_scale = follow(engine->cost_scale, took, 8, MIN_COST_SCALE, MAX_COST_SCALE);
}

/* Lets the scale follow how long a job took from its submission to its end. What a short time
 * beside the target has too much of is not the queue's: it only lowers the scale. */
static void update_wait_scale(struct bag_engine *engine, const struct bag_job *job)
{
    uint64_t took_ns = engine->clock() - job->queued_ns;
    double measured = (double)took_ns / ((double)job->ahead_ns + 1);
    if (took_ns >= engine->limits.latency_target_ns / TARGET_PARTS || measured < engine->wait_scale)
        engine->wait_scale =
            follow(engine->wait_scale, measured, 16, MIN_WAIT_SCALE, MAX_WAIT_SCALE);
}

/* All jobs of the task are done. */
static void end_task(struct bag_engine *engine, struct bag_task *task)
{
    update_cost_scale(engine, task);
    engine->running_ns -= task->cost_ns;
    task->next = engine->spare_tasks;
    engine->spare_tasks = task;
    engine->running--;
}

static uint64_t max_batch_ns(const struct bag_engine *engine)
{
    uint64_t part_ns = engine->limits.latency_target_ns / TARGET_PARTS;
    return part_ns && part_ns < MAX_BATCH_NS ? part_ns : MAX_BATCH_NS;
}

/* How much work a batch holds: one idle worker's part of the queue. */
static uint64_t batch_budget_ns(const struct bag_engine *engine)
{
    uint64_t part_ns = shared_ns(engine, engine->queue.cost_ns) / 2;
    uint64_t budget_ns = part_ns > MIN_BATCH_NS ? part_ns : MIN_BATCH_NS;
    uint64_t max_ns = max_batch_ns(engine);
    return budget_ns < max_ns ? budget_ns : max_ns;
}

/* The next job and others of its model, as much as one idle worker's part of the queue. */
static void start_batch(struct bag_engine *engine, uint64_t now_ns)
{
    uint64_t budget_ns = batch_budget_ns(engine), cost_ns = 0;
    struct bag_job *jobs = NULL, **end = &jobs;
    while (scaled_ns(engine, cost_ns) < budget_ns) {
        struct bag_job *job = take(engine, jobs ? jobs->infer.input.model : NULL, now_ns);
        if (!job)
            break;
        *end = job;
        end = &job->next;
        cost_ns += job->cost_ns;
    }
    if (!jobs)
        return;
    struct bag_task *task = get_task(engine);
    task->jobs = jobs;
    task->cost_ns = cost_ns;
    engine->running_ns += cost_ns;
    engine->running++;
    bag_workers_push(engine->workers, &task->work, BAG_WORK_IN_ORDER);
}

void bag_engine_dispatch(struct bag_engine *engine)
{
    while (engine->queue.count) {
        uint64_t now_ns = engine->clock();
        drop_overdue(engine, now_ns);
        if (!engine->queue.count || engine->running >= engine->num_tasks)
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
        if (engine->limits.latency_target_ns && job->queued_ns && !job->failed)
            update_wait_scale(engine, job);
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
