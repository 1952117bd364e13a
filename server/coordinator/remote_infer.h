/* The calls of one inference, on their way to shards and back.
 *
 *   bag_remote_infer_make    on any thread: prepares the inference, pools what is here, and makes
 * the calls bag_remote_infer_begin   on the loop: sends all calls at once, over kept connections
 *   `done`           on the loop, later: all are answered, or the run has failed
 *   bag_remote_infer_finish  on any thread: puts the answers together and finishes the inference
 *   bag_remote_infer_free    on the loop
 *
 * One coordinator for each loop. All but make and finish are of the loop's thread. */
#ifndef BAG_COORDINATOR_REMOTE_INFER_H
#define BAG_COORDINATOR_REMOTE_INFER_H

#include "fanout.h"
#include "server/shards/shards.h"
#include "server/trace/trace.h"

#include <uv.h>

struct bag_remote_infer;
struct bag_upstream_connection;

/* ---- connections (upstream.c, upstream_connection.c) ----------------------------------------- */

/* One call's way to its shard. */
struct bag_subrequest {
    struct bag_remote_infer *run;
    struct bag_shard_group *group;            /* the model's holds it */
    size_t member;                            /* of the group: its address */
    struct bag_upstream_connection *links[2]; /* where it was sent; the second: once more, as the
                                        first was late; NULL: not, or no longer */
    struct bag_subrequest *next_waiting;      /* for a connection to the address */
    uint64_t begun_ns;
    unsigned refusals; /* connections that were refused, in a row */
    bool is_waiting, is_hedged, is_done;
    enum bag_shard_outcome outcome; /* as it was counted last */
    unsigned sends;                 /* how often it was sent; counted where that is traced */
};

/* The connections of one loop to one address. */
struct bag_upstream {
    struct bag_shard_host *host;
    struct bag_upstream_connection *idle;
    size_t count; /* open ones */
    struct bag_subrequest *first_waiting, **last_waiting;
};

struct bag_coordinator {
    uv_loop_t *loop;                 /* borrowed */
    struct bag_buffers *buffers;     /* borrowed; of replies; shared */
    uint64_t timeout_ns;             /* of a shard's answer */
    struct bag_upstream **upstreams; /* owned, as each; by the number of the host; NULL: none yet */
    size_t num_lanes;
    struct bag_remote_infer *runs;  /* that are on their way */
    struct bag_remote_infer *over;  /* that are no longer, and are not told yet */
    void (*on_turn)(void *context); /* told after runs were done */
    void *context;
    uv_timer_t timer; /* of what is due next with one of them */
    uint64_t due_ns;  /* when that is; UINT64_MAX: the timer does not run */
};

bool bag_coordinator_init(struct bag_coordinator *coordinator, uv_loop_t *loop,
                          struct bag_buffers *buffers, uint64_t timeout_ms);

/* Closes all handles; no run is on its way. What is left is freed when the loop has ended. */
void bag_coordinator_stop(struct bag_coordinator *coordinator);
void bag_coordinator_free(struct bag_coordinator *coordinator);

/* Private to server/coordinator: sends the subrequest's call over a kept connection, or a new one,
 * or lets it wait for one. */
void bag_subrequest_send(struct bag_coordinator *coordinator, struct bag_subrequest *subrequest);

/* Closes connections that were idle for long. */
void bag_coordinator_close_idle(struct bag_coordinator *coordinator);

/* Tells those whose runs are over; at the end of what a socket or the timer has brought. */
void bag_coordinator_run_callbacks(struct bag_coordinator *coordinator);

/* Closes connections to the address that are idle: one had a wrong answer, and what else comes over
 * them may be of another call. */
void bag_subrequest_close_idle(struct bag_coordinator *coordinator,
                               const struct bag_subrequest *subrequest);

/* Nobody waits for the subrequest's answer any more. */
void bag_subrequest_cancel(struct bag_coordinator *coordinator, struct bag_subrequest *subrequest);

/* ---- spans (spans.c), private to server/coordinator
 * ------------------------------------------------ */

/* One time that an subrequest is sent. */
struct bag_attempt {
    uint64_t id; /* of its span; 0: it has none, and ends without one */
    uint64_t begun_ns;
    unsigned number; /* of the subrequest's, from 0 */
    bool is_hedge;
};

/* What becomes of one, beside the outcomes of shards.h. */
enum {
    BAG_ATTEMPT_CANCELLED = BAG_SHARD_OUTCOME_COUNT, /* the request has ended without it */
    BAG_ATTEMPT_UNNEEDED                             /* another attempt was answered */
};

