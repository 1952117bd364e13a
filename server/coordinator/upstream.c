/* Connections to shards, and the exchanges over them; see upstream.h.
 *
 * In this file calls go down the page except for serve(), which every end of an exchange calls
 * last: it only starts to connect and adds events. */
#include "upstream.h"

#include "server/system/sockets.h"

#undef NDEBUG /* states are asserted in all builds */
#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Maximum bytes that are read from one connection in one iteration of the loop. */
#define ITERATION_BYTES ((size_t)1 << 20)

/* Maximum size in bytes of the body of a reply of another status than 200, which is a sentence. */
#define MAX_ERROR_BYTES ((size_t)64 << 10)

/* Time after which an idle connection is closed: a NAT or firewall may have dropped its state. */
#define IDLE_NS (UINT64_C(20) * 1000000000)

/* The states of a connection. All but IDLE have an exchange. */
enum connection_state {
    CONNECTING,
    ESTABLISHED, /* belongs to an exchange that is READY, or whose request is being written */
    SENDING,
    READING_HEAD,
    READING_BODY,
    IDLE /* in the idle list of its upstream; has no exchange */
};

struct bag_upstream_connection {
    uv_poll_t poll;
    struct bag_upstream *upstream;
    struct bag_exchange *exchange; /* NULL: IDLE */
    LIST_ENTRY(bag_upstream_connection) entry;
    enum connection_state state;
    int fd;
    bool is_kept;        /* an exchange over it has ended well before */
    bool polls_writable; /* the poll waits for room to send as well */
    uint64_t idle_ns;    /* time at which it became idle */
    const char *tail;    /* borrowed from the exchange's owner; sent after `text` */
    size_t tail_bytes;
    size_t text_bytes, sent;       /* sent: of `text` and `tail` together */
    size_t head_bytes, body_bytes; /* bytes of the reply so far; head_bytes with what followed it */
    char text[BAG_EXCHANGE_TEXT_BYTES];
    char head[BAG_REPLY_HEAD_BYTES];
};

/* ---- connections ----------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

/* Closes a connection that has no exchange, or whose exchange is ended by the caller. */
static void close_connection(struct bag_upstream_connection *connection)
{
    connection->upstream->count--;
    uv_close((uv_handle_t *)&connection->poll,
             on_closed);   /* removes the descriptor from the poll */
    close(connection->fd); /* from here on the number may be another descriptor's */
}

/* Polls for what the state waits for. Returns false if there is no memory for it. */
static bool poll_for_state(struct bag_upstream_connection *connection)
{
    int events = connection->state == CONNECTING ? UV_WRITABLE
                 : connection->polls_writable    ? UV_READABLE | UV_WRITABLE
                                                 : UV_READABLE;
    return uv_poll_start(&connection->poll, events, connection->upstream->upstreams->on_socket) ==
           0;
}

/* Opens a connection. Returns NULL and sets *error if that fails at once. */
static struct bag_upstream_connection *
open_connection(struct bag_upstream *upstream, const struct bag_address *endpoint, int *error)
{
    const int on = 1;
    struct bag_upstream_connection *connection = malloc(sizeof *connection);
    *error = ENOMEM;
    if (!connection)
        return NULL;
    int fd = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool is_pending = false;
    *error = fd < 0 ? errno : 0;
    if (!*error && endpoint->address.ss_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!*error && connect(fd, (const struct sockaddr *)&endpoint->address, endpoint->bytes) != 0) {
        is_pending = errno == EINPROGRESS;
        *error = is_pending ? 0 : errno;
    }
    if (!*error && uv_poll_init(upstream->upstreams->loop, &connection->poll, fd) != 0)
        *error = ENOMEM;
    if (*error) {
        if (fd >= 0)
            close(fd);
        free(connection);
        return NULL;
    }
    connection->poll.data = connection;
    connection->upstream = upstream;
    connection->exchange = NULL;
    connection->state = is_pending ? CONNECTING : ESTABLISHED;
    connection->fd = fd;
    connection->is_kept = connection->polls_writable = false;
    upstream->count++;
    if (poll_for_state(connection))
        return connection;
    close_connection(connection);
    *error = ENOMEM;
    return NULL;
}

