/* Where requests, their bodies and chunks begin and end; see guard.h. Numbers in comments are
 * sections of RFC 9112. */
#include "guard.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool reject(struct bag_problem *problem, const char *sentence)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", sentence);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static unsigned hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return (unsigned)(digit - '0');
    unsigned letter = (unsigned char)(digit | 0x20) - 'a';
    return letter < 6 ? letter + 10 : 16;
}

/* 7.1: a size in hexadecimal digits, and perhaps extensions, which mean nothing here. */
static bool check_chunk_size(struct bag_guard *guard, const char *line, size_t bytes,
                             struct bag_problem *problem)
{
    size_t digits = 0;
    guard->left = 0;
    for (unsigned digit; digits < bytes && (digit = hex_digit(line[digits])) < 16; digits++) {
        if (guard->left > (BAG_GUARD_MAX_BODY_BYTES - digit) / 16)
            return bag_problem_set(problem, BAG_ERROR_TOO_LARGE,
                                   "chunk size '%s' is larger than any limit",
                                   bag_quote(line, bytes).text);
        guard->left = guard->left * 16 + digit;
    }
    if (!digits || (digits < bytes && line[digits] != ';') ||
        !bag_guard_is_value(line + digits, bytes - digits))
        return bag_problem_set(
            problem, BAG_ERROR_BAD_REQUEST,
            "chunk size '%s' must be hexadecimal digits, and perhaps a semicolon "
            "with extensions",
            bag_quote(line, bytes).text);
    guard->line_bytes = 0;
    guard->stage = guard->left ? BAG_GUARD_CHUNK : BAG_GUARD_TRAILER;
    return true;
}

static bool check_chunk_end(struct bag_guard *guard, size_t bytes, struct bag_problem *problem)
{
    guard->line_bytes = 0;
    guard->stage = BAG_GUARD_CHUNK_SIZE;
    return bytes == 0 || reject(problem, "a chunk must end with CR LF after as many bytes as its "
                                         "size says");
}

/* Passes over bytes of a body or a chunk. */
static const char *skip(struct bag_guard *guard, const char *at, const char *end)
{
    size_t bytes = (size_t)(end - at);
    if (bytes < guard->left) {
        guard->left -= bytes;
        return end;
    }
    bytes = (size_t)guard->left;
    if (guard->stage == BAG_GUARD_CHUNK)
        guard->stage = BAG_GUARD_CHUNK_END;
    else
        bag_guard_end_request(guard);
    return at + bytes;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* A whole line, without its CR LF. */
static bool check_line(struct bag_guard *guard, const char *line, size_t bytes,
                       struct bag_problem *problem)
{
    switch (guard->stage) {
    case BAG_GUARD_FIRST_LINE:
    case BAG_GUARD_HEADERS:
        return bag_guard_head_line(guard, line, bytes, problem);
    case BAG_GUARD_CHUNK_SIZE:
        return check_chunk_size(guard, line, bytes, problem);
    case BAG_GUARD_CHUNK_END:
        return check_chunk_end(guard, bytes, problem);
    default:
        return bag_guard_trailer_line(guard, line, bytes, problem);
    }
}

/* Lines with their ends, of which the last may be incomplete. */
static bool check_room(struct bag_guard *guard, size_t bytes, struct bag_problem *problem)
{
    static const size_t limits[] = {
        [BAG_GUARD_FIRST_LINE] = BAG_GUARD_MAX_TARGET_BYTES + 1024,
        [BAG_GUARD_HEADERS] = BAG_GUARD_MAX_HEAD_BYTES,
        [BAG_GUARD_CHUNK_SIZE] = BAG_GUARD_MAX_CHUNK_LINE_BYTES,
        [BAG_GUARD_CHUNK_END] = 2,
        [BAG_GUARD_TRAILER] = BAG_GUARD_MAX_TRAILER_BYTES,
    };
    guard->line_bytes += bytes;
    if (guard->line_bytes <= limits[guard->stage])
        return true;
    switch (guard->stage) {
    case BAG_GUARD_FIRST_LINE:
        return bag_problem_set(problem, BAG_ERROR_TARGET_TOO_LONG,
                               "the first line is longer than the limit of %zu bytes",
                               limits[BAG_GUARD_FIRST_LINE]);
    case BAG_GUARD_CHUNK_SIZE:
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the line of a chunk's size, with its extensions, is longer than "
                               "the limit of %d bytes",
                               BAG_GUARD_MAX_CHUNK_LINE_BYTES);
    case BAG_GUARD_CHUNK_END:
        return check_chunk_end(guard, bytes, problem);
    default:
        return bag_problem_set(problem, BAG_ERROR_HEADERS_TOO_LARGE,
                               "the %s take more than the limit of %zu bytes, where each line "
                               "counts %d bytes more than it has",
                               guard->stage == BAG_GUARD_HEADERS ? "headers" : "trailers",
                               limits[guard->stage], BAG_GUARD_LINE_BYTES);
    }
}

/* Checks a line that ends with LF. */
static bool end_line(struct bag_guard *guard, const char *line, size_t bytes,
                     struct bag_problem *problem)
{
    if (bytes >= 2 && line[bytes - 2] == '\r')
        return check_line(guard, line, bytes - 2, problem);
    if (guard->stage == BAG_GUARD_FIRST_LINE)
        return bag_guard_reject_first_line(problem);
    return reject(problem, "a line ends with LF alone; every line must end with CR LF");
}

