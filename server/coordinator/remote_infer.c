/* Trips: what becomes of the calls of one inference; see remote_infer.h. */
#include "remote_infer.h"

#include "proto/v2_client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rough costs of a run that is made and put together. */
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
uint64_t bag_remote_infer_cost_ns(const struct bag_infer *infer)
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

bool bag_remote_infer_make(struct bag_remote_infer *run, struct bag_infer *infer,
                           struct bag_buffers *buffers, struct bag_problem *problem)
{
    memset(run, 0, sizeof *run);
    run->infer = infer;
    if (!bag_infer_prepare(infer, buffers, problem))
        return false;
    if (!bag_fanout_make(infer, &run->fanout, problem)) {
        bag_infer_drop(infer);
        return false;
    }
    bag_infer_pool(infer, bag_split_all(infer->plan.num_ops));
    if (!bag_infer_check(infer, problem)) {
        bag_fanout_free(&run->fanout);
        return false;
    }
    run->subrequests = calloc(run->fanout.count + 1, sizeof *run->subrequests);
    if (run->subrequests)
        return true;
    bag_remote_infer_free(run);
    bag_infer_drop(infer);
    return bag_problem_no_memory(problem);
}

/* ---- the list of those on their way ---------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

static void insert(struct bag_remote_infer **list, struct bag_remote_infer *run)
{
    run->next = *list;
    run->connection = list;
    if (run->next)
        run->next->connection = &run->next;
    *list = run;
}

static void take_out(struct bag_remote_infer *run)
{
    *run->connection = run->next;
    if (run->next)
        run->next->connection = run->connection;
}

static void wake_at(struct bag_coordinator *coordinator, uint64_t due_ns)
{
    uint64_t now_ns = uv_hrtime();
    if (due_ns >= coordinator->due_ns)
        return;
    coordinator->due_ns = due_ns;
    uv_timer_start(&coordinator->timer, on_timer,
                   due_ns > now_ns ? (due_ns - now_ns + 999999) / 1000000 : 0, 0);
}

/* Nothing is to be waited for any more. */
static void end_run(struct bag_remote_infer *run)
{
    struct bag_coordinator *coordinator = run->coordinator;
    run->is_over = true;
    take_out(run);
    insert(&coordinator->over, run);
    for (size_t i = 0; i < run->fanout.count; i++)
        bag_subrequest_cancel(coordinator, &run->subrequests[i]);
}

void bag_coordinator_run_callbacks(struct bag_coordinator *coordinator)
{
    struct bag_remote_infer *run = coordinator->over;
    bool any = run != NULL;
    for (; run; run = coordinator->over) {
        take_out(run);
        run->coordinator = NULL;
        run->done(run);
    }
    if (any)
        coordinator->on_turn(coordinator->context);
}

/* ---- what becomes of an subrequest
 * --------------------------------------------------------------- */

static struct bag_shard_member *member_of(const struct bag_subrequest *subrequest)
{
    return &subrequest->group->members[subrequest->member];
}

static const struct bag_remote *remote_of(const struct bag_subrequest *subrequest)
{
    const struct bag_remote_infer *run = subrequest->run;
    const struct bag_fanout_call *call = &run->fanout.calls[subrequest - run->subrequests];
    return run->infer->input.model->features[call->feature].memory->remote;
}

static void count(struct bag_subrequest *subrequest, enum bag_shard_outcome outcome)
{
    subrequest->outcome = outcome;
    atomic_fetch_add_explicit(&member_of(subrequest)->outcomes[outcome], 1, memory_order_relaxed);
}

static void settle(struct bag_subrequest *subrequest)
{
    struct bag_remote_infer *run = subrequest->run;
    subrequest->is_done = true;
    if (--run->num_left == 0)
        end_run(run);
    else
        bag_subrequest_cancel(run->coordinator, subrequest);
}

static void fail(struct bag_remote_infer *run)
{
    run->failed = true;
    end_run(run);
}

/* What shards have is being asked; until it is known, or time is up, the run stays. */
static void wait_for_renewal(struct bag_remote_infer *run)
{
    uint64_t until_ns = uv_hrtime() + RENEWAL_NS;
    run->waits = true;
    run->renewal_ns = uv_hrtime() + RENEWAL_LOOK_NS;
    run->deadline_ns = until_ns < run->deadline_ns ? until_ns : run->deadline_ns;
    for (size_t i = 0; i < run->fanout.count; i++)
        bag_subrequest_cancel(run->coordinator, &run->subrequests[i]);
    wake_at(run->coordinator, run->renewal_ns);
}

