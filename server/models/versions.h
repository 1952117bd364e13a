/* The table of versions: everything that the server knows about the versions of its models.
 *
 * A name has its versions, what requests asked for, and the versions that stay in memory for a roll
 * back. A version has one place for each thing that one number can have at the same time:
 *
 *   now    as it is published: a model that answers, or one without a table that says why not
 *   found  the files and rules that the last scan found, not read yet
 *   next   as the change that runs will publish it (plan.h)
 *
 * Facts about its files stay with it from one change to the next: what polls observed of them, and
 * why they could not be loaded.
 *
 * A scan attaches its sources, a change detaches them at its end and forgets versions of which
 * nothing is left. bag_version_show() writes `now` and logs it. carry_out.c also sets the remark of
 * a version that goes on serving, and restores one that could not be unloaded first.
 *
 * Everything here belongs to the reconciler's thread, until the start to the main thread. Other
 * threads see snapshots and the load status. */
#pragma once

#include "catalog.h"
#include "config/options.h"
#include "load_status.h"
#include "server/system/monitor.h"
#include "server/updates/updates.h"
#include "snapshot.h"
#include "steps.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The files of a version, as polls observed them. */
struct bag_observed_state {
    uint64_t state; /* see bag_source_state() */
    uint64_t poll;  /* number of the last poll that looked at them; 0: none did */
    bool is_same;   /* true: that poll found the same files as the one that looked before */
};

/* Files of a version that are bad, or failed to load at the time at_ns (CLOCK_MONOTONIC). Prevents
 * repeated attempts, and that they are counted again. */
struct bag_failed_version {
    uint64_t fingerprint, at_ns;
    uint64_t change; /* number of the change in which they failed */
    struct bag_problem problem;
};

/* One version of a model. */
struct bag_version {
    struct bag_name *name; /* borrowed; the owner */
    uint64_t number;
    uint64_t seen;         /* number of the last scan that found it */
    struct bag_listed now; /* what is published; the model is a reference; NULL: nothing */
    uint64_t logged;       /* hash of the reason that was last logged; 0: none since it served */

    struct bag_source *found; /* owned; NULL: it has no files, or what is loaded took them */
    struct bag_observed_state observed;
    struct bag_failed_version *failed; /* owned; NULL: nothing is known to be wrong */

    /* Decided by the change that runs, if it is about the name; see plan.h. */
    struct bag_listed next;    /* as `now`, after the change */
    struct bag_source *source; /* owned; to be loaded, the model of `next`; NULL: nothing is */
    struct bag_stored_table *stored; /* a reference to the table in memory that the model will
                                        share; NULL: its files are read */
    struct bag_model *made; /* a reference; the model that this change made of the files; or NULL */
    uint64_t oldest_through; /* see bag_updates_table; 0: not known, so all updates are kept */
    bool is_announced;       /* LOADING until the change is made */
    bool is_needed;          /* a collection that will serve pins it */
};

/* A version that stays in memory though it does not serve (keep_versions), for a fast roll back. */
struct bag_retained_version {
    struct bag_model *model; /* a reference */
    uint64_t order;          /* ascending in the order in which versions were retained */
};

/* A name with its versions. */
struct bag_name {
    char text[129];
    uint64_t order;                /* place among the names: as first found */
    struct bag_version **versions; /* owned, with elements; ascending */
    size_t count;
    struct bag_retained_version *retained; /* owned; the newest last; several may have one number */
    size_t num_retained;
    struct bag_desired_state desired; /* by the changes that were made */
    uint64_t polled;                  /* number of the last poll that is done with it */
    struct bag_problem found;         /* why this poll cannot change it; "": none */
    bool is_counted;                  /* `found` was counted as the problem of a version */
    struct bag_problem logged;        /* problem of the last poll, which is logged once; "": none */

    /* Set by the change that runs. */
    bool is_decided, is_retried;
    bool is_kept; /* only a pin of one of its tables makes the change one of this name */
    struct bag_desired_state next_desired; /* by this change, if the name is decided */
};

