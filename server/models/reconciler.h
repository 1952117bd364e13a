/* The reconciler: the one thread that changes which models are served.
 *
 * The reconciler works like a controller of Kubernetes. The desired state is the configuration,
 * the version policies, and what requests have loaded and unloaded since. The observed state is the
 * files that exist, the reports of shards, and the models in memory. A change compares the two,
 * decides on actions and carries them out. Each change starts from the facts as they are, so a file
 * that appears twice or disappears meanwhile does no harm.
 *
 * A change has one of four causes (enum bag_change_kind):
 *
 *   START          the server starts
 *   MODELS         a request loads or unloads models
 *   POLL           files, or versions on shards, have changed
 *   CONFIGURATION  the configuration is read again (SIGHUP)
 *
 * Requests and configurations wait in a queue of at most BAG_MAX_QUEUED_CHANGES and are made one
 * after the other. A change goes through these files:
 *
 *   catalog.c, folder.c  find all versions that could be served: sources, not opened yet
 *   versions.c           remembers each version: what is published of it, what the scan found, what
 *                        polls observed, why it failed, and what is retained
 *   steps.c              decides on an action for each version, as a pure function of these facts
 *   plan.c               gathers the facts, opens those files on which a decision depends, writes
 *                        each action into the version, and resolves collections over their tables
 *   load.c               reads the new tables while the others are served, and makes models of them
 *   carry_out.c          releases retained versions if memory is short, announces what is loaded,
 *                        publishes the snapshot, and releases the rest
 *
 * The life of a version: a scan finds it, and the table of versions gets its source
 * (server/tables/source.h). A change decides to load it. Loading makes a stored table of the files
 * and a model over the table; the model takes over the source. A snapshot with the model is
 * published, and requests read it. Another change replaces the version. Its model is then retained
 * for a roll back, if keep_versions says so, or released. The model is freed with the last
 * snapshot, collection or request that refers to it.
 *
 * A change is all or nothing, because a client that loads two models together must never see one
 * of them without the other. If it fails, what served goes on, and the index of models says why.
 * There is one exception: a version in the folder of models that cannot be loaded and was not asked
 * for (bag_plan_goes_without). It is remembered as failed, its name is decided again without it,
 * and what was loaded of other names stays. The start and the loading of all versions of a model
 * can therefore make progress past a broken file.
 *
 * A poll makes a change of each batch of names (poll_names). If that fails, for example because
 * memory does not suffice for the old and new tables of all, the names change one by one. A change
 * of a request that waits ends the poll after a batch, and the next poll follows it at once.
 *
 * Loops read the models without a lock: a snapshot never changes after it was published, and a
 * request keeps the one with which it began (snapshot.h). The last thread to leave a snapshot wakes
 * the reconciler, which frees it. Models, tables, snapshots and all that is remembered belong to
 * the reconciler's thread; only the queue of changes and the load status are shared with others.
 * The thread has a low priority and is not a worker, so that a load that takes minutes delays no
 * request, and no load of requests delays it for ever.
 *
 * The decisions are pure functions because they are the hard part. A failed load, a roll back and a
 * poll in some order are hard to arrange in a test over HTTP. In tests/unit/test_steps.c each case
 * is one line. */
#pragma once

#include "plan.h"

#include <sys/queue.h>

/* A change that was submitted. Belongs to the submitter, who must keep it until the reconciler
 * calls on_done(). */
struct bag_change {
    enum bag_change_kind kind;  /* MODELS or CONFIGURATION */
    struct bag_control control; /* request of a change of kind MODELS; owned */
    char who[96];               /* name of the requester, for the log */
    /* Called once, on the reconciler's thread, when the change was made or has failed. May free the
     * change. */
    void (*on_done)(struct bag_change *change);
    void *context;
    bool failed; /* set before on_done() */
    struct bag_problem
        problem; /* set if it failed; see bag_change_plan_make(), bag_change_plan_carry_out() */
    STAILQ_ENTRY(bag_change) next;
};

/* The reconciler of a server. Zeroed before bag_reconciler_open(), and never moved after it. Until
 * bag_reconciler_start() it belongs to the calling thread, then to its own. */
