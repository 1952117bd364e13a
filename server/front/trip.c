/* Trips: what becomes of the calls of one inference; see trip.h. */
#include "trip.h"

#include "proto/v2_client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rough costs of a trip that is made and put together. */
#define ID_NS            4 /* an id that is told a shard */
#define SUM_BYTES_PER_NS 4 /* of an answer */

/* A client who has waited for so long may have gone; how often that is found out. */
#define PATIENCE_NS (UINT64_C(1000000000))
#define LOOK_NS     (UINT64_C(250000000))

/* No more shards are named in a reply. */
#define BAG_TOLD_ABSENT 256

/* How long what shards have is waited for, and how often that is looked for. */
#define RENEWAL_NS      (UINT64_C(2000000000))
#define RENEWAL_LOOK_NS (UINT64_C(20000000))

/* Nothing is asked twice before that. */
#define MIN_HEDGE_NS (UINT64_C(1000000))

/* ---- making ---------------------------------------------------------------------------------- */

/* Beside dealing and adding, what an inference of tables that are here would cost: all where some
 * are, otherwise what is not pooling, as printing. */
uint64_t bag_trip_cost_ns(const struct bag_infer *infer)
{
    uint64_t answers = 0, pooling_ns = bag_infer_pool_cost_ns(infer);
    bool is_local = false;
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        uint64_t bytes = op->args.num_bags * op->memory->table.row_elements * sizeof(float);
        if (op->kind == BAG_OP_REMOTE)
            answers += bytes * op->memory->remote->num_shards;
        else
            is_local = true;
    }
    return infer->plan.work.rows * ID_NS + answers / SUM_BYTES_PER_NS + bag_infer_cost_ns(infer) -
           (is_local ? 0 : pooling_ns);
}

bool bag_trip_make(struct bag_trip *trip, struct bag_infer *infer, struct bag_buffers *buffers,
                   struct bag_problem *problem)
{
    memset(trip, 0, sizeof *trip);
    trip->infer = infer;
    if (!bag_infer_prepare(infer, buffers, problem))
        return false;
    if (!bag_fanout_make(infer, &trip->fanout, problem)) {
        bag_infer_drop(infer);
        return false;
    }
    bag_infer_pool(infer, bag_split_all(infer->plan.num_ops));
    if (!bag_infer_check(infer, problem)) {
        bag_fanout_free(&trip->fanout);
        return false;
    }
    trip->errands = calloc(trip->fanout.count + 1, sizeof *trip->errands);
    if (trip->errands)
        return true;
    bag_trip_free(trip);
    bag_infer_drop(infer);
    return bag_problem_no_memory(problem);
}

/* ---- the list of those on their way ---------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

static void insert(struct bag_trip **list, struct bag_trip *trip)
{
    trip->next = *list;
    trip->link = list;
    if (trip->next)
        trip->next->link = &trip->next;
    *list = trip;
}

static void take_out(struct bag_trip *trip)
{
    *trip->link = trip->next;
    if (trip->next)
        trip->next->link = trip->link;
}

static void wake_at(struct bag_front *front, uint64_t due_ns)
{
    uint64_t now_ns = uv_hrtime();
    if (due_ns >= front->due_ns)
        return;
    front->due_ns = due_ns;
    uv_timer_start(&front->timer, on_timer,
                   due_ns > now_ns ? (due_ns - now_ns + 999999) / 1000000 : 0, 0);
}

/* Nothing is to be waited for any more. */
static void end_trip(struct bag_trip *trip)
{
    struct bag_front *front = trip->front;
    trip->is_over = true;
    take_out(trip);
    insert(&front->over, trip);
    for (size_t i = 0; i < trip->fanout.count; i++)
        bag_front_give_up(front, &trip->errands[i]);
}

void bag_front_tell(struct bag_front *front)
{
    struct bag_trip *trip = front->over;
    bool any = trip != NULL;
    for (; trip; trip = front->over) {
        take_out(trip);
        trip->front = NULL;
        trip->done(trip);
    }
    if (any)
        front->on_turn(front->context);
}

/* ---- what becomes of an errand --------------------------------------------------------------- */

static struct bag_shard_member *member_of(const struct bag_errand *errand)
{
    return &errand->group->members[errand->member];
}

static const struct bag_remote *remote_of(const struct bag_errand *errand)
{
    const struct bag_trip *trip = errand->trip;
    const struct bag_fanout_call *call = &trip->fanout.calls[errand - trip->errands];
    return trip->infer->input.model->features[call->feature].memory->remote;
}

static void count(struct bag_errand *errand, enum bag_shard_outcome outcome)
{
    errand->outcome = outcome;
    atomic_fetch_add_explicit(&member_of(errand)->outcomes[outcome], 1, memory_order_relaxed);
}

