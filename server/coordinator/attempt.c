/* The spans of a sampled request's calls: one for each time that a call is sent, below the
 * request's own; see remote_infer.h. */
#include "remote_infer.h"

#include <stdio.h>

struct bag_attempt bag_attempt_begin(struct bag_subrequest *subrequest)
{
    const struct bag_remote_infer *run = subrequest->run;
    if (!run->place)
        return (struct bag_attempt){0};
    return (struct bag_attempt){.id = bag_trace_id(run->trace),
                                .begun_ns = uv_hrtime(),
                                .number = subrequest->sends++,
                                .is_hedge = subrequest->is_hedged};
}

static struct bag_span_place place_of(const struct bag_attempt *attempt,
                                      const struct bag_remote_infer *run)
{
    struct bag_span_place place = *run->place;
    place.parent = place.id;
    place.id = attempt->id;
    return place;
}

void bag_attempt_print_traceparent(const struct bag_attempt *attempt,
                                   const struct bag_remote_infer *run,
                                   char text[BAG_TRACEPARENT_BYTES])
{
    const struct bag_span_place place = place_of(attempt, run);
    bag_traceparent_print(&place, text);
}

/* Whom it asks, and for what. */
static void set_target(const struct bag_subrequest *subrequest, struct bag_span *span)
{
    const struct bag_remote_infer *run = subrequest->run;
    const struct bag_fanout_call *call = &run->fanout.calls[subrequest - run->subrequests];
    const struct bag_remote *remote =
        run->infer->input.model->features[call->feature].memory->remote;
    const struct bag_shard_address *address =
        &subrequest->group->members[subrequest->member].host->address;
    const char *route = "/v2/models/{model}/versions/{version}/infer";
    snprintf(span->method, sizeof span->method, "POST");
    snprintf(span->path, sizeof span->path, "http://%s%.*s/v2/models/%s/versions/%s/infer",
             address->url.authority, (int)address->url.path.bytes, address->url.path.data,
             remote->model, remote->version);
    snprintf(span->route, sizeof span->route, "%s", route);
    snprintf(span->peer, sizeof span->peer, "%s",
             address->socket ? address->socket : address->url.host);
    snprintf(span->model, sizeof span->model, "%s", remote->model);
    span->port = address->url.port;
    span->shard = call->shard;
    span->bags = call->num_bags;
    span->ids = call->num_ids;
}

void bag_attempt_export(const struct bag_attempt *attempt, const struct bag_subrequest *subrequest,
                        int status, unsigned became)
{
#define BAG_X(id, label) label,
    static const char *const labels[] = {BAG_SHARD_OUTCOMES(BAG_X) "cancelled", "unneeded"};
#undef BAG_X
    const struct bag_remote_infer *run = subrequest->run;
    struct bag_span span = {.place = place_of(attempt, run),
                            .is_client = true,
                            .status = status,
                            .resends = attempt->number,
                            .is_hedge = attempt->is_hedge,
                            .became = labels[became]};
    if (status >= 400)
        snprintf(span.error, sizeof span.error, "%d", status);
    else if (became != BAG_SHARD_OK && became != BAG_ATTEMPT_UNNEEDED)
        snprintf(span.error, sizeof span.error, "%s", span.became);
    set_target(subrequest, &span);
    bag_trace_time(&span, attempt->begun_ns);
    bag_trace_add(run->trace, &span);
}

void bag_attempt_record_unsent(struct bag_subrequest *subrequest, unsigned became)
{
    struct bag_attempt attempt = bag_attempt_begin(subrequest);
    if (subrequest->is_waiting)
        attempt.begun_ns = subrequest->begun_ns;
    bag_attempt_end(&attempt, subrequest, 0, became);
}

unsigned bag_attempt_cancel_outcome(const struct bag_subrequest *subrequest)
{
    const struct bag_remote_infer *run = subrequest->run;
    if (subrequest->is_done && subrequest->outcome == BAG_SHARD_OK)
        return BAG_ATTEMPT_UNNEEDED;
    return uv_hrtime() >= run->deadline_ns ? BAG_SHARD_LATE : BAG_ATTEMPT_CANCELLED;
}
