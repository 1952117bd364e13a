/* Requests for models of shards: what others than this server do for them. The calls are made where
 * the request is planned, on the loop or on a worker, sent by the loop, and put together by it or
 * by a worker, as it is little or much. */
#include "front.h"

#include <stddef.h>
#include <stdlib.h>

/* So many times the work that is done at once is done on the loop: two ways to a worker and back
 * are saved. */
#define LOOP_FACTOR 4

static struct bag_http_request *request_of(struct bag_job *job)
{
    return (void *)((char *)job - offsetof(struct bag_http_request, job));
}

/* ---- making ---------------------------------------------------------------------------------- */

bool bag_http_front_run(struct bag_job *job)
{
    struct bag_http_request *request = request_of(job);
    struct bag_trip *trip = malloc(sizeof *trip);
    if (!trip)
        return bag_problem_no_memory(&job->problem);
    if (!bag_trip_make(trip, &job->infer, &request->context->engine.buffers, &job->problem)) {
        free(trip);
        return false;
    }
    request->trip = trip;
    return true;
}

bool bag_http_front_make(struct bag_http_request *request, uint64_t most_ns)
{
    struct bag_job *job = &request->job;
    if (job->infer.input.model->mapped || bag_trip_cost_ns(&job->infer) > most_ns * LOOP_FACTOR)
        return false;
    job->failed = !bag_http_front_run(job);
    return true;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void bag_http_front_end(struct bag_http_request *request)
{
    if (!request->trip)
        return;
    bag_trip_free(request->trip);
    free(request->trip);
    request->trip = NULL;
}

/* All is put together, or has failed. */
static void end(struct bag_http_request *request)
{
    bag_http_front_end(request);
    request->answer(request);
    bag_http_request_resume(request);
}

static void on_finished(struct bag_job *job)
{
    end(request_of(job));
}

static void finish_on_worker(struct bag_work *work)
{
    struct bag_http_request *request =
        (void *)((char *)work - offsetof(struct bag_http_request, work));
    bag_trip_finish(request->trip);
    bag_infer_free_scratch(&request->job.infer);
    bag_http_request_made(request);
}

/* Whether something else than the request began with is served under its model's name by now. */
static bool is_renewed(struct bag_trip *trip)
{
    const struct bag_http_request *request = trip->context;
    struct bag_reader *reader = request->context->reader;
    struct bag_snapshot *now = bag_snapshot_acquire(reader);
    bool found = bag_snapshot_find(now, request->target.model, request->target.version) !=
                 request->job.infer.input.model;
    bag_snapshot_release(reader, now);
    return found;
}

/* The request is answered from its body on, by the models of now: its handler is called as if it
 * had just come, but may suspend. */
static void begin_anew(struct bag_http_request *request)
{
    bag_infer_drop(&request->job.infer);
    bag_http_front_end(request);
    bag_http_request_leave_models(request);
    request->is_anew = true;
    request->stage = BAG_HTTP_BODY;
    request->calls->resume(request->connection);
}

static void on_done(struct bag_trip *trip)
{
    struct bag_http_request *request = trip->context;
    struct bag_job *job = &request->job;
    if (trip->is_mismatch && trip->is_renewed && is_renewed(trip)) {
        begin_anew(request);
        return;
    }
    job->failed = trip->failed;
    if (trip->failed) {
        job->problem = trip->problem;
        bag_infer_drop(&job->infer);
    } else if (bag_trip_cost_ns(&job->infer) > request->context->inline_cost_ns * LOOP_FACTOR) {
        job->done = on_finished;
        job->task = NULL;
        request->work.run = finish_on_worker;
        bag_workers_push(request->context->engine.workers, &request->work, BAG_WORK_URGENT);
        return;
    } else {
        bag_trip_finish(trip);
    }
    end(request);
}

/* ---- on the way ------------------------------------------------------------------------------ */

static bool is_connected(struct bag_trip *trip)
{
    const struct bag_http_request *request = trip->context;
    return request->calls->is_connected(request->connection);
}

/* What is left of the request's own time. */
static uint64_t timeout_left_us(const struct bag_http_request *request)
{
    uint64_t timeout_us = request->job.infer.plan.timeout_us;
    uint64_t waited_us = (uv_hrtime() - request->asked_ns) / 1000;
    if (timeout_us == UINT64_MAX)
        return timeout_us;
    return timeout_us > waited_us ? timeout_us - waited_us : 0;
}

/* Shards are told whether the request is sampled, by its client or by this server. */
static void set_trace(struct bag_http_request *request, struct bag_trip *trip)
{
    const struct bag_span_place *place = bag_http_access_place(&request->access);
    trip->traceparent = request->head.traceparent;
    if (place && place->sampled) {
        trip->trace = request->access.trace;
        trip->place = place;
    } else if (place) {
        bag_traceparent_print(place, trip->unsampled);
        trip->traceparent = trip->unsampled;
    }
}

void bag_http_front_begin(struct bag_http_request *request,
                          void (*answer)(struct bag_http_request *request))
{
    struct bag_trip *trip = request->trip;
    request->answer = answer;
    trip->done = on_done;
    trip->is_connected = is_connected;
    trip->is_renewed = request->is_anew ? NULL : is_renewed;
    trip->context = request;
    set_trace(request, trip);
    if (!request->is_anew)
        request->asked_ns = request->job.queued_ns ? request->job.queued_ns : uv_hrtime();
    bag_trip_begin(trip, &request->context->front, timeout_left_us(request));
}
