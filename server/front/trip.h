/* The calls of one inference, on their way to shards and back.
 *
 *   bag_trip_make    on any thread: prepares the inference, pools what is here, and makes the calls
 *   bag_trip_begin   on the loop: sends all calls at once, over kept connections
 *   `done`           on the loop, later: all are answered, or the trip has failed
 *   bag_trip_finish  on any thread: puts the answers together and finishes the inference
 *   bag_trip_free    on the loop
 *
 * One front for each loop. All but make and finish are of the loop's thread. */
#ifndef BAG_FRONT_TRIP_H
#define BAG_FRONT_TRIP_H

#include "fanout.h"
#include "server/shards/shards.h"
#include "server/trace/trace.h"

#include <uv.h>

struct bag_trip;
struct bag_front_link;

/* ---- connections (links.c) ------------------------------------------------------------------- */

/* One call's way to its shard. */
struct bag_errand {
    struct bag_trip *trip;
    struct bag_shard_group *group;   /* the model's holds it */
    size_t member;                   /* of the group: its address */
    struct bag_front_link *links[2]; /* where it was sent; the second: once more, as the first was
                                        late; NULL: not, or no longer */
    struct bag_errand *next_waiting; /* for a connection to the address */
    uint64_t begun_ns;
    unsigned refusals; /* connections that were refused, in a row */
    bool is_waiting, is_hedged, is_done;
    enum bag_shard_outcome outcome; /* as it was counted last */
    unsigned sends;                 /* how often it was sent; counted where that is traced */
};

/* The connections of one loop to one address. */
struct bag_front_lane {
    struct bag_shard_host *host;
    struct bag_front_link *idle;
    size_t count; /* open ones */
    struct bag_errand *first_waiting, **last_waiting;
};

struct bag_front {
    uv_loop_t *loop;               /* borrowed */
    struct bag_buffers *buffers;   /* borrowed; of replies; shared */
    uint64_t timeout_ns;           /* of a shard's answer */
    struct bag_front_lane **lanes; /* owned, as each; by the number of the host; NULL: none yet */
    size_t num_lanes;
    struct bag_trip *trips;         /* that are on their way */
    struct bag_trip *over;          /* that are no longer, and are not told yet */
    void (*on_turn)(void *context); /* told after trips were done */
    void *context;
    uv_timer_t timer; /* of what is due next with one of them */
    uint64_t due_ns;  /* when that is; UINT64_MAX: the timer does not run */
};

bool bag_front_init(struct bag_front *front, uv_loop_t *loop, struct bag_buffers *buffers,
                    uint64_t timeout_ms);

/* Closes all handles; no trip is on its way. What is left is freed when the loop has ended. */
void bag_front_stop(struct bag_front *front);
void bag_front_free(struct bag_front *front);

/* Private to server/front: sends the errand's call over a kept connection, or a new one, or lets it
 * wait for one. */
void bag_front_send(struct bag_front *front, struct bag_errand *errand);

/* Closes connections that were idle for long. */
void bag_front_trim(struct bag_front *front);

/* Tells those whose trips are over; at the end of what a socket or the timer has brought. */
void bag_front_tell(struct bag_front *front);

/* Closes connections to the address that are idle: one had a wrong answer, and what else comes over
 * them may be of another call. */
void bag_front_distrust(struct bag_front *front, const struct bag_errand *errand);

/* Nobody waits for the errand's answer any more. */
void bag_front_give_up(struct bag_front *front, struct bag_errand *errand);

/* ---- spans (spans.c), private to server/front ------------------------------------------------ */

/* One time that an errand is sent. */
struct bag_front_attempt {
    uint64_t id; /* of its span; 0: it has none, and ends without one */
    uint64_t begun_ns;
    unsigned number; /* of the errand's, from 0 */
    bool is_hedge;
};

/* What becomes of one, beside the outcomes of shards.h. */
enum {
    BAG_FRONT_CANCELLED = BAG_SHARD_OUTCOME_COUNT, /* the request has ended without it */
    BAG_FRONT_UNNEEDED                             /* another attempt was answered */
};

struct bag_front_attempt bag_front_attempt_begin(struct bag_errand *errand);

