/* Remote inferences on their loop, and the loop's events; see remote_infer.h. */
#include "remote_infer.h"

#undef NDEBUG /* states are asserted in all builds */
#include <assert.h>
#include <stddef.h>
#include <string.h>

/* Estimated CPU time of a remote inference in ns. */
#define ID_NS            4 /* for an id that is sent to a shard */
#define SUM_BYTES_PER_NS 4 /* bytes of replies that are merged */

/* Age in ns of an inference from which on the client's connection is checked, and the interval of
 * these checks. */
#define PATIENCE_NS     (UINT64_C(1000000000))
#define CLIENT_CHECK_NS (UINT64_C(250000000))

/* Maximum number of inferences that travel together, and maximum sum of their estimated CPU times
 * in ns, which are spent on the loop. One of them takes at most an eighth of this sum. */
#define MAX_TOGETHER    128
#define MAX_TOGETHER_NS UINT64_C(200000)

/* Divisor of the number of inferences that travel together again after one of them had a wrong id.
 */
#define WRONG_SHARE 4

/* Maximum number of unavailable shards that a reply names. */
#define MAX_NAMED_ABSENT 256

/* Maximum time in ns of REFRESHING, and the interval in which it is checked whether a newer model
 * is served. */
#define REFRESH_NS       (UINT64_C(2000000000))
#define REFRESH_CHECK_NS (UINT64_C(20000000))

/* ---- making ---------------------------------------------------------------------------------- */

/* Adds to the time of partitioning and merging that of the inference on this server. If all its
 * tables are remote, nothing is pooled here. */
uint64_t bag_remote_infer_cost_ns(const struct bag_infer *infer)
{
    uint64_t reply_bytes = 0, pooling_ns = bag_infer_pool_cost_ns(infer);
    bool is_local = false;
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        uint64_t bytes = op->args.num_bags * op->memory->table.row_elements * sizeof(float);
        if (op->kind == BAG_OP_REMOTE)
            reply_bytes += bytes * op->memory->remote->num_shards;
        else
            is_local = true;
    }
    return infer->plan.work.rows * ID_NS + reply_bytes / SUM_BYTES_PER_NS +
           bag_infer_cost_ns(infer) - (is_local ? 0 : pooling_ns);
}

/* Inferences that travel together are sent again if a shard turns out to be unavailable, so none
 * joins others while that is known. */
bool bag_remote_infer_may_join(const struct bag_infer *infer)
{
    const struct bag_plan *plan = &infer->plan;
    if (plan->explains || bag_remote_infer_cost_ns(infer) > MAX_TOGETHER_NS / 8)
        return false;
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_remote *remote = plan->ops[i].memory->remote;
        for (size_t j = 0; remote && j < remote->num_shards; j++) {
            if (bag_shard_member_unavailable(&remote->group->members[remote->addresses[j]]))
                return false;
        }
    }
    return true;
}

/* Makes the subrequests of an inference and of those that follow it. Returns false and sets the
 * problem if memory is exhausted. */
static bool make_subrequests(struct bag_remote_infer *run)
{
    struct bag_subrequests *all = &run->subrequests;
    struct bag_infer *infers[MAX_TOGETHER] BAG_UNSET;
    size_t count = 1;
    struct bag_remote_infer *follower;
    infers[0] = all->infer;
    TAILQ_FOREACH(follower, &run->followers, entry)
    {
        infers[count++] = follower->subrequests.infer;
    }
    if (!bag_fanout_make(infers, count, &all->fanout, &all->problem))
        return false;
    if (bag_subrequests_make(all))
        return true;
    bag_fanout_free(&all->fanout);
    return bag_problem_no_memory(&all->problem);
}

bool bag_remote_infer_make(struct bag_remote_infer *run, struct bag_infer *infer,
                           struct bag_buffers *buffers, bool joins, struct bag_problem *problem)
{
    memset(run, 0, sizeof *run);
    run->subrequests.infer = infer;
    run->max_together = joins ? MAX_TOGETHER : 1;
    TAILQ_INIT(&run->followers);
    if (!bag_infer_prepare(infer, buffers, problem))
        return false;
    bag_infer_pool(infer, bag_split_all(infer->plan.num_ops));
    if (!bag_infer_check(infer, problem))
        return false;
    if (joins || make_subrequests(run))
        return true;
    *problem = run->subrequests.problem;
    bag_infer_drop(infer);
    return false;
}

