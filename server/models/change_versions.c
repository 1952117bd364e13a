/* The versions of one model that the next snapshot has: found, checked, and chosen by policy and
 * wish; see change.h. */
#include "change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* ---- the catalog's sources by name ------------------------------------------------------------
 */

static int compare_named(const void *a, const void *b)
{
    const struct bag_named_source *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

bool bag_change_sort_catalog(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_catalog *catalog = plan->catalog;
    plan->named = calloc(catalog->count + 1, sizeof *plan->named);
    if (!plan->named)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < catalog->count; i++) {
        struct bag_source **place = &catalog->sources[i];
        if (*place)
            plan->named[plan->num_named++] =
                (struct bag_named_source){(*place)->model->name, place};
    }
    qsort(plan->named, plan->num_named, sizeof *plan->named, compare_named);
    return true;
}

const struct bag_named_source *bag_change_find_sources(const struct bag_change_plan *plan,
                                                       const char *name, size_t *count)
{
    size_t low = 0, high = plan->num_named;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(plan->named[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (*count = 0; low + *count < plan->num_named; ++*count) {
        if (strcmp(plan->named[low + *count].name, name) != 0)
            break;
    }
    return *count ? &plan->named[low] : NULL;
}

/* ---- the versions of one model --------------------------------------------------------------- */

struct candidate {
    uint64_t number;
    struct bag_source **place; /* in the catalog; NULL: its files are not there any more */
    struct bag_model *ready;   /* that is published; NULL: none */
    struct bag_model *kept;    /* that is held; NULL: none */
    bool is_checked, is_good;
    bool waits; /* until it was the same in two polls */
};

struct choosing {
    struct bag_change_plan *plan;
    const char *name;
    struct candidate *candidates; /* owned; ascending */
    size_t count;
    struct bag_wish *wish;
    uint64_t wanted; /* the version that was asked for, now or before; 0: none */
    struct bag_version_policy policy;
    bool had_ready;
    const struct bag_source
        *named_failure; /* one that was named and cannot be served; NULL: none */
    bool lacks_memory;  /* to check a version, which may be good */
};

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static struct candidate *find_candidate(struct choosing *choosing, uint64_t number)
{
    for (size_t i = 0; i < choosing->count; i++) {
        if (choosing->candidates[i].number == number)
            return &choosing->candidates[i];
    }
    return NULL;
}

static bool is_name(const struct choosing *choosing, const char *name)
{
    return strcmp(choosing->name, name) == 0;
}

/* A model that is published or held becomes a part of its candidate, which is made for it where the
 * version was asked for. */
static void add_loaded(struct choosing *choosing, struct bag_model *model, bool is_ready)
{
    struct candidate *candidate = find_candidate(choosing, model->version_number);
    if (!candidate && model->version_number == choosing->wanted) {
        candidate = &choosing->candidates[choosing->count++];
        *candidate = (struct candidate){.number = model->version_number};
    }
    if (candidate && is_ready)
        candidate->ready = model;
    else if (candidate)
        candidate->kept = model;
}

static bool gather(struct choosing *choosing, struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    const struct bag_changer *changer = plan->changer;
    size_t count;
    const struct bag_named_source *found = bag_change_find_sources(plan, choosing->name, &count);
    choosing->candidates = calloc(count + 2, sizeof *choosing->candidates);
    if (!choosing->candidates)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        struct bag_source **place = found[i].place;
        if (*place)
            choosing->candidates[choosing->count++] = (struct candidate){
                .number = strtoull((*place)->model->version, NULL, 10), .place = place};
    }
    for (size_t i = 0; i < changer->num_kept; i++) {
        if (is_name(choosing, changer->kept[i]->name))
            add_loaded(choosing, changer->kept[i], false);
    }
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->state != BAG_MODEL_READY || !is_name(choosing, model->name))
            continue;
        add_loaded(choosing, model, true);
        choosing->had_ready = true;
    }
    qsort(choosing->candidates, choosing->count, sizeof *choosing->candidates, compare_candidates);
    return true;
}

/* ---- whether a version can be served --------------------------------------------------------- */

