/* Which bytes are requests: every byte that a connection receives is checked here before
 * libmicrohttpd has it.
 *
 * Two reasons. The library accepts what another server in front of this one may read differently:
 * two lengths, a length beside chunks, folded lines, lines and chunks that end with LF alone. Where
 * two readers can differ about where a request ends, one client can write another's request. And it
 * answers what it rejects itself with HTML, some of it twice, spins on a chunk extension that is
 * longer than its memory, and waits for ever where a query has more arguments than fit. So a
 * request that is not exactly of RFC 9112's form, or too long, ends its connection with an error in
 * JSON.
 *
 * No heap but for a line that comes in pieces, no sockets; one for each connection, used by its
 * loop's thread. */
#ifndef BAG_HTTP_GUARD_H
#define BAG_HTTP_GUARD_H

#include "proto/problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A first line's target is at most this long, and a head with all its lines: what the library keeps
 * of one must fit into a connection's memory beside the reply's head. */
#define BAG_GUARD_MAX_TARGET_BYTES 8000
#define BAG_GUARD_MAX_HEAD_BYTES   (13 << 10)

/* What a length may be: more is not even counted. */
#define BAG_GUARD_MAX_BODY_BYTES ((uint64_t)INT64_MAX)

/* What each header line counts on top of its bytes. */
#define BAG_GUARD_LINE_BYTES 64

/* The line of a chunk's size with its extension, and a trailer with all its lines. */
#define BAG_GUARD_MAX_CHUNK_LINE_BYTES 256
#define BAG_GUARD_MAX_TRAILER_BYTES    1024

enum bag_guard_stage {
    BAG_GUARD_FIRST_LINE,
    BAG_GUARD_HEADERS,
    BAG_GUARD_BODY,       /* of a known length */
    BAG_GUARD_CHUNK_SIZE, /* the line in front of a chunk */
    BAG_GUARD_CHUNK,
    BAG_GUARD_CHUNK_END, /* the CR LF behind it */
    BAG_GUARD_TRAILER,
};

/* The last valid head of a connection; see guard_head.c. */
struct bag_guard_head {
    char text[512];
    size_t bytes; /* 0: none */
    size_t first_line_bytes;
    size_t length_at, length_bytes; /* the digits of its Content-Length */
};

/* All zero: a new connection. */
struct bag_guard {
    enum bag_guard_stage stage;
    unsigned heads;       /* complete so far */
    unsigned requests;    /* likewise, with their bodies */
    unsigned empty_lines; /* in front of a first line */
    size_t line_bytes;    /* of the head or the trailer so far, as they count */
    uint64_t left;        /* of the body or the chunk */
    bool http_1_0, chunked;
    bool in_extension;                /* of a chunk's size line */
    unsigned hosts, lengths, codings; /* how many lines of each there are */
    uint64_t length;
    const char *length_value; /* its digits, in the head that is being checked */
    struct bag_guard_head known;
    char coding[32];      /* the Transfer-Encoding, truncated */
    char first_line[256]; /* the request's, for logs, truncated; empty: none yet */
    char request_id[257]; /* X-Request-Id, likewise */
    char *piece;          /* owned: a line whose end has not come; NULL: none */
    size_t piece_bytes;
};

/* Checks what has been received, and leaves in `data` the first *passed_bytes for the library: all
 * but extensions of chunks, which libmicrohttpd 1.0 cannot read, and with other names for cookies
 * and other marks between a query's arguments, which it would parse for nobody. False with *problem
 * where it is not HTTP: then they are those of complete requests in front of the one that is wrong.
 */
bool bag_guard_check(struct bag_guard *guard, char *data, size_t bytes, size_t *passed_bytes,
                     struct bag_problem *problem);

void bag_guard_free(struct bag_guard *guard);

/* ---- heads (guard_head.c), for guard.c ------------------------------------------------------- */

/* Whether all bytes may stand in a token; in a header's value. */
bool bag_guard_is_token(const char *text, size_t bytes);
bool bag_guard_is_value(const char *text, size_t bytes);

/* The next line of a head, without its CR LF; an empty one ends the head. */
bool bag_guard_head_line(struct bag_guard *guard, const char *line, size_t bytes,
                         struct bag_problem *problem);

/* The next line of a trailer, likewise; an empty one ends the request. */
bool bag_guard_trailer_line(struct bag_guard *guard, const char *line, size_t bytes,
                            struct bag_problem *problem);

/* A request with its body is complete: the next bytes are another's. */
void bag_guard_end_request(struct bag_guard *guard);

/* False, with *problem: the bytes begin no request. */
bool bag_guard_reject_first_line(struct bag_problem *problem);

/* Keeps a valid head, to know the next one by it. */
void bag_guard_keep_head(struct bag_guard *guard, const char *text, size_t bytes);

/* Takes a whole head that is like the one that was kept, and returns what is behind it; NULL: take
 * it line by line. */
const char *bag_guard_take_known_head(struct bag_guard *guard, const char *at, const char *end);

#endif
