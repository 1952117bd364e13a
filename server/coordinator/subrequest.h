/* Subrequests: one request to one shard, from its first attempt to its outcome.
 *
 * The subrequests of an inference are made from the calls of its fan-out, one for each call. A
 * subrequest has up to two attempts at a time. An attempt is an exchange (upstream.h) with a trace
 * span of its own. A failed attempt is repeated if the shard may simply be restarting, or if the
 * shard had closed a kept connection. The second attempt is the hedge: the same request once more,
 * because the first one is slower than 95 % of the shard's recent replies.
 *
 * The life of a subrequest:
 *
 *     bag_subrequest_start          -> PENDING
 *     bag_subrequest_hedge          PENDING -> HEDGED
 *     bag_subrequest_on_event       PENDING or HEDGED -> the same, ANSWERED, ABSENT or FAILED
 *     bag_subrequest_expire         PENDING or HEDGED -> ABSENT or FAILED
 *     bag_subrequest_cancel         UNSTARTED, PENDING or HEDGED -> CANCELLED
 *
 * The first good reply ends the subrequest, and so does the failure of the last attempt, which may
 * be one that waits for a connection. Three replies or events end it at once, because the other
 * attempt would find the same:
 *
 *   - the deadline has passed;
 *   - the shard has another part or version than this server knows (404, 409);
 *   - an id of the client is wrong, and only the shard can judge it (400).
 *
 * Functions that can end a subrequest return true if they did; the caller
 * (remote_infer.c) then looks at `state`. Nothing is called back.
 *
 * Threads: all functions must be called on the thread of the loop. */
#pragma once

#include "fanout.h"
#include "server/trace/trace.h"
#include "upstream.h"

/* One attempt: an exchange and its span. */
struct bag_attempt {
    struct bag_exchange exchange;
    uint64_t span; /* 0: the request is not sampled */
    uint64_t started_ns;
    unsigned number; /* position among all attempts of the subrequest, from 0; set only if it has a
                        span */
};

enum bag_subrequest_state {
    BAG_SUBREQUEST_UNSTARTED,
    BAG_SUBREQUEST_PENDING, /* the first attempt is under way; a hedge may follow */
    BAG_SUBREQUEST_HEDGED,  /* a hedge was sent or suppressed; none follows */
    /* Final. No attempt is under way. */
    BAG_SUBREQUEST_ANSWERED, /* the reply of the call is checked */
    BAG_SUBREQUEST_ABSENT,   /* the shard is unavailable; its rows count as missing */
    BAG_SUBREQUEST_FAILED,   /* the inference cannot succeed; its problem says why */
    BAG_SUBREQUEST_CANCELLED /* the inference ended first */
};

struct bag_subrequest {
    struct bag_subrequests *all;
    struct bag_fanout_call *call;
    struct bag_shard_group *group;   /* kept alive by the model */
    struct bag_shard_member *member; /* member of the group that gets the attempt */
    enum bag_subrequest_state state;
    enum bag_shard_outcome outcome; /* outcome of the last attempt; when final, the counted one */
    unsigned refusals;              /* consecutive refused connections */
    unsigned num_attempts;          /* so far */
    struct bag_attempt attempts[2]; /* the second is the hedge */
};

/* The subrequests of one inference, and what they share. Pointers are borrowed unless marked as
 * owned. */
struct bag_subrequests {
    struct bag_infer *infer;
    struct bag_fanout fanout;
    struct bag_subrequest *list; /* owned; one for each call of the fan-out */
    struct bag_upstreams *upstreams;
    uint64_t started_ns, deadline_ns;
    uint64_t timeout_us;        /* the request's own timeout, or shard_timeout_ms */
    bool has_client_deadline;   /* deadline_ns is the request's own timeout, not shard_timeout_ms */
    struct bag_problem problem; /* why one of them FAILED */

    /* Set by the caller before the first is started. */
    const struct bag_span_place *place; /* parent of the attempts' spans; NULL: not sampled */
    struct bag_trace *trace;
    const char *traceparent; /* sent to shards if the request is not sampled; NULL: none */
    char unsampled[BAG_TRACEPARENT_BYTES]; /* storage for a generated, unsampled traceparent */
};

/* Returns whether attempts of the subrequest are under way. */
static inline bool bag_subrequest_is_pending(const struct bag_subrequest *subrequest)
{
    return subrequest->state == BAG_SUBREQUEST_PENDING ||
           subrequest->state == BAG_SUBREQUEST_HEDGED;
}

/* Makes the subrequests of an inference whose fan-out is made. Returns false if memory is
 * exhausted. */
bool bag_subrequests_make(struct bag_subrequests *all);

/* Frees the subrequests, their replies and the fan-out. None may be PENDING or HEDGED. */
void bag_subrequests_free(struct bag_subrequests *all);

/* Starts the first attempt, unless the shard is known to be unavailable. */
bool bag_subrequest_start(struct bag_subrequest *subrequest);

/* Handles an event of one of its attempts. */
bool bag_subrequest_on_event(struct bag_subrequest *subrequest, struct bag_exchange *exchange);

/* Ends a subrequest whose deadline has passed. */
bool bag_subrequest_expire(struct bag_subrequest *subrequest);

/* Ends a subrequest whose reply is no longer needed. Does nothing if its state is final. */
void bag_subrequest_cancel(struct bag_subrequest *subrequest);

/* Returns when the subrequest is to be hedged; UINT64_MAX: never. */
uint64_t bag_subrequest_hedge_ns(const struct bag_subrequest *subrequest);

/* Starts the second attempt, unless the shard gets too many of them already. */
void bag_subrequest_hedge(struct bag_subrequest *subrequest);
