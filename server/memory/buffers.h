/* Recycled memory for bodies and replies.
 *
 * Fresh memory costs a page fault for every 4 KiB; recycled memory costs nothing. Sizes are rounded
 * up to powers of two, above 16 MiB to quarters of them; only the touched pages are real. A pool
 * belongs to one thread, or is shared between several and takes a lock. Memory goes back to the
 * pool it came from. All that a pool has, in use or kept, is taken from a budget. */
#ifndef BAG_BUFFERS_H
#define BAG_BUFFERS_H

#include "memory.h"
#include "proto/arena.h"

#include <uv.h>

#define BAG_BUFFER_CLASSES 23 /* 1 KiB to 64 MiB; larger ones are not kept */

struct bag_buffers {
    struct bag_budget *budget; /* borrowed; NULL: without a bound */
    struct bag_buffer *free[BAG_BUFFER_CLASSES];
    unsigned num_free[BAG_BUFFER_CLASSES];
    unsigned least_free[BAG_BUFFER_CLASSES]; /* since the last bag_buffers_trim */
    size_t kept_bytes;
    bool shared;
    uv_mutex_t lock;                 /* of a shared pool */
    struct bag_memory_source source; /* this pool, for arenas and decompression */
};

/* Once initialised the pool must not move. */
bool bag_buffers_init(struct bag_buffers *buffers, bool shared, struct bag_budget *budget);

/* Frees what the pool keeps. All its memory has come back. */
void bag_buffers_free(struct bag_buffers *buffers);

/* Frees some of what was not needed since the last call. To be called about once a second: after a
 * burst the process becomes small again, and a steady load keeps what it uses. */
void bag_buffers_trim(struct bag_buffers *buffers);

/* At least `bytes` of memory, aligned to 64, not cleared; NULL where the budget or the system has
 * no more. */
void *bag_buffers_get(struct bag_buffers *buffers, size_t bytes);

/* Gives memory back to its pool; NULL is ignored. */
void bag_buffers_put(void *memory);

/* An object that stays with a piece of memory while the pool keeps it, for the next user who finds
 * it fitting by its keys. `drop` frees it with the memory, on any thread. */
struct bag_attachment {
    void *object; /* NULL: none */
    void (*drop)(void *object);
    size_t keys[2];
};

/* That of memory from bag_buffers_get. */
struct bag_attachment *bag_buffers_attachment(void *memory);

#endif
