/* Kept connections to shards, and one call over one of them; see connection.h.
 *
 * A connection is connected, sends, reads the head of its reply, then the body, and is idle again.
 * Sockets of ours under uv_poll: a small call takes one system call to send and one to read. */
#include "upstream_connection.h"

#include "proto/shard.h"
#include "server/system/sockets.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* So much is read in one turn. */
#define TURN_BYTES ((size_t)1 << 20)

/* A reply that is no success is a sentence. */
#define ERROR_BYTES ((size_t)64 << 10)

#define NO_LISTENING "cannot be listened to: the system lacks memory"

static void on_event(uv_poll_t *poll, int status, int events);

/* ---- ends ------------------------------------------------------------------------------------ */

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

/* The connection is gone; its subrequest has been told, or is told by the caller. */
void bag_upstream_connection_close(struct bag_upstream_connection *connection)
{
    struct bag_subrequest *subrequest = connection->subrequest;
    connection->upstream->count--;
    for (int i = 0; subrequest && i < 2; i++) {
        if (subrequest->links[i] == connection)
            subrequest->links[i] = NULL;
    }
    bag_buffers_put(connection->body);
    connection->body = NULL;
    uv_close((uv_handle_t *)&connection->poll, on_closed); /* takes the descriptor from the poll: */
    close(connection->fd);                                 /* from here on it may be another's */
}

static void unlink_idle(struct bag_upstream_connection *connection)
{
    struct bag_upstream_connection **at = &connection->upstream->idle;
    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
}

/* Its subrequest's attempt ends, as the connection does. */
void bag_upstream_connection_abandon(struct bag_upstream_connection *connection, unsigned became)
{
    int status = connection->state == BAG_UPSTREAM_READING_BODY ? connection->reply.status : 0;
    bag_attempt_end(&connection->attempt, connection->subrequest, status, became);
    bag_upstream_connection_close(connection);
}

/* The connection ends without an answer. */
static void lose(struct bag_upstream_connection *connection, enum bag_shard_outcome outcome,
                 const char *why)
{
    struct bag_coordinator *coordinator = connection->coordinator;
    struct bag_upstream *upstream = connection->upstream;
    struct bag_subrequest *subrequest = connection->subrequest;
    bag_upstream_connection_abandon(connection, outcome);
    bag_subrequest_fail(subrequest, outcome, why ? "%s" : NULL, why);
    bag_upstream_send_waiting(coordinator, upstream);
}

/* Sends the call again, unless another attempt is under way; others may get the connection's place.
 */
static void send_again(struct bag_upstream_connection *connection, enum bag_shard_outcome outcome)
{
    struct bag_coordinator *coordinator = connection->coordinator;
    struct bag_upstream *upstream = connection->upstream;
    struct bag_subrequest *subrequest = connection->subrequest;
    bag_upstream_connection_abandon(connection, outcome);
    if (!bag_subrequest_has_attempt(subrequest))
        bag_subrequest_send(coordinator, subrequest);
    bag_upstream_send_waiting(coordinator, upstream);
}

/* A shard that was refused once may be restarting, and an address may have another that listens. */
static void on_refused(struct bag_upstream_connection *connection, int error)
{
    struct bag_subrequest *subrequest = connection->subrequest;
    if (subrequest->refusals++ == 0) {
        send_again(connection, BAG_SHARD_REFUSED);
        return;
    }
    atomic_store(&connection->upstream->host->is_away, true);
    bag_shard_group_ask(subrequest->group);
    lose(connection, BAG_SHARD_REFUSED, strerror(error));
}

/* Before a byte of a reply a kept connection may have ended as the call was on its way. */
static void on_ended(struct bag_upstream_connection *connection)
{
    if (connection->is_kept && connection->head_bytes == 0 &&
        connection->state != BAG_UPSTREAM_READING_BODY) {
        send_again(connection, BAG_SHARD_CLOSED);
        return;
    }
    lose(connection, BAG_SHARD_CLOSED,
         connection->head_bytes ? "closed the connection in the middle of its answer"
                                : "closed the connection without an answer");
}

/* ---- sending --------------------------------------------------------------------------------- */

static int poll_events(const struct bag_upstream_connection *connection)
{
    return connection->state == BAG_UPSTREAM_CONNECTING ? UV_WRITABLE
           : connection->waits_to_send                  ? UV_READABLE | UV_WRITABLE
                                                        : UV_READABLE;
}

static bool listen_to(struct bag_upstream_connection *connection)
{
    return uv_poll_start(&connection->poll, poll_events(connection), on_event) == 0;
}

