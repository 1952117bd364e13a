/* Receives for libmicrohttpd, and checks what comes before the library sees it; see server.h. */
#include "server.h"

#include "server/system/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Splits the first line, as far as it came, for the log. */
static struct bag_http_first_line split_first_line(char *text, struct bag_http_peer *peer)
{
    struct bag_http_first_line line = {.method = strsep(&text, " "), .peer = peer};
    line.target = text ? strsep(&text, " ") : "";
    line.version = text ? text : "";
    return line;
}

/* A request of which the library will not know, for its metrics and its line in the log. */
static struct bag_http_request *begin_rejected(struct bag_http_mhd *mhd,
                                               struct bag_http_connection *connection)
{
    struct bag_guard *guard = &connection->guard;
    struct bag_http_first_line line = split_first_line(guard->first_line, &connection->peer);
    struct bag_http_request *request =
        bag_http_request_begin(mhd->context, &bag_http_mhd_calls, connection, &line);
    if (request && *guard->request_id)
        request->head.request_id = guard->request_id;
    return request;
}

/* Answers a request of which nothing was answered yet, past the library. */
static void answer_fault(struct bag_http_mhd *mhd, struct bag_http_connection *connection,
                         const struct bag_problem *fault)
{
    struct bag_http_request *request = connection->request;
    if (!request && !(request = begin_rejected(mhd, connection)))
        return;
    bag_http_request_reject(request, fault);
    if (bag_http_connection_send_raw(connection, &request->reply))
        bag_http_connection_linger(mhd->connections, connection->fd);
    if (!connection->request)
        bag_http_request_end(request, true);
}

/* Ends a connection, as far as the library knows by a reset. */
static ssize_t end_by_fault(struct bag_http_mhd *mhd, struct bag_http_connection *connection,
                            const struct bag_problem *fault)
{
    bool answered = connection->stage == BAG_HTTP_CONNECTION_READING ||
                    connection->stage == BAG_HTTP_CONNECTION_CUT_OFF;
    if (!answered)
        answer_fault(mhd, connection, fault);
    bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_CUT_OFF);
    errno = ECONNRESET;
    return -1;
}

/* Whether the library has done with all requests in front of a fault. It may read again before. */
static bool is_reached(const struct bag_http_connection *connection)
{
    return connection->completed >= connection->guard.requests;
}

static ssize_t wait(void)
{
    errno = EAGAIN;
    return -1;
}

/* Keeps a fault until the requests in front of it are answered. The library reads again then, for
 * the socket has nothing more to read. */
static ssize_t put_off(struct bag_http_connection *connection, const struct bag_problem *fault,
                       size_t valid_bytes)
{
    connection->fault = malloc(sizeof *fault);
    if (!connection->fault) {
        errno = ECONNRESET;
        return -1;
    }
    *connection->fault = *fault;
    shutdown(connection->fd, SHUT_RD);
    return valid_bytes ? (ssize_t)valid_bytes : wait();
}

/* Ends a connection on which no request was begun, without a reply. */
static ssize_t end_quietly(struct bag_http_mhd *mhd, struct bag_http_connection *connection)
{
    bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_CUT_OFF);
    errno = ECONNRESET;
    return -1;
}

/* From here on the connection is that of the client whom the PROXY header names. */
static bool take_source(struct bag_http_mhd *mhd, struct bag_http_connection *connection)
{
    const struct bag_proxy_header *header = connection->proxy;
    bool is_admitted = true;
    if (header->has_source) {
        connection->peer = (struct bag_http_peer){.known = true, .port = header->source_port};
        memcpy(connection->peer.address, header->source, sizeof header->source);
        is_admitted =
            bag_http_client_acquire(mhd->acceptor, &connection->peer, &connection->client);
    }
    free(connection->proxy);
    connection->proxy = NULL;
    return is_admitted;
}

/* Takes the PROXY header out of what was read; the bytes that are left, or -1. */
static ssize_t read_proxy_header(struct bag_http_mhd *mhd, struct bag_http_connection *connection,
                                 char *data, size_t bytes)
{
    struct bag_problem problem;
    size_t used;
    if (!bag_proxy_read(connection->proxy, data, bytes, &used, &problem)) {
        bag_log(BAG_LOG_LEVEL_WARNING, "bad proxy header",
                BAG_LOG_TEXT("client", bag_http_peer_text(&connection->peer)),
                BAG_LOG_TEXT("message", problem.text));
        return end_quietly(mhd, connection);
    }
    if (connection->proxy->is_complete && !take_source(mhd, connection))
        return end_quietly(mhd, connection);
    memmove(data, data + used, bytes - used);
    return (ssize_t)(bytes - used);
}

