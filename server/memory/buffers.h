/* Recycled memory for bodies and replies.
 *
 * Fresh memory costs a page fault for every 4 KiB; recycled memory costs nothing. Sizes are rounded
 * up to powers of two, of which only the touched pages are real. A pool belongs to one thread, or
 * is shared between several and takes a lock. Memory goes back to the pool it came from. */
#ifndef BAG_BUFFERS_H
#define BAG_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define BAG_BUFFER_CLASSES 15 /* 1 KiB to 16 MiB; larger ones are not kept */

struct bag_buffers {
    struct bag_buffer *free[BAG_BUFFER_CLASSES];
    size_t kept_bytes;
    bool shared;
    uv_mutex_t lock; /* of a shared pool */
};

bool bag_buffers_init(struct bag_buffers *buffers, bool shared);

/* Frees what the pool keeps. All its memory has come back. */
void bag_buffers_free(struct bag_buffers *buffers);

/* At least `bytes` of memory, aligned to 64, not cleared; NULL without memory. */
void *bag_buffers_get(struct bag_buffers *buffers, size_t bytes);

/* Gives memory back to its pool; NULL is ignored. */
void bag_buffers_put(void *memory);

#endif
