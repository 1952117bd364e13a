/* What the head of a request may say; see guard.h. Numbers in comments are sections of RFC 9112. */
#include "guard.h"

#include <string.h>
#include <strings.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Where a byte may be: in a token, in a value, in a target, in a Host. */
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

/* Whether all bytes may be there. All are read: most are valid, and this has no branch. */
static bool all_in(const char *text, size_t bytes, unsigned place)
{
    unsigned common = place;
    for (size_t i = 0; i < bytes; i++)
        common &= places[(unsigned char)text[i]];
    return common != 0;
}

bool bag_guard_is_token(const char *text, size_t bytes)
{
    return all_in(text, bytes, T);
}

bool bag_guard_is_value(const char *text, size_t bytes)
{
    return all_in(text, bytes, V);
}

static bool starts(const char *text, size_t bytes, const char *lower_case)
{
    size_t length = strlen(lower_case);
    return bytes >= length && strncasecmp(text, lower_case, length) == 0;
}

static bool is(const char *text, size_t bytes, const char *lower_case)
{
    return bytes == strlen(lower_case) && starts(text, bytes, lower_case);
}

/* Copies what fits, and a NUL. */
static void keep(char *kept, size_t room, const char *text, size_t bytes)
{
    bytes = bytes < room ? bytes : room - 1;
    memcpy(kept, text, bytes);
    kept[bytes] = 0;
}

static bool reject(struct bag_problem *problem, const char *sentence)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", sentence);
}

/* ---- the first line -------------------------------------------------------------------------- */

bool bag_guard_reject_first_line(struct bag_problem *problem)
{
    return reject(problem,
                  "the first line must be a method, a target and a version, with one blank between "
                  "them and CR LF at its end");
}

/* 2.3: two digits. The minor version 0 has no chunks and needs no Host. */
static bool check_version(struct bag_guard *guard, const char *version, size_t bytes,
                          struct bag_problem *problem)
{
    guard->http_1_0 = bytes == 8 && memcmp(version, "HTTP/1.0", 8) == 0;
    if (guard->http_1_0 || (bytes == 8 && memcmp(version, "HTTP/1.1", 8) == 0))
        return true;
    if (bytes == 8 && memcmp(version, "HTTP/", 5) == 0 && version[6] == '.' && version[5] >= '0' &&
        version[5] <= '9' && version[7] >= '0' && version[7] <= '9')
        return bag_problem_set(problem, BAG_ERROR_VERSION_NOT_SUPPORTED,
                               "%s is not supported; use HTTP/1.1", bag_quote(version, bytes).text);
    return bag_guard_reject_first_line(problem);
}

/* 3.2: a path, or a whole URL with a host, or an asterisk. */
static bool check_target(const char *target, size_t bytes, struct bag_problem *problem)
{
    size_t scheme_bytes = starts(target, bytes, "http://")    ? 7
                          : starts(target, bytes, "https://") ? 8
                                                              : 0;
    if (bytes > BAG_GUARD_MAX_TARGET_BYTES)
        return bag_problem_set(problem, BAG_ERROR_TARGET_TOO_LONG,
                               "the target has %zu bytes; the limit is %d", bytes,
                               BAG_GUARD_MAX_TARGET_BYTES);
    if (!all_in(target, bytes, U))
        return reject(problem, "the target has a character that must be percent-encoded");
    if (scheme_bytes && (bytes == scheme_bytes || strchr("/?", target[scheme_bytes])))
        return reject(problem, "the target is a URL without a host");
    if (!scheme_bytes && !(bytes && *target == '/') && !is(target, bytes, "*"))
        return reject(problem,
                      "the target must be a path that begins with /, or a whole http:// URL");
    return true;
}

static bool check_first_line(struct bag_guard *guard, const char *line, size_t bytes,
                             struct bag_problem *problem)
{
    const char *first = memchr(line, ' ', bytes), *last = memrchr(line, ' ', bytes);
    keep(guard->first_line, sizeof guard->first_line, line, bytes);
    guard->stage = BAG_GUARD_HEADERS;
    if (!first || first == last)
        return bag_guard_reject_first_line(problem);
    if (!check_version(guard, last + 1, (size_t)(line + bytes - last - 1), problem))
        return false;
    if (first == line || !all_in(line, (size_t)(first - line), T))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the method '%s' must be a token",
                               bag_quote(line, (size_t)(first - line)).text);
    return check_target(first + 1, (size_t)(last - first - 1), problem);
}

/* 2.2: an empty line in front of a request is ignored, but no more than one. */
static bool check_empty_line(struct bag_guard *guard, struct bag_problem *problem)
{
    guard->line_bytes = 0;
    return ++guard->empty_lines <= 1 || bag_guard_reject_first_line(problem);
}

/* ---- header lines ---------------------------------------------------------------------------- */

