/* One request and its reply; see request.h. */
#include "coordinator.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The longest body of a request that is not an inference. */
#define SMALL_BODY_BYTES ((size_t)64 << 10)

/* Asserts that the request is in one of the stages, and moves it to the next one. */
#define IN(stage) (1u << BAG_HTTP_##stage)

static void enter(struct bag_http_request *request, unsigned from, enum bag_http_stage stage)
{
    assert(from >> request->stage & 1);
    request->stage = stage;
}

static const struct bag_option_values *options_of(const struct bag_http_request *request)
{
    return &request->context->service->config->options;
}

/* ---- memory of clients ----------------------------------------------------------------------- */

/* The number of quarters of the budget that the bodies and documents of one client may use. A
 * single one may use more. */
#define CLIENT_QUARTERS 3

/* Returns whether the client may hold so many bytes for this request beside its other requests. */
static bool client_may_hold(const struct bag_http_request *request, size_t bytes)
{
    const atomic_size_t *client_bytes = request->line.client_bytes;
    const struct bag_budget *budget = request->context->buffers.budget;
    size_t others = client_bytes ? *client_bytes - request->body_room : 0;
    return !others || !budget || others + bytes <= budget->max_bytes / 4 * CLIENT_QUARTERS;
}

/* Documents up to this size are not counted: the number of connections bounds their memory, and
 * health must be answered if the budget is used up. */
#define UNCOUNTED_DOCUMENT_BYTES ((size_t)16 << 10)

/* Takes the memory of a document from the budget until it is sent. Without it, clients that read
 * nothing could make the server hold a document for each connection. The reply becomes an error if
 * the budget or the client's share does not suffice. */
static void count_document(struct bag_http_request *request)
{
    struct bag_http_reply *reply = &request->reply;
    struct bag_budget *budget = request->context->buffers.budget;
    struct bag_problem problem BAG_UNSET;
    const size_t bytes = reply->body_bytes;
    if (reply->free_body != free || bytes <= UNCOUNTED_DOCUMENT_BYTES)
        return;
    if (client_may_hold(request, bytes) && bag_budget_take(budget, bytes)) {
        request->document_bytes = bytes;
        if (request->line.client_bytes)
            *request->line.client_bytes += bytes;
        return;
    }
    bag_budget_reject(budget, "a reply", bytes, &problem);
    bag_http_reply_drop(reply);
    bag_http_reply_problem(reply, &problem);
}

/* ---- the reply ------------------------------------------------------------------------------- */

/* Retains the models unless the request does already. A client that has not sent its whole request
 * must not keep old models in memory, so the models that were found for the head may be gone. */
static void retain_models(struct bag_http_request *request)
{
    if (request->snapshot)
        return;
    request->snapshot = bag_snapshot_acquire(request->context->reader);
    if (request->route && request->generation != request->snapshot->generation) {
        request->job.infer.input.model = NULL;
        bag_http_route(request->line.method, bag_http_console_path(request), &request->target,
                       &request->reply);
    }
    request->generation = request->snapshot->generation;
}

void bag_http_request_leave_models(struct bag_http_request *request)
{
    if (request->snapshot)
        bag_snapshot_release(request->context->reader, request->snapshot);
    request->snapshot = NULL;
}

void bag_http_request_finish(struct bag_http_request *request)
{
    enter(request, IN(READY), BAG_HTTP_FINISHED);
    count_document(request);
    request->reply.close = request->rejected || request->head.chunked || request->head.may_be_cut ||
                           request->context->service->state == BAG_SERVICE_DRAINING;
    retain_models(request);
    bag_http_access_end(&request->access, &request->job, &request->reply,
                        request->route ? request->route->pattern : "",
                        uv_now(request->context->engine.loop));
    bag_http_request_leave_models(request);
    bag_http_reply_to(&request->reply, &request->head, options_of(request)->cors_origins);
}

/* ---- replies that are not made at once ------------------------------------------------------- */

