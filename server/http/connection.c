/* The open connections of a loop; see connection.h. */
#include "connection.h"

#include "accept.h"
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

static void on_timer(uv_timer_t *timer);

/* The stages that each stage may follow. What begins a stage is told in the order of the enum. */
#define AFTER(stage) (1u << BAG_HTTP_CONNECTION_##stage)
static const unsigned predecessors[BAG_HTTP_CONNECTION_STAGES] = {
    [BAG_HTTP_CONNECTION_PROXIED] = AFTER(ACCEPTED),
    [BAG_HTTP_CONNECTION_HELD] = AFTER(ADMITTED),
    [BAG_HTTP_CONNECTION_ADMITTED] = AFTER(ACCEPTED) | AFTER(PROXIED) | AFTER(HELD),
    [BAG_HTTP_CONNECTION_SURPLUS] = AFTER(ADMITTED),
    /* From the middle of a request where the library rejects it, or the client has left. */
    [BAG_HTTP_CONNECTION_IDLE] = AFTER(ADMITTED) | AFTER(SURPLUS) | AFTER(HEAD) | AFTER(BODY) |
                                 AFTER(WAITING) | AFTER(READING),
    [BAG_HTTP_CONNECTION_HEAD] = AFTER(IDLE) | AFTER(HEAD),
    [BAG_HTTP_CONNECTION_BODY] = AFTER(SURPLUS) | AFTER(HEAD),
    [BAG_HTTP_CONNECTION_WAITING] = AFTER(BODY) | AFTER(WAITING),
    [BAG_HTTP_CONNECTION_READING] = AFTER(BODY) | AFTER(WAITING),
    [BAG_HTTP_CONNECTION_ENDED] = AFTER(PROXIED) | AFTER(SURPLUS) | AFTER(IDLE) | AFTER(HEAD) |
                                  AFTER(BODY) | AFTER(WAITING) | AFTER(READING),
};

/* Puts it behind those that have been there for longer: nearly always the last. */
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

static void take_out(struct bag_http_connection_list *list, struct bag_http_connection *connection)
{
    if (list->next_swept == connection)
        list->next_swept = TAILQ_NEXT(connection, link);
    TAILQ_REMOVE(&list->queue, connection, link);
    list->count--;
}

static void enter_since(struct bag_http_connections *connections,
                        struct bag_http_connection *connection,
                        enum bag_http_connection_stage stage, uint64_t since_ms)
{
    uv_timer_t *timer = &connections->timer;
    if (connection->stage == BAG_HTTP_CONNECTION_ENDED)
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

void bag_http_connection_end(struct bag_http_connections *connections,
                             struct bag_http_connection *connection)
{
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_ENDED);
    shutdown(connection->fd, SHUT_RDWR);
}

void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection)
{
    if (connection->stage != BAG_HTTP_CONNECTION_ACCEPTED)
        take_out(&connections->lists[connection->stage], connection);
    bag_http_client_release(connections->acceptor, connection->client);
    if (connection->counts)
        atomic_fetch_sub(&connections->acceptor->total, 1);
    if (atomic_fetch_sub(&connections->count, 1) == 1 && !connections->on_drained)
        uv_timer_stop(&connections->timer);
    free(connection);
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
    struct pollfd end = {.fd = connection->fd, .events = POLLRDHUP};
    return poll(&end, 1, 0) <= 0;
}

/* Returns false for a Unix-domain socket, of which nothing like it can be asked. */
static bool read_state(const struct bag_http_connection *connection, struct bag_tcp_state *state)
{
    return !connection->is_unix && bag_tcp_read_state(connection->fd, state);
}

uint64_t bag_http_connection_quiet_ns(const struct bag_http_connection *connection)
{
    struct bag_tcp_state tcp;
    return read_state(connection, &tcp) ? tcp.received_ms * UINT64_C(1000000) : 0;
}

/* Returns whether more has come than requests were made of: a part of a line. An empty line in
 * front of a request, which the library passes over, is none. */
static bool has_half_line(const struct bag_http_connection *connection,
                          const struct bag_tcp_state *tcp)
{
    return tcp->received_bytes > connection->taken_bytes + strlen("\r\n");
}

/* Returns whether nothing has moved for idle_timeout_ms, though it is for the client to send or to
 * read. */
static bool is_still(const struct bag_http_connections *connections,
                     const struct bag_http_connection *connection, uint64_t now_ms)
{
    uint64_t idle_ms = connections->idle_timeout_ms;
    struct bag_tcp_state tcp;
    return now_ms >= connection->since_ms + idle_ms && read_state(connection, &tcp) &&
           tcp.received_ms >= idle_ms && tcp.sent_ms >= idle_ms;
}

