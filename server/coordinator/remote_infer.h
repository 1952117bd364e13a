/* Remote inference: runs inferences on the shards that hold the parts of their tables.
 *
 * A server whose model has `shards` is a coordinator. It partitions an inference into subrequests,
 * at most one per shard and group of features, sends them in parallel over kept connections, and
 * merges the replies. The folder has four subjects, and calls go down this list only:
 *
 *   remote_infer.h   an inference among others on its loop: begin, deadline, callbacks
 *   subrequest.h     one request to one shard: attempts, hedge, outcome
 *   upstream.h       the connections to one address, and one HTTP exchange over one of them
 *   fanout.h         pure: the bodies of requests, the check of replies, the merge
 *
 * The life of a remote inference:
 *
 *   bag_remote_infer_make    any thread: prepares the inference, pools the local features and
 *                            encodes the subrequests                                   PREPARED
 *   bag_remote_infer_begin   loop: has it started at the end of the iteration           QUEUED
 *   bag_coordinator_dispatch loop: starts all subrequests                              RUNNING
 *   `done`                   loop: called later, when all replies have arrived or the
 *                            inference has failed                                      ENDED
 *   bag_remote_infer_finish  any thread: merges the replies and finishes the inference
 *   bag_remote_infer_free    loop
 *
 * Small inferences travel together, because a small request costs more than the rows that it asks
 * for. Inferences that begin in one iteration of the loop are started at its end, and those of one
 * model and timeout as one. The first is RUNNING: its subrequests ask for the ids of all. The
 * others are FOLLOWING it. No inference waits for others to come. A busy loop has long iterations,
 * in which many begin.
 *
 * Each of them ends as if it were alone. It ends when the subrequests that ask for its own ids have
 * ended, and waits for no other shard. If it is the RUNNING one, or if its client leaves, the
 * others go on: the first of them has the subrequests from then on. If a subrequest is not answered
 * well, those that have ids in it are QUEUED again, each by itself. If the deadline passes, they
 * fail. A wrong id ends the inference that has it, with the message that it gets alone; the others
 * are QUEUED again, and travel in smaller numbers.
 *
 * If a shard has another part or version than this server knows, the inference is REFRESHING for a
 * while, if the caller has set has_newer_model. The threads of server/shards query the shards
 * meanwhile. As soon as the server serves a newer model, the inference fails, and the caller starts
 * again with that model. A retry with the old model would find the same mismatch.
 *
 * A subrequest is encoded once. A repeated attempt or a hedge sends the same tensors from the same
 * memory; only the head and the remaining time are written for each attempt. A shard that is known
 * to be unavailable gets no request.
 *
 * How events travel: libuv calls this file for a socket or for the timer. It has upstream.c handle
 * the socket, takes the resulting events one after the other, and gives each to its subrequest. A
 * subrequest that has ended says so by its return value. When no event is left, `done` is called
 * for the inferences that have ended. So nothing is called back in the middle of its own work, and
 * nothing recurses: a step can only cause a further event or a further entry of a list. With
 * callbacks, `done` could free an inference whose functions are still on the stack.
 *
 * Deadlines, hedges and checks share one timer for each loop. It fires at the earliest time that a
 * running inference has given, and may fire earlier than necessary.
 *
 * Threads: each loop has one struct bag_coordinator. All functions except bag_remote_infer_make,
 * bag_remote_infer_cost_ns and bag_remote_infer_finish must be called on the loop's thread. */
#pragma once

#include "subrequest.h"

struct bag_remote_infer;
TAILQ_HEAD(bag_remote_infer_list, bag_remote_infer);

/* The remote inferences of one loop. */
struct bag_coordinator {
    struct bag_upstreams upstreams;
    uint64_t timeout_ns;                 /* maximum time for a shard's reply */
    struct bag_remote_infer_list active; /* RUNNING or REFRESHING */
    struct bag_remote_infer_list queued; /* QUEUED; started next */
    struct bag_remote_infer_list ended;  /* ENDED; `done` has not been called yet */
    void (*on_turn)(void *context);      /* called after a batch of `done` callbacks */
    void *context;                       /* argument of on_turn */
    uv_timer_t timer; /* fires at the next deadline, hedge or check of an active inference */
    uint64_t due_ns;  /* expiry of the timer; UINT64_MAX: not active */
};

