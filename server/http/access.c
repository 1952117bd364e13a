/* Counts, logs and traces requests; see access.h. */
#include "access.h"

#include "server/system/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <uv.h>

void bag_http_access_begin(struct bag_http_access *access)
{
    const struct bag_option_values *options = access->options;
    bool logged =
        options->access_log == BAG_SWITCH_ON || options->slow_request_ms > 0 || access->trace;
    access->begun_ns = logged ? uv_hrtime() : 0;
}

void bag_http_access_keep_id(struct bag_http_access *access, const struct bag_infer *infer)
{
    if (access->begun_ns && infer->plan.id.bytes > 2) /* without its quotes */
        snprintf(access->id, sizeof access->id, "%.*s", (int)infer->plan.id.bytes - 2,
                 infer->plan.id.data + 1);
}

/* ---- metrics --------------------------------------------------------------------------------- */

/* Counts the reply, and its reason or its work. */
static void count(const struct bag_http_access *access, const struct bag_model *model,
                  const struct bag_job *job, const struct bag_http_reply *reply, uint64_t now_ms)
{
    const struct bag_infer *infer = &job->infer;
    if (!access->recorder)
        return;
    bag_metrics_on_answer(access->recorder, reply->status, access->received_bytes,
                          reply->body_bytes);
    if (reply->status >= 400)
        bag_metrics_on_rejection(access->recorder, model, bag_http_error_reason(reply->error),
                                 &infer->watch);
    else if (model)
        bag_metrics_on_success(access->recorder, model,
                               &(struct bag_metrics_work){.bags = infer->plan.work.bags,
                                                          .rows = infer->plan.work.rows,
                                                          .bytes = infer->plan.work.bytes,
                                                          .defaults = infer->output.default_bags,
                                                          .missing = infer->plan.missing_keys,
                                                          .others = infer->plan.other_ids,
                                                          .watch = &infer->watch,
                                                          .now_ms = now_ms});
}

/* ---- the log --------------------------------------------------------------------------------- */

/* The maximum length of a logged error. */
#define LOGGED_BYTES 1024

/* Requests to these routes are never traced: load balancers send them all the time. */
#define HEALTH_ROUTES "/v2/health/"

static const char *text_of(const char *text)
{
    return text ? text : "";
}

/* Copies the sentence of an error from its document {"error": "..."} and resolves escapes. Returns
 * `reason`, which is empty if the body is another document. */
static const char *reason_of(const struct bag_http_reply *reply, char reason[LOGGED_BYTES])
{
    static const char key[] = "\"error\":\"";
    const char *at = reply->body ? strstr(reply->body, key) : NULL;
    size_t bytes = 0;
    for (at = at ? at + sizeof key - 1 : ""; *at && *at != '"' && bytes < LOGGED_BYTES - 1; at++) {
        at += *at == '\\' && at[1];
        reason[bytes++] = *at;
    }
    reason[bytes] = '\0';
    return reason;
}

/* Writes one line of the access log. */
static void log_request(const struct bag_http_access *access, const struct bag_model *model,
                        const struct bag_job *job, const struct bag_http_reply *reply,
                        uint64_t took_us, bool slow)
{
    bool pooled = model && reply->status == 200;
    char reason[LOGGED_BYTES] BAG_UNSET;
    struct bag_log_field error = {0};
    if (reply->status >= 400)
        error = (struct bag_log_field)BAG_LOG_TEXT("error", reason_of(reply, reason));
    bag_log_often(
        slow ? BAG_LOG_LEVEL_WARNING : BAG_LOG_LEVEL_INFO, slow ? "slow request" : "request",
        BAG_LOG_TEXT("client", bag_http_peer_text(access->line->peer)),
        BAG_LOG_TEXT("method", access->line->method), BAG_LOG_TEXT("path", access->line->target),
        BAG_LOG_NUMBER("status", reply->status), BAG_LOG_NUMBER("bytes_in", access->received_bytes),
        BAG_LOG_NUMBER("bytes_out", reply->body_bytes), BAG_LOG_NUMBER("duration_us", took_us),
        BAG_LOG_TEXT("model", model ? model->name : ""),
        BAG_LOG_NUMBER("bags", pooled ? job->infer.plan.work.bags : 0),
        BAG_LOG_NUMBER("ids", pooled ? job->infer.plan.work.rows : 0),
        BAG_LOG_TEXT("request_id", access->id[0] ? access->id : text_of(access->head->request_id)),
        BAG_LOG_TEXT("traceparent", text_of(access->head->traceparent)), error);
}