/* A line of digits alone, of a number that a body can have. */
static bool check_length_value(struct bag_guard *guard, const char *value, size_t bytes,
                               struct bag_problem *problem)
{
    guard->length = 0;
    guard->length_value = value;
    for (size_t i = 0; i < bytes; i++) {
        unsigned digit = (unsigned char)value[i] - '0';
        if (digit > 9)
            break;
        if (guard->length > (BAG_GUARD_MAX_BODY_BYTES - digit) / 10)
            return bag_problem_set(problem, BAG_ERROR_TOO_LARGE,
                                   "Content-Length '%s' is larger than any limit",
                                   bag_quote(value, bytes).text);
        guard->length = guard->length * 10 + digit;
        if (i + 1 == bytes)
            return true;
    }
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "Content-Length '%s' must be a number of decimal digits",
                           bag_quote(value, bytes).text);
}

static bool reject_coding(const char *coding, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NOT_IMPLEMENTED,
                           "Transfer-Encoding '%s' is not supported; it must be chunked",
                           bag_quote(coding, strlen(coding)).text);
}

static bool check_host(const char *value, size_t bytes, struct bag_problem *problem)
{
    return all_in(value, bytes, H) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "header 'Host': '%s' is not a valid host", bag_quote(value, bytes).text);
}

static bool reject_repeated(const char *name, unsigned count, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "the request has %u %s headers; it must have %sone", count, name,
                           *name == 'H' ? "" : "at most ");
}

/* The headers that say whose the request is and where its body ends. An id is kept for the log of
 * a request that is rejected. */
static bool check_meaning(struct bag_guard *guard, const char *name, size_t name_bytes,
                          const char *value, size_t bytes, struct bag_problem *problem)
{
    if (is(name, name_bytes, "host"))
        return ++guard->hosts > 1 ? reject_repeated("Host", guard->hosts, problem)
                                  : check_host(value, bytes, problem);
    if (is(name, name_bytes, "content-length"))
        return ++guard->lengths > 1 ? reject_repeated("Content-Length", guard->lengths, problem)
                                    : check_length_value(guard, value, bytes, problem);
    if (is(name, name_bytes, "x-request-id"))
        keep(guard->request_id, sizeof guard->request_id, value, bytes);
    if (!is(name, name_bytes, "transfer-encoding"))
        return true;
    guard->chunked = is(value, bytes, "chunked");
    keep(guard->coding, sizeof guard->coding, value, bytes);
    return ++guard->codings == 1 || reject_repeated("Transfer-Encoding", guard->codings, problem);
}

/* Finds the parts of a line, also of a trailer's. */
static bool split_line(const char *line, size_t bytes, size_t *name_bytes, const char **value,
                       struct bag_problem *problem)
{
    const char *colon = memchr(line, ':', bytes), *end = line + bytes;
    if (*line == ' ' || *line == '\t')
        return reject(problem, "a header line begins with a blank: folded lines are not accepted");
    *name_bytes = colon ? (size_t)(colon - line) : bytes;
    if (!colon || colon == line || !all_in(line, *name_bytes, T))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "header '%s': the name must be a token, directly followed by a "
                               "colon",
                               bag_quote(line, *name_bytes).text);
    *value = colon + 1;
    while (*value < end && (**value == ' ' || **value == '\t'))
        ++*value;
    return all_in(*value, (size_t)(end - *value), V) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "header '%s': the value must not hold control characters",
                           bag_quote(line, *name_bytes).text);
}

static bool check_header(struct bag_guard *guard, const char *line, size_t bytes,
                         struct bag_problem *problem)
{
    size_t name_bytes;
    const char *value;
    guard->line_bytes += BAG_GUARD_LINE_BYTES;
    return split_line(line, bytes, &name_bytes, &value, problem) &&
           check_meaning(guard, line, name_bytes, value, (size_t)(line + bytes - value), problem);
}

/* ---- the ends of heads and requests ---------------------------------------------------------- */

void bag_guard_end_request(struct bag_guard *guard)
{
    guard->stage = BAG_GUARD_FIRST_LINE;
    guard->requests++;
    guard->empty_lines = guard->hosts = guard->lengths = guard->codings = 0;
    guard->line_bytes = 0;
    guard->length = 0;
    guard->chunked = false;
    guard->first_line[0] = guard->request_id[0] = 0;
}

/* 3.2: one Host, also beside a whole URL; HTTP/1.0 did not know it yet. 6.1 to 6.3: where the body
 * ends. */
