/* libmicrohttpd's callbacks; see mhd.h. */
#include "mhd.h"

#include <string.h>

/* ---- replies --------------------------------------------------------------------------------- */

static bool add_header(void *response, const char *name, const char *value)
{
    return MHD_add_response_header(response, name, value) == MHD_YES;
}

/* Gives the reply's body to the library, which frees it when it was sent. MHD_NO, which closes the
 * connection, where there is no memory for all of the reply: one without a header is read wrongly.
 */
static enum MHD_Result queue_reply(struct MHD_Connection *handle, struct bag_http_reply *reply)
{
    if (!reply->body)
        return MHD_NO;
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(
        reply->body_bytes, reply->body, reply->free_body);
    if (!response)
        return MHD_NO;
    reply->body = NULL;
    enum MHD_Result result = MHD_NO;
    if (bag_http_reply_headers(reply, add_header, response))
        result = MHD_queue_response(handle, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    return result;
}

static void resume(struct bag_http_request *request)
{
    const struct bag_http_connection *connection = request->connection;
    MHD_resume_connection(connection->handle);
}

static bool is_connected(const struct bag_http_request *request)
{
    return bag_http_connection_is_open(request->connection);
}

static const struct bag_http_connection_calls calls = {resume, is_connected};

/* Does what the request wants next. A client that is cut off in the midst of its body and cannot be
 * told why is cut off all the same. */
static enum MHD_Result go_on(struct bag_http_mhd *mhd, struct bag_http_connection *connection,
                             enum bag_http_next next)
{
    struct bag_http_request *request = connection->request;
    switch (next) {
    case BAG_HTTP_READ:
        return MHD_YES;
    case BAG_HTTP_WAIT:
        bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_SUSPENDED);
        MHD_suspend_connection(connection->handle);
        return MHD_YES;
    case BAG_HTTP_SEND:
        bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_READING);
        return queue_reply(connection->handle, &request->reply);
    default:
        request->body_unread = bag_http_connection_send_raw(connection, &request->reply);
        return MHD_NO;
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

struct head_reader {
    struct bag_http_head *head;
    struct bag_problem *problem;
    bool rejected;
};

static enum MHD_Result on_header(void *context, enum MHD_ValueKind kind, const char *name,
                                 size_t name_bytes, const char *value, size_t value_bytes)
{
    struct head_reader *reader = context;
    (void)kind;
    reader->rejected =
        !bag_http_head_line(reader->head, name, name_bytes, value, value_bytes, reader->problem);
    return reader->rejected ? MHD_NO : MHD_YES;
}

static bool read_lines(struct MHD_Connection *handle, const char *head_begin,
                       struct bag_http_head *head, struct bag_problem *problem)
{
    struct head_reader reader = {.head = head, .problem = problem};
    MHD_get_connection_values_n(handle, MHD_HEADER_KIND, on_header, &reader);
    if (reader.rejected)
        return false;
    size_t bytes =
        MHD_get_connection_info(handle, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size;
    return bag_guard_end(&head->guard, head_begin + bytes, problem);
}

/* False where the request is rejected for its form, or for its connection. */
static bool read_head(const struct bag_http_connection *connection, struct bag_problem *problem)
{
    struct bag_http_request *request = connection->request;
    const struct bag_http_first_line *line = &request->line;
    request->head = (struct bag_http_head){.has_length = false};
    if (!bag_guard_first_line(&request->head.guard, line->method, line->target,
                              connection->target_end, line->version, problem) ||
        !read_lines(connection->handle, line->method, &request->head, problem))
        return false;
    if (connection->target_fault)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", connection->target_fault);
    if (connection->surplus)
        return bag_problem_set(problem, BAG_ERROR_TOO_MANY_CONNECTIONS,
                               "too many connections (max_connections)");
    return true;
}

static enum MHD_Result begin(struct bag_http_mhd *mhd, struct bag_http_connection *connection,
                             const struct bag_http_first_line *line)
{
    struct bag_problem problem;
    connection->request = bag_http_request_begin(mhd->context, &calls, connection, line);
    if (!connection->request)
        return MHD_NO;
    connection->late = bag_http_drain_on_begin(mhd->drain);
    const struct bag_problem *fault = read_head(connection, &problem) ? NULL : &problem;
    return go_on(mhd, connection, bag_http_request_on_head(connection->request, fault));
}

enum MHD_Result bag_http_mhd_on_access(void *context, struct MHD_Connection *handle,
                                       const char *url, const char *method, const char *version,
                                       const char *data, size_t *data_bytes, void **state)
{
    struct bag_http_mhd *mhd = context;
    struct bag_http_connection *connection = *state;
    if (!connection)
        return MHD_NO;
    connection->handle = handle;
    if (!connection->request) {
        struct bag_http_first_line line = {method, url, version, connection->fd};
        return begin(mhd, connection, &line);
    }
    if (*data_bytes == 0)
        return go_on(mhd, connection, bag_http_request_on_end(connection->request));
    size_t bytes = *data_bytes;
    *data_bytes = 0;
    return go_on(mhd, connection, bag_http_request_on_body(connection->request, data, bytes));
}

void bag_http_mhd_on_completed(void *context, struct MHD_Connection *handle, void **state,
                               enum MHD_RequestTerminationCode why)
{
    struct bag_http_mhd *mhd = context;
    struct bag_http_connection *connection = *state;
    struct bag_http_request *request = connection ? connection->request : NULL;
    (void)handle;
    if (connection)
        bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_IDLE);
    if (!request)
        return;
    connection->request = NULL;
    if (request->body_unread && why != MHD_REQUEST_TERMINATED_CLIENT_ABORT)
        bag_http_connection_linger(mhd->connections, connection->fd);
    bag_http_request_end(request, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    bag_http_drain_on_end(mhd->drain, connection->late);
}

/* ---- connections ----------------------------------------------------------------------------- */

void bag_http_mhd_on_connection(void *context, struct MHD_Connection *handle, void **connection,
                                enum MHD_ConnectionNotificationCode what)
{
    struct bag_http_mhd *mhd = context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *connection = bag_http_connection_add(
            mhd->connections,
            MHD_get_connection_info(handle, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    else if (*connection)
        bag_http_connection_remove(mhd->connections, *connection);
}

void *bag_http_mhd_on_target(void *context, const char *target, struct MHD_Connection *handle)
{
    struct bag_http_mhd *mhd = context;
    struct bag_http_connection *connection =
        MHD_get_connection_info(handle, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (!connection)
        return NULL;
    connection->target_end = target + strlen(target);
    connection->target_fault = bag_guard_target(target);
    if (connection->stage == BAG_HTTP_CONNECTION_IDLE)
        bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_SENDING);
    else if (connection->stage == BAG_HTTP_CONNECTION_BEGINNING)
        connection->stage = BAG_HTTP_CONNECTION_SENDING;
    return connection;
}