/* ---- states of an inference ------------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer)
{
    bag_coordinator_check(timer->data);
}

/* Makes the timer fire at that time, unless it will fire earlier. */
static void wake_at(struct bag_coordinator *coordinator, uint64_t due_ns)
{
    if (due_ns >= coordinator->due_ns)
        return;
    uint64_t now_ns = coordinator->upstreams.clock_ns();
    coordinator->due_ns = due_ns;
    uv_timer_start(&coordinator->timer, on_timer,
                   due_ns > now_ns ? (due_ns - now_ns + 999999) / 1000000 : 0, 0);
}

/* Cancels the subrequests that are under way. */
static void cancel_all(struct bag_remote_infer *run)
{
    for (size_t i = 0; i < run->subrequests.fanout.count; i++)
        bag_subrequest_cancel(&run->subrequests.list[i]);
}

/* Has an inference, which is in no list, started when all events are handled. */
static void queue(struct bag_remote_infer *run)
{
    run->state = BAG_REMOTE_INFER_QUEUED;
    TAILQ_INSERT_TAIL(&run->coordinator->queued, run, entry);
}

/* Passes the subrequests of an inference that leaves to the first of its followers, which leads the
 * others from then on. */
static void hand_over(struct bag_remote_infer *run)
{
    struct bag_remote_infer *heir = TAILQ_FIRST(&run->followers), *one;
    struct bag_subrequests *from = &run->subrequests, *to = &heir->subrequests;
    TAILQ_REMOVE(&run->followers, heir, entry);
    TAILQ_CONCAT(&heir->followers, &run->followers, entry);
    TAILQ_FOREACH(one, &heir->followers, entry)
    {
        one->leader = heir;
    }
    to->fanout = from->fanout;
    to->list = from->list;
    to->started_ns = from->started_ns;
    to->deadline_ns = from->deadline_ns;
    for (size_t i = 0; i < to->fanout.count; i++)
        to->list[i].all = to;
    memset(&from->fanout, 0, sizeof from->fanout);
    from->list = NULL;
    heir->state = BAG_REMOTE_INFER_RUNNING;
    heir->client_check_ns = run->client_check_ns;
    TAILQ_INSERT_HEAD(&run->coordinator->active, heir, entry);
}

/* Returns the inference that has the subrequests of this one. */
static struct bag_remote_infer *leader_of(struct bag_remote_infer *run)
{
    return run->state == BAG_REMOTE_INFER_FOLLOWING ? run->leader : run;
}

/* Removes an inference from those that travel together, which go on without it, or cancels the
 * subrequests of one that is alone. It is in no list then. */
static void leave(struct bag_remote_infer *run)
{
    struct bag_remote_infer *leader = leader_of(run);
    if (leader != run) {
        TAILQ_REMOVE(&leader->followers, run, entry);
    } else {
        assert(run->state == BAG_REMOTE_INFER_RUNNING || run->state == BAG_REMOTE_INFER_REFRESHING);
        TAILQ_REMOVE(&run->coordinator->active, run, entry);
        leader = TAILQ_FIRST(&run->followers);
        if (!leader) {
            cancel_all(run);
            return;
        }
        hand_over(run);
    }
    struct bag_subrequests *all = &leader->subrequests;
    bag_fanout_leave(&all->fanout, run->subrequests.infer);
    for (size_t i = 0; i < all->fanout.count; i++) {
        if (!all->fanout.calls[i].infer)
            bag_subrequest_cancel(&all->list[i]);
    }
}

/* Ends an inference. Its `done` is called when no event is left. */
static void end(struct bag_remote_infer *run, bool failed)
{
    leave(run);
    run->state = BAG_REMOTE_INFER_ENDED;
    run->failed = failed;
    TAILQ_INSERT_TAIL(&run->coordinator->ended, run, entry);
}

/* Writes the results of an inference whose subrequests have ended well. Names each shard that one
 * of them went without, once. */
static void merge(struct bag_remote_infer *run)
{
    const struct bag_subrequests *all = &leader_of(run)->subrequests;
    const char *addresses[MAX_NAMED_ABSENT];
    size_t count = 0;
    for (size_t i = 0; i < all->fanout.count && count < MAX_NAMED_ABSENT; i++) {
        const struct bag_subrequest *subrequest = &all->list[i];
        const char *address = subrequest->member->host->address.text;
        bool is_named = subrequest->state != BAG_SUBREQUEST_ABSENT ||
                        !bag_fanout_count_uses(&all->fanout, run->subrequests.infer, i, i + 1);
        for (size_t j = 0; !is_named && j < count; j++)
            is_named = addresses[j] == address;
        if (!is_named)
            addresses[count++] = address;
    }
    if (count)
        bag_infer_add_absent(run->subrequests.infer, addresses, count);
    bag_fanout_merge(&all->fanout, run->subrequests.infer);
    run->is_merged = true;
}

