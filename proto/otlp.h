/* Traces: the traceparent header (W3C Trace Context), and spans in the JSON form of OTLP over HTTP.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The path that is appended to an endpoint that does not end with it. */
#define BAG_OTLP_PATH "/v1/traces"

struct bag_trace_id {
    uint64_t high, low; /* not both 0 */
};

/* The identity of a span, and its parent. */
struct bag_span_place {
    struct bag_trace_id trace;
    uint64_t id, parent; /* parent 0: none */
    bool sampled;        /* false: the span is not exported */
    bool is_asked;       /* the client's traceparent says that it is sampled */
};

/* Parses "00-TRACE-PARENT-FLAGS" in lower-case hexadecimal digits, and sets the trace, the parent
 * and `sampled` of *place. Reads the same members from later versions. Returns false if the text is
 * anything else. */
bool bag_traceparent_parse(const char *text, struct bag_span_place *place);

/* Writes the traceparent header for requests whose spans become children of this one. */
#define BAG_TRACEPARENT_BYTES 56 /* with the NUL */
void bag_traceparent_print(const struct bag_span_place *place, char text[BAG_TRACEPARENT_BYTES]);

/* The stages of an inference, in order. X(member, "name") */
#define BAG_SPAN_STAGES(X) \
    X(read, "read")        \
    X(wait, "wait")        \
    X(pool, "pool")        \
    X(write, "write")

/* One request that this server answers or that it sends to a shard as a client. Texts are truncated
 * and may contain any bytes. */
struct bag_span {
    struct bag_span_place place;
    uint64_t begin_ns, end_ns; /* since 1970 */
    bool is_client;
    char method[16];
    char path[384];             /* without the query; of a client's span the whole URL */
    char route[64];             /* pattern of the path; empty: none */
    char peer[256];             /* client address and port, or "unix"; of a client's span the
                                   server: a host name or the path of a socket */
    char model[129], error[32]; /* empty: none; a span with an error has failed */
    int status;                 /* in a client's span 0: no reply */
    uint64_t bags, ids;         /* set in a client's span, or if `pooled` */
    /* Members of a server's span. */
    uint64_t bytes_in, bytes_out; /* sizes of the bodies */
    bool pooled;                  /* bags, ids and stages are set */
#define BAG_X(member, name) uint64_t member##_ns;
    BAG_SPAN_STAGES(BAG_X)
#undef BAG_X
    /* Members of a client's span. */
    int port;           /* 0: none */
    unsigned resends;   /* number of earlier attempts */
    bool is_hedge;      /* sent because an earlier attempt was slow */
    uint64_t shard;     /* index of the shard */
    const char *became; /* outcome of the attempt; static */
};

/* Returns the attributes of the process as a JSON array, which the caller frees: its version, and
 * what the variables of OpenTelemetry say. `name` is OTEL_SERVICE_NAME, and `attributes`
 * OTEL_RESOURCE_ATTRIBUTES: KEY=VALUE pairs with commas between them, in which %XX stands for a
 * byte. Both may be NULL. The name is service.name of the pairs, or "bagserve", unless `name` has
 * it. If the pairs are malformed, all of them are ignored, as OpenTelemetry asks, and *ignores is
 * set. Returns NULL if memory is exhausted. */
char *bag_otlp_resource(const char *version, const char *name, const char *attributes,
                        bool *ignores);

/* Returns the body of a POST, which the caller frees, or NULL if memory is exhausted. `resource` is
 * the text that bag_otlp_resource() returned. */
char *bag_otlp_print(const struct bag_span *spans, size_t count, const char *resource);

/* Parses a fraction from 0 to 1, the value of the option trace_sample. Returns false if the text is
 * anything else. */
bool bag_fraction_parse(const char *text, double *fraction);
