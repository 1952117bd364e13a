/* The versions of one model that the next snapshot has: what there is of them is gathered and
 * looked at for steps.h, and its steps become entries of the plan; see change.h. */
#include "change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choosing {
    struct bag_change_plan *plan;
    const char *name;
    struct bag_record *record;
    struct bag_model_plan steps; /* whose versions are owned */
    bool lacks_memory;           /* to check a version, which may be good */
};

/* ---- what there is --------------------------------------------------------------------------- */

static uint64_t number_of(const struct bag_source *source)
{
    return strtoull(source->model->version, NULL, 10);
}

/* The version of that number, which is made where it is not there and `makes`; NULL: none. */
static struct bag_version_plan *find(struct choosing *choosing, uint64_t number, bool makes)
{
    struct bag_model_plan *steps = &choosing->steps;
    size_t i = steps->count;
    while (i > 0 && steps->versions[i - 1].number >= number)
        i--;
    struct bag_version_plan *version = &steps->versions[i];
    if (i < steps->count && version->number == number)
        return version;
    if (!makes)
        return NULL;
    memmove(version + 1, version, (steps->count - i) * sizeof *version);
    *version = (struct bag_version_plan){.number = number};
    steps->count++;
    return version;
}

/* What is published or held counts where its files are there, or it was asked for. */
static struct bag_version_plan *find_loaded(struct choosing *choosing, uint64_t number)
{
    const struct bag_control_item *item = choosing->steps.item;
    uint64_t wanted =
        item ? strtoull(item->version, NULL, 10) : choosing->steps.desired->default_version;
    return find(choosing, number, number == wanted);
}

static bool gather(struct choosing *choosing, struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    struct bag_version_plan *version;
    size_t count;
    const struct bag_named_source *found = bag_catalog_find(plan->catalog, choosing->name, &count);
    choosing->steps.versions = calloc(count + 2, sizeof *choosing->steps.versions);
    if (!choosing->steps.versions)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        if (*found[i].place)
            find(choosing, number_of(*found[i].place), true)->source = found[i].place;
    }
    for (size_t i = 0; i < choosing->record->num_retained; i++) {
        struct bag_model *model = choosing->record->retained[i].model;
        if ((version = find_loaded(choosing, model->version_number)))
            version->retained = model;
    }
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->state != BAG_MODEL_READY || strcmp(model->name, choosing->name) != 0)
            continue;
        choosing->steps.serves = true;
        if ((version = find_loaded(choosing, model->version_number))) {
            version->ready = model;
            version->was_default = plan->prior[i].is_default;
        }
    }
    return true;
}

/* That of the highest version that is there. */
static struct bag_version_policy find_policy(const struct choosing *choosing)
{
    for (size_t i = choosing->steps.count; i-- > 0;) {
        const struct bag_version_plan *version = &choosing->steps.versions[i];
        const struct bag_source *source = version->source  ? *version->source
                                          : version->ready ? version->ready->source
                                                           : version->retained->source;
        if (source)
            return bag_source_policy(source);
    }
    return (struct bag_version_policy){0};
}

/* ---- looking at files ------------------------------------------------------------------------ */

/* Whether the files were the same in the last poll; notes how they are now. */
static bool was_seen(struct choosing *choosing, const struct bag_source *source)
{
    struct bag_record *record = choosing->record;
    uint64_t poll = choosing->plan->changer->num_polls, number = number_of(source);
    struct bag_observed_state *version = NULL;
    for (size_t i = 0; i < record->num_observed; i++) {
        if (record->observed[i].number == number)
            version = &record->observed[i];
    }
    if (!version) {
        struct bag_observed_state *observed =
            reallocarray(record->observed, record->num_observed + 1, sizeof *observed);
        if (!observed)
            return false;
        record->observed = observed;
        version = &observed[record->num_observed++];
        *version = (struct bag_observed_state){.number = number};
    }
    if (version->poll != poll) {
        version->is_same = version->poll && version->fingerprint == source->fingerprint;
        version->fingerprint = source->fingerprint;
        version->poll = poll;
    }
    return version->is_same;
}

static void open_files(struct choosing *choosing, struct bag_source *source)
{
    struct bag_problem why;
    if (source->is_open || source->model->reason)
        return;
    if (!bag_source_open_table(source, &why)) {
        bag_source_reject(source, why.text);
        choosing->lacks_memory |= why.kind == BAG_ERROR_NO_MEMORY;
    } else {
        bag_change_check_failures(choosing->plan, source);
    }
}

static bool is_of(const struct bag_model *model, const struct bag_source *source)
{
    return model && model->source && model->source->fingerprint == source->fingerprint;
}

/* Whether what serves lacks updates; of the default version only where it is asked for by its
 * number. */
static bool is_behind(const struct choosing *choosing, const struct bag_version_plan *version)
{
    const struct bag_control_item *item = choosing->steps.item;
    bool is_asked = item && !item->unload && version->number == strtoull(item->version, NULL, 10);
    return (is_asked || !version->was_default) &&
           bag_change_lacks_updates(choosing->plan->changer, version->ready);
}

