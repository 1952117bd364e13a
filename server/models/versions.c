/* Policies and wishes -> the versions that are served, those that are held though they are not, and
 * those that could not be loaded; see change.h. */
#include "change.h"

#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* How long a version that could not be loaded is left alone, unless its files change. */
#define FAILURE_NS (UINT64_C(60) * 1000000000)

/* ---- policies and wishes --------------------------------------------------------------------- */

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

/* ---- versions that are held ------------------------------------------------------------------ */

static void drop_kept(struct bag_changer *changer, size_t position)
{
    bag_model_drop(changer->kept[position]);
    memmove(&changer->kept[position], &changer->kept[position + 1],
            (changer->num_kept - position - 1) * sizeof *changer->kept);
    changer->num_kept--;
}

bool bag_change_is_in_plan(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->entries[i].model == model)
            return true;
    }
    return false;
}

bool bag_change_uses(const struct bag_change_plan *plan, const struct bag_stored_table *stored)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_change_entry *entry = &plan->entries[i];
        if (entry->stored == stored || (entry->model && entry->model->stored == stored))
            return true;
    }
    return false;
}

static bool is_of(const struct bag_model *model, const struct bag_source *source)
{
    return model->stored && model->stored->fingerprint == source->table_fingerprint;
}

struct bag_stored_table *bag_change_find_stored(const struct bag_change_plan *plan,
                                                const struct bag_source *source)
{
    const struct bag_changer *changer = plan->changer;
    if (source->table_fingerprint == 0)
        return NULL;
    for (size_t i = 0; i < plan->num_prior; i++) {
        if (is_of(plan->prior[i].model, source))
            return plan->prior[i].model->stored;
    }
    for (size_t i = 0; i < changer->num_kept; i++) {
        if (is_of(changer->kept[i], source))
            return changer->kept[i]->stored;
    }
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->entries[i].model && is_of(plan->entries[i].model, source))
            return plan->entries[i].model->stored;
    }
    return NULL;
}

bool bag_change_let_go(struct bag_change_plan *plan)
{
    struct bag_changer *changer = plan->changer;
    for (size_t i = 0; i < changer->num_kept; i++) {
        struct bag_model *model = changer->kept[i];
        if (bag_change_uses(plan, model->stored))
            continue;
        model->holders++;
        drop_kept(changer, i);
        bool has_left = changer->wait_until_left(changer->context, model, 1);
        bag_log(BAG_LOG_LEVEL_INFO, "held version let go", BAG_LOG_TEXT("model", model->name),
                BAG_LOG_TEXT("version", model->version));
        bag_model_drop(model);
        return has_left;
    }
    return false;
}

bool bag_change_keep(struct bag_changer *changer, struct bag_model *model)
{
    struct bag_model **kept = reallocarray(changer->kept, changer->num_kept + 1, sizeof *kept);
    if (!kept)
        return false;
    changer->kept = kept;
    kept[changer->num_kept++] = bag_model_hold(model);
    return true;
}

/* How many versions of the model are held, as its default version says; of one that was unloaded,
 * none. */
static size_t max_kept(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_change_entry *entry = bag_change_plan_find_default(plan, name);
    const struct bag_source *source = entry ? bag_entry_source(entry) : NULL;
    return source ? (size_t)source->model->keep_versions : 0;
}

/* From the newest on, as many as the model holds. */
static void trim_kept(const struct bag_change_plan *plan)
{
    struct bag_changer *changer = plan->changer;
    for (size_t i = changer->num_kept; i-- > 0;) {
        const char *name = changer->kept[i]->name;
        size_t newer = 0;
        for (size_t j = i + 1; j < changer->num_kept; j++)
            newer += strcmp(changer->kept[j]->name, name) == 0;
        if (newer >= max_kept(plan, name) || bag_change_uses(plan, changer->kept[i]->stored))
            drop_kept(changer, i);
    }
}

