/* Parses and writes traceparent headers, and writes spans; see otlp.h. The JSON form of protobuf
 * writes 64-bit integers as strings. */
#include "otlp.h"

#include "json_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the caller's header --------------------------------------------------------------------- */

/* Reads `digits` lower-case hexadecimal digits. */
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

bool bag_traceparent_parse(const char *text, struct bag_span_place *place)
{
    /* The length of version 00: "00-", 32 digits, "-", 16 digits, "-" and two digits. */
    enum { BYTES = 55 };
    uint64_t version, flags;
    if (strlen(text) < BYTES || text[2] != '-' || text[35] != '-' || text[52] != '-' ||
        !read_hex(text, 2, &version) || version == 0xff ||
        !read_hex(text + 3, 16, &place->trace.high) ||
        !read_hex(text + 19, 16, &place->trace.low) || !read_hex(text + 36, 16, &place->parent) ||
        !read_hex(text + 53, 2, &flags))
        return false;
    if (text[BYTES] && (version == 0 || text[BYTES] != '-'))
        return false;
    place->sampled = flags & 1;
    return (place->trace.high || place->trace.low) && place->parent;
}

/* Writes 16 lower-case hexadecimal digits without a NUL. */
static void put_hex(char *at, uint64_t value)
{
    for (size_t i = 16; i-- > 0; value >>= 4)
        at[i] = "0123456789abcdef"[value & 15];
}

/* Called for every request, also if it is not sampled. printf takes several times as long. */
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

/* Writes a number of 64 bits, which is a string. */
static void write_digits(struct bag_json_writer *json, const char *key, uint64_t value)
{
    char text[BAG_DIGITS_BYTES + 1];
    *bag_digits_put(text, value) = 0;
    BAG_JSON_WRITE(json, BAG_KEY(key, text));
}

/* Writes an attribute: a text that is not empty, or a number without one. */
static void write_attribute(struct bag_json_writer *json, const char *key, const char *text,
                            uint64_t count)
{
    if (text && !*text)
        return;
    bag_json_open(json, NULL, '{');
    BAG_JSON_WRITE(json, BAG_KEY("key", key));
    bag_json_open(json, "value", '{');
    if (text)
        BAG_JSON_WRITE(json, BAG_KEY("stringValue", text));
    else
        write_digits(json, "intValue", count);
    bag_json_close(json);
    bag_json_close(json);
}

/* Writes a text unless it is empty. */
static void write_text(struct bag_json_writer *json, const char *key, const char *text)
{
    write_attribute(json, key, text, 0);
}

static void write_count(struct bag_json_writer *json, const char *key, uint64_t count)
{
    write_attribute(json, key, NULL, count);
}

/* Writes a number unless it is 0. */
static void write_positive(struct bag_json_writer *json, const char *key, uint64_t count)
{
    if (count)
        write_count(json, key, count);
}

/* Writes the attributes that both kinds of spans have, and those of the span's kind. */
static void write_attributes(struct bag_json_writer *json, const struct bag_span *span)
{
    bag_json_open(json, "attributes", '[');
    write_text(json, "http.request.method", span->method);
    if (span->is_client) {
        /* Write the attributes of the semantic conventions for HTTP clients, and those of a
         * coordinator's subrequest. */
        write_text(json, "url.full", span->path);
        write_text(json, "url.template", span->route);
        write_text(json, "server.address", span->peer);
        write_positive(json, "server.port", (uint64_t)span->port);
        write_text(json, "network.protocol.version", "1.1");
        write_positive(json, "http.request.resend_count", span->resends);
        write_positive(json, "http.response.status_code", (uint64_t)span->status);
        write_count(json, "bagserve.shard", span->shard);
        if (span->is_hedge)
            bag_json_raw(json, NULL, "{\"key\":\"bagserve.hedge\",\"value\":{\"boolValue\":true}}");
        write_text(json, "bagserve.outcome", span->became);
    } else {
        /* Write attributes by the semantic conventions of HTTP servers. */
        write_text(json, "url.path", span->path);
        write_text(json, "url.scheme", "http");
        write_text(json, "http.route", span->route);
        write_text(json, "client.address", span->peer);
        write_count(json, "http.response.status_code", (uint64_t)span->status);
        write_count(json, "http.request.body.size", span->bytes_in);
        write_count(json, "http.response.body.size", span->bytes_out);
    }
    write_text(json, "error.type", span->error);
    write_text(json, "bagserve.model", span->model);
    if (span->pooled || span->is_client) {
        write_count(json, "bagserve.bags", span->bags);
        write_count(json, "bagserve.ids", span->ids);
    }
    bag_json_close(json);
}

/* Writes a stage as an event at its beginning. */
static void write_stage(struct bag_json_writer *json, const char *name, uint64_t begin_ns,
                        uint64_t took_ns)
{
    bag_json_open(json, NULL, '{');
    write_digits(json, "timeUnixNano", begin_ns);
    BAG_JSON_WRITE(json, BAG_KEY("name", name));
    bag_json_open(json, "attributes", '[');
    write_count(json, "bagserve.duration_us", took_ns / 1000);
    bag_json_close(json);
    bag_json_close(json);
}

/* Replaces bytes that are not UTF-8 by '?'. Clients may send them and truncation may leave them. A
 * collector rejects the whole body for one of them. */
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

/* ---- the resource ---------------------------------------------------------------------------- */

/* Copies a key or a value and decodes %XX. Returns false if it does not fit, has a malformed
 * escape, or contains a NUL. */
