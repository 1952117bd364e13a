/* Kept connections to shards, and one call over one of them; see link.h.
 *
 * A link is connected, sends, reads the head of its reply, then the body, and is idle again.
 * Sockets of our own under uv_poll: a small call takes one system call to send and one to read. */
#include "link.h"

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

/* The link is gone; its errand has been told, or is told by the caller. */
void bag_front_link_close(struct bag_front_link *link)
{
    struct bag_errand *errand = link->errand;
    link->lane->count--;
    for (int i = 0; errand && i < 2; i++) {
        if (errand->links[i] == link)
            errand->links[i] = NULL;
    }
    bag_buffers_put(link->body);
    link->body = NULL;
    uv_close((uv_handle_t *)&link->poll, on_closed); /* takes the descriptor from the poll: */
    close(link->fd);                                 /* from here on it may be another's */
}

static void unlink_idle(struct bag_front_link *link)
{
    struct bag_front_link **at = &link->lane->idle;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
}

/* Its errand's attempt ends, as the link does. */
void bag_front_link_abandon(struct bag_front_link *link, unsigned became)
{
    int status = link->state == BAG_LINK_READING_BODY ? link->reply.status : 0;
    bag_front_attempt_end(&link->attempt, link->errand, status, became);
    bag_front_link_close(link);
}

/* The link ends without an answer. */
static void lose(struct bag_front_link *link, enum bag_shard_outcome outcome, const char *why)
{
    struct bag_front *front = link->front;
    struct bag_front_lane *lane = link->lane;
    struct bag_errand *errand = link->errand;
    bag_front_link_abandon(link, outcome);
    bag_trip_lose(errand, outcome, why ? "%s" : NULL, why);
    bag_front_serve_waiting(front, lane);
}

/* Sends the call again, unless another attempt is under way; others may get the link's place. */
static void send_again(struct bag_front_link *link, enum bag_shard_outcome outcome)
{
    struct bag_front *front = link->front;
    struct bag_front_lane *lane = link->lane;
    struct bag_errand *errand = link->errand;
    bag_front_link_abandon(link, outcome);
    if (!bag_errand_has_attempt(errand))
        bag_front_send(front, errand);
    bag_front_serve_waiting(front, lane);
}

/* A shard that was refused once may be restarting, and an address may have another that listens. */
static void on_refused(struct bag_front_link *link, int error)
{
    struct bag_errand *errand = link->errand;
    if (errand->refusals++ == 0) {
        send_again(link, BAG_SHARD_REFUSED);
        return;
    }
    atomic_store(&link->lane->host->is_away, true);
    bag_shard_group_ask(errand->group);
    lose(link, BAG_SHARD_REFUSED, strerror(error));
}

/* Before a byte of a reply a kept connection may have ended as the call was on its way. */
static void on_ended(struct bag_front_link *link)
{
    if (link->is_kept && link->head_bytes == 0 && link->state != BAG_LINK_READING_BODY) {
        send_again(link, BAG_SHARD_CLOSED);
        return;
    }
    lose(link, BAG_SHARD_CLOSED,
         link->head_bytes ? "closed the connection in the middle of its answer"
                          : "closed the connection without an answer");
}

/* ---- sending --------------------------------------------------------------------------------- */

static int poll_events(const struct bag_front_link *link)
{
    return link->state == BAG_LINK_CONNECTING ? UV_WRITABLE
           : link->waits_to_send              ? UV_READABLE | UV_WRITABLE
                                              : UV_READABLE;
}

static bool listen_to(struct bag_front_link *link)
{
    return uv_poll_start(&link->poll, poll_events(link), on_event) == 0;
}

static const struct bag_fanout_call *call_of(const struct bag_errand *errand)
{
    return &errand->trip->fanout.calls[errand - errand->trip->errands];
}

static size_t tensor_bytes_of(const struct bag_fanout_call *call)
{
    return call->body_bytes - call->header_bytes;
}

