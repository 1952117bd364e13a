/* Plans the versions of models, collections, and what happens after a failure; see steps.h. */
#include "steps.h"

#include <stdlib.h>
#include <string.h>

/* ---- the desired state of a model ------------------------------------------------------------ */

static bool contains(const uint64_t *numbers, size_t count, uint64_t number)
{
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] == number)
            return true;
    }
    return false;
}

/* Returns whether the policy allows the version to be served. */
static bool is_allowed(const struct bag_version_policy *policy, uint64_t number)
{
    return policy->kind != BAG_VERSIONS_SPECIFIC ||
           contains((const uint64_t *)policy->numbers, policy->count, number);
}

bool bag_desired_state_unloads(const struct bag_desired_state *desired, uint64_t number)
{
    return desired->is_unloaded || contains(desired->unloaded, desired->num_unloaded, number);
}

bool bag_desired_state_apply(struct bag_desired_state *desired, const struct bag_control_item *item,
                             uint64_t newest)
{
    uint64_t number = bag_control_version(item);
    if (item->unload && number) {
        /* Add a version to those that were unloaded one by one. */
        if (desired->default_version == number)
            desired->default_version = 0;
        if (contains(desired->unloaded, desired->num_unloaded, number))
            return true;
        if (desired->num_unloaded == BAG_MAX_UNLOADED_VERSIONS)
            return false;
        desired->unloaded[desired->num_unloaded++] = number;
        return true;
    }
    desired->is_unloaded = item->unload;
    desired->default_version = number;
    desired->newest = newest;
    if (!number)
        desired->num_unloaded = 0;
    for (size_t i = 0; i < desired->num_unloaded; i++) {
        if (desired->unloaded[i] == number)
            desired->unloaded[i] = desired->unloaded[--desired->num_unloaded];
    }
    return true;
}

/* ---- the versions of one model --------------------------------------------------------------- */

/* Returns whether the version can answer. A version that serves goes on while its files are bad or
 * are written to. A retained version serves again after its files have gone. */
static bool can_serve(struct bag_model_plan *plan, struct bag_version_plan *version)
{
    if (!version->is_checked && version->source)
        plan->check_files(plan->context, version);
    version->is_checked = true;
    bool from_files = version->files >= BAG_FILES_SERVING;
    return from_files || version->ready || (version->files == BAG_FILES_GONE && version->retained);
}

/* Returns the action for a version that can serve. Files that are gone, bad or still changing do
 * not affect what is in memory. */
static enum bag_action action_of(const struct bag_version_plan *version)
{
    switch (version->files) {
    case BAG_FILES_NEW:
        return BAG_ACTION_LOAD;
    case BAG_FILES_RETAINED:
        return BAG_ACTION_RESTORE;
    case BAG_FILES_GONE:
    case BAG_FILES_BAD:
    case BAG_FILES_CHANGING:
    case BAG_FILES_SERVING:
        break;
    }
    return version->ready ? BAG_ACTION_KEEP : BAG_ACTION_RESTORE;
}

/* Returns whether neither a request nor the policy keeps the version from being served. */
static bool may_serve(const struct bag_model_plan *plan, uint64_t number)
{
    return !bag_desired_state_unloads(plan->desired, number) && is_allowed(&plan->policy, number);
}

static const struct bag_version_plan *find(const struct bag_model_plan *plan, uint64_t number)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->versions[i].number == number)
            return &plan->versions[i];
    }
    return NULL;
}

/* Applies the request to the desired state, unless it is impossible whatever the files hold. */
static enum bag_plan_outcome apply_item(struct bag_model_plan *plan)
{
    const struct bag_control_item *item = plan->item;
    uint64_t number = bag_control_version(item);
    uint64_t newest = plan->count ? plan->versions[plan->count - 1].number : 0;
    if (plan->count == 0 && !plan->serves)
        return BAG_PLAN_UNKNOWN;
    if (number && !find(plan, number))
        return BAG_PLAN_NO_VERSION;
    if (number && !item->unload && !is_allowed(&plan->policy, number))
        return BAG_PLAN_NOT_ALLOWED;
    return bag_desired_state_apply(plan->desired, item, newest) ? BAG_PLAN_ACTIONS
                                                                : BAG_PLAN_TOO_MANY_UNLOADED;
}

/* Returns whether the version becomes the default one instead of the higher version that was found
 * before it: a request asked for it, or the higher one lacks updates. A model never goes back to
 * old rows silently. */
static bool is_preferred(const struct bag_model_plan *plan, const struct bag_version_plan *version)
{
    uint64_t wanted = plan->desired->default_version;
    if (plan->preferred == SIZE_MAX || version->number == wanted)
        return true;
    const struct bag_version_plan *other = &plan->versions[plan->preferred];
    return other->number != wanted && other->is_behind && !version->is_behind;
}

