/* One request and its reply; see request.h. */
#include "request.h"

#include "authorize.h"
#include "overload.h"

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

/* Returns whether the client may hold so many bytes for this request beside its other requests. */
static bool client_may_hold(const struct bag_http_request *request, size_t bytes)
{
    return bag_http_overload_has_room(request->context->buffers.budget, request->line.client,
                                      request->body_room, bytes);
}

/* Adds to the memory of the client, or subtracts from it. */
static void count_for_client(const struct bag_http_request *request, size_t bytes)
{
    if (request->line.client)
        request->line.client->held_bytes += bytes;
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
        count_for_client(request, bytes);
        return;
    }
    bag_budget_reject(budget, "a reply", bytes, &problem);
    bag_http_reply_drop(reply);
    bag_http_reply_problem(reply, &problem);
}

/* ---- the reply ------------------------------------------------------------------------------- */

/* Calls the third function of the route. */
static void drop(struct bag_http_request *request)
{
    if (request->target.route && request->target.route->drop)
        request->target.route->drop(request);
}

/* The reply of a handler is filled. */
static void become_ready(struct bag_http_request *request)
{
    enter(request, IN(RUNNING) | IN(WAITING), BAG_HTTP_READY);
    count_document(request);
}

void bag_http_request_finish(struct bag_http_request *request)
{
    struct bag_http_context *context = request->context;
    struct bag_http_target *target = &request->target;
    enter(request, IN(READY), BAG_HTTP_FINISHED);
    request->reply.close |= request->rejected || request->head.chunked ||
                            request->head.may_be_cut ||
                            context->service->state == BAG_SERVICE_DRAINING;
    bag_http_target_hold(&context->targets, target);
    bag_http_access_end(&request->access, target->model, &request->job, &request->reply,
                        target->route ? target->route->pattern : "", uv_now(context->engine.loop));
    drop(request);
    bag_http_target_leave(&context->targets, target);
    bag_http_reply_to(&request->reply, &request->head, options_of(request)->cors_origins);
}

/* ---- late replies ---------------------------------------------------------------------------- */

enum bag_http_outcome bag_http_request_late(struct bag_http_request *request,
                                            void (*begin)(struct bag_http_request *request))
{
    assert(request->stage == BAG_HTTP_RUNNING);
    request->begin = begin;
    return BAG_HTTP_LATE;
}

void bag_http_request_begin_work(struct bag_http_request *request)
{
    void (*begin)(struct bag_http_request * request) = request->begin;
    assert(begin);
    request->begin = NULL;
    enter(request, IN(WAITING), BAG_HTTP_RUNNING);
    begin(request);
    if (request->stage == BAG_HTTP_RUNNING)
        enter(request, IN(RUNNING), BAG_HTTP_WAITING);
}

/* Called on the loop when another thread hands a request back. */
static void on_back(struct bag_job *job)
{
    struct bag_http_request *request = bag_http_request_of(job);
    request->is_away = false;
    bag_http_request_complete(request);
}

void bag_http_request_complete(struct bag_http_request *request)
{
    if (request->is_away) {
        request->job.done = on_back;
        request->job.task = NULL;
        bag_job_push_finished(&request->context->engine, &request->job);
        return;
    }
    const bool waits = request->stage == BAG_HTTP_WAITING;
    assert(!request->begin);
    become_ready(request);
    if (waits)
        request->calls->resume(request->connection);
}

void bag_http_request_push(struct bag_http_request *request, void (*run)(struct bag_work *work),
                           enum bag_work_order order)
{
    request->work.run = run;
    request->work.client = bag_http_peer_client(request->line.peer);
    request->pushed_ns = uv_hrtime();
    request->is_away = true;
    bag_workers_push(request->context->engine.workers, &request->work, order);
}

/* Fills the reply on a worker. The connection is suspended, so no other thread uses the socket. */
static void run_on_worker(struct bag_work *work)
{
    struct bag_http_request *request = bag_http_request_of_work(work);
    bool is_quick = uv_hrtime() - request->pushed_ns < BAG_HTTP_QUICK_NS;
    if (is_quick || request->calls->is_connected(request->connection))
        request->make_reply(request);
    else
        bag_http_reply_error(&request->reply, BAG_ERROR_CANCELLED,
                             "the client has closed the connection");
    bag_http_request_complete(request);
}

static void push_to_worker(struct bag_http_request *request)
{
    bag_http_request_push(request, run_on_worker, BAG_WORK_METADATA);
}

