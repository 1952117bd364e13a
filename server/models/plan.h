/* Plans: the models of the next snapshot, before their tables are loaded.
 *
 * bag_change_plan_make() gathers the facts and lets steps.h decide about the versions of each model
 * that the change is about. Each action becomes an entry. Other models stay. Then it resolves each
 * collection over the tables of the entries. At last it finds tables that need not be read: they
 * are in memory, or two entries read the same files. carry_out.h does the rest. Everything here
 * belongs to the reconciler's thread. */
#pragma once

#include "facts.h"

/* The beginning of the remark about a version that serves though its files are bad. */
#define BAG_LOADED_BEFORE "serves what was loaded before; its files cannot be loaded: "

/* One version in the next snapshot. It has a source until it is loaded, and then a model. */
struct bag_entry {
    struct bag_source *source;       /* owned; NULL: nothing is to be loaded */
    struct bag_model *model;         /* a reference; NULL: not loaded yet */
    struct bag_stored_table *stored; /* a reference to the table in memory that the model will
                                        share; NULL: its files are read */
    size_t same_as;          /* index of an earlier entry that reads the same files; or SIZE_MAX */
    uint64_t oldest_through; /* see bag_facts_oldest_through(); 0: not gathered, so all updates are
                                kept, as in the first plan of the start */
    char *remark;            /* owned; shown for a version that serves; NULL: none */
    bool is_default;         /* the default version of its name */
    bool is_retried;         /* a collection that is tried again, see steps.h */
    bool is_announced;       /* published as LOADING until the change is made */
};

/* Names of models, ascending. */
struct bag_model_names {
    const char **names; /* borrowed, with elements */
    size_t count;
};

/* The plan of one change. */
struct bag_change_plan {
    struct bag_facts facts;
    const struct bag_model_names *only; /* borrowed; NULL: see bag_change_plan_make() */
    bool is_trial;                      /* takes nothing from the catalog */
    bool loads;                         /* a trial has found a version to load */
    bool is_announced;                  /* bag_change_plan_announce() was called */
    struct bag_entry *entries;          /* owned; in the order of the next snapshot */
    size_t count;
    struct bag_entry **served; /* owned; entries planned as default versions, by name */
    size_t num_served;
    size_t bytes; /* memory of what is to be loaded */
    /* References to the published models that are unloaded before others are loaded; owned. */
    struct bag_model **unloaded_first;
    size_t num_unloaded_first;
    struct bag_entry *failed; /* entry that could not be loaded; NULL: none */
};

/* Plans a change of the models that `control` names (kind MODELS), or of those in `only`, or of all
 * if both are NULL. Takes sources out of the catalog. Returns NULL and sets *problem to
 *   NOT_FOUND      a requested model or version does not exist
 *   CONFLICT       version_policy excludes it, too many versions are unloaded one by one, or a
 *                  collection needs a table that would be unloaded
 *   BAD_REQUEST    what was requested, or a collection over it, cannot be served
 *   FILE, CONFIGURATION  the same for files that the configuration names, and at the start
 *   NO_MEMORY
 * and, if one version is to blame, models->error to it. */
struct bag_change_plan *bag_change_plan_make(struct bag_models *models, enum bag_change_kind kind,
                                             struct bag_catalog *catalog,
                                             const struct bag_control *control,
                                             const struct bag_model_names *only,
                                             struct bag_problem *problem);
void bag_change_plan_free(struct bag_change_plan *plan);

/* Returns whether a poll has anything to do about the model. Takes nothing out of the catalog. */
bool bag_change_plan_is_needed(struct bag_models *models, struct bag_catalog *catalog,
                               const char *name);

/* Returns whether the next snapshot differs from the current one. */
bool bag_change_plan_changes(const struct bag_change_plan *plan);

/* Returns the number of models that will serve. */
size_t bag_change_plan_count(const struct bag_change_plan *plan);

/* Returns the memory of the models after the plan was carried out. A table that several models
 * share counts once. */
size_t bag_change_plan_memory_bytes(const struct bag_change_plan *plan);

/* Returns the entry with that name and version, or NULL. */
struct bag_entry *bag_change_plan_find(const struct bag_change_plan *plan, const char *name,
                                       const char *version);

/* Returns the entry that will serve as the default version of the name, or NULL. */
struct bag_entry *bag_change_plan_find_default(const struct bag_change_plan *plan,
                                               const char *name);

/* Returns whether the next snapshot has a model over this table. */
bool bag_change_plan_uses(const struct bag_change_plan *plan,
                          const struct bag_stored_table *stored);

/* Makes an entry UNAVAILABLE for that reason. Returns false with *problem without memory. */
bool bag_entry_reject(struct bag_entry *entry, const char *reason, bool is_unloaded,
                      struct bag_problem *problem);

/* Makes an entry of a collection, which could not be made after its tables were loaded, UNAVAILABLE
 * if the change is made without it. Returns false if the change fails, with *problem as `why`. */
bool bag_change_plan_reject_collection(const struct bag_change_plan *plan, struct bag_entry *entry,
                                       const struct bag_problem *why, struct bag_problem *problem);

static inline const char *bag_entry_name(const struct bag_entry *entry)
{
    return entry->model ? entry->model->name : entry->source->model->name;
}

static inline const char *bag_entry_version(const struct bag_entry *entry)
{
    return entry->model ? entry->model->version : entry->source->model->version;
}

/* Returns the source of the entry or of its model. NULL: it has neither files nor features. */
static inline const struct bag_source *bag_entry_source(const struct bag_entry *entry)
{
    return entry->source ? entry->source : entry->model->source;
}

/* Returns whether the entry will answer requests. */
static inline bool bag_entry_serves(const struct bag_entry *entry)
{
    return entry->source || entry->model->state == BAG_MODEL_READY;
}