/* Appends what there is room for: a head that fills all of it may lack its end. */
static void put_bytes(struct bag_front_link *link, const char *text, size_t bytes)
{
    size_t room = sizeof link->request - link->request_bytes;
    size_t taken = bytes < room ? bytes : room;
    memcpy(link->request + link->request_bytes, text, taken);
    link->request_bytes += taken;
}

static void put(struct bag_front_link *link, const char *text)
{
    put_bytes(link, text, strlen(text));
}

static void put_number(struct bag_front_link *link, size_t value)
{
    char digits[BAG_DIGITS_BYTES];
    put_bytes(link, digits, (size_t)(bag_digits_put(digits, value) - digits));
}

static void put_line(struct bag_front_link *link, const char *name, const char *value)
{
    put(link, name);
    put(link, value);
    put(link, "\r\n");
}

static void put_target(struct bag_front_link *link, const struct bag_remote *remote)
{
    const struct bag_shard_address *address = &link->lane->host->address;
    put(link, "POST ");
    put_bytes(link, address->url.path.data, address->url.path.bytes);
    put(link, "/v2/models/");
    put(link, remote->model);
    put(link, "/versions/");
    put(link, remote->version);
    put(link, "/infer HTTP/1.1\r\nHost: ");
    put(link, address->url.authority);
}

/* Who asks, and for whom. */
static void put_credentials(struct bag_front_link *link)
{
    const struct bag_errand *errand = link->errand;
    const char *token_file = errand->group->config.shard_token_file;
    char token[BAG_SHARD_TOKEN_BYTES] BAG_UNSET;
    char traceparent[BAG_TRACEPARENT_BYTES] BAG_UNSET;
    *token = 0;
    if (token_file && *token_file)
        bag_shard_group_token(errand->group, token);
    if (*token)
        put_line(link, "Authorization: Bearer ", token);
    if (link->attempt.id) {
        bag_front_attempt_print(&link->attempt, errand->trip, traceparent);
        put_line(link, "traceparent: ", traceparent);
    } else if (errand->trip->traceparent) {
        put_line(link, "traceparent: ", errand->trip->traceparent);
    }
}

/* The head of a call, and the JSON of its body, which says how much time is left; false where it
 * does not fit. */
static bool write_head(struct bag_front_link *link)
{
    const struct bag_errand *errand = link->errand;
    const struct bag_fanout_call *call = call_of(errand);
    char json[BAG_SHARD_TIMED_BYTES] BAG_UNSET;
    size_t json_bytes = bag_shard_request_timed(call->body, call->header_bytes,
                                                bag_trip_left_us(errand->trip), json);
    link->request_bytes = 0;
    put_target(link, errand->trip->infer->input.model->features[call->feature].memory->remote);
    put(link, "\r\nContent-Type: application/octet-stream\r\nContent-Length: ");
    put_number(link, json_bytes + tensor_bytes_of(call));
    put(link, "\r\nInference-Header-Content-Length: ");
    put_number(link, json_bytes);
    put(link, "\r\n");
    put_credentials(link);
    put(link, "\r\n");
    put_bytes(link, json, json_bytes);
    return link->request_bytes < sizeof link->request;
}