/* Calls a function for each inference that follows the leader, and then for the leader. The
 * function may end each of them. Returns the leader of those that are left; NULL: none is. */
typedef void member_fn(struct bag_remote_infer *run, const struct bag_subrequest *subrequest);
static struct bag_remote_infer *each_member(struct bag_remote_infer *leader, member_fn *function,
                                            const struct bag_subrequest *subrequest)
{
    struct bag_remote_infer *run = TAILQ_FIRST(&leader->followers), *next;
    for (; run; run = next) {
        next = TAILQ_NEXT(run, entry);
        function(run, subrequest);
    }
    run = TAILQ_FIRST(&leader->followers);
    function(leader, subrequest);
    return leader->state == BAG_REMOTE_INFER_RUNNING ? leader : run;
}

/* Has an inference start again after the failure of a subrequest; NULL: it lacked memory. It starts
 * by itself. If one of the others has a wrong id, it starts with some of them instead. Several may
 * have one, and those that are well must neither wait for many failures nor be sent one by one. */
static void restart(struct bag_remote_infer *run, const struct bag_subrequest *subrequest)
{
    const size_t together = leader_of(run)->subrequests.fanout.num_made / WRONG_SHARE;
    run->max_together = subrequest && subrequest->call->has_wrong_id && together > 1 ? together : 1;
    leave(run);
    bag_subrequests_free(&run->subrequests);
    queue(run);
}

/* Handles the end of a subrequest for an inference that travels with others. If it needs the reply
 * and that has not come, it is started again, unless it has a wrong id or the time is over. */
static void settle(struct bag_remote_infer *run, const struct bag_subrequest *subrequest)
{
    const struct bag_subrequests *all = &leader_of(run)->subrequests;
    const size_t call = (size_t)(subrequest->call - all->fanout.calls);
    const size_t uses = bag_fanout_count_uses(&all->fanout, run->subrequests.infer, call, call + 1);
    const bool is_late = subrequest->outcome == BAG_SHARD_TIMEOUT;
    if (uses == 0)
        return;
    if (subrequest->state == BAG_SUBREQUEST_ANSWERED ||
        (subrequest->state == BAG_SUBREQUEST_ABSENT && is_late)) {
        run->num_pending -= uses;
        if (run->num_pending > 0)
            return;
        merge(run);
        end(run, false);
    } else if (is_late || subrequest->call->wrong == run->subrequests.infer) {
        run->subrequests.problem = all->problem;
        end(run, true);
    } else {
        restart(run, subrequest);
    }
}

/* Handles a subrequest that has ended by itself. The last one ends the inference, and so does one
 * that has FAILED. After a mismatch the inference waits for a newer model instead, unless the
 * caller does not want that. Returns the RUNNING inference that has the subrequests now; NULL:
 * there is none. */
static struct bag_remote_infer *on_subrequest_ended(struct bag_remote_infer *run,
                                                    const struct bag_subrequest *subrequest)
{
    assert(run->state == BAG_REMOTE_INFER_RUNNING);
    if (run->subrequests.fanout.num_made > 1)
        return each_member(run, settle, subrequest);
    if (subrequest->state != BAG_SUBREQUEST_FAILED) {
        assert(subrequest->state == BAG_SUBREQUEST_ANSWERED ||
               subrequest->state == BAG_SUBREQUEST_ABSENT);
        if (--run->num_pending > 0)
            return run;
        end(run, false);
        return NULL;
    }
    run->is_mismatch = subrequest->outcome == BAG_SHARD_MISMATCH;
    if (run->is_mismatch && run->has_newer_model) {
        /* Wait for what the shards have now, for a limited time within the deadline. */
        struct bag_subrequests *all = &run->subrequests;
        uint64_t now_ns = run->coordinator->upstreams.clock_ns();
        run->state = BAG_REMOTE_INFER_REFRESHING;
        run->refresh_check_ns = now_ns + REFRESH_CHECK_NS;
        if (now_ns + REFRESH_NS < all->deadline_ns)
            all->deadline_ns = now_ns + REFRESH_NS;
        cancel_all(run);
        wake_at(run->coordinator, run->refresh_check_ns);
    } else {
        end(run, true);
    }
    return NULL;
}