void bag_http_request_resume(struct bag_http_request *request)
{
    enter(request, IN(WAITING), BAG_HTTP_READY);
    request->calls->resume(request->connection);
}

void bag_http_request_again(struct bag_http_request *request)
{
    enter(request, IN(WAITING), BAG_HTTP_DEFERRED);
    request->calls->resume(request->connection);
}

/* Called on the loop for a job that was not submitted and only returns to the loop. */
static void on_made(struct bag_job *job)
{
    bag_http_request_resume(bag_http_request_of(job));
}

enum bag_http_outcome bag_http_request_elsewhere(struct bag_http_request *request,
                                                 void (*run)(struct bag_work *work),
                                                 enum bag_work_order order)
{
    if (!bag_http_request_may_suspend(request))
        return BAG_HTTP_LATER;
    request->work.run = run;
    request->work.client = bag_http_peer_client(request->line.peer);
    request->pushed_ns = uv_hrtime();
    bag_workers_push(request->context->engine.workers, &request->work, order);
    return BAG_HTTP_SUSPEND;
}

void bag_http_request_made(struct bag_http_request *request)
{
    bag_job_push_finished(&request->context->engine, &request->job);
}

/* Fills the reply on a worker. The connection is suspended, so no other thread uses the socket. */
static void run_on_worker(struct bag_work *work)
{
    struct bag_http_request *request =
        (void *)((char *)work - offsetof(struct bag_http_request, work));
    bool is_quick = uv_hrtime() - request->pushed_ns < BAG_HTTP_QUICK_NS;
    if (is_quick || request->calls->is_connected(request->connection))
        request->make_reply(request);
    else
        bag_http_reply_error(&request->reply, BAG_ERROR_CANCELLED,
                             "the client has closed the connection");
    bag_http_request_made(request);
}

