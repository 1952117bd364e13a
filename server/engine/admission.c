/* Admission control: which jobs are admitted, and which waiting jobs are dropped; see engine.h. */
#include "engine.h"

/* Bounds of cost_scale. */
#define MIN_COST_SCALE (1.0 / 16)
#define MAX_COST_SCALE 16.0

/* Bounds of wait_scale. Many workers share the work ahead, and other processes delay it. */
#define MIN_WAIT_SCALE (1.0 / 1024)
#define MAX_WAIT_SCALE 64.0

/* Percentages of the latency target. A job is admitted if it is expected to wait less than the
 * first, which leaves time for its own work and for the noise of the machine. A job that has waited
 * longer than the second is dropped. */
#define ADMITTED_PERCENT 65
#define WAITED_PERCENT   90

/* A reservation is dropped if the body takes longer than the latency target and longer than this
 * multiple of its expected work. Its client is slow, and must not keep others out. */
#define SLOW_TIMES 4

/* A job that took less than the latency target divided by this says little about queueing. */
#define INFORMATIVE_PARTS 8

/* ---- scales ---------------------------------------------------------------------------------- */

uint64_t bag_engine_scaled_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return (uint64_t)((double)cost_ns * engine->cost_scale);
}

uint64_t bag_engine_shared_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return bag_engine_scaled_ns(engine, cost_ns) / engine->workers->count;
}

/* Returns how long a job that arrives now is likely to wait behind work of that estimate. */
static uint64_t expected_wait_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return (uint64_t)((double)cost_ns * engine->wait_scale);
}

/* Returns the scale moved towards a measured value by 1 / parts of the difference. A single
 * measurement may be far off, so it counts as at most twice the scale. */
static double follow(double scale, double measured, double parts, double minimum, double maximum)
{
    double ratio = measured / scale;
    scale *= 1 + ((ratio > 2 ? 2 : ratio) - 1) / parts;
    return scale < minimum ? minimum : scale > maximum ? maximum : scale;
}

void bag_engine_update_cost_scale(struct bag_engine *engine, const struct bag_task *task)
{
    double measured = (double)task->cpu_ns / ((double)task->cost_ns + 1);
    engine->cost_scale = follow(engine->cost_scale, measured, 8, MIN_COST_SCALE, MAX_COST_SCALE);
}

/* Updates wait_scale from a job that took this long, or has waited this long so far. */
static void update_wait_scale(struct bag_engine *engine, const struct bag_job *job,
                              uint64_t took_ns)
{
    double measured = (double)took_ns / ((double)job->ahead_ns + 1);
    engine->wait_scale = follow(engine->wait_scale, measured, 16, MIN_WAIT_SCALE, MAX_WAIT_SCALE);
}

/* Returns true if the job took longer than wait_scale predicts. */
static bool was_slow(const struct bag_engine *engine, const struct bag_job *job, uint64_t took_ns)
{
    return (double)took_ns >= ((double)job->ahead_ns + 1) * engine->wait_scale;
}

/* Short waits are mostly noise, not queueing. They may lower the scale but never raise it. */
void bag_engine_update_wait_scale(struct bag_engine *engine, const struct bag_job *job)
{
    uint64_t target_ns = engine->limits.latency_target_ns;
    uint64_t took_ns = engine->clock() - job->queued_ns;
    if (target_ns && (took_ns >= target_ns / INFORMATIVE_PARTS || !was_slow(engine, job, took_ns)))
        update_wait_scale(engine, job, took_ns);
}

/* ---- admission ------------------------------------------------------------------------------- */

/* The used part of a limit. */
struct usage {
    uint64_t all;    /* by all clients */
    uint64_t client; /* by the job's client */
    uint64_t model;  /* by the client's jobs for the job's model */
};

/* Returns true if the client uses less than an equal share of the limit, or its jobs for the model
 * less than an equal share of the client's. Returns false if all clients use twice the limit. */
static bool is_below_share(uint64_t limit, struct usage usage, const struct bag_queue_share *share)
{
    uint64_t part = limit / share->num_flows;
    return usage.all / 2 < limit && (usage.client < part || usage.model < part / share->num_queues);
}

