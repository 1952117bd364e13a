/* The models at one moment: tables and collections, their versions, rules and states.
 *
 * A snapshot never changes after it was published, so a loop that has acquired it reads it without
 * a lock. Snapshots share the models that are the same in both: each model counts its references.
 * Models and snapshots are made and freed by one thread at a time, the reconciler's; what is
 * published may be read by all. */
#pragma once

#include "hot_rows.h"
#include "kernels/pool.h"
#include "proto/arena.h"
#include "proto/v2_documents.h"
#include "server/tables/live_rows.h"
#include "server/tables/projection.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

/* ---- models and snapshots -------------------------------------------------------------------- */

/* X(STATE): as the index of models (/v2/repository/index) shows them. */
#define BAG_MODEL_STATES(X)                                            \
    X(LOADING)     /* the server reads the version's files */          \
    X(READY)       /* the version answers requests */                  \
    X(UNAVAILABLE) /* the version cannot be loaded, or was unloaded */ \
    X(UNLOADING)   /* the version answers requests that started before */

enum bag_model_state {
#define BAG_X(state) BAG_MODEL_##state,
    BAG_MODEL_STATES(BAG_X)
#undef BAG_X
        BAG_MODEL_STATE_COUNT
};
extern const char *const bag_model_state_names[BAG_MODEL_STATE_COUNT];

/* A feature: the bags of one table, which a model pools. */
struct bag_feature {
    char *name;                               /* name of its output; owned */
    struct bag_model *model;                  /* owner of the table; in a collection a reference */
    struct bag_rules rules;                   /* complete: output_dtype is set */
    enum bag_row_format output_row_format;    /* format of the results; PLAIN: none */
    bool is_pinned;                           /* to this version of its table's model */
    struct bag_live_reader reader;            /* entered while the model lives */
    const struct bag_table_memory *memory;    /* borrowed from `model` */
    struct bag_projection_memory *projection; /* owned; NULL: none */
    struct bag_pool_plan plan;                /* for requests that change none of the rules */
    struct bag_hot_rows *hot;                 /* owned; the rows that requests look up most */
};

/* Plans pooling of the feature by other rules than its own. A feature with a projection is pooled
 * in FP32. */
void bag_feature_prepare(const struct bag_feature *feature, struct bag_rules rules,
                         struct bag_pool_plan *plan);

/* One version of a model: how stored tables are pooled. A model of a table has one feature, named
 * BAG_EMBEDDINGS; a collection has features of other models. A model that is not READY has neither
 * a table nor features. */
struct bag_model {
    char *name;
    char *version; /* decimal, from 1 */
    uint64_t version_number;
    enum bag_model_state state;
    char *reason;                    /* why it is not READY, for clients; "" if it is */
    char *cause;                     /* reason with the folders of files, for the log */
    bool is_unloaded;                /* UNAVAILABLE because a request unloaded it */
    size_t slot;                     /* index of its counters; set by bag_registry_publish() */
    struct bag_v2_shown shown;       /* contents of its metadata; set by the maker */
    struct bag_stored_table *stored; /* a reference; NULL: a collection */
    struct bag_table_memory *memory; /* memory of `stored`; NULL: a collection */
    struct bag_feature *features;    /* owned */
    size_t num_features;
    const struct bag_feature **sorted; /* owned; the features by name */
    size_t typical_row_bytes;          /* the mean over the features */
    bool projects;                     /* some feature has a projection */
    bool resolves;                     /* some feature's ids are replaced by rows before pooling */
    bool mapped;                       /* some feature's table is mapped from its file */
    bool is_remote;                    /* some feature's table is on shards */
    struct bag_live_rows **live;       /* owned; the tables whose rows change, each once, by
                                          address */
    size_t num_live;
    struct bag_source *source; /* owned; its files and rules; the reconciler's; may be NULL */
    size_t holders;            /* references by snapshots, collections and the reconciler */
};

/* The requests of one loop that use a snapshot. Written by the loop's thread alone, and on a cache
 * line of its own, so that acquiring costs no more than a plain counter. */
struct bag_lease {
    _Alignas(64) size_t requests;
};