enum bag_http_outcome bag_http_request_on_worker(struct bag_http_request *request,
                                                 void (*make_reply)(struct bag_http_request *))
{
    request->make_reply = make_reply;
    return bag_http_request_late(request, push_to_worker);
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

/* Returns the path of a request. For a browser that asks for / it is that of the console. */
static const char *path_of(const struct bag_http_request *request)
{
    const char *path = bag_http_head_path(request->line.target);
    bool is_page = request->head.wants_html && strcmp(path, "/") == 0 &&
                   options_of(request)->console == BAG_SWITCH_ON;
    return is_page ? BAG_HTTP_CONSOLE_PATH : path;
}

enum bag_http_next bag_http_request_on_head(struct bag_http_request *request,
                                            const struct bag_problem *fault)
{
    struct bag_http_targets *targets = &request->context->targets;
    struct bag_http_target *target = &request->target;
    if (fault) {
        bag_http_request_reject(request, fault);
        return BAG_HTTP_SEND;
    }
    bag_http_target_hold(targets, target);
    bool accepted = bag_http_target_route(targets, target, request->line.method, path_of(request),
                                          &request->reply) &&
                    bag_http_authorize(request);
    bag_http_accept *accept = accepted ? target->route->accept : NULL;
    accepted = accepted && (!accept || accept(request));
    bag_http_target_leave(targets, target);
    enter(request, IN(HEAD), accepted && accept ? BAG_HTTP_BODY : BAG_HTTP_DROPPING);
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
    if (room > FIRST_ROOM_BYTES && !client_may_hold(request, room))
        return false;
    char *bytes = bag_buffers_get(&request->context->buffers, room);
    if (!bytes)
        return false;
    count_for_client(request, room - request->body_room);
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

void bag_http_request_on_end(struct bag_http_request *request)
{
    if (request->reply.status) { /* the head or a piece of the body was rejected */
        enter(request, IN(DROPPING), BAG_HTTP_READY);
        return;
    }
    enter(request, IN(BODY) | IN(DROPPING), BAG_HTTP_RUNNING);
    bag_http_target_hold(&request->context->targets, &request->target);
    if (request->target.route->run(request) == BAG_HTTP_LATE)
        enter(request, IN(RUNNING), BAG_HTTP_WAITING);
    else
        become_ready(request);
}

/* ---- a request's life ------------------------------------------------------------------------ */

/* Returns a request that is kept for reuse, or NULL if there is none. */
static struct bag_http_request *take_spare(struct bag_http_context *context)
{
    struct bag_http_request *request = SLIST_FIRST(&context->spare);
    if (!request)
        return NULL;
    SLIST_REMOVE_HEAD(&context->spare, link);
    if (--context->num_spare < context->min_spare)
        context->min_spare = context->num_spare;
    return request;
}

/* Clears only the members of the job that are read before an inference sets them. Clearing all of
 * it would take longer than many requests do. */
struct bag_http_request *bag_http_request_begin(struct bag_http_context *context,
                                                const struct bag_http_connection_calls *calls,
                                                struct bag_http_connection *connection,
                                                const struct bag_http_first_line *line)
{
    struct bag_http_request *request = take_spare(context);
    if (!request && !(request = calloc(1, sizeof *request)))
        return NULL;
    memset(request, 0, offsetof(struct bag_http_request, job));
    request->job.infer.input.model = NULL;
    request->job.infer.watch.runs = false;
    request->job.is_reserved = false;
    request->job.queued_ns = 0;
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
    assert(request->stage != BAG_HTTP_RUNNING &&
           (request->stage != BAG_HTTP_WAITING || request->begin));
    if (request->stage == BAG_HTTP_READY) /* the reply could not be sent */
        bag_http_request_finish(request);
    else if (request->stage != BAG_HTTP_FINISHED)
        drop(request);
    bag_metrics_on_end(context->recorder, sent);
    bag_http_target_leave(&context->targets, &request->target);
    count_for_client(request, -(request->body_room + request->document_bytes));
    bag_budget_give(context->buffers.budget, request->document_bytes);
    bag_buffers_put(request->body);
    bag_http_reply_drop(&request->reply);
    assert(bag_infer_is_reset(&request->job.infer));
    SLIST_INSERT_HEAD(&context->spare, request, link);
    context->num_spare++;
}

/* Frees spare requests until `left` are left. */
static void free_spare(struct bag_http_context *context, size_t left)
{
    while (context->num_spare > left) {
        struct bag_http_request *request = take_spare(context);
        bag_infer_free(&request->job.infer);
        free(request);
    }
}

void bag_http_requests_trim(struct bag_http_context *context)
{
    free_spare(context, context->num_spare - context->min_spare);
    context->min_spare = context->num_spare;
}

void bag_http_requests_free(struct bag_http_context *context)
{
    free_spare(context, 0);
}
