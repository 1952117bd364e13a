/* Accepting connections; see accept.h. */
#include "accept.h"

#include "proto/proxy.h"
#include "server/engine/engine.h"
#include "server/system/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* After a failed accept, and at the limit, it is tried again by then. */
#define RETRY_MS 10

/* Connections that are accepted in one turn of the loop; where the library takes long for those
 * that are open, as many as take a third of that time, the rest being their beginning: whoever
 * waits behind others that come and go would wait for as many long turns. */
#define MAX_ACCEPTED 10
#define BEGIN_PARTS  3

/* How often it is looked whether the next stage of a drain can begin. */
#define TICK_MS 20

/* In this time a client whose connection has begun completes it. */
#define HANDSHAKE_MS 100

/* ---- clients --------------------------------------------------------------------------------- */

static struct bag_http_client **chain_of(struct bag_http_acceptor *acceptor,
                                         const uint8_t address[16])
{
    uint64_t hash = bag_hash_bytes(BAG_HASH_START, address, 16);
    return &acceptor->clients[(hash ^ hash >> 32) % 256];
}

/* The client of the address, with one connection more; NULL where it has as many as it may, or
 * there is no memory. */
static struct bag_http_client *acquire_client(struct bag_http_acceptor *acceptor,
                                              const uint8_t address[16])
{
    uv_mutex_lock(&acceptor->lock);
    struct bag_http_client **chain = chain_of(acceptor, address), *client = *chain;
    while (client && memcmp(client->address, address, 16) != 0)
        client = client->next;
    if (!client && (client = calloc(1, sizeof *client)) != NULL) {
        memcpy(client->address, address, 16);
        client->next = *chain;
        *chain = client;
    }
    if (client && atomic_fetch_add(&client->connections, 1) >= acceptor->limits.per_client) {
        atomic_fetch_sub(&client->connections, 1);
        client = NULL;
    }
    uv_mutex_unlock(&acceptor->lock);
    return client;
}

void bag_http_client_release(struct bag_http_acceptor *acceptor, struct bag_http_client *client)
{
    if (!client)
        return;
    uv_mutex_lock(&acceptor->lock);
    if (atomic_fetch_sub(&client->connections, 1) == 1) {
        struct bag_http_client **link = chain_of(acceptor, client->address);
        while (*link != client)
            link = &(*link)->next;
        *link = client->next;
        free(client);
    }
    uv_mutex_unlock(&acceptor->lock);
}

/* Whether a peer may have another connection. *client is whose it is then; NULL: it is not counted.
 */
static bool has_share(struct bag_http_acceptor *acceptor, const struct bag_http_peer *peer,
                      struct bag_http_client **client)
{
    uint8_t address[16];
    *client = NULL;
    if (!peer->known || bag_networks_have(&acceptor->proxies, peer->address))
        return true;
    memcpy(address, peer->address, sizeof address);
    if (!bag_http_peer_is_ipv4(peer))
        memset(address + 8, 0, 8);
    *client = acquire_client(acceptor, address);
    return *client != NULL;
}

/* ---- arrivals -------------------------------------------------------------------------------- */

static void drop(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    close(connection->fd);
    bag_http_connection_free(connections, connection);
}

/* The library is to take it, or it goes. */
static void admit(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    struct bag_http_acceptor *acceptor = connections->acceptor;
    if (!has_share(acceptor, &connection->peer, &connection->client)) {
        drop(connections, connection);
        return;
    }
    bag_http_connections_make_room(connections, connection->client);
    connection->counts = atomic_fetch_add(&acceptor->total, 1) < acceptor->limits.connections;
    if (!connection->counts) /* otherwise ending one would make no room beside it */
        atomic_fetch_sub(&acceptor->total, 1);
    connection->next = connections->arriving;
    connections->arriving = connection;
}

/* A connection of a trusted proxy whose header is still to come. */
struct proxied {
    struct bag_http_connections *connections;
    struct bag_http_connection
        *connection; /* owned; its peer is the proxy; NULL: it was admitted */
    struct bag_proxy_header header;
    uv_poll_t poll;
    uv_timer_t timer;
    unsigned open_handles;
};

static void on_proxied_close(uv_handle_t *handle)
{
    struct proxied *proxied = handle->data;
    if (--proxied->open_handles > 0)
        return;
    if (proxied->connection)
        drop(proxied->connections, proxied->connection);
    free(proxied);
}

static void end_proxied(struct proxied *proxied)
{
    uv_close((uv_handle_t *)&proxied->poll, on_proxied_close);
    uv_close((uv_handle_t *)&proxied->timer, on_proxied_close);
}

/* From here on the connection is that of the client whom the header names. */
static void admit_proxied(struct proxied *proxied)
{
    struct bag_http_connection *connection = proxied->connection;
    if (proxied->header.has_source) {
        connection->peer =
            (struct bag_http_peer){.known = true, .port = proxied->header.source_port};
        memcpy(connection->peer.address, proxied->header.source, sizeof connection->peer.address);
    }
    uv_poll_stop(&proxied->poll);
    proxied->connection = NULL;
    end_proxied(proxied);
    admit(proxied->connections, connection);
    bag_engine_wake(proxied->connections->engine);
}

