/* Sampled requests as spans, sent to a collector by a thread of its own: OTLP over HTTP, in JSON.
 *
 * Loops add spans, which wait in a bounded list; what does not fit, or cannot be delivered, is
 * dropped and counted. A slow or dead collector costs nothing else. */
#ifndef BAG_TRACE_H
#define BAG_TRACE_H

#include "proto/otlp.h"
#include "proto/problem.h"

#include <stdatomic.h>

/* Spans that wait, and the most that are taken in one second, whoever asks for them. */
#define BAG_TRACE_WAITING    2048
#define BAG_TRACE_PER_SECOND 1000

/* The most of them that clients' traceparents ask for: the others are left to trace_sample. */
#define BAG_TRACE_ASKED_PER_SECOND 750

struct bag_trace;

/* Starts the thread; the endpoint is a valid URL, and is copied. NULL with *problem. */
struct bag_trace *bag_trace_start(const char *endpoint, double sample, const char *version,
                                  struct bag_problem *problem);

/* Sends what waits and ends the thread, when nobody adds spans any more. Where that takes more than
 * two seconds, it is left to the end of the process. NULL is ignored. */
void bag_trace_stop(struct bag_trace *trace);

/* Where a request's span is, and whether it is sampled: as its traceparent says (NULL: it has
 * none), or by chance. Where that says that it is not, no place is needed: its id is 0. Any thread,
 * without a lock, as the next two. */
struct bag_span_place bag_trace_place(struct bag_trace *trace, const char *traceparent);

/* Of one more span; never 0. */
uint64_t bag_trace_id(struct bag_trace *trace);

/* The span, which began at that time on uv_hrtime's clock, ends now. */
void bag_trace_time(struct bag_span *span, uint64_t begun_ns);

/* Any thread. */
void bag_trace_add(struct bag_trace *trace, const struct bag_span *span);

/* Spans that were dropped so far. */
const atomic_ullong *bag_trace_dropped(const struct bag_trace *trace);

#endif