static const struct bag_fanout_call *call_of(const struct bag_subrequest *subrequest)
{
    return &subrequest->run->fanout.calls[subrequest - subrequest->run->subrequests];
}

static size_t tensor_bytes_of(const struct bag_fanout_call *call)
{
    return call->body_bytes - call->header_bytes;
}

/* Appends what there is room for: a head that fills all of it may lack its end. */
static void put_bytes(struct bag_upstream_connection *connection, const char *text, size_t bytes)
{
    size_t room = sizeof connection->request - connection->request_bytes;
    size_t taken = bytes < room ? bytes : room;
    memcpy(connection->request + connection->request_bytes, text, taken);
    connection->request_bytes += taken;
}

static void put(struct bag_upstream_connection *connection, const char *text)
{
    put_bytes(connection, text, strlen(text));
}

static void put_number(struct bag_upstream_connection *connection, size_t value)
{
    char digits[BAG_DIGITS_BYTES];
    put_bytes(connection, digits, (size_t)(bag_digits_put(digits, value) - digits));
}

static void put_line(struct bag_upstream_connection *connection, const char *name,
                     const char *value)
{
    put(connection, name);
    put(connection, value);
    put(connection, "\r\n");
}

static void put_target(struct bag_upstream_connection *connection, const struct bag_remote *remote)
{
    const struct bag_shard_address *address = &connection->upstream->host->address;
    put(connection, "POST ");
    put_bytes(connection, address->url.path.data, address->url.path.bytes);
    put(connection, "/v2/models/");
    put(connection, remote->model);
    put(connection, "/versions/");
    put(connection, remote->version);
    put(connection, "/infer HTTP/1.1\r\nHost: ");
    put(connection, address->url.authority);
}

/* Who asks, and for whom. */
static void put_credentials(struct bag_upstream_connection *connection)
{
    const struct bag_subrequest *subrequest = connection->subrequest;
    const char *token_file = subrequest->group->config.shard_token_file;
    char token[BAG_SHARD_TOKEN_BYTES] BAG_UNSET;
    char traceparent[BAG_TRACEPARENT_BYTES] BAG_UNSET;
    *token = 0;
    if (token_file && *token_file)
        bag_shard_group_token(subrequest->group, token);
    if (*token)
        put_line(connection, "Authorization: Bearer ", token);
    if (connection->attempt.id) {
        bag_attempt_print_traceparent(&connection->attempt, subrequest->run, traceparent);
        put_line(connection, "traceparent: ", traceparent);
    } else if (subrequest->run->traceparent) {
        put_line(connection, "traceparent: ", subrequest->run->traceparent);
    }
}

/* The head of a call, and the JSON of its body, which says how much time is left; false where it
 * does not fit. */
static bool write_head(struct bag_upstream_connection *connection)
{
    const struct bag_subrequest *subrequest = connection->subrequest;
    const struct bag_fanout_call *call = call_of(subrequest);
    char json[BAG_SHARD_TIMED_BYTES] BAG_UNSET;
    size_t json_bytes = bag_shard_request_timed(
        call->body, call->header_bytes, bag_remote_infer_remaining_us(subrequest->run), json);
    connection->request_bytes = 0;
    put_target(connection,
               subrequest->run->infer->input.model->features[call->feature].memory->remote);
    put(connection, "\r\nContent-Type: application/octet-stream\r\nContent-Length: ");
    put_number(connection, json_bytes + tensor_bytes_of(call));
    put(connection, "\r\nInference-Header-Content-Length: ");
    put_number(connection, json_bytes);
    put(connection, "\r\n");
    put_credentials(connection);
    put(connection, "\r\n");
    put_bytes(connection, json, json_bytes);
    return connection->request_bytes < sizeof connection->request;
}

/* Writes what is left of head, JSON and tensors; false where the connection has ended. */
static bool write_some(struct bag_upstream_connection *connection)
{
    const struct bag_fanout_call *call = call_of(connection->subrequest);
    const size_t total = connection->request_bytes + tensor_bytes_of(call);
    while (connection->sent < total) {
        size_t in_head = connection->sent < connection->request_bytes
                             ? connection->request_bytes - connection->sent
                             : 0;
        size_t in_tensors = total - connection->sent - in_head;
        struct iovec parts[2] = {{connection->request + connection->sent, in_head},
                                 {call->body + (call->body_bytes - in_tensors), in_tensors}};
        struct msghdr message = {.msg_iov = in_head ? parts : parts + 1,
                                 .msg_iovlen = in_head ? 2 : 1};
        ssize_t count = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno == EAGAIN;
        connection->sent += (size_t)count;
    }
    connection->state = BAG_UPSTREAM_READING_HEAD;
    return true;
}

