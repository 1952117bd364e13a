/* See connection.h. */
#include "connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECEIVE_BYTES (256 * 1024)

static void watch(struct bench_connection *connection, int epoll_fd, int operation)
{
    struct epoll_event event = {.events = connection->writing ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.ptr = connection};
    epoll_ctl(epoll_fd, operation, connection->fd, &event);
}

bool bench_connection_open(struct bench_connection *connection, int epoll_fd, unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        return false;
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address) != 0 &&
        errno != EINPROGRESS) {
        bench_connection_close(connection);
        return false;
    }
    connection->busy = connection->writing = false;
    watch(connection, epoll_fd, EPOLL_CTL_ADD);
    return true;
}

void bench_connection_close(struct bench_connection *connection)
{
    close(connection->fd);
    connection->fd = -1;
    connection->busy = false;
}

static enum bench_outcome fail(struct bench_connection *connection, enum bench_outcome outcome)
{
    bench_connection_close(connection);
    return outcome;
}

/* ---- sending --------------------------------------------------------------------------------- */

static enum bench_outcome send_rest(struct bench_connection *connection, int epoll_fd)
{
    const struct bench_request *request = connection->request;
    while (connection->sent < request->count) {
        ssize_t sent = send(connection->fd, request->bytes + connection->sent,
                            request->count - connection->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return fail(connection, BENCH_LOST);
        if (sent < 0)
            break;
        connection->sent += (size_t)sent;
    }
    bool writing = connection->sent < request->count;
    if (writing != connection->writing) {
        connection->writing = writing;
        watch(connection, epoll_fd, EPOLL_CTL_MOD);
    }
    return BENCH_PENDING;
}

enum bench_outcome bench_connection_begin(struct bench_connection *connection, int epoll_fd,
                                          const struct bench_request *request)
{
    connection->busy = true;
    connection->request = request;
    connection->sent = connection->head_bytes = 0;
    connection->in_body = connection->closes = false;
    return send_rest(connection, epoll_fd);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The value of `line` if it is the header `name` (with its colon); else NULL. */
static const char *value_of(const char *line, const char *name)
{
    size_t bytes = strlen(name);
    if (strncasecmp(line, name, bytes) != 0)
        return NULL;
    return line + bytes + strspn(line + bytes, " ");
}

/* Reads the complete head, which ends with a NUL. */
static bool parse_head(struct bench_connection *connection)
{
    const char *value, *line = connection->head;
    bool has_length = false;
    if (strncmp(line, "HTTP/1.1 ", 9) != 0)
        return false;
    connection->status = atoi(line + 9);
    while ((line = strchr(line, '\n')) && *++line) {
        if ((value = value_of(line, "content-length:"))) {
            connection->body_left = strtoull(value, NULL, 10);
            has_length = true;
        } else if ((value = value_of(line, "connection:"))) {
            connection->closes = strncasecmp(value, "close", 5) == 0;
        }
    }
    return has_length;
}

/* Takes what belongs to the head; false where that cannot be one. *taken says how much. */
static bool take_head(struct bench_connection *connection, const char *bytes, size_t count,
                      size_t *taken)
{
    size_t before = connection->head_bytes, room = BENCH_HEAD_BYTES - before;
    *taken = count < room ? count : room;
    memcpy(connection->head + before, bytes, *taken);
    connection->head_bytes += *taken;
    char *end = memmem(connection->head, connection->head_bytes, "\r\n\r\n", 4);
    if (!end)
        return room > count;
    end[2] = 0;
    *taken = (size_t)(end + 4 - connection->head) - before;
    connection->in_body = true;
    return parse_head(connection);
}

static enum bench_outcome take(struct bench_connection *connection, const char *bytes, size_t count)
{
    size_t taken = 0;
    if (!connection->in_body && !take_head(connection, bytes, count, &taken))
        return fail(connection, BENCH_GARBLED);
    if (!connection->in_body)
        return BENCH_PENDING;
    if (count - taken > connection->body_left)
        return fail(connection, BENCH_GARBLED);
    connection->body_left -= count - taken;
    if (connection->body_left)
        return BENCH_PENDING;
    connection->busy = false;
    /* A reply that came before its request was sent leaves nothing to go on with. */
    if (connection->closes || connection->sent < connection->request->count)
        bench_connection_close(connection);
    return BENCH_REPLIED;
}

enum bench_outcome bench_connection_move(struct bench_connection *connection, int epoll_fd,
                                         uint32_t events)
{
    static char scratch[RECEIVE_BYTES];
    if (events & ~(uint32_t)EPOLLOUT) {
        ssize_t count = recv(connection->fd, scratch, sizeof scratch, 0);
        if (count > 0 && connection->busy)
            return take(connection, scratch, (size_t)count);
        if (count >= 0 || errno != EAGAIN)
            return fail(connection, connection->busy ? BENCH_LOST : BENCH_ENDED);
    }
    return connection->busy && connection->writing ? send_rest(connection, epoll_fd)
                                                   : BENCH_PENDING;
}
