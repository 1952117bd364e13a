/* The handler of inference. Answers cheap requests on the loop's thread and submits expensive ones
 * to the engine. All functions run on the loop's thread. */
#include "coordinator.h"

#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

/* A request goes to the engine whatever its body holds if the estimated work for a body of its
 * length is this many times inline_work_us. It can therefore be rejected before the body arrives.
 */
#define SURELY_EXPENSIVE 4

/* A compressed body is decompressed on the loop if neither form is larger. */
#define INLINE_UNPACK_BYTES 8192

/* With at most this many waiting requests, it is not checked whether clients have disconnected. */
#define FEW_WAITING 4

static const struct bag_option_values *options_of(const struct bag_http_request *request)
{
    return &request->context->service->config->options;
}

/* Returns whether replies may be compressed. */
static bool packs_replies(const struct bag_http_request *request)
{
    return options_of(request)->reply_compression == BAG_SWITCH_ON;
}

/* ---- before the body ------------------------------------------------------------------------- */

/* Finds the model of the path and stores it in the route cache. Returns false with the reply filled
 * if it is not served. */
static bool find_model(struct bag_http_request *request)
{
    struct bag_http_context *context = request->context;
    if (request->job.infer.input.model) /* the route cache knew it */
        return true;
    request->job.infer.input.model =
        bag_http_find_model(request->snapshot, &request->target, &request->reply);
    if (!request->job.infer.input.model)
        return false;
    bag_http_route_cache_keep(&context->route_cache, request->snapshot,
                              bag_http_head_path(request->line.target), request->route,
                              request->job.infer.input.model);
    return true;
}

/* Returns whether the engine must run the request, judged by the length of its body alone. */
static bool is_surely_expensive(const struct bag_http_request *request)
{
    return request->expected_ns / SURELY_EXPENSIVE > request->context->inline_cost_ns;
}

/* Sets what the engine decides by. An IPv6 client is a /64 network. All clients behind a proxy that
 * sends no PROXY header count as one. */
static void identify(struct bag_http_request *request, uint64_t cost_ns)
{
    request->job.client = bag_http_peer_client(request->line.peer);
    request->job.model_slot = request->job.infer.input.model->slot;
    request->job.cost_ns = cost_ns;
    request->job.socket_wait_ns = 0;
}

/* Reserves the work that the head announces. Returns false with the reply filled if the engine has
 * no room for it. */
static bool reserve(struct bag_http_request *request)
{
    identify(request, request->expected_ns);
    if (request->context->engine.limits.latency_target_ns)
        request->job.socket_wait_ns = request->calls->quiet_ns(request->connection);
    if (bag_engine_reserve(&request->context->engine, &request->job))
        return true;
    bag_http_reply_problem(&request->reply, &request->job.problem);
    return false;
}

/* Does the same for a request whose body is complete. One whose work was reserved is admitted, even
 * if its model was replaced in the meantime. */
static bool has_room(struct bag_http_request *request)
{
    if (request->job.is_reserved)
        return true;
    identify(request, request->job.planned ? bag_infer_cost_ns(&request->job.infer)
                                           : bag_infer_whole_cost_ns(&request->job.infer));
    if (bag_engine_has_room(&request->context->engine, &request->job))
        return true;
    bag_http_reply_problem(&request->reply, &request->job.problem);
    return false;
}

/* Returns true if inference is rejected during a drain. After a drain delay it is not: load
 * balancers have seen that the server is not ready, and later requests come from clients that do
 * not check readiness or were on their way. They are served, and each reply closes its connection.
 */
static bool rejects_while_draining(const struct bag_service *service)
{
    return service->state == BAG_SERVICE_DRAINING && service->config->options.drain_delay_s == 0;
}