/* What a client is told of an outcome. */
static enum bag_error kind_of(enum bag_shard_outcome outcome)
{
    if (outcome == BAG_SHARD_WRONG || outcome == BAG_SHARD_CLOSED)
        return BAG_ERROR_BAD_GATEWAY;
    return outcome == BAG_SHARD_LATE ? BAG_ERROR_SHARD_LATE : BAG_ERROR_SHARD_AWAY;
}

/* Whether the rows of the shard count as missing instead. */
static bool may_skip(const struct bag_subrequest *subrequest, enum bag_shard_outcome outcome)
{
    bool is_away = outcome == BAG_SHARD_REFUSED || outcome == BAG_SHARD_CLOSED ||
                   outcome == BAG_SHARD_REJECTED ||
                   (outcome == BAG_SHARD_LATE && !subrequest->run->deadline_is_clients);
    return is_away && remote_of(subrequest)->skips_absent;
}

void bag_subrequest_fail(struct bag_subrequest *subrequest, enum bag_shard_outcome outcome,
                         const char *format, ...)
{
    struct bag_remote_infer *run = subrequest->run;
    char why[300];
    va_list arguments;
    if (subrequest->is_done || run->is_over || run->waits)
        return;
    if (outcome == BAG_SHARD_WRONG)
        bag_subrequest_close_idle(run->coordinator, subrequest);
    if (bag_subrequest_has_attempt(subrequest) && outcome != BAG_SHARD_MISMATCH &&
        outcome != BAG_SHARD_LATE) {
        struct bag_fanout_call *call = &run->fanout.calls[subrequest - run->subrequests];
        subrequest->outcome = outcome; /* of this attempt alone: it is not counted */
        bag_buffers_put(call->reply);
        call->reply = NULL;
        return;
    }
    count(subrequest, outcome);
    if (format && may_skip(subrequest, outcome)) {
        run->fanout.calls[subrequest - run->subrequests].is_absent = true;
        settle(subrequest);
        return;
    }
    if (format) {
        va_start(arguments, format);
        vsnprintf(why, sizeof why, format, arguments);
        va_end(arguments);
        bag_problem_set(&run->problem, kind_of(outcome), "shard %s %s%s",
                        member_of(subrequest)->host->address.text,
                        outcome == BAG_SHARD_REFUSED ? "is away: " : "", why);
    }
    if (outcome == BAG_SHARD_MISMATCH) {
        run->is_mismatch = true;
        bag_shard_group_ask(subrequest->group);
        if (run->has_newer_model) {
            wait_for_renewal(run);
            return;
        }
    }
    fail(run);
}

static void take_answer(struct bag_subrequest *subrequest)
{
    struct bag_remote_infer *run = subrequest->run;
    struct bag_problem why BAG_UNSET;
    if (!bag_fanout_check(run->infer, &run->fanout, (size_t)(subrequest - run->subrequests),
                          &why)) {
        bool is_ours = why.kind == BAG_ERROR_NO_MEMORY;
        if (is_ours)
            run->problem = why;
        bag_subrequest_fail(subrequest, is_ours ? BAG_SHARD_LACKING : BAG_SHARD_WRONG,
                            is_ours ? NULL : "%s", why.text);
        return;
    }
    count(subrequest, BAG_SHARD_OK);
    bag_shard_latency_add(&member_of(subrequest)->latency, uv_hrtime() - subrequest->begun_ns);
    settle(subrequest);
}

/* At the deadline each subrequest that is left is lost: where rows may be missing, all of them. */
static void end_late(struct bag_remote_infer *run)
{
    uint64_t ms = run->deadline_is_clients ? run->infer->plan.timeout_us / 1000
                                           : run->coordinator->timeout_ns / 1000000;
    for (size_t i = 0; i < run->fanout.count && !run->is_over; i++)
        bag_subrequest_fail(&run->subrequests[i], BAG_SHARD_LATE,
                            "has not answered within %llu ms (%s)", (unsigned long long)ms,
                            run->deadline_is_clients ? "the request's timeout"
                                                     : "shard_timeout_ms");
}

