/* libmicrohttpd's callbacks; see server.h. */
#include "server.h"

#include "server/system/log.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
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

/* Sends the reply, whose body lies where it is until the request ends. MHD_NO closes the
 * connection. */
static enum MHD_Result queue_reply(struct MHD_Connection *handle,
                                   const struct bag_http_reply *reply)
{
    if (!reply->body)
        return MHD_NO;
    bool recycles = reply->free_body == bag_buffers_put && reply->body_bytes <= UINT32_MAX &&
                    bag_http_reply_is_plain(reply);
    struct MHD_Response *response = recycles ? recycle_response(reply) : make_response(reply);
    if (!response)
        return MHD_NO;
    enum MHD_Result result = MHD_queue_response(handle, (unsigned)reply->status, response);
    if (!recycles)
        MHD_destroy_response(response);
    return result;
}

/* In its next turn after any was resumed, the library looks through all suspended connections. From
 * so many on, of which few are in a cache, that takes longer than to answer a request: */
#define MANY_SUSPENDED 128

/* then this part of them goes on together, or what is ready when so long has passed for each. */
#define RESUMED_PART    16
#define REST_NS         20000
#define LONGEST_REST_NS 10000000

static struct bag_http_mhd *mhd_of(struct bag_http_request *request)
{
    char *server = (char *)request->context - offsetof(struct bag_http_server, context);
    return &((struct bag_http_server *)server)->mhd;
}

static void resume(struct bag_http_request *request)
{
    struct bag_http_mhd *mhd = mhd_of(request);
    struct bag_http_connection *connection = request->connection;
    connection->next_resumed = mhd->resumed;
    mhd->resumed = connection;
    mhd->num_resumed++;
}

/* How long what is ready should wait for more. */
static uint64_t rest_ns(const struct bag_http_mhd *mhd, uint64_t now_ns)
{
    uint64_t rest_ns = mhd->suspended * REST_NS, passed_ns = now_ns - mhd->resumed_ns;
    rest_ns = rest_ns < LONGEST_REST_NS ? rest_ns : LONGEST_REST_NS;
    bool is_due = mhd->suspended < MANY_SUSPENDED ||
                  mhd->num_resumed >= mhd->suspended / RESUMED_PART || passed_ns >= rest_ns;
    return is_due ? 0 : rest_ns - passed_ns;
}

uint64_t bag_http_mhd_resume(struct bag_http_mhd *mhd)
{
    if (!mhd->resumed)
        return 0;
    uint64_t now_ns = uv_hrtime(), left_ns = rest_ns(mhd, now_ns);
    if (left_ns)
        return (left_ns + 999999) / 1000000;
    mhd->suspended -= mhd->num_resumed;
    mhd->num_resumed = 0;
    mhd->resumed_ns = now_ns;
    for (; mhd->resumed; mhd->resumed = mhd->resumed->next_resumed)
        MHD_resume_connection(mhd->resumed->handle);
    return 0;
}

/* Where so many requests come at once, all are worked on before their replies go out, one behind
 * the other. A client on the same machine that sleeps until a reply comes is then woken by the
 * first of them, and not by each: to wake it takes a quarter of the time of a small request. What
 * more connections have at hand would leave the cache in between, and where the round took long no
 * reply should wait for others. */
#define MIN_HELD        8
#define MAX_HELD        64
#define LONGEST_HOLD_NS 1000000

void bag_http_mhd_end_round(struct bag_http_mhd *mhd, uint64_t begun_ns)
{
    if (mhd->num_replies == 0)
        return;
    mhd->holds_replies = mhd->num_replies >= MIN_HELD && mhd->num_replies <= MAX_HELD &&
                         uv_hrtime() - begun_ns <= LONGEST_HOLD_NS;
    mhd->num_replies = 0;
}

static bool is_connected(const struct bag_http_request *request)
{
    return bag_http_connection_is_open(request->connection);
}

const struct bag_http_connection_calls bag_http_mhd_calls = {resume, is_connected};

/* Does what the request wants next. A client whose body is too long is answered before its body
 * has come, and its connection is closed even where the answer cannot be sent. */
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
        mhd->suspended++;
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

static enum MHD_Result on_header(void *head, enum MHD_ValueKind kind, const char *name,
                                 size_t name_bytes, const char *value, size_t value_bytes)
{
    (void)kind, (void)value_bytes;
    bag_http_head_line(head, name, name_bytes, value);
    return MHD_YES;
}

/* The guard has seen the head of every request that the library hands out. */
static bool is_checked(struct bag_http_connection *connection)
{
    if (connection->requests++ < connection->guard.heads)
        return true;
    bag_log(BAG_LOG_LEVEL_ERROR, "unchecked request",
            BAG_LOG_TEXT("message", "libmicrohttpd does not read by recv(): this version of it "
                                    "cannot be used"));
    return false;
}