/* Whether the source was the same in the last poll; notes how it is now. */
static bool was_seen(struct bag_changer *changer, const struct bag_source *source, uint64_t number)
{
    for (size_t i = 0; i < changer->num_sightings; i++) {
        struct bag_sighting *sighting = &changer->sightings[i];
        if (sighting->number != number || strcmp(sighting->name, source->model->name) != 0)
            continue;
        bool same = sighting->fingerprint == source->fingerprint;
        sighting->fingerprint = source->fingerprint;
        return same;
    }
    struct bag_sighting *sightings =
        reallocarray(changer->sightings, changer->num_sightings + 1, sizeof *sightings);
    if (!sightings)
        return false;
    changer->sightings = sightings;
    struct bag_sighting *sighting = &sightings[changer->num_sightings++];
    *sighting = (struct bag_sighting){.number = number, .fingerprint = source->fingerprint};
    snprintf(sighting->name, sizeof sighting->name, "%s", source->model->name);
    return false;
}

static void look_at(struct choosing *choosing, struct candidate *candidate)
{
    struct bag_change_plan *plan = choosing->plan;
    struct bag_source *source = *candidate->place;
    struct bag_problem why;
    if (!source->reason && !bag_source_is_collection(source)) {
        if (!bag_source_open_table(source, &why)) {
            bag_source_reject(source, why.text);
            choosing->lacks_memory |= why.kind == BAG_ERROR_NO_MEMORY;
        } else if (plan->kind != BAG_CHANGE_MODELS)
            bag_change_check_failures(plan, source, candidate->number);
    }
    if (source->reason || plan->kind != BAG_CHANGE_POLL || bag_source_is_collection(source) ||
        plan->changer->config->options.ready_file)
        return;
    bool is_same = candidate->ready && candidate->ready->source &&
                   candidate->ready->source->fingerprint == source->fingerprint;
    candidate->waits = !was_seen(plan->changer, source, candidate->number) && !is_same;
}

static bool is_good(void *context, size_t position)
{
    struct choosing *choosing = context;
    struct candidate *candidate = &choosing->candidates[position];
    if (candidate->is_checked)
        return candidate->is_good;
    candidate->is_checked = true;
    if (!candidate->place)
        return candidate->is_good = candidate->ready || candidate->kept;
    look_at(choosing, candidate);
    const struct bag_source *source = *candidate->place;
    if (source->reason && source->is_named && !choosing->named_failure)
        choosing->named_failure = source;
    /* A version that serves goes on while its files are half replaced. */
    return candidate->is_good = (!source->reason && !candidate->waits) || candidate->ready;
}

