/* Which versions of a model are served: by its policy, and by what was asked for since. Without
 * system calls, and on the changing thread alone. */
#ifndef BAG_TABLE_VERSIONS_H
#define BAG_TABLE_VERSIONS_H

#include "config/options.h"
#include "proto/control.h"

/* Most versions of one model that can be unloaded one by one. */
#define BAG_WISH_MAX_UNLOADED 64

/* What was asked of a model; without a name: of none. */
struct bag_wish {
    char name[129];
    bool is_unloaded;         /* all of it */
    uint64_t default_version; /* that was loaded by its number; 0: none */
    uint64_t newest;          /* that was there then */
    uint64_t unloaded[BAG_WISH_MAX_UNLOADED];
    size_t num_unloaded;
};

/* The versions of a model that there are, ascending. */
struct bag_versions {
    const uint64_t *numbers;
    size_t count;
    /* Whether a version can be served; asked at most once, and only where it matters. */
    bool (*is_good)(void *context, size_t position);
    void *context;
};

/* Marks in `chosen` which versions are served. Returns the position of the default one, or SIZE_MAX
 * where none is. */
size_t bag_versions_choose(const struct bag_versions *versions,
                           const struct bag_version_policy *policy, const struct bag_wish *wish,
                           bool *chosen);

/* Whether the policy lets a version be served. */
bool bag_version_is_allowed(const struct bag_version_policy *policy, uint64_t number);

/* Takes an item of a request into the wish of its model; `newest` is the highest version that there
 * is. False with *problem where there is no room. */
bool bag_wish_apply(struct bag_wish *wish, const struct bag_control_item *item, uint64_t newest,
                    struct bag_problem *problem);

#endif
