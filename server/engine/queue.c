/* Jobs that wait, in turn by who sent them; see engine.h. */
#include "engine.h"

/* Multiplicative hashing: only the product's highest bits depend on all of the flow's. IPv4 clients
 * of one network differ in its highest byte alone. */
static size_t place_of(uint64_t flow)
{
    return (size_t)((flow * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - BAG_QUEUE_FLOW_BITS));
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

/* Takes the job that *link points to out of its flow. */
static struct bag_job *unlink_job(struct bag_queue *queue, struct bag_flow *flow,
                                  struct bag_job **link)
{
    struct bag_job *job = *link;
    *link = job->next;
    if (flow->last == &job->next)
        flow->last = link;
    job->next = NULL;
    queue->num_flows -= flow->first == NULL;
    flow->count--;
    flow->cost_ns -= job->cost_ns;
    queue->count--;
    queue->bytes -= job->bytes;
    queue->cost_ns -= job->cost_ns;
    return job;
}

struct bag_job *bag_queue_take_first(struct bag_queue *queue, struct bag_flow *flow)
{
    return unlink_job(queue, flow, &flow->first);
}

/* Where the flow's first job of the model stands: behind others where two flows have met. NULL
 * where there is none. */
static struct bag_job **find_job(struct bag_flow *flow, const struct bag_model *model)
{
    struct bag_job **link = &flow->first;
    while (*link && model && (*link)->infer.input.model != model)
        link = &(*link)->next;
    return *link ? link : NULL;
}

struct bag_job *bag_queue_take(struct bag_queue *queue, const struct bag_model *model)
{
    struct bag_flow *next = NULL;
    struct bag_job **next_link = NULL;
    for (struct bag_flow *flow = queue->flows; flow < queue->flows + BAG_QUEUE_FLOWS; flow++) {
        struct bag_job **link = find_job(flow, model);
        if (!link)
            continue;
        bool older = next && flow->served_ns == next->served_ns &&
                     (*link)->queued_ns < (*next_link)->queued_ns;
        if (!next || older || flow->served_ns < next->served_ns) {
            next = flow;
            next_link = link;
        }
    }
    if (!next)
        return NULL;
    queue->served_ns = next->served_ns;
    next->served_ns += (*next_link)->cost_ns + 1;
    return unlink_job(queue, next, next_link);
}

const struct bag_flow *bag_queue_flow(const struct bag_queue *queue, const struct bag_job *job,
                                      size_t *num_flows)
{
    const struct bag_flow *flow = &queue->flows[place_of(job->flow)];
    *num_flows = queue->num_flows + (flow->first == NULL);
    return flow;
}
