/* Heads: what is rejected for its form, and what is kept; see guard.h. Numbers in comments are of
 * RFC 9112. */
#include "guard.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Where a byte may stand: in a token, in a value, in a target, in a Host. */
#define T 1
#define V 2
#define U 4
#define H 8

static const unsigned char places[256] = {
    ['\t'] = V,
    [' '] = V,
    ['!'] = T | V | U | H,
    ['"'] = V,
    ['#'] = T | V,
    ['$' ... '\''] = T | V | U | H,
    ['(' ... ')'] = V | U | H,
    ['*' ... '+'] = T | V | U | H,
    [','] = V | U,
    ['-' ... '.'] = T | V | U | H,
    ['/'] = V | U,
    ['0' ... '9'] = T | V | U | H,
    [':' ... ';'] = V | U | H,
    ['<'] = V,
    ['='] = V | U | H,
    ['>'] = V,
    ['?' ... '@'] = V | U,
    ['A' ... 'Z'] = T | V | U | H,
    ['['] = V | U | H,
    ['\\'] = V,
    [']'] = V | U | H,
    ['^'] = T | V,
    ['_'] = T | V | U | H,
    ['`'] = T | V,
    ['a' ... 'z'] = T | V | U | H,
    ['{'] = V,
    ['|'] = T | V,
    ['}'] = V,
    ['~'] = T | V | U | H,
    [128 ... 255] = V,
};

/* Whether all bytes may stand there. All are read: most are valid, and this has no branch. */
static bool all_in(const char *text, size_t bytes, unsigned place)
{
    unsigned common = place;
    for (size_t i = 0; i < bytes; i++)
        common &= places[(unsigned char)text[i]];
    return common != 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

#define VERSION_BYTES 8 /* HTTP/1.1 */
#define CRLF_BYTES    2

bool bag_guard_first_line(struct bag_guard *guard, const char *method, const char *target,
                          const char *target_end, const char *version, struct bag_problem *problem)
{
    size_t method_bytes = strlen(method);
    *guard = (struct bag_guard){.next = version + VERSION_BYTES + CRLF_BYTES,
                                .http_1_0 = strcmp(version, "HTTP/1.0") == 0};
    if (!guard->http_1_0 && strcmp(version, "HTTP/1.1") != 0)
        return bag_problem_set(problem, BAG_ERROR_VERSION_NOT_SUPPORTED,
                               "%s is not supported; use HTTP/1.1",
                               bag_quote(version, strlen(version)).text);
    if (!all_in(method, method_bytes, T))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the method '%s' must be a token",
                               bag_quote(method, method_bytes).text);
    if (method + method_bytes + 1 != target || target_end + 1 != version)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the first line must be a method, a target and a "
                               "version, with one blank between them");
    return true;
}

/* Names the line that is wrong: where there is a gap in front of a line, it hides another one. */
static bool reject_line(bool begins, const char *name, size_t name_bytes,
                        struct bag_problem *problem)
{
    struct bag_quoted quoted = bag_quote(name, name_bytes);
    if (!begins)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "header '%s', or what is in front of it, is not a "
                               "name, a colon and a value in one line that ends with CR LF",
                               quoted.text);
    if (!all_in(name, name_bytes, T))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "header '%s': the name must be a token, directly "
                               "followed by a colon",
                               quoted.text);
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "header '%s': the value must not hold control characters", quoted.text);
}

bool bag_guard_line(struct bag_guard *guard, const char *name, size_t name_bytes, const char *value,
                    size_t value_bytes, struct bag_problem *problem)
{
    const char *behind_colon = name + name_bytes + 1;
    bool begins = name == guard->next && value >= behind_colon &&
                  (size_t)(value - behind_colon) == strspn(behind_colon, " \t");
    guard->next = value + value_bytes + CRLF_BYTES;
    if (begins && all_in(name, name_bytes, T) && all_in(value, value_bytes, V))
        return true;
    return reject_line(begins, name, name_bytes, problem);
}

/* ---- the whole head -------------------------------------------------------------------------- */

/* 3.2: one Host, also beside a whole URL; HTTP/1.0 did not know it yet. */
static bool check_host(const struct bag_guard *guard, struct bag_problem *problem)
{
    if (guard->hosts != 1 && !(guard->http_1_0 && guard->hosts == 0))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the request has %u Host headers; it must have one", guard->hosts);
    if (guard->hosts && !all_in(guard->host, strlen(guard->host), H))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "header 'Host': '%s' is not a valid host",
                               bag_quote(guard->host, strlen(guard->host)).text);
    return true;
}

