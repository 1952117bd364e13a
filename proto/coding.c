/* Reads and chooses content codings, and compresses and decompresses with zlib; see coding.h. */
#include "coding.h"

#include "text.h"

#include <string.h>
#include <strings.h>

#define ZLIB_CONST
#include <zlib.h>

/* ---- names ----------------------------------------------------------------------------------- */

const char *const bag_coding_names[BAG_CODING_COUNT] = {BAG_CODINGS(BAG_NAME)};

/* The characters that HTTP allows around the elements of a list. */
#define BLANKS " \t"

/* Returns the coding that a token names, or BAG_CODING_COUNT if it is unknown. */
static enum bag_coding find(const char *token, size_t bytes)
{
    enum bag_coding coding = 0;
    if (bytes == 6 && strncasecmp(token, "x-gzip", 6) == 0)
        return BAG_CODING_GZIP; /* the old name of gzip */
    while (coding < BAG_CODING_COUNT && (strlen(bag_coding_names[coding]) != bytes ||
                                         strncasecmp(token, bag_coding_names[coding], bytes) != 0))
        coding++;
    return coding;
}

bool bag_coding_read(const char *value, enum bag_coding *coding, struct bag_problem *problem)
{
    struct bag_text name = bag_text_without_blanks(value);
    *coding = find(name.data, name.bytes);
    return *coding != BAG_CODING_COUNT ||
           bag_problem_set(problem, BAG_ERROR_UNSUPPORTED_ENCODING,
                           "Content-Encoding is '%s'; it must be one of gzip, deflate (with zlib's "
                           "header) and identity",
                           bag_quote(value, strlen(value)).text);
}

/* ---- Accept-Encoding ------------------------------------------------------------------------- */

int bag_coding_weight(const char *at, const char *end)
{
    at += strspn(at, BLANKS);
    if (at >= end || *at != ';')
        return 1000;
    at += 1 + strspn(at + 1, BLANKS);
    if (end - at < 3 || (*at != 'q' && *at != 'Q') || at[1] != '=')
        return 0;
    if (at[2] == '1')
        return 1000;
    int weight = 0, unit = 100;
    if (at[2] != '0' || end - at < 4 || at[3] != '.')
        return 0;
    for (at += 4; at < end && *at >= '0' && *at <= '9'; at++, unit /= 10)
        weight += (*at - '0') * unit;
    return weight;
}

enum bag_coding bag_coding_choose(const char *accept)
{
    /* Find the weight of each coding that the header names; -1: not named. */
    int weights[BAG_CODING_COUNT + 1]; /* the last one is the weight of "*" */
    for (size_t i = 0; i <= BAG_CODING_COUNT; i++)
        weights[i] = -1;
    while (*accept) {
        accept += strspn(accept, BLANKS ",");
        const char *end = accept + strcspn(accept, ",");
        size_t bytes = strcspn(accept, BLANKS ",;");
        enum bag_coding coding = find(accept, bytes);
        if (coding != BAG_CODING_COUNT || (bytes == 1 && *accept == '*'))
            weights[coding] = bag_coding_weight(accept + bytes, end);
        accept = end;
    }
    enum bag_coding best = BAG_CODING_IDENTITY;
    int most = weights[best] > 0 ? weights[best] - 1
                                 : 0; /* at equal weights a compressed coding is preferred */
    /* A coding that is not named has the weight of "*", if the header has one. */
    for (enum bag_coding i = BAG_CODING_GZIP; i < BAG_CODING_COUNT; i++) {
        int weight = weights[i] >= 0 ? weights[i] : weights[BAG_CODING_COUNT];
        if (weight > most) {
            best = i;
            most = weight;
        }
    }
    return best;
}

/* ---- decompressing --------------------------------------------------------------------------- */

/* zlib's window has 2^15 bytes; adding 16 selects gzip's header. */
#define WINDOW_BITS(coding) ((coding) == BAG_CODING_GZIP ? 15 + 16 : 15)

/* zlib counts in unsigned int, so longer parts are passed to it in pieces. */
#define PIECE_BYTES ((size_t)1 << 30)

/* The usual ratio of decompression. Numbers as text shrink to about a third. */
#define USUAL_RATIO 4

/* Minimum size of the buffer for the result, in bytes, before it is doubled for the first time. */
#define MIN_ROOM 1024

/* Returns the number of bytes of a part that are passed to zlib at once. */
static unsigned piece(size_t bytes)
{
    return (unsigned)(bytes < PIECE_BYTES ? bytes : PIECE_BYTES);
}

/* The state of decompressing one body. */
struct inflation {
    z_stream stream;
    enum bag_coding coding;
    const char *in, *end;
    char *out;
    size_t used, room;
    size_t max_bytes; /* minimum of both limits */
    size_t packed_bytes;
    const struct bag_inflate_limits *limits;
    const struct bag_memory_source *memory;
    struct bag_problem *problem;
};

static bool reject(struct inflation *inflation, const char *what)
{
    return bag_problem_set(inflation->problem, BAG_ERROR_BAD_REQUEST,
                           "the body is not valid %s: %s", bag_coding_names[inflation->coding],
                           what);
}

static bool reject_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                           "not enough memory to decompress the body");
}

/* Rejects a result that exceeds the smaller one of the two limits, and names that one. Returns
 * false. */
static bool reject_size(struct inflation *inflation)
{
    if (inflation->max_bytes == inflation->limits->max_bytes)
        return bag_problem_set(inflation->problem, BAG_ERROR_TOO_LARGE,
                               "the decompressed body is larger than the limit (max_body_bytes) "
                               "of %zu bytes",
                               inflation->max_bytes);
    return bag_problem_set(
        inflation->problem, BAG_ERROR_TOO_LARGE,
        "the decompressed body is larger than %zu bytes; from the %zu bytes that "
        "were sent it may become %zu times as many, or "
        "%zu bytes",
        inflation->max_bytes, inflation->packed_bytes, inflation->limits->max_ratio,
        BAG_INFLATE_ANY_RATIO);
}