/* ---- the deadline, hedges and checks --------------------------------------------------------- */

/* Returns when bag_coordinator_check must look at an active inference again. */
static uint64_t due_of(const struct bag_remote_infer *run)
{
    const struct bag_subrequests *all = &run->subrequests;
    uint64_t due_ns = all->deadline_ns;
    if (run->state == BAG_REMOTE_INFER_REFRESHING)
        return run->refresh_check_ns < due_ns ? run->refresh_check_ns : due_ns;
    if (run->client_check_ns < due_ns)
        due_ns = run->client_check_ns;
    for (size_t i = 0; i < all->fanout.count; i++) {
        uint64_t hedge_ns = bag_subrequest_hedge_ns(&all->list[i]);
        due_ns = hedge_ns < due_ns ? hedge_ns : due_ns;
    }
    return due_ns;
}

/* Returns whether some group is known by now to have nothing that can be served. */
static bool lacks_versions(const struct bag_remote_infer *run)
{
    bool found = false;
    for (size_t i = 0; !found && i < run->subrequests.fanout.count; i++)
        found = bag_shard_group_lacks_versions(run->subrequests.list[i].group);
    return found;
}

/* Ends an inference whose client has left. */
static void check_client(struct bag_remote_infer *run, const struct bag_subrequest *subrequest)
{
    (void)subrequest;
    if (run->is_connected(run))
        return;
    bag_problem_set(&run->subrequests.problem, BAG_ERROR_CANCELLED,
                    "the client has closed the connection");
    end(run, true);
}

