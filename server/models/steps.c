/* What there is and what is asked for -> steps; see steps.h. */
#include "steps.h"

#include <stdlib.h>
#include <string.h>

/* ---- policies and wishes --------------------------------------------------------------------- */

static bool contains(const uint64_t *numbers, size_t count, uint64_t number)
{
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] == number)
            return true;
    }
    return false;
}

/* Whether the policy lets a version be served. */
static bool is_allowed(const struct bag_version_policy *policy, uint64_t number)
{
    return policy->kind != BAG_VERSIONS_SPECIFIC ||
           contains((const uint64_t *)policy->numbers, policy->count, number);
}

bool bag_wish_unloads(const struct bag_wish *wish, uint64_t number)
{
    return wish->is_unloaded || contains(wish->unloaded, wish->num_unloaded, number);
}

static bool unload(struct bag_wish *wish, uint64_t number)
{
    if (wish->default_version == number)
        wish->default_version = 0;
    if (contains(wish->unloaded, wish->num_unloaded, number))
        return true;
    if (wish->num_unloaded == BAG_WISH_MAX_UNLOADED)
        return false;
    wish->unloaded[wish->num_unloaded++] = number;
    return true;
}

bool bag_wish_apply(struct bag_wish *wish, const struct bag_control_item *item, uint64_t newest)
{
    uint64_t number = strtoull(item->version, NULL, 10);
    if (item->unload && number)
        return unload(wish, number);
    wish->is_unloaded = item->unload;
    wish->default_version = number;
    wish->newest = newest;
    if (!number)
        wish->num_unloaded = 0;
    for (size_t i = 0; i < wish->num_unloaded; i++) {
        if (wish->unloaded[i] == number)
            wish->unloaded[i] = wish->unloaded[--wish->num_unloaded];
    }
    return true;
}

/* ---- versions of one model ------------------------------------------------------------------- */

static void see(struct bag_name_plan *plan, struct bag_version_plan *version)
{
    if (!version->is_seen && version->source)
        plan->look(plan->context, version);
    version->is_seen = true;
}

/* Whether the version can answer. One that serves goes on while its files are bad or written to; of
 * one whose files are gone what is in memory serves. */
static bool can_serve(struct bag_name_plan *plan, struct bag_version_plan *version)
{
    see(plan, version);
    bool from_files = version->files >= BAG_FILES_SERVING;
    return from_files || version->ready || (version->files == BAG_FILES_GONE && version->held);
}

static enum bag_step step_of(const struct bag_version_plan *version)
{
    switch (version->files) {
    case BAG_FILES_NEW:
        return BAG_STEP_MAKE;
    case BAG_FILES_HELD:
        return BAG_STEP_RETURN;
    case BAG_FILES_GONE:
    case BAG_FILES_BAD:
    case BAG_FILES_MOVING:
    case BAG_FILES_SERVING:
        break;
    }
    return version->ready ? BAG_STEP_STAY : BAG_STEP_RETURN;
}

static const struct bag_version_plan *find(const struct bag_name_plan *plan, uint64_t number)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->versions[i].number == number)
            return &plan->versions[i];
    }
    return NULL;
}

/* What is asked for that cannot be, whatever its files hold; or takes it into the wish. */
static enum bag_plan_outcome take_item(struct bag_name_plan *plan)
{
    const struct bag_control_item *item = plan->item;
    uint64_t number = strtoull(item->version, NULL, 10);
    uint64_t newest = plan->count ? plan->versions[plan->count - 1].number : 0;
    if (plan->count == 0 && !plan->serves)
        return BAG_PLAN_UNKNOWN;
    if (number && !find(plan, number))
        return BAG_PLAN_NO_VERSION;
    if (number && !item->unload && !is_allowed(&plan->policy, number))
        return BAG_PLAN_NOT_ALLOWED;
    return bag_wish_apply(plan->wish, item, newest) ? BAG_PLAN_STEPS : BAG_PLAN_NO_ROOM;
}

/* Polling takes a version that was asked for back when a still newer one can be served. */
static void forget_default(struct bag_name_plan *plan)
{
    struct bag_wish *wish = plan->wish;
    for (size_t i = plan->count; wish->default_version && i-- > 0;) {
        struct bag_version_plan *version = &plan->versions[i];
        if (version->number > wish->newest && can_serve(plan, version))
            wish->default_version = 0;
    }
}

