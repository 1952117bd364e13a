/* The worker's side of the engine; see engine.h. */
#include "engine.h"

#include <stddef.h>
#include <sys/eventfd.h>
#include <time.h>

/* ---- splitting a request into ranges --------------------------------------------------------- */

/* The cost of an empty bag, in indices. */
#define BAG_WEIGHT 1

struct work {
    const struct bag_op *ops;
    size_t count;
};

/* Returns the cost of an index in bytes, at least 1, so that rows without bytes can be split. */
static size_t row_weight(const struct bag_pool_args *args)
{
    size_t bytes = bag_row_bytes(&args->table);
    return bytes ? bytes : 1;
}

static size_t weight_before(const struct bag_pool_args *args, size_t bag)
{
    return (bag_pool_entries_before(args, bag) + BAG_WEIGHT * bag) * row_weight(args);
}

static size_t weight_of(const struct bag_pool_args *args)
{
    return weight_before(args, args->num_bags);
}

/* Returns the first bag that is preceded by at least `weight`. */
static size_t bag_at(const struct bag_pool_args *args, size_t weight)
{
    size_t low = 0, high = args->num_bags;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (weight_before(args, middle) < weight)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Ends the split at the first bag that is preceded by at least `weight` of all work. Returns the
 * weight before that bag. */
static size_t end_at(const struct work *work, size_t weight, struct bag_split *split)
{
    size_t before = 0;
    for (size_t i = 0; i < work->count; i++) {
        const struct bag_pool_args *args = &work->ops[i].args;
        size_t own = weight_of(args);
        if (weight <= before + own) {
            split->end_op = i;
            split->end_bag = bag_at(args, weight - before);
            return before + weight_before(args, split->end_bag);
        }
        before += own;
    }
    split->end_op = work->count;
    split->end_bag = 0;
    return before;
}

/* Returns the number of ranges, at most `parts`, into which the columns of the heaviest op can be
 * split. */
static unsigned max_column_splits(const struct work *work, unsigned parts)
{
    const struct bag_pool_args *heaviest = &work->ops[0].args;
    for (size_t i = 1; i < work->count; i++) {
        if (weight_of(&work->ops[i].args) > weight_of(heaviest))
            heaviest = &work->ops[i].args;
    }
    /* Rows are encoded whole. */
    for (size_t i = 0; i < work->count; i++) {
        if (work->ops[i].row_format != BAG_ROWS_PLAIN)
            return 1;
    }
    size_t steps = bag_column_steps(heaviest->table.row_elements);
    return steps < parts ? (unsigned)steps : parts;
}

unsigned bag_split_ops(const struct bag_op *ops, size_t count, unsigned parts,
                       struct bag_split *splits)
{
    struct work work = {ops, count};
    size_t total = 0, before = 0;
    unsigned made = 0;
    bool uneven = false;
    for (size_t i = 0; i < count; i++)
        total += weight_of(&ops[i].args);
    struct bag_split split = bag_split_all(count);
    for (unsigned i = 1; i <= parts; i++) {
        size_t end =
            i < parts ? end_at(&work, total / parts * i, &split) : end_at(&work, SIZE_MAX, &split);
        if (end == before)
            continue;
        /* If a range has a quarter more than its part, splitting by bags gained little. */
        uneven |= end - before > total / parts + total / parts / 4;
        splits[made++] = split;
        split.first_op = split.end_op;
        split.first_bag = split.end_bag;
        before = end;
    }
    if (made == 0)
        splits[made++] = bag_split_all(count);
    unsigned columns = max_column_splits(&work, parts);
    if (columns > 1 && (made < parts || uneven)) {
        for (unsigned i = 0; i < columns; i++) {
            splits[i] = bag_split_all(work.count);
            splits[i].column_split = i;
            splits[i].num_column_splits = columns;
        }
        made = columns;
    }
    return made;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

void bag_engine_wake(const struct bag_engine *engine)
{
    eventfd_write(engine->wake_fd, 1);
}

void bag_job_push_finished(struct bag_engine *engine, struct bag_job *job)
{
    if (bag_handoff_push(&engine->finished, &job->finished))
        bag_engine_wake(engine);
}

bool bag_job_is_late(const struct bag_engine *engine, const struct bag_job *job, uint64_t now_ns)
{
    uint64_t timeout_us = engine->limits.default_timeout_us;
    if (timeout_us == 0)
        timeout_us = UINT64_MAX;
    if (job->planned && job->infer.plan.timeout_us < timeout_us)
        timeout_us = job->infer.plan.timeout_us;
    return timeout_us < UINT64_MAX / 1000 && now_ns - job->queued_ns > timeout_us * 1000;
}

bool bag_job_reject_late(struct bag_job *job)
{
    return bag_problem_set(&job->problem, BAG_ERROR_TIMED_OUT_IN_QUEUE,
                           "the request waited in the queue past its timeout");
}

/* Decodes a job unless the loop has done so. Returns false and sets job->problem if it fails. */
static bool decode_job(struct bag_task *task, struct bag_job *job)
{
    struct bag_engine *engine = task->engine;
    bag_stopwatch_lap(&job->infer.watch, BAG_STAGE_QUEUE);
    if (job->planned) {
        bag_infer_prefetch(&job->infer);
        return true;
    }
    job->failed = !bag_infer_unpack(&job->infer, &engine->buffers,
                                    job->infer.input.limits->max_body_bytes, &job->problem) ||
                  !bag_infer_plan(&job->infer, NULL, &job->problem);
    job->planned = true;
    if (!job->failed && bag_job_is_late(engine, job, uv_hrtime()))
        job->failed = !bag_job_reject_late(job);
    if (!job->failed)
        bag_infer_prefetch(&job->infer);
    return !job->failed;
}

/* ---- CPU time -------------------------------------------------------------------------------- */

/* Returns the CPU time that the calling thread has used. */
static uint64_t cpu_now_ns(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void add_cpu_time(struct bag_task *task, uint64_t since_ns)
{
    atomic_fetch_add_explicit(&task->cpu_ns, cpu_now_ns() - since_ns, memory_order_relaxed);
}

/* Counts a job that was run or has failed, and hands it back. After the last one the task does not
 * read tables any more. */
static void end_job(struct bag_task *task, struct bag_job *job, bool is_last)
{
    if (is_last)
        bag_model_read_end(job->infer.input.model);
    task->num_pooled += !job->failed;
    if (!job->run || job->failed)
        bag_infer_free_scratch(&job->infer);
    if (is_last)
        add_cpu_time(task, task->started_ns);
    job->task = is_last ? task : NULL;
    bag_job_push_finished(task->engine, job);
}

/* ---- split jobs ------------------------------------------------------------------------------ */

/* Pools a range. The thread that finishes the last range sees all writes and completes the job. */
static void run_split(struct bag_work *work)
{
    struct bag_task_split *range = (void *)work;
    struct bag_task *task = range->task;
    struct bag_job *job = task->split_job;
    uint64_t started_ns = cpu_now_ns();
    bag_infer_pool(&job->infer, range->split);
    add_cpu_time(task, started_ns);
    if (atomic_fetch_sub_explicit(&task->splits_left, 1, memory_order_acq_rel) == 1) {
        task->started_ns = cpu_now_ns();
        job->failed = !bag_infer_check(&job->infer, &job->problem);
        if (!job->failed)
            bag_infer_finish(&job->infer);
        end_job(task, job, true);
    }
}

/* Returns the number of ranges that are worth their overhead now; 1: the job is not split. */
static unsigned count_splits(const struct bag_task *task, const struct bag_job *job)
{
    uint64_t count = bag_infer_pool_cost_ns(&job->infer) / BAG_MIN_SPLIT_NS;
    uint64_t most = 1 + (uint64_t)bag_workers_idle(task->engine->workers);
    if (most > BAG_ENGINE_MAX_SPLITS)
        most = BAG_ENGINE_MAX_SPLITS;
    return (unsigned)(count < 1 ? 1 : count < most ? count : most);
}

/* Splits a prepared job, hands all ranges but the first to other workers, and runs the first. The
 * caller must not use the task afterwards. */
static void run_splits(struct bag_task *task, struct bag_job *job, unsigned count)
{
    struct bag_split splits[BAG_ENGINE_MAX_SPLITS];
    const struct bag_plan *plan = &job->infer.plan;
    count = bag_split_ops(plan->ops, plan->num_ops, count, splits);
    job->splits = count > 1 ? count : 0;
    task->split_job = job;
    atomic_store_explicit(&task->splits_left, count, memory_order_relaxed);
    for (unsigned i = 0; i < count; i++)
        task->splits[i] = (struct bag_task_split){{.run = run_split}, task, splits[i]};
    add_cpu_time(task, task->started_ns);
    for (unsigned i = 1; i < count; i++)
        bag_workers_push(task->engine->workers, &task->splits[i].work, BAG_WORK_URGENT);
    run_split(&task->splits[0].work);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Splits and runs the last job of a batch if splitting it is worthwhile. Returns false if the job
 * was not run. */
static bool run_split_job(struct bag_task *task, struct bag_job *job)
{
    unsigned count = TAILQ_NEXT(job, link) || job->run ? 1 : count_splits(task, job);
    if (count == 1)
        return false;
    job->failed = !bag_infer_prepare(&job->infer, &task->engine->buffers, &job->problem);
    if (job->failed)
        end_job(task, job, true);
    else
        run_splits(task, job, count);
    return true;
}

void bag_task_run(struct bag_work *work)
{
    struct bag_task *task = (void *)((char *)work - offsetof(struct bag_task, work));
    task->num_pooled = 0;
    atomic_store_explicit(&task->cpu_ns, 0, memory_order_relaxed);
    task->started_ns = cpu_now_ns();
    const struct bag_model *model = TAILQ_FIRST(&task->jobs)->infer.input.model;
    bag_model_read(model);
    /* Run the jobs in groups of at most `maximum`. All jobs of a group are decoded before the first
     * of them is pooled. */
    size_t maximum = model->projects || model->mapped ? BAG_INFER_TOGETHER : 1;
    const struct bag_job *first = TAILQ_FIRST(&task->jobs);
    bool projects = first->infer.input.model->projects && !first->run;
    struct bag_job *jobs[BAG_INFER_TOGETHER];
    size_t count = 0;
    for (struct bag_job *job = TAILQ_FIRST(&task->jobs), *next; job; job = next) {
        next = TAILQ_NEXT(job, link);
        if (!decode_job(task, job))
            end_job(task, job, !next && count == 0);
        else if (count > 0 || !run_split_job(task, job))
            jobs[count++] = job;
        if (count == maximum || (!next && count)) {
            if (projects) {
                /* Run decoded jobs for a model with a projection together. */
                bool is_last = !next;
                struct bag_infer *infers[BAG_INFER_TOGETHER] = {NULL};
                struct bag_problem *problems[BAG_INFER_TOGETHER] = {NULL};
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
            } else {
                /* Run jobs one by one. They are decoded, and their mapped rows are prefetched. */
                bool is_last = !next;
                for (size_t i = 0; i < count; i++) {
                    jobs[i]->failed = jobs[i]->run
                                          ? !jobs[i]->run(jobs[i])
                                          : !bag_infer_run(&jobs[i]->infer, &task->engine->buffers,
                                                           &jobs[i]->problem);
                    end_job(task, jobs[i], is_last && i + 1 == count);
                }
            }
            count = 0;
        }
    }
}
