/* Expensive work: queued, put into batches, and done by the workers.
 *
 * Nothing waits without need. What a turn of the loop brings in is submitted, then dispatched: the
 * oldest job and others of its model form a batch, as large as its share of what waits; what comes
 * while all workers are busy forms the next ones. A worker does all of a job: it decodes the body
 * where that is yet to be done, takes memory, sorts, pools and prints. Where pooling one job takes
 * long and other workers are idle, it is split into ranges of bags, or of columns where one bag
 * holds most indices: the bits are those of the whole.
 *
 * With a latency target a job is rejected when it comes, or its head does, where it would wait too
 * long: the work ahead of it, and of bodies that were let in and are on their way, times how long
 * such work took lately from arrival to end. What it waited for the loop itself counts, too. That
 * is measured by the clock, and so counts whatever slows the workers down. Of a job that was let in
 * and waits too long all the same nothing is computed any more. A client who has less than his
 * share is let in whatever others have running, and waits for it. Rejecting early measured better
 * than dropping late jobs alone (CoDel) and than serving the newest first, whose rejections come
 * late.
 *
 * One engine for each loop, all with the same workers; the limits of the queue are those of all
 * together. All functions and callbacks run on the
 * loop's thread. */
#ifndef BAG_ENGINE_H
#define BAG_ENGINE_H

#include "proto/problem.h"
#include "server/infer/infer.h"
#include "server/infer/plan.h"
#include "server/metrics/metrics.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

/* ---- workers (workers.c) --------------------------------------------------------------------- */

/* The process's worker threads and the work that waits for one of them.
 *
 * One pool serves the engines of all loops. Work is started in the order in which it was pushed;
 * ranges of a split request go to the front, because the request is already being worked on.
 *
 * A loop that waits for a processor delays every client, a worker only those whose turn it is: so
 * workers may have a higher nice value. */

/* Embedded in what is to be done. `run` is called once on a worker, and may free the work. */
struct bag_work {
    struct bag_work *next;
    void (*run)(struct bag_work *work);
    uint64_t client; /* of a document: equal for all that one client has asked for */
    uint64_t turn;   /* of a document: clients have one in each; set when it is pushed */
};

/* When work is begun: before all that waits; in its order; or as a document, one at a time and in
 * turns with what else waits, and clients in turns with one another, so that who asks for nothing
 * but documents delays others by one. */
enum bag_work_order { BAG_WORK_URGENT, BAG_WORK_IN_ORDER, BAG_WORK_DOCUMENT };

struct bag_work_list {
    struct bag_work *first, **last;
};

struct bag_workers {
    unsigned count;
    uv_thread_t *threads;       /* owned */
    int nice;                   /* added to the nice value that workers begin with */
    atomic_uint busy;           /* work that was pushed and has not ended */
    unsigned num_engines;       /* that share the workers */
    atomic_size_t queued;       /* jobs that wait in all of their queues */
    _Atomic uint64_t queued_ns; /* their work, as estimated */
    uv_mutex_t lock;            /* of all below */
    uv_cond_t changed;
    struct bag_work_list waiting, documents;
    bool makes_document, document_is_next;
    bool ending;
};

/* Starts `count` (>= 1) threads. The struct must not move until bag_workers_stop, which is not due
 * where this fails. */
bool bag_workers_start(struct bag_workers *workers, unsigned count, int nice,
                       struct bag_problem *problem);

/* Lets all pushed work run to its end, and ends the threads. Nothing is pushed by others any more.
 */
void bag_workers_stop(struct bag_workers *workers);

/* Any thread. */
void bag_workers_push(struct bag_workers *workers, struct bag_work *work,
                      enum bag_work_order order);

/* How many workers have nothing to do. Any thread; out of date as soon as it is known. */
unsigned bag_workers_idle(struct bag_workers *workers);

/* ---- the queue ------------------------------------------------------------------------------- */

/* Jobs that one client asks of one model are a line, first come, first served; the lines of one
 * client are a flow. The next job is of the flow which had the least work so far, and there of the
 * line which had (fair queueing): a client whose requests are large or many, or ask many models,
 * waits for its own. Flows share a fixed number of places by hash, and so do lines in each: two
 * that meet share their turns. */
#define BAG_QUEUE_FLOW_BITS 6
#define BAG_QUEUE_FLOWS     (1 << BAG_QUEUE_FLOW_BITS)
#define BAG_FLOW_LINE_BITS  3
#define BAG_FLOW_LINES      (1 << BAG_FLOW_LINE_BITS)

struct bag_job;
struct bag_model;

/* Jobs and their work, as estimated. */
struct bag_queue_load {
    size_t present; /* that are announced, wait or run */
    size_t waiting;
    uint64_t announced_ns, waiting_ns, running_ns;
};

struct bag_line {
    struct bag_job *first, **last; /* that wait */
    struct bag_queue_load load;
    uint64_t served_ns; /* work that was taken from it: the least has the next turn */
};