static void settle(struct bag_errand *errand)
{
    struct bag_trip *trip = errand->trip;
    errand->is_done = true;
    if (--trip->num_left == 0)
        end_trip(trip);
    else
        bag_front_give_up(trip->front, errand);
}

static void fail(struct bag_trip *trip)
{
    trip->failed = true;
    end_trip(trip);
}

/* What shards have is being asked; until it is known, or time is up, the trip stays. */
static void wait_for_renewal(struct bag_trip *trip)
{
    uint64_t until_ns = uv_hrtime() + RENEWAL_NS;
    trip->waits = true;
    trip->renewal_ns = uv_hrtime() + RENEWAL_LOOK_NS;
    trip->deadline_ns = until_ns < trip->deadline_ns ? until_ns : trip->deadline_ns;
    for (size_t i = 0; i < trip->fanout.count; i++)
        bag_front_give_up(trip->front, &trip->errands[i]);
    wake_at(trip->front, trip->renewal_ns);
}

/* What a client is told of an outcome. */
static enum bag_error kind_of(enum bag_shard_outcome outcome)
{
    if (outcome == BAG_SHARD_WRONG || outcome == BAG_SHARD_CLOSED)
        return BAG_ERROR_BAD_GATEWAY;
    return outcome == BAG_SHARD_LATE ? BAG_ERROR_SHARD_LATE : BAG_ERROR_SHARD_AWAY;
}

/* Whether the rows of the shard count as missing instead. */
static bool may_skip(const struct bag_errand *errand, enum bag_shard_outcome outcome)
{
    bool is_away = outcome == BAG_SHARD_REFUSED || outcome == BAG_SHARD_CLOSED ||
                   outcome == BAG_SHARD_REJECTED ||
                   (outcome == BAG_SHARD_LATE && !errand->trip->deadline_is_clients);
    return is_away && remote_of(errand)->skips_absent;
}

void bag_trip_lose(struct bag_errand *errand, enum bag_shard_outcome outcome, const char *format,
                   ...)
{
    struct bag_trip *trip = errand->trip;
    char why[300];
    va_list arguments;
    if (errand->is_done || trip->is_over || trip->waits)
        return;
    if (outcome == BAG_SHARD_WRONG)
        bag_front_distrust(trip->front, errand);
    if (bag_errand_has_attempt(errand) && outcome != BAG_SHARD_MISMATCH &&
        outcome != BAG_SHARD_LATE) {
        struct bag_fanout_call *call = &trip->fanout.calls[errand - trip->errands];
        errand->outcome = outcome; /* of this attempt alone: it is not counted */
        bag_buffers_put(call->reply);
        call->reply = NULL;
        return;
    }
    count(errand, outcome);
    if (format && may_skip(errand, outcome)) {
        trip->fanout.calls[errand - trip->errands].is_absent = true;
        settle(errand);
        return;
    }
    if (format) {
        va_start(arguments, format);
        vsnprintf(why, sizeof why, format, arguments);
        va_end(arguments);
        bag_problem_set(&trip->problem, kind_of(outcome), "shard %s %s%s",
                        member_of(errand)->host->address.text,
                        outcome == BAG_SHARD_REFUSED ? "is away: " : "", why);
    }
    if (outcome == BAG_SHARD_MISMATCH) {
        trip->is_mismatch = true;
        bag_shard_group_ask(errand->group);
        if (trip->is_renewed) {
            wait_for_renewal(trip);
            return;
        }
    }
    fail(trip);
}

static void take_answer(struct bag_errand *errand)
{
    struct bag_trip *trip = errand->trip;
    struct bag_problem why BAG_UNSET;
    if (!bag_fanout_check(trip->infer, &trip->fanout, (size_t)(errand - trip->errands), &why)) {
        bool is_ours = why.kind == BAG_ERROR_NO_MEMORY;
        if (is_ours)
            trip->problem = why;
        bag_trip_lose(errand, is_ours ? BAG_SHARD_LACKING : BAG_SHARD_WRONG, is_ours ? NULL : "%s",
                      why.text);
        return;
    }
    count(errand, BAG_SHARD_OK);
    bag_shard_latency_add(&member_of(errand)->latency, uv_hrtime() - errand->begun_ns);
    settle(errand);
}

/* At the deadline each errand that is left is lost: where rows may be missing, all of them. */
static void end_late(struct bag_trip *trip)
{
    uint64_t ms = trip->deadline_is_clients ? trip->infer->plan.timeout_us / 1000
                                            : trip->front->timeout_ns / 1000000;
    for (size_t i = 0; i < trip->fanout.count && !trip->is_over; i++)
        bag_trip_lose(&trip->errands[i], BAG_SHARD_LATE, "has not answered within %llu ms (%s)",
                      (unsigned long long)ms,
                      trip->deadline_is_clients ? "the request's timeout" : "shard_timeout_ms");
}

