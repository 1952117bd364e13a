/* The decisions of a change: facts about a model come in, actions for its versions go out.
 *
 * There are decisions about the versions of a model, about a collection, about versions that cannot
 * be loaded, and about retained versions. No function here reads a file or a clock, allocates
 * memory, or knows what a table is, so every rule has a line in tests/unit/test_steps.c. Facts are
 * gathered and actions are taken in plan.c; reconciler.h explains the whole. */
#pragma once

#include "config/config.h"
#include "proto/problem.h"
#include "proto/v2_request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bag_model;
struct bag_source;

enum bag_change_kind {
    BAG_CHANGE_START,         /* all models, for the first time */
    BAG_CHANGE_MODELS,        /* a request to load or unload models */
    BAG_CHANGE_POLL,          /* models whose files or shards have changed */
    BAG_CHANGE_CONFIGURATION, /* all models, after the configuration was read again */
};

/* ---- the desired state of a model ------------------------------------------------------------ */

/* Maximum number of versions of one model that can be unloaded one by one. */
#define BAG_MAX_UNLOADED_VERSIONS 64

/* The state of a model that requests have asked for. All zeros: its version_policy decides. */
struct bag_desired_state {
    bool is_unloaded;         /* the whole model is unloaded */
    uint64_t default_version; /* the version that a request loaded by its number; 0: none */
    uint64_t newest;          /* the highest version that existed at that time */
    uint64_t unloaded[BAG_MAX_UNLOADED_VERSIONS]; /* versions that were unloaded by their numbers */
    size_t num_unloaded;
};

/* Applies an item of a request to the desired state of its model. `newest` is the highest version
 * that exists. Returns false if too many versions would be unloaded one by one. */
bool bag_desired_state_apply(struct bag_desired_state *desired, const struct bag_control_item *item,
                             uint64_t newest);

/* Returns whether a request unloaded the version, or the whole model. */
bool bag_desired_state_unloads(const struct bag_desired_state *desired, uint64_t number);

/* ---- the versions of one model --------------------------------------------------------------- */

/* The files of a version, compared with what is in memory of it. A version on shards has no files:
 * what its shards report takes their place. */
enum bag_files {
    BAG_FILES_GONE,     /* there are none */
    BAG_FILES_BAD,      /* invalid; the files cannot be served */
    BAG_FILES_CHANGING, /* different from the last poll; the files may still be written to */
    BAG_FILES_SERVING,  /* the version that serves was loaded from them */
    BAG_FILES_RETAINED, /* the retained version was loaded from them */
    BAG_FILES_NEW       /* nothing in memory was loaded from them; always for a collection */
};

enum bag_action {
    BAG_ACTION_NONE,            /* not served and not listed */
    BAG_ACTION_KEEP,            /* the version that serves stays; bad files become a remark */
    BAG_ACTION_RESTORE,         /* the retained version serves again */
    BAG_ACTION_LOAD,            /* a model is made of the files; its table is read, or shared */
    BAG_ACTION_MARK_UNAVAILABLE /* listed as UNAVAILABLE, with what is wrong with its files */
};

/* One version of a model: facts, set by the caller, and the action that is decided on. */
struct bag_version_plan {
    uint64_t number;
    struct bag_source **source; /* source in the catalog; NULL: it has no files */
    struct bag_model *ready;    /* the model that serves; borrowed; NULL: none. Only compared with
                                   NULL here, as is the next one */
    struct bag_model *retained; /* the retained model; borrowed; NULL: none */
    bool was_default;           /* `ready` is the default version */
    bool is_pinned;             /* `ready` serves only because collections pin it. Result: so does
                                   what the action makes */
    enum bag_files files;       /* set by check_files(); GONE without a source */
    bool is_checked;            /* check_files() was called, or need not be */
    bool is_named;              /* the configuration names the files, see NAMED_BAD */
    bool is_behind;             /* SERVING, but updates are missing: it is loaded again before it
                                   may become the default version */
    enum bag_action action;     /* result */
};

/* X(OUTCOME): of planning the versions of a model. */
#define BAG_PLAN_OUTCOMES(X)                                                           \
    X(ACTIONS)           /* each version has an action */                              \
    X(UNCHANGED)         /* all that is published of the model stays */                \
    X(UNKNOWN)           /* the requested model does not exist */                      \
    X(NO_VERSION)        /* the requested version does not exist */                    \
    X(NOT_ALLOWED)       /* version_policy names other versions */                     \
    X(TOO_MANY_UNLOADED) /* see BAG_MAX_UNLOADED_VERSIONS */                           \
    X(BAD)               /* the requested version is bad, `failed_version`, or gone */ \
    X(NAMED_BAD)         /* `failed_version`, which the configuration names, is bad */

enum bag_plan_outcome {
#define BAG_X(outcome) BAG_PLAN_##outcome,
    BAG_PLAN_OUTCOMES(BAG_X)
#undef BAG_X
};

