/* The engine: queues expensive requests, groups them into batches and runs them on worker threads.
 *
 * Each loop has one engine, and all engines share one set of workers. A request that is too
 * expensive for the loop's thread becomes a job. During an iteration of the loop, requests submit
 * their jobs; at its end bag_engine_dispatch() forms batches (tasks) and hands them to the workers,
 * at most two for each worker. A batch starts with the job that is next by fair queueing (below)
 * and continues with jobs for the same model. There is no batching delay: jobs that arrive while
 * all workers are busy form the next batches.
 *
 * A worker executes a job completely. It decodes the body if the loop has not done so, allocates
 * memory, pools the rows and prints the reply. A job that takes long is split if other workers are
 * idle. It is split into ranges of bags, or of columns if one bag holds most of the ids. Splitting
 * does not change the bits of the result.
 *
 * Admission control. If a latency target is set, a job that would miss it is rejected on arrival. A
 * request with a large body is rejected when its head arrives. The expected wait is the estimated
 * work ahead of the job multiplied by wait_scale, the recently measured ratio of time to work. The
 * work ahead includes admitted requests whose bodies are still arriving. The expected wait also
 * includes the time that the request spent in the socket before the loop read it. The scale is
 * measured by wall clock, so it covers everything that slows down the workers. A job that was
 * admitted but still waits too long is dropped without being computed.
 *
 * A client that uses less than its fair share is admitted however much work other clients have
 * running. Early rejection measured better than dropping late jobs alone (CoDel), and better than
 * serving the newest job first, which rejects requests late.
 *
 * The limits of the queue apply to the sum over all engines. All functions and callbacks run on the
 * loop's thread unless their comment says otherwise. */
#pragma once

#include "proto/problem.h"
#include "server/infer/infer.h"
#include "server/infer/plan.h"
#include "server/metrics/metrics.h"
#include "server/system/handoff.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

/* ---- workers (workers.c) --------------------------------------------------------------------- */

/* The worker threads of the process and the list of work items that wait for them.
 *
 * One set of workers serves the engines of all loops. Items start in the order in which they were
 * pushed. The ranges of a split request are pushed to the front, because the request is already
 * running.
 *
 * A loop that does not get a processor delays all its clients, but a worker delays only the clients
 * whose jobs it runs. Workers may therefore have a higher nice value than loops. */

/* A work item; embedded in the caller's struct. A worker calls `run` once. `run` may free the item.
 */
struct bag_work {
    TAILQ_ENTRY(bag_work) link;
    void (*run)(struct bag_work *work);
    uint64_t client; /* METADATA only: identifies the client that requested it */
    uint64_t round;  /* METADATA only: scheduling round; set by bag_workers_push() */
};

/* The position of a new work item in the list:
 *
 *   URGENT    before all waiting items
 *   IN_ORDER  after all waiting items
 *   METADATA  in a separate list, for metadata responses. Workers run one of them at a time and
 *             alternate between them and other work. Clients take turns, one response each. A
 *             client that requests only metadata therefore delays the others by one response at
 *             most. */
enum bag_work_order { BAG_WORK_URGENT, BAG_WORK_IN_ORDER, BAG_WORK_METADATA };

TAILQ_HEAD(bag_work_list, bag_work);

struct bag_workers {
    unsigned count;
    uv_thread_t *threads;       /* owned */
    int nice;                   /* added to each worker's initial nice value */
    atomic_uint busy;           /* items that were pushed and have not finished */
    unsigned num_engines;       /* engines that share the workers */
    atomic_size_t queued;       /* jobs in the queues of all engines */
    _Atomic uint64_t queued_ns; /* estimated work of these jobs */
    uv_mutex_t lock;            /* guards the members below */
    uv_cond_t changed;
    struct bag_work_list waiting, metadata;
    bool makes_metadata, metadata_is_next;
    bool ending;
};

/* Starts `count` (>= 1) threads. The struct must not move until bag_workers_stop(). Returns false
 * and sets *problem if a thread cannot be started; bag_workers_stop() must not be called then. */
bool bag_workers_start(struct bag_workers *workers, unsigned count, int nice,
                       struct bag_problem *problem);

/* Runs all pushed items to completion and joins the threads. No other thread may push items any
 * more when this is called. */
void bag_workers_stop(struct bag_workers *workers);

/* Adds a work item. May be called on any thread. */
void bag_workers_push(struct bag_workers *workers, struct bag_work *work,
                      enum bag_work_order order);