static bool reject_repeated(const char *name, unsigned count, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "the request has %u %s headers; it must have at most one", count, name);
}

/* 6.1 to 6.3: where the body ends. */
static bool check_length(const struct bag_guard *guard, struct bag_problem *problem)
{
    if (guard->lengths > 1)
        return reject_repeated("Content-Length", guard->lengths, problem);
    if (!guard->codings)
        return true;
    if (guard->lengths)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the request has both Content-Length and "
                               "Transfer-Encoding; it must have at most one of them");
    if (guard->http_1_0)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
    if (guard->codings > 1)
        return reject_repeated("Transfer-Encoding", guard->codings, problem);
    if (strcasecmp(guard->coding, "chunked") != 0)
        return bag_problem_set(problem, BAG_ERROR_NOT_IMPLEMENTED,
                               "Transfer-Encoding '%s' is not supported; it must be "
                               "chunked",
                               bag_quote(guard->coding, strlen(guard->coding)).text);
    return true;
}

bool bag_guard_end(const struct bag_guard *guard, const char *end, struct bag_problem *problem)
{
    if (guard->next + CRLF_BYTES != end)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the last header is not a name, a colon and a value "
                               "in one line that ends with CR LF");
    return check_host(guard, problem) && check_length(guard, problem);
}

/* ---- targets --------------------------------------------------------------------------------- */

/* The authority of a whole URL (3.2.2), or NULL. */
static const char *authority_of(const char *target)
{
    if (strncasecmp(target, "http://", 7) == 0)
        return target + 7;
    return strncasecmp(target, "https://", 8) == 0 ? target + 8 : NULL;
}

const char *bag_guard_target(const char *target)
{
    const char *authority = *target == '/' ? NULL : authority_of(target);
    if (*target != '/' && !authority && strcmp(target, "*") != 0)
        return "the target must be a path that begins with /, or a whole http:// URL";
    if (authority && (!*authority || strchr("/?", *authority)))
        return "the target is a URL without a host";
    if (!all_in(target, strlen(target), U))
        return "the target has a character that must be percent-encoded";
    return NULL;
}

const char *bag_guard_path(const char *target)
{
    const char *authority = *target == '/' ? NULL : authority_of(target);
    if (!authority)
        return target;
    authority += strcspn(authority, "/");
    return *authority ? authority : "/";
}

/* ---- what the server wants to know ----------------------------------------------------------- */

/* A rejected request's body is read to its end up to this. */
#define DROP_BYTES (1 << 20)

/* A longer one is not passed through. */
#define MAX_TRACE_BYTES 256

static bool is(const char *name, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && strncasecmp(name, wanted, bytes) == 0;
}

static const char *traceable(const char *value)
{
    return strlen(value) <= MAX_TRACE_BYTES ? value : NULL;
}

static void keep(struct bag_http_head *head, const char *name, size_t bytes, const char *value)
{
    if (is(name, bytes, "Host")) {
        head->guard.hosts++;
        head->guard.host = value;
    } else if (is(name, bytes, "Content-Length")) {
        head->guard.lengths++;
        head->has_length = true;
        head->length = strtoull(value, NULL, 10);
    } else if (is(name, bytes, BAG_HEADER_JSON_LENGTH)) {
        head->json_length = value;
    } else if (is(name, bytes, "Content-Encoding")) {
        head->encoding = head->encoding ? "several headers" : value;
    } else if (is(name, bytes, "Accept-Encoding")) {
        head->accept = value;
    } else if (is(name, bytes, "Transfer-Encoding")) {
        head->guard.codings++;
        head->guard.coding = value;
        head->chunked = true;
    } else if (is(name, bytes, "Expect")) {
        head->expects_continue = true;
    } else if (is(name, bytes, "Authorization")) {
        head->authorization = head->authorization ? "" : value;
    } else if (is(name, bytes, "Origin")) {
        head->origin = value;
    } else if (is(name, bytes, "Access-Control-Request-Method")) {
        head->preflight = true;
    } else if (is(name, bytes, BAG_HEADER_REQUEST_ID)) {
        head->request_id = traceable(value);
    } else if (is(name, bytes, BAG_HEADER_TRACEPARENT)) {
        head->traceparent = traceable(value);
    }
}

bool bag_http_head_line(struct bag_http_head *head, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes, struct bag_problem *problem)
{
    if (!bag_guard_line(&head->guard, name, name_bytes, value, value_bytes, problem))
        return false;
    keep(head, name, name_bytes, value);
    return true;
}

bool bag_http_head_may_drop(const struct bag_http_head *head)
{
    return !head->chunked && head->length <= DROP_BYTES && !head->expects_continue;
}