/* A reply that is no success. A shard that gives up a request when its time is up is late. */
static void take_error(struct bag_subrequest *subrequest, int status, const char *text,
                       size_t bytes)
{
    struct bag_remote_infer *run = subrequest->run;
    char sentence[200];
    if (status == 400 && bag_fanout_blame(run->infer, &run->fanout,
                                          (size_t)(subrequest - run->subrequests), &run->problem)) {
        count(subrequest, BAG_SHARD_OK);
        fail(run);
        return;
    }
    if (uv_hrtime() >= run->deadline_ns) {
        end_late(run);
        return;
    }
    bag_client_read_error(text, bytes, sentence, sizeof sentence);
    enum bag_shard_outcome outcome =
        status == 404 || status == 409 ? BAG_SHARD_MISMATCH
        : status == 408 || status == 429 || status == 503 || status == 504 || status == 507
            ? BAG_SHARD_REJECTED
            : BAG_SHARD_WRONG;
    bag_subrequest_fail(subrequest, outcome, "answered %d%s%s", status, *sentence ? ": " : "",
                        sentence);
}

void bag_subrequest_on_reply(struct bag_subrequest *subrequest, const struct bag_reply_head *head,
                             char *reply)
{
    struct bag_remote_infer *run = subrequest->run;
    if (subrequest->is_done || run->is_over || run->waits) {
        bag_buffers_put(reply);
        return;
    }
    struct bag_fanout_call *call = &run->fanout.calls[subrequest - run->subrequests];
    atomic_store_explicit(&member_of(subrequest)->host->is_away, false, memory_order_relaxed);
    call->reply = reply;
    call->reply_bytes = (size_t)head->body_bytes;
    call->reply_header_bytes = (size_t)head->json_bytes;
    if (head->status == 200)
        take_answer(subrequest);
    else
        take_error(subrequest, head->status, reply, call->reply_bytes);
}

/* ---- time ------------------------------------------------------------------------------------ */

uint64_t bag_remote_infer_remaining_us(const struct bag_remote_infer *run)
{
    uint64_t now_ns = uv_hrtime();
    return run->deadline_ns >= now_ns + 1000 ? (run->deadline_ns - now_ns) / 1000 : 1;
}

/* When an subrequest is asked a second time; UINT64_MAX: never. */
static uint64_t hedge_at(const struct bag_subrequest *subrequest)
{
    if (subrequest->is_done || subrequest->is_hedged || subrequest->is_waiting ||
        subrequest->group->config.hedge == BAG_SHARD_HEDGE_OFF)
        return UINT64_MAX;
    uint64_t p95_ns = bag_shard_latency_p95_ns(&member_of(subrequest)->latency);
    if (p95_ns == UINT64_MAX)
        return UINT64_MAX;
    return subrequest->begun_ns + (p95_ns > MIN_HEDGE_NS ? p95_ns : MIN_HEDGE_NS);
}

