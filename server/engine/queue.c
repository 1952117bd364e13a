/* Jobs that wait, in turn by who sent them; see queue.h. */
#include "engine.h"

/* Any mixing will do: flows that meet share their turns. */
static size_t place_of(uint64_t flow)
{
    return (size_t)((flow * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % BAG_QUEUE_FLOWS;
}

void bag_queue_init(struct bag_queue *queue)
{
    *queue = (struct bag_queue){.count = 0};
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++)
        queue->flows[i].last = &queue->flows[i].first;
}

void bag_queue_add(struct bag_queue *queue, struct bag_job *job)
{
    struct bag_flow *flow = &queue->flows[place_of(job->flow)];
    if (!flow->first) {
        queue->num_flows++;
        if (flow->served_ns < queue->served_ns)
            flow->served_ns = queue->served_ns;
    }
    job->next = NULL;
    *flow->last = job;
    flow->last = &job->next;
    flow->count++;
    flow->cost_ns += job->cost_ns;
    queue->count++;
    queue->bytes += job->bytes;
    queue->cost_ns += job->cost_ns;
}

struct bag_job *bag_queue_take_first(struct bag_queue *queue, struct bag_flow *flow)
{
    struct bag_job *job = flow->first;
    flow->first = job->next;
    job->next = NULL;
    if (!flow->first) {
        flow->last = &flow->first;
        queue->num_flows--;
    }
    flow->count--;
    flow->cost_ns -= job->cost_ns;
    queue->count--;
    queue->bytes -= job->bytes;
    queue->cost_ns -= job->cost_ns;
    return job;
}

static bool is_eligible(const struct bag_job *job, const struct bag_model *model, size_t max_bags)
{
    return job && (!model || job->infer.input.model == model) &&
           (!job->planned || job->infer.plan.work.bags <= max_bags);
}

struct bag_job *bag_queue_take(struct bag_queue *queue, const struct bag_model *model,
                               size_t max_bags)
{
    struct bag_flow *next = NULL;
    for (struct bag_flow *flow = queue->flows; flow < queue->flows + BAG_QUEUE_FLOWS; flow++) {
        if (!is_eligible(flow->first, model, max_bags))
            continue;
        bool older = next && flow->served_ns == next->served_ns &&
                     flow->first->queued_ns < next->first->queued_ns;
        if (!next || older || flow->served_ns < next->served_ns)
            next = flow;
    }
    if (!next)
        return NULL;
    queue->served_ns = next->served_ns;
    next->served_ns += next->first->cost_ns + 1;
    return bag_queue_take_first(queue, next);
}

uint64_t bag_queue_oldest_ns(const struct bag_queue *queue)
{
    uint64_t oldest_ns = UINT64_MAX;
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        const struct bag_job *job = queue->flows[i].first;
        if (job && job->queued_ns < oldest_ns)
            oldest_ns = job->queued_ns;
    }
    return oldest_ns;
}

const struct bag_flow *bag_queue_flow(const struct bag_queue *queue, const struct bag_job *job,
                                      size_t *num_flows)
{
    const struct bag_flow *flow = &queue->flows[place_of(job->flow)];
    *num_flows = queue->num_flows + (flow->first == NULL);
    return flow;
}
