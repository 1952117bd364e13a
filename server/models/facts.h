/* Facts about the models: what the reconciler remembers of them, and what it gathers for a change.
 *
 * struct bag_models is remembered for as long as the server runs. For each name it has the desired
 * state, the files that the last poll observed, versions that failed to load, and retained
 * versions.
 *
 * struct bag_facts is gathered for one change: the catalog and the published models. struct
 * bag_model_facts is gathered for one model of it: all that bag_plan_model() needs to decide. Files
 * are only opened if the decision depends on them, see check_files() in steps.h.
 *
 * Everything here belongs to the reconciler's thread. */
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

/* ---- what is remembered ---------------------------------------------------------------------- */

/* The files of a version, as polls observed them. */
struct bag_observed_state {
    uint64_t number, fingerprint;
    uint64_t poll; /* number of the last poll that found the version */
    bool is_same;  /* true: that poll found the same files as the poll before */
};

/* A version that is bad, or failed to load at the time at_ns (CLOCK_MONOTONIC). Prevents repeated
 * attempts, and that it is counted again. */
struct bag_failed_version {
    uint64_t number, fingerprint, at_ns;
    uint64_t change; /* number of the change in which it failed */
    struct bag_problem problem;
};

/* A version that stays in memory though it does not serve (keep_versions), for a fast roll back. */
struct bag_retained_version {
    struct bag_model *model; /* a reference */
    uint64_t order;          /* ascending in the order in which versions were retained */
};

/* The facts that are remembered of one name. */
struct bag_record {
    char name[129];
    struct bag_desired_state desired;    /* by the changes that were made */
    struct bag_desired_state planned;    /* by the plan `desired_by`, which may not be made yet */
    uint64_t desired_by;                 /* number of the last plan that set `planned` */
    uint64_t planned_by;                 /* number of the last plan that has the name's versions */
    struct bag_observed_state *observed; /* owned */
    size_t num_observed;
    struct bag_failed_version *failures; /* owned */
    size_t num_failures;
    struct bag_retained_version *retained; /* owned; the newest last */
    size_t num_retained;
    struct bag_problem logged; /* problem of the last poll, which is logged once; "": none */
};

/* The version that made a plan fail. The name is empty if none did. */
struct bag_plan_error {
    char name[129], version[21];
    struct bag_problem problem;
};

/* The models of a server: what is remembered of them, and what changing them needs. */
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

    struct bag_record **records; /* owned, with elements; by name */
    size_t num_records;
    uint64_t num_changes;          /* started; a change may need several plans */
    uint64_t num_plans, num_polls; /* made */
    uint64_t num_retained;         /* retained ever */
    struct bag_plan_error error;   /* error of the last plan that failed */
};

/* Frees what is remembered. */
void bag_models_free(struct bag_models *models);

/* Returns what is remembered of the name, or NULL if nothing is. */
struct bag_record *bag_record_find(const struct bag_models *models, const char *name);

/* Returns what is remembered of the name, and adds an empty record if nothing is. Returns NULL
 * without memory. */
struct bag_record *bag_record_make(struct bag_models *models, const char *name);

/* Forgets files that the last poll did not find, and names of which nothing is remembered. */
void bag_models_forget(struct bag_models *models);

/* Retains a version that does not serve. Returns false without memory. */
bool bag_models_add_retained(struct bag_models *models, struct bag_model *model);

/* Releases a retained version. */
void bag_record_release(struct bag_record *record, size_t index);

/* Returns whether the model's table lacks updates that other versions took. */
bool bag_models_lack_updates(const struct bag_models *models, const struct bag_model *model);

/* Describes a model's table to server/updates. */
struct bag_updates_table bag_updates_table_of(const struct bag_model *model);

/* ---- what is gathered for a change ----------------------------------------------------------- */

/* The facts for one plan. */
struct bag_facts {
    struct bag_models *models; /* borrowed */
    enum bag_change_kind kind;
    const struct bag_control
        *control;                 /* borrowed; the request of a change of kind MODELS; or NULL */
    struct bag_catalog *catalog;  /* borrowed; a plan takes sources out of it */
    uint64_t plan;                /* number of the plan that these are for */
    struct bag_listed *published; /* owned, with elements; in the order of the snapshot */
    size_t num_published;
};

/* Gathers what is published: all models or, if `only` is not NULL, those of one name. Gives the
 * plan its number. The caller sets the other members before. Without `only`, also releases retained
 * versions that lack an update, because no plan may restore them. Returns false with *problem
 * without memory. The caller must call bag_facts_free() in either case. */
bool bag_facts_gather(struct bag_facts *facts, const char *only, struct bag_problem *problem);
void bag_facts_free(struct bag_facts *facts);

/* Returns what is published under that name and version, or NULL. */
struct bag_listed *bag_facts_find(const struct bag_facts *facts, const char *name,
                                  const char *version);

/* Returns the published model if it is READY, otherwise NULL. */
struct bag_model *bag_facts_find_ready(const struct bag_facts *facts, const char *name,
                                       const char *version);

/* Returns the desired state of the model in this plan, which the caller may change. It is valid
 * until bag_models_forget(). Returns NULL without memory. */
struct bag_desired_state *bag_facts_desired_state(const struct bag_facts *facts, const char *name);

/* Makes the desired states of this plan those of later changes. */
void bag_facts_commit(const struct bag_facts *facts);

/* Returns the table in memory that was read from these files, is published or retained, and has all
 * updates. Returns NULL if there is none. */
struct bag_stored_table *bag_facts_find_stored(const struct bag_facts *facts, uint64_t fingerprint);

/* Returns the number of the last update that all versions of the model include which the catalog
 * has and the plan does not take: later updates are kept for them. Opens their files. Returns
 * UINT64_MAX if there are no such versions. */
uint64_t bag_facts_oldest_through(const struct bag_facts *facts, const char *name);

/* Counts a change that failed. */
void bag_models_count_failure(struct bag_models *models);

/* Remembers that the version is bad or failed to load, and counts it once for each state of its
 * files. Returns false without memory. */
bool bag_facts_add_failure(const struct bag_facts *facts, const struct bag_source *source,
                           const struct bag_problem *why);

/* The facts about one model; must not move. */
struct bag_model_facts {
    const struct bag_facts *facts; /* borrowed */
    const char *name;              /* borrowed */
    struct bag_record *record;     /* borrowed */
    struct bag_model_plan plan;    /* ready for bag_plan_model(); owns its versions */
    bool lacks_memory;             /* set by check_files(): a version that may be good could not be
                                      opened */
};

/* Gathers the versions of a model. Returns false with *problem without memory. The caller must free
 * of_model->plan.versions in either case. */
bool bag_facts_gather_model(const struct bag_facts *facts, const char *name,
                            struct bag_model_facts *of_model, struct bag_problem *problem);
