/* The worker's side of the engine; see task.h. */
#include "task.h"

#include <sys/eventfd.h>

void bag_job_push_finished(struct bag_engine *engine, struct bag_job *job)
{
    struct bag_job *head = atomic_load_explicit(&engine->finished, memory_order_relaxed);
    do {
        job->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&engine->finished, &head, job,
                                                    memory_order_release, memory_order_relaxed));
    /* The loop takes all that are there, so that it is woken by the first alone. */
    if (!head)
        eventfd_write(engine->wake_fd, 1);
}

bool bag_job_is_late(const struct bag_engine *engine, const struct bag_job *job, uint64_t now_ns)
{
    uint64_t timeout_us = engine->limits.default_timeout_us;
    if (timeout_us == 0)
        timeout_us = UINT64_MAX;
    if (job->planned && engine->limits.allow_timeout_override && job->infer.timeout_us < timeout_us)
        timeout_us = job->infer.timeout_us;
    return timeout_us < UINT64_MAX / 1000 && now_ns - job->queued_ns > timeout_us * 1000;
}

bool bag_job_reject_late(struct bag_job *job)
{
    return bag_problem_set(&job->problem, BAG_ERROR_TIMED_OUT_IN_QUEUE,
                           "the request waited in the queue past its timeout");
}

bool bag_job_is_worth_splitting(const struct bag_engine *engine, const struct bag_job *job)
{
    return engine->limits.workers > 1 &&
           bag_infer_pool_cost_ns(&job->infer) >= 2 * BAG_LEAST_SPLIT_NS;
}

/* Decodes a job that has not been; false where it is left to be cut. */
static bool decode_job(struct bag_task *task, struct bag_job *job)
{
    struct bag_engine *engine = task->engine;
    bag_stopwatch_lap(&job->infer.watch, BAG_STAGE_QUEUE);
    if (job->planned)
        return true;
    job->failed = !bag_infer_unpack(&job->infer, &engine->buffers,
                                    job->infer.limits->max_body_bytes, &job->problem) ||
                  !bag_infer_plan(&job->infer, NULL, &job->problem);
    job->planned = true;
    if (!job->failed && bag_job_is_late(engine, job, uv_hrtime()))
        job->failed = !bag_job_reject_late(job);
    if (!job->failed && task->may_split && bag_job_is_worth_splitting(engine, job))
        task->requeued = job;
    return task->requeued != job;
}

/* Counts a job that was run, or failed, and gives it back. */
static void end_job(struct bag_task *task, struct bag_job *job, bool is_last)
{
    task->pooled += !job->failed;
    job->batch_requests = is_last ? task->pooled : 0;
    bag_job_push_finished(task->engine, job);
}

static void run_job(struct bag_task *task, struct bag_job *job)
{
    if (!decode_job(task, job))
        return;
    if (!job->failed)
        job->failed = !bag_infer_run(&job->infer, &task->engine->buffers, &job->problem);
    end_job(task, job, !job->next);
}

/* Jobs of a model that projects: decoded one by one, run together. */
static void run_together(struct bag_task *task, struct bag_job *const *jobs, size_t count,
                         bool is_last)
{
    struct bag_infer *infers[BAG_INFER_TOGETHER];
    struct bag_problem *problems[BAG_INFER_TOGETHER];
    bool made[BAG_INFER_TOGETHER];
    for (size_t i = 0; i < count; i++) {
        infers[i] = &jobs[i]->infer;
        problems[i] = &jobs[i]->problem;
    }
    bag_infer_run_together(infers, made, problems, count, &task->engine->buffers);
    for (size_t i = 0; i < count; i++) {
        jobs[i]->failed = !made[i];
        end_job(task, jobs[i], is_last && i + 1 == count);
    }
}

static void run_projection_batch(struct bag_task *task)
{
    struct bag_job *jobs[BAG_INFER_TOGETHER];
    size_t count = 0;
    for (struct bag_job *job = task->jobs, *next; job; job = next) {
        next = job->next;
        bool goes_on = decode_job(task, job);
        if (goes_on && job->failed)
            end_job(task, job, !next && count == 0);
        else if (goes_on)
            jobs[count++] = job;
        if (count == BAG_INFER_TOGETHER || (!next && count)) {
            run_together(task, jobs, count, !next);
            count = 0;
        }
    }
}

static void run_split(struct bag_engine *engine, struct bag_job *job, struct bag_split split)
{
    bag_infer_pool(&job->infer, split);
    /* The last one has seen what all others wrote, and goes on alone. */
    if (atomic_fetch_sub_explicit(&job->splits_left, 1, memory_order_acq_rel) == 1) {
        bag_infer_finish(&job->infer);
        job->batch_requests = 1;
        bag_job_push_finished(engine, job);
    }
}

static void run_batch(struct bag_task *task)
{
    task->pooled = 0;
    if (task->jobs->infer.model->projects) {
        run_projection_batch(task);
        return;
    }
    for (struct bag_job *job = task->jobs, *next; job; job = next) {
        next = job->next;
        run_job(task, job);
    }
}

void bag_task_run(uv_work_t *work)
{
    struct bag_task *task = work->data;
    bag_affinity_thread(&task->engine->affinity);
    uint64_t started_ns = uv_hrtime();
    if (task->part)
        run_split(task->engine, task->jobs, task->split);
    else
        run_batch(task);
    task->took_ns = uv_hrtime() - started_ns;
}