/* A reply that is no success. A shard that gives up a request when its time is up is late. */
static void take_error(struct bag_errand *errand, int status, const char *text, size_t bytes)
{
    struct bag_trip *trip = errand->trip;
    char sentence[200];
    if (status == 400 && bag_fanout_blame(trip->infer, &trip->fanout,
                                          (size_t)(errand - trip->errands), &trip->problem)) {
        count(errand, BAG_SHARD_OK);
        fail(trip);
        return;
    }
    if (uv_hrtime() >= trip->deadline_ns) {
        end_late(trip);
        return;
    }
    bag_client_read_error(text, bytes, sentence, sizeof sentence);
    enum bag_shard_outcome outcome =
        status == 404 || status == 409 ? BAG_SHARD_MISMATCH
        : status == 408 || status == 429 || status == 503 || status == 504 || status == 507
            ? BAG_SHARD_REJECTED
            : BAG_SHARD_WRONG;
    bag_trip_lose(errand, outcome, "answered %d%s%s", status, *sentence ? ": " : "", sentence);
}

void bag_trip_take(struct bag_errand *errand, const struct bag_reply_head *head, char *reply)
{
    struct bag_trip *trip = errand->trip;
    if (errand->is_done || trip->is_over || trip->waits) {
        bag_buffers_put(reply);
        return;
    }
    struct bag_fanout_call *call = &trip->fanout.calls[errand - trip->errands];
    atomic_store_explicit(&member_of(errand)->host->is_away, false, memory_order_relaxed);
    call->reply = reply;
    call->reply_bytes = (size_t)head->body_bytes;
    call->reply_header_bytes = (size_t)head->json_bytes;
    if (head->status == 200)
        take_answer(errand);
    else
        take_error(errand, head->status, reply, call->reply_bytes);
}

/* ---- time ------------------------------------------------------------------------------------ */

uint64_t bag_trip_left_us(const struct bag_trip *trip)
{
    uint64_t now_ns = uv_hrtime();
    return trip->deadline_ns >= now_ns + 1000 ? (trip->deadline_ns - now_ns) / 1000 : 1;
}

/* When an errand is asked a second time; UINT64_MAX: never. */
static uint64_t hedge_at(const struct bag_errand *errand)
{
    if (errand->is_done || errand->is_hedged || errand->is_waiting ||
        errand->group->config.hedge == BAG_SHARD_HEDGE_OFF)
        return UINT64_MAX;
    uint64_t p95_ns = bag_shard_latency_p95_ns(&member_of(errand)->latency);
    if (p95_ns == UINT64_MAX)
        return UINT64_MAX;
    return errand->begun_ns + (p95_ns > MIN_HEDGE_NS ? p95_ns : MIN_HEDGE_NS);
}

/* When something is to be done about the trip. */
static uint64_t due_of(const struct bag_trip *trip)
{
    uint64_t due_ns = trip->deadline_ns;
    if (trip->waits)
        return trip->renewal_ns < due_ns ? trip->renewal_ns : due_ns;
    if (trip->looked_ns + LOOK_NS < due_ns)
        due_ns = trip->looked_ns + LOOK_NS;
    for (size_t i = 0; i < trip->fanout.count; i++) {
        uint64_t hedge_ns = hedge_at(&trip->errands[i]);
        due_ns = hedge_ns < due_ns ? hedge_ns : due_ns;
    }
    return due_ns;
}

/* A tenth of all answers, at the most: a shard that is slow for all is not asked twice as much. */
static bool may_hedge(const struct bag_shard_member *member)
{
    return atomic_load_explicit(&member->outcomes[BAG_SHARD_HEDGED], memory_order_relaxed) * 10 <=
           atomic_load_explicit(&member->outcomes[BAG_SHARD_OK], memory_order_relaxed);
}

static void hedge(struct bag_trip *trip, uint64_t now_ns)
{
    for (size_t i = 0; i < trip->fanout.count && !trip->is_over; i++) {
        struct bag_errand *errand = &trip->errands[i];
        if (hedge_at(errand) > now_ns)
            continue;
        errand->is_hedged = true;
        if (!may_hedge(member_of(errand)))
            continue;
        count(errand, BAG_SHARD_HEDGED);
        bag_front_send(trip->front, errand);
    }
}

/* Whether some group is known by now to have nothing that could be served. */
static bool lacks_versions(const struct bag_trip *trip)
{
    bool found = false;
    for (size_t i = 0; !found && i < trip->fanout.count; i++)
        found = bag_shard_group_lacks_versions(trip->errands[i].group);
    return found;
}