/* Checks the deadline, the clients and the hedges of a RUNNING inference. */
static void check_running(struct bag_remote_infer *run, uint64_t now_ns)
{
    const bool is_late = now_ns >= run->subrequests.deadline_ns;
    if (!is_late && now_ns >= run->client_check_ns) {
        run->client_check_ns = now_ns + CLIENT_CHECK_NS;
        run = each_member(run, check_client, NULL);
    }
    for (size_t i = 0; run && i < run->subrequests.fanout.count; i++) {
        struct bag_subrequest *subrequest = &run->subrequests.list[i];
        if (is_late && bag_subrequest_is_pending(subrequest)) {
            bag_subrequest_expire(subrequest);
            run = on_subrequest_ended(run, subrequest);
        } else if (!is_late && bag_subrequest_hedge_ns(subrequest) <= now_ns) {
            bag_subrequest_hedge(subrequest);
        }
    }
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Returns whether two inferences may travel together. Those with other timeouts do not: one would
 * wait longer than it may, or the shards would give up what the other still waits for. */
static bool are_alike(const struct bag_remote_infer *run, const struct bag_remote_infer *other)
{
    const struct bag_subrequests *mine = &run->subrequests, *others = &other->subrequests;
    return run->max_together == other->max_together &&
           mine->infer->input.model == others->infer->input.model &&
           mine->timeout_us == others->timeout_us &&
           mine->has_client_deadline == others->has_client_deadline;
}

/* Has queued inferences follow one that is started, if they fit. They have the latest deadline,
 * which differs by the time of an iteration. */
static void take_followers(struct bag_remote_infer *run)
{
    struct bag_coordinator *coordinator = run->coordinator;
    uint64_t cost_ns = bag_remote_infer_cost_ns(run->subrequests.infer);
    size_t count = 1;
    for (struct bag_remote_infer *one = TAILQ_FIRST(&coordinator->queued), *next; one; one = next) {
        next = TAILQ_NEXT(one, entry);
        if (!are_alike(run, one))
            continue;
        cost_ns += bag_remote_infer_cost_ns(one->subrequests.infer);
        if (++count > run->max_together || cost_ns > MAX_TOGETHER_NS)
            return;
        TAILQ_REMOVE(&coordinator->queued, one, entry);
        TAILQ_INSERT_TAIL(&run->followers, one, entry);
        one->state = BAG_REMOTE_INFER_FOLLOWING;
        one->leader = run;
        if (one->deadline_ns > run->subrequests.deadline_ns)
            run->subrequests.deadline_ns = one->deadline_ns;
    }
}

/* Counts the replies that an inference waits for. Ends it if that is none. */
static void count_pending(struct bag_remote_infer *run, const struct bag_subrequest *subrequest)
{
    const struct bag_fanout *fanout = &leader_of(run)->subrequests.fanout;
    (void)subrequest;
    run->num_pending = bag_fanout_count_uses(fanout, run->subrequests.infer, 0, fanout->count);
    if (run->num_pending > 0)
        return;
    merge(run);
    end(run, false);
}

/* Starts the subrequests of an inference, which is in no list. */
static void start(struct bag_remote_infer *run)
{
    struct bag_coordinator *coordinator = run->coordinator;
    struct bag_subrequests *all = &run->subrequests;
    run->state = BAG_REMOTE_INFER_RUNNING;
    TAILQ_INSERT_HEAD(&coordinator->active, run, entry);
    all->started_ns = coordinator->upstreams.clock_ns();
    all->deadline_ns = run->deadline_ns;
    if (run->max_together > 1)
        take_followers(run);
    if (!all->list && !make_subrequests(run)) {
        if (TAILQ_EMPTY(&run->followers))
            end(run, true);
        else
            each_member(run, restart, NULL);
        return;
    }
    run->num_pending = all->fanout.count;
    if (all->fanout.num_made > 1) {
        run = each_member(run, count_pending, NULL);
    } else if (run->num_pending == 0) {
        end(run, false);
        return;
    }
    for (size_t i = 0; run && i < run->subrequests.fanout.count; i++) {
        struct bag_subrequest *subrequest = &run->subrequests.list[i];
        if (subrequest->state == BAG_SUBREQUEST_UNSTARTED && bag_subrequest_start(subrequest))
            run = on_subrequest_ended(run, subrequest);
    }
    if (run)
        wake_at(coordinator, due_of(run));
}

/* Starts the inference that is queued for the longest time. Returns false if none is queued. */
static bool start_next(struct bag_coordinator *coordinator)
{
    struct bag_remote_infer *run = TAILQ_FIRST(&coordinator->queued);
    if (!run)
        return false;
    TAILQ_REMOVE(&coordinator->queued, run, entry);
    start(run);
    return true;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Gives all events to their subrequests, and starts what is queued. This may add events, queued
 * and ended inferences. */
static void handle_events(struct bag_coordinator *coordinator)
{
    do {
        struct bag_exchange *exchange;
        while ((exchange = bag_upstreams_take(&coordinator->upstreams))) {
            struct bag_subrequest *subrequest = exchange->owner;
            struct bag_remote_infer *run =
                (struct bag_remote_infer *)((char *)subrequest->all -
                                            offsetof(struct bag_remote_infer, subrequests));
            if (bag_subrequest_on_event(subrequest, exchange))
                on_subrequest_ended(run, subrequest);
        }
    } while (start_next(coordinator));
}

/* Calls `done` for all inferences that have ended. */
static void run_callbacks(struct bag_coordinator *coordinator)
{
    struct bag_remote_infer *run = TAILQ_FIRST(&coordinator->ended);
    bool any = run != NULL;
    for (; run; run = TAILQ_FIRST(&coordinator->ended)) {
        TAILQ_REMOVE(&coordinator->ended, run, entry);
        run->coordinator = NULL;
        run->done(run);
    }
    if (any)
        coordinator->on_turn(coordinator->context);
}

/* Called by libuv for the sockets of all upstreams of a loop. */
static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct bag_upstreams *upstreams = bag_upstreams_on_socket(poll, status, events);
    struct bag_coordinator *coordinator =
        (struct bag_coordinator *)((char *)upstreams - offsetof(struct bag_coordinator, upstreams));
    handle_events(coordinator);
    run_callbacks(coordinator);
}

/* Handles the events that a call from outside has caused; the timer calls `done`. */
static void handle_events_of_call(struct bag_coordinator *coordinator)
{
    handle_events(coordinator);
    if (!TAILQ_EMPTY(&coordinator->ended))
        wake_at(coordinator, 0);
}

void bag_coordinator_dispatch(struct bag_coordinator *coordinator)
{
    if (!TAILQ_EMPTY(&coordinator->queued))
        handle_events_of_call(coordinator);
}

void bag_coordinator_check(struct bag_coordinator *coordinator)
{
    uint64_t now_ns = coordinator->upstreams.clock_ns(), due_ns = UINT64_MAX;
    struct bag_remote_infer *run, *next;
    coordinator->due_ns = UINT64_MAX;
    for (run = TAILQ_FIRST(&coordinator->active); run; run = next) {
        next = TAILQ_NEXT(run, entry);
        if (due_of(run) > now_ns)
            continue;
        if (run->state == BAG_REMOTE_INFER_REFRESHING) {
            /* End a REFRESHING inference if a newer model is served, none can be, or the deadline
             * has passed. It always fails, and `done` decides whether to start again. */
            run->refresh_check_ns = now_ns + REFRESH_CHECK_NS;
            if (now_ns >= run->subrequests.deadline_ns || run->has_newer_model(run) ||
                lacks_versions(run))
                end(run, true);
        } else {
            check_running(run, now_ns);
        }
    }
    handle_events(coordinator);
    TAILQ_FOREACH(run, &coordinator->active, entry)
    {
        uint64_t own_ns = due_of(run);
        due_ns = own_ns < due_ns ? own_ns : due_ns;
    }
    wake_at(coordinator, due_ns); /* does nothing for UINT64_MAX, if no inference is active */
    run_callbacks(coordinator);
}

/* ---- begin and end --------------------------------------------------------------------------- */

void bag_remote_infer_begin(struct bag_remote_infer *run, struct bag_coordinator *coordinator,
                            uint64_t timeout_us)
{
    struct bag_subrequests *all = &run->subrequests;
    const uint64_t timeout_ns = coordinator->timeout_ns, now_ns = coordinator->upstreams.clock_ns();
    assert(run->state == BAG_REMOTE_INFER_PREPARED);
    run->coordinator = coordinator;
    all->upstreams = &coordinator->upstreams;
    all->has_client_deadline = timeout_us < timeout_ns / 1000;
    run->deadline_ns = now_ns + (all->has_client_deadline ? timeout_us * 1000 : timeout_ns);
    all->timeout_us = all->has_client_deadline ? all->infer->plan.timeout_us : timeout_ns / 1000;
    run->client_check_ns = now_ns + PATIENCE_NS + CLIENT_CHECK_NS;
    queue(run);
}

void bag_remote_infer_finish(struct bag_remote_infer *run)
{
    assert(run->state == BAG_REMOTE_INFER_ENDED && !run->failed);
    if (!run->is_merged)
        merge(run);
    bag_infer_finish(run->subrequests.infer);
}

void bag_remote_infer_free(struct bag_remote_infer *run)
{
    struct bag_coordinator *coordinator = run->coordinator;
    if (coordinator) {
        if (run->state == BAG_REMOTE_INFER_QUEUED)
            TAILQ_REMOVE(&coordinator->queued, run, entry);
        else if (run->state == BAG_REMOTE_INFER_ENDED)
            TAILQ_REMOVE(&coordinator->ended, run, entry);
        else
            leave(run);
        run->coordinator = NULL;
        handle_events_of_call(coordinator);
    }
    bag_subrequests_free(&run->subrequests);
}

/* ---- the coordinator ------------------------------------------------------------------------- */

bool bag_coordinator_init(struct bag_coordinator *coordinator, uv_loop_t *loop,
                          struct bag_buffers *buffers, uint64_t timeout_ms)
{
    memset(coordinator, 0, sizeof *coordinator);
    bag_upstreams_init(&coordinator->upstreams, loop, buffers, on_socket);
    coordinator->timeout_ns = timeout_ms * 1000000;
    TAILQ_INIT(&coordinator->active);
    TAILQ_INIT(&coordinator->queued);
    TAILQ_INIT(&coordinator->ended);
    coordinator->due_ns = UINT64_MAX;
    coordinator->timer.data = coordinator;
    return uv_timer_init(loop, &coordinator->timer) == 0;
}

void bag_coordinator_stop(struct bag_coordinator *coordinator)
{
    assert(TAILQ_EMPTY(&coordinator->active) && TAILQ_EMPTY(&coordinator->queued) &&
           TAILQ_EMPTY(&coordinator->ended));
    bag_upstreams_stop(&coordinator->upstreams);
    uv_close((uv_handle_t *)&coordinator->timer, NULL);
}

void bag_coordinator_free(struct bag_coordinator *coordinator)
{
    bag_upstreams_free(&coordinator->upstreams);
}

void bag_coordinator_close_idle(struct bag_coordinator *coordinator)
{
    bag_upstreams_close_unused(&coordinator->upstreams);
}
