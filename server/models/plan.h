/* Plans: what a change makes of the versions of the names that it is about, before their tables are
 * loaded.
 *
 * bag_change_plan_decide() lets steps.h decide about the versions of each name, first of tables,
 * then of collections, and writes each action into `next` or `source` of the version. Other names
 * stay. Then it resolves each collection over the tables as they will be: a collection over other
 * tables than before is opened again. At last it finds tables that need not be read: they are in
 * memory, or two versions read the same files. carry_out.h does the rest.
 *
 * A plan writes nothing that outlives it until it is carried out: bag_change_plan_free() undoes it.
 * Everything here belongs to the reconciler's thread. */
#pragma once

#include "versions.h"

/* The beginning of the remark about a version that serves though its files are bad. */
#define BAG_LOADED_BEFORE "serves what was loaded before; its files cannot be loaded: "

/* A table in memory, by its files. */
struct bag_shared_table {
    uint64_t fingerprint;
    const struct bag_model *model; /* borrowed; a model of the table */
};

/* A version that is unloaded before others are loaded, as it was listed. */
struct bag_unloaded_first {
    struct bag_version *version;
    struct bag_listed listed; /* owned */
};

/* The plan of one change. */
struct bag_change_plan {
    struct bag_models *models; /* borrowed */
    enum bag_change_kind kind;
    const struct bag_control
        *control;            /* borrowed; the request of a change of kind MODELS; or NULL */
    struct bag_name **names; /* owned; those that are decided */
    size_t num_names;
    struct bag_version **loads; /* owned; the versions that are loaded, in the order of the names */
    size_t num_loads;
    size_t bytes;                    /* memory of what is to be loaded */
    struct bag_shared_table *shared; /* owned; the tables in memory, by fingerprint */
    size_t num_shared;
    uintptr_t
        *used; /* owned; addresses of the tables that models use after the change, ascending */
    size_t num_used;
    struct bag_unloaded_first *unloaded_first; /* owned, with elements */
    size_t num_unloaded_first;
    bool serves_others;         /* after it was carried out: some model began or ceased to serve */
    struct bag_version *failed; /* version that could not be loaded, or a collection for which
                                   planning failed; NULL: none */
    struct bag_version *bad;    /* version that made planning fail, and why; NULL: none */
    struct bag_problem bad_problem;
};

/* Makes an empty plan of one change. The caller must free it. */
void bag_change_plan_init(struct bag_change_plan *plan, struct bag_models *models,
                          enum bag_change_kind kind, const struct bag_control *control);

/* Frees everything that the plan owns, and what it decided and did not carry out. */
void bag_change_plan_free(struct bag_change_plan *plan);

/* Decides about the versions of one name, and sets *changes if what is listed of them would change.
 * Otherwise a poll leaves the name out. Collections must follow the tables. Returns false and sets
 * *problem as bag_change_plan_decide(). */
bool bag_change_plan_add(struct bag_change_plan *plan, struct bag_name *name, bool *changes,
                         struct bag_problem *problem);

/* Completes a plan after the last name was added: resolves the collections of all names over the
 * tables, and finds what is shared. Returns false and sets *problem as bag_change_plan_decide(). */
bool bag_change_plan_complete(struct bag_change_plan *plan, struct bag_problem *problem);

/* Plans a change of the models that plan->control names, or of all if that is NULL: adds them and
 * completes the plan. Returns false and sets *problem to
 *   NOT_FOUND      a requested model or version does not exist
 *   CONFLICT       version_policy excludes it, too many versions are unloaded one by one, or a
 *                  collection needs a table that would be unloaded
 *   BAD_REQUEST    what was requested, or a collection over it, cannot be served
 *   FILE, CONFIGURATION  the same for files that the configuration names, and at the start
 *   NO_MEMORY
 * and, if one version is to blame, plan->bad to it. */
bool bag_change_plan_decide(struct bag_change_plan *plan, struct bag_problem *problem);

/* Decides again about the name of plan->failed, which is remembered as failed, and completes the
 * plan. Loaded tables stay. Returns false and sets *problem as bag_change_plan_decide(). */
bool bag_change_plan_go_without(struct bag_change_plan *plan, struct bag_problem *problem);

/* Returns whether the next snapshot differs from the current one. */
bool bag_change_plan_changes(const struct bag_change_plan *plan);

/* Returns the number of versions that will serve. */
size_t bag_change_plan_count(const struct bag_change_plan *plan);

/* Lists the tables in memory that models use after the change, for the next function. Returns false
 * and sets *problem without memory. */
bool bag_change_plan_list_used(struct bag_change_plan *plan, struct bag_problem *problem);

/* Returns whether the next snapshot has a model over this table. */
bool bag_change_plan_uses(const struct bag_change_plan *plan,
                          const struct bag_stored_table *stored);

/* Makes a version UNAVAILABLE for that reason. Returns false with *problem without memory. */
bool bag_version_reject(struct bag_version *version, const char *reason, bool is_unloaded,
                        struct bag_problem *problem);

/* Makes a collection, which could not be made after its tables were loaded, UNAVAILABLE if the
 * change is made without it. Returns false if the change fails, with *problem as `why`. */
bool bag_change_plan_reject_collection(const struct bag_change_plan *plan,
                                       struct bag_version *version, const struct bag_problem *why,
                                       struct bag_problem *problem);

/* Returns what will be listed of the version, without the model if it is still to be loaded. */
static inline const struct bag_listed *bag_version_next(const struct bag_version *version)
{
    return version->name->is_decided ? &version->next : &version->now;
}

/* Returns whether the version will answer requests. */
static inline bool bag_version_will_serve(const struct bag_version *version)
{
    return version->source || bag_listed_is_ready(bag_version_next(version));
}

/* Returns the source of the version as it will be. NULL: it has neither files nor features. */
static inline const struct bag_source *bag_version_source(const struct bag_version *version)
{
    const struct bag_listed *next = bag_version_next(version);
    return version->source ? version->source : next->model ? next->model->source : NULL;
}

/* Returns the version that will serve as the default one of its name, or NULL. */
struct bag_version *bag_name_next_default(const struct bag_name *name);

/* Returns whether the collection, as it will be, pins the version of a table. */
bool bag_change_plan_pins(const struct bag_version *collection, const struct bag_version *table);

/* Adds to a lack of memory which two versions of a table do not fit together, if a collection pins
 * the one that is there. Returns false. */
bool bag_change_plan_explain_memory(const struct bag_change_plan *plan,
                                    struct bag_problem *problem);

/* Returns the version whose table a feature of a collection will pool: the one that it pins, or the
 * default one. Returns NULL if that one will not serve. */
struct bag_version *bag_change_plan_find_table(const struct bag_change_plan *plan,
                                               const struct bag_feature_config *feature);
