/* Traces; see otlp.h. Numbers of 64 bits are strings in the JSON of protobuf. */
#include "otlp.h"

#include "text.h"
#include "v2_documents.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the caller's header --------------------------------------------------------------------- */

/* Reads so many lower-case digits. */
static bool read_hex(const char *text, size_t digits, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < digits; i++) {
        int digit = bag_hex_digit(text[i]);
        if (digit < 0 || (text[i] >= 'A' && text[i] <= 'F'))
            return false;
        *value = *value << 4 | (uint64_t)digit;
    }
    return true;
}

bool bag_traceparent_parse(const char *text, struct bag_traceparent *parent)
{
    enum { BYTES = 55 };
    uint64_t version, flags;
    if (strlen(text) < BYTES || text[2] != '-' || text[35] != '-' || text[52] != '-' ||
        !read_hex(text, 2, &version) || version == 0xff ||
        !read_hex(text + 3, 16, &parent->trace.high) ||
        !read_hex(text + 19, 16, &parent->trace.low) || !read_hex(text + 36, 16, &parent->parent) ||
        !read_hex(text + 53, 2, &flags))
        return false;
    if (text[BYTES] && (version == 0 || text[BYTES] != '-'))
        return false;
    parent->sampled = flags & 1;
    return (parent->trace.high || parent->trace.low) && parent->parent;
}

static void put_hex(char *at, uint64_t value)
{
    for (size_t i = 16; i-- > 0; value >>= 4)
        at[i] = "0123456789abcdef"[value & 15];
}

/* Of requests that are not sampled, too: printf takes several times as long. */
void bag_traceparent_print(const struct bag_span_place *place, char text[BAG_TRACEPARENT_BYTES])
{
    memcpy(text, "00-00000000000000000000000000000000-0000000000000000-00", BAG_TRACEPARENT_BYTES);
    put_hex(text + 3, place->trace.high);
    put_hex(text + 19, place->trace.low);
    put_hex(text + 36, place->id);
    text[54] = place->sampled ? '1' : '0';
}

bool bag_fraction_parse(const char *text, double *fraction)
{
    char *end;
    size_t bytes = strspn(text, "0123456789.");
    *fraction = strtod(text, &end);
    return bytes > 0 && !text[bytes] && !*end && *fraction >= 0 && *fraction <= 1;
}

/* ---- spans ----------------------------------------------------------------------------------- */

static bool add_digits(cJSON *object, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return cJSON_AddStringToObject(object, key, text) != NULL;
}

static cJSON *add_value(cJSON *attributes, const char *key)
{
    cJSON *attribute = bag_v2_add_item(attributes);
    return attribute && cJSON_AddStringToObject(attribute, "key", key)
               ? cJSON_AddObjectToObject(attribute, "value")
               : NULL;
}

/* An empty text is left out. */
static bool add_text(cJSON *attributes, const char *key, const char *text)
{
    cJSON *value = *text ? add_value(attributes, key) : NULL;
    return !*text || (value && cJSON_AddStringToObject(value, "stringValue", text));
}

static bool add_count(cJSON *attributes, const char *key, uint64_t count)
{
    cJSON *value = add_value(attributes, key);
    return value && add_digits(value, "intValue", count);
}

/* 0 is left out. */
static bool add_positive(cJSON *attributes, const char *key, uint64_t count)
{
    return !count || add_count(attributes, key, count);
}

static bool add_id(cJSON *span, const char *key, uint64_t id)
{
    char text[17] = "";
    put_hex(text, id);
    return cJSON_AddStringToObject(span, key, text) != NULL;
}

static bool add_place(cJSON *object, const struct bag_span_place *place)
{
    char text[33] = "";
    put_hex(text, place->trace.high);
    put_hex(text + 16, place->trace.low);
    return cJSON_AddStringToObject(object, "traceId", text) &&
           add_id(object, "spanId", place->id) &&
           (!place->parent || add_id(object, "parentSpanId", place->parent));
}

/* By the semantic conventions of HTTP servers. */
static bool add_server(cJSON *list, const struct bag_span *span)
{
    return add_text(list, "url.path", span->path) && add_text(list, "url.scheme", "http") &&
           add_text(list, "http.route", span->route) &&
           add_text(list, "client.address", span->peer) &&
           add_count(list, "http.response.status_code", (uint64_t)span->status) &&
           add_count(list, "http.request.body.size", span->bytes_in) &&
           add_count(list, "http.response.body.size", span->bytes_out);
}

