/* The snapshot that requests read, and who reads it.
 *
 * One thread at a time changes the tables: it makes the next snapshot beside the current one,
 * publishes it, and collects those that nobody reads any more. Every loop is a reader. A request
 * acquires the current snapshot at its head and releases it when its reply is sent; the loop counts
 * them in its own lease of the snapshot, without an atomic operation that others share.
 *
 * Why nothing is freed too early: a snapshot counts the readers that have not left it, from before
 * it is published. A reader leaves a snapshot, on its own thread, when it has moved on to a later
 * one and its last request there is released; only the last one to leave hands it to the changer.
 * An idle loop is woken to move on. */
#ifndef BAG_TABLE_REGISTRY_H
#define BAG_TABLE_REGISTRY_H

#include "snapshot.h"

#include <pthread.h>

/* A name and version that some snapshot has, with its place in all counters. */
struct bag_slot {
    char *name, *version; /* owned; NULL: the slot is free */
    size_t snapshots;     /* that have it */
};

struct bag_registry {
    _Atomic(struct bag_snapshot *) current; /* owned */
    size_t max_readers;

    /* The changer's. */
    uint64_t generation;
    struct bag_slot *slots; /* owned */
    size_t num_slots;
    /* Told before a slot is used for another name and version; false where it cannot be. */
    bool (*on_slot)(void *context, size_t slot);
    void *slot_context;

    pthread_mutex_t lock;       /* guards what follows */
    struct bag_reader *readers; /* borrowed */
    size_t num_readers;         /* that have ever been opened */
    struct bag_snapshot *left;  /* owned; that nobody reads */
    /* Told when there is something to collect, on the thread of the loop that left last. */
    void (*on_left)(void *context);
    void *left_context;
};

/* A loop. Its thread alone uses it, but for `wake`. */
struct bag_reader {
    struct bag_registry *registry;
    size_t index;
    struct bag_snapshot *at;     /* the one that requests acquire, until it moves on */
    void (*wake)(void *context); /* asks the loop for bag_reader_move; called on any thread */
    void *context;
    struct bag_reader *next;
};

/* Without a snapshot. The callbacks may be set before the first is published. */
bool bag_registry_init(struct bag_registry *registry, size_t max_readers);

/* Frees everything, when all readers are closed. */
void bag_registry_free(struct bag_registry *registry);

/* ---- the changer ----------------------------------------------------------------------------- */

/* Gives every model its slot and makes the snapshot, which is taken over, the current one. False
 * with *problem where there is no slot; then it stays the caller's. */
bool bag_registry_publish(struct bag_registry *registry, struct bag_snapshot *snapshot,
                          struct bag_problem *problem);

/* Frees the snapshots that nobody reads; returns how many those were. */
size_t bag_registry_collect(struct bag_registry *registry);

/* ---- readers --------------------------------------------------------------------------------- */

/* After the first snapshot is published. False where there are max_readers already. */
bool bag_reader_open(struct bag_reader *reader, struct bag_registry *registry,
                     void (*wake)(void *context), void *context);

/* When all requests are released; `wake` is not called any more from then on. */
void bag_reader_close(struct bag_reader *reader);

/* Moves on to the current snapshot, leaving those in between. */
void bag_reader_move(struct bag_reader *reader);

/* Leaves a snapshot for good. */
void bag_reader_leave(struct bag_reader *reader, struct bag_snapshot *snapshot);

/* The current snapshot, for one request. */
static inline struct bag_snapshot *bag_snapshot_acquire(struct bag_reader *reader)
{
    if (atomic_load_explicit(&reader->registry->current, memory_order_acquire) != reader->at)
        bag_reader_move(reader);
    reader->at->leases[reader->index].requests++;
    return reader->at;
}

static inline void bag_snapshot_release(struct bag_reader *reader, struct bag_snapshot *snapshot)
{
    if (--snapshot->leases[reader->index].requests == 0 && snapshot != reader->at)
        bag_reader_leave(reader, snapshot);
}

#endif