bool bag_http_accept_infer(struct bag_http_request *request)
{
    const struct bag_http_context *context = request->context;
    if (!bag_http_may_infer(request)) {
        bag_http_reply_error(
            &request->reply, BAG_ERROR_WRONG_PORT,
            "the admin listener (admin_port, admin_socket) is for health, metrics "
            "and models, and takes inference with a token of scope admin alone; send it to the "
            "server's main address");
        return false;
    }
    if (!find_model(request))
        return false;
    if (rejects_while_draining(context->service)) {
        bag_http_reply_error(&request->reply, BAG_ERROR_DRAINING, "the server is stopping");
        return false;
    }
    if (!bag_http_accept_coding(request) ||
        !bag_http_accept_length(request, (size_t)options_of(request)->max_body_bytes,
                                " (max_body_bytes)"))
        return false;
    struct bag_infer *infer = &request->job.infer;
    infer->input.body_bytes = (size_t)request->head.length;
    infer->input.header_bytes = request->head.json_length ? 0 : infer->input.body_bytes;
    request->expected_ns = request->head.has_length ? bag_infer_whole_cost_ns(infer) : 0;
    return !is_surely_expensive(request) || reserve(request);
}

/* ---- with the body --------------------------------------------------------------------------- */

/* Moves the reply or the problem from the inference to the request. */
static void take_reply(struct bag_http_request *request)
{
    struct bag_infer *infer = &request->job.infer;
    if (request->job.failed) {
        bag_http_reply_problem(&request->reply, &request->job.problem);
    } else {
        request->reply = (struct bag_http_reply){.status = 200,
                                                 .body = infer->output.reply,
                                                 .free_body = bag_buffers_put,
                                                 .body_bytes = infer->output.bytes,
                                                 .coding = bag_infer_reply_coding(infer),
                                                 .varies_by_coding = packs_replies(request),
                                                 .header_bytes = infer->output.header_bytes};
        infer->output.reply = NULL;
    }
    bag_http_access_keep_id(&request->access, infer);
}

/* Finds the JSON header of a body, after decompressing it if it is small. A few bytes can become
 * millions, so a worker decompresses what does not stay small. Returns false and sets job->problem
 * if the body is invalid. */
static bool open_body(struct bag_http_request *request)
{
    struct bag_infer *infer = &request->job.infer;
    struct bag_problem *problem = &request->job.problem;
    const char *json_length = request->head.json_length;
    if (infer->input.coding == BAG_CODING_IDENTITY)
        return !json_length || bag_v2_header_length(json_length, infer->input.body_bytes,
                                                    &infer->input.header_bytes, problem);
    if (infer->input.body_bytes > INLINE_UNPACK_BYTES ||
        infer->input.limits->max_body_bytes <= INLINE_UNPACK_BYTES)
        return true;
    return bag_infer_unpack(infer, &request->context->buffers, INLINE_UNPACK_BYTES, problem) ||
           problem->kind == BAG_ERROR_TOO_LARGE;
}

/* Passes the body to the inference. Returns false with the reply filled if its framing is invalid.
 */
static bool set_body(struct bag_http_request *request)
{
    struct bag_infer *infer = &request->job.infer;
    bag_infer_reset(infer);
    bag_stopwatch_start(&infer->watch, request->context->recorder || request->access.trace);
    infer->input.body = request->body ? request->body : "";
    infer->input.body_bytes = infer->input.header_bytes = request->body_bytes;
    infer->input.limits = &request->context->infer_limits;
    infer->input.memory = &request->context->engine.buffers;
    request->job.planned = false;
    infer->input.coding = request->coding;
    infer->input.header_length = request->head.json_length;
    infer->input.reply_coding = packs_replies(request) && request->head.accept
                                    ? bag_coding_choose(request->head.accept)
                                    : BAG_CODING_IDENTITY;
    request->job.failed = !open_body(request);
    if (request->job.failed)
        take_reply(request);
    return !request->job.failed;
}

/* Returns true if decoding the request takes less than inline_work_us. A long JSON header takes
 * longer, unless an equal one was decoded before. */
static bool is_planned_quickly(struct bag_http_context *context, const struct bag_infer *infer)
{
    return bag_infer_plan_cost_ns(infer, false) <= context->inline_cost_ns ||
           (bag_infer_plan_cost_ns(infer, true) <= context->inline_cost_ns &&
            bag_infer_knows_header(infer, &context->header_cache));
}

/* Makes the calls to shards for a planned request. Returns true if that has failed and the reply is
 * filled. Otherwise the calls of request->run must be sent. */
