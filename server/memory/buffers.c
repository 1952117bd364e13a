/* Pools of recycled memory; see memory.h. */
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT      64
#define SMALLEST_SHIFT 10
#define POWER_CLASSES  15 /* up to 16 MiB */

/* The maximum size of the buffers that a pool keeps. */
#define MAX_KEPT_BYTES ((size_t)128 << 20)

/* The first class that is allocated by mmap: 2 MiB. */
#define MAPPED_CLASS 11

/* Mapped buffers are freed in steps of one huge page. Freeing small pages costs 0.2 to 0.6 us each,
 * or 3 to 9 ms for 60 MB, which is too long for an iteration of the loop. */
#define STEP_BYTES ((size_t)2 << 20)

/* The header of a buffer. The memory begins ALIGNMENT bytes after it. */
struct bag_buffer {
    struct bag_buffers *home;
    struct bag_buffer *next;
    unsigned size_class; /* BAG_BUFFER_CLASSES: too large to be kept */
    unsigned offset;     /* bytes before it in its block of the heap */
    size_t bytes;        /* bytes taken from the budget, with the header */
    struct bag_attachment attachment;
};
_Static_assert(sizeof(struct bag_buffer) <= ALIGNMENT, "it stands in front of the memory");

/* Returns the size of a class: 1, 2, 4 KiB ... 16 MiB; 20, 24, 28, 32, 40 ... 64 MiB. The budget
 * counts the rounded size. */
static size_t class_bytes(unsigned size_class)
{
    if (size_class < POWER_CLASSES)
        return (size_t)1 << (SMALLEST_SHIFT + size_class);
    unsigned quarters = size_class - POWER_CLASSES;
    return (size_t)(5 + quarters % 4) << (SMALLEST_SHIFT + POWER_CLASSES - 3 + quarters / 4);
}

static void lock(struct bag_buffers *buffers)
{
    if (buffers->shared)
        uv_mutex_lock(&buffers->lock);
}

static void unlock(struct bag_buffers *buffers)
{
    if (buffers->shared)
        uv_mutex_unlock(&buffers->lock);
}

/* Removes the first kept buffer of the class from its list and returns it. */
static struct bag_buffer *remove_kept(struct bag_buffers *buffers, unsigned size_class)
{
    struct bag_buffer *buffer = buffers->free[size_class];
    buffers->free[size_class] = buffer->next;
    buffers->num_free[size_class]--;
    buffers->kept_bytes -= class_bytes(size_class);
    return buffer;
}

/* Returns a kept buffer of the class, or NULL if there is none. */
static struct bag_buffer *take_kept(struct bag_buffers *buffers, unsigned size_class)
{
    if (size_class == BAG_BUFFER_CLASSES)
        return NULL;
    lock(buffers);
    struct bag_buffer *buffer = buffers->free[size_class];
    if (buffer) {
        remove_kept(buffers, size_class);
        if (buffers->num_free[size_class] < buffers->min_free[size_class])
            buffers->min_free[size_class] = buffers->num_free[size_class];
    }
    unlock(buffers);
    return buffer;
}

/* Returns the size of the buffers that a pool may keep: an equal share of what all pools of its
 * budget may. */
static size_t max_kept_bytes(const struct bag_buffers *buffers)
{
    struct bag_budget *budget = buffers->budget;
    if (!budget)
        return MAX_KEPT_BYTES;
    size_t share = budget->max_bytes / BAG_BUDGET_KEPT_PART /
                   atomic_load_explicit(&budget->num_pools, memory_order_relaxed);
    return share < MAX_KEPT_BYTES ? share : MAX_KEPT_BYTES;
}

/* Keeps a buffer. Returns false if it must be freed instead. The caller holds the pool's lock. */
static bool keep(struct bag_buffers *buffers, struct bag_buffer *buffer)
{
    unsigned size_class = buffer->size_class;
    if (size_class == BAG_BUFFER_CLASSES ||
        class_bytes(size_class) + buffers->kept_bytes > max_kept_bytes(buffers))
        return false;
    buffer->next = buffers->free[size_class];
    buffers->free[size_class] = buffer;
    buffers->num_free[size_class]++;
    buffers->kept_bytes += class_bytes(size_class);
    return true;
}

/* Moves a buffer to the list of buffers to free. The caller holds the pool's lock. */
static void release(struct bag_buffer *buffer)
{
    struct bag_buffers *home = buffer->home;
    if (buffer->attachment.object)
        buffer->attachment.drop(buffer->attachment.object);
    buffer->next = home->leaving;
    home->leaving = buffer;
}

/* Frees the last step of the first buffer in the list, or all of a small buffer. Returns the number
 * of bytes freed. */
static size_t free_step(struct bag_buffers *buffers)
{
    struct bag_buffer *buffer = buffers->leaving;
    bool mapped = buffer->size_class >= MAPPED_CLASS;
    size_t rest = mapped ? (buffer->bytes - 1) / STEP_BYTES * STEP_BYTES : 0;
    size_t bytes = buffer->bytes - rest;
    buffer->bytes = rest;
    if (!rest)
        buffers->leaving = buffer->next;
    if (mapped)
        bag_memory_unmap((char *)buffer + rest, bytes);
    else
        free((char *)buffer - buffer->offset);
    bag_budget_give(buffers->budget, bytes);
    return bytes;
}