/* Keeps what has come of a line. A limit bounds it. */
static bool keep_piece(struct bag_guard *guard, const char *data, size_t bytes,
                       struct bag_problem *problem)
{
    char *piece = realloc(guard->piece, guard->piece_bytes + bytes);
    if (!piece)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory for a head");
    memcpy(piece + guard->piece_bytes, data, bytes);
    guard->piece = piece;
    guard->piece_bytes += bytes;
    return true;
}

/* What can begin neither a method nor an empty line is not HTTP, whatever follows: TLS, for one. */
static bool check_beginning(const struct bag_guard *guard, const char *data,
                            struct bag_problem *problem)
{
    return guard->stage != BAG_GUARD_FIRST_LINE || guard->piece || *data == '\r' ||
           bag_guard_is_token(data, 1) || bag_guard_reject_first_line(problem);
}

/* What the library would read into a connection's memory though nobody asks for it, until it is
 * full: cookies, whose header gets another name, and a query's arguments, of which one is left.
 * `front` has come of the line, `at` comes now. */
static void hide(enum bag_guard_stage stage, const char *front, size_t front_bytes, char *at,
                 size_t bytes)
{
    static const char cookie[] = "cookie";
    const size_t last = sizeof cookie - 2;
    if (stage == BAG_GUARD_FIRST_LINE) {
        char *end = at + bytes;
        if (!memchr(front, '?', front_bytes) && !(at = memchr(at, '?', bytes)))
            return;
        while ((at = memchr(at, '&', (size_t)(end - at))))
            *at = '_';
    } else if (stage == BAG_GUARD_HEADERS && front_bytes <= last && front_bytes + bytes > last &&
               strncasecmp(front, cookie, front_bytes) == 0 &&
               strncasecmp(at, cookie + front_bytes, last + 1 - front_bytes) == 0) {
        at[last - front_bytes] = '~';
    }
}

/* Checks the next line, or keeps what there is of it; returns what is behind it, NULL with *problem
 * where it is wrong. */
static const char *take_line(struct bag_guard *guard, char *at, const char *end,
                             struct bag_problem *problem)
{
    enum bag_guard_stage stage = guard->stage;
    const char *lf = memchr(at, '\n', (size_t)(end - at)), *next = lf ? lf + 1 : end;
    size_t bytes = (size_t)(next - at);
    if (!check_beginning(guard, at, problem) || !check_room(guard, bytes, problem))
        return NULL;
    if (lf && !guard->piece) {
        if (!end_line(guard, at, bytes, problem))
            return NULL;
        hide(stage, "", 0, at, bytes);
        return next;
    }
    if (!keep_piece(guard, at, bytes, problem) ||
        (lf && !end_line(guard, guard->piece, guard->piece_bytes, problem)))
        return NULL;
    hide(stage, guard->piece, guard->piece_bytes - bytes, at, bytes);
    if (lf)
        bag_guard_free(guard);
    return next;
}

/* Moves what the library gets to the front; returns its end. */
static char *pass(char *to, const char *from, size_t bytes)
{
    if (to != from)
        memmove(to, from, bytes);
    return to + bytes;
}

/* The same for bytes of a chunk's size line: its extension stays behind. */
static char *pass_size_line(struct bag_guard *guard, char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        bool ends = from[i] == '\r' || from[i] == '\n';
        guard->in_extension = !ends && (guard->in_extension || from[i] == ';');
        if (!guard->in_extension)
            *to++ = from[i];
    }
    return to;
}

bool bag_guard_check(struct bag_guard *guard, char *data, size_t bytes, size_t *passed_bytes,
                     struct bag_problem *problem)
{
    const char *end = data + bytes;
    char *to = data;
    const char *head = NULL; /* begins in these bytes, which stay where they are */
    *passed_bytes = 0;
    for (const char *at = data, *next; at < end; at = next) {
        enum bag_guard_stage stage = guard->stage;
        if (stage == BAG_GUARD_FIRST_LINE)
            head = to == at && !guard->piece ? at : NULL;
        if (stage == BAG_GUARD_BODY || stage == BAG_GUARD_CHUNK)
            next = skip(guard, at, end);
        else if (!(stage == BAG_GUARD_FIRST_LINE &&
                   (next = bag_guard_take_known_head(guard, at, end))) &&
                 !(next = take_line(guard, data + (at - data), end, problem)))
            return false;
        if (head && stage == BAG_GUARD_HEADERS && guard->stage == BAG_GUARD_BODY)
            bag_guard_keep_head(guard, head, (size_t)(next - head));
        to = stage == BAG_GUARD_CHUNK_SIZE ? pass_size_line(guard, to, at, (size_t)(next - at))
                                           : pass(to, at, (size_t)(next - at));
        if (stage != BAG_GUARD_FIRST_LINE && guard->stage == BAG_GUARD_FIRST_LINE)
            *passed_bytes = (size_t)(to - data);
    }
    *passed_bytes = (size_t)(to - data);
    return true;
}

void bag_guard_free(struct bag_guard *guard)
{
    free(guard->piece);
    guard->piece = NULL;
    guard->piece_bytes = 0;
}
