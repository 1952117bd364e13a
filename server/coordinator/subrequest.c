/* One request to one shard: its attempts and its outcome; see subrequest.h. */
#include "subrequest.h"

#include "proto/shard.h"
#include "proto/v2_client.h"

#undef NDEBUG /* states are asserted in all builds */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No hedge is sent earlier than this. */
#define MIN_HEDGE_NS (UINT64_C(1000000))

/* ---- the set --------------------------------------------------------------------------------- */

/* Returns the remote table that a call pools. */
static const struct bag_remote *remote_of(const struct bag_subrequests *all,
                                          const struct bag_fanout_call *call)
{
    return all->infer->input.model->features[call->feature].memory->remote;
}

bool bag_subrequests_make(struct bag_subrequests *all)
{
    all->list = malloc((all->fanout.count + 1) * sizeof *all->list);
    for (size_t i = 0; all->list && i < all->fanout.count; i++) {
        struct bag_subrequest *subrequest = &all->list[i];
        struct bag_fanout_call *call = &all->fanout.calls[i];
        const struct bag_remote *remote = remote_of(all, call);
        subrequest->all = all;
        subrequest->call = call;
        subrequest->group = remote->group;
        subrequest->member = &remote->group->members[remote->addresses[call->shard]];
        subrequest->state = BAG_SUBREQUEST_UNSTARTED;
        subrequest->refusals = subrequest->num_attempts = 0;
        for (int j = 0; j < 2; j++) {
            subrequest->attempts[j].exchange.state = BAG_EXCHANGE_UNUSED;
            subrequest->attempts[j].exchange.owner = subrequest;
            subrequest->attempts[j].exchange.max_reply_bytes = call->max_reply_bytes;
        }
    }
    return all->list != NULL;
}

