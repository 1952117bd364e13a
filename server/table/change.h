/* Changing what is served: from what there is and what was asked for to the next snapshot.
 *
 * A change is all or nothing. Its plan says which versions of which models the next snapshot has:
 * those of models that the change is not about stay, tables whose files are the same are shared,
 * and collections over other tables than before are made anew, so that an answer never mixes
 * versions. Then the new tables are loaded beside what serves, and published together. On any
 * failure what served goes on.
 *
 * Everything here is done by one thread at a time, the one that changes the tables. */
#ifndef BAG_TABLE_CHANGE_H
#define BAG_TABLE_CHANGE_H

#include "catalog.h"
#include "registry.h"
#include "updates.h"
#include "versions.h"

/* ---- how far loading is ---------------------------------------------------------------------- */

/* Written by the changing thread, read by any. */
struct bag_load_status {
    pthread_mutex_t lock; /* guards what follows */
    char name[129];       /* of the model whose table is being read; empty: none is */
    char version[21];     /* its */
    size_t done_bytes;    /* of all tables of the change */
    size_t total_bytes;   /* 0: nothing is being loaded */
    uint64_t begun_ns;    /* of CLOCK_MONOTONIC */
    uint64_t num_done;    /* changes that were made, */
    uint64_t num_failed;  /* and that were not */
    size_t num_kept;      /* versions that are held though they are not served */
    size_t kept_bytes;    /* of their tables */
};

/* A copy for a reader; its lock is not to be used. `left_s` is an estimate, 0 where none can be
 * made. */
struct bag_load_view {
    char name[129], version[21];
    size_t done_bytes, total_bytes, num_kept, kept_bytes;
    uint64_t num_done, num_failed;
    double left_s;
};
void bag_load_status_read(struct bag_load_status *status, struct bag_load_view *view);

/* ---- changes --------------------------------------------------------------------------------- */

enum bag_change_kind {
    BAG_CHANGE_START,         /* everything that there is, for the first time */
    BAG_CHANGE_MODELS,        /* what `control` says */
    BAG_CHANGE_POLL,          /* what has changed in files */
    BAG_CHANGE_CONFIGURATION, /* everything, after the configuration was read again */
};

/* What a version could not be served for, so that it is not read again and again. */
struct bag_failure_record {
    char name[129];
    uint64_t number, fingerprint, at_ns;
    struct bag_problem problem;
};

/* A version as the last poll saw it. */
struct bag_sighting {
    char name[129];
    uint64_t number, fingerprint;
};

struct bag_changer {
    struct bag_registry *registry;   /* borrowed */
    const struct bag_config *config; /* borrowed; models, models_dir and options */
    bag_gemm_fn *gemm;               /* NULL: projections cannot be loaded */
    struct bag_load_status *status;  /* borrowed */
    const atomic_bool *cancelled;    /* borrowed; ends what is being loaded */
    struct bag_updates *updates;     /* borrowed; NULL: rows never change */
    /* Frees snapshots until the model has only `holders` left; false where that takes too long. */
    bool (*wait_until_left)(void *context, const struct bag_model *model, size_t holders);
    void *context;

    struct bag_wish *wishes; /* owned; of models that something was asked of */
    size_t num_wishes;
    struct bag_model **kept; /* owned, each held: versions that are not served; the newest last */
    size_t num_kept;
    struct bag_failure_record *failures; /* owned */
    size_t num_failures;
    struct bag_sighting *sightings; /* owned */
    size_t num_sightings;
};

void bag_changer_free(struct bag_changer *changer);

/* What a change will do. */
struct bag_change_plan;

/* Plans a change of the models that it is about: those in `control` (of MODELS alone, otherwise
 * NULL), or the one named `only`, or all (NULL). Takes sources out of the catalog. NULL with
 * *problem: NOT_FOUND, CONFLICT (409), BAD_REQUEST for a version that cannot be served, ... */
struct bag_change_plan *bag_change_plan_make(struct bag_changer *changer, enum bag_change_kind kind,
                                             struct bag_catalog *catalog,
                                             const struct bag_control *control, const char *only,
                                             struct bag_problem *problem);
void bag_change_plan_free(struct bag_change_plan *plan);

/* Whether the next snapshot differs from the current one. */
bool bag_change_plan_changes(const struct bag_change_plan *plan);

/* How many models it serves, and the bytes of the tables that it loads. */
size_t bag_change_plan_count(const struct bag_change_plan *plan);
size_t bag_change_plan_bytes(const struct bag_change_plan *plan);

/* Whether a model that it serves projects. */
bool bag_change_plan_projects(const struct bag_change_plan *plan);

/* Whether nothing in it is UNAVAILABLE; otherwise *problem says why. */
bool bag_change_plan_check(const struct bag_change_plan *plan, struct bag_problem *problem);

/* Takes what was asked for as done, where nothing changes; true. */
bool bag_change_plan_commit(struct bag_change_plan *plan);

/* Publishes that the new versions are LOADING. Where a table is to be unloaded first, waits until
 * it has left. */
bool bag_change_plan_announce(struct bag_change_plan *plan, struct bag_problem *problem);

/* Loads what is new and publishes the next snapshot. On failure the versions that were LOADING are
 * UNAVAILABLE. */
bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem);

/* After bag_change_plan_carry_out has failed: whether another plan may go without the version that
 * could not be loaded. It is then left alone for a while, and what was loaded is held for the next
 * plan.
 */
bool bag_change_plan_may_go_without(const struct bag_change_plan *plan,
                                    const struct bag_problem *why);

#endif
