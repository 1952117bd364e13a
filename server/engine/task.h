/* What the loop hands to a worker. Private to server/engine. */
#ifndef BAG_TASK_H
#define BAG_TASK_H

#include "engine.h"
#include "server/infer/plan.h"

/* A job is split where each range still costs this: waking an idle core takes up to 50 us. */
#define BAG_LEAST_SPLIT_NS 100000

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