static bool end_head(struct bag_guard *guard, struct bag_problem *problem)
{
    guard->heads++;
    if (guard->hosts != 1 && !guard->http_1_0)
        return reject(problem, "the request has 0 Host headers; it must have one");
    if (guard->codings && guard->lengths)
        return reject(problem, "the request has both Content-Length and Transfer-Encoding; it must "
                               "have at most one of them");
    if (guard->codings && guard->http_1_0)
        return reject(problem, "HTTP/1.0 has no Transfer-Encoding");
    if (guard->codings && !guard->chunked)
        return reject_coding(guard->coding, problem);
    guard->line_bytes = 0;
    guard->left = guard->length;
    guard->stage = guard->chunked ? BAG_GUARD_CHUNK_SIZE : BAG_GUARD_BODY;
    if (!guard->chunked && !guard->left)
        bag_guard_end_request(guard);
    return true;
}

/* ---- lines ----------------------------------------------------------------------------------- */

bool bag_guard_head_line(struct bag_guard *guard, const char *line, size_t bytes,
                         struct bag_problem *problem)
{
    if (guard->stage == BAG_GUARD_FIRST_LINE)
        return bytes ? check_first_line(guard, line, bytes, problem)
                     : check_empty_line(guard, problem);
    return bytes ? check_header(guard, line, bytes, problem) : end_head(guard, problem);
}

/* What a trailer says means nothing here. */
bool bag_guard_trailer_line(struct bag_guard *guard, const char *line, size_t bytes,
                            struct bag_problem *problem)
{
    size_t name_bytes;
    const char *value;
    guard->line_bytes += BAG_GUARD_LINE_BYTES;
    if (bytes)
        return split_line(line, bytes, &name_bytes, &value, problem);
    bag_guard_end_request(guard);
    return true;
}

/* ---- heads like the last one ----------------------------------------------------------------- */

/* A client sends nearly the same head again and again. One that differs from the last valid one in
 * digits of its header lines alone is as valid: no name that means anything has a digit, and where
 * one digit may be another may. The first line must be the same, and the length is read anew. */

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && is_digit(*at))
        at++;
    return at;
}

static size_t count_same(const char *a, const char *b, size_t bytes)
{
    size_t i = 0;
    while (i + sizeof(uint64_t) <= bytes && memcmp(a + i, b + i, sizeof(uint64_t)) == 0)
        i += sizeof(uint64_t);
    while (i < bytes && a[i] == b[i])
        i++;
    return i;
}

/* What is behind the part of `at` that differs from `known` in the digits of its numbers alone;
 * NULL where more differs. The bytes in front of both are the same. */
static const char *match(const char *known, size_t known_bytes, const char *at, const char *end)
{
    const char *known_end = known + known_bytes;
    while (known < known_end && at < end) {
        size_t left = (size_t)(end - at), known_left = (size_t)(known_end - known);
        size_t same = count_same(known, at, left < known_left ? left : known_left);
        known += same;
        at += same;
        if (known == known_end || at == end)
            break;
        bool digits = is_digit(known[-1]) ? is_digit(*known) || is_digit(*at)
                                          : is_digit(*known) && is_digit(*at);
        if (!digits)
            return NULL;
        known = skip_digits(known, known_end);
        at = skip_digits(at, end);
    }
    return known == known_end ? at : NULL;
}

void bag_guard_keep_head(struct bag_guard *guard, const char *text, size_t bytes)
{
    struct bag_guard_head *known = &guard->known;
    known->bytes = 0;
    if (bytes > sizeof known->text || guard->http_1_0 || !guard->lengths || *guard->request_id)
        return;
    memcpy(known->text, text, bytes);
    known->bytes = bytes;
    known->first_line_bytes = (size_t)((const char *)memchr(text, '\n', bytes) + 1 - text);
    known->length_at = (size_t)(guard->length_value - text);
    known->length_bytes =
        (size_t)(skip_digits(guard->length_value, text + bytes) - guard->length_value);
}

const char *bag_guard_take_known_head(struct bag_guard *guard, const char *at, const char *end)
{
    const struct bag_guard_head *known = &guard->known;
    const char *text = at, *behind;
    struct bag_problem ignored BAG_UNSET;
    if (guard->piece || !known->bytes || (size_t)(end - at) < known->first_line_bytes ||
        memcmp(at, known->text, known->first_line_bytes) != 0)
        return NULL;
    size_t front = known->first_line_bytes, back = known->length_at + known->length_bytes;
    at = match(known->text + front, known->length_at - front, at + front, end);
    if (!at || (behind = skip_digits(at, end)) == at)
        return NULL;
    size_t length_bytes = (size_t)(behind - at);
    const char *value = at;
    at = match(known->text + back, known->bytes - back, behind, end);
    if (!at || (size_t)(at - text) > sizeof known->text ||
        !check_length_value(guard, value, length_bytes, &ignored) || guard->length == 0)
        return NULL;
    keep(guard->first_line, sizeof guard->first_line, text, front - 2);
    guard->http_1_0 = false;
    guard->hosts = guard->lengths = 1;
    return end_head(guard, &ignored) ? at : NULL;
}
