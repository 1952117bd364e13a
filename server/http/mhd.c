/* libmicrohttpd's callbacks; see server.h. */
#include "server.h"

#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- replies --------------------------------------------------------------------------------- */

static bool add_header(void *response, const char *name, const char *value)
{
    return MHD_add_response_header(response, name, value) == MHD_YES;
}

/* NULL where there is no memory for all of it: a reply without a header is read wrongly. */
static struct MHD_Response *make_response(const struct bag_http_reply *reply)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(reply->body_bytes, reply->body, MHD_RESPMEM_PERSISTENT);
    if (!response || bag_http_reply_headers(reply, add_header, response))
        return response;
    MHD_destroy_response(response);
    return NULL;
}

static void drop_response(void *response)
{
    MHD_destroy_response(response);
}

/* The response of a reply in recycled memory stays there for the next one of the same lengths and
 * second: to make it takes longer than all else that is done to send a small reply. */
static struct MHD_Response *recycle_response(const struct bag_http_reply *reply)
{
    struct bag_attachment *kept = bag_buffers_attachment(reply->body);
    const uint32_t keys[4] = {(uint32_t)reply->body_bytes, (uint32_t)reply->header_bytes,
                              (uint32_t)time(NULL)};
    if (kept->object && memcmp(kept->keys, keys, sizeof keys) == 0)
        return kept->object;
    if (kept->object)
        kept->drop(kept->object);
    memcpy(kept->keys, keys, sizeof keys);
    kept->drop = drop_response;
    return kept->object = make_response(reply);
}

/* Gives the library the reply, whose body lies where it is until the request ends. MHD_NO closes
 * the connection. */
static enum MHD_Result queue_reply(struct MHD_Connection *handle,
                                   const struct bag_http_reply *reply)
{
    if (!reply->body)
        return MHD_NO;
    bool recycles = reply->free_body == bag_buffers_put && reply->body_bytes <= UINT32_MAX &&
                    bag_http_reply_is_plain(reply);
    struct MHD_Response *response = recycles ? recycle_response(reply) : make_response(reply);
    enum MHD_Result result =
        response ? MHD_queue_response(handle, (unsigned)reply->status, response) : MHD_NO;
    if (response && !recycles)
        MHD_destroy_response(response);
    return result;
}

/* The one place where replies are counted and leave. In the midst of a request the library takes
 * none: what is said then goes past it, and the connection ends. */
static enum MHD_Result send_reply(struct bag_http_server *server,
                                  struct bag_http_connection *connection,
                                  struct bag_http_request *request, bool past)
{
    bag_http_request_finish(request);
    bag_http_connection_enter(&server->connections, connection,
                              past ? BAG_HTTP_CONNECTION_ENDED : BAG_HTTP_CONNECTION_READING);
    if (!past)
        return queue_reply(connection->handle, &request->reply);
    connection->is_answered = bag_http_connection_send_past(connection, &request->reply);
    return MHD_NO;
}

/* Does what the request wants next. Before a handler suspends, the library has asked twice. From
 * then on it does not want to read: otherwise it would, when it is resumed, before it asks for the
 * reply, which would be lost where the client has ended its side. */
static enum MHD_Result go_on(struct bag_http_server *server, struct bag_http_connection *connection,
                             enum bag_http_next next)
{
    if (next == BAG_HTTP_SEND || next == BAG_HTTP_CUT_OFF)
        return send_reply(server, connection, connection->request, next == BAG_HTTP_CUT_OFF);
    if (next != BAG_HTTP_READ)
        bag_http_connection_enter(&server->connections, connection, BAG_HTTP_CONNECTION_WAITING);
    if (next == BAG_HTTP_WAIT)
        MHD_suspend_connection(connection->handle);
    return MHD_YES;
}

/* ---- what requests ask of their connections -------------------------------------------------- */

static void resume(struct bag_http_connection *connection)
{
    MHD_resume_connection(connection->handle);
}

static const struct bag_http_connection_calls calls = {
    .resume = resume,
    .is_connected = bag_http_connection_is_open,
    .quiet_ns = bag_http_connection_quiet_ns,
};

/* ---- requests -------------------------------------------------------------------------------- */

static struct bag_http_request *begin(struct bag_http_server *server,
                                      struct bag_http_connection *connection, const char *method,
                                      const char *target, const char *version)
{
    struct bag_http_first_line line = {
        .method = method,
        .target = target,
        .version = version,
        .peer = &connection->peer,
        .client_bytes = connection->client ? &connection->client->body_bytes : NULL};
    return bag_http_request_begin(&server->context, &calls, connection, &line);
}