/* Writes what is left of head, JSON and tensors; false where the connection has ended. */
static bool write_some(struct bag_front_link *link)
{
    const struct bag_fanout_call *call = call_of(link->errand);
    const size_t total = link->request_bytes + tensor_bytes_of(call);
    while (link->sent < total) {
        size_t in_head = link->sent < link->request_bytes ? link->request_bytes - link->sent : 0;
        size_t in_tensors = total - link->sent - in_head;
        struct iovec parts[2] = {{link->request + link->sent, in_head},
                                 {call->body + (call->body_bytes - in_tensors), in_tensors}};
        struct msghdr message = {.msg_iov = in_head ? parts : parts + 1,
                                 .msg_iovlen = in_head ? 2 : 1};
        ssize_t count = sendmsg(link->fd, &message, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno == EAGAIN;
        link->sent += (size_t)count;
    }
    link->state = BAG_LINK_READING_HEAD;
    return true;
}

/* Whether what was sent so far is being answered: that outlasts the connection. */
static bool is_answered(const struct bag_front_link *link)
{
    char byte;
    return link->sent > 0 && recv(link->fd, &byte, 1, MSG_PEEK) > 0;
}

static void receive(struct bag_front_link *link);

static void send_some(struct bag_front_link *link)
{
    if (!write_some(link)) {
        (is_answered(link) ? receive : on_ended)(link);
        return;
    }
    bool waits = link->state == BAG_LINK_SENDING;
    if (waits == link->waits_to_send)
        return;
    link->waits_to_send = waits;
    if (!listen_to(link))
        lose(link, BAG_SHARD_CLOSED, NO_LISTENING);
}

void bag_front_link_send(struct bag_front_link *link, struct bag_errand *errand)
{
    link->errand = errand;
    errand->links[errand->links[0] ? 1 : 0] = link;
    link->sent = link->head_bytes = link->body_bytes = 0;
    link->attempt.id = 0;
    if (errand->trip->place)
        link->attempt = bag_front_attempt_begin(errand);
    if (!write_head(link)) {
        lose(link, BAG_SHARD_WRONG,
             "has an address, and the client a traceparent, too long to ask");
        return;
    }
    if (link->state == BAG_LINK_CONNECTING)
        return;
    link->state = BAG_LINK_SENDING;
    send_some(link);
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* A link that is being connected, or is; NULL with errno. */
struct bag_front_link *bag_front_link_connect(struct bag_front *front, struct bag_front_lane *lane,
                                              const struct bag_shard_place *place)
{
    const int on = 1;
    struct bag_front_link *link = malloc(sizeof *link);
    int fd =
        link ? socket(place->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0) {
        free(link);
        return NULL;
    }
    if (place->address.ss_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bool waits = connect(fd, (const struct sockaddr *)&place->address, place->bytes) != 0;
    link->poll.data = link;
    if ((waits && errno != EINPROGRESS) || uv_poll_init(front->loop, &link->poll, fd) != 0) {
        int error = waits ? errno : ENOMEM;
        close(fd);
        free(link);
        errno = error;
        return NULL;
    }
    link->front = front;
    link->lane = lane;
    link->next = NULL;
    link->errand = NULL;
    link->fd = fd;
    link->state = waits ? BAG_LINK_CONNECTING : BAG_LINK_IDLE;
    link->is_kept = link->waits_to_send = false;
    link->body = NULL;
    link->head_bytes = link->body_bytes = 0;
    lane->count++;
    if (listen_to(link))
        return link;
    bag_front_link_close(link);
    errno = ENOMEM;
    return NULL;
}

static void on_connected(struct bag_front_link *link)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error) {
        on_refused(link, error);
        return;
    }
    link->errand->refusals = 0;
    link->state = BAG_LINK_SENDING;
    link->waits_to_send = true; /* as the poll is */
    send_some(link);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* All of the reply is here: the link is idle, or closed, before the errand is told. */
static void end_reply(struct bag_front_link *link)
{
    struct bag_front *front = link->front;
    struct bag_front_lane *lane = link->lane;
    struct bag_errand *errand = link->errand;
    const struct bag_front_attempt attempt = link->attempt;
    struct bag_reply_head reply = link->reply;
    char *body = link->body;
    const size_t sent_in_full = link->request_bytes + tensor_bytes_of(call_of(errand));
    link->body = NULL;
    errand->links[errand->links[0] == link ? 0 : 1] = NULL;
    link->errand = NULL;
    if (reply.closes || link->sent < sent_in_full) {
        bag_front_link_close(link);
    } else {
        link->is_kept = true;
        link->state = BAG_LINK_IDLE;
        link->idle_ns = uv_now(front->loop) * 1000000;
        link->next = lane->idle;
        lane->idle = link;
    }
    bag_trip_take(errand, &reply, body);
    bag_front_attempt_end(&attempt, errand, reply.status, errand->outcome);
    bag_front_serve_waiting(front, lane);
}

/* The head is here, and `rest` bytes behind it. */
static bool begin_body(struct bag_front_link *link, size_t head_bytes)
{
    const struct bag_fanout_call *call = call_of(link->errand);
    struct bag_problem why BAG_UNSET;
    char text[200] BAG_UNSET;
    size_t rest = link->head_bytes - head_bytes;
    if (!bag_reply_head_parse(link->head, head_bytes, &link->reply, &why)) {
        snprintf(text, sizeof text, "answered wrongly: %.150s", why.text);
        lose(link, BAG_SHARD_WRONG, text);
        return false;
    }
    link->state = BAG_LINK_READING_BODY;
    size_t most = link->reply.status == 200 ? call->max_reply_bytes : ERROR_BYTES;
    if (link->reply.body_bytes > most || rest > link->reply.body_bytes) {
        snprintf(
            text, sizeof text, "answered %llu bytes, where at most %zu were expected",
            (unsigned long long)(rest > link->reply.body_bytes ? rest : link->reply.body_bytes),
            most);
        lose(link, BAG_SHARD_WRONG, text);
        return false;
    }
    link->body = bag_buffers_get(link->front->buffers, (size_t)link->reply.body_bytes + 1);
    if (!link->body) {
        struct bag_errand *errand = link->errand;
        bag_budget_reject(link->front->buffers->budget, "a shard's answer",
                          (size_t)link->reply.body_bytes, &errand->trip->problem);
        lose(link, BAG_SHARD_LACKING, NULL);
        return false;
    }
    memcpy(link->body, link->head + head_bytes, rest);
    link->body_bytes = rest;
    if (!link->waits_to_send)
        return true;
    link->waits_to_send = false; /* it is answered: what is left need not be sent */
    if (listen_to(link))
        return true;
    lose(link, BAG_SHARD_CLOSED, NO_LISTENING);
    return false;
}

/* Reads the head; false where there is nothing more to read now, or the link has ended. */
static bool read_head(struct bag_front_link *link)
{
    ssize_t count =
        recv(link->fd, link->head + link->head_bytes, sizeof link->head - link->head_bytes, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (count <= 0) {
        on_ended(link);
        return false;
    }
    size_t from = link->head_bytes < 3 ? 0 : link->head_bytes - 3;
    link->head_bytes += (size_t)count;
    const char *end = memmem(link->head + from, link->head_bytes - from, "\r\n\r\n", 4);
    if (!end && link->head_bytes == sizeof link->head)
        lose(link, BAG_SHARD_WRONG, "answered a head of more than 8 KiB");
    return end && begin_body(link, (size_t)(end - link->head) + 4);
}

static void read_body(struct bag_front_link *link)
{
    const size_t total = (size_t)link->reply.body_bytes;
    for (size_t turn = 0; link->body_bytes < total && turn < TURN_BYTES;) {
        ssize_t count = recv(link->fd, link->body + link->body_bytes, total - link->body_bytes, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            return;
        if (count <= 0) {
            on_ended(link);
            return;
        }
        link->body_bytes += (size_t)count;
        turn += (size_t)count;
    }
    if (link->body_bytes == total)
        end_reply(link);
}

/* A reply that begins before all was sent is read, too. */
static void receive(struct bag_front_link *link)
{
    if (link->state == BAG_LINK_READING_BODY || read_head(link))
        read_body(link);
}

static void go_on(struct bag_front_link *link, int status, int events)
{
    if (link->state == BAG_LINK_CONNECTING) {
        on_connected(link);
    } else if (link->state == BAG_LINK_IDLE) { /* bytes, or the end, where nothing was asked */
        unlink_idle(link);
        bag_front_link_close(link);
    } else if (status < 0) { /* the poll has ended, too */
        (is_answered(link) && listen_to(link) ? receive : on_ended)(link);
    } else if (link->state == BAG_LINK_SENDING && (events & UV_WRITABLE)) {
        send_some(link);
    } else {
        receive(link);
    }
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct bag_front_link *link = poll->data;
    struct bag_front *front = link->front;
    go_on(link, status, events);
    bag_front_tell(front);
}
