/* Jobs that wait for a worker, in turn by who sent them.
 *
 * Jobs of one client and model are a flow, first come, first served. The next job is that of the
 * flow which had the least work so far (fair queueing): a client whose requests are large or many
 * waits for its own. Flows share a fixed number of places by hash; two that meet share their turns.
 *
 * Belongs to one loop's thread. */
#ifndef BAG_QUEUE_H
#define BAG_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BAG_QUEUE_FLOWS 64

struct bag_job;
struct bag_model;

struct bag_flow {
    struct bag_job *first, **last;
    size_t count;
    uint64_t cost_ns;   /* of its jobs, as estimated */
    uint64_t served_ns; /* work that was taken from it: the least has the next turn */
};

struct bag_queue {
    struct bag_flow flows[BAG_QUEUE_FLOWS];
    size_t num_flows;    /* that have jobs */
    size_t count, bytes; /* of all jobs */
    uint64_t cost_ns;
    uint64_t served_ns; /* of the flow that had the last turn; one that begins again starts here */
};

/* Initialises an empty queue, which must not move. */
void bag_queue_init(struct bag_queue *queue);

/* Adds a job whose flow, cost and bytes are set. */
void bag_queue_add(struct bag_queue *queue, struct bag_job *job);

/* Takes the next job of the model (NULL: of any), of at most max_bags bags where it is planned;
 * NULL where there is none. */
struct bag_job *bag_queue_take(struct bag_queue *queue, const struct bag_model *model,
                               size_t max_bags);

/* Takes the first job of a flow. */
struct bag_job *bag_queue_take_first(struct bag_queue *queue, struct bag_flow *flow);

/* When the oldest of all jobs was queued; UINT64_MAX: there is none. */
uint64_t bag_queue_oldest_ns(const struct bag_queue *queue);

/* The flow of a job, and how many flows have jobs if it is added to its own. */
const struct bag_flow *bag_queue_flow(const struct bag_queue *queue, const struct bag_job *job,
                                      size_t *num_flows);

#endif
