/* The callbacks of libmicrohttpd (below: the library); see server.h. */
#include "server.h"

#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- replies --------------------------------------------------------------------------------- */

/* Adds a header to a response of the library. */
static bool add_header(void *response, const char *name, const char *value)
{
    return MHD_add_response_header(response, name, value) == MHD_YES;
}

/* Returns NULL if there is no memory for all headers: a reply without one would be misread. */
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

/* Returns the response of a reply in recycled memory. The memory keeps it for the next reply with
 * the same lengths in the same second, because making a response takes longer than the rest of
 * sending a small reply. */
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

/* Passes the reply to the library. Its body must exist until the request ends. Returns MHD_NO,
 * which closes the connection, if there is no memory. */
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

/* Rejecting a request takes about as long as answering a small one. If many clients ask again at
 * once, an iteration of the loop takes longer than the latency target, and every request is
 * rejected. If more than MAX_REJECTED requests are rejected in an iteration, connections are
 * therefore paused for STORM_MS: one that asks again within STORM_MS of a 503 gets the next 503
 * PAUSE_MS later. With 1,000 clients in a closed loop and bodies of 16 KB, 0.80 of the peak are
 * answered in time, and nothing without this (tests/bench/overload, section `short`). */
#define MAX_REJECTED 64
#define STORM_MS     1000
#define PAUSE_MS     200

/* Counts a 503 in this iteration, and notes when the connection was sent it. */
static void note_rejection(struct bag_http_server *server, struct bag_http_connection *connection)
{
    connection->rejected_ms = uv_now(server->loop);
    if (++server->num_rejected > MAX_REJECTED)
        server->storm_ends_ms = connection->rejected_ms + STORM_MS;
}

/* Returns true if the complete request is rejected like the one before it, has not been paused yet,
 * and its reply must be sent later. */
static bool must_pause(const struct bag_http_server *server,
                       const struct bag_http_connection *connection)
{
    const uint64_t now_ms = uv_now(server->loop);
    return now_ms < server->storm_ends_ms && connection->request->reply.status == 503 &&
           connection->rejected_ms > 0 && now_ms < connection->rejected_ms + STORM_MS &&
           !server->connections.on_drained;
}

void bag_http_mhd_resume_paused(struct bag_http_server *server)
{
    struct bag_http_connections *connections = &server->connections;
    struct bag_http_connection_list *paused = &connections->lists[BAG_HTTP_CONNECTION_PAUSED];
    struct bag_http_connection *oldest;
    server->num_rejected = 0;
    while ((oldest = TAILQ_FIRST(&paused->queue)) &&
           (connections->on_drained || uv_now(server->loop) >= oldest->since_ms + PAUSE_MS)) {
        bag_http_connection_enter(connections, oldest, BAG_HTTP_CONNECTION_WAITING);
        oldest->rejected_ms = 0;
        MHD_resume_connection(oldest->handle);
    }
}

/* Counts and sends every reply. In the middle of a request the library accepts no response, so the
 * reply is sent directly and the connection is closed. */
static enum MHD_Result send_reply(struct bag_http_server *server,
                                  struct bag_http_connection *connection,
                                  struct bag_http_request *request, bool directly)
{
    bag_http_request_finish(request);
    if (request->reply.status == 503)
        note_rejection(server, connection);
    bag_http_connection_enter(&server->connections, connection,
                              directly ? BAG_HTTP_CONNECTION_SHUT_DOWN
                                       : BAG_HTTP_CONNECTION_SENDING_REPLY);
    if (!directly)
        return queue_reply(connection->handle, &request->reply);
    connection->is_answered = bag_http_connection_send_directly(connection, &request->reply);
    return MHD_NO;
}

/* Does what the request returned before its body was complete. */
static enum MHD_Result proceed(struct bag_http_server *server,
                               struct bag_http_connection *connection, enum bag_http_next next)
{
    if (next == BAG_HTTP_READ)
        return MHD_YES;
    return send_reply(server, connection, connection->request, next == BAG_HTTP_CUT_OFF);
}

/* The request is complete, and the library asks for the reply until it gets one.
 *
 * A connection that must wait is suspended at the second call, and its work begins there. Before
 * that, the library would read when it is resumed, before it asks for the reply. If the client has
 * closed its sending side, the reply would be lost. The library may also close the connection
 * between the two calls. After the second one it does neither. */