/* Returns true if the limit is not reached, or if the client uses less than its share. */
static bool is_below(uint64_t limit, struct usage usage, const struct bag_queue_share *share)
{
    return usage.all < limit || is_below_share(limit, usage, share);
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

static bool reject_wait(uint64_t wait_ns, const struct bag_engine *engine,
                        struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                           "the queue is full: a request would wait %llu ms; %d %% of the target "
                           "(latency_target_ms), which is %llu ms, are allowed",
                           (unsigned long long)wait_ns / 1000000, ADMITTED_PERCENT,
                           (unsigned long long)engine->limits.latency_target_ns / 1000000);
}

/* Returns the latest time at which the requests that the loop handles now had arrived. */
static uint64_t arrived_ns(const struct bag_engine *engine)
{
    return engine->polled_ns ? engine->polled_ns : engine->clock();
}

/* Returns the longest expected wait with which a job is admitted; 0: no limit. */
static uint64_t admitted_ns(const struct bag_engine *engine)
{
    return engine->limits.latency_target_ns / 100 * ADMITTED_PERCENT;
}

/* Returns the expected wait behind reserved and waiting work. */
static uint64_t pending_wait_ns(const struct bag_engine *engine, const struct bag_queue_load *load)
{
    return expected_wait_ns(engine, load->reserved_ns + load->waiting_ns);
}

/* Returns the expected wait behind all work. */
static uint64_t whole_wait_ns(const struct bag_engine *engine, const struct bag_queue_load *load)
{
    return pending_wait_ns(engine, load) + expected_wait_ns(engine, load->running_ns);
}

/* Returns the expected wait behind all clients, each of which counts for at most the limit. One
 * enormous request therefore does not use up the share of other clients. */
static uint64_t bounded_wait_ns(const struct bag_engine *engine, uint64_t limit_ns)
{
    uint64_t sum_ns = 0;
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        uint64_t wait_ns = pending_wait_ns(engine, &engine->queue.flows[i].load);
        sum_ns += wait_ns < limit_ns ? wait_ns : limit_ns;
    }
    return sum_ns;
}

/* Returns true if the job's client, or its jobs for the model, would wait less than an equal share
 * of the limit. Running work of other clients does not count against the client. A job that alone
 * takes the whole limit is in no share. */
static bool has_share(const struct bag_engine *engine, const struct bag_job *job, uint64_t limit_ns,
                      const struct bag_queue_share *share)
{
    const struct usage usage = {bounded_wait_ns(engine, limit_ns),
                                whole_wait_ns(engine, &share->flow->load),
                                whole_wait_ns(engine, &share->model_queue->load)};
    return (share->num_flows > 1 || share->num_queues > 1) &&
           expected_wait_ns(engine, job->cost_ns) < limit_ns &&
           is_below_share(limit_ns, usage, share);
}

void bag_engine_cancel(struct bag_engine *engine, struct bag_job *job)
{
    if (job->is_reserved)
        bag_queue_cancel(&engine->queue, job);
    job->is_reserved = false;
}

/* Returns true if the body takes so long that its reservation must be dropped. */
static bool is_slow(const struct bag_engine *engine, const struct bag_job *job, uint64_t now_ns)
{
    uint64_t time_ns = engine->limits.latency_target_ns;
    uint64_t work_ns = SLOW_TIMES * expected_wait_ns(engine, job->cost_ns);
    return now_ns - job->queued_ns > (work_ns > time_ns ? work_ns : time_ns);
}

/* Drops the reservations of slow bodies, the oldest first. Stops at the first one that is not slow,
 * so reservations after an enormous body are dropped later than they could be. */
static void drop_slow(struct bag_engine *engine)
{
    uint64_t now_ns = engine->clock();
    struct bag_job *job;
    while ((job = TAILQ_FIRST(&engine->queue.reserved)) && is_slow(engine, job, now_ns))
        bag_engine_cancel(engine, job);
}

bool bag_engine_is_full(struct bag_engine *engine)
{
    uint64_t limit_ns = admitted_ns(engine);
    drop_slow(engine);
    return limit_ns && whole_wait_ns(engine, &engine->queue.load) >= limit_ns;
}

