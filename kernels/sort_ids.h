/* A radix sort of what begins with an id: of ids alone, or with their positions. */
#ifndef BAG_SORT_IDS_H
#define BAG_SORT_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t bag_sorted_id(const void *elements, size_t i, size_t bytes)
{
    uint64_t id;
    memcpy(&id, (const char *)elements + i * bytes, sizeof id);
    return id;
}

/* One pass, by the byte of the id that `shift` selects; false, and nothing is done, where that is
 * the same in all. */
__attribute__((always_inline)) static inline bool
bag_sort_by_byte(const void *from, size_t count, size_t bytes, unsigned shift, void *to)
{
    size_t next[257] = {0};
    for (size_t i = 0; i < count; i++)
        next[1 + (bag_sorted_id(from, i, bytes) >> shift & 255)]++;
    for (size_t byte = 0; byte < 256; byte++) {
        if (next[1 + byte] == count)
            return false;
        next[1 + byte] += next[byte];
    }
    for (size_t i = 0; i < count; i++)
        memcpy((char *)to + next[bag_sorted_id(from, i, bytes) >> shift & 255]++ * bytes,
               (const char *)from + i * bytes, bytes);
    return true;
}

/* Sorts elements of `bytes`, a constant, by the id that each begins with and that is at most
 * `largest`; equal ones keep their order. Takes no memory: `other` has room for as many, and the
 * result is one of the two arrays. */
__attribute__((always_inline)) static inline void *
bag_sort_ids(void *elements, void *other, size_t count, size_t bytes, uint64_t largest)
{
    for (unsigned shift = 0; shift < 64 && largest >> shift; shift += 8) {
        if (bag_sort_by_byte(elements, count, bytes, shift, other)) {
            void *sorted = other;
            other = elements;
            elements = sorted;
        }
    }
    return elements;
}

#endif
