/* The open connections of a loop; see connection.h. */
#include "connection.h"

#include "server/engine/engine.h"
#include "server/system/tcp.h"

#include <assert.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The interval in which deadlines are checked, and the maximum number of connections that are
 * closed for their deadline in one iteration of the loop. */
#define TICK_MS  50
#define MAX_LATE 500

/* The number of ticks in which each connection is checked once for what has no deadline, and the
 * number of further checks in a tick. Without these the last of many that end would be found late,
 * because the share of a tick shrinks with their number. A check takes about 1 us. */
#define SWEEP_TICKS 40
#define EXTRA_SWEPT 16

/* A client that sends one request after another has sent the next one within this time. */
#define DRAINED_IDLE_MS 200

/* ---- stages ---------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

/* The stages that each stage may follow. */
#define AFTER(stage) (1u << BAG_HTTP_CONNECTION_##stage)
static const unsigned predecessors[BAG_HTTP_CONNECTION_STAGES] = {
    [BAG_HTTP_CONNECTION_PROXIED] = AFTER(ACCEPTED),
    [BAG_HTTP_CONNECTION_DEFERRED] = AFTER(ADMITTED),
    [BAG_HTTP_CONNECTION_ADMITTED] = AFTER(ACCEPTED) | AFTER(PROXIED) | AFTER(DEFERRED),
    [BAG_HTTP_CONNECTION_SURPLUS] = AFTER(ADMITTED),
    /* In the middle of a request if the library rejects it, or the client has disconnected. */
    [BAG_HTTP_CONNECTION_IDLE] = AFTER(ADMITTED) | AFTER(SURPLUS) | AFTER(HEAD) | AFTER(BODY) |
                                 AFTER(WAITING) | AFTER(SENDING_REPLY),
    [BAG_HTTP_CONNECTION_HEAD] = AFTER(IDLE) | AFTER(HEAD),
    [BAG_HTTP_CONNECTION_BODY] = AFTER(SURPLUS) | AFTER(HEAD),
    [BAG_HTTP_CONNECTION_WAITING] = AFTER(BODY) | AFTER(PAUSED),
    [BAG_HTTP_CONNECTION_PAUSED] = AFTER(WAITING),
    [BAG_HTTP_CONNECTION_SENDING_REPLY] = AFTER(BODY) | AFTER(WAITING),
    [BAG_HTTP_CONNECTION_SHUT_DOWN] = AFTER(PROXIED) | AFTER(SURPLUS) | AFTER(IDLE) | AFTER(HEAD) |
                                      AFTER(BODY) | AFTER(WAITING) | AFTER(SENDING_REPLY),
};

/* Inserts a connection after those that entered the stage before it, which is nearly always at the
 * end. */
static void insert(struct bag_http_connection_list *list, struct bag_http_connection *connection)
{
    struct bag_http_connection *before = TAILQ_LAST(&list->queue, bag_http_connection_queue);
    while (before && before->since_ms > connection->since_ms)
        before = TAILQ_PREV(before, bag_http_connection_queue, link);
    if (before)
        TAILQ_INSERT_AFTER(&list->queue, before, connection, link);
    else
        TAILQ_INSERT_HEAD(&list->queue, connection, link);
    list->count++;
}

/* Removes a connection from the list of its stage. If a sweep would continue with it, the sweep
 * continues with the next one. */
static void take_out(struct bag_http_connection_list *list, struct bag_http_connection *connection)
{
    if (list->next_swept == connection)
        list->next_swept = TAILQ_NEXT(connection, link);
    TAILQ_REMOVE(&list->queue, connection, link);
    list->count--;
}

/* Moves a connection to a stage whose deadline counts from `since_ms`. The first connection of a
 * loop starts the timer. */
static void enter_since(struct bag_http_connections *connections,
                        struct bag_http_connection *connection,
                        enum bag_http_connection_stage stage, uint64_t since_ms)
{
    uv_timer_t *timer = &connections->timer;
    if (connection->stage == BAG_HTTP_CONNECTION_SHUT_DOWN)
        return;
    assert(predecessors[stage] >> connection->stage & 1);
    if (connection->stage != BAG_HTTP_CONNECTION_ACCEPTED)
        take_out(&connections->lists[connection->stage], connection);
    else if (!uv_is_active((const uv_handle_t *)timer))
        uv_timer_start(timer, on_timer, TICK_MS, TICK_MS);
    connection->stage = stage;
    connection->since_ms = since_ms;
    insert(&connections->lists[stage], connection);
}

