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

/* Where in a trace a span is. */
struct bag_span_place {
    struct bag_trace_id trace;
    uint64_t id, parent; /* parent 0: none */
    bool sampled;        /* otherwise nobody exports it */
    bool is_asked;       /* the client's traceparent says that it is sampled */
};

/* Writes the header by which others hang their spans below the one that is there. */
#define BAG_TRACEPARENT_BYTES 56 /* with the NUL */
void bag_traceparent_print(const struct bag_span_place *place, char text[BAG_TRACEPARENT_BYTES]);

/* What an inference does one after the other. X(member, "name") */
#define BAG_SPAN_STAGES(X) \
    X(read, "read")        \
    X(wait, "wait")        \
    X(pool, "pool")        \
    X(write, "write")

/* One request that this server answers or, as a client, sends to a shard. Texts are truncated, and
 * may be any bytes. */
struct bag_span {
    struct bag_span_place place;
    uint64_t begin_ns, end_ns; /* since 1970 */
    bool is_client;
    char method[16];
    char path[384];             /* without its query; a client's: the whole URL */
    char route[64];             /* the path's pattern; empty: there is none */
    char peer[256];             /* who asks: address and port, or "unix"; a client's: whom it asks,
                                   a host's name or the path of a socket */
    char model[129], error[32]; /* empty: none; with an error the span has failed */
    int status;                 /* a client's: 0: it had no answer */
    uint64_t bags, ids;         /* a client's, and where `pooled` */
    /* A server's alone. */
    uint64_t bytes_in, bytes_out; /* of the bodies */
    bool pooled;                  /* bags, ids and stages hold */
#define BAG_X(member, name) uint64_t member##_ns;
    BAG_SPAN_STAGES(BAG_X)
#undef BAG_X
    /* A client's alone. */
    int port;           /* 0: none */
    unsigned resends;   /* the request was sent so often before */
    bool is_hedge;      /* it was sent beside one that was late */
    uint64_t shard;     /* whose number it is */
    const char *became; /* what became of it; static */
};

/* The body of a POST, for the caller to free; NULL without memory. */
char *bag_otlp_print(const struct bag_span *spans, size_t count, const char *version);

/* A fraction from 0 to 1, as the option trace_sample has it; false for another text. */
bool bag_fraction_parse(const char *text, double *fraction);

#endif
