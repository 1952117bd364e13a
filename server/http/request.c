/* One request and its reply; see request.h.
 *
 *   HEAD ------> BODY ------> WORKING ------> READY -> answered
 *    |            `------------------------>  ^
 *    `-> DROPPING (the head was rejected) -----'
 *
 * What is wrong with the head is known before the body: the body is then dropped, or not read at
 * all where it is long. A body is copied once, out of libmicrohttpd's memory, and planned once, when
 * it is complete. Cheap requests are answered on the loop's thread, expensive ones go to the engine
 * while their connection is suspended. */
#include "request.h"

#include "answer.h"
#include "body.h"
#include "head.h"
#include "origin.h"
#include "record.h"

#include <stdlib.h>
#include <string.h>

/* A body whose length lets expect this many times the work that is done at once goes to the engine,
 * whatever it holds: where the queue is full it need not come. */
#define SURELY_EXPENSIVE 4

/* A compressed body up to this, that is no larger decompressed, takes about as long. */
#define INLINE_UNPACK_BYTES 8192

/* The longest body of a request that is not an inference. */
#define SMALL_BODY_BYTES ((size_t)64 << 10)

enum stage { BODY, DROPPING, WORKING, READY };

struct bag_http_request {
    struct bag_http_request *next_spare;
    struct bag_http_server *server;
    struct MHD_Connection *connection;
    struct bag_client *client;
    const struct bag_http_route *route; /* NULL: the head was rejected */
    struct bag_http_target target;
    struct bag_http_head head;
    enum bag_coding coding; /* of the body */
    enum stage stage;
    bool rejectd;     /* for its form, or for too many connections: the connection ends with it */
    bool body_unread; /* the reply left before the body came */
    bool late;        /* it came while the server drains */
    struct bag_body body;
    struct bag_http_access access;
    uint64_t expected_ns; /* work that the announced body lets expect; 0: not known */
    struct bag_job job;
    struct bag_http_reply reply;
};

static const struct bag_option_values *options_of(const struct bag_http_request *request)
{
    return &request->server->service->config->options;
}

