/* The loop's side of the engine; see engine.h.
 *
 * The life of a job: bag_engine_submit() adds it to the queue. bag_engine_dispatch() moves it into
 * a task. A worker runs the jobs of the task one by one and hands each back through `finished`.
 * on_wake() takes them from there and calls `done`. The queue and the spare tasks belong to the
 * loop's thread. A task and its jobs belong to workers from bag_workers_push() until they are
 * handed back. */
#include "engine.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The minimum cost of a batch, if there is as much work. Handing it to a worker costs 5 to 50 us.
 */
#define MIN_BATCH_NS 100000

/* The maximum cost of a batch without its last job. Jobs in a batch are not dropped any more when
 * their client disconnects or their time passes, and do not count as waiting. */
#define MAX_BATCH_NS 10000000

/* A batch costs at most the latency target divided by this. */
#define TARGET_PARTS 8

/* Each worker has its next batch waiting, because under load an iteration of the loop may take
 * longer than a batch. */
#define TASKS_PER_WORKER 2

/* ---- the queue ------------------------------------------------------------------------------- */

/* A job whose work was reserved keeps the arrival time and the work ahead that it had then. */
void bag_engine_submit(struct bag_engine *engine, struct bag_job *job)
{
    bool was_reserved = job->is_reserved;
    bag_engine_cancel(engine, job);
    job->failed = false;
    job->splits = 0;
    job->task = NULL;
    job->cost_ns =
        job->planned ? bag_infer_cost_ns(&job->infer) : bag_infer_whole_cost_ns(&job->infer);
    if (!was_reserved)
        bag_engine_stamp(engine, job);
    job->bytes = job->infer.input.body_bytes + (job->planned ? job->infer.output.bytes : 0);
    bag_queue_add(&engine->queue, job);
    atomic_fetch_add(&engine->workers->queued, 1);
    atomic_fetch_add(&engine->workers->queued_ns, job->cost_ns);
    bag_metrics_on_queued(engine->recorder, job->infer.input.model);
}

/* Called for every job that leaves the queue. */
static void on_taken(struct bag_engine *engine, const struct bag_job *job)
{
    atomic_fetch_sub(&engine->workers->queued, 1);
    atomic_fetch_sub(&engine->workers->queued_ns, job->cost_ns);
    bag_metrics_on_taken(engine->recorder, job->infer.input.model);
}

/* Returns true and sets job->problem if the time of a job has passed or its client has
 * disconnected. */
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

/* Hands a job that was not computed back to its owner, who finds the reason in job->problem. */
static void reject_stale(struct bag_engine *engine, struct bag_job *job)
{
    job->failed = true;
    bag_job_push_finished(engine, job);
}

/* The context of is_overdue_now(). */
struct moment {
    struct bag_engine *engine;
    uint64_t now_ns;
};

static bool is_overdue_now(void *context, struct bag_job *job)
{
    const struct moment *moment = context;
    return bag_engine_is_overdue(moment->engine, job, moment->now_ns);
}

/* Takes the next job whose client still waits for it, and rejects the stale ones before it. */
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

/* Returns how much work a batch holds: the part of the queue for one idle worker. */
static uint64_t batch_budget_ns(const struct bag_engine *engine)
{
    uint64_t part_ns = bag_engine_shared_ns(engine, engine->queue.load.waiting_ns) / 2;
    uint64_t budget_ns = part_ns > MIN_BATCH_NS ? part_ns : MIN_BATCH_NS;
    uint64_t target_ns = engine->limits.latency_target_ns / TARGET_PARTS;
    uint64_t max_ns = target_ns && target_ns < MAX_BATCH_NS ? target_ns : MAX_BATCH_NS;
    return budget_ns < max_ns ? budget_ns : max_ns;
}

/* Starts a batch of the next job and others for its model. */
static void start_batch(struct bag_engine *engine, uint64_t now_ns)
{
    uint64_t budget_ns = batch_budget_ns(engine), cost_ns = 0;
    struct bag_task *task = SLIST_FIRST(&engine->spare_tasks);
    const struct bag_model *model = NULL;
    TAILQ_INIT(&task->jobs);
    while (bag_engine_scaled_ns(engine, cost_ns) < budget_ns) {
        struct bag_job *job = take(engine, model, now_ns);
        if (!job)
            break;
        model = job->infer.input.model;
        TAILQ_INSERT_TAIL(&task->jobs, job, link);
        job->running = true;
        bag_queue_begin(&engine->queue, job);
        cost_ns += job->cost_ns;
    }
    if (TAILQ_EMPTY(&task->jobs))
        return;
    SLIST_REMOVE_HEAD(&engine->spare_tasks, next_spare);
    task->cost_ns = cost_ns;
    engine->running++;
    bag_workers_push(engine->workers, &task->work, BAG_WORK_IN_ORDER);
}

void bag_engine_dispatch(struct bag_engine *engine)
{
    while (engine->queue.load.waiting) {
        uint64_t now_ns = engine->clock();
        /* Reject jobs that have waited too long and are the first of their model queue, without a
         * worker. */
        struct moment moment = {engine, now_ns};
        struct bag_job *job;
        while ((job = bag_queue_take_if(&engine->queue, is_overdue_now, &moment)) != NULL) {
            on_taken(engine, job);
            reject_stale(engine, job);
        }
        if (!engine->queue.load.waiting || engine->running >= engine->num_tasks)
            return;
        start_batch(engine, now_ns);
    }
}

/* ---- the loop's side ------------------------------------------------------------------------- */

/* Takes the jobs that workers have finished, the oldest first. */
static void on_wake(uv_poll_t *wake, int status, int events)
{
    struct bag_engine *engine = wake->data;
    eventfd_t ignored;
    (void)status;
    (void)events;
    eventfd_read(engine->wake_fd, &ignored);
    for (struct bag_handoff_item *item = bag_handoff_take(&engine->finished), *next; item;
         item = next) {
        struct bag_job *job = BAG_HANDOFF_OWNER(item, struct bag_job, finished);
        struct bag_task *task = job->task;
        next = item->next;
        if (job->running) {
            job->running = false;
            bag_queue_end(&engine->queue, job);
            if (!job->failed)
                bag_engine_update_wait_scale(engine, job);
        }
        bag_metrics_on_batch(engine->recorder, job->infer.input.model, task ? task->num_pooled : 0);
        job->done(job);
        if (task) {
            bag_engine_update_cost_scale(engine, task);
            SLIST_INSERT_HEAD(&engine->spare_tasks, task, next_spare);
            engine->running--;
        }
    }
    engine->on_iteration(engine->context);
}

/* Does not use uv_async_t: in libuv 1.44 a loop that is woken by one spins until the waking thread
 * has continued, which may take long if the loop has taken that thread's processor. */
static bool init_wake(struct bag_engine *engine)
{
    engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return engine->wake_fd >= 0 &&
           uv_poll_init(engine->loop, &engine->wake, engine->wake_fd) == 0 &&
           uv_poll_start(&engine->wake, UV_READABLE, on_wake) == 0;
}

/* Allocates the tasks, all of them spare. Returns false without memory. */
static bool init_tasks(struct bag_engine *engine)
{
    engine->num_tasks = TASKS_PER_WORKER * engine->workers->count;
    engine->tasks = calloc(engine->num_tasks, sizeof *engine->tasks);
    for (unsigned i = 0; engine->tasks && i < engine->num_tasks; i++) {
        struct bag_task *task = &engine->tasks[i];
        task->engine = engine;
        task->work.run = bag_task_run;
        SLIST_INSERT_HEAD(&engine->spare_tasks, task, next_spare);
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
