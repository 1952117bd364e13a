/* The waiting jobs, scheduled by fair queueing between clients and models; see engine.h. */
#include "engine.h"

/* Returns the bucket of a number. Multiplicative hashing: only the highest bits of the product
 * depend on all bits of the number, and IPv4 clients of one network differ only in its highest
 * byte. */
static size_t bucket_of(uint64_t number, unsigned bits)
{
    return (size_t)((number * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - bits));
}

static size_t flow_index(uint64_t client)
{
    return bucket_of(client, BAG_QUEUE_FLOW_BITS);
}

static size_t queue_index(size_t model_slot)
{
    return bucket_of(model_slot, BAG_FLOW_QUEUE_BITS);
}

void bag_queue_init(struct bag_queue *queue)
{
    *queue = (struct bag_queue){.bytes = 0};
    TAILQ_INIT(&queue->reserved);
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        for (size_t j = 0; j < BAG_FLOW_QUEUES; j++)
            TAILQ_INIT(&queue->flows[i].queues[j].jobs);
    }
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* The three loads that a job counts in: the whole queue's, its flow's, and its model queue's. */
struct levels {
    struct bag_queue_load *loads[3];
};

static struct levels levels_of(struct bag_queue *queue, const struct bag_job *job)
{
    struct bag_flow *flow = &queue->flows[flow_index(job->client)];
    return (struct levels){
        {&queue->load, &flow->load, &flow->queues[queue_index(job->model_slot)].load}};
}

/* Counts a job as present, and its flow and model queue as active. */
static struct levels enter(struct bag_queue *queue, const struct bag_job *job)
{
    struct levels levels = levels_of(queue, job);
    queue->num_flows += levels.loads[1]->present == 0;
    queue->flows[flow_index(job->client)].num_queues += levels.loads[2]->present == 0;
    for (int i = 0; i < 3; i++)
        levels.loads[i]->present++;
    return levels;
}

static struct levels leave(struct bag_queue *queue, const struct bag_job *job)
{
    struct levels levels = levels_of(queue, job);
    for (int i = 0; i < 3; i++)
        levels.loads[i]->present--;
    queue->num_flows -= levels.loads[1]->present == 0;
    queue->flows[flow_index(job->client)].num_queues -= levels.loads[2]->present == 0;
    return levels;
}

void bag_queue_reserve(struct bag_queue *queue, struct bag_job *job)
{
    struct levels levels = enter(queue, job);
    for (int i = 0; i < 3; i++)
        levels.loads[i]->reserved_ns += job->cost_ns;
    TAILQ_INSERT_TAIL(&queue->reserved, job, link);
}

void bag_queue_cancel(struct bag_queue *queue, struct bag_job *job)
{
    struct levels levels = leave(queue, job);
    for (int i = 0; i < 3; i++)
        levels.loads[i]->reserved_ns -= job->cost_ns;
    TAILQ_REMOVE(&queue->reserved, job, link);
}

void bag_queue_begin(struct bag_queue *queue, struct bag_job *job)
{
    struct levels levels = enter(queue, job);
    for (int i = 0; i < 3; i++)
        levels.loads[i]->running_ns += job->cost_ns;
}

void bag_queue_end(struct bag_queue *queue, struct bag_job *job)
{
    struct levels levels = leave(queue, job);
    for (int i = 0; i < 3; i++)
        levels.loads[i]->running_ns -= job->cost_ns;
}

/* ---- scheduling ------------------------------------------------------------------------------ */

void bag_queue_add(struct bag_queue *queue, struct bag_job *job)
{
    struct bag_flow *flow = &queue->flows[flow_index(job->client)];
    struct bag_model_queue *model_queue = &flow->queues[queue_index(job->model_slot)];
    /* Move a flow or model queue that was idle up to the one that was served last. It gets no
     * credit for the time in which it had no jobs. */
    if (!flow->load.waiting && flow->served_ns < queue->served_ns)
        flow->served_ns = queue->served_ns;
    if (!model_queue->load.waiting && model_queue->served_ns < flow->queue_served_ns)
        model_queue->served_ns = flow->queue_served_ns;
    TAILQ_INSERT_TAIL(&model_queue->jobs, job, link);
    queue->bytes += job->bytes;
    struct levels levels = enter(queue, job);
    for (int i = 0; i < 3; i++) {
        levels.loads[i]->waiting++;
        levels.loads[i]->waiting_ns += job->cost_ns;
    }
}