void bag_http_connection_enter(struct bag_http_connections *connections,
                               struct bag_http_connection *connection,
                               enum bag_http_connection_stage stage)
{
    enter_since(connections, connection, stage,
                stage == BAG_HTTP_CONNECTION_BODY ? connection->since_ms
                                                  : uv_now(connections->timer.loop));
}

void bag_http_connections_init(struct bag_http_connections *connections)
{
    for (unsigned stage = 0; stage < BAG_HTTP_CONNECTION_STAGES; stage++)
        TAILQ_INIT(&connections->lists[stage].queue);
}

void bag_http_connection_shut_down(struct bag_http_connections *connections,
                                   struct bag_http_connection *connection)
{
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_SHUT_DOWN);
    shutdown(connection->fd, SHUT_RDWR);
}

void bag_http_connection_count(struct bag_http_connections *connections,
                               struct bag_http_connection *connection)
{
    connection->counts = bag_http_client_count(connections->clients, connection->client);
}

void bag_http_connection_uncount(struct bag_http_connections *connections,
                                 struct bag_http_connection *connection)
{
    if (connection->counts)
        bag_http_client_uncount(connections->clients, connection->client);
    connection->counts = false;
}

void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection)
{
    if (connection->stage != BAG_HTTP_CONNECTION_ACCEPTED)
        take_out(&connections->lists[connection->stage], connection);
    bag_http_connection_uncount(connections, connection);
    bag_http_client_leave(connections->clients, connection->client);
    atomic_fetch_sub(&connections->clients->open, 1);
    if (atomic_fetch_sub(&connections->count, 1) == 1 && !connections->on_drained)
        uv_timer_stop(&connections->timer);
    free(connection);
}

/* ---- sockets --------------------------------------------------------------------------------- */

/* Returns 1 if a byte can be read, 0 if the client has closed its sending side, and -1 with errno
 * otherwise. */
static ssize_t peek(const struct bag_http_connection *connection)
{
    char byte;
    return recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
}

bool bag_http_connection_has_unread(const struct bag_http_connection *connection)
{
    return peek(connection) > 0;
}

bool bag_http_connection_is_open(const struct bag_http_connection *connection)
{
    struct pollfd end = {.fd = connection->fd, .events = POLLRDHUP};
    return poll(&end, 1, 0) <= 0;
}

/* Returns false for a Unix-domain socket, which has no such state. */
static bool read_state(const struct bag_http_connection *connection, struct bag_tcp_state *state)
{
    return !connection->is_unix && bag_tcp_read_state(connection->fd, state);
}

uint64_t bag_http_connection_quiet_ns(const struct bag_http_connection *connection)
{
    struct bag_tcp_state tcp;
    return read_state(connection, &tcp) ? tcp.received_ms * UINT64_C(1000000) : 0;
}

/* Returns true if a part of a request line was received: bytes that belong to no request. An empty
 * line before a request, which the library skips, does not count. */
static bool has_half_line(const struct bag_http_connection *connection,
                          const struct bag_tcp_state *tcp)
{
    return tcp->received_bytes > connection->taken_bytes + strlen("\r\n");
}

/* Returns true if no byte was received or acknowledged for idle_timeout_ms, although the next bytes
 * are due from the client: its request, or its acknowledgement of the reply. */
static bool is_still(const struct bag_http_connections *connections,
                     const struct bag_http_connection *connection, uint64_t now_ms)
{
    uint64_t idle_ms = connections->idle_timeout_ms;
    struct bag_tcp_state tcp;
    return now_ms >= connection->since_ms + idle_ms && read_state(connection, &tcp) &&
           tcp.received_ms >= idle_ms && tcp.sent_ms >= idle_ms;
}

/* Lets the library close a Unix-domain socket on which nothing moves for idle_timeout_ms. Only
 * connections that a sweep finds in the middle of a request get this timeout, because the library
 * examines all connections with a timeout in each of its rounds. */
static void set_timeout(struct bag_http_connections *connections,
                        struct bag_http_connection *connection)
{
    if (!connection->is_unix || connection->has_timeout)
        return;
    assert(connection->handle);
    connection->has_timeout =
        MHD_set_connection_option(connection->handle, MHD_CONNECTION_OPTION_TIMEOUT,
                                  (unsigned)(connections->idle_timeout_ms / 1000)) == MHD_YES;
    bag_engine_wake(connections->engine); /* the loop asks the library when to call it */
}