/* Versions that have gone are forgotten. */
static void forget_sightings(const struct choosing *choosing)
{
    struct bag_changer *changer = choosing->plan->changer;
    for (size_t i = changer->num_sightings; i-- > 0;) {
        struct bag_sighting *sighting = &changer->sightings[i];
        bool is_there = !is_name(choosing, sighting->name);
        for (size_t j = 0; !is_there && j < choosing->count; j++)
            is_there = choosing->candidates[j].number == sighting->number;
        if (!is_there)
            *sighting = changer->sightings[--changer->num_sightings];
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Polling takes a version that was asked for back when a still newer one can be served. */
static void forget_default(struct choosing *choosing)
{
    struct bag_wish *wish = choosing->wish;
    for (size_t i = choosing->count; wish->default_version && i-- > 0;) {
        if (choosing->candidates[i].number > wish->newest && is_good(choosing, i) &&
            !choosing->candidates[i].waits)
            wish->default_version = 0;
    }
}

/* That of the highest version that is there. */
static struct bag_version_policy find_policy(const struct choosing *choosing)
{
    for (size_t i = choosing->count; i-- > 0;) {
        const struct candidate *candidate = &choosing->candidates[i];
        const struct bag_source *source = candidate->place   ? *candidate->place
                                          : candidate->ready ? candidate->ready->source
                                                             : candidate->kept->source;
        if (source)
            return bag_source_policy(source);
    }
    return (struct bag_version_policy){0};
}

static struct bag_source *take_source(struct candidate *candidate)
{
    struct bag_source *source = *candidate->place;
    *candidate->place = NULL;
    return source;
}

bool bag_change_is_of(const struct bag_model *model, const struct bag_source *source)
{
    return model && model->source && model->source->fingerprint == source->fingerprint;
}

/* What the chosen version is: one that is loaded, where it is of the same files, or one to load. */
static bool add_chosen(struct choosing *choosing, struct candidate *candidate, bool is_default,
                       struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    const struct bag_source *source = candidate->place ? *candidate->place : NULL;
    struct bag_model *model = NULL;
    char note[sizeof problem->text + 128];
    if (!source || source->reason || candidate->waits)
        model = candidate->ready ? candidate->ready : candidate->kept;
    else if (!bag_source_is_collection(source))
        model = bag_change_is_of(candidate->ready, source)  ? candidate->ready
                : bag_change_is_of(candidate->kept, source) ? candidate->kept
                                                            : NULL;
    if (model) {
        snprintf(note, sizeof note, BAG_LOADED_BEFORE "%s",
                 source && source->reason ? source->reason : "");
        return bag_change_add_model(plan, model, is_default, problem) &&
               (!source || !source->reason ||
                bag_change_note(&plan->entries[plan->count - 1], note, problem));
    }
    struct bag_change_entry *entry = bag_change_add_entry(plan, problem);
    if (!entry)
        return false;
    entry->source = take_source(candidate);
    entry->is_default = is_default;
    return true;
}

static bool is_unloaded(const struct bag_wish *wish, uint64_t number)
{
    bool found = wish->is_unloaded;
    for (size_t i = 0; i < wish->num_unloaded; i++)
        found |= wish->unloaded[i] == number;
    return found;
}

/* Of a version that is not chosen, whether the policy would have it if it were good. */
static bool is_missed(const struct choosing *choosing, const struct candidate *candidate,
                      uint64_t lowest)
{
    const struct bag_wish *wish = choosing->wish;
    bool is_pinned = choosing->policy.kind == BAG_VERSIONS_LATEST && wish->default_version &&
                     candidate->number > wish->default_version;
    return candidate->place && *candidate->place && (*candidate->place)->reason &&
           candidate->number > lowest && !is_pinned && !is_unloaded(wish, candidate->number) &&
           bag_version_is_allowed(&choosing->policy, candidate->number);
}

static bool add_versions(struct choosing *choosing, const bool *chosen, size_t preferred,
                         struct bag_problem *problem)
{
    uint64_t lowest = 0;
    bool ok = true;
    for (size_t i = choosing->count; i-- > 0;)
        lowest = chosen[i] && choosing->policy.kind == BAG_VERSIONS_LATEST
                     ? choosing->candidates[i].number
                     : lowest;
    for (size_t i = 0; ok && i < choosing->count; i++) {
        struct candidate *candidate = &choosing->candidates[i];
        char version[24];
        snprintf(version, sizeof version, "%llu", (unsigned long long)candidate->number);
        if (chosen[i])
            ok = add_chosen(choosing, candidate, i == preferred, problem);
        else if (is_missed(choosing, candidate, lowest))
            ok = bag_change_add_placeholder(choosing->plan, choosing->name, version,
                                            (*candidate->place)->reason, false, problem);
    }
    return ok;
}

/* Versions that were served, or stood there as unloaded, until they are loaded again. */
static bool add_unloaded(struct choosing *choosing, size_t first, struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        const struct bag_model *model = plan->prior[i].model;
        bool is_there = false;
        if (!is_name(choosing, model->name) || !is_unloaded(choosing->wish, model->version_number))
            continue;
        for (size_t j = first; j < plan->count; j++)
            is_there |= strcmp(bag_entry_version(&plan->entries[j]), model->version) == 0;
        if (!is_there)
            ok = bag_change_add_placeholder(plan, model->name, model->version, "unloaded", true,
                                            problem);
    }
    return ok;
}

/* What was published of the model stays. */
static bool add_prior(struct choosing *choosing, struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        if (is_name(choosing, plan->prior[i].model->name))
            ok = bag_change_add_published(plan, &plan->prior[i], problem);
    }
    return ok;
}

