/* Which connection a call goes over, and how many there are of each loop to each address; see
 * trip.h. */
#include "link.h"

#include "server/system/sockets.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of one loop to one address; further calls wait for one of them. */
#define MAX_LINKS 256

/* One that was idle for this long is closed: what lies between may have forgotten it. */
#define IDLE_NS (UINT64_C(20) * 1000000000)

/* ---- those that wait ------------------------------------------------------------------------- */

/* Those that wait are sent while there is a place; one that fails at once leaves its to the next.
 */
void bag_front_serve_waiting(struct bag_front *front, struct bag_front_lane *lane)
{
    for (struct bag_errand *errand;
         (errand = lane->first_waiting) && (lane->idle || lane->count < MAX_LINKS);) {
        if (!(lane->first_waiting = errand->next_waiting))
            lane->last_waiting = &lane->first_waiting;
        errand->is_waiting = false;
        bag_front_send(front, errand);
        if (errand->is_waiting) /* the system has no descriptor for it */
            return;
    }
}

static void stop_waiting(struct bag_front_lane *lane, struct bag_errand *errand)
{
    struct bag_errand **at = &lane->first_waiting;
    while (*at != errand)
        at = &(*at)->next_waiting;
    if (!(*at = errand->next_waiting))
        lane->last_waiting = at;
    errand->is_waiting = false;
}

static struct bag_front_lane *lane_of(const struct bag_front *front,
                                      const struct bag_errand *errand)
{
    return front->lanes[errand->group->members[errand->member].host->number];
}

void bag_front_give_up(struct bag_front *front, struct bag_errand *errand)
{
    if (errand->is_waiting) {
        bag_front_attempt_miss(errand, bag_front_attempt_left(errand));
        stop_waiting(lane_of(front, errand), errand);
    }
    for (int i = 0; i < 2; i++) {
        struct bag_front_link *link = errand->links[i];
        if (!link)
            continue;
        struct bag_front_lane *lane = link->lane;
        bag_front_link_abandon(link, bag_front_attempt_left(errand));
        bag_front_serve_waiting(front, lane);
    }
}

static void close_idle(struct bag_front_lane *lane)
{
    for (struct bag_front_link *link; (link = lane->idle);) {
        lane->idle = link->next;
        bag_front_link_close(link);
    }
}

void bag_front_distrust(struct bag_front *front, const struct bag_errand *errand)
{
    close_idle(lane_of(front, errand));
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* The lane to a host, made where there is none; NULL without memory. */
static struct bag_front_lane *find_lane(struct bag_front *front, struct bag_shard_host *host)
{
    if (host->number >= front->num_lanes) {
        size_t count = host->number + 1;
        struct bag_front_lane **lanes = reallocarray(front->lanes, count, sizeof *lanes);
        if (!lanes)
            return NULL;
        memset(lanes + front->num_lanes, 0, (count - front->num_lanes) * sizeof *lanes);
        front->lanes = lanes;
        front->num_lanes = count;
    }
    struct bag_front_lane *lane = front->lanes[host->number];
    if (!lane && (lane = calloc(1, sizeof *lane))) {
        lane->host = host;
        lane->last_waiting = &lane->first_waiting;
        front->lanes[host->number] = lane;
    }
    return lane;
}

static void wait_for_link(struct bag_front_lane *lane, struct bag_errand *errand)
{
    assert(!errand->is_waiting);
    errand->is_waiting = true;
    errand->next_waiting = NULL;
    *lane->last_waiting = errand;
    lane->last_waiting = &errand->next_waiting;
}

/* Whether connect(2) said that nobody listens there. */
static bool is_refusal(int error)
{
    return error == ECONNREFUSED || error == ENOENT || error == EHOSTUNREACH ||
           error == ENETUNREACH || error == EAGAIN;
}

/* It could not be sent. */
static void lose_unsent(struct bag_errand *errand, const char *why)
{
    bag_front_attempt_miss(errand, BAG_SHARD_REFUSED);
    bag_trip_lose(errand, BAG_SHARD_REFUSED, "%s", why);
}

/* Likewise, for want of something here: the shard is not to blame, and does not count as absent. */
static void lose_unasked(struct bag_errand *errand, int error)
{
    bag_front_attempt_miss(errand, BAG_SHARD_LACKING);
    bag_problem_set(&errand->trip->problem, BAG_ERROR_NO_MEMORY,
                    "this server has no %s left to ask shard %s with: %s",
                    error == EMFILE || error == ENFILE ? "descriptors" : "memory",
                    errand->group->members[errand->member].host->address.text, strerror(error));
    bag_trip_lose(errand, BAG_SHARD_LACKING, NULL);
}

static void send_new(struct bag_front *front, struct bag_front_lane *lane,
                     struct bag_errand *errand)
{
    struct bag_shard_place place;
    struct bag_front_link *link = NULL;
    bool found = bag_shard_host_place(errand->group->shards, lane->host, &place);
    while (found && !(link = bag_front_link_connect(front, lane, &place)) && is_refusal(errno) &&
           errand->refusals++ == 0) {
        bag_front_attempt_miss(errand, BAG_SHARD_REFUSED);
        found = bag_shard_host_place(errand->group->shards, lane->host, &place);
    }
    int error = errno;
    if (link)
        bag_front_link_send(link, errand);
    else if (!found)
        lose_unsent(errand, "its name does not resolve");
    else if (bag_is_lack(error) && lane->count > 0)
        wait_for_link(lane, errand);
    else if (bag_is_lack(error))
        lose_unasked(errand, error);
    else
        lose_unsent(errand, strerror(error));
}

void bag_front_send(struct bag_front *front, struct bag_errand *errand)
{
    struct bag_front_lane *lane = find_lane(front, errand->group->members[errand->member].host);
    if (!lane) {
        lose_unasked(errand, ENOMEM);
        return;
    }
    struct bag_front_link *link = lane->idle;
    if (link) {
        lane->idle = link->next;
        bag_front_link_send(link, errand);
    } else if (lane->count < MAX_LINKS) {
        send_new(front, lane, errand);
    } else {
        wait_for_link(lane, errand);
    }
}

/* ---- the front ------------------------------------------------------------------------------- */

/* Closes connections that were idle for long; those used last stand first. */
static void trim_lane(struct bag_front_lane *lane, uint64_t now_ns)
{
    for (struct bag_front_link **at = &lane->idle, *link; (link = *at);) {
        if (now_ns - link->idle_ns < IDLE_NS) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        bag_front_link_close(link);
    }
}

void bag_front_trim(struct bag_front *front)
{
    uint64_t now_ns = uv_now(front->loop) * 1000000;
    for (size_t i = 0; i < front->num_lanes; i++) {
        if (front->lanes[i])
            trim_lane(front->lanes[i], now_ns);
    }
}

bool bag_front_init(struct bag_front *front, uv_loop_t *loop, struct bag_buffers *buffers,
                    uint64_t timeout_ms)
{
    *front = (struct bag_front){
        .loop = loop, .buffers = buffers, .timeout_ns = timeout_ms * 1000000, .due_ns = UINT64_MAX};
    front->timer.data = front;
    return uv_timer_init(loop, &front->timer) == 0;
}

void bag_front_stop(struct bag_front *front)
{
    for (size_t i = 0; i < front->num_lanes; i++) {
        if (front->lanes[i])
            close_idle(front->lanes[i]);
    }
    uv_close((uv_handle_t *)&front->timer, NULL);
}

void bag_front_free(struct bag_front *front)
{
    for (size_t i = 0; i < front->num_lanes; i++)
        free(front->lanes[i]);
    free(front->lanes);
}
