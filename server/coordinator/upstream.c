/* Which connection a call goes over, and how many there are of each loop to each address; see
 * remote_infer.h. */
#include "upstream_connection.h"

#include "server/system/sockets.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of one loop to one address; further calls wait for one of them. */
#define MAX_CONNECTIONS 256

/* One that was idle for this long is closed: what lies between may have forgotten it. */
#define IDLE_NS (UINT64_C(20) * 1000000000)

/* ---- those that wait ------------------------------------------------------------------------- */

/* Those that wait are sent while there is a place; one that fails at once leaves its to the next.
 */
void bag_upstream_send_waiting(struct bag_coordinator *coordinator, struct bag_upstream *upstream)
{
    for (struct bag_subrequest *subrequest;
         (subrequest = upstream->first_waiting) &&
         (upstream->idle || upstream->count < MAX_CONNECTIONS);) {
        if (!(upstream->first_waiting = subrequest->next_waiting))
            upstream->last_waiting = &upstream->first_waiting;
        subrequest->is_waiting = false;
        bag_subrequest_send(coordinator, subrequest);
        if (subrequest->is_waiting) /* the system has no descriptor for it */
            return;
    }
}

static void stop_waiting(struct bag_upstream *upstream, struct bag_subrequest *subrequest)
{
    struct bag_subrequest **at = &upstream->first_waiting;
    while (*at != subrequest)
        at = &(*at)->next_waiting;
    if (!(*at = subrequest->next_waiting))
        upstream->last_waiting = at;
    subrequest->is_waiting = false;
}

static struct bag_upstream *upstream_of(const struct bag_coordinator *coordinator,
                                        const struct bag_subrequest *subrequest)
{
    return coordinator->upstreams[subrequest->group->members[subrequest->member].host->number];
}

void bag_subrequest_cancel(struct bag_coordinator *coordinator, struct bag_subrequest *subrequest)
{
    if (subrequest->is_waiting) {
        bag_attempt_record_unsent(subrequest, bag_attempt_cancel_outcome(subrequest));
        stop_waiting(upstream_of(coordinator, subrequest), subrequest);
    }
    for (int i = 0; i < 2; i++) {
        struct bag_upstream_connection *connection = subrequest->links[i];
        if (!connection)
            continue;
        struct bag_upstream *upstream = connection->upstream;
        bag_upstream_connection_abandon(connection, bag_attempt_cancel_outcome(subrequest));
        bag_upstream_send_waiting(coordinator, upstream);
    }
}

static void close_idle(struct bag_upstream *upstream)
{
    for (struct bag_upstream_connection *connection; (connection = upstream->idle);) {
        upstream->idle = connection->next;
        bag_upstream_connection_close(connection);
    }
}

void bag_subrequest_close_idle(struct bag_coordinator *coordinator,
                               const struct bag_subrequest *subrequest)
{
    close_idle(upstream_of(coordinator, subrequest));
}

/* ---- upstreams
 * ----------------------------------------------------------------------------------- */

/* The upstream to a host, made where there is none; NULL without memory. */
static struct bag_upstream *find_upstream(struct bag_coordinator *coordinator,
                                          struct bag_shard_host *host)
{
    if (host->number >= coordinator->num_lanes) {
        size_t count = host->number + 1;
        struct bag_upstream **upstreams =
            reallocarray(coordinator->upstreams, count, sizeof *upstreams);
        if (!upstreams)
            return NULL;
        memset(upstreams + coordinator->num_lanes, 0,
               (count - coordinator->num_lanes) * sizeof *upstreams);
        coordinator->upstreams = upstreams;
        coordinator->num_lanes = count;
    }
    struct bag_upstream *upstream = coordinator->upstreams[host->number];
    if (!upstream && (upstream = calloc(1, sizeof *upstream))) {
        upstream->host = host;
        upstream->last_waiting = &upstream->first_waiting;
        coordinator->upstreams[host->number] = upstream;
    }
    return upstream;
}

static void wait_for_connection(struct bag_upstream *upstream, struct bag_subrequest *subrequest)
{
    assert(!subrequest->is_waiting);
    subrequest->is_waiting = true;
    subrequest->next_waiting = NULL;
    *upstream->last_waiting = subrequest;
    upstream->last_waiting = &subrequest->next_waiting;
}

/* Whether connect(2) said that nobody listens there. */
static bool is_refusal(int error)
{
    return error == ECONNREFUSED || error == ENOENT || error == EHOSTUNREACH ||
           error == ENETUNREACH || error == EAGAIN;
}

