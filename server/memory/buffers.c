/* Recycled memory; see buffers.h. */
#include "buffers.h"

#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT      64
#define SMALLEST_SHIFT 10

/* What a pool holds back from the system at most. */
#define MAX_KEPT_BYTES ((size_t)64 << 20)

/* From here on memory is mapped in huge pages where the system has them: to fault in and to unmap
 * small ones costs 0.2 us each, 3 ms for 60 MB, which the loop's thread has not. */
#define MAPPED_BYTES ((size_t)4 << 20)

/* Stands in front of the memory, which starts ALIGNMENT bytes after it. */
struct bag_buffer {
    struct bag_buffers *home;
    struct bag_buffer *next;
    unsigned size_class; /* BAG_BUFFER_CLASSES: too large to be kept */
    size_t mapped_bytes; /* of all, where it is mapped; 0: it is the heap's */
};

static unsigned class_of(size_t bytes)
{
    unsigned size_class = 0;
    while (size_class < BAG_BUFFER_CLASSES && bytes > (size_t)1 << (SMALLEST_SHIFT + size_class))
        size_class++;
    return size_class;
}

static size_t class_bytes(unsigned size_class)
{
    return (size_t)1 << (SMALLEST_SHIFT + size_class);
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

/* A kept buffer of the class, or NULL. */
static struct bag_buffer *take_kept(struct bag_buffers *buffers, unsigned size_class)
{
    if (size_class == BAG_BUFFER_CLASSES)
        return NULL;
    lock(buffers);
    struct bag_buffer *buffer = buffers->free[size_class];
    if (buffer) {
        buffers->free[size_class] = buffer->next;
        buffers->kept_bytes -= class_bytes(size_class);
    }
    unlock(buffers);
    return buffer;
}

/* Keeps a buffer; false where it should be freed. */
static bool keep(struct bag_buffers *buffers, struct bag_buffer *buffer)
{
    unsigned size_class = buffer->size_class;
    if (size_class == BAG_BUFFER_CLASSES)
        return false;
    lock(buffers);
    bool room = class_bytes(size_class) <= MAX_KEPT_BYTES - buffers->kept_bytes;
    if (room) {
        buffer->next = buffers->free[size_class];
        buffers->free[size_class] = buffer;
        buffers->kept_bytes += class_bytes(size_class);
    }
    unlock(buffers);
    return room;
}

static struct bag_buffer *make_buffer(size_t bytes, unsigned size_class)
{
    size_t room = size_class == BAG_BUFFER_CLASSES ? bytes : class_bytes(size_class);
    struct bag_problem ignored;
    if (room > SIZE_MAX - 2 * ALIGNMENT)
        return NULL;
    room = ALIGNMENT + (room + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    bool mapped = room >= MAPPED_BYTES;
    struct bag_buffer *buffer =
        mapped ? bag_memory_map(room, &ignored) : aligned_alloc(ALIGNMENT, room);
    if (!buffer)
        return NULL;
    buffer->size_class = size_class;
    buffer->mapped_bytes = mapped ? room : 0;
    return buffer;
}

static void free_buffer(struct bag_buffer *buffer)
{
    if (buffer->mapped_bytes)
        bag_memory_unmap(buffer, buffer->mapped_bytes);
    else
        free(buffer);
}

bool bag_buffers_init(struct bag_buffers *buffers, bool shared)
{
    memset(buffers, 0, sizeof *buffers);
    buffers->shared = shared;
    return !shared || uv_mutex_init(&buffers->lock) == 0;
}

void bag_buffers_free(struct bag_buffers *buffers)
{
    for (unsigned i = 0; i < BAG_BUFFER_CLASSES; i++) {
        while (buffers->free[i]) {
            struct bag_buffer *next = buffers->free[i]->next;
            free_buffer(buffers->free[i]);
            buffers->free[i] = next;
        }
    }
    if (buffers->shared)
        uv_mutex_destroy(&buffers->lock);
}

void *bag_buffers_get(struct bag_buffers *buffers, size_t bytes)
{
    unsigned size_class = class_of(bytes);
    struct bag_buffer *buffer = take_kept(buffers, size_class);
    if (!buffer)
        buffer = make_buffer(bytes, size_class);
    if (!buffer)
        return NULL;
    buffer->home = buffers;
    return (char *)buffer + ALIGNMENT;
}

void bag_buffers_put(void *memory)
{
    if (!memory)
        return;
    struct bag_buffer *buffer = (void *)((char *)memory - ALIGNMENT);
    if (!keep(buffer->home, buffer))
        free_buffer(buffer);
}