/* ---- lingering closes ------------------------------------------------------------------------ */

/* A client that has not read its reply within this time will not read it later. */
#define LINGER_MS 2000

/* The interval in which input is discarded. Within the first interval most clients have read their
 * reply and stopped sending. */
#define LINGER_TICK_MS 5

/* The number of bytes that are discarded in an interval, of all connections together: receiving the
 * rest of large bodies takes the kernel as long as answering requests. */
#define DISCARDED_PER_TICK ((ssize_t)1 << 20)

/* The number of lingering connections beside a quarter of max_connections. Each uses a descriptor.
 */
#define MIN_LINGERING 16

/* Discards received bytes and returns what recv() returns. TCP copies nothing for MSG_TRUNC without
 * a buffer (tcp(7)). A Unix-domain socket needs a buffer. */
static ssize_t discard_bytes(int fd, size_t maximum)
{
    char discarded[65536];
    ssize_t count = recv(fd, NULL, maximum, MSG_DONTWAIT | MSG_TRUNC);
    if (count < 0 && errno == EFAULT)
        count = recv(fd, discarded, sizeof discarded, MSG_DONTWAIT);
    return count;
}

/* Closes and frees a lingering connection. */
static void end_lingering(struct bag_http_connection_list *list,
                          struct bag_http_connection *connection)
{
    take_out(list, connection);
    close(connection->fd);
    free(connection);
}

/* Discards the input of the lingering connections, the oldest first, and closes those that have
 * ended or were kept for LINGER_MS. */
static void on_linger(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    struct bag_http_connection_list *list = &connections->lists[BAG_HTTP_CONNECTION_LINGERING];
    const uint64_t now_ms = uv_now(timer->loop);
    struct bag_http_connection *connection = TAILQ_FIRST(&list->queue), *next;
    for (ssize_t left = DISCARDED_PER_TICK; connection && left > 0; connection = next) {
        ssize_t count = discard_bytes(connection->fd, (size_t)left);
        bool has_closed = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
        next = TAILQ_NEXT(connection, link);
        left -= count > 0 ? count : 0;
        if (has_closed || now_ms >= connection->since_ms + LINGER_MS)
            end_lingering(list, connection);
    }
    if (list->count == 0)
        uv_timer_stop(timer);
}