/* When something is to be done about the run. */
static uint64_t due_of(const struct bag_remote_infer *run)
{
    uint64_t due_ns = run->deadline_ns;
    if (run->waits)
        return run->renewal_ns < due_ns ? run->renewal_ns : due_ns;
    if (run->looked_ns + LOOK_NS < due_ns)
        due_ns = run->looked_ns + LOOK_NS;
    for (size_t i = 0; i < run->fanout.count; i++) {
        uint64_t hedge_ns = hedge_at(&run->subrequests[i]);
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

static void hedge(struct bag_remote_infer *run, uint64_t now_ns)
{
    for (size_t i = 0; i < run->fanout.count && !run->is_over; i++) {
        struct bag_subrequest *subrequest = &run->subrequests[i];
        if (hedge_at(subrequest) > now_ns)
            continue;
        subrequest->is_hedged = true;
        if (!may_hedge(member_of(subrequest)))
            continue;
        count(subrequest, BAG_SHARD_HEDGED);
        bag_subrequest_send(run->coordinator, subrequest);
    }
}

/* Whether some group is known by now to have nothing that could be served. */
static bool lacks_versions(const struct bag_remote_infer *run)
{
    bool found = false;
    for (size_t i = 0; !found && i < run->fanout.count; i++)
        found = bag_shard_group_lacks_versions(run->subrequests[i].group);
    return found;
}

static void look_after(struct bag_remote_infer *run, uint64_t now_ns)
{
    if (run->waits) {
        run->renewal_ns = now_ns + RENEWAL_LOOK_NS;
        if (now_ns >= run->deadline_ns || run->has_newer_model(run) || lacks_versions(run))
            fail(run);
        return;
    }
    if (now_ns >= run->deadline_ns) {
        end_late(run);
        return;
    }
    if (now_ns >= run->looked_ns + LOOK_NS) {
        run->looked_ns = now_ns;
        if (!run->is_connected(run)) {
            bag_problem_set(&run->problem, BAG_ERROR_CANCELLED,
                            "the client has closed the connection");
            fail(run);
            return;
        }
    }
    hedge(run, now_ns);
}

static void on_timer(uv_timer_t *timer)
{
    struct bag_coordinator *coordinator = timer->data;
    uint64_t now_ns = uv_hrtime(), due_ns = UINT64_MAX;
    coordinator->due_ns = UINT64_MAX;
    for (struct bag_remote_infer *run = coordinator->runs, *next; run; run = next) {
        next = run->next;
        if (due_of(run) <= now_ns)
            look_after(run, now_ns);
    }
    for (const struct bag_remote_infer *run = coordinator->runs; run; run = run->next) {
        uint64_t own_ns = due_of(run);
        due_ns = own_ns < due_ns ? own_ns : due_ns;
    }
    bag_coordinator_run_callbacks(coordinator);
    if (coordinator->runs)
        wake_at(coordinator, due_ns);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void begin_subrequest(struct bag_remote_infer *run, size_t i)
{
    const struct bag_fanout_call *call = &run->fanout.calls[i];
    const struct bag_remote *remote =
        run->infer->input.model->features[call->feature].memory->remote;
    struct bag_subrequest *subrequest = &run->subrequests[i];
    *subrequest = (struct bag_subrequest){.run = run,
                                          .group = remote->group,
                                          .member = remote->addresses[call->shard],
                                          .begun_ns = run->begun_ns};
}

/* One that is known not to answer is not asked. */
static void lose_away(struct bag_subrequest *subrequest, const char *why)
{
    bag_attempt_record_unsent(subrequest, BAG_SHARD_REFUSED);
    bag_subrequest_fail(subrequest, BAG_SHARD_REFUSED, "%s", why);
}

void bag_remote_infer_begin(struct bag_remote_infer *run, struct bag_coordinator *coordinator,
                            uint64_t timeout_us)
{
    uint64_t timeout_ns = coordinator->timeout_ns;
    run->begun_ns = uv_hrtime();
    run->deadline_is_clients = timeout_us < timeout_ns / 1000;
    run->deadline_ns = run->begun_ns + (run->deadline_is_clients ? timeout_us * 1000 : timeout_ns);
    run->looked_ns = run->begun_ns + PATIENCE_NS;
    run->coordinator = coordinator;
    run->num_left = run->fanout.count;
    insert(&coordinator->runs, run);
    for (size_t i = 0; i < run->fanout.count; i++)
        begin_subrequest(run, i);
    for (size_t i = 0; i < run->fanout.count && !run->is_over && !run->waits; i++) {
        struct bag_subrequest *subrequest = &run->subrequests[i];
        const struct bag_shard_member *member = member_of(subrequest);
        if (atomic_load_explicit(&member->host->is_away, memory_order_relaxed))
            lose_away(subrequest, "it does not answer");
        else if (atomic_load_explicit(&member->is_useless, memory_order_relaxed))
            lose_away(subrequest, "it tells nothing of its model");
        else
            bag_subrequest_send(coordinator, subrequest);
    }
    if (!run->is_over && run->num_left == 0)
        end_run(run);
    wake_at(coordinator, coordinator->over ? run->begun_ns : due_of(run));
}

/* Each shard that some call went without, once. */
static void tell_absent(struct bag_remote_infer *run)
{
    const char *addresses[BAG_TOLD_ABSENT];
    size_t count = 0;
    for (size_t i = 0; i < run->fanout.count && count < BAG_TOLD_ABSENT; i++) {
        const char *address = member_of(&run->subrequests[i])->host->address.text;
        bool is_told = !run->fanout.calls[i].is_absent;
        for (size_t j = 0; !is_told && j < count; j++)
            is_told = addresses[j] == address;
        if (!is_told)
            addresses[count++] = address;
    }
    if (count)
        bag_infer_tell_absent(run->infer, addresses, count);
}

void bag_remote_infer_finish(struct bag_remote_infer *run)
{
    tell_absent(run);
    bag_fanout_merge(run->infer, &run->fanout);
    bag_infer_finish(run->infer);
}

void bag_remote_infer_free(struct bag_remote_infer *run)
{
    if (run->coordinator && !run->is_over)
        end_run(run);
    if (run->coordinator)
        take_out(run);
    bag_fanout_free(&run->fanout);
    free(run->subrequests);
    run->subrequests = NULL;
}