/* Releases kept buffers of the class until `left` are left. */
static void drop_kept(struct bag_buffers *buffers, unsigned size_class, unsigned left)
{
    while (buffers->num_free[size_class] > left)
        release(remove_kept(buffers, size_class));
}

/* Frees all buffers that are not in use. */
static void free_all(struct bag_buffers *buffers)
{
    lock(buffers);
    for (unsigned i = 0; i < BAG_BUFFER_CLASSES; i++)
        drop_kept(buffers, i, 0);
    while (buffers->leaving)
        free_step(buffers);
    unlock(buffers);
}

void bag_buffers_trim(struct bag_buffers *buffers)
{
    lock(buffers);
    for (unsigned i = 0; i < BAG_BUFFER_CLASSES; i++) {
        drop_kept(buffers, i, buffers->num_free[i] - buffers->min_free[i]);
        buffers->min_free[i] = buffers->num_free[i];
    }
    unlock(buffers);
}

bool bag_buffers_free_some(struct bag_buffers *buffers)
{
    size_t freed = 0;
    if (!atomic_load_explicit(&buffers->leaving, memory_order_relaxed))
        return false;
    lock(buffers);
    while (buffers->leaving && freed < STEP_BYTES)
        freed += free_step(buffers);
    unlock(buffers);
    return true;
}

/* Allocates an aligned buffer in the heap. Returns NULL if there is no memory. aligned_alloc() of
 * glibc before 2.38 searches for larger blocks than it returns. It does not find the blocks that it
 * returned before, and the heap grows to 1.7 times the budget. */
static struct bag_buffer *allocate(size_t bytes)
{
    char *block = malloc(bytes + ALIGNMENT);
    if (!block)
        return NULL;
    unsigned offset = (unsigned)(-(uintptr_t)block % ALIGNMENT);
    struct bag_buffer *buffer = (void *)(block + offset);
    buffer->offset = offset;
    return buffer;
}

static struct bag_buffer *make_buffer(struct bag_buffers *buffers, size_t bytes,
                                      unsigned size_class)
{
    size_t room = size_class == BAG_BUFFER_CLASSES ? bytes : class_bytes(size_class);
    if (room > SIZE_MAX - 3 * ALIGNMENT)
        return NULL;
    room = ALIGNMENT + (room + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!bag_budget_take(buffers->budget, room)) {
        free_all(buffers);
        if (!bag_budget_take(buffers->budget, room))
            return NULL;
    }
    struct bag_buffer *buffer =
        size_class >= MAPPED_CLASS ? bag_memory_map_small(room) : allocate(room);
    if (!buffer) {
        bag_budget_give(buffers->budget, room);
        return NULL;
    }
    buffer->size_class = size_class;
    buffer->bytes = room;
    buffer->attachment.object = NULL;
    return buffer;
}

static void *get_source(void *buffers, size_t bytes)
{
    return bag_buffers_get(buffers, bytes);
}

bool bag_buffers_init(struct bag_buffers *buffers, bool shared, struct bag_budget *budget)
{
    memset(buffers, 0, sizeof *buffers);
    buffers->shared = shared;
    buffers->budget = budget;
    buffers->source = (struct bag_memory_source){get_source, bag_buffers_put, buffers};
    if (shared && uv_mutex_init(&buffers->lock) != 0)
        return false;
    if (budget)
        atomic_fetch_add(&budget->num_pools, 1);
    return true;
}

void bag_buffers_free(struct bag_buffers *buffers)
{
    free_all(buffers);
    if (buffers->budget)
        atomic_fetch_sub(&buffers->budget->num_pools, 1);
    if (buffers->shared)
        uv_mutex_destroy(&buffers->lock);
}

void *bag_buffers_get(struct bag_buffers *buffers, size_t bytes)
{
    unsigned size_class = 0;
    while (size_class < BAG_BUFFER_CLASSES && bytes > class_bytes(size_class))
        size_class++;
    struct bag_buffer *buffer = take_kept(buffers, size_class);
    if (!buffer)
        buffer = make_buffer(buffers, bytes, size_class);
    if (!buffer)
        return NULL;
    buffer->home = buffers;
    return (char *)buffer + ALIGNMENT;
}

static struct bag_buffer *buffer_of(void *memory)
{
    return (void *)((char *)memory - ALIGNMENT);
}

struct bag_attachment *bag_buffers_attachment(void *memory)
{
    return &buffer_of(memory)->attachment;
}

void bag_buffers_put(void *memory)
{
    if (!memory)
        return;
    struct bag_buffer *buffer = buffer_of(memory);
    struct bag_buffers *home = buffer->home;
    lock(home);
    if (!keep(home, buffer))
        release(buffer);
    unlock(home);
}
