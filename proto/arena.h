/* An arena: memory that is allocated piece by piece and freed together.
 *
 * Everything that decoding a request needs comes from one arena, which has a maximum. Beyond it an
 * allocation returns NULL, and the request is answered with an error. So a hostile request cannot
 * take more memory than its limit, and no path of a parser has to free anything.
 *
 * An arena takes small blocks from the heap and large ones from its source, which may count them
 * against a budget. It is used by one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for one more element in a list of `count` elements. `list` is the address of the
 * pointer to the list, which is on the heap; NULL: it is empty. A list grows only by this function,
 * which doubles it at powers of two. Returns false if memory is exhausted; the list is then
 * unchanged. */
static inline bool bag_grow(void *list, size_t count, size_t element_bytes)
{
    void *elements;
    if (count & (count - 1))
        return true;
    memcpy(&elements, list, sizeof elements);
    elements = reallocarray(elements, count ? 2 * count : 1, element_bytes);
    if (elements)
        memcpy(list, &elements, sizeof elements);
    return elements != NULL;
}
#define BAG_GROW(list, count) bag_grow((void *)&(list), (count), sizeof *(list))

/* A source of large blocks. `get` returns `bytes` bytes, aligned to 16, or NULL. `put` returns a
 * block to the source. */
struct bag_memory_source {
    void *(*get)(void *context, size_t bytes);
    void (*put)(void *memory);
    void *context;
};

struct bag_arena {
    const struct bag_memory_source
        *source;                    /* source of large blocks, borrowed; NULL: the heap. It may be
                                     changed at any time: a block returns to its own source */
    struct bag_arena_block *blocks; /* newest first; owned */
    char *next, *end;               /* free part of the newest block */
    size_t used_bytes; /* bytes of all blocks without their own heads, limited by max_bytes */
    size_t max_bytes;
};

/* Initialises an empty arena. Allocates nothing. */
void bag_arena_init(struct bag_arena *arena, size_t max_bytes);

/* Returns `bytes` bytes (0 or more), aligned to 16 and not cleared. Returns NULL if the arena's
 * maximum or the machine's memory does not suffice. */
void *bag_arena_alloc(struct bag_arena *arena, size_t bytes);

/* Allocates `count` elements of `size` bytes, like bag_arena_alloc. Returns NULL if the product
 * overflows, too. */
void *bag_arena_array(struct bag_arena *arena, size_t count, size_t size);

/* Frees everything that was allocated and sets the maximum to `max_bytes`. If the arena had a
 * single block of the usual size, it keeps that block for later allocations, so that most requests
 * do not touch the heap. */
void bag_arena_reset(struct bag_arena *arena, size_t max_bytes);

/* Returns whether nothing is allocated, and the arena owns at most the block that
 * bag_arena_reset() keeps. */
bool bag_arena_is_reset(const struct bag_arena *arena);

/* Frees everything. The arena is then empty and can be used again. */
void bag_arena_free(struct bag_arena *arena);
