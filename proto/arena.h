/* Memory that dies together: everything a request's decoding needs comes from one arena.
 *
 * The arena is born with its maximum; a request that asks for more gets NULL and is answered with
 * an error. Not for use by two threads at once. */
#ifndef BAG_ARENA_H
#define BAG_ARENA_H

#include <stddef.h>
#include <stdlib.h>

/* Room for one element more than the `count` of an array of the heap that grows by this alone: it
 * doubles at powers of two. NULL without memory; the array then stays as it was. */
static inline void *bag_grow(void *elements, size_t count, size_t element_bytes)
{
    if (count & (count - 1))
        return elements;
    return reallocarray(elements, count ? 2 * count : 1, element_bytes);
}

/* Where large memory comes from: `get` gives `bytes`, aligned to 16, or NULL; `put` takes it
 * back. */
struct bag_memory_source {
    void *(*get)(void *context, size_t bytes);
    void (*put)(void *memory);
    void *context;
};

struct bag_arena {
    const struct bag_memory_source
        *source;                    /* of large blocks, borrowed; NULL: the heap. May be
                                     set at any time; blocks go back to where they are from */
    struct bag_arena_block *blocks; /* newest first; owned */
    char *next, *end;               /* free part of the newest block */
    size_t used_bytes;              /* of all blocks, against max_bytes */
    size_t max_bytes;
};

/* An empty arena; allocates nothing. */
void bag_arena_init(struct bag_arena *arena, size_t max_bytes);

/* `bytes` zero or more bytes, aligned to 16, not cleared; NULL where the maximum or the machine's
 * memory is passed. */
void *bag_arena_alloc(struct bag_arena *arena, size_t bytes);

/* Like bag_arena_alloc for `count` elements of `size` bytes, with the product checked. */
void *bag_arena_array(struct bag_arena *arena, size_t count, size_t size);

/* Forgets everything that was allocated and keeps one small block for what comes next. */
void bag_arena_reset(struct bag_arena *arena, size_t max_bytes);

/* Frees everything; the arena is empty and usable again. */
void bag_arena_free(struct bag_arena *arena);

#endif