/* Tells a client in the midst of its request why it ends; the caller ends the connection. */
static void reject_past(struct bag_http_server *server, struct bag_http_connection *connection,
                        const struct bag_problem *problem)
{
    struct bag_http_request *request =
        connection->request ? connection->request : begin(server, connection, "", "", "");
    if (!request)
        return;
    bag_http_request_reject(request, problem);
    send_reply(server, connection, request, true);
    if (!connection->request)
        bag_http_request_end(request, connection->is_answered);
}

void bag_http_mhd_on_late(void *context, struct bag_http_connection *connection)
{
    struct bag_http_server *server = context;
    struct bag_problem problem BAG_UNSET;
    bool is_head = connection->stage == BAG_HTTP_CONNECTION_HEAD;
    bag_problem_set(&problem, BAG_ERROR_TIMEOUT,
                    is_head ? "the head of the request took longer than %d s"
                            : "the request took longer than %d s (request_timeout_s)",
                    (int)(server->connections.timeouts_ms[connection->stage] / 1000));
    reject_past(server, connection, &problem);
}

/* What a walk through the header lines finds. */
struct walk {
    struct bag_http_head *head;
    struct bag_problem *problem;
    bool is_valid;
    size_t bytes; /* of the lines, with a blank behind each colon */
};

static enum MHD_Result on_header(void *context, enum MHD_ValueKind kind, const char *name,
                                 size_t name_bytes, const char *value, size_t value_bytes)
{
    struct walk *walk = context;
    (void)kind;
    walk->bytes += name_bytes + strlen(": ") + value_bytes + strlen("\r\n");
    walk->is_valid = bag_http_head_line(walk->head, name, name_bytes, value ? value : "",
                                        value_bytes, walk->problem);
    return walk->is_valid ? MHD_YES : MHD_NO;
}

/* Where libmicrohttpd reads chunks as they are: before 1.0 it spins on some. */
#define READS_CHUNKS (MHD_VERSION >= 0x01000000)

/* Returns whether the head may have ended sooner than its client meant. Before 1.0 the library
 * takes a line that begins with NUL for the end of the head: it then has more bytes than its lines,
 * which may be blanks, too. What follows would be taken for the next request on the connection,
 * which behind a proxy is another client's. */
static bool may_be_cut(const struct bag_http_connection *connection,
                       const struct bag_http_first_line *line, size_t lines_bytes,
                       size_t head_bytes)
{
    size_t first_bytes = strlen(line->method) + strlen(" ") + connection->target_bytes +
                         strlen(" ") + strlen(line->version) + strlen("\r\n");
    return MHD_VERSION < 0x01000000 && head_bytes > first_bytes + lines_bytes + strlen("\r\n");
}

/* Whether the head is one of a request that is served; otherwise *problem says why not. */
static bool check_head(const struct bag_http_server *server, struct bag_http_connection *connection,
                       struct bag_problem *problem)
{
    struct bag_http_request *request = connection->request;
    struct walk walk = {&request->head, problem, true, 0};
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection->handle, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    int lines = MHD_get_connection_values_n(connection->handle, MHD_HEADER_KIND, on_header, &walk);
    if (info) {
        connection->taken_bytes += info->header_size;
        request->head.may_be_cut =
            may_be_cut(connection, &request->line, walk.bytes, info->header_size);
    }
    if (!walk.is_valid || !bag_http_head_check(&request->head, &request->line, problem))
        return false;
    if (connection->target_fault)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", connection->target_fault);
    if (!info || info->header_size + (size_t)lines * BAG_HTTP_LINE_BYTES > BAG_HTTP_MAX_HEAD_BYTES)
        return bag_problem_set(problem, BAG_ERROR_HEADERS_TOO_LARGE,
                               "the headers take more than the limit of %d bytes, where each line "
                               "counts %d bytes more than it has",
                               BAG_HTTP_MAX_HEAD_BYTES, BAG_HTTP_LINE_BYTES);
    if (server->checks_host &&
        !bag_http_host_is_ours(request->head.host,
                               server->context.service->config->options.host_names))
        return bag_problem_set(problem, BAG_ERROR_MISDIRECTED,
                               "Host '%s' is not one of this server's, which listens on a loopback "
                               "address: ask for localhost or the address, or add the name to "
                               "host_names",
                               bag_quote(request->head.host, strlen(request->head.host)).text);
    if (request->head.chunked && !READS_CHUNKS)
        return bag_problem_set(problem, BAG_ERROR_LENGTH_REQUIRED,
                               "this server was built with libmicrohttpd %s, which cannot be "
                               "trusted with chunks (1.0 can): send a Content-Length",
                               MHD_get_version());
    return connection->counts || bag_problem_set(problem, BAG_ERROR_TOO_MANY_CONNECTIONS,
                                                 "too many connections (max_connections)");
}