/* Returns the number of idle workers. May be called on any thread; the number may be out of date
 * when it is returned. */
unsigned bag_workers_idle(struct bag_workers *workers);

/* ---- the queue ------------------------------------------------------------------------------- */

/* Waiting jobs are scheduled by fair queueing on two levels. All jobs of one client form a flow.
 * Within a flow, all jobs for one model form a queue, which is first in, first out. The next job
 * comes from the flow that has received the least work so far, and within it from the model's queue
 * that has received the least. A client that sends large requests, many requests, or requests to
 * many models therefore waits for its own work.
 *
 * Flows and their queues are hash buckets of fixed number. Two clients (or two models) with the
 * same hash share one bucket and its turns. */
#define BAG_QUEUE_FLOW_BITS 6
#define BAG_QUEUE_FLOWS     (1 << BAG_QUEUE_FLOW_BITS)
#define BAG_FLOW_QUEUE_BITS 3
#define BAG_FLOW_QUEUES     (1 << BAG_FLOW_QUEUE_BITS)

struct bag_job;
struct bag_model;
TAILQ_HEAD(bag_job_list, bag_job);

/* Number of jobs and estimated work, by state. */
struct bag_queue_load {
    size_t present; /* reserved, waiting or running jobs */
    size_t waiting; /* waiting jobs */
    uint64_t reserved_ns, waiting_ns, running_ns;
};

struct bag_model_queue {
    struct bag_job_list jobs; /* waiting */
    struct bag_queue_load load;
    uint64_t served_ns; /* work received so far; the queue with the least is served next */
};

struct bag_flow {
    struct bag_model_queue queues[BAG_FLOW_QUEUES];
    size_t num_queues; /* queues with at least one job */
    struct bag_queue_load load;
    uint64_t served_ns;       /* work received so far; the flow with the least is served next */
    uint64_t queue_served_ns; /* served_ns of the last queue served; a newly active one starts at
                                this value */
};

struct bag_queue {
    struct bag_flow flows[BAG_QUEUE_FLOWS];
    size_t num_flows; /* flows with at least one job */
    struct bag_queue_load load;
    size_t bytes;       /* memory of all waiting jobs */
    uint64_t served_ns; /* served_ns of the last flow served; a newly active flow starts at this
                           value */
    struct bag_job_list reserved; /* the oldest first */
};

/* Initialises an empty queue. The queue must not move afterwards. */
void bag_queue_init(struct bag_queue *queue);

/* Appends a job. The caller has set its client, model, cost and bytes. */
void bag_queue_add(struct bag_queue *queue, struct bag_job *job);

/* Add a job to, or remove it from, the reserved jobs (reserve, cancel) and the running jobs
 * (begin, end). The caller has set its client, model and cost. */
void bag_queue_reserve(struct bag_queue *queue, struct bag_job *job);
void bag_queue_cancel(struct bag_queue *queue, struct bag_job *job);
void bag_queue_begin(struct bag_queue *queue, struct bag_job *job);
void bag_queue_end(struct bag_queue *queue, struct bag_job *job);

/* Removes and returns the next job for `model`, or for any model if `model` is NULL. Returns NULL
 * if there is no such job. */
struct bag_job *bag_queue_take(struct bag_queue *queue, const struct bag_model *model);

/* Removes and returns a job that is first in its queue and for which `is_wanted` returns true.
 * Returns NULL if there is no such job. The job does not count as work that its flow has received.
 */
struct bag_job *bag_queue_take_if(struct bag_queue *queue,
                                  bool (*is_wanted)(void *context, struct bag_job *job),
                                  void *context);

/* The inputs of a fair-share decision for one client and model. */
struct bag_queue_share {
    const struct bag_flow *flow;
    const struct bag_model_queue *model_queue;
    size_t num_flows;  /* active flows, counting this one */
    size_t num_queues; /* active queues of the flow, counting this one */
};

/* Returns the flow and the queue of a client's jobs for a model. num_flows and num_queues are the
 * numbers of active flows and queues that there would be after one more job is added. */
struct bag_queue_share bag_queue_share(const struct bag_queue *queue, uint64_t client,
                                       size_t model_slot);

/* ---- the engine ------------------------------------------------------------------------------ */

/* The maximum number of ranges that one job is split into. */
#define BAG_ENGINE_MAX_SPLITS 16

