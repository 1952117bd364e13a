/* Accepts connections and counts them by client; see accept.h. */
#include "accept.h"

#include "proto/proxy.h"
#include "server/engine/engine.h"
#include "server/system/log.h"

#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The interval in which a failed accept() is retried, the limit is checked again, and a drain
 * checks whether its next stage can start. */
#define TICK_MS 10

/* The number of connections that are accepted in one iteration of the loop. If the library uses
 * much time for open connections, accepting may take this part of it instead. A client that waits
 * behind many new connections would otherwise wait for many long iterations. */
#define MIN_ACCEPTED 10
#define ACCEPT_PARTS 3

/* The time in which a client completes the handshake of a connection that it has started. */
#define HANDSHAKE_MS 100

/* ---- clients --------------------------------------------------------------------------------- */

/* Orders clients by their address, for tsearch(3). */
static int compare(const void *one, const void *other)
{
    const struct bag_http_client *first = one, *second = other;
    return memcmp(first->address, second->address, sizeof first->address);
}

size_t bag_http_acceptor_room(const struct bag_http_acceptor *acceptor)
{
    size_t sum = 0;
    for (size_t i = 0; i < acceptor->num_loops; i++)
        sum += atomic_load(&acceptor->loops[i]->count);
    return sum < acceptor->limits.accepted ? acceptor->limits.accepted - sum : 0;
}

/* Returns true if a client may have one more connection: if it is below its limit, and no more of
 * its connections are beyond max_connections than places are left. So some places stay free for
 * other clients, however many clients want all of them. */
static bool may_join(const struct bag_http_acceptor *acceptor, const struct bag_http_client *client)
{
    return client->connections < acceptor->limits.per_client &&
           client->connections - client->counted <= bag_http_acceptor_room(acceptor);
}

/* Counts a connection in max_connections, unless that many are counted already. */
static void count(struct bag_http_acceptor *acceptor, struct bag_http_connection *connection)
{
    connection->counts = atomic_fetch_add(&acceptor->total, 1) < acceptor->limits.connections;
    if (!connection->counts)
        atomic_fetch_sub(&acceptor->total, 1);
    else if (connection->client)
        connection->client->counted++;
}

/* Counts the connection for its client and in max_connections. Connections of trusted proxies and
 * of Unix-domain sockets count for no client. Returns false and counts the refusal if the client
 * may have no more, or there is no memory. */
static bool join(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    struct bag_http_acceptor *acceptor = connections->acceptor;
    const struct bag_http_peer *peer = &connection->peer;
    if (!peer->known || bag_networks_have(&acceptor->proxies, peer->address)) {
        count(acceptor, connection);
        return true;
    }
    struct bag_http_client *client = calloc(1, sizeof *client);
    if (!client) {
        atomic_fetch_add(&connections->refused, 1);
        return false;
    }
    memcpy(client->address, peer->address, bag_http_peer_is_ipv4(peer) ? 16 : 8);
    uv_mutex_lock(&acceptor->lock);
    /* tsearch() returns the client that is in the tree, or inserts the new one. */
    struct bag_http_client *const *found = tsearch(client, &acceptor->clients, compare);
    if (!found || *found != client)
        free(client);
    if (found && may_join(acceptor, *found)) {
        connection->client = *found;
        connection->client->connections++;
    }
    uv_mutex_unlock(&acceptor->lock);
    if (connection->client)
        count(acceptor, connection);
    else
        atomic_fetch_add(&connections->refused, 1);
    return connection->client != NULL;
}

/* Returns true if the connection begins with a PROXY header, which names its client. */
static bool sends_header(const struct bag_http_acceptor *acceptor,
                         const struct bag_http_connection *connection)
{
    const struct bag_http_peer *peer = &connection->peer;
    return acceptor->limits.reads_proxy_headers && peer->known &&
           bag_networks_have(&acceptor->proxies, peer->address);
}

void bag_http_client_release(struct bag_http_acceptor *acceptor, struct bag_http_client *client)
{
    if (!client)
        return;
    uv_mutex_lock(&acceptor->lock);
    if (--client->connections == 0) {
        tdelete(client, &acceptor->clients, compare);
        free(client);
    }
    uv_mutex_unlock(&acceptor->lock);
}

/* ---- new connections ------------------------------------------------------------------------- */

/* Closes a connection that the library has not got. */
static void drop(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    close(connection->fd);
    bag_http_connection_remove(connections, connection);
}

/* Moves a connection to ADMITTED. If it does not count in max_connections, evicts another one first
 * and lets it count in its place. */
static void admit(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    if (!connection->counts) {
        bag_http_connections_evict(connections, connection->client);
        count(connections->acceptor, connection);
    }
    if (!connection->counts)
        bag_http_connections_bound_surplus(connections);
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_ADMITTED);
}

/* A connection of a trusted proxy whose PROXY header is being received. The deadline is that of a
 * request head. */
