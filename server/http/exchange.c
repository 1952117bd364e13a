/* One request and its reply; see exchange.h.
 *
 * A request goes RECEIVING -> (WORKING ->) ANSWERED. What is wrong with its head is known before
 * its body: it is DISCARDING then, or answered at once where the body is too long to be read for
 * nothing. */
#include "exchange.h"

#include "routes.h"
#include "server/engine/infer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Work estimated above this goes to a worker: handing a request over and back costs about as much,
 * and other clients would wait behind it. */
#define INLINE_COST_NS 20000

/* A refused request's body is read to its end up to this, so that the connection can be kept. */
#define DISCARD_BYTES (1 << 20)

enum stage { RECEIVING, DISCARDING, WORKING, ANSWERED };

struct exchange {
    struct bag_http_server *server;
    struct MHD_Connection *connection;
    const struct bag_http_route *route; /* NULL: the head was refused */
    struct bag_http_target target;
    enum stage stage;
    char *body; /* owned */
    size_t body_bytes, body_room;
    struct bag_infer infer;
    bool body_unread; /* the reply left before the body came */
    bool planned;
    bool failed; /* `problem` is the answer */
    struct bag_problem problem;
    struct bag_http_reply reply;
    uv_work_t work;
};

static int socket_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

/* ---- answering ------------------------------------------------------------------------------- */

static void add_headers(const struct exchange *exchange, struct MHD_Response *response)
{
    const struct bag_http_reply *reply = &exchange->reply;
    char number[24];
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            reply->octets ? "application/octet-stream" : "application/json");
    if (reply->octets) {
        snprintf(number, sizeof number, "%zu", reply->header_bytes);
        MHD_add_response_header(response, "Inference-Header-Content-Length", number);
    }
    if (reply->allow)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, reply->allow);
    if (reply->retry_after_s) {
        snprintf(number, sizeof number, "%u", reply->retry_after_s);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, number);
    }
    if (exchange->server->service->state == BAG_SERVICE_DRAINING)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
}

/* Hands the reply to libmicrohttpd, which frees its body. MHD_NO closes the connection. */
static enum MHD_Result answer(struct exchange *exchange)
{
    struct bag_http_reply *reply = &exchange->reply;
    exchange->stage = ANSWERED;
    if (!reply->body)
        return MHD_NO;
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(reply->body_bytes, reply->body, free);
    if (!response)
        return MHD_NO; /* without memory for a response; on_completed frees the body */
    reply->body = NULL;
    add_headers(exchange, response);
    enum MHD_Result result =
        MHD_queue_response(exchange->connection, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    return result;
}

/* ---- inference ------------------------------------------------------------------------------- */

/* What remains of the inference; on the loop's thread or a worker's. */
static void infer_step(struct exchange *exchange)
{
    if (!exchange->planned)
        exchange->failed = !bag_infer_plan(&exchange->infer, &exchange->problem);
    if (!exchange->failed)
        exchange->failed = !bag_infer_run(&exchange->infer, &exchange->problem);
}

static void finish_infer(struct exchange *exchange)
{
    struct bag_infer *infer = &exchange->infer;
    if (exchange->failed) {
        bag_http_reply_problem(&exchange->reply, &exchange->problem);
    } else {
        exchange->reply = (struct bag_http_reply){.status = 200,
                                                  .body = infer->reply,
                                                  .body_bytes = infer->reply_bytes,
                                                  .octets = infer->output.binary,
                                                  .header_bytes = infer->reply_header_bytes};
    }
    bag_infer_free(infer);
}

static void on_worker(uv_work_t *work)
{
    infer_step(work->data);
}

/* Back on the loop's thread. */
static void on_worked(uv_work_t *work, int status)
{
    struct exchange *exchange = work->data;
    struct bag_http_server *server = exchange->server;
    (void)status; /* work is never cancelled */
    finish_infer(exchange);
    server->resumed = true;
    MHD_resume_connection(exchange->connection);
    bag_http_server_run(server);
}

static enum MHD_Result hand_over(struct exchange *exchange)
{
    exchange->stage = WORKING;
    exchange->work.data = exchange;
    MHD_suspend_connection(exchange->connection);
    uv_queue_work(exchange->server->loop, &exchange->work, on_worker, on_worked);
    return MHD_YES;
}

static bool header_length(struct exchange *exchange)
{
    const char *value = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                                    "Inference-Header-Content-Length");
    exchange->infer.header_bytes = exchange->body_bytes;
    return !value || bag_v2_header_length(value, exchange->body_bytes,
                                          &exchange->infer.header_bytes, &exchange->problem);
}