/* Returns whether a request to load cannot be fulfilled: the version that it names is bad or, if it
 * names none, the default version or all versions are. */
static bool is_bad(struct bag_model_plan *plan)
{
    uint64_t number = bag_control_version(plan->item);
    const struct bag_version_plan *asked = number ? find(plan, number)
                                           : plan->preferred != SIZE_MAX
                                               ? &plan->versions[plan->preferred]
                                               : NULL;
    if (plan->item->unload)
        return false;
    if (asked && asked->files == BAG_FILES_BAD && asked->source) {
        plan->failed_version = (size_t)(asked - plan->versions);
        return true;
    }
    if (plan->preferred != SIZE_MAX)
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->versions[i].is_checked && plan->versions[i].files == BAG_FILES_BAD)
            plan->failed_version = i;
    }
    return true;
}

/* Returns whether files are bad that the configuration names, while it is read. */
static bool is_named_bad(struct bag_model_plan *plan)
{
    bool matters = plan->kind == BAG_CHANGE_START || plan->kind == BAG_CHANGE_CONFIGURATION;
    for (size_t i = plan->count; matters && i-- > 0;) {
        const struct bag_version_plan *version = &plan->versions[i];
        if (!version->is_checked || version->files != BAG_FILES_BAD || !version->is_named)
            continue;
        plan->failed_version = i;
        return true;
    }
    return false;
}

void bag_plan_pinned(struct bag_model_plan *plan, struct bag_version_plan *version)
{
    const struct bag_control_item *item = plan->item;
    uint64_t number = bag_control_version(item);
    bool is_unloaded = item && item->unload && (!number || number == version->number);
    version->action = BAG_ACTION_NONE;
    version->is_pinned = true;
    if (!is_unloaded && can_serve(plan, version))
        version->action = action_of(version);
    else if (!is_unloaded && version->files == BAG_FILES_BAD)
        version->action = BAG_ACTION_MARK_UNAVAILABLE;
}

enum bag_plan_outcome bag_plan_model(struct bag_model_plan *plan)
{
    const struct bag_control_item *item = plan->item;
    enum bag_plan_outcome outcome = item ? apply_item(plan) : BAG_PLAN_ACTIONS;
    plan->preferred = plan->failed_version = SIZE_MAX;
    if (outcome != BAG_PLAN_ACTIONS)
        return outcome;
    if (plan->kind == BAG_CHANGE_POLL) {
        /* Forget the version that a request made the default one, once a poll finds a newer version
         * that can be served and did not exist at the time of the request. */
        struct bag_desired_state *desired = plan->desired;
        for (size_t i = plan->count; desired->default_version && i-- > 0;) {
            struct bag_version_plan *version = &plan->versions[i];
            if (version->number > desired->newest && may_serve(plan, version->number) &&
                can_serve(plan, version))
                desired->default_version = 0;
        }
    }
    /* Set the actions from the highest version down, until as many serve as the policy says. Bad
     * versions above those are listed, also if they are newer than the one that was asked for. */
    const struct bag_desired_state *desired = plan->desired;
    bool is_latest = plan->policy.kind == BAG_VERSIONS_LATEST;
    size_t remaining =
        is_latest ? plan->policy.count ? (size_t)plan->policy.numbers[0] : 1 : SIZE_MAX;

    for (size_t i = plan->count; i-- > 0 && remaining > 0;) {
        struct bag_version_plan *version = &plan->versions[i];
        bool is_above =
            is_latest && desired->default_version && version->number > desired->default_version;
        if ((is_above && !version->is_checked) || !may_serve(plan, version->number))
            continue;
        if (!can_serve(plan, version)) {
            version->action =
                version->files == BAG_FILES_BAD ? BAG_ACTION_MARK_UNAVAILABLE : BAG_ACTION_NONE;
            continue;
        }
        if (is_above)
            continue;
        version->action = action_of(version);
        version->is_pinned = false;
        remaining--;
        if (is_preferred(plan, version))
            plan->preferred = i;
    }
    if (plan->preferred != SIZE_MAX && plan->versions[plan->preferred].is_behind)
        plan->versions[plan->preferred].action = BAG_ACTION_LOAD;
    /* Pinned versions stay beside these. */
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->versions[i].is_pinned)
            bag_plan_pinned(plan, &plan->versions[i]);
    }
    if (item && is_bad(plan))
        return BAG_PLAN_BAD;
    if (is_named_bad(plan))
        return BAG_PLAN_NAMED_BAD;
    /* If all files have gone or are incomplete, the model that serves is not touched. */
    if (plan->preferred == SIZE_MAX && plan->serves && !plan->desired->is_unloaded && !item &&
        (plan->count || plan->kind == BAG_CHANGE_POLL))
        return BAG_PLAN_UNCHANGED;
    return BAG_PLAN_ACTIONS;
}