struct bag_engine_limits {
    size_t max_queue_size;       /* waiting jobs */
    uint64_t max_queue_work_ns;  /* waiting work per worker */
    uint64_t default_timeout_us; /* maximum time in the queue; 0: unlimited */
    uint64_t latency_target_ns;  /* time in which most jobs should finish; 0: no target */
};

/* The work of one request. Embedded in a struct of the caller, which sets the first group of
 * members and keeps the job alive until `done` is called. */
struct bag_job {
    struct bag_infer infer;
    uint64_t client;         /* identifies the client; selects the flow */
    size_t model_slot;       /* identifies the model; selects the queue */
    uint64_t socket_wait_ns; /* time the request waited in the socket before the loop read it */
    bool planned;            /* infer is planned; otherwise the worker plans it */
    void (*done)(struct bag_job *job);
    /* Computes a part of the result on a worker instead of bag_infer_run(); the caller computes the
     * rest after `done`. NULL: the worker computes all of it. */
    bool (*run)(struct bag_job *job);
    bool (*is_connected)(struct bag_job *job); /* returns false if the client has disconnected */

    /* The outcome. */
    bool failed; /* `problem` holds the reason */
    struct bag_problem problem;
    unsigned splits; /* number of ranges the job was split into; 0: not split */

    /* Private to the engine. */
    TAILQ_ENTRY(bag_job) link; /* in the list of its state: reserved, waiting, or in a task */
    struct bag_handoff_item finished;
    bool is_reserved, running;
    uint64_t queued_ns; /* uv_hrtime() when its work was reserved or, without a reservation, when
                           its request arrived; 0: never submitted */
    uint64_t cost_ns;   /* estimated work */
    uint64_t ahead_ns;  /* estimated work ahead of the job at queued_ns, plus its own */
    size_t bytes;
    struct bag_task *task; /* the task that ends with this job; NULL: it has more jobs, or there is
                              no task */
};

struct bag_engine {
    uv_loop_t *loop;
    struct bag_workers *workers; /* borrowed */
    struct bag_engine_limits limits;
    struct bag_queue queue;
    double cost_scale;      /* measured CPU time of tasks / their estimate; multiplies estimates */
    double wait_scale;      /* measured time to completion / estimated work ahead */
    uint64_t polled_ns;     /* uv_hrtime() when the caller last polled its sockets; requests that it
                               reads until the next poll count as having arrived then. 0: unknown */
    unsigned running;       /* tasks that were handed to the workers */
    struct bag_task *tasks; /* owned */
    unsigned num_tasks;
    SLIST_HEAD(, bag_task) spare_tasks;
    struct bag_buffers buffers;          /* memory of replies that workers produce */
    uv_poll_t wake;                      /* signals finished jobs */
    int wake_fd;                         /* an eventfd */
    struct bag_recorder *recorder;       /* borrowed; NULL: metrics are off */
    struct bag_handoff finished;         /* jobs that workers hand back to the loop */
    uint64_t (*clock)(void);             /* uv_hrtime(), or a fake clock in tests */
    void (*on_iteration)(void *context); /* called after the `done` callbacks of an iteration */
    void *context;
};

/* Initialises the engine of a loop. The engine must not move afterwards. The caller sets
 * `recorder`, `on_iteration` and `context` before the loop runs. Returns false without memory or an
 * eventfd. */
bool bag_engine_init(struct bag_engine *engine, uv_loop_t *loop, struct bag_workers *workers,
                     struct bag_budget *budget, const struct bag_engine_limits *limits);

/* Closes the engine's libuv handles. No job may be outstanding. */
void bag_engine_stop(struct bag_engine *engine);

/* Frees the engine's memory. The loop and the workers must have stopped, and all replies must have
 * been returned to the buffers. */
void bag_engine_free(struct bag_engine *engine);

/* Returns true if the limits and the latency target admit a job whose client, model and cost are
 * set. Otherwise sets job->problem to the limit that was reached.
 *
 * A full queue still admits a client that uses less than an equal share of it, and a model that
 * uses less than an equal share of its client's part, until the total reaches twice the limit.
 * Clients that fill the queue therefore cannot lock out others. */
bool bag_engine_has_room(struct bag_engine *engine, struct bag_job *job);

/* Returns true if the latency target admits no more work, except from clients below their share. */
bool bag_engine_is_full(struct bag_engine *engine);

/* Returns true if the client uses less than its share, regardless of which models it requests. */
bool bag_engine_is_below_share(const struct bag_engine *engine, uint64_t client);