/* ---- what was asked for ---------------------------------------------------------------------- */

/* The versions that there are, as "1, 2 and 5". */
static void list_versions(const struct choosing *choosing, char *text, size_t bytes)
{
    size_t used = 0;
    *text = 0;
    for (size_t i = 0; i < choosing->count && used + 40 < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%llu",
                                 i == 0                     ? ""
                                 : i + 1 == choosing->count ? " and "
                                                            : ", ",
                                 (unsigned long long)choosing->candidates[i].number);
}

static bool check_item(struct choosing *choosing, const struct bag_control_item *item,
                       struct bag_problem *problem)
{
    uint64_t number = strtoull(item->version, NULL, 10);
    char there[200];
    if (choosing->count == 0 && !choosing->had_ready)
        return bag_problem_set(problem, BAG_ERROR_NOT_FOUND,
                               "there is no model '%s' in the folder of models, nor is it named "
                               "in the configuration",
                               bag_quote(item->name, strlen(item->name)).text);
    list_versions(choosing, there, sizeof there);
    if (number && !find_candidate(choosing, number))
        return bag_problem_set(problem, BAG_ERROR_NOT_FOUND,
                               "model '%s' has no version '%s'; there %s %s", item->name,
                               item->version, choosing->count == 1 ? "is" : "are", there);
    if (number && !item->unload && !bag_version_is_allowed(&choosing->policy, number))
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' version %s: the model's version_policy names other "
                               "versions",
                               item->name, item->version);
    return true;
}

/* Its reason, without the model's name in front. */
static const char *reason_of(const struct bag_source *source, const char *name)
{
    char start[160];
    int length = snprintf(start, sizeof start, "model '%s'", name);
    const char *reason = source->reason;
    if (length > 0 && strncmp(reason, start, (size_t)length) == 0)
        reason += length + strspn(reason + length, ":, ");
    return reason;
}

/* Why the change is refused, for the index. */
static void refuse(struct choosing *choosing, const char *version, const char *why)
{
    struct bag_refusal *refusal = &choosing->plan->changer->refusal;
    snprintf(refusal->name, sizeof refusal->name, "%s", choosing->name);
    snprintf(refusal->version, sizeof refusal->version, "%s", version);
    bag_problem_set(&refusal->problem, BAG_ERROR_FILE, "%s", why);
}

/* The files of all versions have gone, of which one may be served. */
static void refuse_gone(struct choosing *choosing)
{
    const struct bag_change_plan *plan = choosing->plan;
    for (size_t i = 0; i < plan->num_prior; i++) {
        const struct bag_model *model = plan->prior[i].model;
        if (plan->prior[i].is_default && is_name(choosing, model->name))
            refuse(choosing, model->version, "they are not there any more");
    }
}

/* The version that was asked for, or the one that is served where none was, must be good. */
static bool check_choice(struct choosing *choosing, const struct bag_control_item *item,
                         size_t preferred, struct bag_problem *problem)
{
    uint64_t number = strtoull(item->version, NULL, 10);
    const struct candidate *asked = number                  ? find_candidate(choosing, number)
                                    : preferred != SIZE_MAX ? &choosing->candidates[preferred]
                                                            : NULL;
    const struct bag_source *source = asked && asked->place ? *asked->place : NULL;
    if (item->unload || (preferred != SIZE_MAX && !(source && source->reason)))
        return true;
    for (size_t i = choosing->count; !source && i-- > 0;) {
        struct bag_source **place = choosing->candidates[i].place;
        source = place && (*place)->reason ? *place : NULL;
    }
    bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "model '%s'%s%s cannot be served: %s",
                    item->name, number ? " version " : "", item->version,
                    source && source->reason ? reason_of(source, item->name)
                                             : "there are no files of it any more");
    if (source && source->reason)
        refuse(choosing, source->model->version, source->reason);
    else
        refuse_gone(choosing);
    return false;
}