/* Reads what is sure to be the header's: what follows is the library's. */
static void on_header(uv_poll_t *poll, int status, int events)
{
    struct proxied *proxied = poll->data;
    struct bag_proxy_header *header = &proxied->header;
    struct bag_problem problem BAG_UNSET;
    char data[512];
    size_t left =
        (header->total_bytes ? header->total_bytes : BAG_PROXY_FIXED_BYTES) - header->bytes;
    ssize_t bytes =
        recv(proxied->connection->fd, data, left < sizeof data ? left : sizeof data, MSG_DONTWAIT);
    (void)status, (void)events;
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (bytes > 0 && bag_proxy_read(header, data, (size_t)bytes, &left, &problem)) {
        if (header->is_complete)
            admit_proxied(proxied);
        return;
    }
    if (bytes > 0)
        bag_log(BAG_LOG_LEVEL_WARNING, "bad proxy header",
                BAG_LOG_TEXT("client", bag_http_peer_text(&proxied->connection->peer)),
                BAG_LOG_TEXT("message", problem.text));
    end_proxied(proxied);
}

static void on_late_header(uv_timer_t *timer)
{
    end_proxied(timer->data);
}

static void await_header(struct bag_http_connections *connections,
                         struct bag_http_connection *connection)
{
    uv_loop_t *loop = connections->timer.loop;
    struct proxied *proxied = malloc(sizeof *proxied);
    if (!proxied || uv_poll_init(loop, &proxied->poll, connection->fd) != 0) {
        free(proxied);
        drop(connections, connection);
        return;
    }
    proxied->connections = connections;
    proxied->connection = connection;
    proxied->header = (struct bag_proxy_header){.bytes = 0};
    proxied->open_handles = 2;
    proxied->poll.data = proxied->timer.data = proxied;
    uv_timer_init(loop, &proxied->timer);
    uv_timer_start(&proxied->timer, on_late_header,
                   connections->timeouts_ms[BAG_HTTP_CONNECTION_HEAD], 0);
    if (!bag_poll_start(&proxied->poll, on_header))
        end_proxied(proxied);
}

void bag_http_arrivals_take(struct bag_http_connections *connections)
{
    const struct bag_http_acceptor *acceptor = connections->acceptor;
    struct bag_http_connection *newest = NULL, *oldest = NULL, *next;
    if (atomic_load_explicit(&connections->handed, memory_order_relaxed))
        newest = atomic_exchange(&connections->handed, NULL);
    for (; newest; newest = next) {
        next = newest->next;
        newest->next = oldest;
        oldest = newest;
    }
    for (; oldest; oldest = next) {
        next = oldest->next;
        if (acceptor->limits.reads_proxy_headers && oldest->peer.known &&
            bag_networks_have(&acceptor->proxies, oldest->peer.address))
            await_header(connections, oldest);
        else
            admit(connections, oldest);
    }
}

void bag_http_arrivals_end(struct bag_http_connections *connections)
{
    while (connections->arriving) {
        struct bag_http_connection *connection = connections->arriving;
        connections->arriving = connection->next;
        bag_http_connection_free(connections, connection);
    }
}

/* ---- accepting ------------------------------------------------------------------------------- */

static void on_acceptable(uv_poll_t *poll, int status, int events);
static void on_retry(uv_timer_t *timer);

static void start_polling(struct bag_http_acceptor *acceptor)
{
    if (bag_poll_start(&acceptor->poll, on_acceptable))
        uv_timer_stop(&acceptor->retry);
    else
        uv_timer_start(&acceptor->retry, on_retry, RETRY_MS, 0);
}

static void on_retry(uv_timer_t *timer)
{
    start_polling(timer->data);
}

/* Those who wait are accepted later. */
static void pause_accepting(struct bag_http_acceptor *acceptor)
{
    uv_poll_stop(&acceptor->poll);
    uv_timer_start(&acceptor->retry, on_retry, RETRY_MS, 0);
}

static void on_failure(struct bag_http_acceptor *acceptor, int error)
{
    if (error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS)
        return; /* no connection waits any more, or the next accept may succeed */
    if (!acceptor->failed)
        bag_log(BAG_LOG_LEVEL_WARNING, "cannot accept connections",
                BAG_LOG_TEXT("reason", strerror(error)));
    acceptor->failed = true;
    pause_accepting(acceptor);
}

/* Who gets the next connection: the loop with the fewest, or at the limit that with the most, where
 * another makes room for it. NULL: there are as many as are accepted. */
static struct bag_http_connections *choose_loop(const struct bag_http_acceptor *acceptor)
{
    bool is_full = atomic_load(&acceptor->total) >= acceptor->limits.connections;
    struct bag_http_connections *chosen = NULL;
    size_t sum = 0, chosen_count = 0;
    for (size_t i = 0; i < acceptor->num_loops; i++) {
        size_t count = atomic_load(&acceptor->loops[i]->count);
        sum += count;
        if (!chosen || (is_full ? count > chosen_count : count < chosen_count)) {
            chosen = acceptor->loops[i];
            chosen_count = count;
        }
    }
    return sum < acceptor->limits.accepted ? chosen : NULL;
}

