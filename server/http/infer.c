/* The handler of inference, of models whose rows are here and of models whose rows are on shards.
 *
 * Its story, from the head to the reply:
 *
 *   bag_http_accept_infer   The head has arrived. Finds the model, rejects what can be rejected by
 *                           now, and reserves large work with the engine.
 *   bag_http_post_infer     The body is complete. Plans the work, and does it now if it is little.
 *   begin                   Other work is late: the engine gets it, or the shards are asked.
 *   on_job_done             The engine has run the job. If the rows are on shards, it has only
 *                           written the subrequests, and the shards are asked now.
 *   on_replies              The shards have replied. Their replies are merged, by the loop or by a
 *                           worker. If they have other parts by now, the story starts again with
 *                           the models that are served now.
 *   bag_http_drop_infer     The reply was counted, or the client has left.
 *
 * All functions run on the loop's thread unless their comment says otherwise. */
#include "request.h"
#include "routes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A request goes to the engine whatever its body holds if the estimated work for a body of its
 * length is this many times inline_work_us. It can therefore be rejected before the body arrives.
 */
#define SURELY_EXPENSIVE 4

/* The loop makes and merges remote inferences up to this multiple of inline_work_us itself, which
 * saves two hand-overs to a worker. */
#define REMOTE_FACTOR 4

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

