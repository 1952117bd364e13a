/* Hides libmicrohttpd (below: the library): starts and calls it, gets its callbacks, and passes
 * them to connections and requests.
 *
 * The code works around the following. Debian 12 has version 0.9.75, and Debian 13 has 1.0.1.
 *
 * Both versions:
 *
 *   - A connection that is suspended in the first call for a complete request reads again when it
 *     is resumed, before the library asks for the reply. See on_complete().
 *   - Between the first and the second of these calls the library may close the connection.
 *   - It does not notice that the client of a suspended connection has disconnected
 *     (bag_http_connection_is_open).
 *   - It takes no response in the middle of a request. See send_directly().
 *   - If the end of a client arrives together with bytes of an incomplete request, it waits for
 *     more bytes (sweep() in connection.c).
 *   - Each received byte restarts its timeout, and it examines all connections with a timeout in
 *     each round (connection.h).
 *   - It reports only in its log what it rejects itself, and names no connection. See on_log().
 *   - It reports no completion of a request if epoll has no memory. See on_connection().
 *   - It keeps the arguments of a query, and must have memory for them. See on_target().
 *   - It clears the memory of a connection after every request. See BAG_HTTP_CONNECTION_BYTES.
 *   - It takes longer to make a response than to send a small one. See recycle_response().
 *   - A response needs a buffer, even if it is empty (bag_http_reply_empty).
 *   - After one failed accept() it accepts nothing until a connection ends (accept.h).
 *   - With an epoll thread of its own it stalls at 128 ready sockets (server.h).
 *   - It calls setsockopt() twice in vain for each reply on a Unix-domain socket whose address it
 *     knows (bag_http_mhd_add).
 *   - It accepts more than HTTP allows (head.c).
 *
 * Version 0.9.75:
 *
 *   - It loops endlessly on some chunks. See READS_CHUNKS.
 *   - It takes a line that starts with NUL for the end of the head. See may_be_cut().
 *   - It puts the end of a folded line behind its name (bag_http_head_line).
 *   - Its strict mode answers one faulty request twice. See STRICTEST.
 *   - A response that is queued while a connection is suspended is not sent any earlier. In 1.0.1
 *     this is deprecated.
 *   - It sends 100 Continue for a request without a body, too, and closes the connection if another
 *     request has already arrived. By its source, 1.0.1 sends none then.
 *
 * Version 1.0.1:
 *
 *   - It reports a new connection only in its next round (remove_untaken() in server.c). */
#include "mhd.h"

#include "server/system/log.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The library gets at most this much of one iteration of the loop. */
#define MAX_ROUNDS    16
#define MAX_ROUNDS_NS 200000

/* The strictest mode of the library. Before 1.0 the strict mode adds two checks, and one of them is
 * answered twice on one connection, so it is off. */
#if MHD_VERSION >= 0x01000000
#define STRICTEST MHD_OPTION_CLIENT_DISCIPLINE_LVL, 3
#else
#define STRICTEST MHD_OPTION_STRICT_FOR_CLIENT, 0
#endif

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

static bool print_header(void *message, const char *name, const char *value)
{
    return fprintf(message, "%s: %s\r\n", name, value) > 0;
}

/* Writes a complete reply to the socket. Used while a request is still being received. Nothing else
 * may have been sent for the request. Returns false if the socket does not take the whole reply at
 * once. */