struct bag_attempt bag_attempt_begin(struct bag_subrequest *subrequest);

/* `status` is that of the answer; 0: none came. */
void bag_attempt_export(const struct bag_attempt *attempt, const struct bag_subrequest *subrequest,
                        int status, unsigned became);
static inline void bag_attempt_end(const struct bag_attempt *attempt,
                                   const struct bag_subrequest *subrequest, int status,
                                   unsigned became)
{
    if (attempt->id)
        bag_attempt_export(attempt, subrequest, status, became);
}

/* Of one that could not be sent, or still waits for a connection. */
void bag_attempt_record_unsent(struct bag_subrequest *subrequest, unsigned became);

/* What becomes of those that are given up now. */
unsigned bag_attempt_cancel_outcome(const struct bag_subrequest *subrequest);

/* The traceparent that the shard is sent. */
void bag_attempt_print_traceparent(const struct bag_attempt *attempt,
                                   const struct bag_remote_infer *run,
                                   char text[BAG_TRACEPARENT_BYTES]);

/* ---- runs (run.c) -------------------------------------------------------------------------- */

struct bag_remote_infer {
    struct bag_infer *infer; /* borrowed, as all that is not said to be owned */
    struct bag_fanout fanout;
    struct bag_subrequest *subrequests; /* owned; one for each call */
    /* Where the request is sampled: of its span, below which each attempt has one. */
    const struct bag_span_place *place;
    struct bag_trace *trace;
    const char *traceparent; /* that shards are sent otherwise; NULL: none */
    char unsampled[BAG_TRACEPARENT_BYTES];
    /* Both are called on the loop. `done` may free the run. */
    void (*done)(struct bag_remote_infer *run);
    bool (*is_connected)(struct bag_remote_infer *run); /* false: the client has gone */
    /* Of a run that failed as a shard has something else than was known: whether that is known by
     * now, and the inference can be made anew. NULL: nobody waits for that. */
    bool (*has_newer_model)(struct bag_remote_infer *run);
    void *context;

    struct bag_coordinator *coordinator; /* NULL: not on its way */
    struct bag_remote_infer *next,
        **connection; /* among those on their way, or those that are over */
    size_t num_left;  /* calls that are not answered */
    uint64_t begun_ns, deadline_ns, looked_ns, renewal_ns;
    bool deadline_is_clients; /* not that of a shard's answer */
    bool is_over;             /* nothing is on its way any more */
    bool failed;              /* `problem` says why */
    bool is_mismatch;         /* a shard has another part, or lacks the version */
    bool waits;               /* for what shards have to be known; nothing is on its way */
    struct bag_problem problem;
};

/* Makes the run of a planned inference. False, with *problem and the inference ended, where there
 * is no memory. */
bool bag_remote_infer_make(struct bag_remote_infer *run, struct bag_infer *infer,
                           struct bag_buffers *buffers, struct bag_problem *problem);

/* Rough time that making it takes, and putting it together. */
uint64_t bag_remote_infer_cost_ns(const struct bag_infer *infer);

/* Sends it; `done` is called later, never from here. `timeout_us` is what is left of the request's
 * own; UINT64_MAX: any. */
void bag_remote_infer_begin(struct bag_remote_infer *run, struct bag_coordinator *coordinator,
                            uint64_t timeout_us);

/* All are answered: puts them together. */
void bag_remote_infer_finish(struct bag_remote_infer *run);

/* Ends what is on its way, and the inference where that is not finished. */
void bag_remote_infer_free(struct bag_remote_infer *run);

/* Private to server/coordinator: microseconds until the run's deadline, at least 1. */
uint64_t bag_remote_infer_remaining_us(const struct bag_remote_infer *run);

/* Private to server/coordinator: returns whether an attempt of the subrequest is sent, or waits for
 * a connection. */
static inline bool bag_subrequest_has_attempt(const struct bag_subrequest *subrequest)
{
    return subrequest->links[0] || subrequest->links[1] || subrequest->is_waiting;
}

/* Private to server/coordinator: handles the whole reply to an attempt, or an attempt that failed,
 * which has left the subrequest by then. The subrequest fails with its last attempt, and at once if
 * the shard has something else than was known, or if the time is over; `outcome` is counted then,
 * and `format` describes the cause. NULL: the caller has set the run's problem. */
void bag_subrequest_on_reply(struct bag_subrequest *subrequest, const struct bag_reply_head *head,
                             char *reply);
void bag_subrequest_fail(struct bag_subrequest *subrequest, enum bag_shard_outcome outcome,
                         const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
