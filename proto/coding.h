/* Content codings: their names in HTTP headers, compression and decompression.
 *
 * gzip is RFC 1952. deflate is zlib's wrapper (RFC 1950), as RFC 9110 defines it, not a bare
 * stream. The caller provides memory for results; zlib allocates its working memory itself. All
 * functions are thread-safe. */
#pragma once

#include "arena.h"
#include "problem.h"

/* X(ID, name in Content-Encoding) */
#define BAG_CODINGS(X)      \
    X(IDENTITY, "identity") \
    X(GZIP, "gzip")         \
    X(DEFLATE, "deflate")

enum bag_coding {
#define BAG_X(id, name) BAG_CODING_##id,
    BAG_CODINGS(BAG_X)
#undef BAG_X
        BAG_CODING_COUNT
};

/* Indexed by enum bag_coding. */
extern const char *const bag_coding_names[BAG_CODING_COUNT];

/* Reads the value of a Content-Encoding header. Returns false and sets *problem if it is not
 * exactly one known coding. */
bool bag_coding_read(const char *value, enum bag_coding *coding, struct bag_problem *problem);

/* Returns the coding with the highest weight in an Accept-Encoding header. If weights are equal,
 * gzip precedes deflate, and both precede identity. Returns IDENTITY if the header names no coding
 * that is known here, or only with weight 0. */
enum bag_coding bag_coding_choose(const char *accept);

/* Returns the weight after a token of an Accept header, in thousandths: 500 for ";q=0.5", and 1000
 * if no parameter follows. Returns 0 if another parameter follows or the weight is malformed. The
 * text ends with a NUL at or after `end`. */
int bag_coding_weight(const char *at, const char *end);

/* Limits of a decompressed body. */
struct bag_inflate_limits {
    size_t max_bytes;
    size_t max_ratio; /* decompressed bytes per byte sent; not applied up to BAG_INFLATE_ANY_RATIO
                         bytes */
};

/* Decompressed size up to which any ratio is allowed. */
#define BAG_INFLATE_ANY_RATIO ((size_t)1 << 20)

/* Decompresses a body into memory that the caller then owns. gzip may have several members. Returns
 * NULL and sets *problem if that fails:
 *
 *   BAD_REQUEST  bytes follow the end, the body ends early, its checksum is wrong, or it needs a
 *                preset dictionary
 *   TOO_LARGE    the result exceeds a limit; at most one byte beyond it is produced
 *   NO_MEMORY    there is not enough memory */
char *bag_inflate(enum bag_coding coding, const char *packed, size_t packed_bytes,
                  const struct bag_inflate_limits *limits, const struct bag_memory_source *memory,
                  size_t *bytes, struct bag_problem *problem);

/* Compresses `data` into `out`, which has a capacity of `room` bytes, preferring speed to size.
 * Returns the compressed size, or 0 if the result does not fit or memory is exhausted. */
size_t bag_deflate(enum bag_coding coding, const char *data, size_t bytes, char *out, size_t room);
