/* The sizes of the processor's caches. */
#include "pool_loop.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Returns the sizes of the processor's caches. Leaf 4 describes each cache under a number of its
 * own. AMD's processors leave it empty and have the same description in another leaf. */
struct bag_caches bag_caches_of_processor(void)
{
    struct bag_caches caches = BAG_CACHES_USUAL;
#if defined(__x86_64__)
    static const unsigned leaves[] = {4, 0x8000001d};
    enum { DATA_CACHE = 1 };
    unsigned a, b, c, d;
    for (size_t i = 0; i < 2; i++) {
        for (unsigned n = 0; __get_cpuid_count(leaves[i], n, &a, &b, &c, &d) && (a & 31); n++) {
            unsigned level = a >> 5 & 7;
            size_t ways = (b >> 22) + 1, parts = (b >> 12 & 1023) + 1, line = (b & 4095) + 1;
            size_t bytes = ways * parts * line * ((size_t)c + 1);
            if (level == 1 && (a & 31) == DATA_CACHE)
                caches.first = bytes;
            if (level == 2)
                caches.second = caches.third = bytes;
            if (level == 3)
                caches.third = bytes;
        }
    }
#endif
    return caches;
}

struct bag_caches bag_caches = BAG_CACHES_USUAL;
