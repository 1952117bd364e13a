/* Content codings: their names in headers, and the bytes behind them.
 *
 * gzip is RFC 1952, deflate is zlib's wrapper (RFC 1950) as RFC 9110 says, not the bare stream.
 * Memory for results comes from the caller; zlib takes some of its own while it works. Safe on any
 * thread. */
#ifndef BAG_CODING_H
#define BAG_CODING_H

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

/* The value of Content-Encoding; rejects what is not one known coding. */
bool bag_coding_read(const char *value, enum bag_coding *coding, struct bag_problem *problem);

/* The coding that an Accept-Encoding asks for most; IDENTITY where it asks for none of ours. */
enum bag_coding bag_coding_choose(const char *accept);

/* Returns the weight after a token of an Accept header, in thousandths: of ";q=0.5" 500, of an
 * empty text 1000, of anything else 0. The text ends with a NUL at or after `end`. */
int bag_coding_weight(const char *at, const char *end);

/* How large a decompressed body may be. */
struct bag_inflate_limits {
    size_t max_bytes;
    size_t max_ratio; /* of its bytes to those sent; not up to BAG_INFLATE_ANY_RATIO bytes */
};

/* A body of up to this many bytes may come from any number of them. */
#define BAG_INFLATE_ANY_RATIO ((size_t)1 << 20)

/* Decompresses a body into memory that is the caller's from then on. gzip may have several members
 * one after the other; anything else behind the end, an early end, a wrong checksum and a preset
 * dictionary are rejected (BAD_REQUEST), and what is larger than the limits (TOO_LARGE) before more
 * than one byte beyond them is made. NULL with *problem set. */
char *bag_inflate(enum bag_coding coding, const char *packed, size_t packed_bytes,
                  const struct bag_inflate_limits *limits, const struct bag_memory_source *memory,
                  size_t *bytes, struct bag_problem *problem);

/* Compresses into `room` bytes at `out`, fast rather than small; the size, or 0 where it does not
 * fit or there is no memory. */
size_t bag_deflate(enum bag_coding coding, const char *data, size_t bytes, char *out, size_t room);

#endif