/* The facts about a model that bag_plan_model() needs, and its decisions. */
struct bag_model_plan {
    enum bag_change_kind kind;
    const struct bag_control_item *item; /* part of the request about the model; NULL: none */
    struct bag_version_policy policy;
    struct bag_desired_state *desired; /* from earlier requests; `item` is applied to it */
    struct bag_version_plan *versions; /* ascending */
    size_t count;
    bool serves; /* some version is READY, which need not be among these */
    /* Sets files, is_named and is_behind of a version that has a source. Called at most once for
     * each version, and only if the result matters: it opens files. */
    void (*check_files)(void *context, struct bag_version_plan *version);
    void *context;

    size_t preferred;      /* result: index of the default version; SIZE_MAX: none */
    size_t failed_version; /* result: index of the version that is bad; SIZE_MAX: none */
};

/* Plans the versions of one model: applies `item` to *desired, and sets the actions, `preferred`
 * and `failed_version`. The actions only count if the outcome is ACTIONS. */
enum bag_plan_outcome bag_plan_model(struct bag_model_plan *plan);

/* Sets the action for one of the versions that a collection pins, whatever the policy says. It is
 * MARK_UNAVAILABLE if its files are bad, and NONE if `item` unloads it, if it has no files, or if
 * these may still be written to. */
void bag_plan_pinned(struct bag_model_plan *plan, struct bag_version_plan *version);

/* ---- collections ----------------------------------------------------------------------------- */

enum bag_collection_action {
    BAG_COLLECTION_KEEP,             /* keep serving it over the same tables */
    BAG_COLLECTION_LOAD,             /* open it over its tables */
    BAG_COLLECTION_UNLOAD,           /* unload it together with a table that it needs */
    BAG_COLLECTION_MARK_UNAVAILABLE, /* the change is made without it */
    BAG_COLLECTION_REFUSE_UNLOAD,    /* the change fails: a collection that serves needs a table
                                        that would be unloaded */
    BAG_COLLECTION_FAIL              /* the change fails: the collection cannot be served */
};

/* A collection that the next snapshot should have, after the versions of all tables are planned. */
struct bag_collection_plan {
    enum bag_change_kind kind;
    bool is_published;       /* the collection serves, and the change does not read its
                                configuration again */
    bool was_ready;          /* this version of it serves now */
    bool is_requested;       /* the request names it */
    bool unloads_dependents; /* the request unloads collections together with their tables */
    bool is_retried;         /* no request names it: it was UNAVAILABLE, and a request loads one of
                                its tables */
    bool is_named;           /* the configuration names it; otherwise the folder of models has it */
    bool has_folder_table;   /* the folder of models has some of its tables, of which another
                                version may come at any time */
    bool lacks_table;        /* a table that it needs is not served */
    bool has_same_tables;    /* the served collection uses the tables of the next snapshot */
    bool takes_updates;      /* the server takes updates of rows */
};

/* Decides about a collection before it is opened. */
enum bag_collection_action bag_plan_collection(const struct bag_collection_plan *plan);

/* Decides about a collection that could not be opened over its tables. */
enum bag_collection_action bag_plan_unopened_collection(const struct bag_collection_plan *plan,
                                                        enum bag_error why);

/* Decides about a collection that could not be made after its tables were loaded. */
enum bag_collection_action bag_plan_unloadable_collection(const struct bag_collection_plan *plan,
                                                          enum bag_error why);

/* ---- versions that cannot be loaded ---------------------------------------------------------- */

/* The time in ns for which a version that failed to load is not tried again, unless its files
 * change: one minute. */
#define BAG_FAILURE_NS (UINT64_C(60) * 1000000000)

/* Returns whether a version is not tried again: its files failed to load `age_ns` ago, in this
 * change or in another one. A request, and a configuration that is read again, try again at once,
 * but only once. */
bool bag_plan_skips_failed(enum bag_change_kind kind, bool is_same_change, uint64_t age_ns);

/* Returns whether the change is made without the version that failed to load. The change fails
 * instead if the configuration names the files, or if the server stops. A request to load, and a
 * configuration that is read again, also fail without memory, and for the version that was to
 * become the default one. */
bool bag_plan_goes_without(enum bag_change_kind kind, bool is_default, bool is_named,
                           enum bag_error why);

/* Returns whether the server starts with the model listed as UNAVAILABLE, after a version of it was
 * loaded and could not be brought up to date by its updates. Otherwise an older version is tried. A
 * model that is named has no other version, and no version helps if the journal of the model cannot
 * be read at all (`is_shut`). A lack of memory may pass, and ends the start. */
bool bag_plan_starts_without(enum bag_change_kind kind, bool is_named, bool is_shut,
                             enum bag_error why);

/* ---- retained versions ----------------------------------------------------------------------- */

/* Decides which retained versions of a model are released, oldest first: those whose table serves
 * (`is_used`) and, of the others, all but the newest `limit`. Sets releases[i] for each. */
void bag_plan_retained(const bool *is_used, size_t count, size_t limit, bool *releases);
