/* Tracing: sends sampled requests as spans to a collector, with OTLP over HTTP in JSON.
 *
 * Loops add spans to a queue of limited size, and one thread sends them in batches. Spans that do
 * not fit or cannot be delivered are dropped and counted. A slow or unavailable collector has no
 * other effect. */
#ifndef BAG_TRACE_H
#define BAG_TRACE_H

#include "proto/otlp.h"
#include "proto/problem.h"

#include <stdatomic.h>

/* The capacity of the queue, and the maximum number of spans taken in one second. */
#define BAG_TRACE_WAITING    2048
#define BAG_TRACE_PER_SECOND 1000

/* The maximum number of spans in one second that clients request by traceparent. The others are
 * left to trace_sample. */
#define BAG_TRACE_ASKED_PER_SECOND 750

struct bag_trace;

/* Starts the thread. `endpoint` must be a valid URL and is copied. Returns NULL and sets *problem
 * if the thread cannot be started. */
struct bag_trace *bag_trace_start(const char *endpoint, double sample, const char *version,
                                  struct bag_problem *problem);

/* Sends the queued spans and ends the thread. No other thread may add spans any more. If that takes
 * more than two seconds, the thread is left running until the process ends. NULL is ignored. */
void bag_trace_stop(struct bag_trace *trace);

/* Returns the place of a request's span in its trace, and whether the request is sampled. A
 * traceparent decides that, or chance if `traceparent` is NULL. If the traceparent says that the
 * request is not sampled, the id is 0. Any thread may call this and the next two functions; they
 * use no lock. */
struct bag_span_place bag_trace_place(struct bag_trace *trace, const char *traceparent);

/* Returns a new span id, which is never 0. */
uint64_t bag_trace_id(struct bag_trace *trace);

/* Sets the span's times: it began at `begun_ns` on uv_hrtime's clock and ends now. */
void bag_trace_time(struct bag_span *span, uint64_t begun_ns);

/* Adds a span to the queue. May be called on any thread. */
void bag_trace_add(struct bag_trace *trace, const struct bag_span *span);

/* Returns the number of dropped spans. */
const atomic_ullong *bag_trace_dropped(const struct bag_trace *trace);

#endif