/* Takes the item into the wish; `newest` of what is there. */
static bool apply_item(struct choosing *choosing, const struct bag_control_item *item,
                       struct bag_problem *problem)
{
    uint64_t newest = choosing->count ? choosing->candidates[choosing->count - 1].number : 0;
    return check_item(choosing, item, problem) &&
           bag_wish_apply(choosing->wish, item, newest, problem);
}

/* ---- one model ------------------------------------------------------------------------------- */

static bool choose(struct choosing *choosing, bool *chosen, struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    const struct bag_control_item *item = bag_change_item(plan, choosing->name);
    uint64_t *numbers = calloc(choosing->count + 1, sizeof *numbers);
    size_t first = plan->count;
    if (!numbers)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < choosing->count; i++)
        numbers[i] = choosing->candidates[i].number;
    const struct bag_versions versions = {numbers, choosing->count, is_good, choosing};
    if (plan->kind == BAG_CHANGE_POLL) {
        forget_sightings(choosing);
        forget_default(choosing);
    }
    size_t preferred = bag_versions_choose(&versions, &choosing->policy, choosing->wish, chosen);
    free(numbers);
    if (choosing->lacks_memory)
        return bag_problem_no_memory(problem);
    if (item && !check_choice(choosing, item, preferred, problem))
        return false;
    const struct bag_source *named = choosing->named_failure;
    if (named && (plan->kind == BAG_CHANGE_START || plan->kind == BAG_CHANGE_CONFIGURATION))
        return bag_problem_set(problem, BAG_ERROR_FILE, "%s", named->reason);
    bool stays = preferred == SIZE_MAX && choosing->had_ready && !choosing->wish->is_unloaded &&
                 !item && (choosing->count || plan->kind == BAG_CHANGE_POLL);
    if (stays)
        return add_prior(choosing, problem);
    return add_versions(choosing, chosen, preferred, problem) &&
           add_unloaded(choosing, first, problem);
}

/* Notes in the entries of the model from which update on other versions may lack some that are
 * there. One that cannot be opened lacks nothing. */
static void note_oldest(struct bag_change_plan *plan, const char *name, size_t first)
{
    size_t count;
    const struct bag_named_source *found = bag_change_find_sources(plan, name, &count);
    uint64_t oldest = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        struct bag_source *source = *found[i].place;
        struct bag_problem why;
        if (!source || source->reason || bag_source_is_collection(source))
            continue;
        if (!source->is_open && !bag_source_open_table(source, &why))
            bag_source_reject(source, why.text);
        else if (bag_source_updates_through(source) < oldest)
            oldest = bag_source_updates_through(source);
    }
    for (size_t i = first; i < plan->count; i++)
        plan->entries[i].oldest_through = oldest;
}

/* One that was made for a model of which nothing was asked. */
static void drop_empty_wish(struct bag_change_plan *plan, const struct bag_wish *wish)
{
    if (wish == &plan->wishes[plan->num_wishes - 1] && !wish->is_unloaded &&
        !wish->default_version && !wish->num_unloaded)
        plan->num_wishes--;
}

/* The versions of a model that the change is about. */
bool bag_change_add_versions(struct bag_change_plan *plan, const char *name,
                             struct bag_problem *problem)
{
    const struct bag_control_item *item = bag_change_item(plan, name);
    struct choosing choosing = {.plan = plan, .name = name, .wish = bag_change_wish(plan, name)};
    if (!choosing.wish)
        return bag_problem_no_memory(problem);
    choosing.wanted = item ? strtoull(item->version, NULL, 10) : choosing.wish->default_version;
    bool ok = gather(&choosing, problem);
    if (ok)
        choosing.policy = find_policy(&choosing);
    ok = ok && (!item || apply_item(&choosing, item, problem));
    bool *chosen = ok ? calloc(choosing.count + 1, sizeof *chosen) : NULL;
    if (ok && !chosen)
        ok = bag_problem_no_memory(problem);
    size_t first = plan->count;
    ok = ok && choose(&choosing, chosen, problem);
    if (ok && plan->changer->updates)
        note_oldest(plan, name, first);
    drop_empty_wish(plan, choosing.wish);
    free(chosen);
    free(choosing.candidates);
    return ok;
}
