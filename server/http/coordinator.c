/* Remote inferences of requests; see coordinator.h. */
#include "coordinator.h"

#include <stddef.h>
#include <stdlib.h>

/* The loop prepares and merges requests up to this multiple of inline_work_us itself, which saves
 * two hand-overs to a worker. */
#define LOOP_FACTOR 4

/* ---- making ---------------------------------------------------------------------------------- */

bool bag_http_remote_run(struct bag_job *job)
{
    struct bag_http_request *request = bag_http_request_of(job);
    struct bag_remote_infer *run = malloc(sizeof *run);
    if (!run)
        return bag_problem_no_memory(&job->problem);
    if (!bag_remote_infer_make(run, &job->infer, &request->context->engine.buffers,
                               &job->problem)) {
        free(run);
        return false;
    }
    request->run = run;
    return true;
}

bool bag_http_remote_make(struct bag_http_request *request, uint64_t most_ns)
{
    struct bag_job *job = &request->job;
    if (job->infer.input.model->mapped ||
        bag_remote_infer_cost_ns(&job->infer) > most_ns * LOOP_FACTOR)
        return false;
    job->failed = !bag_http_remote_run(job);
    return true;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void bag_http_remote_end(struct bag_http_request *request)
{
    if (!request->run)
        return;
    bag_remote_infer_free(request->run);
    free(request->run);
    request->run = NULL;
}

/* Fills the reply of an inference that is finished or has failed, and continues the connection. */
static void end(struct bag_http_request *request)
{
    bag_http_remote_end(request);
    request->answer(request);
    bag_http_request_resume(request);
}

static void on_finished(struct bag_job *job)
{
    end(bag_http_request_of(job));
}

/* Merges the replies on a worker and returns the request to its loop, where on_finished() is
 * called. */
static void finish_on_worker(struct bag_work *work)
{
    struct bag_http_request *request =
        (void *)((char *)work - offsetof(struct bag_http_request, work));
    bag_remote_infer_finish(request->run);
    bag_infer_free_scratch(&request->job.infer);
    bag_http_request_made(request);
}

/* Returns whether another model than the request began with is served under its name by now. */
static bool has_newer_model(struct bag_remote_infer *run)
{
    const struct bag_http_request *request = run->context;
    struct bag_reader *reader = request->context->reader;
    struct bag_snapshot *now = bag_snapshot_acquire(reader);
    bool found = bag_snapshot_find(now, request->target.model, request->target.version) !=
                 request->job.infer.input.model;
    bag_snapshot_release(reader, now);
    return found;
}

/* Called when all shards have replied or the inference has failed. Merges the replies here if that
 * is little work, otherwise on a worker. */
static void on_done(struct bag_remote_infer *run)
{
    struct bag_http_request *request = run->context;
    struct bag_job *job = &request->job;
    if (run->is_mismatch && run->has_newer_model && has_newer_model(run)) {
        /* Answer the request once more, by the models that are served now. */
        bag_infer_drop(&request->job.infer);
        bag_http_remote_end(request);
        bag_http_request_leave_models(request);
        request->is_anew = true;
        bag_http_request_again(request);
        return;
    }
    job->failed = run->failed;
    if (run->failed) {
        job->problem = run->subrequests.problem;
        bag_infer_drop(&job->infer);
    } else if (bag_remote_infer_cost_ns(&job->infer) >
               request->context->inline_cost_ns * LOOP_FACTOR) {
        job->done = on_finished;
        job->task = NULL;
        request->work.run = finish_on_worker;
        bag_workers_push(request->context->engine.workers, &request->work, BAG_WORK_URGENT);
        return;
    } else {
        bag_remote_infer_finish(run);
    }
    end(request);
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* Returns false if the client has closed its connection. */
static bool is_connected(struct bag_remote_infer *run)
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

/* Sets what shards are sent of the trace: whether the request is sampled, by its client or by this
 * server. */
static void set_trace(struct bag_http_request *request, struct bag_subrequests *all)
{
    const struct bag_span_place *place = bag_http_access_place(&request->access);
    all->traceparent = request->head.traceparent;
    if (place && place->sampled) {
        all->trace = request->access.trace;
        all->place = place;
    } else if (place) {
        bag_traceparent_print(place, all->unsampled);
        all->traceparent = all->unsampled;
    }
}

void bag_http_remote_begin(struct bag_http_request *request,
                           void (*answer)(struct bag_http_request *request))
{
    struct bag_remote_infer *run = request->run;
    request->answer = answer;
    run->done = on_done;
    run->is_connected = is_connected;
    run->has_newer_model = request->is_anew ? NULL : has_newer_model;
    run->context = request;
    set_trace(request, &run->subrequests);
    if (!request->is_anew)
        request->asked_ns = request->job.queued_ns ? request->job.queued_ns : uv_hrtime();
    bag_remote_infer_begin(run, &request->context->coordinator, timeout_left_us(request));
}