static bool make_calls(struct bag_http_request *request)
{
    struct bag_job *job = &request->job;
    job->planned = !job->infer.input.model->num_live || !job->infer.input.model->resolves;
    if (!bag_http_remote_make(request, request->context->inline_cost_ns) || !job->failed)
        return false;
    take_reply(request);
    return true;
}

/* Answers a cheap request. Returns false if the engine must run it: passing a request to a worker
 * and back costs about inline_work_us. Other clients would wait behind more expensive work, or
 * behind the disk of a mapped table. */
static bool infer_now(struct bag_http_request *request)
{
    struct bag_http_context *context = request->context;
    struct bag_job *job = &request->job;
    if (job->infer.input.coding != BAG_CODING_IDENTITY || !is_planned_quickly(context, &job->infer))
        return false;
    job->failed = !bag_infer_plan(&job->infer, &context->header_cache, &job->problem);
    if (!job->failed && job->infer.input.model->is_remote)
        return make_calls(request);
    if (!job->failed && (job->infer.input.model->mapped ||
                         bag_infer_cost_ns(&job->infer) > context->inline_cost_ns)) {
        /* Keys that were looked up may belong to other rows by the time that a worker pools. */
        job->planned = !job->infer.input.model->num_live || !job->infer.input.model->resolves;
        return false;
    }
    if (!job->failed)
        job->failed = !bag_infer_run(&job->infer, &context->buffers, &job->problem);
    bag_metrics_on_batch(context->recorder, job->infer.input.model, !job->failed);
    take_reply(request);
    return true;
}

/* Does the same, but returns false while the rows are being changed, because the loop must not
 * wait. */
static bool infer_inline(struct bag_http_request *request)
{
    const struct bag_model *model = request->job.infer.input.model;
    if (!bag_model_try_read(model))
        return false;
    bool done = infer_now(request);
    bag_model_read_end(model);
    return done;
}

/* ---- with the engine ------------------------------------------------------------------------- */

/* Called on the loop when the engine has run or dropped the job. The job of a model of shards has
 * only made the calls, which are sent now. */
static void on_job_done(struct bag_job *job)
{
    struct bag_http_request *request = bag_http_request_of(job);
    if (request->run) {
        bag_http_remote_begin(request, take_reply);
        return;
    }
    take_reply(request);
    bag_http_request_resume(request);
}

/* Returns false if the client has closed its sending side. It may still wait for the reply, but has
 * more often disconnected. It is therefore answered only if neither it nor others have waited long.
 */
static bool is_client_connected(struct bag_job *job)
{
    const struct bag_http_request *request = bag_http_request_of(job);
    bool is_quick = request->context->engine.queue.load.waiting <= FEW_WAITING &&
                    uv_hrtime() - job->queued_ns < BAG_HTTP_QUICK_NS;
    return is_quick || request->calls->is_connected(request->connection);
}

/* Suspends the request: sends its calls to shards, or submits its job to the engine. The first call
 * of the handler must not suspend, so it returns LATER. */
static enum bag_http_outcome submit(struct bag_http_request *request)
{
    if (!bag_http_request_may_suspend(request))
        return BAG_HTTP_LATER;
    if (request->run) {
        bag_http_remote_begin(request, take_reply);
        return BAG_HTTP_SUSPEND;
    }
    if (!has_room(request))
        return BAG_HTTP_DONE;
    request->job.run = request->job.infer.input.model->is_remote ? bag_http_remote_run : NULL;
    request->job.done = on_job_done;
    request->job.is_connected = is_client_connected;
    bag_engine_submit(&request->context->engine, &request->job);
    return BAG_HTTP_SUSPEND;
}

enum bag_http_outcome bag_http_post_infer(struct bag_http_request *request)
{
    if (bag_http_request_may_suspend(request) &&
        !request->is_anew) /* infer_inline() has returned false */
        return submit(request);
    if (!find_model(request) || !set_body(request) ||
        (is_surely_expensive(request) && !has_room(request)))
        return BAG_HTTP_DONE;
    return !request->is_anew && infer_inline(request) ? BAG_HTTP_DONE : submit(request);
}