/* Makes the coordinator of a loop. Returns false if the timer cannot be made. */
bool bag_coordinator_init(struct bag_coordinator *coordinator, uv_loop_t *loop,
                          struct bag_buffers *buffers, uint64_t timeout_ms);

/* Closes all libuv handles. No inference may be active. */
void bag_coordinator_stop(struct bag_coordinator *coordinator);

/* Frees the coordinator's memory after the loop has ended. */
void bag_coordinator_free(struct bag_coordinator *coordinator);

/* Closes connections that have been idle for too long. */
void bag_coordinator_close_idle(struct bag_coordinator *coordinator);

/* Starts the inferences that were begun in this iteration of the loop. */
void bag_coordinator_dispatch(struct bag_coordinator *coordinator);

/* Does what is due by now (deadlines, hedges, checks) and calls `done`. The timer calls it. */
void bag_coordinator_check(struct bag_coordinator *coordinator);

enum bag_remote_infer_state {
    BAG_REMOTE_INFER_PREPARED,
    BAG_REMOTE_INFER_QUEUED,     /* is started at the end of the iteration, or of the events */
    BAG_REMOTE_INFER_FOLLOWING,  /* the subrequests of another inference ask for its ids */
    BAG_REMOTE_INFER_RUNNING,    /* subrequests are under way */
    BAG_REMOTE_INFER_REFRESHING, /* waits for has_newer_model; no subrequest is under way */
    BAG_REMOTE_INFER_ENDED       /* `done` is called next, or was called */
};

struct bag_remote_infer {
    /* Set by bag_remote_infer_make; the trace by the caller after that. */
    struct bag_subrequests subrequests;
    /* Set by the caller. Callbacks are called on the loop. `done` may free the remote inference. */
    void (*done)(struct bag_remote_infer *run);
    bool (*is_connected)(struct bag_remote_infer *run); /* returns false if the client has left */
    /* Called repeatedly after a shard turned out to have another version or part than expected.
     * Returns true once the server serves a newer model. NULL: fail at once. */
    bool (*has_newer_model)(struct bag_remote_infer *run);
    void *context;

    /* The result; valid in `done`. */
    bool failed;      /* subrequests.problem holds the reason */
    bool is_mismatch; /* a shard has another part, or lacks the version */

    /* Private to remote_infer.c. */
    enum bag_remote_infer_state state;
    struct bag_coordinator *coordinator;    /* NULL: in no list */
    TAILQ_ENTRY(bag_remote_infer) entry;    /* in a list of the coordinator or of `leader` */
    struct bag_remote_infer *leader;        /* FOLLOWING: the RUNNING inference */
    struct bag_remote_infer_list followers; /* FOLLOWING this one */
    size_t max_together;                    /* may travel with so many, itself included */
    bool is_merged;                         /* the results are complete */
    uint64_t deadline_ns;                   /* own deadline, if it is sent by itself */
    size_t num_pending;                     /* replies that it waits for; see settle() */
    uint64_t client_check_ns;               /* next call of is_connected */
    uint64_t refresh_check_ns;              /* REFRESHING: next call of has_newer_model */
};

/* Prepares a planned inference, pools its local features and encodes its subrequests. If it joins
 * others, they are encoded when it is started. Returns false, sets *problem and drops the inference
 * if this fails, for example for lack of memory. */
bool bag_remote_infer_make(struct bag_remote_infer *run, struct bag_infer *infer,
                           struct bag_buffers *buffers, bool joins, struct bag_problem *problem);

/* Returns whether a planned inference may join others. It must be small and must not explain its
 * bags. No shard of its tables may be known to be unavailable. */
bool bag_remote_infer_may_join(const struct bag_infer *infer);

/* Returns the estimated CPU time of bag_remote_infer_make and bag_remote_infer_finish. */
uint64_t bag_remote_infer_cost_ns(const struct bag_infer *infer);

/* Queues the inference for bag_coordinator_dispatch, so that all that begin in one iteration of the
 * loop can travel together. `done` is called later, never from this function. `timeout_us` is the
 * remaining part of the request's own timeout; UINT64_MAX: no timeout. */
void bag_remote_infer_begin(struct bag_remote_infer *run, struct bag_coordinator *coordinator,
                            uint64_t timeout_us);

/* Merges the replies and finishes the inference. Must be called after `done`, unless it failed. */
void bag_remote_infer_finish(struct bag_remote_infer *run);

/* Frees the remote inference's memory, in any state; cancels subrequests that are under way. */
void bag_remote_infer_free(struct bag_remote_infer *run);