/* Whether it was asked for that the version be unloaded. */
bool bag_change_is_to_unload(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_model *planned = plan->entries[i].model;
        if (planned->is_unloaded && strcmp(planned->name, model->name) == 0 &&
            strcmp(planned->version, model->version) == 0)
            return true;
    }
    return false;
}

/* Holds the versions of tables that are not served any more, where their models say so. */
void bag_change_keep_versions(struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->stored && !bag_change_uses(plan, model->stored) &&
            !bag_change_is_to_unload(plan, model) && max_kept(plan, model->name) > 0 &&
            !bag_change_keep(plan->changer, model))
            break; /* it is loaded again when it is asked for */
    }
    trim_kept(plan);
    struct bag_load_status *status = plan->changer->status;
    pthread_mutex_lock(&status->lock);
    status->num_kept = plan->changer->num_kept;
    status->kept_bytes = 0;
    for (size_t i = 0; i < plan->changer->num_kept; i++)
        status->kept_bytes += bag_source_bytes(plan->changer->kept[i]->source);
    pthread_mutex_unlock(&status->lock);
}

/* ---- versions that could not be loaded ------------------------------------------------------- */

/* Of what failed a moment ago; at the start since it began, however long it takes: each version is
 * tried once. */
static bool is_recent(const struct bag_change_plan *plan, const struct bag_failure_record *failure)
{
    return plan->kind == BAG_CHANGE_START || uv_hrtime() - failure->at_ns < FAILURE_NS;
}

/* Rejects a source that could not be loaded a moment ago. */
void bag_change_check_failures(const struct bag_change_plan *plan, struct bag_source *source,
                               uint64_t number)
{
    const struct bag_changer *changer = plan->changer;
    for (size_t i = 0; i < changer->num_failures; i++) {
        const struct bag_failure_record *failure = &changer->failures[i];
        if (failure->number == number && failure->fingerprint == source->fingerprint &&
            strcmp(failure->name, source->model->name) == 0 && is_recent(plan, failure))
            bag_source_reject(source, failure->problem.text);
    }
}

/* Notes that the version cannot be loaded as it is, and forgets what is too old to matter. */
static bool remember_failure(const struct bag_change_plan *plan, const struct bag_source *source,
                             const struct bag_problem *why)
{
    struct bag_changer *changer = plan->changer;
    uint64_t number = strtoull(source->model->version, NULL, 10);
    struct bag_failure_record *failures =
        reallocarray(changer->failures, changer->num_failures + 1, sizeof *failures);
    if (!failures)
        return false;
    changer->failures = failures;
    for (size_t i = changer->num_failures; i-- > 0;) {
        bool is_same =
            failures[i].number == number && strcmp(failures[i].name, source->model->name) == 0;
        if (is_same || !is_recent(plan, &failures[i]))
            failures[i] = failures[--changer->num_failures];
    }
    struct bag_failure_record *failure = &failures[changer->num_failures++];
    *failure = (struct bag_failure_record){.number = number,
                                           .fingerprint = source->fingerprint,
                                           .at_ns = uv_hrtime(),
                                           .problem = *why};
    snprintf(failure->name, sizeof failure->name, "%s", source->model->name);
    return true;
}

bool bag_change_plan_may_go_without(const struct bag_change_plan *plan,
                                    const struct bag_problem *why)
{
    struct bag_changer *changer = plan->changer;
    const struct bag_change_entry *failed = plan->failed;
    /* A model that was made, and could not be brought up to date, has its source already. */
    bool has_source = failed && (failed->source || failed->model);
    const struct bag_source *source = has_source ? bag_entry_source(failed) : NULL;
    if (!source || source->is_named || why->kind == BAG_ERROR_DRAINING ||
        !remember_failure(plan, source, why))
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_model *model = &plan->entries[i] != failed ? plan->entries[i].model : NULL;
        if (model && model->memory && model->holders == 1 && !bag_change_keep(changer, model))
            return false;
    }
    return true;
}
