/* The open connections of a loop; see connection.h. */
#include "connection.h"

#include "message.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* How often each connection with a request is checked: the most by which a deadline is passed. A
 * check takes about 1 us: many at once would stop the loop for longer than a small request takes.
 * Those without a request are checked once, when they have been idle for SETTLED_MS. */
#define CHECK_MS     1000
#define CHECK_SLICES 20

#define SETTLED_MS      100
#define MAX_IDLE_CHECKS 500 /* in a turn of the loop */

/* A connection beyond the limit only has to take its rejection. */
#define SURPLUS_MS 2000

/* A connection that was idle for less than this may be about to ask. */
#define EVICTABLE_MS 1000

/* ---- stages ---------------------------------------------------------------------------------- */

/* The list that a connection is in: those without a request, or those whose deadlines are
 * checked. */
static struct bag_http_connection_list *list_of(struct bag_http_connections *connections,
                                                const struct bag_http_connection *connection)
{
    bool is_idle = connection->stage == BAG_HTTP_CONNECTION_IDLE && !connection->surplus;
    return is_idle ? &connections->idle : &connections->active;
}

static void append(struct bag_http_connections *connections, struct bag_http_connection_list *list,
                   struct bag_http_connection *connection)
{
    connection->next_listed = NULL;
    connection->previous_listed = list->last;
    if (list->last)
        list->last->next_listed = connection;
    else
        list->first = connection;
    list->last = connection;
    list->count++;
    if (list == &connections->idle && !connections->next_unchecked)
        connections->next_unchecked = connection;
}

static void take_out(struct bag_http_connections *connections,
                     struct bag_http_connection_list *list, struct bag_http_connection *connection)
{
    if (connections->next_checked == connection)
        connections->next_checked = connection->next_listed;
    if (connections->next_unchecked == connection)
        connections->next_unchecked = connection->next_listed;
    if (connection->next_listed)
        connection->next_listed->previous_listed = connection->previous_listed;
    else
        list->last = connection->previous_listed;
    if (connection->previous_listed)
        connection->previous_listed->next_listed = connection->next_listed;
    else
        list->first = connection->next_listed;
    list->count--;
}

void bag_http_connection_enter(struct bag_http_connections *connections,
                               struct bag_http_connection *connection,
                               enum bag_http_connection_stage stage)
{
    if (connection->stage == BAG_HTTP_CONNECTION_CUT_OFF)
        return;
    struct bag_http_connection_list *before = list_of(connections, connection);
    connection->stage = stage;
    connection->since_ms = uv_now(connections->timer.loop);
    struct bag_http_connection_list *after = list_of(connections, connection);
    if (after == before)
        return;
    take_out(connections, before, connection);
    append(connections, after, connection);
}

bool bag_http_connection_is_open(const struct bag_http_connection *connection)
{
    char byte;
    return recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* One without a request has no deadline here, but for one beyond the limit. */
static bool is_late(const struct bag_http_connections *connections,
                    const struct bag_http_connection *connection, uint64_t now_ms)
{
    uint64_t passed_ms = now_ms > connection->since_ms ? now_ms - connection->since_ms : 0;
    switch (connection->stage) {
    case BAG_HTTP_CONNECTION_IDLE:
        return connection->surplus && passed_ms >= SURPLUS_MS;
    case BAG_HTTP_CONNECTION_BEGINNING:
    case BAG_HTTP_CONNECTION_SENDING:
        return passed_ms >= connections->limits.request_timeout_ms;
    case BAG_HTTP_CONNECTION_READING:
        return passed_ms >= connections->limits.reply_timeout_ms;
    default:
        return false;
    }
}

/* Whether nothing has moved for idle_timeout_ms, though it is for the client to send or to read. */
static bool is_still(const struct bag_http_connections *connections,
                     const struct bag_http_connection *connection, uint64_t now_ms)
{
    uint64_t idle_ms = connections->limits.idle_timeout_ms;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    bool is_clients_turn = connection->stage <= BAG_HTTP_CONNECTION_SENDING ||
                           connection->stage == BAG_HTTP_CONNECTION_READING;
    return is_clients_turn && now_ms >= connection->since_ms + idle_ms &&
           getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           info.tcpi_last_data_recv >= idle_ms && info.tcpi_last_data_sent >= idle_ms;
}

/* A client that has left before its request was complete. The library does not always see that:
 * where the end comes together with bytes, it waits for more. */
static bool has_left(const struct bag_http_connection *connection)
{
    return connection->stage <= BAG_HTTP_CONNECTION_SENDING &&
           !bag_http_connection_is_open(connection);
}

static void end(struct bag_http_connections *connections, struct bag_http_connection *connection)
{
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_CUT_OFF);
    shutdown(connection->fd, SHUT_RDWR);
}

