/* Heads and replies; see message.h. */
#include "message.h"

#include "proto/cors.h"
#include "proto/json_writer.h"
#include "proto/network.h"
#include "proto/text.h"
#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Seconds after which a client should try again. A shorter time would let clients flood a server
 * that is starting; a longer one would leave it idle when it is ready. */
#define RETRY_AFTER_S 1

/* Seconds for which a browser may remember what a path allows. */
#define PREFLIGHT_MAX_AGE_S 600

/* ---- peers ----------------------------------------------------------------------------------- */

struct bag_http_peer bag_http_peer_of(const struct sockaddr_storage *address)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    struct bag_http_peer peer = {.known = true};
    if (address->ss_family == AF_INET6) {
        memcpy(peer.address, &six->sin6_addr, 16);
        peer.port = ntohs(six->sin6_port);
    } else if (address->ss_family == AF_INET) {
        memcpy(peer.address, bag_ipv4_prefix, sizeof bag_ipv4_prefix);
        memcpy(peer.address + sizeof bag_ipv4_prefix, &four->sin_addr, 4);
        peer.port = ntohs(four->sin_port);
    } else {
        peer.known = false;
    }
    return peer;
}

bool bag_http_peer_is_ipv4(const struct bag_http_peer *peer)
{
    return memcmp(peer->address, bag_ipv4_prefix, sizeof bag_ipv4_prefix) == 0;
}

uint64_t bag_http_peer_client(const struct bag_http_peer *peer)
{
    uint64_t halves[2];
    memcpy(halves, peer->address, sizeof halves);
    return bag_http_peer_is_ipv4(peer) ? halves[1] : halves[0];
}

const char *bag_http_peer_text(struct bag_http_peer *peer)
{
    char host[INET6_ADDRSTRLEN];
    bool four = bag_http_peer_is_ipv4(peer);
    if (*peer->text)
        return peer->text;
    if (peer->known &&
        inet_ntop(four ? AF_INET : AF_INET6, peer->address + (four ? 12 : 0), host, sizeof host))
        snprintf(peer->text, sizeof peer->text, four ? "%s:%u" : "[%s]:%u", host, peer->port);
    else
        snprintf(peer->text, sizeof peer->text, "unix");
    return peer->text;
}

/* ---- making replies -------------------------------------------------------------------------- */

void bag_http_reply_json(struct bag_http_reply *reply, int status, char *document)
{
    if (!document) {
        bag_http_reply_failure(reply, BAG_ERROR_NO_MEMORY,
                               strdup("{\"code\":\"no_memory\",\"error\":\"not enough memory\"}"));
        return;
    }
    memset(reply, 0, sizeof *reply);
    reply->status = status;
    reply->body = document;
    reply->free_body = free;
    reply->body_bytes = strlen(document);
}

void bag_http_reply_failure(struct bag_http_reply *reply, enum bag_error error, char *document)
{
    memset(reply, 0, sizeof *reply);
    reply->status = bag_http_error_status(error);
    reply->error = error;
    reply->retry_after_s = reply->status == 503 ? RETRY_AFTER_S : 0;
    reply->body = document;
    reply->free_body = free;
    reply->body_bytes = document ? strlen(document) : 0;
}

/* libmicrohttpd needs a buffer, even if it is empty. */
void bag_http_reply_empty(struct bag_http_reply *reply, int status)
{
    bag_http_reply_json(reply, status, strdup(""));
}

/* The sentence is the last member: earlier C clients take it to end at the last quote. */
void bag_http_reply_problem(struct bag_http_reply *reply, const struct bag_problem *problem)
{
    const bool has_position = problem->position != BAG_PROBLEM_NOWHERE;
    bag_http_reply_failure(
        reply, problem->kind,
        BAG_JSON_DOCUMENT(BAG_KEY("code", bag_error_codes[problem->kind]),
                          BAG_KEY_IF(problem->input, "input", problem->input),
                          BAG_KEY_IF(has_position, "position", (uint64_t)problem->position),
                          BAG_KEY("error", (const char *)problem->text)));
}