static bool is_infer(const struct bag_http_request *request)
{
    return request->route && !request->route->handler;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static enum MHD_Result answer(struct bag_http_request *request)
{
    bool draining = request->server->service->state == BAG_SERVICE_DRAINING;
    bag_http_record(request->server, &request->job, &request->access, &request->reply);
    bag_client_enter(&request->server->clients, request->client, BAG_CLIENT_READING);
    bag_http_allow_origin(options_of(request)->cors_origins, &request->head, &request->reply);
    return bag_http_answer(request->connection, &request->reply, request->rejectd || draining);
}

/* ---- inference ------------------------------------------------------------------------------- */

static bool packs_replies(const struct bag_http_request *request)
{
    return options_of(request)->reply_compression == BAG_SWITCH_ON;
}

static void take_reply(struct bag_http_request *request)
{
    struct bag_infer *infer = &request->job.infer;
    if (request->job.failed) {
        bag_http_reply_problem(&request->reply, &request->job.problem);
    } else {
        request->reply = (struct bag_http_reply){.status = 200,
                                                 .body = infer->reply,
                                                 .free_body = bag_buffers_put,
                                                 .body_bytes = infer->reply_bytes,
                                                 .coding = bag_infer_reply_coding(infer),
                                                 .varies_by_coding = packs_replies(request),
                                                 .header_bytes = infer->reply_header_bytes};
        infer->reply = NULL;
    }
    bag_http_access_keep_id(&request->access, infer);
    request->stage = READY;
}

/* Decompresses a small body that stays small, or finds the header of one that is not compressed. A
 * few bytes can become millions: what does not stay small is left to a worker. */
static bool open_body(struct bag_http_request *request)
{
    struct bag_infer *infer = &request->job.infer;
    struct bag_problem *problem = &request->job.problem;
    const char *tensors = request->head.tensors;
    if (infer->coding == BAG_CODING_IDENTITY)
        return !tensors ||
               bag_v2_header_length(tensors, infer->body_bytes, &infer->header_bytes, problem);
    if (infer->body_bytes > INLINE_UNPACK_BYTES ||
        infer->limits->max_body_bytes <= INLINE_UNPACK_BYTES)
        return true;
    return bag_infer_unpack(infer, &request->server->buffers, INLINE_UNPACK_BYTES, problem) ||
           problem->kind == BAG_ERROR_TOO_LARGE;
}

/* Sets the inference on a body; false with the reply made where its framing is wrong. */
static bool set_body(struct bag_http_request *request, const char *body, size_t bytes)
{
    struct bag_infer *infer = &request->job.infer;
    bag_infer_reset(infer);
    bag_stopwatch_start(&infer->watch, request->server->recorder != NULL);
    infer->body = body;
    infer->body_bytes = infer->header_bytes = bytes;
    infer->limits = &request->server->infer_limits;
    request->job.planned = false;
    infer->coding = request->coding;
    infer->header_length = request->head.tensors;
    infer->reply_coding = packs_replies(request) && request->head.accept
                              ? bag_coding_choose(request->head.accept)
                              : BAG_CODING_IDENTITY;
    request->job.failed = !open_body(request);
    if (request->job.failed)
        take_reply(request);
    return !request->job.failed;
}

/* Answers at once where that is cheap; false where the engine should: handing a request over and
 * back costs about inline_work_microseconds, and other clients would wait behind longer work. */
static bool infer_inline(struct bag_http_request *request)
{
    struct bag_http_server *server = request->server;
    struct bag_job *job = &request->job;
    if (job->infer.coding != BAG_CODING_IDENTITY ||
        bag_infer_plan_cost_ns(job->infer.body_bytes, job->infer.header_bytes) >
            server->inline_cost_ns)
        return false;
    job->failed = !bag_infer_plan(&job->infer, &server->header_cache, &job->problem);
    if (!job->failed && bag_infer_cost_ns(&job->infer) > server->inline_cost_ns) {
        job->planned = true;
        return false;
    }
    if (!job->failed)
        job->failed = !bag_infer_run(&job->infer, &server->buffers, &job->problem);
    bag_metrics_on_batch(server->recorder, job->infer.model, !job->failed);
    take_reply(request);
    return true;
}

/* The engine has finished: the connection goes on, and on_complete answers. */
static void on_job_done(struct bag_job *job)
{
    struct bag_http_request *request =
        (void *)((char *)job - offsetof(struct bag_http_request, job));
    take_reply(request);
    MHD_resume_connection(request->connection);
}

static bool is_client_connected(struct bag_job *job)
{
    struct bag_http_request *request =
        (void *)((char *)job - offsetof(struct bag_http_request, job));
    return bag_client_is_connected(request->client);
}

static void reject_queue(struct bag_http_request *request)
{
    bag_engine_reject(&request->server->engine, &request->job);
    bag_http_reply_problem(&request->reply, &request->job.problem);
}

static bool is_surely_expensive(const struct bag_http_request *request)
{
    return request->expected_ns / SURELY_EXPENSIVE > request->server->inline_cost_ns;
}

static bool has_room(const struct bag_http_request *request)
{
    return bag_engine_has_room(&request->server->engine, request->body.count);
}

static enum MHD_Result hand_over(struct bag_http_request *request)
{
    if (!has_room(request)) {
        reject_queue(request);
        return answer(request);
    }
    request->stage = WORKING;
    bag_client_enter(&request->server->clients, request->client, BAG_CLIENT_WAITING);
    request->job.done = on_job_done;
    request->job.is_connected = is_client_connected;
    MHD_suspend_connection(request->connection);
    bag_engine_submit(&request->server->engine, &request->job);
    return MHD_YES;
}

/* ---- the head -------------------------------------------------------------------------------- */

/* How much of a body is read: other bodies than inference's are a few words, and are read on the
 * loop's thread. */
static size_t body_limit(const struct bag_http_request *request)
{
    size_t limit = (size_t)options_of(request)->max_body_bytes;
    return is_infer(request) || limit < SMALL_BODY_BYTES ? limit : SMALL_BODY_BYTES;
}

static void reject_body(struct bag_http_request *request)
{
    bag_http_reply_error(&request->reply, BAG_ERROR_TOO_LARGE,
                         "the body is larger than the limit%s of %zu bytes",
                         is_infer(request) ? " (max_body_bytes)" : "", body_limit(request));
}

/* The route of the path; of the one that was asked last without looking. */
static void find_route(struct bag_http_request *request, const char *url, const char *method)
{
    struct bag_http_route_cache *route_cache = &request->server->route_cache;
    if (bag_http_route_cache_is_of(route_cache, method, url)) {
        request->route = route_cache->route;
        request->job.infer.model = route_cache->model;
        return;
    }
    request->route =
        bag_http_route(method, url, request->server->infers, &request->target, &request->reply);
    if (!request->route || request->route->handler)
        return;
    request->job.infer.model =
        bag_http_find_model(request->server->service, &request->target, &request->reply);
    if (request->job.infer.model)
        bag_http_route_cache_keep(route_cache, url, request->route, request->job.infer.model);
}

static bool accept_coding(struct bag_http_request *request)
{
    request->coding = BAG_CODING_IDENTITY;
    if (!request->head.encoding)
        return true;
    if (!bag_coding_read(request->head.encoding, &request->coding, &request->job.problem)) {
        bag_http_reply_problem(&request->reply, &request->job.problem);
        return false;
    }
    if (request->coding == BAG_CODING_IDENTITY || is_infer(request))
        return true;
    bag_http_reply_error(&request->reply, BAG_ERROR_UNSUPPORTED_ENCODING,
                         "Content-Encoding is '%s'; only bodies for infer may be compressed",
                         bag_coding_names[request->coding]);
    return false;
}

static uint64_t expected_work_ns(struct bag_http_request *request)
{
    struct bag_infer *infer = &request->job.infer;
    infer->body_bytes = (size_t)request->head.length;
    infer->header_bytes = request->head.tensors ? 0 : infer->body_bytes;
    return request->head.has_length ? bag_infer_whole_cost_ns(infer) : 0;
}

/* All that can be rejected before the body; makes the reply where it is. */
static bool accept_body(struct bag_http_request *request)
{
    bool infer = is_infer(request);
    if (infer && !request->job.infer.model)
        return false;
    if (infer && request->server->service->state == BAG_SERVICE_DRAINING) {
        bag_http_reply_error(&request->reply, BAG_ERROR_DRAINING, "the server is stopping");
        return false;
    }
    if (!accept_coding(request))
        return false;
    if (request->head.length > body_limit(request)) {
        reject_body(request);
        return false;
    }
    request->expected_ns = infer ? expected_work_ns(request) : 0;
    if (is_surely_expensive(request) &&
        !bag_engine_has_room(&request->server->engine, (size_t)request->head.length)) {
        reject_queue(request);
        return false;
    }
    return true;
}

/* The first callback: the head is here, the body is not. */
static enum MHD_Result on_head(struct bag_http_request *request, const char *url,
                               const char *method, const char *version)
{
    struct bag_first_line line = {request->client, method, url, version};
    request->route = NULL;
    bag_http_access_begin(&request->access, options_of(request), &line, &request->head);
    request->rejectd = request->body_unread =
        !bag_http_head_read(request->connection, &line, &request->head, &request->job.problem);
    if (request->rejectd) {
        bag_http_reply_problem(&request->reply, &request->job.problem);
        return answer(request);
    }
    find_route(request, bag_guard_path(url), method);
    bool takes_body = request->route && request->route->takes_body;
    bool accepted = request->route && (!takes_body || accept_body(request));
    request->stage = accepted && takes_body ? BODY : DROPPING;
    if (accepted || bag_http_head_may_drop(&request->head))
        return MHD_YES;
    request->body_unread = true;
    return answer(request);
}

/* ---- the body -------------------------------------------------------------------------------- */

/* A chunked body has passed the limit in its midst, where libmicrohttpd takes no response. A client
 * that cannot be told is cut off all the same. */
static enum MHD_Result cut_off_body(struct bag_http_request *request)
{
    reject_body(request);
    bag_http_record(request->server, &request->job, &request->access, &request->reply);
    request->body_unread = bag_http_answer_raw(request->client->fd, &request->reply);
    return MHD_NO;
}

/* Keeps a piece of a body; what follows one for which there is no memory is dropped. */
static void keep_body(struct bag_http_request *request, const char *data, size_t bytes,
                      size_t limit)
{
    size_t length = request->head.has_length ? (size_t)request->head.length : 0;
    if (bag_body_append(&request->body, &request->server->buffers, data, bytes, length, limit))
        return;
    bag_http_reply_error(&request->reply, BAG_ERROR_NO_MEMORY,
                         "not enough memory for a body of %zu bytes",
                         length ? length : request->body.count + bytes);
    request->stage = DROPPING;
}

static enum MHD_Result on_body(struct bag_http_request *request, const char *data, size_t bytes)
{
    size_t limit = body_limit(request);
    request->access.received_bytes += bytes;
    if (request->stage != BODY)
        return MHD_YES;
    if (bytes > limit - request->body.count)
        return cut_off_body(request);
    keep_body(request, data, bytes, limit);
    return MHD_YES;
}

/* The body is complete, or the engine has finished with it. */
static enum MHD_Result on_complete(struct bag_http_request *request)
{
    if (request->stage == BODY && is_infer(request) &&
        set_body(request, bag_body_bytes(&request->body), request->body.count) &&
        ((is_surely_expensive(request) && !has_room(request)) || !infer_inline(request)))
        return hand_over(request);
    request->target.body = request->body.bytes;
    request->target.body_bytes = request->body.count;
    if (!request->reply.status)
        request->route->handler(request->server->service, &request->target, &request->reply);
    return answer(request);
}

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------- */

static struct bag_http_request *get_request(struct bag_http_server *server)
{
    struct bag_http_request *request = server->spare;
    if (request)
        server->spare = request->next_spare;
    else
        request = calloc(1, sizeof *request);
    if (request) {
        request->server = server;
        request->reply.status = 0;
        request->body_unread = false;
        request->expected_ns = 0;
        request->job.infer.model = NULL;
    }
    return request;
}

enum MHD_Result bag_http_request_on_access(void *context, struct MHD_Connection *connection,
                                           const char *url, const char *method, const char *version,
                                           const char *data, size_t *data_bytes, void **state)
{
    struct bag_client *client = *state;
    struct bag_http_request *request = client ? client->request : NULL;
    if (!client)
        return MHD_NO;
    if (!request) {
        request = get_request(context);
        if (!request)
            return MHD_NO;
        request->connection = connection;
        request->client = client;
        request->late = bag_drain_on_begin(request->server);
        client->request = request;
        return on_head(request, url, method, version);
    }
    if (*data_bytes) {
        size_t bytes = *data_bytes;
        *data_bytes = 0;
        return on_body(request, data, bytes);
    }
    return on_complete(request);
}

void bag_http_request_on_completed(void *context, struct MHD_Connection *connection, void **state,
                                   enum MHD_RequestTerminationCode why)
{
    struct bag_http_server *server = context;
    struct bag_client *client = *state;
    struct bag_http_request *request = client ? client->request : NULL;
    (void)connection;
    if (client)
        bag_client_enter(&server->clients, client, BAG_CLIENT_IDLE);
    if (!request)
        return;
    client->request = NULL;
    bag_metrics_on_end(server->recorder, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (request->body_unread && why != MHD_REQUEST_TERMINATED_CLIENT_ABORT)
        bag_lingering_add(&server->linger, client->fd);
    bag_infer_reset(&request->job.infer);
    bag_body_drop(&request->body);
    if (request->reply.body)
        request->reply.free_body(request->reply.body);
    request->reply.body = NULL;
    request->next_spare = server->spare;
    server->spare = request;
    bag_drain_on_end(server, request->late);
}

void bag_http_request_free_spares(struct bag_http_server *server)
{
    while (server->spare) {
        struct bag_http_request *next = server->spare->next_spare;
        bag_infer_free(&server->spare->job.infer);
        free(server->spare);
        server->spare = next;
    }
}
