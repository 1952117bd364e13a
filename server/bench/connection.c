/* A connection that never blocks; see connection.h. */
#include "connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* The maximum number of bytes that are received at a time. */
#define RECEIVE_BYTES (256 * 1024)

/* Keeps the reason for which there is no reply. */
static void keep_reason(struct bag_bench_connection *connection, const char *text)
{
    int bytes = snprintf(connection->error, sizeof connection->error, "%s", text);
    connection->error_bytes = (size_t)bytes < sizeof connection->error ? (size_t)bytes : 0;
}

/* Makes epoll report when the socket can be read and, while bytes wait to be sent, written. Returns
 * false, closes the connection and keeps the reason if epoll cannot watch one more socket. */
static bool watch(struct bag_bench_connection *connection, int epoll_fd, int operation)
{
    struct epoll_event event = {.events = connection->writing ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.ptr = connection};
    if (epoll_ctl(epoll_fd, operation, connection->fd, &event) == 0)
        return true;
    char reason[BAG_BENCH_ERROR_BYTES];
    snprintf(reason, sizeof reason, "the connection cannot be watched by epoll: %s",
             strerror(errno));
    keep_reason(connection, reason);
    bag_bench_connection_close(connection);
    return false;
}

bool bag_bench_connection_open(struct bag_bench_connection *connection, int epoll_fd,
                               const struct bag_address *address)
{
    int one = 1, family = address->address.ss_family;
    connection->busy = connection->writing = connection->connected = false;
    connection->fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0) {
        keep_reason(connection, strerror(errno));
        return false;
    }
    if (family != AF_UNIX)
        setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(connection->fd, (const struct sockaddr *)&address->address, address->bytes) != 0 &&
        errno != EINPROGRESS) {
        keep_reason(connection, strerror(errno));
        bag_bench_connection_close(connection);
        return false;
    }
    return watch(connection, epoll_fd, EPOLL_CTL_ADD);
}

void bag_bench_connection_close(struct bag_bench_connection *connection)
{
    close(connection->fd);
    connection->fd = -1;
    connection->busy = false;
}

/* Closes the connection and keeps the reason. Returns LOST. */
static enum bag_bench_outcome fail(struct bag_bench_connection *connection, const char *why)
{
    keep_reason(connection, why);
    bag_bench_connection_close(connection);
    return BAG_BENCH_LOST;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends as much of the request as the socket takes. */
static enum bag_bench_outcome send_rest(struct bag_bench_connection *connection, int epoll_fd)
{
    const struct bag_bench_request *request = connection->request;
    while (connection->sent < request->count) {
        ssize_t sent = send(connection->fd, request->bytes + connection->sent,
                            request->count - connection->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return fail(connection, strerror(errno));
        if (sent < 0)
            break;
        connection->sent += (size_t)sent;
    }
    bool writing = connection->sent < request->count;
    if (writing != connection->writing) {
        connection->writing = writing;
        if (!watch(connection, epoll_fd, EPOLL_CTL_MOD))
            return BAG_BENCH_LOST;
    }
    return BAG_BENCH_PENDING;
}

enum bag_bench_outcome bag_bench_connection_begin(struct bag_bench_connection *connection,
                                                  int epoll_fd,
                                                  const struct bag_bench_request *request)
{
    connection->busy = true;
    connection->request = request;
    connection->sent = connection->head_bytes = connection->error_bytes = 0;
    connection->in_body = false;
    return send_rest(connection, epoll_fd);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Takes the bytes that belong to the head and sets *taken to their number. Returns false and sets
 * *problem if they are not the head of a reply. */
static bool take_head(struct bag_bench_connection *connection, const char *bytes, size_t count,
                      size_t *taken, struct bag_problem *problem)
{
    /* The head may arrive in several pieces. Only the new bytes are searched for its end. */
    size_t before = connection->head_bytes, room = sizeof connection->head - before;
    *taken = count < room ? count : room;
    memcpy(connection->head + before, bytes, *taken);
    connection->head_bytes += *taken;
    size_t head_bytes = bag_reply_head_end(connection->head, connection->head_bytes, before);
    if (head_bytes == 0)
        return room > count || bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                               "the reply's head is longer than %zu bytes",
                                               sizeof connection->head);
    *taken = head_bytes - before;
    connection->in_body = true;
    if (!bag_reply_head_parse(connection->head, head_bytes, &connection->reply, problem))
        return false;
    connection->body_left = connection->reply.body_bytes;
    return true;
}

/* Keeps the beginning of an error's body. */
static void keep_error(struct bag_bench_connection *connection, const char *bytes, size_t count)
{
    size_t room = sizeof connection->error - connection->error_bytes;
    count = count < room ? count : room;
    memcpy(connection->error + connection->error_bytes, bytes, count);
    connection->error_bytes += count;
}

/* Handles received bytes: the rest of the head, then the body, of which only errors are kept. */
static enum bag_bench_outcome take(struct bag_bench_connection *connection, const char *bytes,
                                   size_t count)
{
    struct bag_problem problem;
    size_t taken = 0;
    connection->connected = true;
    if (!connection->in_body && !take_head(connection, bytes, count, &taken, &problem))
        return fail(connection, problem.text);
    if (!connection->in_body)
        return BAG_BENCH_PENDING;
    if (count - taken > connection->body_left)
        return fail(connection, "more came than the reply's Content-Length says");
    if (connection->reply.status != 200)
        keep_error(connection, bytes + taken, count - taken);
    connection->body_left -= count - taken;
    if (connection->body_left)
        return BAG_BENCH_PENDING;
    connection->busy = false;
    /* After a reply that came before the whole request was sent, the connection is useless. */
    if (connection->reply.closes || connection->sent < connection->request->count)
        bag_bench_connection_close(connection);
    return BAG_BENCH_REPLIED;
}

enum bag_bench_outcome bag_bench_connection_move(struct bag_bench_connection *connection,
                                                 int epoll_fd, uint32_t events)
{
    static char scratch[RECEIVE_BYTES];
    /* Read first: a reply or the end of the connection makes the rest of the request pointless. */
    if (events & ~(uint32_t)EPOLLOUT) {
        ssize_t count = recv(connection->fd, scratch, sizeof scratch, 0);
        if (count > 0 && connection->busy)
            return take(connection, scratch, (size_t)count);
        /* The connection is closed, has failed, or has sent bytes that nobody asked for. */
        if (count >= 0 || errno != EAGAIN) {
            if (connection->busy)
                return fail(connection, count < 0 ? strerror(errno)
                                                  : "the connection was closed without an answer");
            bag_bench_connection_close(connection);
            return BAG_BENCH_ENDED;
        }
    }
    return connection->busy && connection->writing ? send_rest(connection, epoll_fd)
                                                   : BAG_BENCH_PENDING;
}