static void hand_over(struct bag_http_connections *connections, int fd,
                      const struct sockaddr_storage *from)
{
    struct bag_http_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        close(fd);
        return;
    }
    connection->fd = fd;
    connection->peer = bag_http_peer_of(from);
    atomic_fetch_add(&connections->count, 1);
    struct bag_http_connection *others = atomic_load(&connections->handed);
    do
        connection->next = others;
    while (!atomic_compare_exchange_weak(&connections->handed, &others, connection));
    /* From here on it is the loop's, which may have ended it. The loop takes all that are there, so
     * that it is woken by the first alone. */
    if (!others)
        bag_engine_wake(connections->engine);
}

static void on_acceptable(uv_poll_t *poll, int status, int events)
{
    struct bag_http_acceptor *acceptor = poll->data;
    const uint64_t most_ns = acceptor->loops[0]->busy_ns / BEGIN_PARTS, begun_ns = uv_hrtime();
    (void)status, (void)events;
    for (int i = 0; i < MAX_ACCEPTED || uv_hrtime() - begun_ns < most_ns; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof from;
        struct bag_http_connections *chosen = choose_loop(acceptor);
        if (!chosen) {
            pause_accepting(acceptor);
            return;
        }
        int fd = accept4(acceptor->listener->fd, (struct sockaddr *)&from, &bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            on_failure(acceptor, errno);
            return;
        }
        acceptor->failed = false;
        hand_over(chosen, fd, &from);
    }
}

bool bag_http_acceptor_init(struct bag_http_acceptor *acceptor, uv_loop_t *loop, size_t loops,
                            struct bag_listener *listener,
                            const struct bag_http_acceptor_limits *limits, const char *proxies,
                            struct bag_problem *problem)
{
    *acceptor = (struct bag_http_acceptor){.loop = loop, .listener = listener, .limits = *limits};
    acceptor->poll.data = acceptor->retry.data = acceptor->drain.data = acceptor;
    acceptor->loops = calloc(loops, sizeof(struct bag_http_connections *));
    if (!bag_networks_parse(&acceptor->proxies, proxies, problem))
        return false;
    return (acceptor->loops && uv_mutex_init(&acceptor->lock) == 0) ||
           bag_problem_no_memory(problem);
}

void bag_http_acceptor_add(struct bag_http_acceptor *acceptor,
                           struct bag_http_connections *connections)
{
    acceptor->loops[acceptor->num_loops++] = connections;
}

bool bag_http_acceptor_start(struct bag_http_acceptor *acceptor, struct bag_problem *problem)
{
    if (uv_poll_init(acceptor->loop, &acceptor->poll, acceptor->listener->fd) != 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "cannot wait for connections");
    uv_timer_init(acceptor->loop, &acceptor->retry);
    uv_timer_init(acceptor->loop, &acceptor->drain);
    start_polling(acceptor);
    return true;
}

/* ---- draining -------------------------------------------------------------------------------- */

/* Whether requests run that were there before the drain. */
static bool has_early_requests(const struct bag_http_acceptor *acceptor)
{
    for (size_t i = 0; i < acceptor->num_loops; i++) {
        const struct bag_http_connections *connections = acceptor->loops[i];
        if (bag_counter_get(&connections->in_flight) > bag_counter_get(&connections->late))
            return true;
    }
    return false;
}

static void on_tick(uv_timer_t *timer)
{
    struct bag_http_acceptor *acceptor = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    if (!acceptor->rejecting_ms) {
        if (has_early_requests(acceptor) && now_ms - acceptor->drains_ms < acceptor->max_wait_ms)
            return;
        bag_listener_reject(acceptor->listener);
        acceptor->rejecting_ms = now_ms;
    }
    if (now_ms - acceptor->rejecting_ms < HANDSHAKE_MS ||
        bag_listener_has_waiting(acceptor->listener))
        return;
    uv_close((uv_handle_t *)&acceptor->poll, NULL);
    uv_close((uv_handle_t *)&acceptor->retry, NULL);
    uv_close((uv_handle_t *)&acceptor->drain, NULL);
    bag_listener_close(acceptor->listener);
    atomic_store(&acceptor->closed, true);
}

void bag_http_acceptor_drain(struct bag_http_acceptor *acceptor, uint64_t max_wait_ms)
{
    if (acceptor->drains_ms)
        return;
    acceptor->drains_ms = uv_now(acceptor->loop);
    acceptor->max_wait_ms = max_wait_ms;
    uv_timer_start(&acceptor->drain, on_tick, 0, TICK_MS);
}

void bag_http_acceptor_free(struct bag_http_acceptor *acceptor)
{
    uv_mutex_destroy(&acceptor->lock);
    free(acceptor->loops);
}
