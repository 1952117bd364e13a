/* An answer -> the metrics and the log; see record.h. */
#include "record.h"

#include "errors.h"

static void record_success(struct bag_http_server *server, const struct bag_infer *infer)
{
    struct bag_metrics_work work = {.bags = infer->plan.work.bags,
                                    .rows = infer->plan.work.rows,
                                    .bytes = infer->plan.work.bytes,
                                    .defaults = infer->default_bags,
                                    .watch = &infer->watch,
                                    .now_ms = uv_now(server->loop)};
    bag_metrics_on_success(server->recorder, infer->model, &work);
}

static void count(struct bag_http_server *server, const struct bag_job *job,
                  const struct bag_http_access *access, const struct bag_http_reply *reply)
{
    if (!server->recorder)
        return;
    bag_metrics_on_answer(server->recorder, reply->status, access->received_bytes,
                          reply->body_bytes);
    if (reply->status >= 400)
        bag_metrics_on_rejection(server->recorder, job->infer.model,
                                 bag_http_error_reason(reply->error));
    else if (job->infer.model)
        record_success(server, &job->infer);
}

void bag_http_record(struct bag_http_server *server, const struct bag_job *job,
                     const struct bag_http_access *access, struct bag_http_reply *reply)
{
    count(server, job, access, reply);
    bag_http_access_end(access, &server->service->config->options, job, reply);
}
