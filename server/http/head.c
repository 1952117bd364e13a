/* Checks the head of a request; see message.h. Numbers in comments are sections of RFC 9112.
 */
#include "message.h"

#include "proto/coding.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Maximum length in bytes of an id for tracing. A longer one is ignored. */
#define MAX_TRACE_BYTES 256

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The bytes that are not allowed in a token (T), a value (V), a target (U) and a Host (H); one bit
 * for each. A Host that is a name must not have those of N either. */
#define T 1
#define V 2
#define U 4
#define H 8
#define N 16

static const unsigned char barred[256] = {
    [0 ... 8] = T | V | U | H,
    ['\t'] = T | U | H,
    [10 ... 31] = T | V | U | H,
    [' '] = T | U | H,
    ['"'] = T | U | H,
    ['#'] = U | H,
    ['(' ... ')'] = T,
    [','] = T | H,
    ['/'] = T | H,
    [':' ... ';'] = T,
    ['<'] = T | U | H,
    ['='] = T,
    ['>'] = T | U | H,
    ['?' ... '@'] = T | H,
    ['['] = T | N,
    ['\\'] = T | U | H,
    [']'] = T | N,
    ['^'] = U | H,
    ['`'] = U | H,
    ['{'] = T | U | H,
    ['|'] = U | H,
    ['}'] = T | U | H,
    [127] = T | V | U | H,
    [128 ... 255] = T | U | H,
};

/* Returns true if all bytes are allowed. Reads all of them without a branch, because most are
 * valid. */
static bool all_in(const char *text, size_t bytes, unsigned place)
{
    unsigned found = 0;
    for (size_t i = 0; i < bytes; i++)
        found |= barred[(unsigned char)text[i]];
    return !(found & place);
}

/* Returns whether a text begins with a word, in any case. */
static bool starts(const char *text, size_t bytes, const char *word)
{
    size_t length = strlen(word);
    return bytes >= length && strncasecmp(text, word, length) == 0;
}

/* Returns whether a text is a word, in any case. */
static bool is(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && strncasecmp(text, word, bytes) == 0;
}

/* ---- targets --------------------------------------------------------------------------------- */

/* 3.2: a target is a path, a whole URL with a host, or an asterisk. */
const char *bag_http_target_fault(const char *target)
{
    size_t bytes = strlen(target);
    if (!all_in(target, bytes, U))
        return "the target has a character that must be percent-encoded";
    if (*target == '/' || strcmp(target, "*") == 0)
        return NULL;
    size_t scheme_bytes = starts(target, bytes, "http://")    ? 7
                          : starts(target, bytes, "https://") ? 8
                                                              : 0;
    if (!scheme_bytes)
        return "the target must be a path that begins with a slash, or a whole http URL";
    if (bytes == scheme_bytes || strchr("/?", target[scheme_bytes]))
        return "the target is a URL without a host";
    return NULL;
}

bool bag_http_target_has_room(const char *target)
{
    unsigned arguments = 0;
    for (const char *at = strchr(target, '?'); at; at = strchr(at + 1, '&')) {
        if (++arguments > BAG_HTTP_MAX_ARGUMENTS)
            return false;
    }
    return true;
}

/* ---- header lines ---------------------------------------------------------------------------- */

/* Returns whether a Host is a name or address and, after a colon, the digits of a port. */
static bool is_host(const char *value, size_t bytes)
{
    const bool is_ipv6 = bytes && *value == '[';
    const char *end = value + bytes, *at = memchr(value, is_ipv6 ? ']' : ':', bytes);
    if (!all_in(value, bytes, is_ipv6 ? H : H | N))
        return false;
    if (is_ipv6 && (!at || value + 1 + strspn(value + 1, "0123456789abcdefABCDEF:.") != at))
        return false;
    at = !at ? end : at + is_ipv6;
    return at == end || (*at == ':' && strspn(at + 1, "0123456789") == (size_t)(end - at) - 1);
}

