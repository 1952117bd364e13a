/* What the engine lets in, and what it gives up; see engine.h. */
#include "engine.h"

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

/* A body that takes longer than the target waits for its client, unless working at it takes long,
 * too: of an enormous one, longer than so many times that. */
#define SLOW_TIMES 4

/* A job that took less than this part of the latency target tells nothing of how long a queue
 * takes. */
#define TELLING_PARTS 8

/* ---- scales ---------------------------------------------------------------------------------- */

uint64_t bag_engine_scaled_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return (uint64_t)((double)cost_ns * engine->cost_scale);
}

uint64_t bag_engine_shared_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return bag_engine_scaled_ns(engine, cost_ns) / engine->workers->count;
}

/* How long a job that comes now is likely to wait behind work of that estimate. */
static uint64_t expected_wait_ns(const struct bag_engine *engine, uint64_t cost_ns)
{
    return (uint64_t)((double)cost_ns * engine->wait_scale);
}

/* Lets a scale follow what was measured, by a part of the difference. One measurement may be far
 * off: it counts as twice the scale at most. */
static double follow(double scale, double measured, double parts, double least, double most)
{
    double ratio = measured / scale;
    scale *= 1 + ((ratio > 2 ? 2 : ratio) - 1) / parts;
    return scale < least ? least : scale > most ? most : scale;
}

void bag_engine_learn_cost(struct bag_engine *engine, const struct bag_task *task)
{
    double took = (double)task->cpu_ns / ((double)task->cost_ns + 1);
    engine->cost_scale = follow(engine->cost_scale, took, 8, MIN_COST_SCALE, MAX_COST_SCALE);
}

static void learn_wait(struct bag_engine *engine, const struct bag_job *job, uint64_t took_ns)
{
    double measured = (double)took_ns / ((double)job->ahead_ns + 1);
    engine->wait_scale = follow(engine->wait_scale, measured, 16, MIN_WAIT_SCALE, MAX_WAIT_SCALE);
}

/* Whether the job took longer than the scale lets expect. */
static bool was_slow(const struct bag_engine *engine, const struct bag_job *job, uint64_t took_ns)
{
    return (double)took_ns >= ((double)job->ahead_ns + 1) * engine->wait_scale;
}

/* What a short time beside the target has too much of is not the queue's: it only lowers the scale.
 */
void bag_engine_learn_wait(struct bag_engine *engine, const struct bag_job *job)
{
    uint64_t target_ns = engine->limits.latency_target_ns;
    uint64_t took_ns = engine->clock() - job->queued_ns;
    if (target_ns && (took_ns >= target_ns / TELLING_PARTS || !was_slow(engine, job, took_ns)))
        learn_wait(engine, job, took_ns);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* What is used of a limit: by all, by the job's client, and by what he asks of its model. */
struct usage {
    uint64_t all, client, model;
};

/* Whether a client uses less than an equal part of the limit, or what he asks of the model less
 * than an equal part of his, until all together use twice as much. */
static bool is_below_share(uint64_t limit, struct usage usage, const struct bag_queue_share *share)
{
    uint64_t part = limit / share->num_flows;
    return usage.all / 2 < limit && (usage.client < part || usage.model < part / share->num_lines);
}

static bool is_below(uint64_t limit, struct usage usage, const struct bag_queue_share *share)
{
    return usage.all < limit || is_below_share(limit, usage, share);
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

static bool reject_wait(uint64_t wait_ns, const struct bag_engine *engine,
                        struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                           "the queue is full: a request would wait %llu ms; %d %% of the target "
                           "(latency_target_ms), which is %llu ms, are allowed",
                           (unsigned long long)wait_ns / 1000000, ADMITTED_PERCENT,
                           (unsigned long long)engine->limits.latency_target_ns / 1000000);
}

/* When what the loop handles now was there at the latest. */
static uint64_t arrived_ns(const struct bag_engine *engine)
{
    return engine->polled_ns ? engine->polled_ns : engine->clock();
}

/* How long a job may have to wait; 0: any time. */
static uint64_t admitted_ns(const struct bag_engine *engine)
{
    return engine->limits.latency_target_ns / 100 * ADMITTED_PERCENT;
}

/* How long work that is still to be begun lets expect to wait. */
static uint64_t pending_wait_ns(const struct bag_engine *engine, const struct bag_queue_load *load)
{
    return expected_wait_ns(engine, load->announced_ns + load->waiting_ns);
}

static uint64_t whole_wait_ns(const struct bag_engine *engine, const struct bag_queue_load *load)
{
    return pending_wait_ns(engine, load) + expected_wait_ns(engine, load->running_ns);
}

/* What all may expect to wait, where no client counts for more than the limit: one enormous request
 * does not make up what others may ask. */
static uint64_t bounded_wait_ns(const struct bag_engine *engine, uint64_t limit_ns)
{
    uint64_t sum_ns = 0;
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        uint64_t wait_ns = pending_wait_ns(engine, &engine->queue.flows[i].load);
        sum_ns += wait_ns < limit_ns ? wait_ns : limit_ns;
    }
    return sum_ns;
}

/* Whether the job's client, or what he asks of its model, has less than an equal part of the time
 * that all may wait. What others have running does not count against him. A job that alone takes
 * all of that time is nobody's share. */
