/* Publishing snapshots and freeing them; see snapshot.h. */
#include "snapshot.h"

#include "config/names.h"

#include <stdlib.h>
#include <string.h>

bool bag_registry_init(struct bag_registry *registry, size_t max_readers)
{
    *registry = (struct bag_registry){.max_readers = max_readers};
    return pthread_mutex_init(&registry->lock, NULL) == 0;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Returns a slot that no snapshot has, or a new one. Returns SIZE_MAX without memory. */
static size_t find_free_slot(struct bag_registry *registry)
{
    size_t count = registry->num_slots, room = count ? 2 * count : 64;
    for (size_t i = registry->first_free; i < count; i++) {
        if (!registry->slots[i].name)
            return registry->first_free = i;
    }
    struct bag_slot *slots = realloc(registry->slots, room * sizeof *slots);
    if (!slots)
        return SIZE_MAX;
    memset(slots + count, 0, (room - count) * sizeof *slots);
    registry->slots = slots;
    registry->num_slots = room;
    return registry->first_free = count;
}

/* Makes the slot free for another name and version. */
static void free_slot(struct bag_registry *registry, size_t i)
{
    free(registry->slots[i].name);
    free(registry->slots[i].version);
    registry->slots[i] = (struct bag_slot){0};
    if (i < registry->first_free)
        registry->first_free = i;
}

/* Gives a free slot to the model's name and version, and lets the owner of the counters reset them.
 * Returns SIZE_MAX if there is no memory. */
static size_t make_slot(struct bag_registry *registry, const struct bag_model *model)
{
    size_t i = find_free_slot(registry);
    if (i == SIZE_MAX)
        return SIZE_MAX;
    struct bag_slot *slot = &registry->slots[i];
    *slot = (struct bag_slot){.name = strdup(model->name), .version = strdup(model->version)};
    if (slot->name && slot->version &&
        (!registry->on_slot || registry->on_slot(registry->slot_context, i)))
        return i;
    free_slot(registry, i);
    return SIZE_MAX;
}

/* Makes an index of the slots that are taken, with capacity for `more`. */
static bool name_slots(const struct bag_registry *registry, size_t more, struct bag_names *names)
{
    if (!bag_names_reserve(names, registry->num_slots + more))
        return false;
    for (size_t i = 0; i < registry->num_slots; i++) {
        const struct bag_slot *slot = &registry->slots[i];
        if (slot->name)
            bag_names_put(names, slot->name, slot->version, i);
    }
    return true;
}

/* Removes the snapshot's first `count` models from their slots. A slot that no snapshot has any
 * more becomes free. */
static void drop_slots(struct bag_registry *registry, const struct bag_snapshot *snapshot,
                       size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t slot = snapshot->models[i]->slot;
        if (--registry->slots[slot].snapshots == 0)
            free_slot(registry, slot);
    }
}

/* ---- the reconciler -------------------------------------------------------------------------- */

/* Removes a reader of the snapshot, or the count that stands for being current. The last one to
 * leave adds the snapshot to those that can be freed. The atomic decrement makes it see all that
 * others did with the snapshot. */
static void leave(struct bag_registry *registry, struct bag_snapshot *snapshot)
{
    if (atomic_fetch_sub_explicit(&snapshot->readers, 1, memory_order_acq_rel) > 1)
        return;
    pthread_mutex_lock(&registry->lock);
    snapshot->next = registry->left;
    registry->left = snapshot;
    pthread_mutex_unlock(&registry->lock);
    if (registry->on_left)
        registry->on_left(registry->left_context);
}