void bag_http_reply_error(struct bag_http_reply *reply, enum bag_error error, const char *format,
                          ...)
{
    struct bag_problem problem BAG_UNSET;
    char text[BAG_PROBLEM_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bag_problem_set(&problem, error, "%s", text);
    bag_http_reply_problem(reply, &problem);
}

void bag_http_reply_drop(struct bag_http_reply *reply)
{
    if (reply->body)
        reply->free_body(reply->body);
    reply->body = NULL;
}

/* ---- headers --------------------------------------------------------------------------------- */

void bag_http_reply_to(struct bag_http_reply *reply, const struct bag_http_head *head,
                       const char *origins)
{
    reply->request_id = head->request_id;
    reply->traceparent = head->traceparent;
    if (origins) {
        /* Set whether a page in a browser may read the reply (CORS). */
        reply->varies_by_origin = !bag_cors_is_any(origins);
        reply->preflight = head->preflight;
        if (head->origin && bag_cors_allows(origins, head->origin))
            reply->allow_origin = reply->varies_by_origin ? head->origin : "*";
    }
}

/* The headers so far, and whether all of them were taken. */
struct headers {
    bag_http_add_header *add;
    void *context;
    bool ok;
};

/* Adds a header that has a value. */
static void add(struct headers *headers, const char *name, const char *value)
{
    if (value)
        headers->ok = headers->ok && headers->add(headers->context, name, value);
}

static void add_number(struct headers *headers, const char *name, size_t value)
{
    char text[BAG_DIGITS_BYTES + 1];
    *bag_digits_put(text, value) = 0;
    add(headers, name, text);
}

/* Adds the headers by which a browser decides whether a page may read the reply or send a request.
 */
static void add_cors(struct headers *headers, const struct bag_http_reply *reply)
{
    if (reply->varies_by_origin)
        add(headers, "Vary", "Origin");
    if (!reply->allow_origin)
        return;
    add(headers, "Access-Control-Allow-Origin", reply->allow_origin);
    add(headers, "Access-Control-Expose-Headers", BAG_HEADER_JSON_LENGTH ", Retry-After");
    if (!reply->preflight || !reply->allow)
        return;
    add(headers, "Access-Control-Allow-Methods", reply->allow);
    add(headers, "Access-Control-Allow-Headers",
        "Authorization, Content-Type, Content-Encoding, " BAG_HEADER_JSON_LENGTH
        ", " BAG_HEADER_REQUEST_ID ", " BAG_HEADER_TRACEPARENT ", tracestate");
    add_number(headers, "Access-Control-Max-Age", PREFLIGHT_MAX_AGE_S);
}

/* A browser may run and show in the page only what this server sends, and no other page may embed
 * it. */
#define PAGE_POLICY                                                                         \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " \
    "'self'; "                                                                              \
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

/* Returns the value of Date (RFC 9110, 5.6.7). Each thread makes it once a second. */
static const char *date_text(void)
{
    static _Thread_local struct {
        time_t second;
        char text[32];
    } date;
    time_t now = time(NULL);
    struct tm parts;
    if (now != date.second && gmtime_r(&now, &parts)) {
        strftime(date.text, sizeof date.text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
        date.second = now;
    }
    return date.text;
}

/* Adds the headers that depend only on the lengths of the body and on the time. */
static void add_plain(struct headers *headers, const struct bag_http_reply *reply)
{
    add(headers, "Date", date_text());
    if (reply->body_bytes && !reply->type)
        add(headers, "Content-Type",
            reply->header_bytes ? "application/octet-stream" : "application/json");
    if (reply->body_bytes)
        add(headers, "X-Content-Type-Options", "nosniff");
    if (reply->header_bytes)
        add_number(headers, BAG_HEADER_JSON_LENGTH, reply->header_bytes);
}

/* Adds all others, of which most replies have none. */
static void add_others(struct headers *headers, const struct bag_http_reply *reply)
{
    if (reply->body_bytes)
        add(headers, "Content-Type", reply->type);
    add(headers, "Content-Encoding", reply->coding);
    if (reply->no_store)
        add(headers, "Cache-Control", "no-store");
    if (reply->varies_by_coding)
        add(headers, "Vary", "Accept-Encoding");
    if (reply->varies_by_accept)
        add(headers, "Vary", "Accept");
    if (reply->is_page) {
        add(headers, "Content-Security-Policy", PAGE_POLICY);
        add(headers, "Referrer-Policy", "no-referrer");
        add(headers, "Cross-Origin-Resource-Policy", "same-origin");
    }
    if (reply->varies_by_origin || reply->allow_origin)
        add_cors(headers, reply);
    add(headers, BAG_HEADER_REQUEST_ID, reply->request_id);
    add(headers, BAG_HEADER_TRACEPARENT, reply->traceparent);
    add(headers, "Allow", reply->allow);
    add(headers, "WWW-Authenticate", reply->challenge);
    if (reply->retry_after_s)
        add_number(headers, "Retry-After", reply->retry_after_s);
    if (reply->close)
        add(headers, "Connection", "close");
}

bool bag_http_reply_headers(const struct bag_http_reply *reply, bag_http_add_header *add_header,
                            void *context)
{
    struct headers headers = {add_header, context, true};
    add_plain(&headers, reply);
    add_others(&headers, reply);
    return headers.ok;
}

/* Takes no header. */
static bool take_none(void *context, const char *name, const char *value)
{
    (void)context, (void)name, (void)value;
    return false;
}

bool bag_http_reply_is_plain(const struct bag_http_reply *reply)
{
    struct headers headers = {take_none, NULL, true};
    add_others(&headers, reply);
    return headers.ok;
}

/* ---- heads of requests ----------------------------------------------------------------------- */

/* Maximum length in bytes of an unwanted body that is read to its end. For a longer one, closing
 * the connection takes less time. */
#define DROP_BYTES (64 << 10)

bool bag_http_head_may_drop(const struct bag_http_head *head)
{
    return !head->chunked && head->length <= DROP_BYTES && !head->expects_continue;
}

const char *bag_http_head_path(const char *target)
{
    const char *authority = *target == '/' ? NULL : strstr(target, "://");
    if (!authority)
        return target;
    authority += 3;
    authority += strcspn(authority, "/");
    return *authority ? authority : "/";
}

/* ---- errors: kinds -> statuses and reasons --------------------------------------------------- */

/* clang-format off */

/* X(KIND, status, REASON). The last kinds are not about the request, so they are errors of the
 * server. */
#define BAG_HTTP_ERRORS(X)                              \
    X(BAD_REQUEST,           400, BAD_REQUEST)          \
    X(UNAUTHORIZED,          401, UNAUTHORIZED)         \
    X(FORBIDDEN,             403, FORBIDDEN)            \
    X(WRONG_PORT,            403, WRONG_PORT)           \
    X(NOT_FOUND,             404, NOT_FOUND)            \
    X(METHOD_NOT_ALLOWED,    405, METHOD)               \
    X(TIMEOUT,               408, SLOW)                 \
    X(CONFLICT,              409, CONFLICT)             \
    X(LENGTH_REQUIRED,       411, NOT_SUPPORTED)        \
    X(TOO_LARGE,             413, TOO_LARGE)            \
    X(UNSUPPORTED_ENCODING,  415, ENCODING)             \
    X(TARGET_TOO_LONG,       414, HEADERS)              \
    X(MISDIRECTED,           421, MISDIRECTED)          \
    X(HEADERS_TOO_LARGE,     431, HEADERS)              \
    X(NOT_IMPLEMENTED,       501, NOT_SUPPORTED)        \
    X(VERSION_NOT_SUPPORTED, 505, NOT_SUPPORTED)        \
    X(NO_MEMORY,             503, NO_MEMORY)            \
    X(TOO_MANY_CONNECTIONS,  503, NO_MEMORY)            \
    X(STORAGE,               507, STORAGE)              \
    X(TABLE_FULL,            507, STORAGE)              \
    X(QUEUE_FULL,            503, QUEUE_FULL)           \
    X(TIMED_OUT_IN_QUEUE,    503, TIMEOUT)              \
    X(CANCELLED,             503, CANCELLED)            \
    X(NOT_READY,             503, NOT_READY)            \
    X(DRAINING,              503, NOT_READY)            \
    X(BAD_GATEWAY,           502, SHARD)                \
    X(SHARD_UNAVAILABLE,            503, SHARD)                \
    X(SHARD_TIMEOUT,            504, SHARD)                \
    X(INTERNAL,              500, INTERNAL)             \
    X(USAGE,                 500, INTERNAL)             \
    X(CONFIGURATION,         500, INTERNAL)             \
    X(FILE,                  500, INTERNAL)             \
    X(SYSTEM,                500, INTERNAL)

/* clang-format on */

static const struct {
    int status;
    enum bag_rejection reason;
} errors[] = {
#define BAG_X(kind, status, reason) [BAG_ERROR_##kind] = {status, BAG_REJECTION_##reason},
    BAG_HTTP_ERRORS(BAG_X)
#undef BAG_X
};

_Static_assert(BAG_HTTP_ERRORS(BAG_ONE) == BAG_ERROR_COUNT, "every kind needs a status");

int bag_http_error_status(enum bag_error kind)
{
    return errors[kind].status;
}

enum bag_rejection bag_http_error_reason(enum bag_error kind)
{
    return errors[kind].reason;
}

enum bag_rejection bag_http_status_reason(int status)
{
    size_t i = 0;
    while (i + 1 < sizeof errors / sizeof errors[0] && errors[i].status != status)
        i++;
    return errors[i].reason;
}