/* The maximum Content-Length that is parsed. */
#define MAX_BODY_BYTES ((uint64_t)INT64_MAX)

/* Reads Content-Length, which consists of digits only. */
static bool read_length(struct bag_http_head *head, const char *value, size_t bytes,
                        struct bag_problem *problem)
{
    bool is_number = bytes > 0, fits = true;
    head->has_length = true;
    for (size_t i = 0; i < bytes; i++) {
        unsigned digit = (unsigned char)value[i] - '0';
        is_number &= digit <= 9;
        fits &= head->length <= (MAX_BODY_BYTES - digit) / 10;
        head->length = head->length * 10 + digit;
    }
    if (!is_number)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "Content-Length '%s' must be a number of decimal digits",
                               bag_quote(value, bytes).text);
    return fits || bag_problem_set(problem, BAG_ERROR_TOO_LARGE,
                                   "Content-Length '%s' is larger than any limit",
                                   bag_quote(value, bytes).text);
}

/* Returns the value, or NULL if it is empty or too long to be passed on. */
static const char *traceable(const char *value, size_t bytes)
{
    return bytes && bytes <= MAX_TRACE_BYTES ? value : NULL;
}

/* Returns the weight of an entry of an Accept, in thousandths. Parameters before q do not count. */
static int weight_of(const char *at, const char *end)
{
    while (at < end) {
        at += strcspn(at, ";,");
        const char *parameter = at + strspn(at, "; \t");
        if (parameter < end && (*parameter == 'q' || *parameter == 'Q') && parameter[1] == '=')
            break;
        at = parameter;
    }
    return bag_coding_weight(at < end ? at : end, end);
}

/* Returns whether an Accept lists text/html, as browsers do, and prefers application/json to it
 * nowhere. */
static bool prefers_html(const char *value)
{
    int html = 0, json = 0;
    for (const char *at = value; *at;) {
        at += strspn(at, " \t,");
        const char *end = at + strcspn(at, ",");
        size_t name_bytes = strcspn(at, " \t,;");
        if (is(at, name_bytes, "text/html"))
            html = weight_of(at + name_bytes, end);
        if (is(at, name_bytes, "application/json"))
            json = weight_of(at + name_bytes, end);
        at = end;
    }
    return html > 0 && html >= json;
}

/* Keeps a header line that the inference or the reply uses. Returns false if it is another line. */
static bool keep_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                      const char *value, size_t value_bytes)
{
    if (is(name, name_bytes, BAG_HEADER_JSON_LENGTH))
        head->json_length = head->json_length ? "several headers" : value;
    else if (is(name, name_bytes, "Content-Encoding"))
        head->encoding = head->encoding ? "several headers" : value;
    else if (is(name, name_bytes, "Accept-Encoding"))
        head->accept = value;
    else if (is(name, name_bytes, "Accept"))
        head->wants_html |= prefers_html(value);
    else if (is(name, name_bytes, "Expect"))
        head->expects_continue = true;
    else if (is(name, name_bytes, "Authorization"))
        head->authorization = head->authorization ? "" : value;
    else if (is(name, name_bytes, "Origin"))
        head->origin = head->origin ? "several headers" : value;
    else if (is(name, name_bytes, "Access-Control-Request-Method"))
        head->preflight = true;
    else if (is(name, name_bytes, BAG_HEADER_REQUEST_ID))
        head->request_id = traceable(value, value_bytes);
    else if (is(name, name_bytes, BAG_HEADER_TRACEPARENT))
        head->traceparent = traceable(value, value_bytes);
    else
        return false;
    return true;
}

