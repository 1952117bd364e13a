/* Changing what is served: from what there is and what was asked for to the next snapshot.
 *
 * A change is all or nothing. Its plan says which versions of which models the next snapshot has:
 * those of models that the change is not about stay, tables whose files are the same are shared,
 * and collections over other tables than before are made anew, so that an answer never mixes
 * versions. Then the new tables are loaded beside what serves, and published together. On any
 * failure what served goes on.
 *
 * Everything here is done by one thread at a time, the one that changes the tables. */
#ifndef BAG_MODELS_CHANGE_H
#define BAG_MODELS_CHANGE_H

#include "catalog.h"
#include "config/options.h"
#include "proto/v2_request.h"
#include "server/updates/updates.h"
#include "snapshot.h"
#include "steps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

/* ---- how far loading is ---------------------------------------------------------------------- */

/* What a reader sees; of NULL zeros. */
struct bag_load_view {
    char name[129];      /* of the model whose table is being read; empty: none is */
    char version[21];    /* its */
    size_t done_bytes;   /* of all tables of the change */
    size_t total_bytes;  /* 0: nothing is being loaded */
    uint64_t num_done;   /* changes that were made, */
    uint64_t num_failed; /* and that were not */
    uint64_t done_at_ms; /* when the last one was made, since 1970; 0: none was */
    size_t num_kept;     /* versions that are held though they are not served */
    size_t kept_bytes;   /* of their tables */
    uint64_t begun_ns;   /* when loading began, of CLOCK_MONOTONIC */
    double left_s;       /* an estimate; 0 where none can be made */
};

struct bag_load_status {
    struct bag_load_view now; /* the changing thread's, which tells it to others */
    pthread_mutex_t lock;     /* guards what follows */
    struct bag_load_view told;
};
void bag_load_status_tell(struct bag_load_status *status);
void bag_load_status_read(struct bag_load_status *status, struct bag_load_view *view);

/* ---- changes --------------------------------------------------------------------------------- */

/* A version as polls see it. */
struct bag_observed_state {
    uint64_t number, fingerprint;
    uint64_t poll; /* the last one that saw it */
    bool is_same;  /* as the one before */
};

/* What a version could not be served for, so that it is not read again and again. */
struct bag_failed_version {
    uint64_t number, fingerprint, at_ns;
    uint64_t change; /* the number of the change that it failed in */
    struct bag_problem problem;
};

/* A version that is held in memory though it is not served. */
struct bag_retained_version {
    struct bag_model *model; /* held */
    uint64_t order;          /* the first one that was held has the lowest */
};

/* All that is remembered of one model's name. */
struct bag_record {
    char name[129];
    struct bag_desired_state desired;    /* what was asked of it */
    struct bag_desired_state planned;    /* what that becomes, once the change is made: */
    uint64_t desired_by, plan;           /* the last plans that changed / planned it */
    struct bag_observed_state *observed; /* owned; of the last poll */
    size_t num_observed;
    struct bag_failed_version *failures; /* owned */
    size_t num_failures;
    struct bag_retained_version *retained; /* owned; the newest last */
    size_t num_retained;
    struct bag_problem said; /* what the log says of its last poll; "": nothing */
};

/* The version that a change cannot be made for; without a name: none. */
struct bag_plan_error {
    char name[129], version[21];
    struct bag_problem problem;
};

struct bag_changer {
    struct bag_registry *registry;   /* borrowed */
    const struct bag_config *config; /* borrowed; models, models_dir and options */
    bag_gemm_fn *(*load_gemm)(struct bag_problem *problem); /* NULL with the problem set */
    bag_gemm_fn *gemm;              /* loaded with the first model that projects; NULL before */
    struct bag_load_status *status; /* borrowed */
    const atomic_bool *cancelled;   /* borrowed; ends what is being loaded */
    struct bag_updates *updates;    /* borrowed; NULL: rows never change */
    /* Frees snapshots until the model has only `holders` left; false where that takes too long. */
    bool (*wait_until_left)(void *context, const struct bag_model *model, size_t holders);
    void *context;

    struct bag_record **records; /* owned, as each; by name */
    size_t num_records;
    uint64_t num_changes; /* begun ever; the last one is being made, by one plan after another */
    uint64_t num_plans, num_polls, num_holds; /* ever */
    struct bag_plan_error error;              /* of the last plan that could not be made */
};

void bag_changer_free(struct bag_changer *changer);

/* What a change will do. */
struct bag_change_plan;

/* Names of models, ascending. */
struct bag_change_names {
    const char **names; /* borrowed, as the list */
    size_t count;
};

/* Plans a change of the models that it is about: those in `control` (of MODELS alone, otherwise
 * NULL), or those named in `only`, or all (NULL). Takes sources out of the catalog. NULL with
 * *problem: NOT_FOUND, CONFLICT (409), BAD_REQUEST for a version that cannot be served, ... */
struct bag_change_plan *bag_change_plan_make(struct bag_changer *changer, enum bag_change_kind kind,
                                             struct bag_catalog *catalog,
                                             const struct bag_control *control,
                                             const struct bag_change_names *only,
                                             struct bag_problem *problem);