/* The body is complete: cheap work at once, dear work to a worker. */
static enum MHD_Result begin_infer(struct exchange *exchange)
{
    struct bag_infer *infer = &exchange->infer;
    infer->body = exchange->body ? exchange->body : "";
    infer->body_bytes = exchange->body_bytes;
    infer->max_reply_bytes = (size_t)exchange->server->service->config->options.max_reply_bytes;
    if (!header_length(exchange)) {
        bag_http_reply_problem(&exchange->reply, &exchange->problem);
        return answer(exchange);
    }
    if (bag_infer_plan_cost_ns(infer->body_bytes, infer->header_bytes) > INLINE_COST_NS)
        return hand_over(exchange);
    exchange->failed = !bag_infer_plan(infer, &exchange->problem);
    exchange->planned = true;
    if (!exchange->failed && bag_infer_cost_ns(infer) > INLINE_COST_NS)
        return hand_over(exchange);
    infer_step(exchange);
    finish_infer(exchange);
    return answer(exchange);
}

/* ---- the head -------------------------------------------------------------------------------- */

static bool has_header(const struct exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name) != NULL;
}

/* The announced length of the body, 0 where none is announced. libmicrohttpd has checked that it is
 * a number. */
static uint64_t content_length(struct exchange *exchange)
{
    const char *value = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                                    MHD_HTTP_HEADER_CONTENT_LENGTH);
    return value ? strtoull(value, NULL, 10) : 0;
}

static void refuse_body(struct exchange *exchange)
{
    bag_http_reply_error(&exchange->reply, 413,
                         "the body is larger than the limit (max_body_bytes) of %lld bytes",
                         (long long)exchange->server->service->config->options.max_body_bytes);
}

/* All that can be refused before the body; fills the reply where it is. */
static bool accept_infer(struct exchange *exchange, uint64_t length)
{
    const struct bag_service *service = exchange->server->service;
    exchange->infer.model = bag_http_find_model(service, &exchange->target, &exchange->reply);
    if (!exchange->infer.model)
        return false;
    if (service->state == BAG_SERVICE_DRAINING) {
        bag_http_reply_error(&exchange->reply, 503, "the server is stopping");
        return false;
    }
    if (has_header(exchange, MHD_HTTP_HEADER_CONTENT_ENCODING)) {
        bag_http_reply_error(&exchange->reply, 415,
                             "Content-Encoding is not supported; send the body as it is");
        return false;
    }
    if (length > (uint64_t)service->config->options.max_body_bytes) {
        refuse_body(exchange);
        return false;
    }
    return true;
}

/* Reserves the whole body where its length is known. */
static bool reserve_body(struct exchange *exchange, size_t bytes)
{
    char *body = realloc(exchange->body, bytes);
    if (!body) {
        bag_http_reply_error(&exchange->reply, 503, "not enough memory for a body of %zu bytes",
                             bytes);
        return false;
    }
    exchange->body = body;
    exchange->body_room = bytes;
    return true;
}

