/* What the loop hands to a worker. Private to server/engine/engine.c and task.c. */
#ifndef BAG_TASK_H
#define BAG_TASK_H

#include "engine.h"

/* A job is cut where each part still costs this: waking an idle core takes up to 50 us. */
#define BAG_LEAST_SPLIT_NS 100000

/* A batch of jobs, or one slice of a job that was cut. */
struct bag_task {
    uv_work_t work;
    struct bag_engine *engine;
    struct bag_task *next; /* among the spare ones */
    struct bag_job *jobs;  /* linked by `next` */
    bool part;             /* `slice` of the one job */
    bool may_split;        /* others were idle and nothing waited when the job was handed over */
    struct bag_job
        *requeued; /* planned here, and large enough to be cut: it goes back to the queue */
    struct bag_split split;
    uint64_t cost_ns; /* as estimated */
    uint64_t took_ns; /* on the worker */
    size_t pooled;    /* jobs of the batch that were */
};

/* Runs a task on a worker: all of its jobs, or its slice of one. */
void bag_task_run(uv_work_t *work);

/* Gives a job back to the loop; it must not be touched afterwards. Any thread. */
void bag_job_push_finished(struct bag_engine *engine, struct bag_job *job);

/* Whether a job has waited longer than the server or, once it is decoded, its request allows. */
bool bag_job_is_late(const struct bag_engine *engine, const struct bag_job *job, uint64_t now_ns);

/* Says so in its problem; returns false. */
bool bag_job_reject_late(struct bag_job *job);

/* Whether it pays to cut a job into at least two parts. */
bool bag_job_is_worth_splitting(const struct bag_engine *engine, const struct bag_job *job);

#endif