/* A candidate for the next job, and its place in the queue. */
struct candidate {
    struct bag_flow *flow;
    struct bag_model_queue *model_queue;
    struct bag_job *job; /* NULL: there is none */
};

static struct bag_job *remove_job(struct bag_queue *queue, const struct candidate *candidate)
{
    struct bag_job *job = candidate->job;
    TAILQ_REMOVE(&candidate->model_queue->jobs, job, link);
    queue->bytes -= job->bytes;
    struct levels levels = leave(queue, job);
    for (int i = 0; i < 3; i++) {
        levels.loads[i]->waiting--;
        levels.loads[i]->waiting_ns -= job->cost_ns;
    }
    return job;
}

/* Returns true if the first job goes before the other: its flow or queue was served less, or as
 * much and the job is older. */
static bool goes_first(uint64_t served_ns, const struct bag_job *job, uint64_t other_served_ns,
                       const struct bag_job *other)
{
    return !other || served_ns < other_served_ns ||
           (served_ns == other_served_ns && job->queued_ns < other->queued_ns);
}

/* Returns the next job of one client: of the model queue that was served least. */
static struct candidate find_in_flow(struct bag_flow *flow, const struct bag_model *model)
{
    struct candidate next = {.flow = flow};
    for (size_t i = 0; flow->load.waiting && i < BAG_FLOW_QUEUES; i++) {
        struct bag_model_queue *model_queue = &flow->queues[i];
        /* Jobs for another model may precede it if both models share a bucket. */
        struct bag_job *job = TAILQ_FIRST(&model_queue->jobs);
        while (job && model && job->infer.input.model != model)
            job = TAILQ_NEXT(job, link);
        if (job && goes_first(model_queue->served_ns, job,
                              next.job ? next.model_queue->served_ns : 0, next.job)) {
            next.model_queue = model_queue;
            next.job = job;
        }
    }
    return next;
}

struct bag_job *bag_queue_take(struct bag_queue *queue, const struct bag_model *model)
{
    struct candidate next = {.job = NULL};
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        struct candidate found = find_in_flow(&queue->flows[i], model);
        if (found.job && goes_first(found.flow->served_ns, found.job,
                                    next.job ? next.flow->served_ns : 0, next.job))
            next = found;
    }
    if (!next.job)
        return NULL;
    uint64_t cost_ns = next.job->cost_ns + 1;
    queue->served_ns = next.flow->served_ns;
    next.flow->served_ns += cost_ns;
    next.flow->queue_served_ns = next.model_queue->served_ns;
    next.model_queue->served_ns += cost_ns;
    return remove_job(queue, &next);
}

struct bag_job *bag_queue_take_if(struct bag_queue *queue,
                                  bool (*is_wanted)(void *context, struct bag_job *job),
                                  void *context)
{
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        struct bag_flow *flow = &queue->flows[i];
        for (size_t j = 0; flow->load.waiting && j < BAG_FLOW_QUEUES; j++) {
            struct bag_model_queue *model_queue = &flow->queues[j];
            struct bag_job *first = TAILQ_FIRST(&model_queue->jobs);
            if (first && is_wanted(context, first))
                return remove_job(queue, &(struct candidate){flow, model_queue, first});
        }
    }
    return NULL;
}

struct bag_queue_share bag_queue_share(const struct bag_queue *queue, uint64_t client,
                                       size_t model_slot)
{
    const struct bag_flow *flow = &queue->flows[flow_index(client)];
    const struct bag_model_queue *model_queue = &flow->queues[queue_index(model_slot)];
    return (struct bag_queue_share){.flow = flow,
                                    .model_queue = model_queue,
                                    .num_flows = queue->num_flows + (flow->load.present == 0),
                                    .num_queues =
                                        flow->num_queues + (model_queue->load.present == 0)};
}
