/* The open connections of a loop; see connection.h. */
#include "connection.h"

#include "accept.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* How often deadlines are looked at, and of how many that have passed in one turn of the loop. */
#define TICK_MS  50
#define MAX_LATE 500

/* In so many ticks each connection is looked at for what has no deadline. It takes about 1 us. */
#define SWEEP_TICKS 40

/* A client that sends one request after another has sent the next one by then. */
#define DRAINED_IDLE_MS 200

/* One that has been idle, or at its head, for less than this may be about to go on. It makes room
 * all the same where its client has so many times as many as the client who arrives. */
#define EVICTABLE_MS 1000
#define RICH_TIMES   8

/* How many are looked through for one that makes room. */
#define MAX_LOOKED_AT 500

/* ---- stages ---------------------------------------------------------------------------------- */

/* Puts it behind those that have been there for longer: nearly always the last. */
static void insert(struct bag_http_connection_list *list, struct bag_http_connection *connection)
{
    struct bag_http_connection *before = list->last;
    while (before && before->since_ms > connection->since_ms)
        before = before->previous;
    connection->previous = before;
    connection->next = before ? before->next : list->first;
    *(before ? &before->next : &list->first) = connection;
    *(connection->next ? &connection->next->previous : &list->last) = connection;
    list->count++;
}

static void take_out(struct bag_http_connection_list *list, struct bag_http_connection *connection)
{
    if (list->next_swept == connection)
        list->next_swept = connection->next;
    *(connection->next ? &connection->next->previous : &list->last) = connection->previous;
    *(connection->previous ? &connection->previous->next : &list->first) = connection->next;
    list->count--;
}

void bag_http_connection_enter(struct bag_http_connections *connections,
                               struct bag_http_connection *connection,
                               enum bag_http_connection_stage stage)
{
    if (connection->stage == BAG_HTTP_CONNECTION_ENDED)
        return;
    take_out(&connections->lists[connection->stage], connection);
    connection->stage = stage;
    if (stage != BAG_HTTP_CONNECTION_BODY)
        connection->since_ms = uv_now(connections->timer.loop);
    insert(&connections->lists[stage], connection);
}

void bag_http_connection_end(struct bag_http_connections *connections,
                             struct bag_http_connection *connection)
{
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_ENDED);
    shutdown(connection->fd, SHUT_RDWR);
}

/* ---- sockets --------------------------------------------------------------------------------- */

/* As recv: 1 where there are bytes to read, 0 where the client has ended its side, -1. */
static ssize_t peek(const struct bag_http_connection *connection)
{
    char byte;
    return recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
}

bool bag_http_connection_is_open(const struct bag_http_connection *connection)
{
    ssize_t bytes = peek(connection);
    return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Whether nothing has moved for idle_timeout_ms, though it is for the client to send or to read. */
static bool is_still(const struct bag_http_connections *connections,
                     const struct bag_http_connection *connection, uint64_t now_ms)
{
    uint64_t idle_ms = connections->idle_timeout_ms;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    return now_ms >= connection->since_ms + idle_ms &&
           getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           info.tcpi_last_data_recv >= idle_ms && info.tcpi_last_data_sent >= idle_ms;
}

uint64_t bag_http_connection_quiet_ns(const struct bag_http_connection *connection)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes);
    return info.tcpi_last_data_recv * UINT64_C(1000000);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static void end_late(struct bag_http_connections *connections, enum bag_http_connection_stage stage,
                     uint64_t now_ms)
{
    struct bag_http_connection *connection = connections->lists[stage].first, *next;
    uint64_t timeout_ms = connections->timeouts_ms[stage];
    bool is_request = stage == BAG_HTTP_CONNECTION_HEAD || stage == BAG_HTTP_CONNECTION_BODY;
    for (unsigned left = MAX_LATE;
         connection && left && now_ms >= connection->since_ms + timeout_ms; left--) {
        next = connection->next;
        if (is_request && connection->counts)
            connections->on_late(connections->context, connection);
        if (stage != BAG_HTTP_CONNECTION_IDLE || peek(connection) <= 0)
            bag_http_connection_end(connections, connection);
        connection = next;
    }
}

/* Looks at some for what the library may not see: a client that has left before its request was
 * complete (where the end comes together with bytes, it waits for more), or that is still. */