/* ---- collections ----------------------------------------------------------------------------- */

static bool reads_configuration(enum bag_change_kind kind)
{
    return kind == BAG_CHANGE_START || kind == BAG_CHANGE_CONFIGURATION;
}

/* Returns whether the change is made without the collection. That is so if it was only tried again.
 * It is also so if the configuration names it over a table in the folder of models: a version of
 * the table that fits may come. A file of its own that cannot be read is a mistake instead. */
static bool goes_without(const struct bag_collection_plan *plan, enum bag_error why)
{
    if (plan->is_retried)
        return why != BAG_ERROR_NO_MEMORY;
    return reads_configuration(plan->kind) && plan->is_named && why != BAG_ERROR_FILE &&
           why != BAG_ERROR_NO_MEMORY && !plan->was_ready && plan->has_folder_table;
}

/* Decides about a collection that cannot be opened. A change does not fail for a collection that
 * was found in the folder or by a poll, does not serve and was not asked for. */
static enum bag_collection_action reject(const struct bag_collection_plan *plan, bool was_ready,
                                         enum bag_error why)
{
    bool is_found =
        !was_ready && !plan->is_requested && (plan->kind == BAG_CHANGE_POLL || !plan->is_named);
    return is_found || goes_without(plan, why) ? BAG_COLLECTION_MARK_UNAVAILABLE
                                               : BAG_COLLECTION_FAIL;
}

enum bag_collection_action bag_plan_collection(const struct bag_collection_plan *plan)
{
    if (plan->lacks_table && plan->is_published)
        return plan->kind == BAG_CHANGE_MODELS && plan->unloads_dependents
                   ? BAG_COLLECTION_UNLOAD
                   : BAG_COLLECTION_REFUSE_UNLOAD;
    if (plan->lacks_table)
        return reject(plan, false, BAG_ERROR_CONFLICT);
    return plan->is_published && plan->has_same_tables ? BAG_COLLECTION_KEEP : BAG_COLLECTION_LOAD;
}

enum bag_collection_action bag_plan_unopened_collection(const struct bag_collection_plan *plan,
                                                        enum bag_error why)
{
    return reject(plan, plan->was_ready, why);
}

enum bag_collection_action bag_plan_unloadable_collection(const struct bag_collection_plan *plan,
                                                          enum bag_error why)
{
    /* Updates may have deleted a key that the collection needs: the server starts all the same. */
    bool is_updated =
        plan->kind == BAG_CHANGE_START && plan->takes_updates && why == BAG_ERROR_CONFIGURATION;
    /* A poll tries those that are named each time, and they have no other version. */
    bool is_polled = plan->kind == BAG_CHANGE_POLL && plan->is_named && !plan->was_ready &&
                     why != BAG_ERROR_NO_MEMORY;
    return is_updated || is_polled || goes_without(plan, why) ? BAG_COLLECTION_MARK_UNAVAILABLE
                                                              : BAG_COLLECTION_FAIL;
}

/* ---- versions that cannot be loaded ---------------------------------------------------------- */

bool bag_plan_skips_failed(enum bag_change_kind kind, bool is_same_change, uint64_t age_ns)
{
    return is_same_change || (kind == BAG_CHANGE_POLL && age_ns < BAG_FAILURE_NS);
}

bool bag_plan_goes_without(enum bag_change_kind kind, bool is_default, bool is_named,
                           enum bag_error why)
{
    bool is_asked = kind == BAG_CHANGE_MODELS || kind == BAG_CHANGE_CONFIGURATION;
    return !is_named && why != BAG_ERROR_DRAINING &&
           !(is_asked && (is_default || why == BAG_ERROR_NO_MEMORY));
}

bool bag_plan_starts_without(enum bag_change_kind kind, bool is_named, bool is_shut,
                             enum bag_error why)
{
    return kind == BAG_CHANGE_START && why != BAG_ERROR_NO_MEMORY && (is_named || is_shut);
}

/* ---- retained versions ----------------------------------------------------------------------- */

void bag_plan_retained(const bool *is_used, size_t count, size_t limit, bool *releases)
{
    size_t retained = 0;
    for (size_t i = count; i-- > 0;) {
        releases[i] = is_used[i] || retained == limit;
        retained += !releases[i];
    }
}
