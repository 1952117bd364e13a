/* The plan of a change, as change_plan.c makes it and change.c carries it out. Private to them. */
#ifndef BAG_TABLE_CHANGE_PLAN_H
#define BAG_TABLE_CHANGE_PLAN_H

#include "change.h"

/* One version in the next snapshot. */
struct bag_change_entry {
    struct bag_source *source; /* to be loaded; owned, until its model is there; NULL: none */
    struct bag_model *model;   /* held; NULL: it is to be loaded */
    bool is_default;           /* of its name */
};

struct bag_change_plan {
    struct bag_changer *changer;
    enum bag_change_kind kind;
    struct bag_catalog *catalog;       /* borrowed */
    const struct bag_control *control; /* borrowed; NULL: all models, or `only` */
    const char *only;                  /* borrowed */
    struct bag_change_entry *prior;    /* owned: what was published, in its order */
    size_t num_prior;
    struct bag_change_entry *entries; /* owned: what will be */
    size_t count, room;
    struct bag_wish *wishes; /* owned; the changer's, once the change is made */
    size_t num_wishes;
    struct bag_model *
        *dropped; /* owned, each held: of `prior`, unloaded before others are loaded */
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

/* The default version of that name among the entries of the plan; NULL: none serves. */
struct bag_change_entry *bag_change_plan_find_default(const struct bag_change_plan *plan,
                                                      const char *name);

#endif
