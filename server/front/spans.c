/* The spans of a sampled request's calls: one for each time that a call is sent, below the
 * request's own; see trip.h. */
#include "trip.h"

#include <stdio.h>

struct bag_front_attempt bag_front_attempt_begin(struct bag_errand *errand)
{
    const struct bag_trip *trip = errand->trip;
    if (!trip->place)
        return (struct bag_front_attempt){0};
    return (struct bag_front_attempt){.id = bag_trace_id(trip->trace),
                                      .begun_ns = uv_hrtime(),
                                      .number = errand->sends++,
                                      .is_hedge = errand->is_hedged};
}

static struct bag_span_place place_of(const struct bag_front_attempt *attempt,
                                      const struct bag_trip *trip)
{
    struct bag_span_place place = *trip->place;
    place.parent = place.id;
    place.id = attempt->id;
    return place;
}

void bag_front_attempt_print(const struct bag_front_attempt *attempt, const struct bag_trip *trip,
                             char text[BAG_TRACEPARENT_BYTES])
{
    const struct bag_span_place place = place_of(attempt, trip);
    bag_traceparent_print(&place, text);
}

/* Whom it asks, and for what. */
static void set_target(const struct bag_errand *errand, struct bag_span *span)
{
    const struct bag_trip *trip = errand->trip;
    const struct bag_fanout_call *call = &trip->fanout.calls[errand - trip->errands];
    const struct bag_remote *remote =
        trip->infer->input.model->features[call->feature].memory->remote;
    const struct bag_shard_address *address = &errand->group->members[errand->member].host->address;
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

void bag_front_attempt_export(const struct bag_front_attempt *attempt,
                              const struct bag_errand *errand, int status, unsigned became)
{
#define BAG_X(id, label) label,
    static const char *const labels[] = {BAG_SHARD_OUTCOMES(BAG_X) "cancelled", "unneeded"};
#undef BAG_X
    const struct bag_trip *trip = errand->trip;
    struct bag_span span = {.place = place_of(attempt, trip),
                            .is_client = true,
                            .status = status,
                            .resends = attempt->number,
                            .is_hedge = attempt->is_hedge,
                            .became = labels[became]};
    if (status >= 400)
        snprintf(span.error, sizeof span.error, "%d", status);
    else if (became != BAG_SHARD_OK && became != BAG_FRONT_UNNEEDED)
        snprintf(span.error, sizeof span.error, "%s", span.became);
    set_target(errand, &span);
    bag_trace_time(&span, attempt->begun_ns);
    bag_trace_add(trip->trace, &span);
}

void bag_front_attempt_miss(struct bag_errand *errand, unsigned became)
{
    struct bag_front_attempt attempt = bag_front_attempt_begin(errand);
    if (errand->is_waiting)
        attempt.begun_ns = errand->begun_ns;
    bag_front_attempt_end(&attempt, errand, 0, became);
}

unsigned bag_front_attempt_left(const struct bag_errand *errand)
{
    const struct bag_trip *trip = errand->trip;
    if (errand->is_done && errand->outcome == BAG_SHARD_OK)
        return BAG_FRONT_UNNEEDED;
    return uv_hrtime() >= trip->deadline_ns ? BAG_SHARD_LATE : BAG_FRONT_CANCELLED;
}