void bag_http_connection_linger(struct bag_http_connections *connections, int fd)
{
    struct bag_http_connection_list *list = &connections->lists[BAG_HTTP_CONNECTION_LINGERING];
    uv_timer_t *timer = &connections->linger_timer;
    /* The client of the oldest one has had the most time to read its reply. */
    if (list->count == MIN_LINGERING + connections->clients->limits.connections / 4)
        end_lingering(list, TAILQ_FIRST(&list->queue));
    struct bag_http_connection *connection = malloc(sizeof *connection);
    int own_fd = connection ? dup(fd) : -1;
    if (own_fd < 0) {
        free(connection);
        return;
    }
    *connection = (struct bag_http_connection){
        .fd = own_fd, .stage = BAG_HTTP_CONNECTION_LINGERING, .since_ms = uv_now(timer->loop)};
    insert(list, connection);
    if (list->count == 1)
        uv_timer_start(timer, on_linger, LINGER_TICK_MS, LINGER_TICK_MS);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Returns true if an idle connection may be about to send a request: it has bytes that the library
 * has not read. A partial request line has no deadline of its own during a drain, so bytes that
 * were received a moment ago count then, too. They do not count after the time of a head, so a
 * client that sends a byte now and then does not prolong the drain further. For a Unix-domain
 * socket only unread bytes are known. */
static bool may_ask(const struct bag_http_connections *connections,
                    const struct bag_http_connection *connection, uint64_t now_ms)
{
    uint64_t head_ms = connections->timeouts_ms[BAG_HTTP_CONNECTION_HEAD];
    struct bag_tcp_state tcp;
    return bag_http_connection_has_unread(connection) ||
           (connections->on_drained && now_ms < connections->drained_since_ms + head_ms &&
            read_state(connection, &tcp) && tcp.received_ms < DRAINED_IDLE_MS);
}

/* Moves an idle connection that has received a part of a request line to HEAD, since its last byte
 * or since it became idle, whichever is later. */
static void expect_head(struct bag_http_connections *connections,
                        struct bag_http_connection *connection, uint64_t now_ms)
{
    struct bag_tcp_state tcp;
    if (connections->on_drained || !read_state(connection, &tcp) ||
        !has_half_line(connection, &tcp))
        return;
    uint64_t since_ms = now_ms - tcp.received_ms;
    enter_since(connections, connection, BAG_HTTP_CONNECTION_HEAD,
                since_ms > now_ms || since_ms < connection->since_ms ? connection->since_ms
                                                                     : since_ms);
}

/* Shuts down the connections of a stage whose deadline has passed. A client in the middle of a
 * request is first sent an error. */
static void shut_down_late(struct bag_http_connections *connections,
                           enum bag_http_connection_stage stage, uint64_t now_ms)
{
    struct bag_http_connection *connection = TAILQ_FIRST(&connections->lists[stage].queue), *next;
    uint64_t timeout_ms = connections->timeouts_ms[stage];
    bool is_request = stage == BAG_HTTP_CONNECTION_HEAD || stage == BAG_HTTP_CONNECTION_BODY;
    for (unsigned left = MAX_LATE;
         connection && left && now_ms >= connection->since_ms + timeout_ms;
         left--, connection = next) {
        next = TAILQ_NEXT(connection, link);
        if (is_request && connection->counts)
            connections->on_late(connections->context, connection);
        if (stage != BAG_HTTP_CONNECTION_IDLE || !may_ask(connections, connection, now_ms))
            bag_http_connection_shut_down(connections, connection);
    }
}

/* Checks some connections of a stage for what the library does not report:
 *
 *   - a client that has disconnected before its request was complete. The library waits for more if
 *     the end arrives together with bytes.
 *   - a connection on which nothing moves
 *   - a partial request line */
static void sweep(struct bag_http_connections *connections, enum bag_http_connection_stage stage,
                  uint64_t now_ms)
{
    struct bag_http_connection_list *list = &connections->lists[stage];
    if (!list->next_swept)
        list->next_swept = TAILQ_FIRST(&list->queue);
    for (size_t left = list->count / SWEEP_TICKS + EXTRA_SWEPT; list->next_swept && left; left--) {
        struct bag_http_connection *connection = list->next_swept;
        list->next_swept = TAILQ_NEXT(connection, link);
        ssize_t bytes = stage == BAG_HTTP_CONNECTION_SENDING_REPLY ? 1 : peek(connection);
        if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR))
            bag_http_connection_shut_down(connections, connection);
        else if (stage == BAG_HTTP_CONNECTION_IDLE && bytes < 0)
            expect_head(connections, connection, now_ms);
        else if (stage == BAG_HTTP_CONNECTION_IDLE || stage == BAG_HTTP_CONNECTION_PROXIED)
            continue;
        else if (is_still(connections, connection, now_ms))
            bag_http_connection_shut_down(connections, connection);
        else
            set_timeout(connections, connection);
    }
}

/* Checks deadlines, sweeps all stages, and ends a drain when no connection is left. */
static void on_timer(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    bool is_closed = connections->on_drained && atomic_load(&connections->clients->closed);
    if (is_closed && now_ms >= connections->drained_since_ms + DRAINED_IDLE_MS)
        connections->timeouts_ms[BAG_HTTP_CONNECTION_IDLE] = DRAINED_IDLE_MS;
    for (unsigned stage = 0; stage < BAG_HTTP_CONNECTION_STAGES; stage++) {
        if (connections->timeouts_ms[stage] == 0)
            continue;
        shut_down_late(connections, stage, now_ms);
        sweep(connections, stage, now_ms);
    }
    if (!is_closed || atomic_load(&connections->count) > 0 ||
        connections->lists[BAG_HTTP_CONNECTION_LINGERING].count > 0)
        return;
    uv_timer_stop(timer);
    connections->on_drained(connections->drain_context);
}

void bag_http_connections_drain(struct bag_http_connections *connections,
                                void (*done)(void *context), void *context)
{
    connections->drained_since_ms = uv_now(connections->timer.loop);
    connections->on_drained = done;
    connections->drain_context = context;
    /* Restarts both timers, which would fire late if the clock had gone back since they started. */
    uv_timer_start(&connections->timer, on_timer, 0, TICK_MS);
    uv_timer_start(&connections->linger_timer, on_linger, 0, LINGER_TICK_MS);
}
