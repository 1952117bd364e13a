/* A radix sort of elements that begin with an id: ids alone, or ids with their positions. */
#pragma once

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

/* Sorts by one byte of the id, which `shift` selects. Returns false and does nothing if the byte is
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

/* Sorts elements of `bytes`, a constant, by the id at their start, which is at most `largest`. The
 * sort is stable. It allocates nothing: `other` has the same size, and the result is in one of the
 * two arrays, which is returned. */
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