/* Lets the library close a Unix-domain socket on which nothing moves for idle_timeout_ms. It is
 * told so of those alone that a sweep meets in the midst of a request: the library looks at all
 * that have a time-out in each of its rounds. */
static void set_time_out(struct bag_http_connections *connections,
                         struct bag_http_connection *connection)
{
    if (!connection->is_unix || connection->has_time_out)
        return;
    assert(connection->handle);
    connection->has_time_out =
        MHD_set_connection_option(connection->handle, MHD_CONNECTION_OPTION_TIMEOUT,
                                  (unsigned)(connections->idle_timeout_ms / 1000)) == MHD_YES;
    bag_engine_wake(connections->engine); /* the loop asks the library when to call it */
}

/* ---- replies past the library ---------------------------------------------------------------- */

static bool print_header(void *message, const char *name, const char *value)
{
    return fprintf(message, "%s: %s\r\n", name, value) > 0;
}

bool bag_http_connection_send_past(const struct bag_http_connection *connection,
                                   const struct bag_http_reply *reply)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *message = reply->body ? open_memstream(&text, &bytes) : NULL;
    if (!message)
        return false;
    fprintf(message, "HTTP/1.1 %d %s\r\n", reply->status,
            MHD_get_reason_phrase_for((unsigned)reply->status));
    bag_http_reply_headers(reply, print_header, message);
    fprintf(message, "Content-Length: %zu\r\n\r\n", reply->body_bytes);
    fwrite(reply->body, 1, reply->body_bytes, message);
    bool failed = ferror(message);
    failed |= fclose(message) != 0;
    bool sent =
        !failed && send(connection->fd, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
    free(text);
    return sent;
}

/* ---- lingering closes ------------------------------------------------------------------------ */

/* A client that has not read the answer by then never will. */
#define LINGER_MS 2000

/* How often bytes are dropped: by the first time most clients have read their answer and stopped
 * sending. */
#define LINGER_TICK_MS 5

/* To let clients send the rest of large bodies takes the kernel as long as to answer them: so much
 * is dropped of all each time. Where more than so many linger, nothing is, and a connection is
 * reset when its client has had this long to read the answer. */
#define DROPPED_A_TICK ((ssize_t)1 << 20)
#define MAX_DRAINED    16
#define STORM_MS       25

/* Drops what has come, as recv does. TCP takes no memory for what it is asked to truncate, and
 * copies nothing (tcp(7)); a Unix socket wants to copy it. */
static ssize_t drop_bytes(int fd, size_t most)
{
    char dropped[65536];
    ssize_t count = recv(fd, NULL, most, MSG_DONTWAIT | MSG_TRUNC);
    if (count < 0 && errno == EFAULT)
        count = recv(fd, dropped, sizeof dropped, MSG_DONTWAIT);
    return count;
}

static void end_lingering(struct bag_http_connection_list *list,
                          struct bag_http_connection *connection)
{
    take_out(list, connection);
    close(connection->fd);
    free(connection);
}

static void on_linger(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    struct bag_http_connection_list *list = &connections->lists[BAG_HTTP_CONNECTION_LINGERING];
    const uint64_t now_ms = uv_now(timer->loop);
    struct bag_http_connection *connection, *next;
    while (list->count > MAX_DRAINED && (connection = TAILQ_FIRST(&list->queue)) &&
           now_ms >= connection->since_ms + STORM_MS)
        end_lingering(list, connection);
    connection = TAILQ_FIRST(&list->queue);
    ssize_t left = list->count <= MAX_DRAINED ? DROPPED_A_TICK : 0;
    for (; connection && left > 0; connection = next) {
        ssize_t count = drop_bytes(connection->fd, (size_t)left);
        bool has_ended = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
        next = TAILQ_NEXT(connection, link);
        left -= count > 0 ? count : 0;
        if (has_ended || now_ms >= connection->since_ms + LINGER_MS)
            end_lingering(list, connection);
    }
    if (list->count == 0)
        uv_timer_stop(timer);
}

void bag_http_connection_linger(struct bag_http_connections *connections, int fd)
{
    struct bag_http_connection_list *list = &connections->lists[BAG_HTTP_CONNECTION_LINGERING];
    uv_timer_t *timer = &connections->linger_timer;
    /* Each takes a descriptor. Where there are more, the oldest has had the longest to be read. */
    if (list->count == MAX_DRAINED + connections->acceptor->limits.connections / 4)
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

/* Returns whether an idle one may be about to ask: bytes are here that the library has not read, or
 * were a moment ago, and are half a line. The latter in a drain alone, where half a line has no
 * time of its own, and for the time of a head: who sends a byte from time to time does not outlast
 * that. Of a Unix-domain socket only the former can be known. */
static bool may_ask(const struct bag_http_connections *connections,
                    const struct bag_http_connection *connection, uint64_t now_ms)
{
    uint64_t head_ms = connections->timeouts_ms[BAG_HTTP_CONNECTION_HEAD];
    struct bag_tcp_state tcp;
    return peek(connection) > 0 ||
           (connections->on_drained && now_ms < connections->drained_since_ms + head_ms &&
            read_state(connection, &tcp) && tcp.received_ms < DRAINED_IDLE_MS);
}

/* Gives an idle connection on which half a line came the time of a head, since the last byte of it
 * or since it is idle. */
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

static void end_late(struct bag_http_connections *connections, enum bag_http_connection_stage stage,
                     uint64_t now_ms)
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
            bag_http_connection_end(connections, connection);
    }
}

