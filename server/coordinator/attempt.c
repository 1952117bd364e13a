/* Spans of attempts: one below the span of the request for each time that a subrequest is sent; see
 * subrequest.h. */
#include "subrequest.h"

#include <stdio.h>

void bag_attempt_begin(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    attempt->span = 0;
    if (!subrequest->all->place)
        return;
    attempt->span = bag_trace_id(subrequest->all->trace);
    attempt->started_ns = uv_hrtime();
    attempt->number = subrequest->num_attempts;
}

/* Returns the place of the attempt's span, whose parent is the span of the request. */
static struct bag_span_place place_of(const struct bag_subrequest *subrequest,
                                      const struct bag_attempt *attempt)
{
    struct bag_span_place place = *subrequest->all->place;
    place.parent = place.id;
    place.id = attempt->span;
    return place;
}

void bag_attempt_print_traceparent(const struct bag_subrequest *subrequest,
                                   const struct bag_attempt *attempt,
                                   char text[BAG_TRACEPARENT_BYTES])
{
    const struct bag_span_place place = place_of(subrequest, attempt);
    bag_traceparent_print(&place, text);
}

void bag_attempt_export(const struct bag_subrequest *subrequest, const struct bag_attempt *attempt,
                        unsigned outcome)
{
    static const char *const labels[] = {BAG_SHARD_OUTCOMES(BAG_NAME) "cancelled", "unneeded"};
    const int status = attempt->exchange.reply.status;
    struct bag_span span = {.place = place_of(subrequest, attempt),
                            .is_client = true,
                            .status = status,
                            .resends = attempt->number,
                            .is_hedge = attempt == &subrequest->attempts[1],
                            .became = labels[outcome]};
    /* An attempt that is no longer needed does not count as an error. */
    if (status >= 400)
        snprintf(span.error, sizeof span.error, "%d", status);
    else if (outcome != BAG_SHARD_OK && outcome != BAG_ATTEMPT_UNNEEDED)
        snprintf(span.error, sizeof span.error, "%s", span.became);
    /* Describe the shard and the request. */
    const struct bag_fanout_call *call = subrequest->call;
    const struct bag_remote *remote =
        subrequest->all->infer->input.model->features[call->feature].memory->remote;
    const struct bag_shard_address *address = &subrequest->member->host->address;
    const char *route = "/v2/models/{model}/versions/{version}/infer";
    snprintf(span.method, sizeof span.method, "POST");
    snprintf(span.path, sizeof span.path, "http://%s%.*s/v2/models/%s/versions/%s/infer",
             address->url.authority, (int)address->url.path.bytes, address->url.path.data,
             remote->model, remote->version);
    snprintf(span.route, sizeof span.route, "%s", route);
    snprintf(span.peer, sizeof span.peer, "%s",
             address->socket ? address->socket : address->url.host);
    snprintf(span.model, sizeof span.model, "%s", remote->model);
    span.port = address->url.port;
    span.shard = call->shard;
    span.bags = call->num_bags;
    span.ids = call->num_ids;
    bag_trace_time(&span, attempt->started_ns);
    bag_trace_add(subrequest->all->trace, &span);
}