/* By those of HTTP clients, and what a coordinator knows of its call. */
static bool add_client(cJSON *list, const struct bag_span *span)
{
    cJSON *value = NULL;
    return add_text(list, "url.full", span->path) && add_text(list, "url.template", span->route) &&
           add_text(list, "server.address", span->peer) &&
           add_positive(list, "server.port", (uint64_t)span->port) &&
           add_text(list, "network.protocol.version", "1.1") &&
           add_positive(list, "http.request.resend_count", span->resends) &&
           add_positive(list, "http.response.status_code", (uint64_t)span->status) &&
           add_count(list, "bagserve.shard", span->shard) &&
           (!span->is_hedge || ((value = add_value(list, "bagserve.hedge")) &&
                                cJSON_AddTrueToObject(value, "boolValue"))) &&
           add_text(list, "bagserve.outcome", span->became);
}

static bool add_attributes(cJSON *object, const struct bag_span *span)
{
    cJSON *list = cJSON_AddArrayToObject(object, "attributes");
    bool ok = list && add_text(list, "http.request.method", span->method) &&
              (span->is_client ? add_client(list, span) : add_server(list, span)) &&
              add_text(list, "error.type", span->error) &&
              add_text(list, "bagserve.model", span->model);
    return ok &&
           (!(span->pooled || span->is_client) || (add_count(list, "bagserve.bags", span->bags) &&
                                                   add_count(list, "bagserve.ids", span->ids)));
}

/* Each stage is an event where it begins. */
static bool add_stage(cJSON *events, const char *name, uint64_t begin_ns, uint64_t took_ns)
{
    cJSON *event = bag_v2_add_item(events), *list = NULL;
    return event && add_digits(event, "timeUnixNano", begin_ns) &&
           cJSON_AddStringToObject(event, "name", name) &&
           (list = cJSON_AddArrayToObject(event, "attributes")) &&
           add_count(list, "bagserve.duration_us", took_ns / 1000);
}

static bool add_stages(cJSON *object, const struct bag_span *span)
{
    cJSON *events = cJSON_AddArrayToObject(object, "events");
    uint64_t at_ns = span->begin_ns;
    bool ok = events != NULL;
#define BAG_X(member, name)                                       \
    ok = ok && add_stage(events, name, at_ns, span->member##_ns); \
    at_ns += span->member##_ns;
    BAG_SPAN_STAGES(BAG_X)
#undef BAG_X
    return ok;
}

static bool add_span(cJSON *spans, const struct bag_span *span)
{
    enum { SERVER = 2, CLIENT = 3, FAILED = 2 };
    char name[sizeof span->method + sizeof span->route];
    cJSON *object = bag_v2_add_item(spans), *status = NULL;
    snprintf(name, sizeof name, "%s%s%s", span->method, *span->route ? " " : "", span->route);
    return object && add_place(object, &span->place) &&
           cJSON_AddStringToObject(object, "name", name) &&
           cJSON_AddNumberToObject(object, "kind", span->is_client ? CLIENT : SERVER) &&
           add_digits(object, "startTimeUnixNano", span->begin_ns) &&
           add_digits(object, "endTimeUnixNano", span->end_ns) && add_attributes(object, span) &&
           (!span->pooled || add_stages(object, span)) &&
           (status = cJSON_AddObjectToObject(object, "status")) &&
           (!*span->error || cJSON_AddNumberToObject(status, "code", FAILED));
}

/* Puts '?' for bytes that are no UTF-8, which strangers send and truncating leaves: a collector
 * refuses the whole body for one of them. */
static void make_utf8(char *text)
{
    const char *end = text + strlen(text);
    for (char *at = text; at < end;) {
        size_t bytes = (unsigned char)*at < 0x80 ? 1 : bag_utf8_bytes(at, end);
        if (bytes == 0)
            *at = '?';
        at += bytes ? bytes : 1;
    }
}

char *bag_otlp_print(const struct bag_span *spans, size_t count, const char *version)
{
    cJSON *tree = cJSON_CreateObject(), *of = NULL, *resource = NULL, *list = NULL, *scope = NULL;
    bool ok = tree && (of = bag_v2_add_item(cJSON_AddArrayToObject(tree, "resourceSpans"))) &&
              (resource = cJSON_AddObjectToObject(of, "resource")) &&
              (list = cJSON_AddArrayToObject(resource, "attributes")) &&
              add_text(list, "service.name", "bagserve") &&
              add_text(list, "service.version", version) &&
              (of = bag_v2_add_item(cJSON_AddArrayToObject(of, "scopeSpans"))) &&
              (scope = cJSON_AddObjectToObject(of, "scope")) &&
              cJSON_AddStringToObject(scope, "name", "bagserve") &&
              (list = cJSON_AddArrayToObject(of, "spans"));
    for (size_t i = 0; ok && i < count; i++) {
        struct bag_span span = spans[i];
        make_utf8(span.method);
        make_utf8(span.path);
        make_utf8(span.peer);
        make_utf8(span.model);
        ok = add_span(list, &span);
    }
    return bag_v2_print_tree(tree, ok);
}
