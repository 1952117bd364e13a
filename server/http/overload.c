/* Policies for too many connections and requests; see overload.h. */
#include "overload.h"

#include "server/engine/engine.h"

#include <sys/ioctl.h>

/* ---- thresholds ------------------------------------------------------------------------------ */

/* evict: a connection that has been idle or receiving a head for less than this may be about to
 * continue. It is evicted only if its client has RICH_TIMES as many connections as the new one's.
 */
#define EVICTABLE_MS 1000
#define RICH_TIMES   8

/* evict: the maximum number of connections of a stage that are examined. */
#define MAX_EXAMINED 500

/* defer: the bytes that must have arrived on a new connection. A small request is shorter. */
#define DEFERRED_BYTES (12 << 10)

/* defer: the interval in which some deferred connections are admitted, usually to be rejected, and
 * their number. An older one is admitted in any iteration. */
#define TICK_MS           5
#define ADMITTED_PER_TICK 20
#define MAX_DEFERRED_MS   250

/* defer: one part of this many of all connections, and of one client's, may be deferred. If there
 * are more, no further ones are for STOP_MS. */
#define DEFERRED_PARTS 2
#define STOP_MS        5000

/* pause: if more than this are rejected in an iteration of the loop, connections are paused for
 * STORM_MS. A client that asks again within STORM_MS of a 503 gets the next one PAUSE_MS later. */
#define MAX_REJECTED 64
#define STORM_MS     1000
#define PAUSE_MS     200

/* memory: the number of quarters of the budget that the bodies and replies of one client may use.
 */
#define CLIENT_QUARTERS 3

/* ---- max_connections ------------------------------------------------------------------------- */

/* Returns true if a connection may be evicted for a new one of `client`, or of none. */
static bool is_evictable(const struct bag_http_connection *connection,
                         const struct bag_http_client *client, uint64_t now_ms)
{
    size_t theirs = connection->client ? connection->client->connections : 0;
    size_t ours = client ? client->connections : 0;
    bool is_idle = connection->stage == BAG_HTTP_CONNECTION_IDLE;
    bool is_free = is_idle || connection->stage == BAG_HTTP_CONNECTION_HEAD;
    if (!connection->counts)
        return false;
    if (client && theirs / RICH_TIMES > ours)
        return true;
    return connection->since_ms + EVICTABLE_MS <= now_ms &&
           (is_free || (client && theirs > ours)) &&
           (!is_idle || !bag_http_connection_has_unread(connection));
}

/* Shuts down one connection if max_connections is reached, so that a connection of `client` can
 * count in its place.
 *
 * Prefers a connection that has been idle, without unread bytes, or receiving a head for at least a
 * second, the oldest first. Otherwise evicts one that has been receiving a body or a reply for a
 * second, if its client has more connections than `client`. A client with many times as many
 * connections as `client` loses one even before the second has passed. */
static void evict(struct bag_http_connections *connections, const struct bag_http_client *client)
{
    const uint64_t now_ms = uv_now(connections->timer.loop);
    if (!bag_http_clients_are_full(connections->clients))
        return;
    for (unsigned stage = BAG_HTTP_CONNECTION_IDLE; stage <= BAG_HTTP_CONNECTION_SENDING_REPLY;
         stage++) {
        struct bag_http_connection *longest = TAILQ_FIRST(&connections->lists[stage].queue);
        bool is_suspended =
            stage == BAG_HTTP_CONNECTION_WAITING || stage == BAG_HTTP_CONNECTION_PAUSED;
        unsigned left = is_suspended ? 0 : MAX_EXAMINED;
        for (; longest && left; left--, longest = TAILQ_NEXT(longest, link)) {
            if (!is_evictable(longest, client, now_ms))
                continue;
            bag_http_connection_shut_down(connections, longest);
            bag_http_connection_uncount(connections, longest);
            return;
        }
    }
}

/* Shuts down the oldest connection beyond max_connections if there are so many of them that few
 * more could be accepted. Spares it if it has unread bytes, which may be its request. A client
 * without other connections can therefore still learn why it is rejected. */
static void bound_surplus(struct bag_http_connections *connections)
{
    const struct bag_http_clients *clients = connections->clients;
    const struct bag_http_limits *limits = &clients->limits;
    struct bag_http_connection *longest =
        TAILQ_FIRST(&connections->lists[BAG_HTTP_CONNECTION_SURPLUS].queue);
    if (longest &&
        2 * bag_http_clients_surplus_room(clients) < limits->accepted - limits->connections &&
        !bag_http_connection_has_unread(longest))
        bag_http_connection_shut_down(connections, longest);
}

/* ---- new connections ------------------------------------------------------------------------- */

/* Returns true if the request on a new connection would be rejected if it were read now. */
static bool would_be_rejected(const struct bag_http_overload *overload,
                              const struct bag_http_connection *connection)
{
    const struct bag_http_connections *connections = overload->connections;
    int waiting = 0;
    return connection->counts && !connections->on_drained &&
           (connections->lists[BAG_HTTP_CONNECTION_DEFERRED].count > 0 ||
            bag_engine_is_full(overload->engine)) &&
           ioctl(connection->fd, FIONREAD, &waiting) == 0 && waiting >= DEFERRED_BYTES &&
           !bag_engine_is_below_share(overload->engine, bag_http_peer_client(&connection->peer));
}