static void sweep(struct bag_http_connections *connections, enum bag_http_connection_stage stage,
                  uint64_t now_ms)
{
    struct bag_http_connection_list *list = &connections->lists[stage];
    if (!list->next_swept)
        list->next_swept = list->first;
    for (size_t left = list->count / SWEEP_TICKS + 1; list->next_swept && left; left--) {
        struct bag_http_connection *connection = list->next_swept;
        list->next_swept = connection->next;
        bool reads = stage == BAG_HTTP_CONNECTION_READING;
        if ((!reads && !bag_http_connection_is_open(connection)) ||
            (stage != BAG_HTTP_CONNECTION_IDLE && is_still(connections, connection, now_ms)))
            bag_http_connection_end(connections, connection);
    }
}

/* Ends some of those on which nothing was asked since a moment ago, as far as can be known. */
static void end_idle(struct bag_http_connections *connections, uint64_t now_ms)
{
    struct bag_http_connection *connection = connections->lists[BAG_HTTP_CONNECTION_IDLE].first,
                               *next;
    uint64_t since_ms = connections->drained_since_ms;
    for (unsigned left = MAX_LATE; connection && left; left--, connection = next) {
        next = connection->next;
        uint64_t last_ms = connection->since_ms > since_ms ? connection->since_ms : since_ms;
        if (now_ms < last_ms + DRAINED_IDLE_MS)
            return;
        if (peek(connection) <= 0)
            bag_http_connection_end(connections, connection);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    for (unsigned stage = 0; stage < BAG_HTTP_CONNECTION_STAGES; stage++) {
        if (connections->timeouts_ms[stage] == 0)
            continue;
        end_late(connections, stage, now_ms);
        sweep(connections, stage, now_ms);
    }
    if (!connections->on_drained || !atomic_load(&connections->acceptor->closed))
        return;
    end_idle(connections, now_ms);
    if (atomic_load(&connections->count) > 0 || connections->num_lingering > 0)
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
    uv_timer_start(&connections->timer, on_timer, 0, TICK_MS);
}

/* ---- making room ----------------------------------------------------------------------------- */

/* Whether it may be ended for another of `client`: at once where its own client has many more. */
static bool is_evictable(const struct bag_http_connection *connection,
                         const struct bag_http_client *client, uint64_t now_ms)
{
    size_t theirs = connection->client ? connection->client->connections : 0;
    bool is_free = connection->stage <= BAG_HTTP_CONNECTION_HEAD;
    bool is_idle = connection->stage == BAG_HTTP_CONNECTION_IDLE;
    size_t ours = client ? client->connections : 0;
    if (!connection->counts)
        return false;
    if (client && theirs / RICH_TIMES > ours)
        return true;
    return connection->since_ms + EVICTABLE_MS <= now_ms &&
           (is_free || (client && theirs > ours)) && (!is_idle || peek(connection) <= 0);
}

/* The one that has been longest in a stage, of those that make room for one of `client`. */
static struct bag_http_connection *find_evictable(struct bag_http_connections *connections,
                                                  enum bag_http_connection_stage stage,
                                                  const struct bag_http_client *client)
{
    uint64_t now_ms = uv_now(connections->timer.loop);
    struct bag_http_connection *connection = connections->lists[stage].first;
    for (unsigned left = MAX_LOOKED_AT; connection && left; left--, connection = connection->next) {
        if (is_evictable(connection, client, now_ms))
            return connection;
    }
    return NULL;
}

void bag_http_connections_make_room(struct bag_http_connections *connections,
                                    const struct bag_http_client *client)
{
    static const enum bag_http_connection_stage unfinished[] = {
        BAG_HTTP_CONNECTION_IDLE, BAG_HTTP_CONNECTION_HEAD, BAG_HTTP_CONNECTION_BODY,
        BAG_HTTP_CONNECTION_READING};
    struct bag_http_acceptor *acceptor = connections->acceptor;
    struct bag_http_connection *evicted = NULL;
    if (atomic_load(&acceptor->total) < acceptor->limits.connections)
        return;
    for (size_t i = 0; i < sizeof unfinished / sizeof unfinished[0] && !evicted; i++)
        evicted = find_evictable(connections, unfinished[i], client);
    if (!evicted)
        return;
    bag_http_connection_end(connections, evicted);
    evicted->counts = false;
    atomic_fetch_sub(&acceptor->total, 1);
}

/* ---- a connection's life --------------------------------------------------------------------- */

struct bag_http_connection *bag_http_connection_begin(struct bag_http_connections *connections,
                                                      int fd)
{
    struct bag_http_connection **link = &connections->arriving;
    while (*link && (*link)->fd != fd)
        link = &(*link)->next;
    struct bag_http_connection *connection = *link;
    if (!connection)
        return NULL;
    *link = connection->next;
    if (!uv_is_active((const uv_handle_t *)&connections->timer))
        uv_timer_start(&connections->timer, on_timer, TICK_MS, TICK_MS);
    /* One beyond the limit is not for waiting. */
    connection->stage = connection->counts ? BAG_HTTP_CONNECTION_IDLE : BAG_HTTP_CONNECTION_HEAD;
    connection->since_ms = uv_now(connections->timer.loop);
    insert(&connections->lists[connection->stage], connection);
    return connection;
}

void bag_http_connection_free(struct bag_http_connections *connections,
                              struct bag_http_connection *connection)
{
    bag_http_client_release(connections->acceptor, connection->client);
    if (connection->counts)
        atomic_fetch_sub(&connections->acceptor->total, 1);
    if (atomic_fetch_sub(&connections->count, 1) == 1 && !connections->on_drained)
        uv_timer_stop(&connections->timer);
    free(connection);
}

void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection)
{
    take_out(&connections->lists[connection->stage], connection);
    bag_http_connection_free(connections, connection);
}