static void look_after(struct bag_trip *trip, uint64_t now_ns)
{
    if (trip->waits) {
        trip->renewal_ns = now_ns + RENEWAL_LOOK_NS;
        if (now_ns >= trip->deadline_ns || trip->is_renewed(trip) || lacks_versions(trip))
            fail(trip);
        return;
    }
    if (now_ns >= trip->deadline_ns) {
        end_late(trip);
        return;
    }
    if (now_ns >= trip->looked_ns + LOOK_NS) {
        trip->looked_ns = now_ns;
        if (!trip->is_connected(trip)) {
            bag_problem_set(&trip->problem, BAG_ERROR_CANCELLED,
                            "the client has closed the connection");
            fail(trip);
            return;
        }
    }
    hedge(trip, now_ns);
}

static void on_timer(uv_timer_t *timer)
{
    struct bag_front *front = timer->data;
    uint64_t now_ns = uv_hrtime(), due_ns = UINT64_MAX;
    front->due_ns = UINT64_MAX;
    for (struct bag_trip *trip = front->trips, *next; trip; trip = next) {
        next = trip->next;
        if (due_of(trip) <= now_ns)
            look_after(trip, now_ns);
    }
    for (const struct bag_trip *trip = front->trips; trip; trip = trip->next) {
        uint64_t own_ns = due_of(trip);
        due_ns = own_ns < due_ns ? own_ns : due_ns;
    }
    bag_front_tell(front);
    if (front->trips)
        wake_at(front, due_ns);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void begin_errand(struct bag_trip *trip, size_t i)
{
    const struct bag_fanout_call *call = &trip->fanout.calls[i];
    const struct bag_remote *remote =
        trip->infer->input.model->features[call->feature].memory->remote;
    struct bag_errand *errand = &trip->errands[i];
    *errand = (struct bag_errand){.trip = trip,
                                  .group = remote->group,
                                  .member = remote->addresses[call->shard],
                                  .begun_ns = trip->begun_ns};
}

/* One that is known not to answer is not asked. */
static void lose_away(struct bag_errand *errand, const char *why)
{
    bag_front_attempt_miss(errand, BAG_SHARD_REFUSED);
    bag_trip_lose(errand, BAG_SHARD_REFUSED, "%s", why);
}

void bag_trip_begin(struct bag_trip *trip, struct bag_front *front, uint64_t timeout_us)
{
    uint64_t timeout_ns = front->timeout_ns;
    trip->begun_ns = uv_hrtime();
    trip->deadline_is_clients = timeout_us < timeout_ns / 1000;
    trip->deadline_ns =
        trip->begun_ns + (trip->deadline_is_clients ? timeout_us * 1000 : timeout_ns);
    trip->looked_ns = trip->begun_ns + PATIENCE_NS;
    trip->front = front;
    trip->num_left = trip->fanout.count;
    insert(&front->trips, trip);
    for (size_t i = 0; i < trip->fanout.count; i++)
        begin_errand(trip, i);
    for (size_t i = 0; i < trip->fanout.count && !trip->is_over && !trip->waits; i++) {
        struct bag_errand *errand = &trip->errands[i];
        const struct bag_shard_member *member = member_of(errand);
        if (atomic_load_explicit(&member->host->is_away, memory_order_relaxed))
            lose_away(errand, "it does not answer");
        else if (atomic_load_explicit(&member->is_useless, memory_order_relaxed))
            lose_away(errand, "it tells nothing of its model");
        else
            bag_front_send(front, errand);
    }
    if (!trip->is_over && trip->num_left == 0)
        end_trip(trip);
    wake_at(front, front->over ? trip->begun_ns : due_of(trip));
}

/* Each shard that some call went without, once. */
static void tell_absent(struct bag_trip *trip)
{
    const char *addresses[BAG_TOLD_ABSENT];
    size_t count = 0;
    for (size_t i = 0; i < trip->fanout.count && count < BAG_TOLD_ABSENT; i++) {
        const char *address = member_of(&trip->errands[i])->host->address.text;
        bool is_told = !trip->fanout.calls[i].is_absent;
        for (size_t j = 0; !is_told && j < count; j++)
            is_told = addresses[j] == address;
        if (!is_told)
            addresses[count++] = address;
    }
    if (count)
        bag_infer_tell_absent(trip->infer, addresses, count);
}

void bag_trip_finish(struct bag_trip *trip)
{
    tell_absent(trip);
    bag_fanout_merge(trip->infer, &trip->fanout);
    bag_infer_finish(trip->infer);
}

void bag_trip_free(struct bag_trip *trip)
{
    if (trip->front && !trip->is_over)
        end_trip(trip);
    if (trip->front)
        take_out(trip);
    bag_fanout_free(&trip->fanout);
    free(trip->errands);
    trip->errands = NULL;
}