/* Returns whether a connection must be deferred. Each loop may defer an equal part. */
static bool must_defer(struct bag_http_overload *overload,
                       const struct bag_http_connection *connection)
{
    const struct bag_http_connections *connections = overload->connections;
    const struct bag_http_limits *limits = &connections->clients->limits;
    const uint64_t now_ms = uv_now(connections->timer.loop);
    if (!would_be_rejected(overload, connection))
        return false;
    if (connections->lists[BAG_HTTP_CONNECTION_DEFERRED].count >=
            limits->connections / DEFERRED_PARTS / connections->clients->num_loops ||
        (connection->client &&
         connection->client->connections >= limits->per_client / DEFERRED_PARTS))
        overload->defers_from_ms = now_ms + STOP_MS;
    return now_ms >= overload->defers_from_ms;
}

void bag_http_overload_on_connection(struct bag_http_overload *overload,
                                     struct bag_http_connection *connection)
{
    struct bag_http_connections *connections = overload->connections;
    if (!connection->counts &&
        !bag_http_client_gives_way(connections->clients, connection->client)) {
        evict(connections, connection->client);
        bag_http_connection_count(connections, connection);
    }
    if (!connection->counts) {
        if (connection->client)
            bag_http_client_want(connections->clients, connection->client);
        bound_surplus(connections);
    }
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_ADMITTED);
    if (must_defer(overload, connection))
        bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_DEFERRED);
}

/* ---- replies --------------------------------------------------------------------------------- */

bool bag_http_overload_on_reply(struct bag_http_overload *overload,
                                struct bag_http_connection *connection,
                                struct bag_http_reply *reply, bool can_wait)
{
    const uint64_t now_ms = uv_now(overload->connections->timer.loop);
    reply->close |= connection->counts &&
                    bag_http_client_gives_way(overload->connections->clients, connection->client);
    if (reply->status != 503)
        return false;
    if (can_wait && now_ms < overload->pauses_until_ms && connection->rejected_ms > 0 &&
        now_ms < connection->rejected_ms + STORM_MS && !overload->connections->on_drained)
        return true;
    connection->rejected_ms = now_ms;
    if (++overload->num_rejected > MAX_REJECTED)
        overload->pauses_until_ms = now_ms + STORM_MS;
    return false;
}

/* ---- each iteration -------------------------------------------------------------------------- */

/* Admits the newest deferred connection if the engine has capacity, because its client has waited
 * the least. Admits the oldest ones, which are usually rejected, if it is time. */
static void admit_deferred(struct bag_http_overload *overload, uint64_t now_ms)
{
    struct bag_http_connections *connections = overload->connections;
    struct bag_http_connection_list *deferred = &connections->lists[BAG_HTTP_CONNECTION_DEFERRED];
    const bool is_tick = now_ms >= overload->deferred_tick_ms + TICK_MS;
    if (is_tick)
        overload->deferred_tick_ms = now_ms;
    if (deferred->count && !bag_engine_is_full(overload->engine))
        bag_http_connection_enter(connections,
                                  TAILQ_LAST(&deferred->queue, bag_http_connection_queue),
                                  BAG_HTTP_CONNECTION_ADMITTED);
    for (unsigned left = ADMITTED_PER_TICK; deferred->count && left > 0; left--) {
        struct bag_http_connection *oldest = TAILQ_FIRST(&deferred->queue);
        if (!is_tick && now_ms < oldest->since_ms + MAX_DEFERRED_MS)
            break;
        bag_http_connection_enter(connections, oldest, BAG_HTTP_CONNECTION_ADMITTED);
    }
}

void bag_http_overload_tick(struct bag_http_overload *overload)
{
    struct bag_http_connections *connections = overload->connections;
    struct bag_http_connection_list *paused = &connections->lists[BAG_HTTP_CONNECTION_PAUSED];
    const uint64_t now_ms = uv_now(connections->timer.loop);
    struct bag_http_connection *oldest;
    overload->num_rejected = 0;
    admit_deferred(overload, now_ms);
    while ((oldest = TAILQ_FIRST(&paused->queue)) &&
           (connections->on_drained || now_ms >= oldest->since_ms + PAUSE_MS)) {
        oldest->rejected_ms = 0;
        overload->resume(overload, oldest);
    }
}

uint64_t bag_http_overload_due_ms(const struct bag_http_overload *overload)
{
    const struct bag_http_connection_list *lists = overload->connections->lists;
    bool waits =
        lists[BAG_HTTP_CONNECTION_DEFERRED].count || lists[BAG_HTTP_CONNECTION_PAUSED].count;
    return waits ? TICK_MS : UINT64_MAX;
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool bag_http_overload_has_room(const struct bag_budget *budget,
                                const struct bag_http_client *client, size_t own_bytes,
                                size_t bytes)
{
    size_t others = client ? client->held_bytes - own_bytes : 0;
    return !others || !budget || others + bytes <= budget->max_bytes / 4 * CLIENT_QUARTERS;
}
