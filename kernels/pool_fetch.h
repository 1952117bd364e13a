/* Fetching rows ahead of their turn: how far, and into which cache.
 *
 * Out of order execution hides the way to the nearest caches by itself, where fetching only costs;
 * beyond, the rows of the next bags are asked for while this one is added.
 *
 * Must not know: elements. */
#ifndef BAG_POOL_FETCH_H
#define BAG_POOL_FETCH_H

#include <stdbool.h>
#include <stddef.h>

struct bag_fetch {
    size_t ahead;   /* entries */
    size_t end;     /* entries before this one have a row `ahead` of them to fetch */
    bool near;      /* into the first cache; else into the second, where that is better */
    bool straddles; /* rows do not begin at the cache's lines: the last byte may be in one more */
};

/* Asks for `bytes` from `from` on, and for the byte at `last`, into the first cache or the second.
 * An address that is no row's does no harm: these are only hints. */
static inline __attribute__((always_inline)) void bag_fetch_lines(const struct bag_fetch *fetch,
                                                                  bool near, const char *from,
                                                                  size_t bytes, const char *last)
{
    if (near) {
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

#endif