/* Finds the model of the path. Returns false with the reply filled if it is not served. */
static bool find_model(struct bag_http_request *request)
{
    request->job.infer.input.model =
        bag_http_target_find(&request->context->targets, &request->target, &request->reply);
    return request->job.infer.input.model != NULL;
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

/* Moves the reply or the problem from the inference to the request. May be called by the thread
 * that has the request. */
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

/* Finds the model that is served now, and passes the body to the inference, which owns nothing yet.
 * Returns false with the reply filled if there is no such model, the framing of the body is
 * invalid, or the engine has no room for it. */
static bool prepare(struct bag_http_request *request)
{
    struct bag_infer *infer = &request->job.infer;
    if (!find_model(request))
        return false;
    bag_stopwatch_start(&infer->watch, request->context->recorder || request->access.trace);
    infer->input.body = request->body ? request->body : "";
    infer->input.body_bytes = infer->input.header_bytes = request->body_bytes;
    infer->input.limits = &request->context->infer_limits;
    infer->input.memory = &request->context->engine.buffers;
    infer->input.coding = request->coding;
    infer->input.header_length = request->head.json_length;
    infer->input.reply_coding = packs_replies(request) && request->head.accept
                                    ? bag_coding_choose(request->head.accept)
                                    : BAG_CODING_IDENTITY;
    request->job.planned = false;
    request->job.failed = !open_body(request);
    if (request->job.failed) {
        take_reply(request);
        return false;
    }
    return !is_surely_expensive(request) || has_room(request);
}

/* Returns true if decoding the request takes less than inline_work_us. A long JSON header takes
 * longer, unless an equal one was decoded before. */
static bool is_planned_quickly(struct bag_http_context *context, const struct bag_infer *infer)
{
    return bag_infer_plan_cost_ns(infer, false) <= context->inline_cost_ns ||
           (bag_infer_plan_cost_ns(infer, true) <= context->inline_cost_ns &&
            bag_infer_knows_header(infer, &context->header_cache));
}

/* Returns whether the loop makes and merges a planned remote inference itself. */
static bool is_merged_quickly(const struct bag_http_request *request)
{
    return bag_remote_infer_cost_ns(&request->job.infer) <=
           request->context->inline_cost_ns * REMOTE_FACTOR;
}

/* Returns whether the loop can pool a planned request without waiting for a disk. */
static bool is_in_memory(struct bag_job *job)
{
    return !job->infer.input.model->mapped || bag_infer_is_in_memory(&job->infer);
}

/* Returns whether a planned request may be sent to its shards together with others. A trace has
 * spans of its own, and shards get the traceparent of one client. */
static bool may_join(struct bag_http_request *request)
{
    const struct bag_span_place *place = bag_http_access_place(&request->access);
    return request->attempts == 0 && !request->head.traceparent && !(place && place->sampled) &&
           bag_remote_infer_may_join(&request->job.infer);
}

/* Makes the remote inference of a planned request: pools what is here, and writes the subrequests
 * unless it joins others. Returns false and sets job->problem if that fails. Runs on the loop or on
 * a worker. */
static bool make_remote(struct bag_job *job, bool joins)
{
    struct bag_http_request *request = bag_http_request_of(job);
    struct bag_remote_infer *run = malloc(sizeof *run);
    if (!run)
        return bag_problem_no_memory(&job->problem);
    if (!bag_remote_infer_make(run, &job->infer, &request->context->engine.buffers, joins,
                               &job->problem)) {
        free(run);
        return false;
    }
    request->run = run;
    return true;
}

static bool make_remote_on_worker(struct bag_job *job)
{
    return make_remote(job, false);
}

/* Frees the remote inference, and cancels what is under way. */
static void drop_remote(struct bag_http_request *request)
{
    if (!request->run)
        return;
    bag_remote_infer_free(request->run);
    free(request->run);
    request->run = NULL;
}

/* Plans a prepared request, and does its work if that is little. Returns true if the reply is
 * filled. Returns false if the work is late. Passing a request to a worker and back costs about
 * inline_work_us, but other clients would wait behind more expensive work, or behind a disk if rows
 * of a mapped table are not in memory. The loop does not wait for an update of the rows either. */
static bool run_at_once(struct bag_http_request *request)
{
    struct bag_http_context *context = request->context;
    struct bag_job *job = &request->job;
    const struct bag_model *model = job->infer.input.model;
    bool is_late = false;
    if (job->infer.input.coding != BAG_CODING_IDENTITY ||
        !is_planned_quickly(context, &job->infer) || !bag_model_try_read(model))
        return false;
    job->failed = !bag_infer_plan(&job->infer, &context->header_cache, &job->problem);
    if (!job->failed && model->is_remote) {
        is_late = true;
        if (is_merged_quickly(request) && is_in_memory(job))
            job->failed = !make_remote(job, may_join(request));
    } else if (!job->failed &&
               (bag_infer_cost_ns(&job->infer) > context->inline_cost_ns || !is_in_memory(job))) {
        is_late = true;
    } else {
        if (!job->failed)
            job->failed = !bag_infer_run(&job->infer, &context->buffers, &job->problem);
        bag_metrics_on_batch(context->recorder, model, !job->failed);
    }
    bag_model_read_end(model);
    if (is_late && !job->failed) {
        /* Keys that were looked up may belong to other rows by the time that a worker pools. */
        job->planned = !model->num_live || !model->resolves;
        return false;
    }
    take_reply(request);
    return true;
}

/* ---- late ------------------------------------------------------------------------------------ */

static void begin(struct bag_http_request *request);

static void complete(struct bag_http_request *request)
{
    take_reply(request);
    bag_http_request_complete(request);
}

/* Merges the replies of the shards on a worker. */
static void merge_on_worker(struct bag_work *work)
{
    struct bag_http_request *request = bag_http_request_of_work(work);
    bag_remote_infer_finish(request->run);
    take_reply(request);
    bag_infer_free_scratch(&request->job.infer);
    bag_http_request_complete(request);
}

/* Returns whether another model than the request began with is served under its name by now. */
static bool has_newer_model(struct bag_remote_infer *run)
{
    const struct bag_http_request *request = run->context;
    return bag_http_target_is_replaced(&request->context->targets, &request->target);
}

/* Called when all shards have replied or the remote inference has failed. */
static void on_replies(struct bag_remote_infer *run)
{
    struct bag_http_request *request = run->context;
    struct bag_job *job = &request->job;
    if (run->is_mismatch && request->attempts == 1 && has_newer_model(run)) {
        /* The shards have other parts by now. Ask once more, by the models that are served now. */
        drop_remote(request);
        bag_infer_reset(&job->infer);
        bag_http_target_leave(&request->context->targets, &request->target);
        bag_http_target_hold(&request->context->targets, &request->target);
        if (prepare(request))
            begin(request);
        else
            bag_http_request_complete(request);
        return;
    }
    job->failed = run->failed;
    if (run->failed) {
        job->problem = run->subrequests.problem;
        bag_infer_drop(&job->infer);
    } else if (is_merged_quickly(request)) {
        bag_remote_infer_finish(run);
    } else {
        bag_http_request_push(request, merge_on_worker, BAG_WORK_URGENT);
        return;
    }
    drop_remote(request);
    complete(request);
}

/* Returns false if the client has closed its connection. */
static bool is_asker_connected(struct bag_remote_infer *run)
{
    const struct bag_http_request *request = run->context;
    return request->calls->is_connected(request->connection);
}

/* Returns the remaining part of the request's own timeout; UINT64_MAX: it has none. */
static uint64_t timeout_left_us(const struct bag_http_request *request)
{
    uint64_t timeout_us = request->job.infer.plan.timeout_us;
    uint64_t waited_us = (uv_hrtime() - request->asked_ns) / 1000;
    if (timeout_us == UINT64_MAX)
        return timeout_us;
    return timeout_us > waited_us ? timeout_us - waited_us : 0;
}

/* Starts the remote inference that was made. Only the first attempt waits for a newer model. The
 * shards learn whether the request is traced, by its client or by this server. */
static void ask_shards(struct bag_http_request *request)
{
    struct bag_remote_infer *run = request->run;
    struct bag_subrequests *all = &run->subrequests;
    const struct bag_span_place *place = bag_http_access_place(&request->access);
    if (++request->attempts == 1)
        request->asked_ns = request->job.queued_ns ? request->job.queued_ns : uv_hrtime();
    run->done = on_replies;
    run->is_connected = is_asker_connected;
    run->has_newer_model = request->attempts == 1 ? has_newer_model : NULL;
    run->context = request;
    all->traceparent = request->head.traceparent;
    if (place && place->sampled) {
        all->trace = request->access.trace;
        all->place = place;
    } else if (place) {
        bag_traceparent_print(place, all->unsampled);
        all->traceparent = all->unsampled;
    }
    bag_remote_infer_begin(run, &request->context->coordinator, timeout_left_us(request));
}

/* Called on the loop when the engine has run or rejected the job. */
static void on_job_done(struct bag_job *job)
{
    struct bag_http_request *request = bag_http_request_of(job);
    if (request->run)
        ask_shards(request);
    else
        complete(request);
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

/* Begins the work of a late request. */
static void begin(struct bag_http_request *request)
{
    struct bag_job *job = &request->job;
    if (request->run) {
        ask_shards(request);
        return;
    }
    if (!has_room(request)) {
        bag_http_request_complete(request);
        return;
    }
    job->run = job->infer.input.model->is_remote ? make_remote_on_worker : NULL;
    job->done = on_job_done;
    job->is_connected = is_client_connected;
    bag_engine_submit(&request->context->engine, job);
}

/* ---- the handler ----------------------------------------------------------------------------- */

enum bag_http_outcome bag_http_post_infer(struct bag_http_request *request)
{
    if (!prepare(request) || run_at_once(request))
        return BAG_HTTP_DONE;
    return bag_http_request_late(request, begin);
}

void bag_http_drop_infer(struct bag_http_request *request)
{
    drop_remote(request);
    bag_engine_cancel(&request->context->engine, &request->job);
    bag_infer_reset(&request->job.infer);
}
