/* Fetching rows ahead of their turn: how far, and into which cache.
 *
 * Out of order execution hides the way to the nearest caches by itself, where fetching only costs;
 * beyond, the rows of the next bags are asked for while this one is added.
 *
 * Must not know: elements. */
#ifndef BAG_POOL_FETCH_H
#define BAG_POOL_FETCH_H

#include "dispatch.h"

struct bag_fetch {
    size_t ahead;   /* entries */
    size_t end;     /* entries before this one have a row `ahead` of them to fetch */
    bool near;      /* into the first cache; else into the second */
    bool straddles; /* rows do not begin at the cache's lines: the last byte may be in one more */
};

/* How rows of tables are fetched that only memory holds: so many bytes ahead, into which cache. */
struct bag_far {
    size_t bytes;
    int cache; /* 1 or 2 */
};

/* What is right for the block's table. */
struct bag_fetch bag_fetch_for(const struct bag_block *block, struct bag_far far);

/* Asks for `bytes` from `from` on, and for the byte at `last`. An address that is no row's does no
 * harm: these are only hints. */
static inline __attribute__((always_inline)) void
bag_fetch_lines(const struct bag_fetch *fetch, const char *from, size_t bytes, const char *last)
{
    if (fetch->near) {
#pragma GCC unroll 8
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(from + i, 0, 3);
    } else {
#pragma GCC unroll 8
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(from + i, 0, 2);
    }
    if (fetch->straddles)
        __builtin_prefetch(last, 0, 2);
}

/* The same for all lines from `from` to `last`. */
static inline void bag_fetch_row(const struct bag_fetch *fetch, const char *from, const char *last)
{
    size_t bytes = (size_t)((uintptr_t)last - (uintptr_t)from) + 1;
    for (size_t i = 0; i < bytes; i += 64)
        if (fetch->near)
            __builtin_prefetch(from + i, 0, 3);
        else
            __builtin_prefetch(from + i, 0, 2);
    if (fetch->straddles)
        __builtin_prefetch(last, 0, 2);
}

#endif