struct proxied {
    struct bag_http_connections *connections;
    struct bag_http_connection *connection; /* owned by its loop; the peer is the proxy */
    struct bag_proxy_header header;
    uv_poll_t poll;
};

static void on_proxied_close(uv_handle_t *poll)
{
    free(poll->data);
}

/* Reads the bytes that are sure to belong to the header, because the library must read the others.
 * Reads all of them that were received: the poll is not called again if the connection was reset
 * after them. */
static void on_header(uv_poll_t *poll, int status, int events)
{
    struct proxied *proxied = poll->data;
    struct bag_http_connection *connection = proxied->connection;
    struct bag_proxy_header *header = &proxied->header;
    struct bag_problem problem BAG_UNSET;
    char data[512];
    ssize_t bytes;
    bool is_valid;
    (void)events;
    do {
        size_t left =
            (header->total_bytes ? header->total_bytes : BAG_PROXY_FIXED_BYTES) - header->bytes;
        bytes = recv(connection->fd, data, left < sizeof data ? left : sizeof data, MSG_DONTWAIT);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR) && status == 0)
            return;
        is_valid = bytes > 0 && bag_proxy_read(header, data, (size_t)bytes, &left, &problem);
        connection->taken_bytes += bytes > 0 ? (uint64_t)bytes : 0;
    } while (is_valid && !header->is_complete);
    uv_close((uv_handle_t *)poll, on_proxied_close);
    if (is_valid && connection->stage == BAG_HTTP_CONNECTION_PROXIED) { /* before its deadline */
        if (header->has_source) { /* without one the proxy itself is the client */
            connection->peer = (struct bag_http_peer){.known = true, .port = header->source_port};
            memcpy(connection->peer.address, header->source, sizeof header->source);
        }
        if (join(proxied->connections, connection)) {
            admit(proxied->connections, connection);
            bag_engine_wake(proxied->connections->engine);
            return;
        }
    }
    if (bytes > 0 && !is_valid)
        bag_log(BAG_LOG_LEVEL_WARNING, "bad proxy header",
                BAG_LOG_TEXT("client", bag_http_peer_text(&connection->peer)),
                BAG_LOG_TEXT("message", problem.text));
    drop(proxied->connections, connection);
}

/* Polls the connection for its PROXY header. Closes it if there is not enough memory. */
static void await_header(struct bag_http_connections *connections,
                         struct bag_http_connection *connection)
{
    struct proxied *proxied = calloc(1, sizeof *proxied);
    if (proxied && uv_poll_init(connections->timer.loop, &proxied->poll, connection->fd) == 0) {
        proxied->connections = connections;
        proxied->connection = connection;
        proxied->poll.data = proxied;
        if (bag_poll_start(&proxied->poll, on_header)) {
            bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_PROXIED);
            return;
        }
        uv_close((uv_handle_t *)&proxied->poll, on_proxied_close);
    } else {
        free(proxied);
    }
    drop(connections, connection);
}

void bag_http_new_connections_take(struct bag_http_connections *connections)
{
    struct bag_handoff_item *item = bag_handoff_take(&connections->new_connections), *next;
    for (; item; item = next) {
        struct bag_http_connection *connection =
            BAG_HANDOFF_OWNER(item, struct bag_http_connection, accepted);
        next = item->next;
        assert(connection->stage == BAG_HTTP_CONNECTION_ACCEPTED);
        if (sends_header(connections->acceptor, connection))
            await_header(connections, connection);
        else
            admit(connections, connection);
    }
}

/* ---- accepting ------------------------------------------------------------------------------- */

/* Returns the loop that gets the next connection: the one with the fewest, or at the limit the one
 * with the most, which evicts another one. Returns NULL if no more may be accepted. */
static struct bag_http_connections *choose_loop(const struct bag_http_acceptor *acceptor)
{
    bool is_full = atomic_load(&acceptor->total) >= acceptor->limits.connections;
    struct bag_http_connections *chosen = NULL;
    size_t chosen_count = 0;
    for (size_t i = 0; i < acceptor->num_loops; i++) {
        size_t count = atomic_load(&acceptor->loops[i]->count);
        if (!chosen || (is_full ? count > chosen_count : count < chosen_count)) {
            chosen = acceptor->loops[i];
            chosen_count = count;
        }
    }
    return bag_http_acceptor_room(acceptor) > 0 ? chosen : NULL;
}

/* Makes the connection, counts it for its client and pushes it to its loop. Closes the socket if
 * the client may have no more, or there is no memory: the client sees a closed connection. */
static void pass_to_loop(struct bag_http_connections *connections, int fd,
                         const struct sockaddr_storage *from)
{
    struct bag_http_acceptor *acceptor = connections->acceptor;
    struct bag_http_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        close(fd);
        return;
    }
    connection->fd = fd;
    connection->is_unix = from->ss_family == AF_UNIX;
    connection->peer = bag_http_peer_of(from);
    if (!sends_header(acceptor, connection) && !join(connections, connection)) {
        close(fd);
        free(connection);
        return;
    }
    atomic_fetch_add(&connections->count, 1);
    if (bag_handoff_push(&connections->new_connections, &connection->accepted))
        bag_engine_wake(connections->engine);
}

