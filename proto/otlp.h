/* Traces: the caller's header (W3C Trace Context), and spans as OTLP over HTTP takes them, in JSON.
 */
#ifndef BAG_OTLP_H
#define BAG_OTLP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Behind an endpoint. */
#define BAG_OTLP_PATH "/v1/traces"

struct bag_trace_id {
    uint64_t high, low; /* not both 0 */
};

/* What traceparent says. */
struct bag_traceparent {
    struct bag_trace_id trace;
    uint64_t parent; /* the caller's span */
    bool sampled;
};

/* Reads "00-TRACE-PARENT-FLAGS", in lower-case hexadecimal digits; of later versions what version
 * 00 has. False for another text. */
bool bag_traceparent_parse(const char *text, struct bag_traceparent *parent);

/* What an inference does one after the other. X(member, "name") */
#define BAG_SPAN_STAGES(X) \
    X(read, "read")        \
    X(wait, "wait")        \
    X(pool, "pool")        \
    X(write, "write")

/* One request. Texts are truncated, and may be any bytes. */
struct bag_span {
    struct bag_trace_id trace;
    uint64_t id, parent;        /* parent 0: none */
    uint64_t begin_ns, end_ns;  /* since 1970 */
    char method[16], path[256]; /* the path without its query */
    char route[64];             /* the route's pattern; empty: there is none */
    char client[64];            /* address and port, or "unix" */
    char model[129], error[32]; /* empty: none */
    int status;
    uint64_t bytes_in, bytes_out;
    bool pooled; /* what follows holds */
    uint64_t bags, ids;
#define BAG_X(member, name) uint64_t member##_ns;
    BAG_SPAN_STAGES(BAG_X)
#undef BAG_X
};

/* The body of a POST, for the caller to free; NULL without memory. */
char *bag_otlp_print(const struct bag_span *spans, size_t count, const char *version);

/* A fraction from 0 to 1, as the option trace_sample has it; false for another text. */
bool bag_fraction_parse(const char *text, double *fraction);

#endif