void bag_subrequests_free(struct bag_subrequests *all)
{
    for (size_t i = 0; all->list && i < all->fanout.count; i++)
        assert(!bag_subrequest_is_pending(&all->list[i]));
    bag_fanout_free(&all->fanout);
    free(all->list);
    all->list = NULL;
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* Outcomes of an attempt, in addition to enum bag_shard_outcome. */
enum {
    ATTEMPT_CANCELLED = BAG_SHARD_OUTCOME_COUNT, /* the inference ended first */
    ATTEMPT_UNNEEDED                             /* another attempt succeeded first */
};

/* Begins the span of an attempt, if the request is sampled. */
static void begin_span(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
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

/* Prints the traceparent header that the shard receives. */
static void print_traceparent(const struct bag_subrequest *subrequest,
                              const struct bag_attempt *attempt, char text[BAG_TRACEPARENT_BYTES])
{
    const struct bag_span_place place = place_of(subrequest, attempt);
    bag_traceparent_print(&place, text);
}

/* Exports the span of an attempt that ends with this outcome, if it has one. */
static void end_span(const struct bag_subrequest *subrequest, const struct bag_attempt *attempt,
                     unsigned outcome)
{
    if (!attempt->span)
        return;
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
    else if (outcome != BAG_SHARD_OK && outcome != ATTEMPT_UNNEEDED)
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

/* ---- ends ------------------------------------------------------------------------------------ */

/* Records the outcome of the subrequest and counts it for the shard. */
static void count(struct bag_subrequest *subrequest, enum bag_shard_outcome outcome)
{
    subrequest->outcome = outcome;
    atomic_fetch_add_explicit(&subrequest->member->outcomes[outcome], 1, memory_order_relaxed);
}

/* Returns the outcome of an attempt that is cancelled now. */
static unsigned cancel_outcome(const struct bag_subrequest *subrequest)
{
    const struct bag_subrequests *all = subrequest->all;
    if (subrequest->state == BAG_SUBREQUEST_ANSWERED)
        return ATTEMPT_UNNEEDED;
    return all->upstreams->clock_ns() >= all->deadline_ns ? BAG_SHARD_TIMEOUT : ATTEMPT_CANCELLED;
}

/* Enters a final state. Always returns true. */
static bool end(struct bag_subrequest *subrequest, enum bag_subrequest_state state)
{
    assert(bag_subrequest_is_pending(subrequest) && state > BAG_SUBREQUEST_HEDGED);
    subrequest->state = state;
    for (int i = 0; i < 2; i++) {
        struct bag_attempt *attempt = &subrequest->attempts[i];
        if (attempt->exchange.state == BAG_EXCHANGE_UNUSED)
            continue;
        end_span(subrequest, attempt, cancel_outcome(subrequest));
        bag_exchange_cancel(&attempt->exchange);
    }
    return true;
}

void bag_subrequest_cancel(struct bag_subrequest *subrequest)
{
    if (bag_subrequest_is_pending(subrequest))
        end(subrequest, BAG_SUBREQUEST_CANCELLED);
    else if (subrequest->state == BAG_SUBREQUEST_UNSTARTED)
        subrequest->state = BAG_SUBREQUEST_CANCELLED;
}

/* Returns whether an attempt is under way. */
static bool has_attempt(const struct bag_subrequest *subrequest)
{
    return subrequest->attempts[0].exchange.state != BAG_EXCHANGE_UNUSED ||
           subrequest->attempts[1].exchange.state != BAG_EXCHANGE_UNUSED;
}

/* Returns whether the rows of the shard count as missing after this outcome. */
static bool may_be_absent(const struct bag_subrequest *subrequest, enum bag_shard_outcome outcome)
{
    bool is_unavailable = outcome == BAG_SHARD_REFUSED || outcome == BAG_SHARD_CLOSED ||
                          outcome == BAG_SHARD_REJECTED ||
                          (outcome == BAG_SHARD_TIMEOUT && !subrequest->all->has_client_deadline);
    return is_unavailable && remote_of(subrequest->all, subrequest->call)->skips_absent;
}

/* Handles the failure of an attempt, which has ended, or of the whole subrequest at its deadline. A
 * failure has no consequence while another attempt is under way, except for outcomes that would be
 * the same for all attempts. Returns whether the subrequest has ended. */
static bool fail_for(struct bag_subrequest *subrequest, enum bag_shard_outcome outcome,
                     const struct bag_problem *problem)
{
    struct bag_subrequests *all = subrequest->all;
    assert(bag_subrequest_is_pending(subrequest));
    bag_buffers_put(subrequest->call->reply);
    subrequest->call->reply = NULL;
    subrequest->outcome = outcome;
    if (outcome == BAG_SHARD_INVALID)
        bag_upstreams_close_idle(all->upstreams, subrequest->member->host);
    if (has_attempt(subrequest) && outcome != BAG_SHARD_MISMATCH && outcome != BAG_SHARD_TIMEOUT)
        return false;
    count(subrequest, outcome);
    if (may_be_absent(subrequest, outcome)) {
        subrequest->call->is_absent = true;
        return end(subrequest, BAG_SUBREQUEST_ABSENT);
    }
    if (outcome == BAG_SHARD_MISMATCH)
        bag_shard_group_poll(subrequest->group);
    all->problem = *problem;
    return end(subrequest, BAG_SUBREQUEST_FAILED);
}

/* Returns the kind of problem that the client gets for an outcome. */
static enum bag_error kind_of(enum bag_shard_outcome outcome)
{
    if (outcome == BAG_SHARD_INVALID || outcome == BAG_SHARD_CLOSED)
        return BAG_ERROR_BAD_GATEWAY;
    return outcome == BAG_SHARD_TIMEOUT ? BAG_ERROR_SHARD_TIMEOUT : BAG_ERROR_SHARD_UNAVAILABLE;
}

static bool fail(struct bag_subrequest *subrequest, enum bag_shard_outcome outcome,
                 const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Handles a failure that is described by a sentence about the shard; see fail_for(). */
static bool fail(struct bag_subrequest *subrequest, enum bag_shard_outcome outcome,
                 const char *format, ...)
{
    struct bag_problem problem BAG_UNSET;
    char sentence[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    bag_problem_set(&problem, kind_of(outcome), "shard %s %s%s",
                    subrequest->member->host->address.text,
                    outcome == BAG_SHARD_REFUSED ? "is unavailable: " : "", sentence);
    return fail_for(subrequest, outcome, &problem);
}

bool bag_subrequest_expire(struct bag_subrequest *subrequest)
{
    return fail(subrequest, BAG_SHARD_TIMEOUT, "has not answered within %llu ms (%s)",
                (unsigned long long)(subrequest->all->timeout_us / 1000),
                subrequest->all->has_client_deadline ? "the request's timeout"
                                                     : "shard_timeout_ms");
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Starts an attempt, whose span begins while it may still wait for a connection. */
static void start_attempt(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    begin_span(subrequest, attempt);
    subrequest->num_attempts++;
    bag_exchange_start(&attempt->exchange, subrequest->all->upstreams, subrequest->group->shards,
                       subrequest->member->host);
}

bool bag_subrequest_start(struct bag_subrequest *subrequest)
{
    struct bag_attempt *attempt = &subrequest->attempts[0];
    const char *reason = bag_shard_member_unavailable(subrequest->member);
    assert(subrequest->state == BAG_SUBREQUEST_UNSTARTED);
    subrequest->state = BAG_SUBREQUEST_PENDING;
    if (!reason) {
        start_attempt(subrequest, attempt);
        return false;
    }
    attempt->exchange.reply.status = 0;
    begin_span(subrequest, attempt);
    end_span(subrequest, attempt, BAG_SHARD_REFUSED);
    return fail(subrequest, BAG_SHARD_REFUSED, "%s", reason);
}

/* Starts an attempt once more, unless the other one is under way. Returns false: the subrequest
 * goes on. */
static bool repeat(struct bag_subrequest *subrequest, struct bag_attempt *attempt,
                   enum bag_shard_outcome outcome)
{
    end_span(subrequest, attempt, outcome);
    if (!has_attempt(subrequest))
        start_attempt(subrequest, attempt);
    return false;
}

/* The first part of a request. It is truncated at its capacity. */
struct text {
    char *begin;
    size_t bytes;
};

/* Appends bytes, as many as there is room for. */
static void put_bytes(struct text *text, const char *from, size_t bytes)
{
    size_t left = BAG_EXCHANGE_TEXT_BYTES - text->bytes;
    size_t taken = bytes < left ? bytes : left;
    memcpy(text->begin + text->bytes, from, taken);
    text->bytes += taken;
}

/* Always inline, as most texts are constants: their lengths are, too. */
static inline __attribute__((always_inline)) void put(struct text *text, const char *from)
{
    put_bytes(text, from, strlen(from));
}

static void put_number(struct text *text, size_t value)
{
    char digits[BAG_DIGITS_BYTES];
    put_bytes(text, digits, (size_t)(bag_digits_put(digits, value) - digits));
}

static void put_line(struct text *text, const char *name, const char *value)
{
    put(text, name);
    put(text, value);
    put(text, "\r\n");
}

/* Returns the time until the deadline in microseconds, at least 1. */
static uint64_t remaining_us(const struct bag_subrequests *all)
{
    uint64_t now_ns = all->upstreams->clock_ns();
    return all->deadline_ns >= now_ns + 1000 ? (all->deadline_ns - now_ns) / 1000 : 1;
}

/* Sends the request of an attempt that has a connection: the head, the JSON of the body, which says
 * how much time remains, and the tensors. */
static bool send_attempt(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    const struct bag_fanout_call *call = subrequest->call;
    const size_t tensor_bytes = call->body_bytes - call->header_bytes;
    struct text text = {bag_exchange_text(&attempt->exchange), 0};
    char json[BAG_SHARD_TIMED_BYTES] BAG_UNSET;
    size_t json_bytes = bag_shard_request_timed(call->body, call->header_bytes,
                                                remaining_us(subrequest->all), json);
    subrequest->refusals = 0;
    /* Write the request line and the Host. */
    const struct bag_shard_address *address = &subrequest->member->host->address;
    const struct bag_remote *remote = remote_of(subrequest->all, subrequest->call);
    put(&text, "POST ");
    put_bytes(&text, address->url.path.data, address->url.path.bytes);
    put(&text, "/v2/models/");
    put(&text, remote->model);
    put(&text, "/versions/");
    put(&text, remote->version);
    put_line(&text, "/infer HTTP/1.1\r\nHost: ", address->url.authority);
    put(&text, "Content-Type: application/octet-stream\r\nContent-Length: ");
    put_number(&text, json_bytes + tensor_bytes);
    put(&text, "\r\nInference-Header-Content-Length: ");
    put_number(&text, json_bytes);
    put(&text, "\r\n");
    /* Write the token of the group and the trace. */
    const char *token_file = subrequest->group->config.shard_token_file;
    char token[BAG_SHARD_TOKEN_BYTES] BAG_UNSET;
    char traceparent[BAG_TRACEPARENT_BYTES] BAG_UNSET;
    *token = 0;
    if (token_file && *token_file)
        bag_shard_group_token(subrequest->group, token);
    if (*token)
        put_line(&text, "Authorization: Bearer ", token);
    if (attempt->span) {
        print_traceparent(subrequest, attempt, traceparent);
        put_line(&text, "traceparent: ", traceparent);
    } else if (subrequest->all->traceparent) {
        put_line(&text, "traceparent: ", subrequest->all->traceparent);
    }
    put(&text, "\r\n");
    put_bytes(&text, json, json_bytes);
    if (text.bytes < BAG_EXCHANGE_TEXT_BYTES) { /* otherwise it may be truncated */
        bag_exchange_send(&attempt->exchange, text.bytes, call->body + call->header_bytes,
                          tensor_bytes);
        return false;
    }
    end_span(subrequest, attempt, BAG_SHARD_INVALID);
    bag_exchange_cancel(&attempt->exchange);
    return fail(subrequest, BAG_SHARD_INVALID,
                "has an address, and the client a traceparent, too long to ask");
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Handles a reply of status 200. Its latency counts from the start of the inference, as the time of
 * a hedge does. */
static bool on_success(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    struct bag_subrequests *all = subrequest->all;
    struct bag_problem problem BAG_UNSET;
    size_t call = (size_t)(subrequest->call - all->fanout.calls);
    if (bag_fanout_check(&all->fanout, call, &problem)) {
        end_span(subrequest, attempt, BAG_SHARD_OK);
        count(subrequest, BAG_SHARD_OK);
        bag_shard_latency_add(&subrequest->member->latency,
                              attempt->exchange.ended_ns - all->started_ns);
        return end(subrequest, BAG_SUBREQUEST_ANSWERED);
    }
    bool is_lack = problem.kind == BAG_ERROR_NO_MEMORY;
    end_span(subrequest, attempt, is_lack ? BAG_SHARD_NO_RESOURCES : BAG_SHARD_INVALID);
    return is_lack ? fail_for(subrequest, BAG_SHARD_NO_RESOURCES, &problem)
                   : fail(subrequest, BAG_SHARD_INVALID, "%s", problem.text);
}

/* Returns the outcome that a status other than 200 stands for. */
static enum bag_shard_outcome outcome_of_status(int status)
{
    switch (status) {
    case 404:
    case 409:
        return BAG_SHARD_MISMATCH;
    case 408:
    case 429:
    case 503:
    case 504:
    case 507:
        return BAG_SHARD_REJECTED;
    default:
        return BAG_SHARD_INVALID;
    }
}

/* Handles a reply of another status. A 400 may be about an id of the client's that only a shard can
 * judge; the subrequest then ends with the client's error. A shard that gives up the request when
 * its time is over counts as late. */
static bool on_error(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    struct bag_subrequests *all = subrequest->all;
    const struct bag_fanout_call *call = subrequest->call;
    const int status = attempt->exchange.reply.status;
    struct bag_problem problem BAG_UNSET;
    char sentence[200];
    if (status == 400 &&
        bag_fanout_find_client_error(&all->fanout, (size_t)(subrequest->call - all->fanout.calls),
                                     &problem)) {
        end_span(subrequest, attempt, BAG_SHARD_OK);
        count(subrequest, BAG_SHARD_OK);
        all->problem = problem;
        return end(subrequest, BAG_SUBREQUEST_FAILED);
    }
    if (all->upstreams->clock_ns() >= all->deadline_ns) {
        end_span(subrequest, attempt, BAG_SHARD_TIMEOUT);
        return bag_subrequest_expire(subrequest);
    }
    const enum bag_shard_outcome outcome = outcome_of_status(status);
    bag_client_read_error(call->reply, call->reply_bytes, sentence, sizeof sentence);
    end_span(subrequest, attempt, outcome);
    return fail(subrequest, outcome, "answered %d%s%s", status, *sentence ? ": " : "", sentence);
}

/* Handles a complete reply. The shard is available, whatever it has replied. */
static bool on_reply(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    struct bag_exchange *exchange = &attempt->exchange;
    struct bag_fanout_call *call = subrequest->call;
    bag_shard_host_set_unavailable(subrequest->member->host, false);
    call->reply = exchange->body;
    exchange->body = NULL;
    call->reply_bytes = (size_t)exchange->reply.body_bytes;
    call->reply_header_bytes = (size_t)exchange->reply.json_bytes;
    return exchange->reply.status == 200 ? on_success(subrequest, attempt)
                                         : on_error(subrequest, attempt);
}

/* Repeats the attempt once after a refusal: the shard may be restarting, and its name may have
 * another address that listens. */
static bool on_refused(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    const int error = attempt->exchange.error;
    if (subrequest->refusals++ == 0)
        return repeat(subrequest, attempt, BAG_SHARD_REFUSED);
    if (error != EAGAIN) { /* EAGAIN: the shard is overloaded, but it is available */
        bag_shard_host_set_unavailable(subrequest->member->host, true);
        bag_shard_group_poll(subrequest->group);
    }
    end_span(subrequest, attempt, BAG_SHARD_REFUSED);
    return fail(subrequest, BAG_SHARD_REFUSED, "%s", strerror(error));
}

/* Handles an exchange for which this server lacks descriptors or memory. The shard does not count
 * as absent. */
static bool on_lack(struct bag_subrequest *subrequest, struct bag_attempt *attempt)
{
    const struct bag_exchange *exchange = &attempt->exchange;
    struct bag_problem problem BAG_UNSET;
    if (exchange->result == BAG_EXCHANGE_NO_BUFFER)
        bag_budget_reject(subrequest->all->upstreams->buffers->budget, "a shard's answer",
                          (size_t)exchange->reply.body_bytes, &problem);
    else
        bag_problem_set(
            &problem, BAG_ERROR_NO_MEMORY, "this server has no %s left to ask shard %s with: %s",
            exchange->error == EMFILE || exchange->error == ENFILE ? "descriptors" : "memory",
            subrequest->member->host->address.text, strerror(exchange->error));
    end_span(subrequest, attempt, BAG_SHARD_NO_RESOURCES);
    return fail_for(subrequest, BAG_SHARD_NO_RESOURCES, &problem);
}

/* Ends an attempt without a reply and fails the subrequest with a sentence about the shard. */
static bool on_lost(struct bag_subrequest *subrequest, struct bag_attempt *attempt,
                    enum bag_shard_outcome outcome, const char *sentence)
{
    end_span(subrequest, attempt, outcome);
    return fail(subrequest, outcome, "%s", sentence);
}

bool bag_subrequest_on_event(struct bag_subrequest *subrequest, struct bag_exchange *exchange)
{
    struct bag_attempt *attempt =
        (struct bag_attempt *)((char *)exchange - offsetof(struct bag_attempt, exchange));
    assert(bag_subrequest_is_pending(subrequest));
    if (exchange->state == BAG_EXCHANGE_RUNNING)
        return send_attempt(subrequest, attempt);
    assert(exchange->state == BAG_EXCHANGE_UNUSED);
    switch (exchange->result) {
    case BAG_EXCHANGE_REPLIED:
        return on_reply(subrequest, attempt);
    case BAG_EXCHANGE_REFUSED:
        return on_refused(subrequest, attempt);
    case BAG_EXCHANGE_STALE:
        return repeat(subrequest, attempt, BAG_SHARD_CLOSED);
    case BAG_EXCHANGE_UNRESOLVED:
        return on_lost(subrequest, attempt, BAG_SHARD_REFUSED, "its name does not resolve");
    case BAG_EXCHANGE_UNCONNECTED:
        return on_lost(subrequest, attempt, BAG_SHARD_REFUSED, strerror(exchange->error));
    case BAG_EXCHANGE_CLOSED:
        return on_lost(subrequest, attempt, BAG_SHARD_CLOSED,
                       exchange->has_begun ? "closed the connection in the middle of its answer"
                                           : "closed the connection without an answer");
    case BAG_EXCHANGE_UNPOLLED:
        return on_lost(subrequest, attempt, BAG_SHARD_CLOSED,
                       "cannot be polled: not enough memory");
    case BAG_EXCHANGE_INVALID:
        return on_lost(subrequest, attempt, BAG_SHARD_INVALID, exchange->why);
    case BAG_EXCHANGE_NO_RESOURCES:
    case BAG_EXCHANGE_NO_BUFFER:
        return on_lack(subrequest, attempt);
    }
    __builtin_unreachable();
}

/* ---- hedges ---------------------------------------------------------------------------------- */

uint64_t bag_subrequest_hedge_ns(const struct bag_subrequest *subrequest)
{
    if (subrequest->state != BAG_SUBREQUEST_PENDING ||
        subrequest->attempts[0].exchange.state == BAG_EXCHANGE_WAITING ||
        subrequest->group->config.hedge == BAG_SHARD_HEDGE_OFF)
        return UINT64_MAX;
    uint64_t p95_ns = bag_shard_latency_p95_ns(&subrequest->member->latency);
    if (p95_ns == UINT64_MAX)
        return UINT64_MAX;
    return subrequest->all->started_ns + (p95_ns > MIN_HEDGE_NS ? p95_ns : MIN_HEDGE_NS);
}

/* Returns whether hedges are less than a tenth of the shard's replies: a shard that is slow for all
 * requests must not get twice as many. */
static bool may_hedge(const struct bag_shard_member *member)
{
    return atomic_load_explicit(&member->outcomes[BAG_SHARD_HEDGED], memory_order_relaxed) * 10 <=
           atomic_load_explicit(&member->outcomes[BAG_SHARD_OK], memory_order_relaxed);
}

void bag_subrequest_hedge(struct bag_subrequest *subrequest)
{
    assert(subrequest->state == BAG_SUBREQUEST_PENDING);
    subrequest->state = BAG_SUBREQUEST_HEDGED;
    if (!may_hedge(subrequest->member))
        return;
    count(subrequest, BAG_SHARD_HEDGED);
    start_attempt(subrequest, &subrequest->attempts[1]);
}
