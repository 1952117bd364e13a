/* Policies and wishes -> the versions that are served; see change.h. */
#include "change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool contains(const uint64_t *numbers, size_t count, uint64_t number)
{
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] == number)
            return true;
    }
    return false;
}

bool bag_version_is_allowed(const struct bag_version_policy *policy, uint64_t number)
{
    if (policy->kind != BAG_VERSIONS_SPECIFIC)
        return true;
    for (size_t i = 0; i < policy->count; i++) {
        if ((uint64_t)policy->numbers[i] == number)
            return true;
    }
    return false;
}

/* How many versions are served at most. */
static size_t limit_of(const struct bag_version_policy *policy)
{
    if (policy->kind != BAG_VERSIONS_LATEST)
        return SIZE_MAX;
    return policy->count ? (size_t)policy->numbers[0] : 1;
}

size_t bag_versions_choose(const struct bag_versions *versions,
                           const struct bag_version_policy *policy, const struct bag_wish *wish,
                           bool *chosen)
{
    size_t left = wish->is_unloaded ? 0 : limit_of(policy), preferred = SIZE_MAX;
    bool is_latest = policy->kind == BAG_VERSIONS_LATEST;
    memset(chosen, 0, versions->count * sizeof *chosen);
    for (size_t i = versions->count; i-- > 0 && left > 0;) {
        uint64_t number = versions->numbers[i];
        if (is_latest && wish->default_version && number > wish->default_version)
            continue;
        if (contains(wish->unloaded, wish->num_unloaded, number) ||
            !bag_version_is_allowed(policy, number) || !versions->is_good(versions->context, i))
            continue;
        chosen[i] = true;
        left--;
        if (preferred == SIZE_MAX || number == wish->default_version)
            preferred = i;
    }
    return preferred;
}

static void keep_loaded(struct bag_wish *wish, uint64_t number)
{
    for (size_t i = 0; i < wish->num_unloaded; i++) {
        if (wish->unloaded[i] == number)
            wish->unloaded[i] = wish->unloaded[--wish->num_unloaded];
    }
}

static bool unload(struct bag_wish *wish, uint64_t number, struct bag_problem *problem)
{
    if (wish->default_version == number)
        wish->default_version = 0;
    if (contains(wish->unloaded, wish->num_unloaded, number))
        return true;
    if (wish->num_unloaded == BAG_WISH_MAX_UNLOADED)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s': %d versions are unloaded one by one already; unload "
                               "the model, and load what is to be served",
                               wish->name, BAG_WISH_MAX_UNLOADED);
    wish->unloaded[wish->num_unloaded++] = number;
    return true;
}

bool bag_wish_apply(struct bag_wish *wish, const struct bag_control_item *item, uint64_t newest,
                    struct bag_problem *problem)
{
    uint64_t number = strtoull(item->version, NULL, 10);
    snprintf(wish->name, sizeof wish->name, "%s", item->name);
    if (item->unload && number)
        return unload(wish, number, problem);
    wish->is_unloaded = item->unload;
    wish->default_version = number;
    wish->newest = newest;
    if (number)
        keep_loaded(wish, number);
    else
        wish->num_unloaded = 0;
    return true;
}