/* The first callback: the head is here, the body is not. */
static enum MHD_Result on_head(struct exchange *exchange, const char *url, const char *method)
{
    uint64_t length = content_length(exchange);
    exchange->route = bag_http_route(method, url, &exchange->target, &exchange->reply);
    bool infer = exchange->route && !exchange->route->handler;
    bool accepted =
        exchange->route && (!infer || (accept_infer(exchange, length) &&
                                       (length == 0 || reserve_body(exchange, (size_t)length))));
    exchange->stage = accepted && infer ? RECEIVING : DISCARDING;
    if (accepted)
        return MHD_YES;
    bool chunked = has_header(exchange, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    if (!chunked && length <= DISCARD_BYTES && !has_header(exchange, MHD_HTTP_HEADER_EXPECT))
        return MHD_YES;
    exchange->body_unread = true;
    return answer(exchange);
}

/* ---- the body -------------------------------------------------------------------------------- */

/* A chunked body has passed the limit in its midst, where libmicrohttpd takes no response: write
 * one to the socket, on which nothing else was sent for this request, and close. */
static enum MHD_Result cut_off_body(struct exchange *exchange)
{
    char text[512];
    refuse_body(exchange);
    if (!exchange->reply.body)
        return MHD_NO;
    int bytes = snprintf(text, sizeof text,
                         "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n"
                         "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                         exchange->reply.body_bytes, exchange->reply.body);
    /* A client that cannot be told is cut off all the same. */
    exchange->body_unread = send(socket_of(exchange->connection), text, (size_t)bytes,
                                 MSG_DONTWAIT | MSG_NOSIGNAL) == bytes;
    return MHD_NO;
}

/* A part of the body. A sized one has its room; a chunked one grows by doubling under the limit. */
static enum MHD_Result on_body(struct exchange *exchange, const char *data, size_t bytes)
{
    size_t limit = (size_t)exchange->server->service->config->options.max_body_bytes;
    size_t needed = exchange->body_bytes + bytes;
    if (exchange->stage == DISCARDING)
        return MHD_YES;
    if (needed > limit)
        return cut_off_body(exchange);
    if (needed > exchange->body_room) {
        size_t room = needed < limit / 2 ? 2 * needed : limit;
        if (!reserve_body(exchange, room)) {
            exchange->stage = DISCARDING;
            return MHD_YES;
        }
    }
    memcpy(exchange->body + exchange->body_bytes, data, bytes);
    exchange->body_bytes = needed;
    return MHD_YES;
}

/* The body is complete, or the worker has finished with it. */
static enum MHD_Result on_complete(struct exchange *exchange)
{
    if (exchange->stage == RECEIVING)
        return begin_infer(exchange);
    if (!exchange->reply.status)
        exchange->route->handler(exchange->server->service, &exchange->target, &exchange->reply);
    return answer(exchange);
}

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------- */

enum MHD_Result bag_exchange_on_request(void *context, struct MHD_Connection *connection,
                                        const char *url, const char *method, const char *version,
                                        const char *data, size_t *data_bytes, void **state)
{
    struct exchange *exchange = *state;
    (void)version;
    if (!exchange) {
        exchange = calloc(1, sizeof *exchange);
        if (!exchange)
            return MHD_NO;
        exchange->server = context;
        exchange->connection = connection;
        exchange->server->in_flight++;
        *state = exchange;
        return on_head(exchange, url, method);
    }
    if (*data_bytes) {
        size_t bytes = *data_bytes;
        *data_bytes = 0;
        return on_body(exchange, data, bytes);
    }
    return on_complete(exchange);
}

void bag_exchange_on_completed(void *context, struct MHD_Connection *connection, void **state,
                               enum MHD_RequestTerminationCode why)
{
    struct bag_http_server *server = context;
    struct exchange *exchange = *state;
    if (!exchange)
        return;
    *state = NULL;
    if (exchange->body_unread && why != MHD_REQUEST_TERMINATED_CLIENT_ABORT)
        bag_linger_add(&server->linger, socket_of(connection));
    free(exchange->body);
    free(exchange->reply.body);
    free(exchange);
    if (--server->in_flight == 0 && server->on_idle)
        server->on_idle(server->context);
}