void bag_change_plan_free(struct bag_change_plan *plan);

/* Whether a poll has something to do about a model; nothing is taken out of the catalog. */
bool bag_change_is_needed(struct bag_changer *changer, struct bag_catalog *catalog,
                          const char *name);

/* How many models it serves. */
size_t bag_change_plan_count(const struct bag_change_plan *plan);

/* Says in the index what the last plan was refused for. */
void bag_changer_show_plan_error(struct bag_changer *changer);

/* Loads what multiplies, where a model that is to be loaded projects and none was before. */
bool bag_change_plan_load_gemm(struct bag_change_plan *plan, struct bag_problem *problem);

/* Publishes that the new versions are LOADING. Where a table is to be unloaded first, waits until
 * it has left. */
bool bag_change_plan_announce(struct bag_change_plan *plan, struct bag_problem *problem);

/* Loads what is new and publishes the next snapshot, once the plan is announced; does nothing but
 * commit the plan if nothing changes. On failure the versions that were LOADING are UNAVAILABLE. */
bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem);

/* Returns whether another plan of the same change may pass over the version that could not be
 * loaded, after bag_change_plan_carry_out has failed with `why`. A load, or a configuration that is
 * read again, fails for the version that was to become the default one. Remembers the failure, and
 * retains what was loaded for the next plan. */
bool bag_change_plan_may_go_without(const struct bag_change_plan *plan,
                                    const struct bag_problem *why);

/* ---- plans: private to change*.c ------------------------------------------------------------- */

/* One version in the next snapshot. */
struct bag_change_entry {
    struct bag_source *source;       /* to be loaded; owned, until its model is there; NULL: none */
    struct bag_model *model;         /* held; NULL: it is to be loaded */
    struct bag_stored_table *stored; /* held; the table in memory that it will be of; NULL: its
                                        files are read */
    size_t same_as; /* the entry before it that reads the same files; SIZE_MAX: none does */
    uint64_t oldest_through; /* the least that other versions include which are there: updates after
                                it are kept for them; UINT64_MAX: there are none */
    char *note;              /* owned; what is to be said of one that answers, for anybody; NULL:
                                nothing */
    bool is_default;         /* of its name */
    bool is_retried;         /* a collection that the change is not about, nor fails for */
    bool is_announced;       /* as LOADING, until the change is made */
};

struct bag_change_plan {
    struct bag_changer *changer;
    enum bag_change_kind kind;
    uint64_t number;             /* no two have the same */
    struct bag_catalog *catalog; /* borrowed */
    bool peeks;                  /* it only asks whether there is something to do, and takes no
                                    source from the catalog */
    bool finds;                  /* and has found something */
    bool is_announced;
    const struct bag_control *control;   /* borrowed; NULL: all models, or `only` */
    const struct bag_change_names *only; /* borrowed */
    struct bag_change_entry *prior;      /* owned: what was published, in its order */
    size_t num_prior;
    struct bag_change_entry *entries; /* owned: what will be */
    size_t count;
    struct bag_change_entry **served; /* owned: the default versions among the entries, by name */
    size_t num_served;
    struct bag_model **dropped; /* owned, each held: of `prior`, unloaded before others are loaded
                                 */
    size_t num_dropped;
    size_t bytes;                    /* of what is to be loaded */
    struct bag_change_entry *failed; /* that could not be loaded; NULL: none */
};

static inline const char *bag_entry_name(const struct bag_change_entry *entry)
{
    return entry->model ? entry->model->name : entry->source->model->name;
}

static inline const char *bag_entry_version(const struct bag_change_entry *entry)
{
    return entry->model ? entry->model->version : entry->source->model->version;
}

/* What is read, or was read, for the entry; NULL: it has no table. */
static inline const struct bag_source *bag_entry_source(const struct bag_change_entry *entry)
{
    return entry->source ? entry->source : entry->model->source;
}

/* Whether it will answer. */
static inline bool bag_entry_serves(const struct bag_change_entry *entry)
{
    return entry->source || entry->model->state == BAG_MODEL_READY;
}

/* What begins the note of a version that serves though its files went bad. */
#define BAG_LOADED_BEFORE "serves what was loaded before; its files cannot be loaded: "

/* ---- entries (plan.c) ------------------------------------------------------------------------ */

/* Adds one; NULL without memory. It is valid until the next one is added. */
struct bag_change_entry *bag_change_add_entry(struct bag_change_plan *plan,
                                              struct bag_problem *problem);
bool bag_change_add_model(struct bag_change_plan *plan, struct bag_model *model, bool is_default,
                          struct bag_problem *problem);

/* Adds what was published, of a model that the change is not about, or that stays. */
bool bag_change_add_published(struct bag_change_plan *plan, const struct bag_change_entry *prior,
                              struct bag_problem *problem);

/* Whether the next snapshot differs from the current one. */
bool bag_change_plan_changes(const struct bag_change_plan *plan);

/* Remembers what was asked for as done: for later polls and changes. */
void bag_change_plan_commit(struct bag_change_plan *plan);