/* Looks at some connections for what the library does not see or say: a client that has left before
 * its request was complete (where the end comes together with bytes, it waits for more), one that
 * is still, and half a line. */
static void sweep(struct bag_http_connections *connections, enum bag_http_connection_stage stage,
                  uint64_t now_ms)
{
    struct bag_http_connection_list *list = &connections->lists[stage];
    if (!list->next_swept)
        list->next_swept = TAILQ_FIRST(&list->queue);
    for (size_t left = list->count / SWEEP_TICKS + 1; list->next_swept && left; left--) {
        struct bag_http_connection *connection = list->next_swept;
        list->next_swept = TAILQ_NEXT(connection, link);
        ssize_t bytes = stage == BAG_HTTP_CONNECTION_READING ? 1 : peek(connection);
        if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR))
            bag_http_connection_end(connections, connection);
        else if (stage == BAG_HTTP_CONNECTION_IDLE && bytes < 0)
            expect_head(connections, connection, now_ms);
        else if (stage == BAG_HTTP_CONNECTION_IDLE || stage == BAG_HTTP_CONNECTION_PROXIED)
            continue;
        else if (is_still(connections, connection, now_ms))
            bag_http_connection_end(connections, connection);
        else
            set_time_out(connections, connection);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct bag_http_connections *connections = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    bool is_closed = connections->on_drained && atomic_load(&connections->acceptor->closed);
    if (is_closed && now_ms >= connections->drained_since_ms + DRAINED_IDLE_MS)
        connections->timeouts_ms[BAG_HTTP_CONNECTION_IDLE] = DRAINED_IDLE_MS;
    for (unsigned stage = 0; stage < BAG_HTTP_CONNECTION_STAGES; stage++) {
        if (connections->timeouts_ms[stage] == 0)
            continue;
        end_late(connections, stage, now_ms);
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
    /* Both count from now: begun before a clock went back, they would be due in its future. */
    uv_timer_start(&connections->timer, on_timer, 0, TICK_MS);
    uv_timer_start(&connections->linger_timer, on_linger, 0, LINGER_TICK_MS);
}

/* ---- making room ----------------------------------------------------------------------------- */

/* Whether it may be ended for another of `client`: at once where its own client has many more. */
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
           (is_free || (client && theirs > ours)) && (!is_idle || peek(connection) <= 0);
}

void bag_http_connections_make_room(struct bag_http_connections *connections,
                                    const struct bag_http_client *client)
{
    struct bag_http_acceptor *acceptor = connections->acceptor;
    uint64_t now_ms = uv_now(connections->timer.loop);
    if (atomic_load(&acceptor->total) < acceptor->limits.connections)
        return;
    for (unsigned stage = BAG_HTTP_CONNECTION_IDLE; stage <= BAG_HTTP_CONNECTION_READING; stage++) {
        struct bag_http_connection *longest = TAILQ_FIRST(&connections->lists[stage].queue);
        unsigned left = stage == BAG_HTTP_CONNECTION_WAITING ? 0 : MAX_LOOKED_AT;
        for (; longest && left; left--, longest = TAILQ_NEXT(longest, link)) {
            if (!is_evictable(longest, client, now_ms))
                continue;
            bag_http_connection_end(connections, longest);
            longest->counts = false;
            atomic_fetch_sub(&acceptor->total, 1);
            return;
        }
    }
}

void bag_http_connections_bound_surplus(struct bag_http_connections *connections)
{
    const struct bag_http_acceptor *acceptor = connections->acceptor;
    const struct bag_http_acceptor_limits *limits = &acceptor->limits;
    struct bag_http_connection *longest =
        TAILQ_FIRST(&connections->lists[BAG_HTTP_CONNECTION_SURPLUS].queue);
    size_t count = 0;
    for (size_t i = 0; i < acceptor->num_loops; i++)
        count += atomic_load(&acceptor->loops[i]->count);
    if (longest && count > limits->connections + (limits->accepted - limits->connections) / 2 &&
        peek(longest) <= 0)
        bag_http_connection_end(connections, longest);
}