bool bag_http_head_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes, struct bag_problem *problem)
{
    if (!all_in(value, value_bytes, V))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "header '%s': the value must not hold control characters",
                               bag_quote(name, name_bytes).text);
    if (is(name, name_bytes, "Host")) {
        head->hosts++;
        head->host = value;
        return is_host(value, value_bytes) ||
               bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "header 'Host': '%s' is not a valid host",
                               bag_quote(value, value_bytes).text);
    }
    if (is(name, name_bytes, "Content-Length"))
        return ++head->lengths > 1 || read_length(head, value, value_bytes, problem);
    if (is(name, name_bytes, "Transfer-Encoding")) {
        /* Read Transfer-Encoding, of which only chunked is supported. bag_http_head_check() rejects
         * several headers. */
        head->codings++;
        head->chunked = is(value, value_bytes, "chunked");
        return head->chunked || head->codings > 1 ||
               bag_problem_set(problem, BAG_ERROR_NOT_IMPLEMENTED,
                               "Transfer-Encoding '%s' is not supported; it must be chunked",
                               bag_quote(value, value_bytes).text);
    }
    if (keep_line(head, name, name_bytes, value, value_bytes))
        return true;
    /* libmicrohttpd 0.9.75 puts the end of a folded line behind its name. */
    if (starts(name, name_bytes, "Content-Length") || starts(name, name_bytes, "Transfer-Encoding"))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "header '%s' is not accepted",
                               bag_quote(name, name_bytes).text);
    return (name_bytes && all_in(name, name_bytes, T)) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "header '%s': the name must be a token, directly followed by a colon",
                           bag_quote(name, name_bytes).text);
}

/* ---- whole heads ----------------------------------------------------------------------------- */

/* 3.2: there must be one Host, even if the target is a whole URL; HTTP/1.0 has none. 6.1 to 6.3:
 * the head must say in exactly one way where the body ends. */
bool bag_http_head_check(const struct bag_http_head *head, const struct bag_http_first_line *line,
                         struct bag_problem *problem)
{
    bool http_1_0 = strcmp(line->version, "HTTP/1.0") == 0;
    if (!http_1_0 && strcmp(line->version, "HTTP/1.1") != 0)
        return bag_problem_set(problem, BAG_ERROR_VERSION_NOT_SUPPORTED,
                               "%s is not supported; use HTTP/1.1",
                               bag_quote(line->version, strlen(line->version)).text);
    if (!*line->method || !all_in(line->method, strlen(line->method), T))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the method '%s' must be a token",
                               bag_quote(line->method, strlen(line->method)).text);
    if (head->hosts > 1 || (head->hosts == 0 && !http_1_0))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the request has %u Host headers; it must have one", head->hosts);
    if (head->lengths > 1 || head->codings > 1)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the request has %u %s headers; it must have at most one",
                               head->lengths > 1 ? head->lengths : head->codings,
                               head->lengths > 1 ? "Content-Length" : "Transfer-Encoding");
    if (head->codings && head->lengths)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the request has both Content-Length and Transfer-Encoding; it must "
                               "have at most one of them");
    return !head->codings || !http_1_0 ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
}

/* ---- hosts and origins ----------------------------------------------------------------------- */

bool bag_http_host_is_ours(const char *host, const char *own, const char *names)
{
    char name[256] BAG_UNSET, address[sizeof(struct in6_addr)] BAG_UNSET;
    if (!host || !*host || strcmp(host, own) == 0)
        return true;
    bool is_bracketed = *host == '[';
    size_t bytes = is_bracketed ? strcspn(++host, "]") : strcspn(host, ":");
    if (bytes >= sizeof name)
        return false;
    memcpy(name, host, bytes);
    name[bytes] = 0;
    if (inet_pton(is_bracketed ? AF_INET6 : AF_INET, name, address) == 1 ||
        is(name, bytes, "localhost"))
        return true;
    for (; names && *names; names += strspn(names, ", ")) {
        size_t listed = strcspn(names, ", ");
        if ((listed == 1 && *names == '*') ||
            (listed == bytes && strncasecmp(names, name, bytes) == 0))
            return true;
        names += listed;
    }
    return false;
}

bool bag_http_origin_is_ours(const char *origin, const char *host)
{
    const char *authority = strstr(origin, "://");
    return authority && host && strcasecmp(authority + 3, host) == 0;
}