enum MHD_Result bag_http_mhd_on_access(void *context, struct MHD_Connection *handle,
                                       const char *url, const char *method, const char *version,
                                       const char *data, size_t *data_bytes, void **state)
{
    struct bag_http_server *server = context;
    struct bag_http_connections *connections = &server->connections;
    struct bag_http_connection *connection = *state;
    struct bag_problem problem BAG_UNSET;
    size_t bytes = *data_bytes;
    (void)handle;
    if (!connection || connection->stage == BAG_HTTP_CONNECTION_ENDED)
        return MHD_NO;
    if (connection->request && bytes == 0)
        return go_on(server, connection, bag_http_request_on_end(connection->request));
    if (connection->request) {
        *data_bytes = 0;
        connection->taken_bytes += bytes;
        return go_on(server, connection,
                     bag_http_request_on_body(connection->request, data, bytes));
    }
    connection->request = begin(server, connection, method, url, version);
    if (!connection->request)
        return MHD_NO;
    connection->late = connections->on_drained != NULL;
    bag_counter_add(&connections->in_flight, 1);
    bag_counter_add(&connections->late, connection->late);
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_BODY);
    bool is_valid = check_head(server, connection, &problem);
    return go_on(server, connection,
                 bag_http_request_on_head(connection->request, is_valid ? NULL : &problem));
}

static void end_request(struct bag_http_server *server, struct bag_http_connection *connection,
                        bool sent)
{
    struct bag_http_request *request = connection->request;
    connection->request = NULL;
    bag_http_request_end(request, sent || connection->is_answered);
    /* In this order: what is read between the two does not end a drain early. */
    bag_counter_add(&server->connections.late, -(uint64_t)connection->late);
    bag_counter_add(&server->connections.in_flight, UINT64_MAX);
}

void bag_http_mhd_on_completed(void *context, struct MHD_Connection *handle, void **state,
                               enum MHD_RequestTerminationCode why)
{
    struct bag_http_server *server = context;
    struct bag_http_connection *connection = *state;
    (void)handle;
    if (!connection)
        return;
    bag_http_connection_enter(&server->connections, connection, BAG_HTTP_CONNECTION_IDLE);
    if (!connection->request)
        return;
    if (connection->request->body_unread && why != MHD_REQUEST_TERMINATED_CLIENT_ABORT)
        bag_http_connection_linger(&server->connections, connection->fd);
    end_request(server, connection, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
}

/* ---- connections ----------------------------------------------------------------------------- */

void bag_http_mhd_on_connection(void *context, struct MHD_Connection *handle, void **state,
                                enum MHD_ConnectionNotificationCode what)
{
    struct bag_http_server *server = context;
    struct bag_http_connection *connection = *state;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        int fd = MHD_get_connection_info(handle, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        TAILQ_FOREACH(connection, &server->connections.lists[BAG_HTTP_CONNECTION_ADMITTED].queue,
                      link)
        {
            if (connection->fd == fd)
                break;
        }
        *state = connection;
        if (!connection)
            return;
        connection->handle = handle;
        bag_http_connection_enter(&server->connections, connection,
                                  connection->counts ? BAG_HTTP_CONNECTION_IDLE
                                                     : BAG_HTTP_CONNECTION_SURPLUS);
    } else if (connection) {
        if (connection->request) /* epoll has no memory: it is closed without being completed */
            end_request(server, connection, false);
        bag_http_connection_remove(&server->connections, connection);
    }
}

void *bag_http_mhd_on_target(void *context, const char *target, struct MHD_Connection *handle)
{
    struct bag_http_server *server = context;
    struct bag_http_connection *connection =
        MHD_get_connection_info(handle, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    struct bag_problem problem BAG_UNSET;
    if (!connection)
        return NULL;
    connection->target_fault = target ? bag_http_target_fault(target) : NULL;
    connection->target_bytes = target ? strlen(target) : 0;
    if (connection->stage != BAG_HTTP_CONNECTION_SURPLUS)
        bag_http_connection_enter(&server->connections, connection, BAG_HTTP_CONNECTION_HEAD);
    if (!target || bag_http_target_has_room(target))
        return connection;
    bag_problem_set(&problem, BAG_ERROR_TARGET_TOO_LONG, "the query has more than %d arguments",
                    BAG_HTTP_MAX_ARGUMENTS);
    reject_past(server, connection, &problem);
    bag_http_connection_end(&server->connections, connection);
    return connection;
}

/* ---- what the library rejects itself --------------------------------------------------------- */

/* It says so in its log alone, with the status that it answers. */
void bag_http_mhd_on_log(void *context, const char *format, va_list arguments)
{
    static const char status_is[] = "HTTP response code is ";
    struct bag_http_server *server = context;
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = 0;
    const char *status = strstr(text, status_is);
    bag_log(BAG_LOG_LEVEL_DEBUG, "http", BAG_LOG_TEXT("message", text));
    if (status)
        bag_http_access_reject(&server->context.service->config->options, server->context.recorder,
                               (int)strtol(status + sizeof status_is - 1, NULL, 10), text);
}