/* Whether what was sent so far is being answered: that outlasts the connection. */
static bool is_answered(const struct bag_upstream_connection *connection)
{
    char byte;
    return connection->sent > 0 && recv(connection->fd, &byte, 1, MSG_PEEK) > 0;
}

static void receive(struct bag_upstream_connection *connection);

static void send_some(struct bag_upstream_connection *connection)
{
    if (!write_some(connection)) {
        (is_answered(connection) ? receive : on_ended)(connection);
        return;
    }
    bool waits = connection->state == BAG_UPSTREAM_SENDING;
    if (waits == connection->waits_to_send)
        return;
    connection->waits_to_send = waits;
    if (!listen_to(connection))
        lose(connection, BAG_SHARD_CLOSED, NO_LISTENING);
}

void bag_upstream_connection_send(struct bag_upstream_connection *connection,
                                  struct bag_subrequest *subrequest)
{
    connection->subrequest = subrequest;
    subrequest->links[subrequest->links[0] ? 1 : 0] = connection;
    connection->sent = connection->head_bytes = connection->body_bytes = 0;
    connection->attempt.id = 0;
    if (subrequest->run->place)
        connection->attempt = bag_attempt_begin(subrequest);
    if (!write_head(connection)) {
        lose(connection, BAG_SHARD_WRONG,
             "has an address, and the client a traceparent, too long to ask");
        return;
    }
    if (connection->state == BAG_UPSTREAM_CONNECTING)
        return;
    connection->state = BAG_UPSTREAM_SENDING;
    send_some(connection);
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* A connection that is being connected, or is; NULL with errno. */
struct bag_upstream_connection *bag_upstream_connection_connect(struct bag_coordinator *coordinator,
                                                                struct bag_upstream *upstream,
                                                                const struct bag_shard_place *place)
{
    const int on = 1;
    struct bag_upstream_connection *connection = malloc(sizeof *connection);
    int fd = connection
                 ? socket(place->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
                 : -1;
    if (fd < 0) {
        free(connection);
        return NULL;
    }
    if (place->address.ss_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bool waits = connect(fd, (const struct sockaddr *)&place->address, place->bytes) != 0;
    connection->poll.data = connection;
    if ((waits && errno != EINPROGRESS) ||
        uv_poll_init(coordinator->loop, &connection->poll, fd) != 0) {
        int error = waits ? errno : ENOMEM;
        close(fd);
        free(connection);
        errno = error;
        return NULL;
    }
    connection->coordinator = coordinator;
    connection->upstream = upstream;
    connection->next = NULL;
    connection->subrequest = NULL;
    connection->fd = fd;
    connection->state = waits ? BAG_UPSTREAM_CONNECTING : BAG_UPSTREAM_IDLE;
    connection->is_kept = connection->waits_to_send = false;
    connection->body = NULL;
    connection->head_bytes = connection->body_bytes = 0;
    upstream->count++;
    if (listen_to(connection))
        return connection;
    bag_upstream_connection_close(connection);
    errno = ENOMEM;
    return NULL;
}

static void on_connected(struct bag_upstream_connection *connection)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error) {
        on_refused(connection, error);
        return;
    }
    connection->subrequest->refusals = 0;
    connection->state = BAG_UPSTREAM_SENDING;
    connection->waits_to_send = true; /* as the poll is */
    send_some(connection);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* All of the reply is here: the connection is idle, or closed, before the subrequest is told. */
static void end_reply(struct bag_upstream_connection *connection)
{
    struct bag_coordinator *coordinator = connection->coordinator;
    struct bag_upstream *upstream = connection->upstream;
    struct bag_subrequest *subrequest = connection->subrequest;
    const struct bag_attempt attempt = connection->attempt;
    struct bag_reply_head reply = connection->reply;
    char *body = connection->body;
    const size_t sent_in_full = connection->request_bytes + tensor_bytes_of(call_of(subrequest));
    connection->body = NULL;
    subrequest->links[subrequest->links[0] == connection ? 0 : 1] = NULL;
    connection->subrequest = NULL;
    if (reply.closes || connection->sent < sent_in_full) {
        bag_upstream_connection_close(connection);
    } else {
        connection->is_kept = true;
        connection->state = BAG_UPSTREAM_IDLE;
        connection->idle_ns = uv_now(coordinator->loop) * 1000000;
        connection->next = upstream->idle;
        upstream->idle = connection;
    }
    bag_subrequest_on_reply(subrequest, &reply, body);
    bag_attempt_end(&attempt, subrequest, reply.status, subrequest->outcome);
    bag_upstream_send_waiting(coordinator, upstream);
}

/* The head is here, and `rest` bytes behind it. */
static bool begin_body(struct bag_upstream_connection *connection, size_t head_bytes)
{
    const struct bag_fanout_call *call = call_of(connection->subrequest);
    struct bag_problem why BAG_UNSET;
    char text[200] BAG_UNSET;
    size_t rest = connection->head_bytes - head_bytes;
    if (!bag_reply_head_parse(connection->head, head_bytes, &connection->reply, &why)) {
        snprintf(text, sizeof text, "answered wrongly: %.150s", why.text);
        lose(connection, BAG_SHARD_WRONG, text);
        return false;
    }
    connection->state = BAG_UPSTREAM_READING_BODY;
    size_t most = connection->reply.status == 200 ? call->max_reply_bytes : ERROR_BYTES;
    if (connection->reply.body_bytes > most || rest > connection->reply.body_bytes) {
        snprintf(text, sizeof text, "answered %llu bytes, where at most %zu were expected",
                 (unsigned long long)(rest > connection->reply.body_bytes
                                          ? rest
                                          : connection->reply.body_bytes),
                 most);
        lose(connection, BAG_SHARD_WRONG, text);
        return false;
    }
    connection->body =
        bag_buffers_get(connection->coordinator->buffers, (size_t)connection->reply.body_bytes + 1);
    if (!connection->body) {
        struct bag_subrequest *subrequest = connection->subrequest;
        bag_budget_reject(connection->coordinator->buffers->budget, "a shard's answer",
                          (size_t)connection->reply.body_bytes, &subrequest->run->problem);
        lose(connection, BAG_SHARD_LACKING, NULL);
        return false;
    }
    memcpy(connection->body, connection->head + head_bytes, rest);
    connection->body_bytes = rest;
    if (!connection->waits_to_send)
        return true;
    connection->waits_to_send = false; /* it is answered: what is left need not be sent */
    if (listen_to(connection))
        return true;
    lose(connection, BAG_SHARD_CLOSED, NO_LISTENING);
    return false;
}

/* Reads the head; false where there is nothing more to read now, or the connection has ended. */
static bool read_head(struct bag_upstream_connection *connection)
{
    ssize_t count = recv(connection->fd, connection->head + connection->head_bytes,
                         sizeof connection->head - connection->head_bytes, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (count <= 0) {
        on_ended(connection);
        return false;
    }
    size_t from = connection->head_bytes < 3 ? 0 : connection->head_bytes - 3;
    connection->head_bytes += (size_t)count;
    const char *end = memmem(connection->head + from, connection->head_bytes - from, "\r\n\r\n", 4);
    if (!end && connection->head_bytes == sizeof connection->head)
        lose(connection, BAG_SHARD_WRONG, "answered a head of more than 8 KiB");
    return end && begin_body(connection, (size_t)(end - connection->head) + 4);
}

static void read_body(struct bag_upstream_connection *connection)
{
    const size_t total = (size_t)connection->reply.body_bytes;
    for (size_t turn = 0; connection->body_bytes < total && turn < TURN_BYTES;) {
        ssize_t count = recv(connection->fd, connection->body + connection->body_bytes,
                             total - connection->body_bytes, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            return;
        if (count <= 0) {
            on_ended(connection);
            return;
        }
        connection->body_bytes += (size_t)count;
        turn += (size_t)count;
    }
    if (connection->body_bytes == total)
        end_reply(connection);
}

/* A reply that begins before all was sent is read, too. */
static void receive(struct bag_upstream_connection *connection)
{
    if (connection->state == BAG_UPSTREAM_READING_BODY || read_head(connection))
        read_body(connection);
}

static void go_on(struct bag_upstream_connection *connection, int status, int events)
{
    if (connection->state == BAG_UPSTREAM_CONNECTING) {
        on_connected(connection);
    } else if (connection->state ==
               BAG_UPSTREAM_IDLE) { /* bytes, or the end, where nothing was asked */
        unlink_idle(connection);
        bag_upstream_connection_close(connection);
    } else if (status < 0) { /* the poll has ended, too */
        (is_answered(connection) && listen_to(connection) ? receive : on_ended)(connection);
    } else if (connection->state == BAG_UPSTREAM_SENDING && (events & UV_WRITABLE)) {
        send_some(connection);
    } else {
        receive(connection);
    }
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct bag_upstream_connection *connection = poll->data;
    struct bag_coordinator *coordinator = connection->coordinator;
    go_on(connection, status, events);
    bag_coordinator_run_callbacks(coordinator);
}