/* The entry of that name and version; NULL: there is none. */
struct bag_change_entry *bag_change_find(struct bag_change_entry *entries, size_t count,
                                         const char *name, const char *version);

/* The published model of that name and version, if it is READY; otherwise NULL. */
struct bag_model *bag_change_find_ready(const struct bag_change_plan *plan, const char *name,
                                        const char *version);

/* Makes of an entry one that is UNAVAILABLE for that reason. */
bool bag_change_reject(struct bag_change_entry *entry, const char *reason, bool is_unloaded,
                       struct bag_problem *problem);

/* Notes something of an entry. */
bool bag_change_note(struct bag_change_entry *entry, const char *text, struct bag_problem *problem);

/* Adds a version that does not answer: the one that was published where it says the same. */
bool bag_change_add_placeholder(struct bag_change_plan *plan, const char *name, const char *version,
                                const char *reason, bool is_unloaded, struct bag_problem *problem);

/* Returns the desired state of a model in the plan; NULL without memory. It is valid until the next
 * one is asked for.
 */
struct bag_desired_state *bag_change_desired_state(struct bag_change_plan *plan, const char *name);

/* What was asked of the model; NULL: nothing. `control` may be NULL. */
const struct bag_control_item *bag_control_find(const struct bag_control *control,
                                                const char *name);

/* The entry that was planned as the default version of that name; NULL: there is none. It may have
 * been rejected since. */
struct bag_change_entry *bag_change_find_served(const struct bag_change_plan *plan,
                                                const char *name);

/* The same, where it serves. */
struct bag_change_entry *bag_change_plan_find_default(const struct bag_change_plan *plan,
                                                      const char *name);

/* ---- versions and collections (plan_versions.c, plan_collections.c) -------------------------- */

/* Adds the versions of a model that the change is about. */
bool bag_change_add_versions(struct bag_change_plan *plan, const char *name,
                             struct bag_problem *problem);

/* Finds what collections are over; makes those anew whose tables are others. */
bool bag_change_resolve_collections(struct bag_change_plan *plan, struct bag_problem *problem);

/* Whether a change is made without a collection that cannot be made: one that was tried again, or
 * one that does not serve and the configuration names, as that is read, over a table in the folder
 * of models, of which there may be another version at any time. A file of its own that cannot be
 * read is a mistake of the configuration. */
bool bag_change_goes_without(const struct bag_change_plan *plan,
                             const struct bag_change_entry *entry, const struct bag_problem *why);

/* ---- loading (change_load.c) ----------------------------------------------------------------- */

/* Makes the models of all entries; plan->failed is the one that could not be made. The status says
 * how far that is, until the second call. */
bool bag_change_load(struct bag_change_plan *plan, struct bag_problem *problem);
void bag_change_end_loading(struct bag_change_plan *plan, bool ok);

/* A model's table as updates know it. */
struct bag_updates_table bag_change_updates_table(const struct bag_model *model);

/* Counts a change that could not be made. */
void bag_changer_count_failure(struct bag_changer *changer);

/* Takes the deltas of the tables that are served, of all models or of those in `control` (NULL:
 * all); see bag_updates_take_deltas. False with the first *problem. */
bool bag_changer_take_deltas(struct bag_changer *changer, const struct bag_control *control,
                             bool polls, struct bag_problem *problem);

/* ---- records, versions that are held, or could not be loaded (records.c) --------------------- */

/* What is remembered of a name; NULL: nothing. */
struct bag_record *bag_record_find(const struct bag_changer *changer, const char *name);

/* The same, made where there is none; NULL without memory. */
struct bag_record *bag_record_make(struct bag_changer *changer, const char *name);

/* Forgets what the last poll did not see, and names of which there is nothing to remember. */
void bag_records_trim(struct bag_changer *changer);

/* One more holder of the model, which is returned. */
static inline struct bag_model *bag_model_retain(struct bag_model *model)
{
    model->holders++;
    return model;
}

/* Whether it was asked for that the version be unloaded. */
bool bag_change_is_to_unload(const struct bag_change_plan *plan, const struct bag_model *model);

/* Whether the next snapshot has a model of that table, read or to be read. */
bool bag_change_uses(const struct bag_change_plan *plan, const struct bag_stored_table *stored);

/* Whether the model's table lacks an update that others took. */
bool bag_change_lacks_updates(const struct bag_changer *changer, const struct bag_model *model);

/* Lets go of held versions that lack an update: they are read again when they are asked for. */
void bag_change_forget_fallen(struct bag_changer *changer);

/* Lets go of the version that was held first, of those that the plan does without, and waits until
 * requests that read it have ended. False where there is none. */
bool bag_change_let_go(struct bag_change_plan *plan);

/* Holds the versions of tables that are not served any more, where their models say so, and lets go
 * of those that are too many. */
void bag_change_keep_versions(struct bag_change_plan *plan);

/* Rejects a source that could not be loaded in this change or, unless it was asked for, a moment
 * ago. */
void bag_change_check_failures(const struct bag_change_plan *plan, struct bag_source *source);

#endif