static void check_files(void *context, struct bag_version_plan *version)
{
    struct choosing *choosing = context;
    const struct bag_change_plan *plan = choosing->plan;
    struct bag_source *source = *version->source;
    bool is_collection = bag_source_is_collection(source);
    if (!is_collection)
        open_files(choosing, source);
    version->is_named = source->is_named;
    if (source->model->reason)
        version->files = BAG_FILES_BAD;
    else if (is_collection)
        version->files = BAG_FILES_NEW;
    else if (is_of(version->ready, source))
        version->files = BAG_FILES_SERVING;
    else if (plan->kind == BAG_CHANGE_POLL && !source->remote &&
             !plan->changer->config->options.ready_file && !was_seen(choosing, source))
        version->files = BAG_FILES_CHANGING;
    else
        version->files = is_of(version->retained, source) ? BAG_FILES_RETAINED : BAG_FILES_NEW;
    version->is_behind = version->files == BAG_FILES_SERVING && is_behind(choosing, version);
}

/* ---- steps become entries -------------------------------------------------------------------- */

static bool make(struct choosing *choosing, const struct bag_version_plan *version, bool is_default,
                 struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    plan->finds = true;
    if (plan->peeks)
        return true;
    struct bag_change_entry *entry = bag_change_add_entry(plan, problem);
    if (!entry)
        return false;
    entry->source = *version->source;
    entry->is_default = is_default;
    *version->source = NULL;
    return true;
}

/* What serves, where its files are bad with a note of that. */
static bool stay(struct choosing *choosing, const struct bag_version_plan *version, bool is_default,
                 struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    const struct bag_source *source = version->source ? *version->source : NULL;
    char note[sizeof problem->text + 128];
    if (!bag_change_add_model(plan, version->ready, is_default, problem))
        return false;
    if (!source || !source->model->reason)
        return true;
    snprintf(note, sizeof note, BAG_LOADED_BEFORE "%s", source->model->reason);
    return bag_change_note(&plan->entries[plan->count - 1], note, problem);
}

static bool take_step(struct choosing *choosing, size_t i, struct bag_problem *problem)
{
    const struct bag_version_plan *version = &choosing->steps.versions[i];
    bool is_default = i == choosing->steps.preferred;
    switch (version->action) {
    case BAG_ACTION_NONE:
        return true;
    case BAG_ACTION_KEEP:
        return stay(choosing, version, is_default, problem);
    case BAG_ACTION_RESTORE:
        return bag_change_add_model(choosing->plan, version->retained, is_default, problem);
    case BAG_ACTION_LOAD:
        return make(choosing, version, is_default, problem);
    case BAG_ACTION_MARK_UNAVAILABLE:
        break;
    }
    return bag_change_add_placeholder(choosing->plan, choosing->name,
                                      (*version->source)->model->version,
                                      (*version->source)->model->reason, false, problem);
}

/* Versions that were served, or stood there as unloaded, until they are loaded again. */
static bool add_unloaded(struct choosing *choosing, size_t first, struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        const struct bag_model *model = plan->prior[i].model;
        if (strcmp(model->name, choosing->name) != 0 ||
            !bag_desired_state_unloads(choosing->steps.desired, model->version_number))
            continue;
        if (!bag_change_find(plan->entries + first, plan->count - first, model->name,
                             model->version))
            ok = bag_change_add_placeholder(plan, model->name, model->version, "unloaded", true,
                                            problem);
    }
    return ok;
}

static bool take_steps(struct choosing *choosing, struct bag_problem *problem)
{
    size_t first = choosing->plan->count;
    bool ok = true;
    for (size_t i = 0; ok && i < choosing->steps.count; i++)
        ok = take_step(choosing, i, problem);
    return ok && add_unloaded(choosing, first, problem);
}

/* What was published of the model stays. */
static bool add_prior(struct choosing *choosing, struct bag_problem *problem)
{
    struct bag_change_plan *plan = choosing->plan;
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        if (strcmp(plan->prior[i].model->name, choosing->name) == 0)
            ok = bag_change_add_published(plan, &plan->prior[i], problem);
    }
    return ok;
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* The versions that there are, as "1, 2 and 5". */
static void list_versions(const struct bag_model_plan *steps, char *text, size_t bytes)
{
    size_t used = 0;
    *text = 0;
    for (size_t i = 0; i < steps->count && used + 40 < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%llu",
                                 i == 0                  ? ""
                                 : i + 1 == steps->count ? " and "
                                                         : ", ",
                                 (unsigned long long)steps->versions[i].number);
}

/* Why the change is refused, for the index. */
static void tell_index(struct choosing *choosing, const char *version, const char *why)
{
    struct bag_plan_error *error = &choosing->plan->changer->error;
    snprintf(error->name, sizeof error->name, "%s", choosing->name);
    snprintf(error->version, sizeof error->version, "%s", version);
    bag_problem_set(&error->problem, BAG_ERROR_FILE, "%s", why);
}