static bool decode(const char *text, size_t bytes, char *out, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        char byte = text[i];
        if (byte == '%') {
            int high = i + 2 < bytes ? bag_hex_digit(text[i + 1]) : -1;
            int low = i + 2 < bytes ? bag_hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            byte = (char)(high << 4 | low);
            i += 2;
        }
        if (!byte || used + 1 >= capacity)
            return false;
        out[used++] = byte;
    }
    out[used] = 0;
    return true;
}

/* One pair of OTEL_RESOURCE_ATTRIBUTES. */
struct pair {
    char key[256], value[1024];
};

/* Removes blanks at both ends of a text. */
static struct bag_text trim(struct bag_text text)
{
    while (text.bytes > 0 && (*text.data == ' ' || *text.data == '\t'))
        text = (struct bag_text){text.data + 1, text.bytes - 1};
    while (text.bytes > 0 && strchr(" \t", text.data[text.bytes - 1]))
        text.bytes--;
    return text;
}

/* Reads the pair at *at and moves *at behind it. Returns false if it is malformed. */
static bool next_pair(const char **at, struct pair *pair)
{
    size_t bytes = strcspn(*at, ","), key_bytes = strcspn(*at, "=,");
    struct bag_text key = trim((struct bag_text){*at, key_bytes});
    bool ok = key_bytes < bytes && key.bytes > 0;
    if (ok) {
        struct bag_text value = trim((struct bag_text){*at + key_bytes + 1, bytes - key_bytes - 1});
        ok = decode(key.data, key.bytes, pair->key, sizeof pair->key) &&
             decode(value.data, value.bytes, pair->value, sizeof pair->value);
    }
    make_utf8(pair->key);
    make_utf8(pair->value);
    *at += bytes;
    *at += **at == ',';
    return ok;
}

/* Returns whether all pairs are well-formed. */
static bool check_pairs(const char *attributes)
{
    struct pair pair = {"", ""};
    bool ok = true;
    for (const char *at = attributes; ok && *at;)
        ok = next_pair(&at, &pair);
    return ok;
}

char *bag_otlp_resource(const char *version, const char *name, const char *attributes,
                        bool *ignores)
{
    struct bag_json_writer json = {.is_pretty = false};
    struct pair pair = {"", ""}, found = {"", "bagserve"};
    *ignores = attributes && !check_pairs(attributes);
    if (!attributes || *ignores)
        attributes = "";
    bag_json_open(&json, NULL, '[');
    for (const char *at = attributes; *at && next_pair(&at, &pair);) {
        /* The program knows its version, and the name is written once. */
        if (strcmp(pair.key, "service.name") == 0)
            found = pair;
        else if (strcmp(pair.key, "service.version") != 0)
            write_text(&json, pair.key, pair.value);
    }
    if (name && *name) {
        snprintf(found.value, sizeof found.value, "%s", name);
        make_utf8(found.value);
    }
    write_text(&json, "service.name", found.value);
    write_text(&json, "service.version", version);
    return bag_json_end(&json);
}

/* ---- the body -------------------------------------------------------------------------------- */

char *bag_otlp_print(const struct bag_span *spans, size_t count, const char *resource)
{
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    bag_json_open(&json, "resourceSpans", '[');
    bag_json_open(&json, NULL, '{');
    bag_json_open(&json, "resource", '{');
    bag_json_raw(&json, "attributes", resource);
    bag_json_close(&json);
    bag_json_open(&json, "scopeSpans", '[');
    bag_json_open(&json, NULL, '{');
    bag_json_raw(&json, "scope", "{\"name\":\"bagserve\"}");
    bag_json_open(&json, "spans", '[');
    for (size_t i = 0; i < count; i++) {
        struct bag_span span = spans[i];
        make_utf8(span.method);
        make_utf8(span.path);
        make_utf8(span.peer);
        make_utf8(span.model);
        /* Write one span. Its name is the method and the route, as the semantic conventions ask. */
        enum { SERVER = 2, CLIENT = 3, FAILED = 2 };
        char name[sizeof span.method + sizeof span.route];
        snprintf(name, sizeof name, "%s%s%s", span.method, *span.route ? " " : "", span.route);
        bag_json_open(&json, NULL, '{');
        /* Write the ids of a span. */
        const struct bag_span_place *place = &span.place;
        char trace[33] = "", id[17] = "", parent[17] = "";
        put_hex(trace, place->trace.high);
        put_hex(trace + 16, place->trace.low);
        put_hex(id, place->id);
        put_hex(parent, place->parent);
        BAG_JSON_WRITE(&json, BAG_KEY("traceId", trace), BAG_KEY("spanId", id),
                       BAG_KEY_IF(place->parent, "parentSpanId", parent));
        BAG_JSON_WRITE(&json, BAG_KEY("name", name),
                       BAG_KEY("kind", (uint64_t)(span.is_client ? CLIENT : SERVER)));
        write_digits(&json, "startTimeUnixNano", span.begin_ns);
        write_digits(&json, "endTimeUnixNano", span.end_ns);
        write_attributes(&json, &span);
        if (span.pooled) {
            /* The stages follow each other, so each one begins where the one before ends. */
            uint64_t at_ns = span.begin_ns;
            bag_json_open(&json, "events", '[');
#define BAG_X(member, stage)                            \
    write_stage(&json, stage, at_ns, span.member##_ns); \
    at_ns += span.member##_ns;
            BAG_SPAN_STAGES(BAG_X)
#undef BAG_X
            bag_json_close(&json);
        }
        bag_json_open(&json, "status", '{');
        BAG_JSON_WRITE(&json, BAG_KEY_IF(*span.error, "code", (uint64_t)FAILED));
        bag_json_close(&json);
        bag_json_close(&json);
    }
    return bag_json_end(&json);
}