struct bag_flow {
    struct bag_line lines[BAG_FLOW_LINES];
    size_t num_lines; /* that have jobs */
    struct bag_queue_load load;
    uint64_t served_ns;
    uint64_t
        line_served_ns; /* of the line that had the last turn; one that begins again starts here
                         */
};

struct bag_queue {
    struct bag_flow flows[BAG_QUEUE_FLOWS];
    size_t num_flows; /* that have jobs */
    struct bag_queue_load load;
    size_t bytes;       /* of all jobs that wait */
    uint64_t served_ns; /* of the flow that had the last turn; one that begins again starts here */
    struct bag_job *oldest, *newest; /* of those that are announced */
};

/* Initialises an empty queue, which must not move. */
void bag_queue_init(struct bag_queue *queue);

/* Adds a job whose client, model, cost and bytes are set. */
void bag_queue_add(struct bag_queue *queue, struct bag_job *job);

/* Counts a job, of which client, model and cost are set, as announced, and no longer; as running,
 * and no longer. */
void bag_queue_announce(struct bag_queue *queue, struct bag_job *job);
void bag_queue_withdraw(struct bag_queue *queue, struct bag_job *job);
void bag_queue_begin(struct bag_queue *queue, struct bag_job *job);
void bag_queue_end(struct bag_queue *queue, struct bag_job *job);

/* Takes the next job of the model (NULL: of any); NULL where there is none. */
struct bag_job *bag_queue_take(struct bag_queue *queue, const struct bag_model *model);

/* Takes a job that is the first of its line and wanted; NULL where there is none. */
struct bag_job *bag_queue_take_if(struct bag_queue *queue,
                                  bool (*is_wanted)(void *context, struct bag_job *job),
                                  void *context);

/* The flow and the line of a client's jobs, and how many flows, and lines of that flow, have jobs
 * if one is added. */
struct bag_queue_share {
    const struct bag_flow *flow;
    const struct bag_line *line;
    size_t num_flows, num_lines;
};
struct bag_queue_share bag_queue_share(const struct bag_queue *queue, uint64_t client,
                                       size_t model_slot);

/* ---- the engine ------------------------------------------------------------------------------ */

/* Most ranges that one job is split into. */
#define BAG_ENGINE_MAX_SPLITS 16

struct bag_engine_limits {
    size_t max_queue_size;       /* jobs that wait */
    uint64_t max_queue_work_ns;  /* of work that waits, for each worker */
    uint64_t default_timeout_us; /* how long a job may wait; 0: any time */
    uint64_t latency_target_ns;  /* in which most jobs should be done; 0: there is none */
};

/* One request's work. Embedded in its owner, which sets the first group and keeps it alive until
 * `done` is called. */
struct bag_job {
    struct bag_infer infer;
    uint64_t client;    /* whose turn it waits for: equal for all that one client asks */
    size_t model_slot;  /* what it asks of that client's turns */
    uint64_t unseen_ns; /* it has waited for the loop before the loop knew of it */
    bool planned;       /* infer has a plan; otherwise the worker makes it */
    void (*done)(struct bag_job *job);
    /* Makes a part of the results on a worker, in place of bag_infer_run; the owner does the rest
     * when the job is done. NULL: all are made. */
    bool (*run)(struct bag_job *job);
    bool (*is_connected)(struct bag_job *job); /* false: its client has gone */

    /* The outcome. */
    bool failed; /* `problem` says why */
    struct bag_problem problem;
    unsigned splits; /* ranges that it was split into; 0: it was not */

    /* The engine's. */
    struct bag_job *next;
    struct bag_job *older, *newer; /* among those that are announced */
    bool announced, running;
    uint64_t queued_ns; /* when it was announced, or else was there, on uv_hrtime's clock; 0: it was
                           never submitted */
    uint64_t cost_ns;
    uint64_t ahead_ns; /* estimated work in front of it then, and its own */
    size_t bytes;
    struct bag_task
        *task; /* that ends with this job; NULL: it has others to do, or there is none */
};

struct bag_engine {
    uv_loop_t *loop;
    struct bag_workers *workers; /* borrowed */
    struct bag_engine_limits limits;
    struct bag_queue queue;
    double cost_scale;      /* by which estimates are multiplied, from the workers' CPU time */
    double wait_scale;      /* time until a job is done, over the estimated work ahead of it */
    uint64_t polled_ns;     /* when the owner last asked what clients sent: what comes until it asks
                               again has waited since; 0: it does not say */
    unsigned running;       /* tasks with the workers */
    struct bag_task *tasks; /* owned */
    unsigned num_tasks;
    struct bag_task *spare_tasks;
    struct bag_buffers buffers;         /* of replies that workers make */
    uv_poll_t wake;                     /* jobs have ended */
    int wake_fd;                        /* an eventfd */
    struct bag_recorder *recorder;      /* borrowed; NULL: nothing is counted */
    _Atomic(struct bag_job *) finished; /* newest first */
    uint64_t (*clock)(void);            /* uv_hrtime; tests may set another */
    void (*on_turn)(void *context);     /* told after jobs were done */
    void *context;
};