bool bag_registry_publish(struct bag_registry *registry, struct bag_snapshot *snapshot,
                          struct bag_problem *problem)
{
    struct bag_snapshot *old = atomic_load_explicit(&registry->current, memory_order_relaxed);
    size_t readers = 1;
    /* Give every model its slot. One that is published already keeps its own, and is not written
     * to: loops are reading it. */
    struct bag_names names = {0};
    bool ok = name_slots(registry, snapshot->count, &names) || bag_problem_no_memory(problem);
    for (size_t i = 0; ok && i < snapshot->count; i++) {
        struct bag_model *model = snapshot->models[i];
        const size_t *known = bag_names_find(&names, model->name, model->version);
        size_t slot = known ? *known : make_slot(registry, model);
        if (slot == SIZE_MAX) {
            drop_slots(registry, snapshot, i);
            ok = bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                                 "model '%s' version %s: no memory for its counters", model->name,
                                 model->version);
            break;
        }
        if (!known)
            bag_names_put(&names, registry->slots[slot].name, registry->slots[slot].version, slot);
        if (model->slot != slot)
            model->slot = slot;
        registry->slots[slot].snapshots++;
    }
    bag_names_free(&names);
    if (!ok)
        return false;
    snapshot->generation = ++registry->generation;
    pthread_mutex_lock(&registry->lock);
    for (const struct bag_reader *at = LIST_FIRST(&registry->readers); at; at = LIST_NEXT(at, next))
        readers++;
    atomic_init(&snapshot->readers, readers);
    if (old)
        old->next = snapshot;
    atomic_store_explicit(&registry->current, snapshot, memory_order_release);
    for (const struct bag_reader *at = LIST_FIRST(&registry->readers); at; at = LIST_NEXT(at, next))
        at->wake(at->context);
    pthread_mutex_unlock(&registry->lock);
    if (old)
        leave(registry, old);
    return true;
}

static void free_snapshot(struct bag_registry *registry, struct bag_snapshot *snapshot)
{
    drop_slots(registry, snapshot, snapshot->count);
    bag_snapshot_free(snapshot);
}

size_t bag_registry_collect(struct bag_registry *registry)
{
    size_t count = 0;
    pthread_mutex_lock(&registry->lock);
    struct bag_snapshot *snapshot = registry->left;
    registry->left = NULL;
    pthread_mutex_unlock(&registry->lock);
    for (struct bag_snapshot *next; snapshot; snapshot = next, count++) {
        next = snapshot->next;
        free_snapshot(registry, snapshot);
    }
    return count;
}

void bag_registry_free(struct bag_registry *registry)
{
    struct bag_snapshot *current = atomic_load_explicit(&registry->current, memory_order_acquire);
    bag_registry_collect(registry);
    if (current)
        free_snapshot(registry, current);
    for (size_t i = 0; i < registry->num_slots; i++)
        free_slot(registry, i);
    free(registry->slots);
    pthread_mutex_destroy(&registry->lock);
}

/* ---- readers --------------------------------------------------------------------------------- */

bool bag_reader_open(struct bag_reader *reader, struct bag_registry *registry,
                     void (*wake)(void *context), void *context)
{
    pthread_mutex_lock(&registry->lock);
    bool has_room = registry->num_readers < registry->max_readers;
    if (has_room) {
        *reader = (struct bag_reader){
            .registry = registry,
            .index = registry->num_readers++,
            .at = atomic_load_explicit(&registry->current, memory_order_relaxed),
            .wake = wake,
            .context = context};
        atomic_fetch_add_explicit(&reader->at->readers, 1, memory_order_relaxed);
        LIST_INSERT_HEAD(&registry->readers, reader, next);
    }
    pthread_mutex_unlock(&registry->lock);
    return has_room;
}

void bag_reader_leave(struct bag_reader *reader, struct bag_snapshot *snapshot)
{
    leave(reader->registry, snapshot);
}

/* Leaves all snapshots before `current`. A snapshot's `next` is written before the one that it
 * points to can be seen. */
static void move_to(struct bag_reader *reader, const struct bag_snapshot *current)
{
    while (reader->at != current) {
        struct bag_snapshot *old = reader->at;
        reader->at = old->next;
        if (old->leases[reader->index].requests == 0)
            leave(reader->registry, old);
    }
}

void bag_reader_move(struct bag_reader *reader)
{
    move_to(reader, atomic_load_explicit(&reader->registry->current, memory_order_acquire));
}

void bag_reader_close(struct bag_reader *reader)
{
    struct bag_registry *registry = reader->registry;
    pthread_mutex_lock(&registry->lock);
    LIST_REMOVE(reader, next);
    struct bag_snapshot *current = atomic_load_explicit(&registry->current, memory_order_acquire);
    pthread_mutex_unlock(&registry->lock);
    /* Snapshots that are published from here on do not count this reader. */
    move_to(reader, current);
    leave(registry, current);
}