struct bag_reconciler {
    struct bag_models models;         /* used by the thread alone, except for the status */
    struct bag_config reread;         /* owned; the configuration that was read again last; zeros if
                                         none was */
    struct bag_shards *shards;        /* owned */
    struct bag_change_plan first;     /* owned; plan of the start; empty after it is carried out */
    size_t first_models, first_bytes; /* number of models at the start, and memory of their tables;
                                         as planned until they are loaded */
    uint64_t deltas_ns;               /* when a poll last looked at deltas; 0: never */
    pthread_t thread;

    /* Guarded by models.monitor. */
    STAILQ_HEAD(, bag_change) changes; /* borrowed; waiting */
    size_t num_changes;                /* number of waiting changes */
    bool stops, polls_shards;          /* requests to the thread; models.has_left is another one */
    bool failed;                       /* the first models could not be published */
    struct bag_problem problem;        /* reason for `failed` */

    /* Set before bag_reconciler_start(). Called on the reconciler's thread once the first models
     * are published or have failed: bag_reconciler_succeeded() may be called from then on. */
    void (*on_loaded)(void *context);
    /* Reads the whole configuration again into *config, which the reconciler frees in either case.
     * Returns false and sets *problem if it cannot. On the reconciler's thread. */
    bool (*configure)(void *context, struct bag_config *config, struct bag_problem *problem);
    void *context;
};

/* Finds and opens the files of all models and checks that memory suffices. Reads no elements.
 * `load_gemm` loads the function that multiplies matrices, if a projection needs it. Returns false
 * and sets *problem if the server cannot start with them. The caller must call
 * bag_reconciler_close() in either case. */
bool bag_reconciler_open(struct bag_reconciler *reconciler, const struct bag_config *config,
                         struct bag_registry *registry,
                         bag_gemm_fn *(*load_gemm)(struct bag_problem *problem),
                         struct bag_problem *problem);
void bag_reconciler_close(struct bag_reconciler *reconciler);

/* A version that cannot be served, as --check finds it. */
struct bag_check_fault {
    char name[129], version[21];
    char *reason; /* owned */
};

/* The result of bag_reconciler_check(). */
struct bag_check {
    struct bag_check_fault *faults; /* owned; in the order in which they were found */
    size_t count;
    bool lacks_memory; /* a fault could not be added */
};

/* Checks whether every version in the folder of models can be loaded, also those that are not
 * served: all that loading checks, without memory for the elements. Call it after
 * bag_reconciler_open(). Returns false and sets *problem if the folder cannot be read, or without
 * memory. The caller must call bag_check_free() in either case. */
bool bag_reconciler_check(const struct bag_reconciler *reconciler, struct bag_check *check,
                          struct bag_problem *problem);
void bag_check_free(struct bag_check *check);

/* Returns the fault of a version, or NULL. */
const struct bag_check_fault *bag_check_find(const struct bag_check *check, const char *name,
                                             const char *version);

/* Returns the sources of the models that will be served, in their order, one with each call, and
 * NULL after the last. *cursor is 0 before the first call. Before bag_reconciler_start(). */
const struct bag_source *bag_reconciler_next(const struct bag_reconciler *reconciler,
                                             size_t *cursor);

/* Publishes the first snapshot, in which every version that will be loaded is LOADING. Returns
 * false and sets *problem if memory does not suffice. */
bool bag_reconciler_announce(struct bag_reconciler *reconciler, struct bag_problem *problem);

/* Starts the thread, which loads the first models. Shows a progress bar on a terminal, and log
 * lines elsewhere. Returns false and sets *problem if no thread can be started. */
bool bag_reconciler_start(struct bag_reconciler *reconciler, struct bag_problem *problem);

/* Returns whether the first models were published; otherwise sets *problem. Any thread. */
bool bag_reconciler_succeeded(struct bag_reconciler *reconciler, struct bag_problem *problem);

/* The maximum number of changes that wait; the one that is being made does not count. */
#define BAG_MAX_QUEUED_CHANGES 64

/* Queues a change, once the first models were published. Any thread. Returns false and sets
 * *problem (QUEUE_FULL) if BAG_MAX_QUEUED_CHANGES wait already; on_done() is not called then. */
bool bag_reconciler_submit(struct bag_reconciler *reconciler, struct bag_change *change,
                           struct bag_problem *problem);

/* Aborts loading when the server stops. Changes fail with DRAINING from then on. Any thread. */
void bag_reconciler_cancel(struct bag_reconciler *reconciler);

/* Stops the thread, after all changes that wait have failed or are made, and the queries of shards.
 * The models stay published. */
void bag_reconciler_stop(struct bag_reconciler *reconciler);