/* The version that was asked for, or all, or all files, are bad. */
static bool refuse_bad(struct choosing *choosing, struct bag_problem *problem)
{
    const struct bag_change_plan *plan = choosing->plan;
    const struct bag_control_item *item = choosing->steps.item;
    size_t failed = choosing->steps.failed_version;
    const struct bag_source *source =
        failed == SIZE_MAX ? NULL : *choosing->steps.versions[failed].source;
    const char *reason = source ? source->model->reason : "there are no files of it any more";
    char start[160];
    int length = snprintf(start, sizeof start, "model '%s'", item->name);
    if (source)
        tell_index(choosing, source->model->version, reason);
    for (size_t i = 0; !source && i < plan->num_prior; i++) {
        const struct bag_model *model = plan->prior[i].model;
        if (plan->prior[i].is_default && strcmp(model->name, choosing->name) == 0)
            tell_index(choosing, model->version, "they are not there any more");
    }
    /* Its reason may begin with the model's name. */
    if (length > 0 && strncmp(reason, start, (size_t)length) == 0)
        reason += length + strspn(reason + length, ":, ");
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "model '%s'%s%s cannot be served: %s",
                           item->name, *item->version ? " version " : "", item->version, reason);
}

static bool refuse(struct choosing *choosing, enum bag_plan_outcome outcome,
                   struct bag_problem *problem)
{
    const struct bag_model_plan *steps = &choosing->steps;
    const char *version = steps->item ? steps->item->version : "";
    char there[200];
    list_versions(steps, there, sizeof there);
    switch (outcome) {
    case BAG_PLAN_UNKNOWN:
        return bag_problem_set(problem, BAG_ERROR_NOT_FOUND,
                               "there is no model '%s' in the folder of models, nor is it named "
                               "in the configuration",
                               bag_quote(choosing->name, strlen(choosing->name)).text);
    case BAG_PLAN_NO_VERSION:
        return bag_problem_set(problem, BAG_ERROR_NOT_FOUND,
                               "model '%s' has no version '%s'; there %s %s", choosing->name,
                               version, steps->count == 1 ? "is" : "are", there);
    case BAG_PLAN_NOT_ALLOWED:
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' version %s: the model's version_policy names other "
                               "versions",
                               choosing->name, version);
    case BAG_PLAN_TOO_MANY_UNLOADED:
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s': %d versions are unloaded one by one already; unload "
                               "the model, and load what is to be served",
                               choosing->name, BAG_MAX_UNLOADED_VERSIONS);
    case BAG_PLAN_NAMED_BAD:
        return bag_problem_set(problem, BAG_ERROR_FILE, "%s",
                               (*steps->versions[steps->failed_version].source)->model->reason);
    case BAG_PLAN_BAD:
    case BAG_PLAN_ACTIONS:
    case BAG_PLAN_UNCHANGED:
        break;
    }
    return refuse_bad(choosing, problem);
}

/* ---- what updates are kept for --------------------------------------------------------------- */

/* Notes in the entries of the model from which update on other versions may lack some that are
 * there. One that cannot be opened lacks nothing. */
static void note_oldest(struct bag_change_plan *plan, const char *name, size_t first)
{
    size_t count;
    const struct bag_named_source *found = bag_catalog_find(plan->catalog, name, &count);
    uint64_t oldest = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        struct bag_source *source = *found[i].place;
        struct bag_problem why;
        if (!source || source->model->reason || bag_source_is_collection(source))
            continue;
        if (!source->is_open && !bag_source_open_table(source, &why))
            bag_source_reject(source, why.text);
        else if (bag_source_updates_through(source) < oldest)
            oldest = bag_source_updates_through(source);
    }
    for (size_t i = first; i < plan->count; i++)
        plan->entries[i].oldest_through = oldest;
}

/* ---- one model ------------------------------------------------------------------------------- */

static bool choose(struct choosing *choosing, struct bag_problem *problem)
{
    choosing->steps.policy = find_policy(choosing);
    enum bag_plan_outcome outcome = bag_plan_model(&choosing->steps);
    if (choosing->lacks_memory)
        return bag_problem_no_memory(problem);
    if (outcome == BAG_PLAN_ACTIONS)
        return take_steps(choosing, problem);
    return outcome == BAG_PLAN_UNCHANGED ? add_prior(choosing, problem)
                                         : refuse(choosing, outcome, problem);
}

bool bag_change_add_versions(struct bag_change_plan *plan, const char *name,
                             struct bag_problem *problem)
{
    struct choosing choosing = {.plan = plan,
                                .name = name,
                                .record = bag_record_make(plan->changer, name),
                                .steps = {.kind = plan->kind,
                                          .item = bag_control_find(plan->control, name),
                                          .desired = bag_change_desired_state(plan, name),
                                          .check_files = check_files,
                                          .context = &choosing}};
    size_t first = plan->count;
    bool ok = (choosing.record && choosing.steps.desired) || bag_problem_no_memory(problem);
    ok = ok && gather(&choosing, problem) && choose(&choosing, problem);
    if (ok && plan->changer->updates && !plan->peeks)
        note_oldest(plan, name, first);
    free(choosing.steps.versions);
    return ok;
}