void bag_http_connection_on_request(struct bag_http_connections *connections,
                                    struct bag_http_connection *connection)
{
    connection->late = connections->on_drained != NULL;
    bag_counter_add(&connections->in_flight, 1);
    bag_counter_add(&connections->late, connection->late);
}

/* In this order: what is read between the two does not end a drain early. */
void bag_http_connection_on_request_end(struct bag_http_connections *connections,
                                        const struct bag_http_connection *connection)
{
    bag_counter_add(&connections->late, -(uint64_t)connection->late);
    bag_counter_add(&connections->in_flight, UINT64_MAX);
}

/* ---- replies past the library ---------------------------------------------------------------- */

/* Text that ends with NUL; `bytes` counts what did not fit, too. */
struct printer {
    char text[2048];
    size_t bytes;
};

static void print(struct printer *printer, const char *first, const char *second, const char *third)
{
    size_t room = printer->bytes < sizeof printer->text ? sizeof printer->text - printer->bytes : 0;
    int bytes = snprintf(room ? printer->text + printer->bytes : NULL, room, "%s%s%s\r\n", first,
                         second, third);
    printer->bytes += (size_t)bytes;
}

static bool print_header(void *context, const char *name, const char *value)
{
    print(context, name, ": ", value);
    return true;
}

bool bag_http_connection_send_past(const struct bag_http_connection *connection,
                                   const struct bag_http_reply *reply)
{
    struct printer head = {.bytes = 0};
    char number[24];
    if (!reply->body)
        return false;
    snprintf(number, sizeof number, "HTTP/1.1 %d ", reply->status);
    print(&head, number, MHD_get_reason_phrase_for((unsigned)reply->status), "");
    bag_http_reply_headers(reply, print_header, &head);
    snprintf(number, sizeof number, "%zu", reply->body_bytes);
    print(&head, "Content-Length: ", number, "\r\n");
    struct iovec parts[] = {{head.text, head.bytes}, {reply->body, reply->body_bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return head.bytes < sizeof head.text &&
           sendmsg(connection->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
               (ssize_t)(head.bytes + reply->body_bytes);
}

/* ---- all of them ----------------------------------------------------------------------------- */

void bag_http_connections_init(struct bag_http_connections *connections, uv_loop_t *loop)
{
    uv_timer_init(loop, &connections->timer);
    connections->last_lingering = &connections->lingering;
    uv_timer_init(loop, &connections->linger_timer);
    connections->timer.data = connections->linger_timer.data = connections;
}

void bag_http_connections_stop(struct bag_http_connections *connections)
{
    uv_close((uv_handle_t *)&connections->timer, NULL);
    uv_close((uv_handle_t *)&connections->linger_timer, NULL);
}