/* Ends a connection. One that is at its request is told why, if it can be. */
static void cut_off(struct bag_http_connections *connections,
                    struct bag_http_connection *connection)
{
    struct bag_http_reply reply;
    if (connection->stage == BAG_HTTP_CONNECTION_SENDING) {
        bag_http_reply_error(&reply, BAG_ERROR_TIMEOUT,
                             "the request took longer than %d s (request_timeout_s)",
                             (int)(connections->limits.request_timeout_ms / 1000));
        bag_http_connection_send_raw(connection, &reply);
        bag_http_reply_drop(&reply);
    }
    end(connections, connection);
}

static bool has_bytes(const struct bag_http_connection *connection)
{
    char byte;
    return recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* Checks once whether the client of a connection that has become idle is still there: its end may
 * have come with its request. What comes later the library sees. */
static void check_idle(struct bag_http_connections *connections, uint64_t now_ms)
{
    struct bag_http_connection *connection = connections->next_unchecked;
    for (unsigned left = MAX_IDLE_CHECKS;
         connection && left && now_ms >= connection->since_ms + SETTLED_MS; left--) {
        connections->next_unchecked = connection->next_listed;
        if (!bag_http_connection_is_open(connection))
            end(connections, connection);
        connection = connections->next_unchecked;
    }
}

/* Ends those on which nothing was asked for too long: the first of the list, as it is in the order
 * in which they became idle. */
static void end_idle(struct bag_http_connections *connections, uint64_t now_ms)
{
    struct bag_http_connection *connection = connections->idle.first, *next;
    uint64_t idle_ms = connections->limits.idle_timeout_ms;
    for (unsigned left = MAX_IDLE_CHECKS;
         connection && left && now_ms >= connection->since_ms + idle_ms; left--) {
        next = connection->next_listed;
        if (!has_bytes(connection))
            end(connections, connection);
        connection = next;
    }
}

static void check_active(struct bag_http_connections *connections, uint64_t now_ms)
{
    if (!connections->next_checked)
        connections->next_checked = connections->active.first;
    for (size_t left = connections->active.count / CHECK_SLICES + 1;
         connections->next_checked && left; left--) {
        struct bag_http_connection *connection = connections->next_checked;
        connections->next_checked = connection->next_listed;
        if (has_left(connection))
            end(connections, connection);
        else if (is_late(connections, connection, now_ms))
            cut_off(connections, connection);
        else if (is_still(connections, connection, now_ms))
            end(connections, connection);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    check_idle(connections, now_ms);
    end_idle(connections, now_ms);
    check_active(connections, now_ms);
}

void bag_http_connections_close_idle(struct bag_http_connections *connections, uint64_t since_ms,
                                     uint64_t idle_ms)
{
    uint64_t now_ms = uv_now(connections->timer.loop);
    for (struct bag_http_connection *connection = connections->first; connection;
         connection = connection->next) {
        uint64_t last_ms = connection->since_ms > since_ms ? connection->since_ms : since_ms;
        if (connection->stage == BAG_HTTP_CONNECTION_IDLE && now_ms >= last_ms + idle_ms &&
            !has_bytes(connection))
            end(connections, connection);
    }
}

void bag_http_connections_make_room(struct bag_http_connections *connections)
{
    uint64_t now_ms = uv_now(connections->timer.loop);
    if (atomic_load(connections->limits.total) < connections->limits.connections)
        return;
    for (struct bag_http_connection *connection = connections->idle.first;
         connection && connection->since_ms + EVICTABLE_MS <= now_ms;
         connection = connection->next_listed) {
        if (has_bytes(connection))
            continue;
        end(connections, connection);
        connection->evicted = true;
        atomic_fetch_sub(connections->limits.total, 1);
        return;
    }
}

/* ---- a connection's life --------------------------------------------------------------------- */

/* Makes room for a descriptor in by_fd. */
static bool reserve(struct bag_http_connections *connections, size_t fd)
{
    size_t count = connections->max_fds ? connections->max_fds : 64;
    while (count <= fd)
        count *= 2;
    if (count == connections->max_fds)
        return true;
    void *larger = realloc(connections->by_fd, count * sizeof *connections->by_fd);
    if (!larger)
        return false;
    connections->by_fd = larger;
    memset(connections->by_fd + connections->max_fds, 0,
           (count - connections->max_fds) * sizeof *connections->by_fd);
    connections->max_fds = count;
    return true;
}

struct bag_http_connection *bag_http_connection_find(const struct bag_http_connections *connections,
                                                     int fd)
{
    return fd >= 0 && (size_t)fd < connections->max_fds ? connections->by_fd[fd] : NULL;
}

struct bag_http_connection *bag_http_connection_add(struct bag_http_connections *connections,
                                                    int fd)
{
    struct bag_http_connection *connection = NULL;
    if (!reserve(connections, (size_t)fd) || !(connection = calloc(1, sizeof *connection)))
        return NULL;
    if (connections->next.is_proxied &&
        !(connection->proxy = calloc(1, sizeof *connection->proxy))) {
        free(connection);
        return NULL;
    }
    connections->by_fd[fd] = connection;
    connection->fd = fd;
    connection->surplus =
        atomic_fetch_add(connections->limits.total, 1) >= connections->limits.connections;
    connection->next = connections->first;
    if (connection->next)
        connection->next->previous = connection;
    connections->first = connection;
    if (connections->count++ == 0)
        uv_timer_start(&connections->timer, on_timer, CHECK_MS / CHECK_SLICES,
                       CHECK_MS / CHECK_SLICES);
    connection->client = connections->next.client;
    connection->peer = connections->next.peer;
    connections->next.client = NULL;
    connection->stage = BAG_HTTP_CONNECTION_IDLE;
    connection->since_ms = uv_now(connections->timer.loop);
    append(connections, list_of(connections, connection), connection);
    return connection;
}

void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection)
{
    if (connection->next)
        connection->next->previous = connection->previous;
    if (connection->previous)
        connection->previous->next = connection->next;
    else
        connections->first = connection->next;
    take_out(connections, list_of(connections, connection), connection);
    connections->by_fd[connection->fd] = NULL;
    connections->ended = true;
    if (!connection->evicted)
        atomic_fetch_sub(connections->limits.total, 1);
    if (--connections->count == 0)
        uv_timer_stop(&connections->timer);
    bag_guard_free(&connection->guard);
    free(connection->fault);
    free(connection->proxy);
    free(connection);
}

/* ---- replies past the library ---------------------------------------------------------------- */

/* Text that ends with NUL; `bytes` counts what did not fit, too. */
struct printer {
    char text[1024];
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

bool bag_http_connection_send_raw(const struct bag_http_connection *connection,
                                  const struct bag_http_reply *reply)
{
    struct printer printer = {.bytes = 0};
    char number[24];
    if (!reply->body)
        return false;
    snprintf(number, sizeof number, "HTTP/1.1 %d ", reply->status);
    print(&printer, number, MHD_get_reason_phrase_for((unsigned)reply->status), "");
    bag_http_reply_headers(reply, print_header, &printer);
    snprintf(number, sizeof number, "%zu", reply->body_bytes);
    print(&printer, "Content-Length: ", number, "\r\n");
    size_t room = printer.bytes < sizeof printer.text ? sizeof printer.text - printer.bytes : 0;
    if (reply->body_bytes > room)
        return false;
    memcpy(printer.text + printer.bytes, reply->body, reply->body_bytes);
    printer.bytes += reply->body_bytes;
    return send(connection->fd, printer.text, printer.bytes, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           (ssize_t)printer.bytes;
}

/* ---- all of them ----------------------------------------------------------------------------- */

void bag_http_connections_init(struct bag_http_connections *connections, uv_loop_t *loop,
                               const struct bag_http_connection_limits *limits)
{
    *connections = (struct bag_http_connections){.limits = *limits};
    uv_timer_init(loop, &connections->timer);
    connections->timer.data = connections;
}

void bag_http_connections_stop(struct bag_http_connections *connections)
{
    uv_close((uv_handle_t *)&connections->timer, NULL);
}

void bag_http_connections_free(struct bag_http_connections *connections)
{
    free(connections->by_fd);
}
