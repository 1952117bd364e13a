/* Tracing: sends sampled requests as spans to a collector, with OTLP over HTTP in JSON.
 *
 * A span is the record of one request: its times, its result, and its place in a trace, which is a
 * tree of spans over several services. The client may send the place of its own span in the header
 * traceparent. The spans of this server then appear below it in the trace.
 *
 * Life of a span. A loop calls bag_trace_place() when a request arrives. This decides whether the
 * request is sampled: a traceparent decides, and chance does (trace_sample) if there is none. When
 * the request ends, the loop fills in the span and calls bag_trace_add(), which copies it to a
 * queue. One thread takes all queued spans once a second, or as soon as a batch is complete. It
 * prints them as JSON and posts them, at most 512 in a request, over a new connection.
 *
 * Nothing waits for the collector. The queue has a fixed size, and the number of spans in one
 * second is limited. Spans that do not fit or cannot be delivered are dropped and counted; they are
 * not sent again. A slow or unavailable collector has no other effect. Clients that request many
 * spans by traceparent cannot use up all of a second: a quarter remains for spans that chance has
 * sampled.
 *
 * Two arrays of spans are exchanged under the lock: loops fill one while the thread sends the
 * other. A loop therefore never waits while JSON is printed or sent. The thread uses blocking
 * sockets with deadlines. */
#pragma once

#include "proto/otlp.h"
#include "proto/problem.h"

#include <stdatomic.h>

/* The capacity of the queue, and the maximum number of spans taken in one second. */
#define BAG_TRACE_WAITING    2048
#define BAG_TRACE_PER_SECOND 1000

/* The maximum number of spans in one second that clients request by traceparent. The rest of
 * BAG_TRACE_PER_SECOND is left to spans that are sampled by chance. */
#define BAG_TRACE_ASKED_PER_SECOND 750

struct bag_trace;

/* Starts the thread. `endpoint` must be a valid URL and is copied; /v1/traces is appended to a path
 * that does not end with it. `resource` is the text of bag_otlp_resource() and is copied. `sample`
 * is the fraction of requests that chance samples, from 0 to 1. Returns NULL and sets *problem if
 * the thread cannot be started, or without memory. */
struct bag_trace *bag_trace_start(const char *endpoint, double sample, const char *resource,
                                  struct bag_problem *problem);

/* Sends the queued spans, ends the thread and frees `trace`. No other thread may add spans any
 * more. If that takes more than two seconds, the thread is left running until the process ends, and
 * nothing is freed. NULL is ignored. */
void bag_trace_stop(struct bag_trace *trace);

/* Returns the place of a request's span in its trace, and whether the request is sampled. A
 * traceparent decides that. If `traceparent` is NULL or malformed, chance decides. If the
 * traceparent says that the request is not sampled, the id is 0. Any thread may call this and the
 * next two functions; they use no lock. */
struct bag_span_place bag_trace_place(struct bag_trace *trace, const char *traceparent);

/* Returns a new span id, which is never 0. */
uint64_t bag_trace_id(struct bag_trace *trace);

/* Sets the span's times: it began at `begun_ns` on uv_hrtime's clock and ends now. */
void bag_trace_time(struct bag_span *span, uint64_t begun_ns);

/* Adds a copy of a span to the queue, or drops the span if it does not fit. May be called on any
 * thread. */
void bag_trace_add(struct bag_trace *trace, const struct bag_span *span);

/* Returns the counter of dropped spans. Any thread may read it, until bag_trace_stop frees it. */
const atomic_ullong *bag_trace_dropped(const struct bag_trace *trace);
