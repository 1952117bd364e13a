/* Memory that dies together; see arena.h. */
#include "arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Alignment of every allocation, in bytes. */
#define ALIGNMENT 16

/* Size of a usual block, which is all that a small request needs. A larger allocation gets a block
 * of its own size. The last block is cut to the bytes that the arena's maximum leaves. */
#define BLOCK_BYTES 4096

/* A piece of memory from which an arena takes allocations in order. It remembers its source,
 * because the arena's source may have changed when the block is freed. */
struct bag_arena_block {
    struct bag_arena_block *next;
    size_t bytes;
    const struct bag_memory_source *source; /* NULL: the heap */
    max_align_t memory[];
};

void bag_arena_init(struct bag_arena *arena, size_t max_bytes)
{
    *arena = (struct bag_arena){.max_bytes = max_bytes};
}

/* Adds a block with at least `bytes` free bytes, which becomes the one that is used. The free part
 * of the block before it is lost. Returns false if the arena's maximum or the source's memory does
 * not suffice. */
static bool add_block(struct bag_arena *arena, size_t bytes)
{
    size_t left = arena->max_bytes - arena->used_bytes;
    size_t block_bytes = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    if (block_bytes > left)
        block_bytes = left;
    if (bytes > block_bytes || block_bytes > SIZE_MAX - sizeof(struct bag_arena_block))
        return false;
    const struct bag_memory_source *source = block_bytes > BLOCK_BYTES ? arena->source : NULL;
    struct bag_arena_block *block = source
                                        ? source->get(source->context, sizeof *block + block_bytes)
                                        : malloc(sizeof *block + block_bytes);
    if (block) {
        block->bytes = block_bytes;
        block->source = source;
    }
    if (!block)
        return false;
    block->next = arena->blocks;
    arena->blocks = block;
    arena->used_bytes += block_bytes;
    arena->next = (char *)block->memory;
    arena->end = arena->next + block_bytes;
    return true;
}

void *bag_arena_alloc(struct bag_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT)
        return NULL;
    size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (room == 0)
        room = ALIGNMENT;
    if ((size_t)(arena->end - arena->next) < room && !add_block(arena, room))
        return NULL;
    void *memory = arena->next;
    arena->next += room;
    return memory;
}

void *bag_arena_array(struct bag_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : bag_arena_alloc(arena, bytes);
}

void bag_arena_reset(struct bag_arena *arena, size_t max_bytes)
{
    struct bag_arena_block *kept = arena->blocks;
    if (!kept || kept->next || kept->bytes != BLOCK_BYTES || kept->bytes > max_bytes) {
        bag_arena_free(arena);
        arena->max_bytes = max_bytes;
        return;
    }
    arena->max_bytes = max_bytes;
    arena->next = (char *)kept->memory;
}

bool bag_arena_is_reset(const struct bag_arena *arena)
{
    const struct bag_arena_block *block = arena->blocks;
    return !block || (!block->next && block->bytes == BLOCK_BYTES &&
                      arena->next == (const char *)block->memory);
}

void bag_arena_free(struct bag_arena *arena)
{
    while (arena->blocks) {
        struct bag_arena_block *block = arena->blocks;
        arena->blocks = block->next;
        if (block->source)
            block->source->put(block);
        else
            free(block);
    }
    const struct bag_memory_source *source = arena->source;
    bag_arena_init(arena, arena->max_bytes);
    arena->source = source;
}
