/* Jobs that wait, in turn by who sent them and what they ask; see engine.h. */
#include "engine.h"

/* Multiplicative hashing: only the product's highest bits depend on all of the number's. IPv4
 * clients of one network differ in its highest byte alone. */
static size_t place_of(uint64_t number, unsigned bits)
{
    return (size_t)((number * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - bits));
}

static size_t flow_place(uint64_t client)
{
    return place_of(client, BAG_QUEUE_FLOW_BITS);
}

static size_t line_place(size_t model_slot)
{
    return place_of(model_slot, BAG_FLOW_LINE_BITS);
}

void bag_queue_init(struct bag_queue *queue)
{
    *queue = (struct bag_queue){.bytes = 0};
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        for (size_t j = 0; j < BAG_FLOW_LINES; j++)
            queue->flows[i].lines[j].last = &queue->flows[i].lines[j].first;
    }
}

/* ---- what is where --------------------------------------------------------------------------- */

/* What a job counts in: all, its client's, and his of its model. */
struct levels {
    struct bag_queue_load *loads[3];
};

static struct levels levels_of(struct bag_queue *queue, const struct bag_job *job)
{
    struct bag_flow *flow = &queue->flows[flow_place(job->client)];
    return (struct levels){
        {&queue->load, &flow->load, &flow->lines[line_place(job->model_slot)].load}};
}

static struct levels enter(struct bag_queue *queue, const struct bag_job *job)
{
    struct levels levels = levels_of(queue, job);
    queue->num_flows += levels.loads[1]->present == 0;
    queue->flows[flow_place(job->client)].num_lines += levels.loads[2]->present == 0;
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
    queue->flows[flow_place(job->client)].num_lines -= levels.loads[2]->present == 0;
    return levels;
}

void bag_queue_announce(struct bag_queue *queue, struct bag_job *job)
{
    struct levels levels = enter(queue, job);
    for (int i = 0; i < 3; i++)
        levels.loads[i]->announced_ns += job->cost_ns;
    job->newer = NULL;
    job->older = queue->newest;
    *(job->older ? &job->older->newer : &queue->oldest) = job;
    queue->newest = job;
}

void bag_queue_withdraw(struct bag_queue *queue, struct bag_job *job)
{
    struct levels levels = leave(queue, job);
    for (int i = 0; i < 3; i++)
        levels.loads[i]->announced_ns -= job->cost_ns;
    *(job->older ? &job->older->newer : &queue->oldest) = job->newer;
    *(job->newer ? &job->newer->older : &queue->newest) = job->older;
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

/* ---- turns ----------------------------------------------------------------------------------- */

/* Those that begin to wait again make up for nothing that they did not ask meanwhile. */
static void begin_waiting(struct bag_queue *queue, struct bag_flow *flow, struct bag_line *line)
{
    if (!flow->load.waiting && flow->served_ns < queue->served_ns)
        flow->served_ns = queue->served_ns;
    if (!line->load.waiting && line->served_ns < flow->line_served_ns)
        line->served_ns = flow->line_served_ns;
}

void bag_queue_add(struct bag_queue *queue, struct bag_job *job)
{
    struct bag_flow *flow = &queue->flows[flow_place(job->client)];
    struct bag_line *line = &flow->lines[line_place(job->model_slot)];
    begin_waiting(queue, flow, line);
    job->next = NULL;
    *line->last = job;
    line->last = &job->next;
    queue->bytes += job->bytes;
    struct levels levels = enter(queue, job);
    for (int i = 0; i < 3; i++) {
        levels.loads[i]->waiting++;
        levels.loads[i]->waiting_ns += job->cost_ns;
    }
}

/* Where a job stands that may be taken. */
struct found {
    struct bag_flow *flow;
    struct bag_line *line;
    struct bag_job **link; /* NULL: there is none */
};

static struct bag_job *unlink_job(struct bag_queue *queue, const struct found *found)
{
    struct bag_line *line = found->line;
    struct bag_job *job = *found->link;
    *found->link = job->next;
    if (line->last == &job->next)
        line->last = found->link;
    job->next = NULL;
    queue->bytes -= job->bytes;
    struct levels levels = leave(queue, job);
    for (int i = 0; i < 3; i++) {
        levels.loads[i]->waiting--;
        levels.loads[i]->waiting_ns -= job->cost_ns;
    }
    return job;
}

/* Where the line's first job of the model stands: behind others where two have met. NULL where
 * there is none. */
static struct bag_job **find_job(struct bag_line *line, const struct bag_model *model)
{
    struct bag_job **link = &line->first;
    while (*link && model && (*link)->infer.input.model != model)
        link = &(*link)->next;
    return *link ? link : NULL;
}

/* Whether the one, which had so much, has its turn before the other; the older job where both had
 * as much. */
static bool goes_first(uint64_t served_ns, struct bag_job *const *link, uint64_t other_served_ns,
                       struct bag_job *const *other)
{
    return !other || served_ns < other_served_ns ||
           (served_ns == other_served_ns && (*link)->queued_ns < (*other)->queued_ns);
}

/* The next job of one client: of the line that had least. */
static struct found find_in_flow(struct bag_flow *flow, const struct bag_model *model)
{
    struct found next = {.flow = flow};
    for (size_t i = 0; flow->load.waiting && i < BAG_FLOW_LINES; i++) {
        struct bag_line *line = &flow->lines[i];
        struct bag_job **link = find_job(line, model);
        if (link &&
            goes_first(line->served_ns, link, next.line ? next.line->served_ns : 0, next.link)) {
            next.line = line;
            next.link = link;
        }
    }
    return next;
}

struct bag_job *bag_queue_take(struct bag_queue *queue, const struct bag_model *model)
{
    struct found next = {.link = NULL};
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        struct found found = find_in_flow(&queue->flows[i], model);
        if (found.link && goes_first(found.flow->served_ns, found.link,
                                     next.flow ? next.flow->served_ns : 0, next.link))
            next = found;
    }
    if (!next.link)
        return NULL;
    uint64_t cost_ns = (*next.link)->cost_ns + 1;
    queue->served_ns = next.flow->served_ns;
    next.flow->served_ns += cost_ns;
    next.flow->line_served_ns = next.line->served_ns;
    next.line->served_ns += cost_ns;
    return unlink_job(queue, &next);
}

struct bag_job *bag_queue_take_if(struct bag_queue *queue,
                                  bool (*is_wanted)(void *context, struct bag_job *job),
                                  void *context)
{
    for (size_t i = 0; i < BAG_QUEUE_FLOWS; i++) {
        struct bag_flow *flow = &queue->flows[i];
        for (size_t j = 0; flow->load.waiting && j < BAG_FLOW_LINES; j++) {
            struct bag_line *line = &flow->lines[j];
            if (line->first && is_wanted(context, line->first))
                return unlink_job(queue, &(struct found){flow, line, &line->first});
        }
    }
    return NULL;
}

struct bag_queue_share bag_queue_share(const struct bag_queue *queue, uint64_t client,
                                       size_t model_slot)
{
    const struct bag_flow *flow = &queue->flows[flow_place(client)];
    const struct bag_line *line = &flow->lines[line_place(model_slot)];
    return (struct bag_queue_share){.flow = flow,
                                    .line = line,
                                    .num_flows = queue->num_flows + (flow->load.present == 0),
                                    .num_lines = flow->num_lines + (line->load.present == 0)};
}