bool bag_engine_is_below_share(const struct bag_engine *engine, uint64_t client)
{
    uint64_t limit_ns = admitted_ns(engine);
    const struct bag_queue_share share = bag_queue_share(&engine->queue, client, 0);
    const struct usage usage = {bounded_wait_ns(engine, limit_ns),
                                whole_wait_ns(engine, &share.flow->load), UINT64_MAX};
    return share.num_flows > 1 && is_below_share(limit_ns, usage, &share);
}

bool bag_engine_has_room(struct bag_engine *engine, struct bag_job *job)
{
    drop_slow(engine);
    const struct bag_engine_limits *limits = &engine->limits;
    const struct bag_workers *workers = engine->workers;
    const struct bag_queue_share share =
        bag_queue_share(&engine->queue, job->client, job->model_slot);
    const struct bag_queue_load *flow = &share.flow->load, *model = &share.model_queue->load;
    /* A client counts as if it had as many jobs in each engine, so that it leaves room for others.
     */
    const size_t parts = workers->num_engines;
    const struct usage count = {atomic_load(&workers->queued), flow->waiting * parts,
                                model->waiting * parts};
    const struct usage work_ns = {bag_engine_shared_ns(engine, atomic_load(&workers->queued_ns)),
                                  bag_engine_shared_ns(engine, flow->waiting_ns) * parts,
                                  bag_engine_shared_ns(engine, model->waiting_ns) * parts};
    if (count.all == 0 && engine->queue.load.reserved_ns == 0)
        return true;
    if (!is_below(limits->max_queue_size, count, &share))
        return bag_problem_set(
            &job->problem, BAG_ERROR_QUEUE_FULL,
            "the queue is full: %llu requests wait; the limit (max_queue_size) is %zu",
            (unsigned long long)count.all, engine->limits.max_queue_size);
    if (!is_below(limits->max_queue_work_ns, work_ns, &share))
        return reject_work(engine, work_ns.all, &job->problem);
    /* The wait includes the time that the job has already spent in the socket and in the loop.
     * */
    uint64_t limit_ns = admitted_ns(engine);
    if (limit_ns == 0)
        return true;
    uint64_t wait_ns = job->socket_wait_ns + engine->clock() - arrived_ns(engine) +
                       whole_wait_ns(engine, &engine->queue.load);
    return wait_ns < limit_ns || has_share(engine, job, limit_ns, &share) ||
           reject_wait(wait_ns, engine, &job->problem);
}

/* ---- reservations ---------------------------------------------------------------------------- */

void bag_engine_stamp(const struct bag_engine *engine, struct bag_job *job)
{
    const struct bag_queue_load *load = &engine->queue.load;
    job->queued_ns = arrived_ns(engine);
    job->ahead_ns = load->reserved_ns + load->waiting_ns + load->running_ns + job->cost_ns;
}

bool bag_engine_reserve(struct bag_engine *engine, struct bag_job *job)
{
    if (!bag_engine_has_room(engine, job))
        return false;
    if (engine->limits.latency_target_ns == 0)
        return true;
    bag_engine_stamp(engine, job);
    job->is_reserved = true;
    bag_queue_reserve(&engine->queue, job);
    return true;
}

/* ---- jobs that have waited too long ---------------------------------------------------------- */

bool bag_engine_is_overdue(struct bag_engine *engine, struct bag_job *job, uint64_t now_ns)
{
    uint64_t waited_ns = now_ns - job->queued_ns;
    if (bag_job_is_late(engine, job, now_ns))
        return !bag_job_reject_late(job);
    /* A client below its share waits for others, and gets its reply late rather than not at all. */
    uint64_t target_ns = engine->limits.latency_target_ns;
    const struct bag_queue_share share =
        bag_queue_share(&engine->queue, job->client, job->model_slot);
    if (!(target_ns && waited_ns > target_ns / 100 * WAITED_PERCENT &&
          !has_share(engine, job, admitted_ns(engine), &share)))
        return false;
    if (was_slow(engine, job, waited_ns))
        update_wait_scale(engine, job, waited_ns);
    bag_problem_set(&job->problem, BAG_ERROR_QUEUE_FULL,
                    "the request has waited %llu ms; the target (latency_target_ms) is %llu ms",
                    (unsigned long long)waited_ns / 1000000,
                    (unsigned long long)engine->limits.latency_target_ns / 1000000);
    return true;
}