enum bag_http_outcome bag_http_request_on_worker(struct bag_http_request *request,
                                                 void (*make_reply)(struct bag_http_request *))
{
    request->make_reply = make_reply;
    return bag_http_request_elsewhere(request, run_on_worker, BAG_WORK_METADATA);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* Fills the reply with 413 and the limit. */
static void reject_length(struct bag_http_request *request)
{
    bag_http_reply_error(&request->reply, BAG_ERROR_TOO_LARGE,
                         "the body is larger than the limit%s of %zu bytes",
                         request->max_body_option, request->max_body_bytes);
}

bool bag_http_accept_length(struct bag_http_request *request, size_t max_bytes, const char *option)
{
    request->max_body_bytes = max_bytes;
    request->max_body_option = option;
    if (request->head.length <= max_bytes)
        return true;
    reject_length(request);
    return false;
}

bool bag_http_accept_coding(struct bag_http_request *request)
{
    struct bag_problem problem BAG_UNSET;
    request->coding = BAG_CODING_IDENTITY;
    if (!request->head.encoding ||
        bag_coding_read(request->head.encoding, &request->coding, &problem))
        return true;
    bag_http_reply_problem(&request->reply, &problem);
    return false;
}

bool bag_http_accept_small(struct bag_http_request *request)
{
    size_t limit = (size_t)options_of(request)->max_body_bytes;
    if (!bag_http_accept_coding(request))
        return false;
    if (request->coding == BAG_CODING_IDENTITY)
        return bag_http_accept_length(request, limit < SMALL_BODY_BYTES ? limit : SMALL_BODY_BYTES,
                                      "");
    bag_http_reply_error(&request->reply, BAG_ERROR_UNSUPPORTED_ENCODING,
                         "Content-Encoding is '%s'; only bodies for infer may be compressed",
                         bag_coding_names[request->coding]);
    return false;
}

void bag_http_request_reject(struct bag_http_request *request, const struct bag_problem *fault)
{
    enter(request, IN(HEAD) | IN(BODY) | IN(DROPPING), BAG_HTTP_READY);
    request->rejected = request->body_unread = true;
    bag_http_reply_drop(&request->reply);
    bag_http_reply_problem(&request->reply, fault);
}

enum bag_http_next bag_http_request_on_head(struct bag_http_request *request,
                                            const struct bag_problem *fault)
{
    if (fault) {
        bag_http_request_reject(request, fault);
        return BAG_HTTP_SEND;
    }
    retain_models(request);
    const struct bag_http_route_cache *cache = &request->context->route_cache;
    const char *path = bag_http_console_path(request);
    if (bag_http_route_cache_is_of(cache, request->snapshot, request->line.method, path)) {
        request->route = cache->route;
        request->job.infer.input.model = cache->model;
    } else {
        request->route =
            bag_http_route(request->line.method, path, &request->target, &request->reply);
    }
    bag_http_accept *accept = request->route ? request->route->accept : NULL;
    bool accepted = request->route && bag_http_authorize(request) && (!accept || accept(request));
    enter(request, IN(HEAD), accepted && accept ? BAG_HTTP_BODY : BAG_HTTP_DROPPING);
    bag_http_request_leave_models(request);
    if (accepted || bag_http_head_may_drop(&request->head))
        return BAG_HTTP_READ;
    request->body_unread = true;
    enter(request, IN(DROPPING), BAG_HTTP_READY);
    return BAG_HTTP_SEND;
}

/* ---- the body -------------------------------------------------------------------------------- */

/* The memory of a body at first, and when that is full. When this is full too, the body gets its
 * whole length. A client that only announces a large body therefore uses little memory. */
#define FIRST_ROOM_BYTES  ((size_t)64 << 10)
#define SECOND_ROOM_BYTES ((size_t)1 << 20)

/* Moves the body to larger memory. Returns false if there is none, or the client has its share. */
static bool grow(struct bag_http_request *request, size_t room)
{
    atomic_size_t *client_bytes = request->line.client_bytes;
    if (room > FIRST_ROOM_BYTES && !client_may_hold(request, room))
        return false;
    char *bytes = bag_buffers_get(&request->context->buffers, room);
    if (!bytes)
        return false;
    if (client_bytes)
        *client_bytes += room - request->body_room;
    if (request->body_bytes)
        memcpy(bytes, request->body, request->body_bytes);
    bag_buffers_put(request->body);
    request->body = bytes;
    request->body_room = room;
    return true;
}

/* Appends a piece of the body, to memory that grows up to its length or the limit. Returns false
 * with the reply filled if there is no memory. */
static bool keep(struct bag_http_request *request, const char *data, size_t bytes)
{
    size_t needed = request->body_bytes + bytes;
    size_t most = request->head.has_length ? (size_t)request->head.length : request->max_body_bytes;
    size_t room = needed <= FIRST_ROOM_BYTES    ? FIRST_ROOM_BYTES
                  : needed <= SECOND_ROOM_BYTES ? SECOND_ROOM_BYTES
                  : request->head.has_length    ? most
                                                : 2 * needed;
    if (needed > request->body_room && !grow(request, room < most ? room : most)) {
        struct bag_problem problem;
        bag_budget_reject(request->context->buffers.budget, "a body",
                          request->head.has_length ? most : needed, &problem);
        bag_http_reply_problem(&request->reply, &problem);
        return false;
    }
    memcpy(request->body + request->body_bytes, data, bytes);
    request->body_bytes = needed;
    return true;
}

enum bag_http_next bag_http_request_on_body(struct bag_http_request *request, const char *data,
                                            size_t bytes)
{
    assert((IN(BODY) | IN(DROPPING)) >> request->stage & 1);
    request->access.received_bytes += bytes;
    if (request->stage == BAG_HTTP_DROPPING)
        return BAG_HTTP_READ;
    /* Only if the length of the body was not announced. */
    if (bytes > request->max_body_bytes - request->body_bytes) {
        reject_length(request);
        request->rejected = request->body_unread = true;
        enter(request, IN(BODY), BAG_HTTP_READY);
        return BAG_HTTP_CUT_OFF;
    }
    if (!keep(request, data, bytes))
        enter(request, IN(BODY), BAG_HTTP_DROPPING);
    return BAG_HTTP_READ;
}

/* Calls the handler in TRYING or WAITING, the stage that says whether it may suspend the request.
 */
static enum bag_http_next call_handler(struct bag_http_request *request, enum bag_http_stage stage)
{
    enter(request, IN(BODY) | IN(DROPPING) | IN(DEFERRED), stage);
    retain_models(request);
    switch (request->route->handler(request)) {
    case BAG_HTTP_SUSPEND:
        return BAG_HTTP_WAIT;
    case BAG_HTTP_LATER:
        enter(request, IN(TRYING), BAG_HTTP_DEFERRED);
        return BAG_HTTP_LATER_ON;
    case BAG_HTTP_DONE:
        break;
    }
    enter(request, IN(TRYING) | IN(WAITING), BAG_HTTP_READY);
    return BAG_HTTP_SEND;
}

enum bag_http_next bag_http_request_on_end(struct bag_http_request *request)
{
    if (request->stage == BAG_HTTP_DEFERRED)
        return call_handler(request, BAG_HTTP_WAITING);
    if (request->stage != BAG_HTTP_READY && !request->reply.status)
        return call_handler(request, BAG_HTTP_TRYING);
    enter(request, IN(DROPPING) | IN(READY), BAG_HTTP_READY);
    return BAG_HTTP_SEND;
}

/* ---- a request's life ------------------------------------------------------------------------ */

/* Clears only the members of the job that are read before an inference sets them. Clearing all of
 * it would take longer than many requests do. */
struct bag_http_request *bag_http_request_begin(struct bag_http_context *context,
                                                const struct bag_http_connection_calls *calls,
                                                struct bag_http_connection *connection,
                                                const struct bag_http_first_line *line)
{
    struct bag_http_request *request = SLIST_FIRST(&context->spare);
    if (request)
        SLIST_REMOVE_HEAD(&context->spare, link);
    else if (!(request = calloc(1, sizeof *request)))
        return NULL;
    memset(request, 0, offsetof(struct bag_http_request, job));
    request->job.infer.input.model = NULL;
    request->job.infer.watch.runs = false;
    request->job.is_reserved = false;
    request->job.queued_ns = 0;
    request->job.done = on_made;
    request->job.task = NULL;
    request->context = context;
    request->calls = calls;
    request->connection = connection;
    request->stage = BAG_HTTP_HEAD;
    request->line = *line;
    request->access.options = options_of(request);
    request->access.recorder = context->recorder;
    request->access.trace = context->service->trace;
    request->access.line = &request->line;
    request->access.head = &request->head;
    bag_http_access_begin(&request->access);
    return request;
}

void bag_http_request_end(struct bag_http_request *request, bool sent)
{
    struct bag_http_context *context = request->context;
    assert(!((IN(TRYING) | IN(WAITING)) >> request->stage & 1));
    if (request->stage == BAG_HTTP_READY) /* the reply could not be sent */
        bag_http_request_finish(request);
    bag_metrics_on_end(context->recorder, sent);
    bag_http_remote_end(request); /* before the models are released, which it uses */
    bag_http_request_leave_models(request);
    bag_engine_cancel(&context->engine, &request->job);
    if (request->line.client_bytes)
        *request->line.client_bytes -= request->body_room + request->document_bytes;
    bag_budget_give(context->buffers.budget, request->document_bytes);
    bag_infer_reset(&request->job.infer);
    bag_buffers_put(request->body);
    bag_http_reply_drop(&request->reply);
    SLIST_INSERT_HEAD(&context->spare, request, link);
}

void bag_http_requests_free(struct bag_http_context *context)
{
    struct bag_http_request *request;
    while ((request = SLIST_FIRST(&context->spare))) {
        SLIST_REMOVE_HEAD(&context->spare, link);
        bag_infer_free(&request->job.infer);
        free(request);
    }
}