/* `status` is that of the answer; 0: none came. */
void bag_front_attempt_export(const struct bag_front_attempt *attempt,
                              const struct bag_errand *errand, int status, unsigned became);
static inline void bag_front_attempt_end(const struct bag_front_attempt *attempt,
                                         const struct bag_errand *errand, int status,
                                         unsigned became)
{
    if (attempt->id)
        bag_front_attempt_export(attempt, errand, status, became);
}

/* Of one that could not be sent, or still waits for a connection. */
void bag_front_attempt_miss(struct bag_errand *errand, unsigned became);

/* What becomes of those that are given up now. */
unsigned bag_front_attempt_left(const struct bag_errand *errand);

/* The traceparent that the shard is sent. */
void bag_front_attempt_print(const struct bag_front_attempt *attempt, const struct bag_trip *trip,
                             char text[BAG_TRACEPARENT_BYTES]);

/* ---- trips (trip.c) -------------------------------------------------------------------------- */

struct bag_trip {
    struct bag_infer *infer; /* borrowed, as all that is not said to be owned */
    struct bag_fanout fanout;
    struct bag_errand *errands; /* owned; one for each call */
    /* Where the request is sampled: of its span, below which each attempt has one. */
    const struct bag_span_place *place;
    struct bag_trace *trace;
    const char *traceparent; /* that shards are sent otherwise; NULL: none */
    char unsampled[BAG_TRACEPARENT_BYTES];
    /* Both are called on the loop. `done` may free the trip. */
    void (*done)(struct bag_trip *trip);
    bool (*is_connected)(struct bag_trip *trip); /* false: the client has gone */
    /* Of a trip that failed as a shard has something else than was known: whether that is known by
     * now, and the inference can be made anew. NULL: nobody waits for that. */
    bool (*is_renewed)(struct bag_trip *trip);
    void *context;

    struct bag_front *front;       /* NULL: not on its way */
    struct bag_trip *next, **link; /* among those on their way, or those that are over */
    size_t num_left;               /* calls that are not answered */
    uint64_t begun_ns, deadline_ns, looked_ns, renewal_ns;
    bool deadline_is_clients; /* not that of a shard's answer */
    bool is_over;             /* nothing is on its way any more */
    bool failed;              /* `problem` says why */
    bool is_mismatch;         /* a shard has another part, or lacks the version */
    bool waits;               /* for what shards have to be known; nothing is on its way */
    struct bag_problem problem;
};

/* Makes the trip of a planned inference. False, with *problem and the inference ended, where there
 * is no memory. */
bool bag_trip_make(struct bag_trip *trip, struct bag_infer *infer, struct bag_buffers *buffers,
                   struct bag_problem *problem);

/* Rough time that making it takes, and putting it together. */
uint64_t bag_trip_cost_ns(const struct bag_infer *infer);

/* Sends it; `done` is called later, never from here. `timeout_us` is what is left of the request's
 * own; UINT64_MAX: any. */
void bag_trip_begin(struct bag_trip *trip, struct bag_front *front, uint64_t timeout_us);

/* All are answered: puts them together. */
void bag_trip_finish(struct bag_trip *trip);

/* Ends what is on its way, and the inference where that is not finished. */
void bag_trip_free(struct bag_trip *trip);

/* Private to server/front: microseconds until the trip's deadline, at least 1. */
uint64_t bag_trip_left_us(const struct bag_trip *trip);

/* Private to server/front: returns whether an attempt of the errand is sent, or waits for a
 * connection. */
static inline bool bag_errand_has_attempt(const struct bag_errand *errand)
{
    return errand->links[0] || errand->links[1] || errand->is_waiting;
}

/* Private to server/front: handles the whole reply to an attempt, or an attempt that failed, which
 * has left the errand by then. The errand fails with its last attempt, and at once if the shard has
 * something else than was known, or if the time is over; `outcome` is counted then, and `format`
 * describes the cause. NULL: the caller has set the trip's problem. */
void bag_trip_take(struct bag_errand *errand, const struct bag_reply_head *head, char *reply);
void bag_trip_lose(struct bag_errand *errand, enum bag_shard_outcome outcome, const char *format,
                   ...) __attribute__((format(printf, 3, 4)));

#endif