static bool has_share(const struct bag_engine *engine, const struct bag_job *job, uint64_t limit_ns,
                      const struct bag_queue_share *share)
{
    const struct usage usage = {bounded_wait_ns(engine, limit_ns),
                                whole_wait_ns(engine, &share->flow->load),
                                whole_wait_ns(engine, &share->line->load)};
    return (share->num_flows > 1 || share->num_lines > 1) &&
           expected_wait_ns(engine, job->cost_ns) < limit_ns &&
           is_below_share(limit_ns, usage, share);
}

/* Whether a job would wait no longer than the latency target allows, or is its client's share: it
 * has waited for the loop already, what runs comes first in any case, and the rest is for what is
 * to come. */
static bool is_soon_enough(const struct bag_engine *engine, struct bag_job *job,
                           const struct bag_queue_share *share)
{
    uint64_t limit_ns = admitted_ns(engine);
    if (limit_ns == 0)
        return true;
    uint64_t wait_ns = job->unseen_ns + engine->clock() - arrived_ns(engine) +
                       whole_wait_ns(engine, &engine->queue.load);
    return wait_ns < limit_ns || has_share(engine, job, limit_ns, share) ||
           reject_wait(wait_ns, engine, &job->problem);
}

void bag_engine_withdraw(struct bag_engine *engine, struct bag_job *job)
{
    if (job->announced)
        bag_queue_withdraw(&engine->queue, job);
    job->announced = false;
}

/* Whether the body keeps nobody else out any more. */
static bool is_slow(const struct bag_engine *engine, const struct bag_job *job, uint64_t now_ns)
{
    uint64_t time_ns = engine->limits.latency_target_ns;
    uint64_t work_ns = SLOW_TIMES * expected_wait_ns(engine, job->cost_ns);
    return now_ns - job->queued_ns > (work_ns > time_ns ? work_ns : time_ns);
}

/* The oldest ones that are: behind an enormous body that may take long others are not looked at. */
static void forget_slow(struct bag_engine *engine)
{
    uint64_t now_ns = engine->clock();
    struct bag_job *job;
    while ((job = engine->queue.oldest) && is_slow(engine, job, now_ns))
        bag_engine_withdraw(engine, job);
}

bool bag_engine_is_full(struct bag_engine *engine)
{
    uint64_t limit_ns = admitted_ns(engine);
    forget_slow(engine);
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
    forget_slow(engine);
    const struct bag_engine_limits *limits = &engine->limits;
    const struct bag_workers *workers = engine->workers;
    const struct bag_queue_share share =
        bag_queue_share(&engine->queue, job->client, job->model_slot);
    const struct bag_queue_load *flow = &share.flow->load, *line = &share.line->load;
    /* A client counts as if he had as much with each engine, so that he leaves room for others. */
    const size_t parts = workers->num_engines;
    const struct usage count = {atomic_load(&workers->queued), flow->waiting * parts,
                                line->waiting * parts};
    const struct usage work_ns = {bag_engine_shared_ns(engine, atomic_load(&workers->queued_ns)),
                                  bag_engine_shared_ns(engine, flow->waiting_ns) * parts,
                                  bag_engine_shared_ns(engine, line->waiting_ns) * parts};
    if (count.all == 0 && engine->queue.load.announced_ns == 0)
        return true;
    if (!is_below(limits->max_queue_size, count, &share))
        return reject_count(engine, count.all, &job->problem);
    if (!is_below(limits->max_queue_work_ns, work_ns, &share))
        return reject_work(engine, work_ns.all, &job->problem);
    return is_soon_enough(engine, job, &share);
}

/* ---- announced jobs -------------------------------------------------------------------------- */

void bag_engine_stamp(const struct bag_engine *engine, struct bag_job *job)
{
    const struct bag_queue_load *load = &engine->queue.load;
    job->queued_ns = arrived_ns(engine);
    job->ahead_ns = load->announced_ns + load->waiting_ns + load->running_ns + job->cost_ns;
}

bool bag_engine_announce(struct bag_engine *engine, struct bag_job *job)
{
    if (!bag_engine_has_room(engine, job))
        return false;
    if (engine->limits.latency_target_ns == 0)
        return true;
    bag_engine_stamp(engine, job);
    job->announced = true;
    bag_queue_announce(&engine->queue, job);
    return true;
}

/* ---- jobs that have waited too long ---------------------------------------------------------- */

/* Whether the target has no time for it any more. A client who has less than his share waits for
 * others, and has his answer late rather than not at all. */
static bool is_too_late(const struct bag_engine *engine, const struct bag_job *job,
                        uint64_t waited_ns)
{
    uint64_t target_ns = engine->limits.latency_target_ns;
    const struct bag_queue_share share =
        bag_queue_share(&engine->queue, job->client, job->model_slot);
    return target_ns && waited_ns > target_ns / 100 * WAITED_PERCENT &&
           !has_share(engine, job, admitted_ns(engine), &share);
}

bool bag_engine_is_overdue(struct bag_engine *engine, struct bag_job *job, uint64_t now_ns)
{
    uint64_t waited_ns = now_ns - job->queued_ns;
    if (bag_job_is_late(engine, job, now_ns))
        return !bag_job_reject_late(job);
    if (!is_too_late(engine, job, waited_ns))
        return false;
    if (was_slow(engine, job, waited_ns))
        learn_wait(engine, job, waited_ns);
    bag_problem_set(&job->problem, BAG_ERROR_QUEUE_FULL,
                    "the request has waited %llu ms; the target (latency_target_ms) is %llu ms",
                    (unsigned long long)waited_ns / 1000000,
                    (unsigned long long)engine->limits.latency_target_ns / 1000000);
    return true;
}