bool bag_engine_init(struct bag_engine *engine, uv_loop_t *loop, struct bag_workers *workers,
                     struct bag_budget *budget, const struct bag_engine_limits *limits);

/* Closes the handles. All jobs are done. */
void bag_engine_stop(struct bag_engine *engine);

/* Frees what the engine holds, when the loop and the workers have ended and all replies were given
 * back. */
void bag_engine_free(struct bag_engine *engine);

/* Whether the queue has room for a job, of which client and model are set; otherwise says in the
 * job which limit it is. A client who has less than his share of a full queue still has room, and
 * for a model that has less than its share of his: those who fill it do not lock out others. */
bool bag_engine_has_room(struct bag_engine *engine, struct bag_job *job);

/* Whether the latency target leaves no room now, but for clients who have less than their share:
 * whether this one does, whatever he asks. */
bool bag_engine_is_full(struct bag_engine *engine);
bool bag_engine_is_below_share(const struct bag_engine *engine, uint64_t client);

/* The same for a job whose body is on its way, of which client, model, cost_ns and unseen_ns
 * are set. With a
 * latency target its work counts from here on, so that no more bodies are let in than can be worked
 * at in time, and it is let in for good if all of it comes within the target. */
bool bag_engine_announce(struct bag_engine *engine, struct bag_job *job);

/* An announced job does not come, if it is still counted. */
void bag_engine_withdraw(struct bag_engine *engine, struct bag_job *job);

/* Queues a job that is announced, or for which there is room; its `done` is called later, never
 * from here. */
void bag_engine_submit(struct bag_engine *engine, struct bag_job *job);

/* Gives a job back to the loop, which calls its `done`; neither it nor its `task` may be touched
 * afterwards. Any thread. One that was never submitted has no task. */
void bag_job_push_finished(struct bag_engine *engine, struct bag_job *job);

/* Lets the loop have a turn, which calls on_turn. Any thread. */
void bag_engine_wake(const struct bag_engine *engine);

/* Hands what waits to idle workers; to be called at the end of a turn. */
void bag_engine_dispatch(struct bag_engine *engine);

/* ---- admission (admission.c): private to server/engine --------------------------------------- */

/* How long work of that estimate takes a worker, by what the last tasks took; and each of them if
 * all share it. */
uint64_t bag_engine_scaled_ns(const struct bag_engine *engine, uint64_t cost_ns);
uint64_t bag_engine_shared_ns(const struct bag_engine *engine, uint64_t cost_ns);

/* The job is there from now on, behind all work that is. */
void bag_engine_stamp(const struct bag_engine *engine, struct bag_job *job);

/* Scales follow what a task took, and how long a job that was done did. */
void bag_engine_learn_cost(struct bag_engine *engine, const struct bag_task *task);
void bag_engine_learn_wait(struct bag_engine *engine, const struct bag_job *job);

/* Whether a job that waits is so no longer worth its work; its problem says why. */
bool bag_engine_is_overdue(struct bag_engine *engine, struct bag_job *job, uint64_t now_ns);

/* ---- tasks: private to server/engine --------------------------------------------------------- */

/* A job is split where each range still costs this: waking an idle core takes up to 50 us. */
#define BAG_MIN_SPLIT_NS 100000

/* One of the ranges of a task's last job. */
struct bag_task_split {
    struct bag_work work;
    struct bag_task *task;
    struct bag_split split;
};

/* A batch of jobs. Belongs to the loop until it is pushed and from the end of its last job on; to
 * its worker in between, and to whoever ends the last range where the last job is split. */
struct bag_task {
    struct bag_work work;
    struct bag_engine *engine;
    struct bag_task *next; /* among the spare ones */
    struct bag_job *jobs;  /* linked by `next`; at least one */
    size_t num_pooled;     /* jobs that were */
    uint64_t cost_ns;      /* as estimated */
    uint64_t started_ns;   /* on the worker's CPU clock */
    _Atomic uint64_t cpu_ns;
    struct bag_job *split_job; /* its last one */
    atomic_uint splits_left;
    struct bag_task_split splits[BAG_ENGINE_MAX_SPLITS];
};

/* Runs a task on a worker. */
void bag_task_run(struct bag_work *work);

/* Whether a job has waited longer than the server or, once it is decoded, its request allows. */
bool bag_job_is_late(const struct bag_engine *engine, const struct bag_job *job, uint64_t now_ns);

/* Says so in its problem; returns false. */
bool bag_job_reject_late(struct bag_job *job);

/* Splits the whole of `count` (>= 1) ops into at most `parts` (>= 1) disjoint ranges that cover
 * it: by the bytes of the rows that are read, across ops and between bags; or by columns where
 * one bag holds most of them. Returns how many, at least 1. */
unsigned bag_split_ops(const struct bag_op *ops, size_t count, unsigned parts,
                       struct bag_split *splits);

#endif