static bool send_directly(const struct bag_http_connection *connection,
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

/* Counts and sends every reply. In the middle of a request it is sent directly, and the connection
 * is closed. */
static enum MHD_Result send_reply(struct bag_http_server *server,
                                  struct bag_http_connection *connection,
                                  struct bag_http_request *request, bool directly)
{
    bag_http_request_finish(request);
    bag_http_connection_enter(&server->connections, connection,
                              directly ? BAG_HTTP_CONNECTION_SHUT_DOWN
                                       : BAG_HTTP_CONNECTION_SENDING_REPLY);
    if (!directly)
        return queue_reply(connection->handle, &request->reply);
    connection->is_answered = send_directly(connection, &request->reply);
    return MHD_NO;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void resume(struct bag_http_connection *connection)
{
    MHD_resume_connection(connection->handle);
}

/* Called by the overload when a connection has been paused for long enough. */
static void resume_paused(struct bag_http_overload *overload,
                          struct bag_http_connection *connection)
{
    bag_http_connection_enter(overload->connections, connection, BAG_HTTP_CONNECTION_WAITING);
    resume(connection);
}

static const struct bag_http_connection_calls calls = {
    .resume = resume,
    .is_connected = bag_http_connection_is_open,
    .quiet_ns = bag_http_connection_quiet_ns,
};

/* Begins a request of the connection. Returns NULL if there is no memory. */
static struct bag_http_request *begin(struct bag_http_server *server,
                                      struct bag_http_connection *connection, const char *method,
                                      const char *target, const char *version)
{
    struct bag_http_first_line line = {.method = method,
                                       .target = target,
                                       .version = version,
                                       .peer = &connection->peer,
                                       .client = connection->client};
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
    bag_http_overload_on_reply(&server->overload, connection, &request->reply, false);
    send_reply(server, connection, request, true);
    if (!connection->request)
        bag_http_request_end(request, connection->is_answered);
}

/* Called when the request of a connection has passed its deadline. */
static void on_late(void *context, struct bag_http_connection *connection)
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

/* ---- the head ------------------------------------------------------------------------------- */

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
        !bag_http_host_is_ours(request->head.host, server->own.text,
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

/* ---- the body, and its end ------------------------------------------------------------------- */

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
    if (is_ready &&
        !bag_http_overload_on_reply(&server->overload, connection, &request->reply, true))
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

/* MHD_AccessHandlerCallback: tells the story of a request. It is called for the head, then for each
 * piece of the body, and then until there is a reply. */
static enum MHD_Result on_access(void *context, struct MHD_Connection *handle, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *data_bytes, void **state)
{
    struct bag_http_server *server = context;
    struct bag_http_connections *connections = &server->connections;
    struct bag_http_connection *connection = *state;
    struct bag_problem problem BAG_UNSET;
    enum bag_http_next next;
    const size_t bytes = *data_bytes;
    (void)handle;
    if (!connection || connection->stage == BAG_HTTP_CONNECTION_SHUT_DOWN)
        return MHD_NO;
    if (!connection->request) {
        connection->request = begin(server, connection, method, url, version);
        if (!connection->request)
            return MHD_NO;
        connection->late = connections->on_drained != NULL;
        bag_counter_add(&connections->in_flight, 1);
        bag_counter_add(&connections->late, connection->late);
        bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_BODY);
        bool is_valid = check_head(server, connection, &problem);
        next = bag_http_request_on_head(connection->request, is_valid ? NULL : &problem);
    } else if (bytes > 0) {
        *data_bytes = 0;
        connection->taken_bytes += bytes;
        next = bag_http_request_on_body(connection->request, data, bytes);
    } else {
        return on_complete(server, connection);
    }
    if (next == BAG_HTTP_READ)
        return MHD_YES;
    bag_http_overload_on_reply(&server->overload, connection, &connection->request->reply, false);
    return send_reply(server, connection, connection->request, next == BAG_HTTP_CUT_OFF);
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

/* MHD_RequestCompletedCallback: the reply was sent, or the client has disconnected. */
static void on_completed(void *context, struct MHD_Connection *handle, void **state,
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

/* MHD_NotifyConnectionCallback: the library has taken a connection, or is about to close it. */
static void on_connection(void *context, struct MHD_Connection *handle, void **state,
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

/* MHD_OPTION_URI_LOG_CALLBACK: a request line is complete. Returns the connection, which is the
 * state of all further callbacks of the request, or NULL if there was no memory for it. */
static void *on_target(void *context, const char *target, struct MHD_Connection *handle)
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

/* Returns the connection that the library is about to answer with 414 or 431. Returns NULL if that
 * cannot be known, because the library does not name it. Its head is not complete, and with 414 its
 * request line may not be either. If the library reads chunks, its trailer may be incomplete
 * instead. A head usually arrives at once, so other connections are seldom in the same state. */
static struct bag_http_connection *find_too_long(struct bag_http_server *server, int status)
{
    const struct bag_http_connection_list *lists = server->connections.lists;
    const struct bag_http_connection_list *idle = &lists[BAG_HTTP_CONNECTION_IDLE];
    const struct bag_http_connection_list *head = &lists[BAG_HTTP_CONNECTION_HEAD];
    const size_t candidates = head->count + (status == 414 ? idle->count : 0) +
                              lists[BAG_HTTP_CONNECTION_SURPLUS].count +
                              lists[BAG_HTTP_CONNECTION_SHUT_DOWN].count +
                              (READS_CHUNKS ? lists[BAG_HTTP_CONNECTION_BODY].count : 0);
    if (candidates != 1 || (status != 414 && status != 431))
        return NULL;
    return head->count || status == 431 ? TAILQ_FIRST(&head->queue) : TAILQ_FIRST(&idle->queue);
}

/* Sends 414 or 431 in place of the library, whose own reply then fails because nothing more can be
 * sent. The client may still be sending its head. */
static void reject_too_long(struct bag_http_server *server, struct bag_http_connection *connection,
                            int status)
{
    struct bag_http_connections *connections = &server->connections;
    struct bag_problem problem BAG_UNSET;
    bag_problem_set(
        &problem, status == 414 ? BAG_ERROR_TARGET_TOO_LONG : BAG_ERROR_HEADERS_TOO_LARGE,
        "%s the memory of a connection: the request line and the headers may take %d "
        "bytes, where each line counts %d bytes more than it has and Cookie twice as "
        "many",
        status == 414 ? "the request line does not fit into" : "the headers do not fit into",
        BAG_HTTP_MAX_HEAD_BYTES, BAG_HTTP_LINE_BYTES);
    reject_directly(server, connection, &problem);
    bag_http_connection_linger(connections, connection->fd);
    bag_http_connection_enter(connections, connection, BAG_HTTP_CONNECTION_SHUT_DOWN);
    shutdown(connection->fd, SHUT_WR);
}

/* MHD_LogCallback: counts and logs a reply that the library sends itself. */
__attribute__((format(printf, 2, 0))) static void on_log(void *context, const char *format,
                                                         va_list arguments)
{
    static const char status_is[] = "HTTP response code is ";
    struct bag_http_server *server = context;
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = 0;
    const char *digits = strstr(text, status_is);
    const int status = digits ? (int)strtol(digits + sizeof status_is - 1, NULL, 10) : 0;
    struct bag_http_connection *connection = find_too_long(server, status);
    bag_log(BAG_LOG_LEVEL_DEBUG, "http", BAG_LOG_TEXT("message", text));
    if (connection)
        reject_too_long(server, connection, status);
    else if (status)
        bag_http_access_reject(&server->context.service->config->options, server->context.recorder,
                               status, text);
}

/* ---- calling the library --------------------------------------------------------------------- */

/* Leaves paths as they were sent. Routes decode one segment at a time, so that an encoded slash is
 * part of a name. */
static size_t keep_escapes(void *context, struct MHD_Connection *connection, char *text)
{
    (void)context, (void)connection;
    return strlen(text);
}

/* Starts the library without threads and without a listening socket. Its own Date header is off,
 * because message.c writes one. */
static struct MHD_Daemon *start_daemon(struct bag_http_server *server)
{
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
            MHD_USE_SUPPRESS_DATE_NO_CLOCK,
        0, NULL, NULL, on_access, server, MHD_OPTION_EXTERNAL_LOGGER, on_log, server, STRICTEST,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)BAG_HTTP_CONNECTION_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, server, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, server, MHD_OPTION_URI_LOG_CALLBACK, on_target, server,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)server->connections.clients->limits.accepted, MHD_OPTION_END);
}

/* Returns false and sets *problem if the library is older than the header that this program was
 * built with, because it would not know some options. */
static bool check_version(struct bag_problem *problem)
{
    unsigned long built = MHD_VERSION >> 24, major = strtoul(MHD_get_version(), NULL, 10);
    return major >= built ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "libmicrohttpd %s is too old: this program was built with %lu.x",
                           MHD_get_version(), built);
}

bool bag_http_mhd_start(struct bag_http_server *server, struct bag_problem *problem)
{
    if (!check_version(problem))
        return false;
    server->connections.on_late = on_late;
    server->connections.context = server;
    server->overload.resume = resume_paused;
    server->daemon = start_daemon(server);
    return server->daemon || bag_problem_set(problem, BAG_ERROR_SYSTEM,
                                             "libmicrohttpd cannot start: too few descriptors or "
                                             "too little memory");
}

void bag_http_mhd_stop(struct bag_http_server *server)
{
    MHD_stop_daemon(server->daemon);
}

int bag_http_mhd_epoll_fd(struct bag_http_server *server)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    return info ? info->epoll_fd : -1;
}

void bag_http_mhd_add(struct bag_http_server *server, struct bag_http_connection *connection)
{
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof from;
    getpeername(connection->fd, (struct sockaddr *)&from, &bytes);
    MHD_add_connection(server->daemon, connection->fd, (struct sockaddr *)&from, bytes);
}

bool bag_http_mhd_run(struct bag_http_server *server, uint64_t *timeout_ms)
{
    uint64_t started_ns = uv_hrtime(), round_ns = started_ns;
    MHD_UNSIGNED_LONG_LONG left_ms = 0;
    bool timed;
    unsigned round = 0;
    do {
        server->context.engine.polled_ns = round_ns;
        MHD_run(server->daemon);
        timed = MHD_get_timeout(server->daemon, &left_ms) == MHD_YES;
    } while (timed && left_ms == 0 && ++round < MAX_ROUNDS &&
             (round_ns = uv_hrtime()) - started_ns < MAX_ROUNDS_NS);
    server->connections.busy_ns = uv_hrtime() - started_ns;
    *timeout_ms = left_ms;
    return timed;
}