/* A model as it is published. */
struct bag_listed {
    struct bag_model *model; /* a reference */
    bool is_default;         /* the default version of its name */
    bool is_pinned;          /* serves only because collections pin it */
    char *remark;            /* owned; shown to clients though the model is READY; NULL: none */
};

/* A snapshot. All members but those of the registry are constant once it is published. */
struct bag_snapshot {
    struct bag_listed *versions;      /* owned, with elements; by name, then by version */
    struct bag_model **models;        /* owned; the models of `versions`, in the same order */
    const struct bag_listed **listed; /* owned; `versions` in the order of bag_snapshot_make() */
    size_t count;
    const struct bag_model *not_ready; /* first model of a name without any version that is READY or
                                          was unloaded by a request; NULL: none */
    uint64_t generation;               /* unique among published snapshots; from 1 */

    /* The registry's. */
    struct bag_snapshot *next; /* the snapshot that was published next; in registry->left the next
                                  one of that list */
    atomic_size_t readers;     /* readers that have not left, plus 1 while it is current */
    struct bag_lease leases[]; /* by index of the reader */
};

/* ---- models ---------------------------------------------------------------------------------- */

/* Makes a READY model of a stored table, to which it adds a reference, with copies of its name and
 * version. Takes over `projection` (NULL: none). Returns NULL without memory; `projection` then
 * stays the caller's. The caller has the first reference to the model. */
struct bag_model *bag_model_of_table(const char *name, const char *version,
                                     const struct bag_rules *rules, struct bag_stored_table *stored,
                                     struct bag_projection_memory *projection);

/* Makes a READY collection of copies of `count` features, at least 1. Uses their names, rules,
 * models of tables, and projections, which it takes over. Returns NULL without memory; the
 * projections then stay the caller's. The caller has the first reference to the model. */
struct bag_model *bag_model_of_features(const char *name, const char *version,
                                        const struct bag_feature *features, size_t count);

/* Makes a model that is not READY. Returns NULL without memory. */
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

/* Returns the feature with that name, which need not end with a NUL, or NULL. */
const struct bag_feature *bag_model_feature(const struct bag_model *model, const char *name,
                                            size_t name_bytes);

/* Makes bag_model_read() lock the model's tables whose rows change. The caller must call it after
 * the tables have become live and before the model is published. Returns false without memory. */
bool bag_model_follow_updates(struct bag_model *model);

/* Lock all these tables for one reading of keys and rows (live_rows.h). bag_model_try_read()
 * returns false if it would have to wait. */
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

/* Returns the number of elements of a row of the feature's output. */
static inline size_t bag_feature_columns(const struct bag_feature *feature)
{
    return feature->projection ? feature->projection->projection.columns
                               : feature->memory->table.row_elements;
}