/* Keeps a connection for the next exchange. */
static void keep_connection(struct bag_upstream_connection *connection, uint64_t now_ns)
{
    connection->state = IDLE;
    connection->exchange = NULL;
    connection->idle_ns = now_ns;
    LIST_INSERT_HEAD(&connection->upstream->idle, connection, entry);
}

/* Closes the idle connections of an upstream that became idle at this time or earlier. */
static void close_idle_since(struct bag_upstream *upstream, uint64_t until_ns)
{
    struct bag_upstream_connection *connection = LIST_FIRST(&upstream->idle);
    while (connection) {
        struct bag_upstream_connection *next = LIST_NEXT(connection, entry);
        assert(connection->state == IDLE);
        if (connection->idle_ns <= until_ns) {
            LIST_REMOVE(connection, entry);
            close_connection(connection);
        }
        connection = next;
    }
}

/* ---- exchanges and connections --------------------------------------------------------------- */

/* Appends an exchange to the list of events. */
static void add_event(struct bag_upstreams *upstreams, struct bag_exchange *exchange,
                      enum bag_exchange_state state)
{
    exchange->state = state;
    TAILQ_INSERT_TAIL(&upstreams->events, exchange, entry);
}

/* Ends an exchange, whose connection the caller closes or keeps. Frees the body unless it is
 * complete. */
static void end_exchange(struct bag_upstreams *upstreams, struct bag_exchange *exchange,
                         enum bag_exchange_result result)
{
    exchange->result = result;
    exchange->connection = NULL;
    if (result != BAG_EXCHANGE_REPLIED) {
        bag_buffers_put(exchange->body);
        exchange->body = NULL;
    }
    add_event(upstreams, exchange, BAG_EXCHANGE_ENDED);
}

/* Gives a connection to an exchange. It is READY if the connection is established. */
static void join(struct bag_upstream_connection *connection, struct bag_exchange *exchange)
{
    connection->exchange = exchange;
    connection->sent = connection->head_bytes = connection->body_bytes = 0;
    exchange->connection = connection;
    if (connection->state == CONNECTING)
        exchange->state = BAG_EXCHANGE_CONNECTING;
    else
        add_event(connection->upstream->upstreams, exchange, BAG_EXCHANGE_READY);
}

/* Returns whether an error of connect(2) says that nobody listens. EAGAIN: the backlog of a
 * Unix-domain socket is full. */
static bool is_refusal(int error)
{
    return error == ECONNREFUSED || error == ENOENT || error == EHOSTUNREACH ||
           error == ENETUNREACH || error == EAGAIN;
}

/* Opens a connection for the exchange that waits longest, or ends the exchange if that fails.
 * Returns false if it goes on waiting: the system lacks descriptors or memory for a further
 * connection. */
static bool connect_first(struct bag_upstream *upstream)
{
    struct bag_upstreams *upstreams = upstream->upstreams;
    struct bag_exchange *exchange = TAILQ_FIRST(&upstream->waiting);
    struct bag_upstream_connection *connection = NULL;
    struct bag_address endpoint;
    enum bag_exchange_result result = BAG_EXCHANGE_UNRESOLVED;
    if (bag_shard_host_endpoint(upstreams->shards, upstream->host, &endpoint)) {
        connection = open_connection(upstream, &endpoint, &exchange->error);
        const bool is_refused = is_refusal(exchange->error);
        const bool lacks = !is_refused && bag_is_lack(exchange->error);
        if (!connection && lacks && upstream->count > 0)
            return false;
        result = is_refused ? BAG_EXCHANGE_REFUSED
                 : lacks    ? BAG_EXCHANGE_NO_RESOURCES
                            : BAG_EXCHANGE_UNCONNECTED;
    }
    TAILQ_REMOVE(&upstream->waiting, exchange, entry);
    if (connection)
        join(connection, exchange);
    else
        end_exchange(upstreams, exchange, result);
    return true;
}