/* ---- traces ---------------------------------------------------------------------------------- */

/* Sets the stages of a span from the stopwatch of the inference. The time before the stopwatch
 * started counts as reading, and the time after it stopped as writing. */
static void set_stages(const struct bag_job *job, uint64_t took_ns, struct bag_span *span)
{
    const struct bag_stopwatch *watch = &job->infer.watch;
    uint64_t watched_ns = bag_stopwatch_ns(watch);
    span->pooled = watch->runs;
    span->bags = job->infer.plan.work.bags;
    span->ids = job->infer.plan.work.rows;
    span->read_ns =
        (took_ns > watched_ns ? took_ns - watched_ns : 0) + watch->stage_ns[BAG_STAGE_INPUT];
    span->wait_ns = watch->stage_ns[BAG_STAGE_QUEUE];
    span->pool_ns = watch->stage_ns[BAG_STAGE_INFER];
    uint64_t before_ns = span->read_ns + span->wait_ns + span->pool_ns;
    span->write_ns = took_ns > before_ns ? took_ns - before_ns : 0;
}

const struct bag_span_place *bag_http_access_place(struct bag_http_access *access)
{
    if (!access->trace)
        return NULL;
    if (!access->is_placed)
        access->place = bag_trace_place(access->trace, access->head->traceparent);
    access->is_placed = true;
    return access->place.id ? &access->place : NULL;
}

void bag_http_access_end(struct bag_http_access *access, const struct bag_model *model,
                         const struct bag_job *job, const struct bag_http_reply *reply,
                         const char *route, uint64_t now_ms)
{
    const struct bag_option_values *options = access->options;
    count(access, model, job, reply, now_ms);
    if (!access->begun_ns)
        return;
    const struct bag_span_place *place = bag_http_access_place(access);
    if (place && place->sampled && strncmp(route, HEALTH_ROUTES, sizeof HEALTH_ROUTES - 1) != 0) {
        /* Export the span of the request. Only a status from 500 on makes it a failed span, as the
         * semantic conventions of HTTP servers say. */
        struct bag_span span = {.place = access->place,
                                .status = reply->status,
                                .bytes_in = access->received_bytes,
                                .bytes_out = reply->body_bytes};
        bag_trace_time(&span, access->begun_ns);
        snprintf(span.method, sizeof span.method, "%s", access->line->method);
        snprintf(span.path, sizeof span.path, "%s", bag_http_head_path(access->line->target));
        snprintf(span.route, sizeof span.route, "%s", route);
        snprintf(span.peer, sizeof span.peer, "%s", bag_http_peer_text(access->line->peer));
        snprintf(span.model, sizeof span.model, "%s", model ? model->name : "");
        if (reply->status >= 500)
            snprintf(span.error, sizeof span.error, "%d", reply->status);
        if (model && reply->status == 200)
            set_stages(job, span.end_ns - span.begin_ns, &span);
        bag_trace_add(access->trace, &span);
    }
    uint64_t took_us = (uv_hrtime() - access->begun_ns) / 1000;
    bool slow =
        options->slow_request_ms > 0 && took_us >= (uint64_t)options->slow_request_ms * 1000;
    if (slow || options->access_log == BAG_SWITCH_ON)
        log_request(access, model, job, reply, took_us, slow);
}

void bag_http_access_reject(const struct bag_option_values *options, struct bag_recorder *recorder,
                            int status, const char *reason)
{
    bag_metrics_on_answer(recorder, status, 0, 0);
    bag_metrics_on_rejection(recorder, NULL, bag_http_status_reason(status), NULL);
    if (options->access_log == BAG_SWITCH_ON)
        bag_log_often(BAG_LOG_LEVEL_INFO, "request", BAG_LOG_NUMBER("status", status),
                      BAG_LOG_TEXT("error", reason));
}