/* Returns whether the model has no table of its own. A model that is not READY has none either. */
static inline bool bag_model_is_collection(const struct bag_model *model)
{
    return !model->memory;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

/* Makes a snapshot with copies of these and references to their models, for up to `max_readers`
 * readers. No two models have the same name and version. Returns NULL without memory. Until the
 * snapshot is published, the caller must free it with bag_snapshot_free(). */
struct bag_snapshot *bag_snapshot_make(const struct bag_listed *listed, size_t count,
                                       size_t max_readers);

/* Frees a snapshot that nobody reads, and releases its models. */
void bag_snapshot_free(struct bag_snapshot *snapshot);

/* Returns the first version of a model, and sets *count to the number of its versions, which follow
 * it. Returns NULL if the name is unknown. */
struct bag_model *const *bag_snapshot_versions(const struct bag_snapshot *snapshot,
                                               const char *name, size_t *count);

/* Returns a version of a model, or NULL. If `version` is empty, returns the default version; if
 * that is not READY, the highest version that is; if none is, the highest version. */
const struct bag_model *bag_snapshot_find(const struct bag_snapshot *snapshot, const char *name,
                                          const char *version);

/* ---- the registry (registry.c) --------------------------------------------------------------- */

/* The current snapshot and its readers.
 *
 * One thread at a time, the reconciler's, makes the next snapshot beside the current one, publishes
 * it, and collects those that nobody reads any more. Every loop is a reader. A request acquires the
 * current snapshot when its head arrives and releases it when its reply is sent. The loop counts
 * these requests in its own lease of the snapshot, without an atomic operation.
 *
 * Why nothing is freed too early: a snapshot counts the readers that have not left it, from before
 * it is published. A reader leaves a snapshot, on its own thread, after it has moved on to a later
 * one and has released its last request there. The last reader to leave hands the snapshot to the
 * reconciler. An idle loop is woken to move on. */

/* A name and version that some snapshot has, with its index in all counters. */
struct bag_slot {
    char *name, *version; /* owned; NULL: the slot is free */
    size_t snapshots;     /* number of snapshots that have it */
};

/* The registry of a server. */
struct bag_registry {
    _Atomic(struct bag_snapshot *) current; /* owned */
    size_t max_readers;

    /* The reconciler's. */
    uint64_t generation;    /* generation of the last published snapshot */
    struct bag_slot *slots; /* owned */
    size_t num_slots;
    size_t first_free; /* no slot before this one is free */
    /* Called before a slot is used for another name and version. Returns false if it cannot be. */
    bool (*on_slot)(void *context, size_t slot);
    void *slot_context;

    pthread_mutex_t lock;            /* guards what follows */
    LIST_HEAD(, bag_reader) readers; /* borrowed */
    size_t num_readers;              /* opened ever */
    struct bag_snapshot *left;       /* owned; snapshots that nobody reads */
    /* Called when there is something to collect, on the thread that left last: a loop's, or the
     * reconciler's if no loop used the snapshot when it was replaced. */
    void (*on_left)(void *context);
    void *left_context;
};

/* A loop. Only its thread uses it, except for `wake`. */
struct bag_reader {
    struct bag_registry *registry;
    size_t index;
    struct bag_snapshot *at;     /* snapshot that requests acquire until the reader moves on */
    void (*wake)(void *context); /* makes the loop call bag_reader_move(); called on any thread */
    void *context;
    LIST_ENTRY(bag_reader) next;
};

/* Makes a registry without a snapshot. The callbacks may be set before the first is published.
 * Returns false without memory. */
bool bag_registry_init(struct bag_registry *registry, size_t max_readers);

/* Frees everything. All readers must be closed. */
void bag_registry_free(struct bag_registry *registry);

/* ---- the reconciler -------------------------------------------------------------------------- */

/* Gives every model its slot and makes the snapshot, which is taken over, the current one. Returns
 * false and sets *problem (NO_MEMORY) if there is no slot; the snapshot then stays the caller's. */
bool bag_registry_publish(struct bag_registry *registry, struct bag_snapshot *snapshot,
                          struct bag_problem *problem);

/* Frees the snapshots that nobody reads, and returns their number. */
size_t bag_registry_collect(struct bag_registry *registry);

/* ---- readers --------------------------------------------------------------------------------- */

/* Opens a reader, after the first snapshot is published. Returns false if there are max_readers. */
bool bag_reader_open(struct bag_reader *reader, struct bag_registry *registry,
                     void (*wake)(void *context), void *context);

/* Closes a reader, all of whose requests are released. `wake` is not called after that. */
void bag_reader_close(struct bag_reader *reader);

/* Moves on to the current snapshot, and leaves those in between. */
void bag_reader_move(struct bag_reader *reader);

/* Leaves a snapshot for good. */
void bag_reader_leave(struct bag_reader *reader, struct bag_snapshot *snapshot);

/* Returns the current snapshot for one request, which must release it. */
static inline struct bag_snapshot *bag_snapshot_acquire(struct bag_reader *reader)
{
    if (atomic_load_explicit(&reader->registry->current, memory_order_acquire) != reader->at)
        bag_reader_move(reader);
    reader->at->leases[reader->index].requests++;
    return reader->at;
}

/* Ends a request's use of a snapshot. Leaves the snapshot if the reader has moved on and this was
 * its last request there. Called on the reader's thread. */
static inline void bag_snapshot_release(struct bag_reader *reader, struct bag_snapshot *snapshot)
{
    if (--snapshot->leases[reader->index].requests == 0 && snapshot != reader->at)
        bag_reader_leave(reader, snapshot);
}