/* It could not be sent. */
static void lose_unsent(struct bag_subrequest *subrequest, const char *why)
{
    bag_attempt_record_unsent(subrequest, BAG_SHARD_REFUSED);
    bag_subrequest_fail(subrequest, BAG_SHARD_REFUSED, "%s", why);
}

/* Likewise, for want of something here: the shard is not to blame, and does not count as absent. */
static void lose_unasked(struct bag_subrequest *subrequest, int error)
{
    bag_attempt_record_unsent(subrequest, BAG_SHARD_LACKING);
    bag_problem_set(&subrequest->run->problem, BAG_ERROR_NO_MEMORY,
                    "this server has no %s left to ask shard %s with: %s",
                    error == EMFILE || error == ENFILE ? "descriptors" : "memory",
                    subrequest->group->members[subrequest->member].host->address.text,
                    strerror(error));
    bag_subrequest_fail(subrequest, BAG_SHARD_LACKING, NULL);
}

static void send_new(struct bag_coordinator *coordinator, struct bag_upstream *upstream,
                     struct bag_subrequest *subrequest)
{
    struct bag_shard_place place;
    struct bag_upstream_connection *connection = NULL;
    bool found = bag_shard_host_place(subrequest->group->shards, upstream->host, &place);
    while (found &&
           !(connection = bag_upstream_connection_connect(coordinator, upstream, &place)) &&
           is_refusal(errno) && subrequest->refusals++ == 0) {
        bag_attempt_record_unsent(subrequest, BAG_SHARD_REFUSED);
        found = bag_shard_host_place(subrequest->group->shards, upstream->host, &place);
    }
    int error = errno;
    if (connection)
        bag_upstream_connection_send(connection, subrequest);
    else if (!found)
        lose_unsent(subrequest, "its name does not resolve");
    else if (bag_is_lack(error) && upstream->count > 0)
        wait_for_connection(upstream, subrequest);
    else if (bag_is_lack(error))
        lose_unasked(subrequest, error);
    else
        lose_unsent(subrequest, strerror(error));
}

void bag_subrequest_send(struct bag_coordinator *coordinator, struct bag_subrequest *subrequest)
{
    struct bag_upstream *upstream =
        find_upstream(coordinator, subrequest->group->members[subrequest->member].host);
    if (!upstream) {
        lose_unasked(subrequest, ENOMEM);
        return;
    }
    struct bag_upstream_connection *connection = upstream->idle;
    if (connection) {
        upstream->idle = connection->next;
        bag_upstream_connection_send(connection, subrequest);
    } else if (upstream->count < MAX_CONNECTIONS) {
        send_new(coordinator, upstream, subrequest);
    } else {
        wait_for_connection(upstream, subrequest);
    }
}

/* ---- the coordinator
 * ------------------------------------------------------------------------------- */

/* Closes connections that were idle for long; those used last stand first. */
static void trim_upstream(struct bag_upstream *upstream, uint64_t now_ns)
{
    for (struct bag_upstream_connection **at = &upstream->idle, *connection; (connection = *at);) {
        if (now_ns - connection->idle_ns < IDLE_NS) {
            at = &connection->next;
            continue;
        }
        *at = connection->next;
        bag_upstream_connection_close(connection);
    }
}

void bag_coordinator_close_idle(struct bag_coordinator *coordinator)
{
    uint64_t now_ns = uv_now(coordinator->loop) * 1000000;
    for (size_t i = 0; i < coordinator->num_lanes; i++) {
        if (coordinator->upstreams[i])
            trim_upstream(coordinator->upstreams[i], now_ns);
    }
}

bool bag_coordinator_init(struct bag_coordinator *coordinator, uv_loop_t *loop,
                          struct bag_buffers *buffers, uint64_t timeout_ms)
{
    *coordinator = (struct bag_coordinator){
        .loop = loop, .buffers = buffers, .timeout_ns = timeout_ms * 1000000, .due_ns = UINT64_MAX};
    coordinator->timer.data = coordinator;
    return uv_timer_init(loop, &coordinator->timer) == 0;
}

void bag_coordinator_stop(struct bag_coordinator *coordinator)
{
    for (size_t i = 0; i < coordinator->num_lanes; i++) {
        if (coordinator->upstreams[i])
            close_idle(coordinator->upstreams[i]);
    }
    uv_close((uv_handle_t *)&coordinator->timer, NULL);
}

void bag_coordinator_free(struct bag_coordinator *coordinator)
{
    for (size_t i = 0; i < coordinator->num_lanes; i++)
        free(coordinator->upstreams[i]);
    free(coordinator->upstreams);
}