/* What the library gets of bytes that were read; -1 without *fault where the connection has ended.
 * With *fault it gets these, and then the fault. */
static ssize_t check_received(struct bag_http_mhd *mhd, struct bag_http_connection *connection,
                              char *data, size_t bytes, bool *is_faulty, struct bag_problem *fault)
{
    size_t passed_bytes;
    if (connection->proxy) {
        ssize_t left = read_proxy_header(mhd, connection, data, bytes);
        if (left <= 0)
            return left;
        bytes = (size_t)left;
    }
    *is_faulty = !bag_guard_check(&connection->guard, data, bytes, &passed_bytes, fault);
    return (ssize_t)passed_bytes;
}

/* What is received of a long body at once, about: as much as the library, told of it in pieces,
 * takes in a turn of the loop. */
#define AHEAD_BYTES ((size_t)128 << 10)

/* Receives bytes of a long body in their place, and not its end, which may have a request behind
 * it: recv's result, or 0 where they cannot be. A multiple of `room`, so that the library, as it is
 * told of them, finds its buffer full up to the last. */
static ssize_t receive_ahead(struct bag_http_connection *connection, int fd, size_t room)
{
    size_t left = 0;
    char *place = connection->request ? bag_http_request_place(connection->request, &left) : NULL;
    if (!place || connection->placed || left != connection->guard.left || left < room)
        return 0;
    size_t most = left < AHEAD_BYTES ? left : AHEAD_BYTES;
    ssize_t bytes = recv(fd, place, most > room ? most - most % room : room, MSG_DONTWAIT);
    connection->ahead = bytes > 0 ? (size_t)bytes : 0;
    return bytes;
}

/* As recv, but what comes of a body may be in its place instead of in `data`. The library takes a
 * read that does not fill its buffer for all that there is, and waits for more. */
static ssize_t receive(struct bag_http_connection *connection, int fd, char *data, size_t room)
{
    ssize_t bytes = connection->ahead ? 0 : receive_ahead(connection, fd, room);
    size_t told = connection->ahead < room ? connection->ahead : room;
    connection->ahead -= told;
    connection->placed += told;
    if (bytes || told == room)
        return told ? (ssize_t)told : bytes;
    do
        bytes = recv(fd, data + told, room - told, MSG_DONTWAIT);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0 && told && errno != EAGAIN)
        shutdown(fd, SHUT_RD); /* the library reads again, and fails then */
    return bytes > 0 || !told ? (ssize_t)told + bytes : (ssize_t)told;
}

/* What stays behind of the bytes (a PROXY header, chunks' extensions) is made up for. */
ssize_t bag_http_mhd_receive(void *context, int fd, char *data, size_t most)
{
    struct bag_http_mhd *mhd = context;
    struct bag_http_connection *connection = bag_http_connection_find(mhd->connections, fd);
    struct bag_problem fault BAG_UNSET;
    bool is_faulty = false;
    if (!connection)
        return recv(fd, data, most, MSG_DONTWAIT);
    ssize_t bytes = receive(connection, fd, data, most);
    if (connection->fault)
        return is_reached(connection) ? end_by_fault(mhd, connection, connection->fault) : wait();
    size_t room = bytes > 0 ? (size_t)bytes : 0, used = 0;
    if (bytes > 0 && connection->stage == BAG_HTTP_CONNECTION_IDLE)
        bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_BEGINNING);
    while (bytes > 0 && used < room && !is_faulty) {
        ssize_t passed =
            check_received(mhd, connection, data + used, (size_t)bytes, &is_faulty, &fault);
        if (passed < 0)
            return passed;
        used += (size_t)passed;
        if (used < room && !is_faulty)
            bytes = recv(fd, data + used, room - used, MSG_DONTWAIT);
    }
    if (is_faulty)
        return used || !is_reached(connection) ? put_off(connection, &fault, used)
                                               : end_by_fault(mhd, connection, &fault);
    return used ? (ssize_t)used : bytes;
}