static void on_timer(uv_timer_t *timer);

/* Accepts some of the waiting connections. After a failure and at the limit, pauses until the
 * timer.
 */
static void on_acceptable(uv_poll_t *poll, int status, int events)
{
    struct bag_http_acceptor *acceptor = poll->data;
    const uint64_t max_ns = acceptor->loops[0]->busy_ns / ACCEPT_PARTS, started_ns = uv_hrtime();
    struct bag_http_connections *chosen = choose_loop(acceptor);
    (void)status, (void)events;
    for (int i = 0; chosen && (i < MIN_ACCEPTED || uv_hrtime() - started_ns < max_ns); i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof from;
        int fd = accept4(acceptor->listener->fd, (struct sockaddr *)&from, &bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            acceptor->failed = false;
            pass_to_loop(chosen, fd, &from);
            chosen = choose_loop(acceptor);
            continue;
        }
        if (!bag_is_lack(errno))
            return; /* no connection waits, or the next accept() may succeed */
        if (!acceptor->failed)
            bag_log(BAG_LOG_LEVEL_WARNING, "cannot accept connections",
                    BAG_LOG_TEXT("reason", strerror(errno)));
        acceptor->failed = true;
        chosen = NULL;
    }
    if (chosen)
        return;
    uv_poll_stop(poll);
    uv_timer_start(&acceptor->timer, on_timer, TICK_MS, TICK_MS);
}

bool bag_http_acceptor_init(struct bag_http_acceptor *acceptor, uv_loop_t *loop, size_t loops,
                            struct bag_listener *listener,
                            const struct bag_http_acceptor_limits *limits, const char *proxies,
                            struct bag_problem *problem)
{
    *acceptor = (struct bag_http_acceptor){.loop = loop, .listener = listener, .limits = *limits};
    acceptor->poll.data = acceptor->timer.data = acceptor;
    acceptor->loops = calloc(loops, sizeof(struct bag_http_connections *));
    if (!bag_networks_parse(&acceptor->proxies, proxies, problem))
        return false;
    return (acceptor->loops && uv_mutex_init(&acceptor->lock) == 0) ||
           bag_problem_no_memory(problem);
}

/* ---- draining -------------------------------------------------------------------------------- */

/* Returns true if a request is running that arrived before the drain. */
static bool has_early_requests(const struct bag_http_acceptor *acceptor)
{
    for (size_t i = 0; i < acceptor->num_loops; i++) {
        const struct bag_http_connections *connections = acceptor->loops[i];
        if (bag_counter_get(&connections->in_flight) > bag_counter_get(&connections->late))
            return true;
    }
    return false;
}

/* Resumes accepting, and does the next step of a drain when it is due. A drain waits for earlier
 * requests, then stops new connections from starting, and closes the socket when all that had
 * started are accepted. */
static void on_timer(uv_timer_t *timer)
{
    struct bag_http_acceptor *acceptor = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    bool accepts = uv_is_active((uv_handle_t *)&acceptor->poll) ||
                   bag_poll_start(&acceptor->poll, on_acceptable);
    if (!acceptor->drain_until_ms) {
        if (accepts)
            uv_timer_stop(timer);
        return;
    }
    if (!acceptor->rejecting_ms) {
        if (has_early_requests(acceptor) && now_ms < acceptor->drain_until_ms)
            return;
        bag_listener_reject(acceptor->listener);
        acceptor->rejecting_ms = now_ms;
    }
    if (now_ms - acceptor->rejecting_ms < HANDSHAKE_MS ||
        bag_listener_has_waiting(acceptor->listener))
        return;
    uv_close((uv_handle_t *)&acceptor->poll, NULL);
    uv_close((uv_handle_t *)timer, NULL);
    bag_listener_close(acceptor->listener);
    atomic_store(&acceptor->closed, true);
}

bool bag_http_acceptor_start(struct bag_http_acceptor *acceptor, struct bag_problem *problem)
{
    if (uv_poll_init(acceptor->loop, &acceptor->poll, acceptor->listener->fd) != 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "cannot wait for connections");
    uv_timer_init(acceptor->loop, &acceptor->timer);
    uv_timer_start(&acceptor->timer, on_timer, 0, TICK_MS);
    return true;
}

void bag_http_acceptor_drain(struct bag_http_acceptor *acceptor, uint64_t max_wait_ms)
{
    if (acceptor->drain_until_ms)
        return;
    acceptor->drain_until_ms = uv_now(acceptor->loop) + max_wait_ms;
    uv_timer_start(&acceptor->timer, on_timer, 0, TICK_MS);
}

void bag_http_acceptor_free(struct bag_http_acceptor *acceptor)
{
    uv_mutex_destroy(&acceptor->lock);
    free(acceptor->loops);
}
