/* What is to become of the versions of models: from what there is, what serves, and what was asked
 * for, to a step for each version.
 *
 * Nothing here reads a file or a clock, takes memory, or knows what a table is: facts come in, and
 * steps go out. See tests/unit/test_steps.c. */
#ifndef BAG_MODELS_STEPS_H
#define BAG_MODELS_STEPS_H

#include "config/config.h"
#include "proto/v2_request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bag_model;
struct bag_source;

enum bag_change_kind {
    BAG_CHANGE_START,         /* everything that there is, for the first time */
    BAG_CHANGE_MODELS,        /* what `control` says */
    BAG_CHANGE_POLL,          /* what has changed in files */
    BAG_CHANGE_CONFIGURATION, /* everything, after the configuration was read again */
};

/* ---- what was asked of a model --------------------------------------------------------------- */

/* Most versions of one model that can be unloaded one by one. */
#define BAG_WISH_MAX_UNLOADED 64

struct bag_wish {
    bool is_unloaded;         /* all of it */
    uint64_t default_version; /* that was loaded by its number; 0: none */
    uint64_t newest;          /* that was there then */
    uint64_t unloaded[BAG_WISH_MAX_UNLOADED];
    size_t num_unloaded;
};

/* Takes an item of a request into the wish of its model; `newest` is the highest version that there
 * is. False where there is no room. */
bool bag_wish_apply(struct bag_wish *wish, const struct bag_control_item *item, uint64_t newest);

/* Whether it was asked for that the version be unloaded. */
bool bag_wish_unloads(const struct bag_wish *wish, uint64_t number);

/* ---- versions of one model ------------------------------------------------------------------- */

/* Those of a version, beside what is in memory of it. */
enum bag_files {
    BAG_FILES_GONE,    /* they are not there */
    BAG_FILES_BAD,     /* they cannot be served */
    BAG_FILES_MOVING,  /* they may still be written to: not the same twice */
    BAG_FILES_SERVING, /* they are those of the version that serves */
    BAG_FILES_HELD,    /* or of the one that is held */
    BAG_FILES_NEW      /* they are others, or those of a collection, over tables that may be others
                        */
};

/* What is done about a version. */
enum bag_step {
    BAG_STEP_NONE,   /* it is not served, and nothing is said of it */
    BAG_STEP_STAY,   /* what serves goes on; where its files are bad, that is noted */
    BAG_STEP_RETURN, /* what is held serves again */
    BAG_STEP_MAKE,   /* a model is made of its files: its table is read, or shared */
    BAG_STEP_REJECT  /* it is shown as UNAVAILABLE, with what is wrong with its files */
};

struct bag_version_plan {
    uint64_t number;
    struct bag_source **source; /* what there is of it: its files, in the catalog, */
    struct bag_model *ready;    /* the model that serves, */
    struct bag_model *held;     /* and one that is held; borrowed, NULL: there is none. Nothing here
                                   looks into them */
    bool was_default;           /* the one that serves is the default version */
    enum bag_files files;       /* set by `look`, or GONE */
    bool is_seen;               /* `files` is set */
    bool is_named;              /* BAD, and a configuration names it: the start ends */
    bool is_behind;             /* SERVING, but it lacks updates: it is read again to become
                                   the default version, and goes on beside that */
    enum bag_step step;         /* the outcome */
};

/* X(OUTCOME): of planning the versions of a model. */
#define BAG_PLAN_OUTCOMES(X)                                                   \
    X(STEPS)       /* the versions have steps */                               \
    X(STAYS)       /* all that was published of it stays */                    \
    X(UNKNOWN)     /* there is no such model */                                \
    X(NO_VERSION)  /* nor such a version of it */                              \
    X(NOT_ALLOWED) /* its policy names other versions */                       \
    X(NO_ROOM)     /* too many versions are unloaded one by one */             \
    X(BAD)         /* what was asked for is bad: version `culprit`, or gone */ \
    X(NAMED_BAD)   /* version `culprit`, which a configuration names, is bad */

enum bag_plan_outcome {
#define BAG_X(outcome) BAG_PLAN_##outcome,
    BAG_PLAN_OUTCOMES(BAG_X)
#undef BAG_X
};

struct bag_name_plan {
    enum bag_change_kind kind;
    const struct bag_control_item *item; /* what is asked of it now; NULL: nothing */
    struct bag_version_policy policy;
    struct bag_wish *wish;             /* what was asked before; takes the item in */
    struct bag_version_plan *versions; /* ascending */
    size_t count;
    bool serves; /* some version, which need not be among these, does */
    /* Sets version->files, is_named and is_behind: asked at most once for each, and only where it
     * matters. Borrowed. */
    void (*look)(void *context, struct bag_version_plan *version);
    void *context;

    size_t preferred; /* out: the position of the default version; SIZE_MAX: none */
    size_t culprit;   /* out: of a version that is bad; SIZE_MAX: none */
};

/* Plans the versions of one model. */
enum bag_plan_outcome bag_plan_name(struct bag_name_plan *plan);

#endif
