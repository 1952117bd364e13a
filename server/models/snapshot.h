/* The models at one moment: tables and collections, their versions, rules and states.
 *
 * A snapshot never changes once it is published, so that whoever has acquired it reads
 * it without a lock. Snapshots share the models that are the same in both: each counts how many
 * hold it. Models and snapshots are made and freed by one thread at a time, the one that changes
 * the tables; what is published may be read by all. */
#ifndef BAG_MODELS_SNAPSHOT_H
#define BAG_MODELS_SNAPSHOT_H

#include "proto/arena.h"
#include "proto/v2_documents.h"
#include "server/tables/live_rows.h"
#include "server/tables/source.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- models and snapshots -------------------------------------------------------------------- */

/* X(STATE): as the repository's index shows them. */
#define BAG_MODEL_STATES(X)                       \
    X(LOADING)     /* its files are being read */ \
    X(READY)       /* it answers */               \
    X(UNAVAILABLE) /* it could not be loaded */   \
    X(UNLOADING)   /* it answers what was asked before */

enum bag_model_state {
#define BAG_X(state) BAG_MODEL_##state,
    BAG_MODEL_STATES(BAG_X)
#undef BAG_X
        BAG_MODEL_STATE_COUNT
};
extern const char *const bag_model_state_names[BAG_MODEL_STATE_COUNT];

/* What a model pools: the bags of one table. */
struct bag_feature {
    char *name;                               /* of its output; owned */
    struct bag_model *model;                  /* whose table it is; a collection holds it */
    struct bag_rules rules;                   /* complete: output_dtype is set */
    struct bag_live_reader reader;            /* entered while the model lives */
    const struct bag_table_memory *memory;    /* borrowed from that model */
    struct bag_projection_memory *projection; /* owned; NULL: none */
    struct bag_pool_plan plan;                /* of requests that change none of the rules */
};

/* Makes the plan of the feature's pool by other rules than its own. What is projected is pooled in
 * FP32. */
void bag_feature_prepare(const struct bag_feature *feature, struct bag_rules rules,
                         struct bag_pool_plan *plan);

/* One version of a model: how stored tables are asked. A model of a table has one feature, named
 * BAG_EMBEDDINGS; a collection has features of other models. One that is not READY has neither. */
struct bag_model {
    char *name;
    char *version; /* decimal, from 1 */
    uint64_t version_number;
    enum bag_model_state state;
    char *reason;                    /* why it is not READY, for anybody; "" where it is */
    char *cause;                     /* the same with the folders of files, for the log */
    bool is_unloaded;                /* UNAVAILABLE because somebody asked for that */
    size_t slot;                     /* of its counters; set by bag_registry_publish */
    struct bag_v2_shown shown;       /* what its metadata shows; set by whoever made it */
    struct bag_stored_table *stored; /* held; NULL: a collection */
    struct bag_table_memory *memory; /* its; NULL: a collection */
    struct bag_feature *features;    /* owned */
    size_t num_features;
    const struct bag_feature **sorted; /* owned; a collection's features by name */
    size_t typical_row_bytes;          /* the mean over the features */
    bool projects;                     /* some feature does */
    bool resolves;                     /* of some feature, rows take the place of indices */
    bool mapped;                       /* some feature's table is in its file */
    bool is_remote;                    /* some feature's table is on shards */
    struct bag_live_rows **live;       /* owned; the tables whose rows change, each once, in the
                                          order of their addresses */
    size_t num_live;
    struct bag_source *source; /* of its files and rules; the loader's; owned; may be NULL */
    size_t holders;            /* snapshots, collections and makers that hold it */
};

/* What one loop has acquired of a snapshot. Written by the loop's thread alone, and on a cache line
 * of its own, so that acquiring costs what a plain counter does. */
struct bag_lease {
    _Alignas(64) size_t requests;
};

struct bag_snapshot {
    struct bag_model **models; /* owned, each held; sorted by name, then by version */
    struct bag_model **listed; /* owned; the same as bag_snapshot_make was given them */
    bool *preferred;           /* owned; by position in `models`: the default version of its name */
    char **notes;              /* owned, as each; likewise: what is to be said of one that is READY
                                  all the same; NULL: nothing */
    size_t count;
    const struct bag_model *not_ready; /* the first of a name of which none is READY, though it was
                                          not unloaded; NULL: there is none */
    uint64_t generation;               /* no two that are published have the same; from 1 */