static enum MHD_Result begin(struct bag_http_mhd *mhd, struct bag_http_connection *connection,
                             const struct bag_http_first_line *line)
{
    struct bag_problem surplus BAG_UNSET;
    if (!is_checked(connection))
        return MHD_NO;
    connection->request =
        bag_http_request_begin(mhd->context, &bag_http_mhd_calls, connection, line);
    if (!connection->request)
        return MHD_NO;
    connection->late = bag_http_drain_on_begin(mhd->drain);
    MHD_get_connection_values_n(connection->handle, MHD_HEADER_KIND, on_header,
                                &connection->request->head);
    if (connection->surplus)
        bag_problem_set(&surplus, BAG_ERROR_TOO_MANY_CONNECTIONS,
                        "too many connections (max_connections)");
    return go_on(
        mhd, connection,
        bag_http_request_on_head(connection->request, connection->surplus ? &surplus : NULL));
}

/* Bytes of the body, of which the first may be in their place and not in `data`. */
static enum bag_http_next take_body(struct bag_http_connection *connection, const char *data,
                                    size_t bytes)
{
    struct bag_http_request *request = connection->request;
    size_t placed = connection->placed < bytes ? connection->placed : bytes;
    connection->placed -= placed;
    if (placed)
        bag_http_request_on_place(request, placed);
    return placed == bytes ? BAG_HTTP_READ
                           : bag_http_request_on_body(request, data + placed, bytes - placed);
}

/* All of the request is here. The library asks again in its next round where nothing was decided.
 */
static enum MHD_Result take_end(struct bag_http_mhd *mhd, struct bag_http_connection *connection)
{
    if (connection->is_held) {
        connection->is_held = false;
        return queue_reply(connection->handle, &connection->request->reply);
    }
    enum bag_http_next next = bag_http_request_on_end(connection->request);
    mhd->num_replies += next == BAG_HTTP_SEND;
    if (next != BAG_HTTP_SEND || !mhd->holds_replies)
        return go_on(mhd, connection, next);
    bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_READING);
    connection->is_held = true;
    return MHD_YES;
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
        struct bag_http_first_line line = {method, url, version, &connection->peer};
        return begin(mhd, connection, &line);
    }
    if (*data_bytes == 0)
        return take_end(mhd, connection);
    size_t bytes = *data_bytes;
    *data_bytes = 0;
    return go_on(mhd, connection, take_body(connection, data, bytes));
}

static void end_request(struct bag_http_mhd *mhd, struct bag_http_connection *connection, bool sent)
{
    struct bag_http_request *request = connection->request;
    connection->request = NULL;
    bag_http_request_end(request, sent);
    bag_http_drain_on_end(mhd->drain, connection->late);
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
    connection->completed++;
    connection->is_held = false;
    connection->ahead = connection->placed = 0;
    if (request->body_unread && why != MHD_REQUEST_TERMINATED_CLIENT_ABORT)
        bag_http_connection_linger(mhd->connections, connection->fd);
    if (connection->fault)
        shutdown(connection->fd, SHUT_RD); /* tells the library again that there is something */
    end_request(mhd, connection, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
}

/* ---- connections ----------------------------------------------------------------------------- */

void bag_http_mhd_on_connection(void *context, struct MHD_Connection *handle, void **state,
                                enum MHD_ConnectionNotificationCode what)
{
    struct bag_http_mhd *mhd = context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *state = bag_http_connection_add(
            mhd->connections,
            MHD_get_connection_info(handle, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    } else if (*state) {
        struct bag_http_connection *connection = *state;
        /* Where epoll has no memory for it, the library closes it without completing its request.
         */
        if (connection->request)
            end_request(mhd, connection, false);
        bag_http_client_release(mhd->acceptor, connection->client);
        bag_http_connection_remove(mhd->connections, connection);
    }
}

void *bag_http_mhd_on_target(void *context, const char *target, struct MHD_Connection *handle)
{
    struct bag_http_mhd *mhd = context;
    (void)target;
    struct bag_http_connection *connection =
        MHD_get_connection_info(handle, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (!connection)
        return NULL;
    if (connection->stage == BAG_HTTP_CONNECTION_IDLE)
        bag_http_connection_enter(mhd->connections, connection, BAG_HTTP_CONNECTION_SENDING);
    else if (connection->stage == BAG_HTTP_CONNECTION_BEGINNING)
        connection->stage = BAG_HTTP_CONNECTION_SENDING;
    return connection;
}