/* Admits a job whose body is still arriving. The caller has set client, model, cost_ns and
 * socket_wait_ns. Returns false and sets job->problem if the job is rejected.
 *
 * With a latency target, the job's work is reserved from now on, so that the server does not accept
 * more bodies than it can process in time. The admission is final if the whole body arrives within
 * the target. */
bool bag_engine_reserve(struct bag_engine *engine, struct bag_job *job);

/* Cancels the reservation of a job that will not be submitted. Does nothing if the reservation has
 * already been dropped. */
void bag_engine_cancel(struct bag_engine *engine, struct bag_job *job);

/* Queues a job whose work was reserved or for which bag_engine_has_room() returned true. `done` is
 * called later, never from this function. */
void bag_engine_submit(struct bag_engine *engine, struct bag_job *job);

/* Returns a finished job to the loop, which calls its `done`. The caller must not access the job or
 * its task afterwards. A job that was never submitted has no task. May be called on any thread. */
void bag_job_push_finished(struct bag_engine *engine, struct bag_job *job);

/* Wakes the loop, which then calls on_iteration. May be called on any thread. */
void bag_engine_wake(const struct bag_engine *engine);

/* Hands waiting jobs to the workers, as batches, unless each has its next batch already. First
 * rejects jobs that have waited too long. The caller must call it at the end of each loop
 * iteration.
 */
void bag_engine_dispatch(struct bag_engine *engine);

/* ---- admission (admission.c): private to server/engine --------------------------------------- */

/* Returns the time that one worker needs for work of the given estimate, corrected by cost_scale.
 */
uint64_t bag_engine_scaled_ns(const struct bag_engine *engine, uint64_t cost_ns);

/* Returns the same if all workers share the work equally. */
uint64_t bag_engine_shared_ns(const struct bag_engine *engine, uint64_t cost_ns);

/* Sets the job's arrival time and the work ahead of it. */
void bag_engine_stamp(const struct bag_engine *engine, struct bag_job *job);

/* Update cost_scale from a finished task, and wait_scale from a finished job. */
void bag_engine_update_cost_scale(struct bag_engine *engine, const struct bag_task *task);
void bag_engine_update_wait_scale(struct bag_engine *engine, const struct bag_job *job);

/* Returns true and sets job->problem if a waiting job is too late to be worth computing. */
bool bag_engine_is_overdue(struct bag_engine *engine, struct bag_job *job, uint64_t now_ns);

/* ---- tasks: private to server/engine --------------------------------------------------------- */

/* The minimum cost of each range of a split job. Waking an idle core takes up to 50 us. */
#define BAG_MIN_SPLIT_NS 100000

/* One range of the split job of a task. */
struct bag_task_split {
    struct bag_work work;
    struct bag_task *task;
    struct bag_split split;
};

/* A batch of jobs. The loop owns it until it is pushed, and again once its last job has finished.
 * In between the worker that runs it owns it; if the last job is split, ownership passes to the
 * thread that finishes the last range. */
struct bag_task {
    struct bag_work work;
    struct bag_engine *engine;
    SLIST_ENTRY(bag_task) next_spare;
    struct bag_job_list jobs; /* at least one */
    size_t num_pooled;        /* jobs that were computed, not dropped */
    uint64_t cost_ns;         /* estimated work */
    uint64_t started_ns;      /* CPU clock of the worker at the start */
    _Atomic uint64_t cpu_ns;
    struct bag_job *split_job; /* the last job, if it is split */
    atomic_uint splits_left;
    struct bag_task_split splits[BAG_ENGINE_MAX_SPLITS];
};

/* Runs a task. Called on a worker. */
void bag_task_run(struct bag_work *work);

/* Returns true if a job has waited longer than the server allows or, once it is decoded, longer
 * than its request allows. */
bool bag_job_is_late(const struct bag_engine *engine, const struct bag_job *job, uint64_t now_ns);

/* Sets job->problem to the timeout. Always returns false. */
bool bag_job_reject_late(struct bag_job *job);

/* Splits the work of `count` (>= 1) ops into at most `parts` (>= 1) disjoint ranges. The ranges
 * have about equal numbers of row bytes and may begin and end between any two bags. If one bag
 * holds most of the work, the columns are split instead. Returns the number of ranges, at least 1.
 */
unsigned bag_split_ops(const struct bag_op *ops, size_t count, unsigned parts,
                       struct bag_split *splits);