    /* The registry's. */
    struct bag_snapshot *next; /* that was published after it; later, that was left after it */
    atomic_size_t readers;     /* that have not left it, and 1 while it is the current one */
    struct bag_lease leases[]; /* one for each reader, by its index */
};

/* ---- models ---------------------------------------------------------------------------------- */

/* Makes a READY model of a stored table, which it holds, under copies of its name and version; it
 * takes over `projection` (NULL: none). NULL without memory; then that stays the caller's. The
 * caller holds the model. */
struct bag_model *bag_model_of_table(const char *name, const char *version,
                                     const struct bag_rules *rules, struct bag_stored_table *stored,
                                     struct bag_projection_memory *projection);

/* Makes a READY collection of copies of `count` features, at least 1. What is used of them is their
 * names, rules, models of tables, and projections, which are taken over. NULL without memory. */
struct bag_model *bag_model_of_features(const char *name, const char *version,
                                        const struct bag_feature *features, size_t count);

/* Makes one that is not READY. NULL without memory. */
struct bag_model *bag_model_without_table(const char *name, const char *version,
                                          enum bag_model_state state, const char *cause);

/* Adds a reference to the model, which is returned. */
static inline struct bag_model *bag_model_retain(struct bag_model *model)
{
    model->holders++;
    return model;
}

/* Removes a reference; the last one frees the model. NULL is ignored. */
void bag_model_release(struct bag_model *model);

/* The feature of that name, which need not end with a NUL; NULL where there is none. */
const struct bag_feature *bag_model_feature(const struct bag_model *model, const char *name,
                                            size_t name_bytes);

/* Makes bag_model_read lock the model's tables whose rows change: after they have become live, and
 * before the model is published. False without memory. */
bool bag_model_follow_updates(struct bag_model *model);

/* Locks them all for one reading of keys and rows, see live rows; does nothing where there is
 * none. The first is false where it would have to wait. */
static inline bool bag_model_try_read(const struct bag_model *model)
{
    return model->num_live == 0 || bag_live_rows_try_read(model->live, model->num_live);
}

static inline void bag_model_read(const struct bag_model *model)
{
    if (model->num_live)
        bag_live_rows_read(model->live, model->num_live);
}

static inline void bag_model_read_end(const struct bag_model *model)
{
    if (model->num_live)
        bag_live_rows_read_end(model->live, model->num_live);
}

/* The elements of a feature's output after the first dimension. */
static inline size_t bag_feature_columns(const struct bag_feature *feature)
{
    return feature->projection ? feature->projection->projection.columns
                               : feature->memory->table.row_elements;
}

static inline bool bag_model_is_collection(const struct bag_model *model)
{
    return !model->memory;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

/* A model of a snapshot that is to be made. */
struct bag_listed {
    struct bag_model *model;
    bool is_default;  /* the default version of its name */
    const char *note; /* for anybody to see, of one that is READY all the same; NULL: nothing */
};

/* Makes a snapshot that holds these models, for up to `max_readers` readers; no two have the same
 * name and version. NULL without memory. It is not published yet: bag_snapshot_free. */
struct bag_snapshot *bag_snapshot_make(const struct bag_listed *listed, size_t count,
                                       size_t max_readers);

/* Whether the model is a default version. */
bool bag_snapshot_prefers(const struct bag_snapshot *snapshot, const struct bag_model *model);

/* What was noted of it; NULL: nothing. */
const char *bag_snapshot_find_remark(const struct bag_snapshot *snapshot,
                                     const struct bag_model *model);

/* Frees a snapshot that nobody reads, and drops its models. */
void bag_snapshot_free(struct bag_snapshot *snapshot);

/* All versions of a model: the first of them, and how many follow it (itself included); NULL where
 * the name is unknown. */
struct bag_model *const *bag_snapshot_versions(const struct bag_snapshot *snapshot,
                                               const char *name, size_t *count);

/* A version of a model. Where `version` is empty, the default one; without one that is READY, the
 * highest one that is, or the highest one of all where none is. NULL where there is none. */
const struct bag_model *bag_snapshot_find(const struct bag_snapshot *snapshot, const char *name,
                                          const char *version);

/* ---- the registry (registry.c) --------------------------------------------------------------- */

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
    size_t first_free; /* none before it is free */
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
