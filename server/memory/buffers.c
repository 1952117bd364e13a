/* Recycled memory; see memory.h. */
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT      64
#define SMALLEST_SHIFT 10
#define POWER_CLASSES  15 /* up to 16 MiB */

/* What a pool holds back from the system at most; and of its budget no more than this part. */
#define MAX_KEPT_BYTES ((size_t)128 << 20)
#define KEPT_PART      16

/* From 2 MiB on memory is mapped. */
#define MAPPED_CLASS 11

/* A huge page. To give back small ones costs 0.2 to 0.6 us each, 3 to 9 ms for 60 MB, which a turn
 * of the loop has not. */
#define STEP_BYTES ((size_t)2 << 20)

/* Stands in front of the memory, which starts ALIGNMENT bytes after it. */
struct bag_buffer {
    struct bag_buffers *home;
    struct bag_buffer *next;
    unsigned size_class; /* BAG_BUFFER_CLASSES: too large to be kept */
    size_t bytes;        /* of all, as taken from the budget */
    struct bag_attachment attachment;
};
_Static_assert(sizeof(struct bag_buffer) <= ALIGNMENT, "it stands in front of the memory");

/* 1, 2, 4 KiB ... 16 MiB; 20, 24, 28, 32, 40 ... 64 MiB: what is rounded up counts in the budget.
 */
static size_t class_bytes(unsigned size_class)
{
    if (size_class < POWER_CLASSES)
        return (size_t)1 << (SMALLEST_SHIFT + size_class);
    unsigned quarters = size_class - POWER_CLASSES;
    return (size_t)(5 + quarters % 4) << (SMALLEST_SHIFT + POWER_CLASSES - 3 + quarters / 4);
}

static unsigned class_of(size_t bytes)
{
    unsigned size_class = 0;
    while (size_class < BAG_BUFFER_CLASSES && bytes > class_bytes(size_class))
        size_class++;
    return size_class;
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

/* Takes the first kept buffer of the class out of its list. */
static struct bag_buffer *remove_kept(struct bag_buffers *buffers, unsigned size_class)
{
    struct bag_buffer *buffer = buffers->free[size_class];
    buffers->free[size_class] = buffer->next;
    buffers->num_free[size_class]--;
    buffers->kept_bytes -= class_bytes(size_class);
    return buffer;
}

/* A kept buffer of the class, or NULL. */
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

static size_t max_kept_bytes(const struct bag_buffers *buffers)
{
    size_t part = buffers->budget ? buffers->budget->max_bytes / KEPT_PART : SIZE_MAX;
    return part < MAX_KEPT_BYTES ? part : MAX_KEPT_BYTES;
}

/* Keeps a buffer; false where it should be freed. With the pool locked. */
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

/* With the pool locked. */
static void let_go(struct bag_buffer *buffer)
{
    struct bag_buffers *home = buffer->home;
    if (buffer->attachment.object)
        buffer->attachment.drop(buffer->attachment.object);
    buffer->next = home->leaving;
    home->leaving = buffer;
}

/* Of the first buffer that leaves the last step, or all where it is small; how much that was. */
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
        free(buffer);
    bag_budget_give(buffers->budget, bytes);
    return bytes;
}

/* Lets kept buffers of the class go until `left` are left. */
static void drop_kept(struct bag_buffers *buffers, unsigned size_class, unsigned left)
{
    while (buffers->num_free[size_class] > left)
        let_go(remove_kept(buffers, size_class));
}

/* All that nobody uses, at once. */
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

static struct bag_buffer *make_buffer(struct bag_buffers *buffers, size_t bytes,
                                      unsigned size_class)
{
    size_t room = size_class == BAG_BUFFER_CLASSES ? bytes : class_bytes(size_class);
    if (room > SIZE_MAX - 2 * ALIGNMENT)
        return NULL;
    room = ALIGNMENT + (room + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!bag_budget_take(buffers->budget, room)) {
        free_all(buffers);
        if (!bag_budget_take(buffers->budget, room))
            return NULL;
    }
    struct bag_buffer *buffer =
        size_class >= MAPPED_CLASS ? bag_memory_map_small(room) : aligned_alloc(ALIGNMENT, room);
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
    return !shared || uv_mutex_init(&buffers->lock) == 0;
}

void bag_buffers_free(struct bag_buffers *buffers)
{
    free_all(buffers);
    if (buffers->shared)
        uv_mutex_destroy(&buffers->lock);
}

void *bag_buffers_get(struct bag_buffers *buffers, size_t bytes)
{
    unsigned size_class = class_of(bytes);
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
        let_go(buffer);
    unlock(home);
}