/* The models of a server: the table, and what changing it needs. */
struct bag_models {
    struct bag_registry *registry;           /* borrowed; has the current snapshot */
    const struct bag_config *config;         /* borrowed; another one after it was read again */
    const struct bag_option_values *options; /* borrowed; those of the start, which stay */
    struct bag_updates *updates;             /* borrowed; NULL: rows never change */
    bag_gemm_fn *(*load_gemm)(struct bag_problem *problem); /* returns NULL and sets *problem */
    bag_gemm_fn *gemm;             /* loaded with the first model that projects; NULL before */
    struct bag_load_status status; /* read by other threads */
    atomic_bool cancelled;         /* ends what is being loaded; changed with monitor.lock */
    struct bag_monitor monitor;    /* woken when the reconciler's thread has something to do */
    bool has_left;                 /* guarded by the monitor's lock: a snapshot may be freed */

    struct bag_name **names; /* owned, with elements; by text */
    size_t num_names;
    uint64_t num_orders, num_scans, num_changes; /* given, made and started so far */
    uint64_t num_polls;    /* number of the poll that runs, or comes next; the first one has 1 */
    uint64_t num_retained; /* retained ever */
};

/* ---- the table ------------------------------------------------------------------------------- */

/* Frees the table. */
void bag_models_free(struct bag_models *models);

/* Returns the name, or NULL if the table does not have it. */
struct bag_name *bag_models_find(const struct bag_models *models, const char *text);

/* Returns the name, and adds it if the table does not have it. Returns NULL without memory. */
struct bag_name *bag_models_name(struct bag_models *models, const char *text);

/* Returns the version of that number, or NULL. */
struct bag_version *bag_name_find(const struct bag_name *name, uint64_t number);

/* Returns the names in the order in which they were first found, in an array that the caller frees.
 * Returns NULL without memory. */
struct bag_name **bag_models_in_order(const struct bag_models *models);

/* Gives each version the source that a scan found, and empties the catalog. Returns false and sets
 * *problem without memory. */
bool bag_models_attach(struct bag_models *models, struct bag_catalog *catalog,
                       struct bag_problem *problem);

/* Frees the sources that no change took. Forgets versions that the last scan did not find, and
 * names of which nothing is left that could matter to a later change. */
void bag_models_detach(struct bag_models *models);

/* Returns whether some version of the name is a collection. */
bool bag_name_has_collection(const struct bag_name *name);

/* ---- what is published ----------------------------------------------------------------------- */

/* Makes a model without a table in the place of the version, of which the caller has the reference.
 * Returns `now` again if it says the same. Returns NULL and sets *problem without memory. */
struct bag_model *bag_version_stub(const struct bag_version *version, enum bag_model_state state,
                                   const char *reason, bool is_unloaded,
                                   struct bag_problem *problem);

/* Puts what is listed of the version into the place of `now`, and logs what changed for users.
 * Takes over the reference and the remark. The next snapshot shows it. */
void bag_version_show(struct bag_version *version, struct bag_listed listed, bool is_start);

/* Publishes what is listed of all versions: `next` of the names that a change decided, if
 * `decided`, otherwise `now`. Returns false and sets *problem without memory. */
bool bag_models_publish(struct bag_models *models, bool decided, struct bag_problem *problem);

/* Returns a copy of what is listed. The remark is missing without memory. */
struct bag_listed bag_listed_copy(const struct bag_listed *listed);

/* Releases the model, frees the remark and empties *listed. */
void bag_listed_clear(struct bag_listed *listed);

static inline bool bag_listed_is_ready(const struct bag_listed *listed)
{
    return listed->model && listed->model->state == BAG_MODEL_READY;
}

/* Returns the number of versions that serve. */
size_t bag_models_count_ready(const struct bag_models *models);

/* Returns the memory of all models that serve. A table that several models share counts once. */
size_t bag_models_memory_bytes(const struct bag_models *models);

/* ---- facts about files and tables ------------------------------------------------------------ */

/* Retains a version that does not serve. Returns false without memory. */
bool bag_name_retain(struct bag_models *models, struct bag_name *name, struct bag_model *model);

/* Releases a retained version. */
void bag_name_release(struct bag_name *name, size_t index);

/* Remembers that the files of a version are bad or failed to load, and counts them once. Returns
 * false without memory. */
bool bag_version_fail(struct bag_models *models, struct bag_version *version, uint64_t fingerprint,
                      const struct bag_problem *why);

/* Counts a change that failed. */
void bag_models_count_failure(struct bag_models *models);

/* Returns whether the model's table lacks updates that other versions took. */
bool bag_models_lack_updates(const struct bag_models *models, const struct bag_model *model);

/* Describes a model's table to server/updates. */
struct bag_updates_table bag_updates_table_of(const struct bag_model *model);
