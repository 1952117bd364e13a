/* Accepts connections and counts them by client; see accept.h. */
#include "accept.h"

#include "proto/proxy.h"
#include "server/engine/engine.h"
#include "server/system/log.h"

#include <assert.h>
#include <errno.h>
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

/* ---- new connections ------------------------------------------------------------------------- */

/* Adds the connection to its client and counts it in max_connections. Returns false and counts the
 * refusal if the client may have no more, or there is no memory. */
static bool join(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    if (bag_http_client_join(connections->clients, &connection->peer, &connection->client)) {
        bag_http_connection_count(connections, connection);
        return true;
    }
    atomic_fetch_add(&connections->refused, 1);
    return false;
}

/* Returns true if the connection begins with a PROXY header, which names its client. */
static bool sends_header(const struct bag_http_clients *clients,
                         const struct bag_http_connection *connection)
{
    return clients->limits.reads_proxy_headers &&
           bag_http_clients_trust(clients, &connection->peer);
}

/* Closes a connection that the library has not got. */
static void drop(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    close(connection->fd);
    bag_http_connection_remove(connections, connection);
}

/* A connection of a trusted proxy whose PROXY header is being received. The deadline is that of a
 * request head. */
struct proxied {
    struct bag_http_overload *overload;
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
    struct bag_http_connections *connections = proxied->overload->connections;
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
        if (join(connections, connection)) {
            bag_http_overload_on_connection(proxied->overload, connection);
            bag_engine_wake(connections->engine);
            return;
        }
    }
    if (bytes > 0 && !is_valid)
        bag_log(BAG_LOG_LEVEL_WARNING, "bad proxy header",
                BAG_LOG_TEXT("client", bag_http_peer_text(&connection->peer)),
                BAG_LOG_TEXT("message", problem.text));
    drop(connections, connection);
}

/* Polls the connection for its PROXY header. Closes it if there is not enough memory. */
static void await_header(struct bag_http_overload *overload, struct bag_http_connection *connection)
{
    struct bag_http_connections *connections = overload->connections;
    struct proxied *proxied = calloc(1, sizeof *proxied);
    if (proxied && uv_poll_init(connections->timer.loop, &proxied->poll, connection->fd) == 0) {
        proxied->overload = overload;
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

void bag_http_new_connections_take(struct bag_http_overload *overload)
{
    struct bag_http_connections *connections = overload->connections;
    struct bag_handoff_item *item = bag_handoff_take(&connections->new_connections), *next;
    for (; item; item = next) {
        struct bag_http_connection *connection =
            BAG_HANDOFF_OWNER(item, struct bag_http_connection, accepted);
        next = item->next;
        assert(connection->stage == BAG_HTTP_CONNECTION_ACCEPTED);
        if (sends_header(connections->clients, connection))
            await_header(overload, connection);
        else
            bag_http_overload_on_connection(overload, connection);
    }
}

/* ---- accepting ------------------------------------------------------------------------------- */

/* Returns the loop that gets the next connection: the one with the fewest, or at the limit the one
 * with the most, which evicts another one. Returns NULL if no more may be accepted. */
static struct bag_http_connections *choose_loop(const struct bag_http_acceptor *acceptor)
{
    bool is_full = bag_http_clients_are_full(&acceptor->clients);
    struct bag_http_connections *chosen = NULL;
    size_t chosen_count = 0;
    for (size_t i = 0; i < acceptor->clients.num_loops; i++) {
        size_t count = atomic_load(&acceptor->loops[i]->count);
        if (!chosen || (is_full ? count > chosen_count : count < chosen_count)) {
            chosen = acceptor->loops[i];
            chosen_count = count;
        }
    }
    return bag_http_clients_room(&acceptor->clients) > 0 ? chosen : NULL;
}

/* Makes the connection, counts it for its client and pushes it to its loop. Closes the socket if
 * the client may have no more, or there is no memory: the client sees a closed connection. */
static void pass_to_loop(struct bag_http_connections *connections, int fd,
                         const struct sockaddr_storage *from)
{
    struct bag_http_clients *clients = connections->clients;
    struct bag_http_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        close(fd);
        return;
    }
    connection->fd = fd;
    connection->is_unix = from->ss_family == AF_UNIX;
    connection->peer = bag_http_peer_of(from);
    if (!sends_header(clients, connection) && !join(connections, connection)) {
        close(fd);
        free(connection);
        return;
    }
    atomic_fetch_add(&connections->count, 1);
    atomic_fetch_add(&clients->open, 1);
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
                            struct bag_listener *listener, const struct bag_http_limits *limits,
                            const char *proxies, struct bag_problem *problem)
{
    memset(acceptor, 0, sizeof *acceptor);
    acceptor->loop = loop;
    acceptor->listener = listener;
    acceptor->poll.data = acceptor->timer.data = acceptor;
    acceptor->loops = calloc(loops, sizeof(struct bag_http_connections *));
    return bag_http_clients_init(&acceptor->clients, limits, proxies, problem) &&
           (acceptor->loops || bag_problem_no_memory(problem));
}

/* ---- draining -------------------------------------------------------------------------------- */

/* Returns true if a request is running that arrived before the drain. */
static bool has_early_requests(const struct bag_http_acceptor *acceptor)
{
    for (size_t i = 0; i < acceptor->clients.num_loops; i++) {
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
    atomic_store(&acceptor->clients.closed, true);
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
    bag_http_clients_free(&acceptor->clients);
    free(acceptor->loops);
}