static enum MHD_Result on_complete(struct bag_http_server *server,
                                   struct bag_http_connection *connection)
{
    struct bag_http_request *request = connection->request;
    const bool is_held = connection->stage == BAG_HTTP_CONNECTION_WAITING;
    if (!is_held)
        bag_http_request_on_end(request);
    else if (request->stage == BAG_HTTP_WAITING)
        bag_http_request_begin_work(request);
    const bool is_ready = request->stage == BAG_HTTP_READY;
    if (is_ready && !must_pause(server, connection))
        return send_reply(server, connection, request, false);
    if (!is_held) {
        bag_http_connection_enter(&server->connections, connection, BAG_HTTP_CONNECTION_WAITING);
        return MHD_YES;
    }
    if (is_ready)
        bag_http_connection_enter(&server->connections, connection, BAG_HTTP_CONNECTION_PAUSED);
    MHD_suspend_connection(connection->handle);
    return MHD_YES;
}

/* ---- calls from requests to their connections ------------------------------------------------ */

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

/* Begins a request of the connection. Returns NULL if there is no memory. */
static struct bag_http_request *begin(struct bag_http_server *server,
                                      struct bag_http_connection *connection, const char *method,
                                      const char *target, const char *version)
{
    struct bag_http_first_line line = {
        .method = method,
        .target = target,
        .version = version,
        .peer = &connection->peer,
        .client_bytes = connection->client ? &connection->client->held_bytes : NULL};
    return bag_http_request_begin(&server->context, &calls, connection, &line);
}

/* Sends an error in the middle of a request. The caller must shut down the connection. */
static void reject_directly(struct bag_http_server *server, struct bag_http_connection *connection,
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
    reject_directly(server, connection, &problem);
}

/* The state of a walk through the header lines. */
struct walk {
    struct bag_http_head *head;
    struct bag_problem *problem;
    bool is_valid;
    size_t bytes; /* total length of the lines, with a blank after each colon */
};

/* Checks and keeps one header line. Stops the walk at the first invalid one. */
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

/* The library reads all chunks correctly. Versions before 1.0 loop endlessly on some. */
#define READS_CHUNKS (MHD_VERSION >= 0x01000000)

/* Returns true if the head may have ended earlier than its client meant. Before 1.0 the library
 * takes a line that starts with NUL for the end of the head. The head then has more bytes than its
 * lines, as it has with additional blanks. The bytes after it would be taken for the next request
 * on the connection, which behind a proxy belongs to another client. */
static bool may_be_cut(const struct bag_http_connection *connection,
                       const struct bag_http_first_line *line, size_t lines_bytes,
                       size_t head_bytes)
{
    size_t first_bytes = strlen(line->method) + strlen(" ") + connection->target_bytes +
                         strlen(" ") + strlen(line->version) + strlen("\r\n");
    return MHD_VERSION < 0x01000000 && head_bytes > first_bytes + lines_bytes + strlen("\r\n");
}

/* Returns false and sets *problem if the head is invalid or the request must not be served. */
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
    if (!connection || connection->stage == BAG_HTTP_CONNECTION_SHUT_DOWN)
        return MHD_NO;
    if (connection->request && bytes == 0)
        return on_complete(server, connection);
    if (connection->request) {
        *data_bytes = 0;
        connection->taken_bytes += bytes;
        return proceed(server, connection,
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
    return proceed(server, connection,
                   bag_http_request_on_head(connection->request, is_valid ? NULL : &problem));
}

/* Ends the request of a connection. `sent`: the library has sent the whole reply. */
static void end_request(struct bag_http_server *server, struct bag_http_connection *connection,
                        bool sent)
{
    struct bag_http_request *request = connection->request;
    connection->request = NULL;
    bag_http_request_end(request, sent || connection->is_answered);
    /* In this order, so that a drain does not end early if another thread reads between the two. */
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
        /* The library reports a new connection by its socket. It is among the few that were just
         * passed to it. */
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
        if (connection->request) /* epoll has no memory: the library reports no completion */
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
    reject_directly(server, connection, &problem);
    bag_http_connection_shut_down(&server->connections, connection);
    return connection;
}

/* ---- what the library rejects itself --------------------------------------------------------- */

/* Counts and logs a reply that the library sends itself. The library reports it only in its log. */
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