/* Gives exchanges that wait the connections that are idle, or may be opened. */
static void serve(struct bag_upstream *upstream)
{
    for (struct bag_exchange *exchange; (exchange = TAILQ_FIRST(&upstream->waiting));) {
        struct bag_upstream_connection *connection = LIST_FIRST(&upstream->idle);
        assert(exchange->state == BAG_EXCHANGE_WAITING);
        if (connection) {
            LIST_REMOVE(connection, entry);
            TAILQ_REMOVE(&upstream->waiting, exchange, entry);
            connection->state = ESTABLISHED;
            join(connection, exchange);
        } else if (upstream->count >= BAG_UPSTREAM_MAX_CONNECTIONS || !connect_first(upstream)) {
            return;
        }
    }
}

/* Closes the connection of an exchange, which has ended without a valid reply. */
static void fail(struct bag_upstream_connection *connection, enum bag_exchange_result result)
{
    struct bag_upstream *upstream = connection->upstream;
    struct bag_exchange *exchange = connection->exchange;
    close_connection(connection);
    end_exchange(upstream->upstreams, exchange, result);
    serve(upstream);
}

/* Ends an exchange whose connection the peer has closed. A shard may close a kept connection while
 * a request is on its way; the exchange is then STALE and can safely be repeated. */
static void fail_closed(struct bag_upstream_connection *connection)
{
    struct bag_exchange *exchange = connection->exchange;
    exchange->has_begun = connection->head_bytes > 0;
    fail(connection,
         connection->is_kept && !exchange->has_begun ? BAG_EXCHANGE_STALE : BAG_EXCHANGE_CLOSED);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Checks a head that has arrived with `rest` bytes after it, and makes room for the body. Returns
 * false if the exchange has failed. */
static bool begin_body(struct bag_upstream_connection *connection, size_t head_bytes)
{
    struct bag_exchange *exchange = connection->exchange;
    struct bag_buffers *buffers = connection->upstream->upstreams->buffers;
    struct bag_reply_head *reply = &exchange->reply;
    struct bag_problem problem BAG_UNSET;
    size_t rest = connection->head_bytes - head_bytes;
    if (!bag_reply_head_parse(connection->head, head_bytes, reply, &problem)) {
        reply->status = 0;
        snprintf(exchange->why, sizeof exchange->why, "answered wrongly: %.150s", problem.text);
        fail(connection, BAG_EXCHANGE_INVALID);
        return false;
    }
    size_t most = reply->status == 200 ? exchange->max_reply_bytes : MAX_ERROR_BYTES;
    if (reply->body_bytes > most || rest > reply->body_bytes) {
        snprintf(exchange->why, sizeof exchange->why,
                 "answered %llu bytes, where at most %zu were expected",
                 (unsigned long long)(rest > reply->body_bytes ? rest : reply->body_bytes), most);
        fail(connection, BAG_EXCHANGE_INVALID);
        return false;
    }
    exchange->body = bag_buffers_get(buffers, (size_t)reply->body_bytes + 1);
    if (!exchange->body) {
        fail(connection, BAG_EXCHANGE_NO_BUFFER);
        return false;
    }
    memcpy(exchange->body, connection->head + head_bytes, rest);
    connection->body_bytes = rest;
    connection->state = READING_BODY;
    if (!connection->polls_writable)
        return true;
    connection->polls_writable = false; /* the rest of an answered request need not be sent */
    if (poll_for_state(connection))
        return true;
    fail(connection, BAG_EXCHANGE_UNPOLLED);
    return false;
}

/* Reads the head of a reply. Returns true if its body can be read. */
static bool read_head(struct bag_upstream_connection *connection)
{
    ssize_t count = recv(connection->fd, connection->head + connection->head_bytes,
                         sizeof connection->head - connection->head_bytes, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (count <= 0) {
        fail_closed(connection);
        return false;
    }
    const size_t searched = connection->head_bytes;
    connection->head_bytes += (size_t)count;
    size_t head_bytes = bag_reply_head_end(connection->head, connection->head_bytes, searched);
    if (head_bytes == 0 && connection->head_bytes == sizeof connection->head) {
        snprintf(connection->exchange->why, sizeof connection->exchange->why,
                 "answered a head of more than 8 KiB");
        fail(connection, BAG_EXCHANGE_INVALID);
    }
    return head_bytes > 0 && begin_body(connection, head_bytes);
}

/* Reads the body up to its end, or ITERATION_BYTES of it: other connections must not wait for a
 * long one. */
static void read_body(struct bag_upstream_connection *connection)
{
    const size_t total = (size_t)connection->exchange->reply.body_bytes;
    for (size_t sum = 0; connection->body_bytes < total && sum < ITERATION_BYTES;) {
        ssize_t count = recv(connection->fd, connection->exchange->body + connection->body_bytes,
                             total - connection->body_bytes, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            return;
        if (count <= 0) {
            fail_closed(connection);
            return;
        }
        connection->body_bytes += (size_t)count;
        sum += (size_t)count;
    }
    if (connection->body_bytes == total) {
        /* End an exchange whose reply is complete. Keep the connection unless the shard closes it,
         * or a part of the request was not sent. */
        struct bag_upstream *upstream = connection->upstream;
        struct bag_exchange *exchange = connection->exchange;
        exchange->ended_ns = upstream->upstreams->clock_ns();
        end_exchange(upstream->upstreams, exchange, BAG_EXCHANGE_REPLIED);
        connection->is_kept = true;
        if (exchange->reply.closes ||
            connection->sent < connection->text_bytes + connection->tail_bytes)
            close_connection(connection);
        else
            keep_connection(connection, exchange->ended_ns);
        serve(upstream);
    }
}

/* Reads what has arrived of a reply, which may begin before all of the request is sent. */
static void receive(struct bag_upstream_connection *connection)
{
    if (connection->state == READING_BODY || read_head(connection))
        read_body(connection);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Writes what is left of the request. Returns false if the connection is broken. */
static bool write_some(struct bag_upstream_connection *connection)
{
    const size_t total = connection->text_bytes + connection->tail_bytes;
    while (connection->sent < total) {
        size_t in_text = connection->sent < connection->text_bytes
                             ? connection->text_bytes - connection->sent
                             : 0;
        size_t in_tail = total - connection->sent - in_text;
        struct iovec parts[2] = {
            {connection->text + connection->sent, in_text},
            {(char *)(uintptr_t)connection->tail + (connection->tail_bytes - in_tail), in_tail}};
        struct msghdr message = {.msg_iov = in_text ? parts : parts + 1,
                                 .msg_iovlen = in_text ? 2 : 1};
        ssize_t count = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno == EAGAIN;
        connection->sent += (size_t)count;
    }
    connection->state = READING_HEAD;
    return true;
}

/* Returns whether a reply has arrived to a request that could not be sent completely. A shard may
 * reject a request before it has read all of it and close the connection; the reply can still be
 * read. */
static bool is_answered(const struct bag_upstream_connection *connection)
{
    char byte;
    return connection->sent > 0 && recv(connection->fd, &byte, 1, MSG_PEEK) > 0;
}

/* Sends as much of the request as the socket takes. Polls for room if some of it is left. */
static void send_some(struct bag_upstream_connection *connection)
{
    if (!write_some(connection)) {
        (is_answered(connection) ? receive : fail_closed)(connection);
        return;
    }
    bool is_partial = connection->state == SENDING;
    if (is_partial == connection->polls_writable)
        return;
    connection->polls_writable = is_partial;
    if (!poll_for_state(connection))
        fail(connection, BAG_EXCHANGE_UNPOLLED);
}

/* Handles the outcome of connect(2). Every error that is reported later than by connect(2) itself
 * counts as a refusal. */
static void on_connected(struct bag_upstream_connection *connection)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error) {
        connection->exchange->error = error;
        fail(connection, BAG_EXCHANGE_REFUSED);
        return;
    }
    connection->state = ESTABLISHED;
    connection->polls_writable = true; /* the poll still waits for UV_WRITABLE, as in CONNECTING */
    add_event(connection->upstream->upstreams, connection->exchange, BAG_EXCHANGE_READY);
}

struct bag_upstreams *bag_upstreams_on_socket(uv_poll_t *poll, int status, int events)
{
    struct bag_upstream_connection *connection = poll->data;
    struct bag_upstreams *upstreams = connection->upstream->upstreams;
    switch (connection->state) {
    case CONNECTING:
        on_connected(connection);
        break;
    case ESTABLISHED: /* the owner has not taken its events */
        assert(false);
        break;
    case IDLE: /* bytes that nobody asked for, or the end */
        LIST_REMOVE(connection, entry);
        close_connection(connection);
        break;
    case SENDING:
    case READING_HEAD:
    case READING_BODY:
        if (status < 0) /* the poll has ended, too */
            (is_answered(connection) && poll_for_state(connection) ? receive
                                                                   : fail_closed)(connection);
        else if (connection->state == SENDING && (events & UV_WRITABLE))
            send_some(connection);
        else
            receive(connection);
    }
    return upstreams;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Returns the upstream to a host, and makes it if there is none. Returns NULL if memory is
 * exhausted. */
static struct bag_upstream *find_upstream(struct bag_upstreams *upstreams,
                                          struct bag_shard_host *host)
{
    if (host->number >= upstreams->count) {
        size_t count = host->number + 1;
        struct bag_upstream **list = reallocarray(upstreams->list, count, sizeof *list);
        if (!list)
            return NULL;
        memset(list + upstreams->count, 0, (count - upstreams->count) * sizeof *list);
        upstreams->list = list;
        upstreams->count = count;
    }
    struct bag_upstream *upstream = upstreams->list[host->number];
    if (!upstream && (upstream = malloc(sizeof *upstream))) {
        upstream->upstreams = upstreams;
        upstream->host = host;
        upstream->count = 0;
        LIST_INIT(&upstream->idle);
        TAILQ_INIT(&upstream->waiting);
        upstreams->list[host->number] = upstream;
    }
    return upstream;
}

void bag_exchange_start(struct bag_exchange *exchange, struct bag_upstreams *upstreams,
                        struct bag_shards *shards, struct bag_shard_host *host)
{
    assert(exchange->state == BAG_EXCHANGE_UNUSED);
    upstreams->shards = shards;
    exchange->upstreams = upstreams;
    exchange->connection = NULL;
    exchange->reply.status = 0;
    exchange->body = NULL;
    exchange->upstream = find_upstream(upstreams, host);
    if (!exchange->upstream) {
        exchange->error = ENOMEM;
        end_exchange(upstreams, exchange, BAG_EXCHANGE_NO_RESOURCES);
        return;
    }
    exchange->state = BAG_EXCHANGE_WAITING;
    TAILQ_INSERT_TAIL(&exchange->upstream->waiting, exchange, entry);
    serve(exchange->upstream);
}

char *bag_exchange_text(struct bag_exchange *exchange)
{
    assert(exchange->state == BAG_EXCHANGE_RUNNING && exchange->connection->state == ESTABLISHED);
    return exchange->connection->text;
}

void bag_exchange_send(struct bag_exchange *exchange, size_t text_bytes, const char *tail,
                       size_t tail_bytes)
{
    struct bag_upstream_connection *connection = exchange->connection;
    assert(exchange->state == BAG_EXCHANGE_RUNNING && connection->state == ESTABLISHED);
    assert(text_bytes > 0 && text_bytes <= sizeof connection->text);
    connection->text_bytes = text_bytes;
    connection->tail = tail;
    connection->tail_bytes = tail_bytes;
    connection->state = SENDING;
    send_some(connection);
}

void bag_exchange_cancel(struct bag_exchange *exchange)
{
    struct bag_upstream_connection *connection = exchange->connection;
    switch (exchange->state) {
    case BAG_EXCHANGE_UNUSED:
        return;
    case BAG_EXCHANGE_WAITING:
        TAILQ_REMOVE(&exchange->upstream->waiting, exchange, entry);
        break;
    case BAG_EXCHANGE_READY:
    case BAG_EXCHANGE_ENDED:
        TAILQ_REMOVE(&exchange->upstreams->events, exchange, entry);
        break;
    case BAG_EXCHANGE_CONNECTING:
    case BAG_EXCHANGE_RUNNING:
        break;
    }
    exchange->state = BAG_EXCHANGE_UNUSED;
    exchange->connection = NULL;
    bag_buffers_put(exchange->body);
    exchange->body = NULL;
    if (!connection)
        return;
    /* Take the connection from an exchange that is cancelled. */
    bool polls_writable = connection->polls_writable;
    connection->polls_writable = false;
    if (connection->state != ESTABLISHED || (polls_writable && !poll_for_state(connection)))
        close_connection(connection);
    else
        keep_connection(connection, connection->upstream->upstreams->clock_ns());
    serve(exchange->upstream);
}

struct bag_exchange *bag_upstreams_take(struct bag_upstreams *upstreams)
{
    struct bag_exchange *exchange = TAILQ_FIRST(&upstreams->events);
    if (!exchange)
        return NULL;
    assert(exchange->state == BAG_EXCHANGE_READY || exchange->state == BAG_EXCHANGE_ENDED);
    TAILQ_REMOVE(&upstreams->events, exchange, entry);
    exchange->state =
        exchange->state == BAG_EXCHANGE_READY ? BAG_EXCHANGE_RUNNING : BAG_EXCHANGE_UNUSED;
    return exchange;
}

/* ---- upstreams ------------------------------------------------------------------------------- */

void bag_upstreams_init(struct bag_upstreams *upstreams, uv_loop_t *loop,
                        struct bag_buffers *buffers, uv_poll_cb on_socket)
{
    *upstreams = (struct bag_upstreams){
        .loop = loop, .buffers = buffers, .on_socket = on_socket, .clock_ns = uv_hrtime};
    TAILQ_INIT(&upstreams->events);
}

/* Closes the connections of all upstreams that became idle at this time or earlier. */
static void close_all_idle_since(struct bag_upstreams *upstreams, uint64_t until_ns)
{
    for (size_t i = 0; i < upstreams->count; i++) {
        if (upstreams->list[i])
            close_idle_since(upstreams->list[i], until_ns);
    }
}

void bag_upstreams_close_idle(struct bag_upstreams *upstreams, const struct bag_shard_host *host)
{
    if (host->number < upstreams->count && upstreams->list[host->number])
        close_idle_since(upstreams->list[host->number], UINT64_MAX);
}

void bag_upstreams_close_unused(struct bag_upstreams *upstreams)
{
    uint64_t now_ns = upstreams->clock_ns();
    close_all_idle_since(upstreams, now_ns > IDLE_NS ? now_ns - IDLE_NS : 0);
}

void bag_upstreams_stop(struct bag_upstreams *upstreams)
{
    close_all_idle_since(upstreams, UINT64_MAX);
}

void bag_upstreams_free(struct bag_upstreams *upstreams)
{
    for (size_t i = 0; i < upstreams->count; i++)
        free(upstreams->list[i]);
    free(upstreams->list);
}