/* Whether the version takes the place of the default one that was found before it: where it was
 * asked for, or that one lacks updates. Nobody is to go back to old rows without a word. */
static bool is_preferred(const struct bag_name_plan *plan, const struct bag_version_plan *version)
{
    uint64_t wanted = plan->wish->default_version;
    if (plan->preferred == SIZE_MAX || version->number == wanted)
        return true;
    const struct bag_version_plan *other = &plan->versions[plan->preferred];
    return other->number != wanted && other->is_behind && !version->is_behind;
}

/* From the highest on, as many as the policy serves; what is passed over is shown. */
static void choose(struct bag_name_plan *plan)
{
    const struct bag_wish *wish = plan->wish;
    bool is_latest = plan->policy.kind == BAG_VERSIONS_LATEST;
    size_t left = is_latest ? plan->policy.count ? (size_t)plan->policy.numbers[0] : 1 : SIZE_MAX;

    for (size_t i = plan->count; i-- > 0 && left > 0;) {
        struct bag_version_plan *version = &plan->versions[i];
        if (is_latest && wish->default_version && version->number > wish->default_version)
            continue;
        if (bag_wish_unloads(wish, version->number) || !is_allowed(&plan->policy, version->number))
            continue;
        if (!can_serve(plan, version)) {
            version->step = version->files == BAG_FILES_BAD ? BAG_STEP_REJECT : BAG_STEP_NONE;
            continue;
        }
        version->step = step_of(version);
        left--;
        if (is_preferred(plan, version))
            plan->preferred = i;
    }
    if (plan->preferred != SIZE_MAX && plan->versions[plan->preferred].is_behind)
        plan->versions[plan->preferred].step = BAG_STEP_MAKE;
}

/* Whether what was asked for is bad: the version of that number; without one, the version that is
 * served of it, or all. */
static bool is_bad(struct bag_name_plan *plan)
{
    uint64_t number = strtoull(plan->item->version, NULL, 10);
    const struct bag_version_plan *asked = number ? find(plan, number)
                                           : plan->preferred != SIZE_MAX
                                               ? &plan->versions[plan->preferred]
                                               : NULL;
    if (plan->item->unload)
        return false;
    if (asked && asked->files == BAG_FILES_BAD && asked->source) {
        plan->culprit = (size_t)(asked - plan->versions);
        return true;
    }
    if (plan->preferred != SIZE_MAX)
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->versions[i].is_seen && plan->versions[i].files == BAG_FILES_BAD)
            plan->culprit = i;
    }
    return true;
}

static bool is_named_bad(struct bag_name_plan *plan)
{
    bool matters = plan->kind == BAG_CHANGE_START || plan->kind == BAG_CHANGE_CONFIGURATION;
    for (size_t i = plan->count; matters && i-- > 0;) {
        const struct bag_version_plan *version = &plan->versions[i];
        if (!version->is_seen || version->files != BAG_FILES_BAD || !version->is_named)
            continue;
        plan->culprit = i;
        return true;
    }
    return false;
}

enum bag_plan_outcome bag_plan_name(struct bag_name_plan *plan)
{
    const struct bag_control_item *item = plan->item;
    enum bag_plan_outcome outcome = item ? take_item(plan) : BAG_PLAN_STEPS;
    plan->preferred = plan->culprit = SIZE_MAX;
    if (outcome != BAG_PLAN_STEPS)
        return outcome;
    if (plan->kind == BAG_CHANGE_POLL)
        forget_default(plan);
    choose(plan);
    if (item && is_bad(plan))
        return BAG_PLAN_BAD;
    if (is_named_bad(plan))
        return BAG_PLAN_NAMED_BAD;
    /* Files that have all gone, or are half there, leave what serves. */
    if (plan->preferred == SIZE_MAX && plan->serves && !plan->wish->is_unloaded && !item &&
        (plan->count || plan->kind == BAG_CHANGE_POLL))
        return BAG_PLAN_STAYS;
    return BAG_PLAN_STEPS;
}