/* Doubles the buffer, up to one byte more than the limit. That byte shows that the result is too
 * large. */
static bool grow(struct inflation *inflation)
{
    size_t most = inflation->max_bytes + 1, room = inflation->room;
    if (room == most)
        return reject_size(inflation);
    if (room == 0)
        room = (size_t)(inflation->end - inflation->in) / 2 * USUAL_RATIO;
    room = room < MIN_ROOM ? MIN_ROOM : 2 * room;
    if (room > most)
        room = most;
    char *out = inflation->memory->get(inflation->memory->context, room);
    if (!out)
        return reject_memory(inflation->problem);
    if (inflation->used)
        memcpy(out, inflation->out, inflation->used);
    inflation->memory->put(inflation->out);
    inflation->out = out;
    inflation->room = room;
    return true;
}

/* Lets zlib continue with the remaining input and output. Returns its code. */
static int step(struct inflation *inflation)
{
    z_stream *stream = &inflation->stream;
    unsigned in = piece((size_t)(inflation->end - inflation->in));
    unsigned out = piece(inflation->room - inflation->used);
    stream->next_in = (const unsigned char *)inflation->in;
    stream->avail_in = in;
    stream->next_out = (unsigned char *)inflation->out + inflation->used;
    stream->avail_out = out;
    int code = inflate(stream, Z_NO_FLUSH);
    inflation->in += in - stream->avail_in;
    inflation->used += out - stream->avail_out;
    return code;
}

/* Handles the end of a stream. In gzip another stream may follow; nothing else may. */
static bool start_next(struct inflation *inflation)
{
    if (inflation->coding != BAG_CODING_GZIP || *inflation->in != '\x1f')
        return reject(inflation, "bytes follow after its end");
    return inflateReset(&inflation->stream) == Z_OK || reject_memory(inflation->problem);
}

/* Decompresses all input into the buffer, which grows as needed. Returns false and sets the problem
 * if the input is invalid or too large, or memory is exhausted. The caller frees the buffer then.
 */
static bool inflate_all(struct inflation *inflation)
{
    for (;;) {
        if (inflation->used == inflation->room && !grow(inflation))
            return false;
        switch (step(inflation)) {
        case Z_OK:
            break;
        case Z_STREAM_END:
            if (inflation->used > inflation->max_bytes)
                return grow(inflation); /* grow() rejects the body */
            if (inflation->in == inflation->end)
                return true;
            if (!start_next(inflation))
                return false;
            break;
        case Z_BUF_ERROR: /* there is output space, so the input has ended early */
            return reject(inflation, "it ends too early");
        case Z_NEED_DICT:
            return reject(inflation, "it needs a preset dictionary");
        case Z_MEM_ERROR:
            return reject_memory(inflation->problem);
        default:
            return reject(inflation, inflation->stream.msg ? inflation->stream.msg : "bad data");
        }
    }
}

/* Returns the maximum decompressed size of a body of `packed_bytes` by both limits. */
static size_t max_bytes(const struct bag_inflate_limits *limits, size_t packed_bytes)
{
    size_t most;
    if (__builtin_mul_overflow(packed_bytes, limits->max_ratio, &most))
        most = SIZE_MAX;
    if (most < BAG_INFLATE_ANY_RATIO)
        most = BAG_INFLATE_ANY_RATIO;
    return most < limits->max_bytes ? most : limits->max_bytes;
}

char *bag_inflate(enum bag_coding coding, const char *packed, size_t packed_bytes,
                  const struct bag_inflate_limits *limits, const struct bag_memory_source *memory,
                  size_t *bytes, struct bag_problem *problem)
{
    struct inflation inflation = {.coding = coding,
                                  .in = packed,
                                  .end = packed + packed_bytes,
                                  .max_bytes = max_bytes(limits, packed_bytes),
                                  .packed_bytes = packed_bytes,
                                  .limits = limits,
                                  .memory = memory,
                                  .problem = problem};
    if (inflateInit2(&inflation.stream, WINDOW_BITS(coding)) != Z_OK) {
        reject_memory(problem);
        return NULL;
    }
    bool ok = inflate_all(&inflation);
    inflateEnd(&inflation.stream);
    *bytes = inflation.used;
    if (ok)
        return inflation.out;
    memory->put(inflation.out);
    return NULL;
}

/* ---- compressing ----------------------------------------------------------------------------- */

size_t bag_deflate(enum bag_coding coding, const char *data, size_t bytes, char *out, size_t room)
{
    z_stream stream = {0};
    size_t taken = 0, made = 0;
    int code = Z_OK;
    if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, WINDOW_BITS(coding), 8,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return 0;
    /* Without Z_FINISH zlib may keep output back, so only the last piece of the input ends the
     * stream. If `out` fills up first, `code` never becomes Z_STREAM_END. */
    while (code == Z_OK && made < room) {
        unsigned in = piece(bytes - taken), out_bytes = piece(room - made);
        stream.next_in = (const unsigned char *)data + taken;
        stream.avail_in = in;
        stream.next_out = (unsigned char *)out + made;
        stream.avail_out = out_bytes;
        code = deflate(&stream, taken + in == bytes ? Z_FINISH : Z_NO_FLUSH);
        taken += in - stream.avail_in;
        made += out_bytes - stream.avail_out;
    }
    deflateEnd(&stream);
    return code == Z_STREAM_END ? made : 0;
}
