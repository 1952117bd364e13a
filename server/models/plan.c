/* Planning the next snapshot; see plan.h. */
#include "plan.h"

#include "proto/arena.h"
#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* The problem of a model and the maximum number of versions that are unloaded one by one. */
#define BAG_TOO_MANY_UNLOADED                                                                      \
    "model '%s': %d versions are unloaded one by one already; unload the model, and load what is " \
    "to be served"

/* ---- versions -------------------------------------------------------------------------------- */

struct bag_version *bag_name_next_default(const struct bag_name *name)
{
    for (size_t i = 0; i < name->count; i++) {
        struct bag_version *version = name->versions[i];
        if (bag_version_next(version)->is_default && bag_version_will_serve(version))
            return version;
    }
    return NULL;
}

struct bag_version *bag_change_plan_find_table(const struct bag_change_plan *plan,
                                               const struct bag_feature_config *feature)
{
    const struct bag_name *name = bag_models_find(plan->models, feature->model);
    if (!name || !feature->version)
        return name ? bag_name_next_default(name) : NULL;
    struct bag_version *version = bag_name_find(name, feature->version);
    return version && bag_version_will_serve(version) ? version : NULL;
}

/* Lists a model as the version's next one, with a new reference. The remark, from which names of
 * folders are removed, may be NULL. */
static bool set_next(struct bag_version *version, struct bag_model *model, bool is_default,
                     const char *remark, struct bag_problem *problem)
{
    version->next = (struct bag_listed){.model = bag_model_retain(model), .is_default = is_default};
    if (remark && !(version->next.remark = strdup(remark)))
        return bag_problem_no_memory(problem);
    if (remark)
        bag_text_hide_folders(version->next.remark);
    return true;
}

bool bag_version_reject(struct bag_version *version, const char *reason, bool is_unloaded,
                        struct bag_problem *problem)
{
    struct bag_model *model =
        bag_version_stub(version, BAG_MODEL_UNAVAILABLE, reason, is_unloaded, problem);
    if (!model)
        return false;
    bag_source_free(version->source);
    version->source = NULL;
    bag_listed_clear(&version->next);
    version->next.model = model;
    return true;
}

/* Undoes what was decided about a version. Files that were to be loaded are found again. */
static void undo(struct bag_version *version)
{
    bag_listed_clear(&version->next);
    bag_stored_table_drop(version->stored);
    version->stored = NULL;
    if (version->source && !version->found && !bag_source_is_collection(version->source))
        version->found = version->source;
    else
        bag_source_free(version->source);
    version->source = NULL;
}

/* Makes another source of the same configuration, which is not open. Returns NULL and sets *problem
 * without memory. */
static struct bag_source *renew(const struct bag_source *source, struct bag_problem *problem)
{
    struct bag_model_config copy;
    if (!bag_model_config_copy(&copy, source->model)) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    struct bag_source *renewed = bag_source_make(&copy, source->is_named);
    if (!renewed) {
        bag_model_config_free(&copy);
        bag_problem_no_memory(problem);
        return NULL;
    }
    renewed->is_alone = source->is_alone;
    renewed->maps = source->maps;
    return renewed;
}

/* ---- the files of a version ------------------------------------------------------------------ */

/* The facts about one name; must not move. */
struct facts {
    struct bag_change_plan *plan;
    struct bag_name *name;
    struct bag_model_plan steps;   /* for bag_plan_model(); owns its versions */
    struct bag_version **versions; /* owned; those of steps.versions */
    bool lacks_memory; /* set by check_files(): a version that may be good could not be opened */
};

/* Returns whether the last look of a poll found the same files, and remembers what this poll finds.
 */
static bool is_settled(const struct facts *facts, struct bag_version *version)
{
    struct bag_observed_state *observed = &version->observed;
    uint64_t poll = facts->plan->models->num_polls, state = bag_source_state(version->found);
    if (observed->poll != poll || observed->state != state) {
        observed->is_same = observed->poll && observed->state == state;
        observed->state = state;
        observed->poll = poll;
    }
    return observed->is_same;
}

/* Opens the files of a source. If they are bad, or failed to load before and are not tried again,
 * sets the reason in the source's configuration. */
static void open_files(struct facts *facts, const struct bag_version *version)
{
    struct bag_source *source = version->found;
    const struct bag_failed_version *failed = version->failed;
    struct bag_problem why;
    if (source->model->reason)
        return;
    if (!source->is_open && !bag_source_open_table(source, &why)) {
        bag_source_reject(source, why.text);
        facts->lacks_memory |= why.kind == BAG_ERROR_NO_MEMORY;
    } else if (failed && failed->fingerprint == source->fingerprint &&
               bag_plan_skips_failed(facts->plan->kind,
                                     failed->change == facts->plan->models->num_changes,
                                     uv_hrtime() - failed->at_ns)) {
        bag_source_reject(source, failed->problem.text);
    }
}

/* Returns whether the model was made of the same files and configuration as the source. Then the
 * model's source gets the links that the files have now. */
static bool is_of(const struct bag_model *model, const struct bag_source *source)
{
    if (!model || !model->source || model->source->fingerprint != source->fingerprint ||
        bag_source_was_written_over(model->source, source))
        return false;
    bag_source_update_links(model->source, source);
    return true;
}

/* Returns whether what serves lacks updates. The default version is only looked at if a request
 * names its number. */
static bool is_behind(const struct facts *facts, const struct bag_version_plan *version)
{
    const struct bag_control_item *item = facts->steps.item;
    bool is_asked = item && !item->unload && version->number == bag_control_version(item);
    return (is_asked || !version->was_default) &&
           bag_models_lack_updates(facts->plan->models, version->ready);
}

/* Remembers why a version is bad, so that it is counted once. Without memory it may be counted
 * again. A shard that is away is no failed change. */
static void note_bad(struct bag_models *models, struct bag_version *version,
                     const struct bag_source *source, const char *reason)
{
    struct bag_problem why;
    if (bag_model_has_shards(source->model) ||
        (version->failed && strcmp(version->failed->problem.text, reason) == 0))
        return;
    bag_problem_set(&why, BAG_ERROR_FILE, "%s", reason);
    bag_version_fail(models, version, source->fingerprint, &why);
}

/* Remembers why the files that the last scan found are bad. */
static void note_found_bad(const struct facts *facts, struct bag_version *version)
{
    note_bad(facts->plan->models, version, version->found, version->found->model->reason);
}

/* Returns the source of the default version, if it serves a table that is here. */
static const struct bag_source *find_served(const struct bag_name *name)
{
    for (size_t i = 0; i < name->count; i++) {
        const struct bag_listed *now = &name->versions[i]->now;
        if (now->is_default && bag_listed_is_ready(now) && now->model->memory)
            return now->model->source;
    }
    return NULL;
}

/* Compares the files of a table with what is in memory; see struct bag_model_plan. Unless a
 * ready_file marks complete versions, polls do not trust files that changed since the last poll, or
 * that may be half of a copy although they stay the same. */
static void check_table(struct facts *facts, struct bag_version_plan *step)
{
    struct bag_version *version = facts->versions[step - facts->steps.versions];
    struct bag_source *source = *step->source;
    bool is_polled = facts->plan->kind == BAG_CHANGE_POLL && !source->remote &&
                     !facts->plan->models->options->ready_file;
    struct bag_problem why;
    if (version->made) {
        step->files = BAG_FILES_RETAINED; /* this change has read them already */
        return;
    }
    open_files(facts, version);
    if (source->model->reason) {
        step->files = BAG_FILES_BAD;
        note_found_bad(facts, version);
    } else if (is_of(step->ready, source))
        step->files = BAG_FILES_SERVING;
    else if (is_polled && !is_settled(facts, version))
        step->files = BAG_FILES_CHANGING;
    else
        step->files = is_of(step->retained, source) ? BAG_FILES_RETAINED : BAG_FILES_NEW;
    if (step->files == BAG_FILES_NEW && is_polled &&
        !bag_source_check_copied(source, find_served(facts->name), &why)) {
        bag_source_reject(source, why.text);
        step->files = BAG_FILES_BAD;
        note_found_bad(facts, version);
    }
    step->is_behind = step->files == BAG_FILES_SERVING && is_behind(facts, step);
}

/* Returns the number of the last update that all versions of the name include whose files are there
 * and not loaded: later updates are kept for them. Opens their files. Returns UINT64_MAX if there
 * are no such versions. */
static uint64_t find_oldest_through(const struct bag_name *name)
{
    uint64_t oldest = UINT64_MAX;
    for (size_t i = 0; i < name->count; i++) {
        struct bag_source *source = name->versions[i]->found;
        struct bag_problem why;
        if (!source || source->model->reason || bag_source_is_collection(source))
            continue;
        if (!source->is_open && !bag_source_open_table(source, &why))
            bag_source_reject(source, why.text);
        else if (bag_source_updates_through(source) < oldest)
            oldest = bag_source_updates_through(source);
    }
    return oldest;
}

/* Returns the retained model of that number which was retained last, or NULL. */
static struct bag_model *find_retained(const struct bag_name *name, uint64_t number)
{
    for (size_t i = name->num_retained; i-- > 0;) {
        if (name->retained[i].model->version_number == number)
            return name->retained[i].model;
    }
    return NULL;
}

/* Adds a version to the facts. One that is only in memory counts if a request asks for it or a
 * collection pins it, otherwise only with files. */
static void gather_version(struct facts *facts, struct bag_version *version, bool is_pinned)
{
    struct bag_model_plan *steps = &facts->steps;
    struct bag_model *ready = bag_listed_is_ready(&version->now) ? version->now.model : NULL;
    struct bag_model *retained =
        version->made ? version->made : find_retained(facts->name, version->number);
    uint64_t wanted = is_pinned     ? version->number
                      : steps->item ? bag_control_version(steps->item)
                                    : steps->desired->default_version;
    struct bag_source **source = version->made    ? &version->made->source
                                 : version->found ? &version->found
                                                  : NULL;
    steps->serves |= ready != NULL;
    if (!source && (version->number != wanted || (!ready && !retained)))
        return;
    facts->versions[steps->count] = version;
    steps->versions[steps->count++] =
        (struct bag_version_plan){.number = version->number,
                                  .source = source,
                                  .ready = ready,
                                  .retained = retained,
                                  .was_default = ready && version->now.is_default,
                                  .is_pinned = ready && version->now.is_pinned};
}

/* ---- pinned versions ------------------------------------------------------------------------- */

/* The version of a table that a feature pins, compared with what is in memory; must not move. */
struct pinned {
    struct facts facts;
    struct bag_version *version;
    struct bag_version_plan step;
};

static void check_pinned(void *context, struct bag_version_plan *step)
{
    struct facts *facts = context;
    step->is_named = (*step->source)->is_named;
    check_table(facts, step);
}

/* Sets *why to the reason why the version cannot serve for a feature that pins it. Returns false.
 */
static bool lack_pinned(const struct bag_source *collection,
                        const struct bag_feature_config *feature, struct bag_problem *why,
                        const char *reason)
{
    return bag_problem_set(
        why, BAG_ERROR_CONFLICT,
        "model '%s' version %s, feature '%s': version %llu of model '%s', which it pins, %s",
        collection->model->name, collection->model->version, feature->name,
        (unsigned long long)feature->version, feature->model, reason);
}

/* Returns whether a request unloaded the version, and the change does not load the collection that
 * pins it. A version that serves is only unloaded by the request that is carried out now. */
static bool is_unloaded(const struct bag_change_plan *plan, const struct bag_source *collection,
                        const struct bag_version *version)
{
    const struct bag_name *name = version->name;
    const struct bag_desired_state *desired =
        name->is_decided ? &name->next_desired : &name->desired;
    return bag_desired_state_unloads(desired, version->number) &&
           !bag_listed_is_ready(&version->now) &&
           !bag_control_find(plan->control, collection->model->name);
}

/* Decides how the version that a feature pins can serve. Returns false and sets *why if it cannot,
 * with *is_changing if it can as soon as its files are complete. */
static bool find_pinned(struct bag_change_plan *plan, const struct bag_source *collection,
                        const struct bag_feature_config *feature, struct pinned *pinned,
                        bool *is_changing, struct bag_problem *why)
{
    struct bag_name *name = bag_models_find(plan->models, feature->model);
    struct bag_version *version = name ? bag_name_find(name, feature->version) : NULL;
    *pinned = (struct pinned){.version = version};
    pinned->facts =
        (struct facts){.plan = plan,
                       .name = name,
                       .versions = &pinned->version,
                       .steps = {.kind = plan->kind,
                                 .item = bag_control_find(plan->control, feature->model),
                                 .versions = &pinned->step,
                                 .check_files = check_pinned,
                                 .context = &pinned->facts}};
    *is_changing = false;
    if (version)
        gather_version(&pinned->facts, version, true);
    if (!pinned->facts.steps.count)
        return lack_pinned(collection, feature, why, "is not there");
    struct bag_version_plan *step = &pinned->step;
    if (step->source && bag_source_is_collection(*step->source))
        return lack_pinned(collection, feature, why, "is a collection; a feature is of a table");
    if (is_unloaded(plan, collection, version))
        return lack_pinned(collection, feature, why, "was unloaded");
    bag_plan_pinned(&pinned->facts.steps, step);
    if (pinned->facts.lacks_memory)
        return bag_problem_no_memory(why);
    *is_changing = step->is_checked && step->files == BAG_FILES_CHANGING;
    switch (step->action) {
    case BAG_ACTION_KEEP:
    case BAG_ACTION_RESTORE:
    case BAG_ACTION_LOAD:
        return true;
    case BAG_ACTION_MARK_UNAVAILABLE: {
        char reason[sizeof why->text];
        snprintf(reason, sizeof reason, "cannot be served: %s", (*step->source)->model->reason);
        return lack_pinned(collection, feature, why, reason);
    }
    case BAG_ACTION_NONE:
        break;
    }
    return lack_pinned(collection, feature, why,
                       *is_changing ? "may still be written to" : "is unloaded");
}

/* Returns the source of the pinned version as it will serve. */
static const struct bag_source *pinned_source(const struct pinned *pinned)
{
    const struct bag_version_plan *step = &pinned->step;
    return step->action == BAG_ACTION_KEEP      ? step->ready->source
           : step->action == BAG_ACTION_RESTORE ? step->retained->source
                                                : *step->source;
}

/* ---- the files of a collection --------------------------------------------------------------- */

/* Sets *table to the source of the table that a feature would pool. Returns false and sets *why if
 * there is none. */
static bool find_table(struct bag_change_plan *plan, const struct bag_source *collection,
                       const struct bag_feature_config *feature, const struct bag_source **table,
                       bool *is_changing, struct bag_problem *why)
{
    const struct bag_version *version = bag_change_plan_find_table(plan, feature);
    struct pinned pinned;
    *is_changing = false;
    *table = version ? bag_version_source(version) : NULL;
    if (*table && !bag_source_is_collection(*table))
        return true;
    if (!feature->version)
        return bag_problem_set(why, BAG_ERROR_CONFLICT,
                               "model '%s': model '%s', whose table it needs, is not served",
                               collection->model->name, feature->model);
    if (!find_pinned(plan, collection, feature, &pinned, is_changing, why))
        return false;
    *table = pinned_source(&pinned);
    return true;
}

/* Opens a copy of a collection's source over the tables as they will be. Returns false and sets
 * *problem if one is missing or does not fit, with *is_changing if it may fit soon. */
static bool fits_tables(struct bag_change_plan *plan, const struct bag_source *source,
                        bool *is_changing, struct bag_problem *problem)
{
    const struct bag_model_config *config = source->model;
    const struct bag_source **tables = calloc(config->num_features, sizeof *tables);
    struct bag_source *copy = renew(source, problem);
    bool ok = copy && (tables || bag_problem_no_memory(problem)), goes_on = ok, changes;
    *is_changing = false;
    /* Look at all pinned files at once: a poll trusts those that the last one has looked at. */
    for (size_t i = 0; goes_on && i < config->num_features; i++) {
        if (find_table(plan, source, &config->features[i], &tables[i], &changes, problem))
            continue;
        ok = false;
        *is_changing = goes_on = changes;
    }
    ok = ok && bag_source_open_collection(copy, tables, problem);
    bag_source_free(copy);
    free(tables);
    return ok;
}

/* Rejects a version of a collection that does not fit the tables, if another version may serve in
 * its place. Without one, and if it serves or a request names it, resolve() says what happens, and
 * also of one that the configuration names, whose table may come. A collection has no files of its
 * own. */
static void check_collection(struct facts *facts, struct bag_version_plan *step)
{
    struct bag_version *version = facts->versions[step - facts->steps.versions];
    struct bag_source *source = *step->source;
    struct bag_problem why;
    bool is_asked = bag_control_version(facts->steps.item) == step->number, is_changing = false;
    bool is_only = step == facts->steps.versions && facts->steps.preferred == SIZE_MAX;
    if (!is_only && !step->ready && !is_asked && !source->model->reason &&
        !fits_tables(facts->plan, source, &is_changing, &why) && !is_changing &&
        !(source->is_named && why.kind == BAG_ERROR_CONFLICT)) {
        bag_source_reject(source, why.text);
        facts->lacks_memory |= why.kind == BAG_ERROR_NO_MEMORY;
    }
    step->files = source->model->reason ? BAG_FILES_BAD
                  : is_changing         ? BAG_FILES_CHANGING
                                        : BAG_FILES_NEW;
    if (source->model->reason)
        note_found_bad(facts, version);
}

/* ---- facts of one name ----------------------------------------------------------------------- */

/* Compares the files of a version with what is in memory; see struct bag_model_plan. */
static void check_files(void *context, struct bag_version_plan *step)
{
    struct facts *facts = context;
    step->is_named = (*step->source)->is_named;
    if (bag_source_is_collection(*step->source))
        check_collection(facts, step);
    else
        check_table(facts, step);
}

/* Returns the policy of the highest version. */
static struct bag_version_policy find_policy(const struct bag_model_plan *steps)
{
    for (size_t i = steps->count; i-- > 0;) {
        const struct bag_version_plan *version = &steps->versions[i];
        const struct bag_source *source = version->source  ? *version->source
                                          : version->ready ? version->ready->source
                                                           : version->retained->source;
        if (source)
            return bag_source_policy(source);
    }
    return (struct bag_version_policy){0};
}

/* Gathers the versions of a name. Returns false with *problem without memory. The caller must free
 * the versions in either case. */
static bool gather(struct facts *facts, struct bag_problem *problem)
{
    struct bag_name *name = facts->name;
    name->next_desired = name->desired;
    facts->versions = calloc(name->count + 1, sizeof(struct bag_version *));
    facts->steps = (struct bag_model_plan){
        .kind = facts->plan->kind,
        .item = bag_control_find(facts->plan->control, name->text),
        .desired = &name->next_desired,
        .versions = calloc(name->count + 1, sizeof(struct bag_version_plan)),
        .check_files = check_files,
        .context = facts};
    if (!facts->versions || !facts->steps.versions)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < name->count; i++)
        gather_version(facts, name->versions[i], name->versions[i]->now.is_pinned);
    facts->steps.policy = find_policy(&facts->steps);
    return true;
}

/* ---- actions --------------------------------------------------------------------------------- */

/* Plans to load a version. The source of a collection is copied: it is opened over tables that
 * another attempt may replace. */
static bool load(struct bag_version *version, bool is_default, struct bag_problem *problem)
{
    struct bag_source *found = version->found;
    if (bag_source_is_collection(found)) {
        version->source = renew(found, problem);
    } else {
        version->source = found;
        version->found = NULL;
    }
    version->next.is_default = is_default;
    return version->source != NULL;
}

/* Keeps the version that serves. If its files have become bad, its remark says so. */
static bool keep(struct bag_version *version, bool is_default, struct bag_problem *problem)
{
    const struct bag_source *source = version->found;
    char remark[sizeof problem->text + 128];
    bool is_bad = source && source->model->reason;
    if (is_bad)
        snprintf(remark, sizeof remark, BAG_LOADED_BEFORE "%s", source->model->reason);
    return set_next(version, version->now.model, is_default, is_bad ? remark : NULL, problem);
}

/* Decides what becomes of one version, as its action says. */
static bool take_action(struct bag_version *version, const struct bag_version_plan *step,
                        bool is_default, struct bag_problem *problem)
{
    bool ok = true;
    switch (step->action) {
    case BAG_ACTION_NONE:
        return true;
    case BAG_ACTION_MARK_UNAVAILABLE:
        return bag_version_reject(version, (*step->source)->model->reason, false, problem);
    case BAG_ACTION_KEEP:
        ok = keep(version, is_default, problem);
        break;
    case BAG_ACTION_RESTORE:
        ok = set_next(version, step->retained, is_default, NULL, problem);
        break;
    case BAG_ACTION_LOAD:
        ok = load(version, is_default, problem);
        break;
    }
    version->next.is_pinned = step->is_pinned;
    return ok;
}

/* Takes all actions. Versions that were listed and that a request unloaded stay listed, until they
 * are loaded again. */
static bool take_actions(const struct facts *facts, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < facts->steps.count; i++)
        ok = take_action(facts->versions[i], &facts->steps.versions[i], i == facts->steps.preferred,
                         problem);
    for (size_t i = 0; ok && i < facts->name->count; i++) {
        struct bag_version *version = facts->name->versions[i];
        if (version->now.model && !version->next.model && !version->source &&
            bag_desired_state_unloads(facts->steps.desired, version->number))
            ok = bag_version_reject(version, "unloaded", true, problem);
    }
    return ok;
}

/* Leaves all versions of a name as they are listed. */
static void keep_all(struct bag_name *name)
{
    for (size_t i = 0; i < name->count; i++)
        name->versions[i]->next = bag_listed_copy(&name->versions[i]->now);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Writes the versions that exist, as "1, 2 and 5". */
static void list_versions(const struct bag_model_plan *plan, char *text, size_t bytes)
{
    *text = 0;
    for (size_t i = 0; i < plan->count && strlen(text) + 40 < bytes; i++)
        bag_text_add(text, bytes, "%s%llu",
                     i == 0                 ? ""
                     : i + 1 == plan->count ? " and "
                                            : ", ",
                     (unsigned long long)plan->versions[i].number);
}

/* Keeps the error of a version for the index of models. */
static void blame(const struct facts *facts, struct bag_version *version, const char *why)
{
    facts->plan->bad = version;
    bag_problem_set(&facts->plan->bad_problem, BAG_ERROR_FILE, "%s", why);
}

/* Sets the problem of a request for a version, or for a model, that is bad, or has no files. */
static bool fail_bad(const struct facts *facts, struct bag_problem *problem)
{
    const struct bag_control_item *item = facts->steps.item;
    size_t failed = facts->steps.failed_version;
    const struct bag_source *source =
        failed == SIZE_MAX ? NULL : *facts->steps.versions[failed].source;
    const char *reason = source ? source->model->reason : "there are no files of it any more";
    char start[160];
    int length = snprintf(start, sizeof start, "model '%s'", item->name);
    if (source)
        blame(facts, facts->versions[failed], reason);
    for (size_t i = 0; !source && i < facts->name->count; i++) {
        if (facts->name->versions[i]->now.is_default)
            blame(facts, facts->name->versions[i], "they are not there any more");
    }
    /* The reason may begin with the model's name. */
    if (length > 0 && strncmp(reason, start, (size_t)length) == 0)
        reason += length + strspn(reason + length, ":, ");
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "model '%s'%s%s cannot be served: %s",
                           item->name, *item->version ? " version " : "", item->version, reason);
}

/* Sets *problem to why the change cannot be planned. Returns false. The outcome is neither ACTIONS
 * nor UNCHANGED. */
static bool fail(const struct facts *facts, enum bag_plan_outcome outcome,
                 struct bag_problem *problem)
{
    const struct bag_model_plan *plan = &facts->steps;
    const char *name = facts->name->text, *version = plan->item ? plan->item->version : "";
    char there[200];
    list_versions(plan, there, sizeof there);
    switch (outcome) {
    case BAG_PLAN_UNKNOWN:
        return bag_problem_set(problem, BAG_ERROR_NOT_FOUND,
                               "there is no model '%s' in the folder of models, nor is it named "
                               "in the configuration",
                               bag_quote(name, strlen(name)).text);
    case BAG_PLAN_NO_VERSION:
        return bag_problem_set(problem, BAG_ERROR_NOT_FOUND,
                               "model '%s' has no version '%s'; there %s %s", name, version,
                               plan->count == 1 ? "is" : "are", there);
    case BAG_PLAN_NOT_ALLOWED:
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' version %s: the model's version_policy names other "
                               "versions",
                               name, version);
    case BAG_PLAN_TOO_MANY_UNLOADED:
        return bag_problem_set(problem, BAG_ERROR_CONFLICT, BAG_TOO_MANY_UNLOADED, name,
                               BAG_MAX_UNLOADED_VERSIONS);
    case BAG_PLAN_NAMED_BAD:
        return bag_problem_set(problem, BAG_ERROR_FILE, "%s",
                               (*plan->versions[plan->failed_version].source)->model->reason);
    case BAG_PLAN_BAD:
    case BAG_PLAN_ACTIONS:
    case BAG_PLAN_UNCHANGED:
        break;
    }
    return fail_bad(facts, problem);
}

/* ---- one name -------------------------------------------------------------------------------- */

/* Adds the name to those that are decided. Returns false without memory. */
static bool include(struct bag_change_plan *plan, struct bag_name *name,
                    struct bag_problem *problem)
{
    if (name->is_decided)
        return true;
    if (!BAG_GROW(plan->names, plan->num_names))
        return bag_problem_no_memory(problem);
    plan->names[plan->num_names++] = name;
    name->is_decided = true;
    return true;
}

/* Decides about all versions of a name. */
static bool decide(struct bag_change_plan *plan, struct bag_name *name, struct bag_problem *problem)
{
    struct facts facts = {.plan = plan, .name = name};
    if (!include(plan, name, problem))
        return false;
    bool ok = gather(&facts, problem);
    if (ok) {
        enum bag_plan_outcome outcome = bag_plan_model(&facts.steps);
        if (facts.lacks_memory)
            ok = bag_problem_no_memory(problem);
        else if (outcome == BAG_PLAN_ACTIONS)
            ok = take_actions(&facts, problem);
        else if (outcome == BAG_PLAN_UNCHANGED)
            keep_all(name);
        else
            ok = fail(&facts, outcome, problem);
    }
    free(facts.steps.versions);
    free(facts.versions);
    return ok;
}

/* Returns whether what is listed of a version changes. */
static bool version_changes(const struct bag_version *version)
{
    const struct bag_listed *now = &version->now, *next = &version->next;
    bool is_same_remark = now->remark && next->remark ? strcmp(now->remark, next->remark) == 0
                                                      : now->remark == next->remark;
    return version->source || next->model != now->model || next->is_default != now->is_default ||
           next->is_pinned != now->is_pinned || !is_same_remark;
}

static bool name_changes(const struct bag_name *name)
{
    bool changes = false;
    for (size_t i = 0; !changes && i < name->count; i++)
        changes = version_changes(name->versions[i]);
    return changes;
}

bool bag_change_plan_add(struct bag_change_plan *plan, struct bag_name *name, bool *changes,
                         struct bag_problem *problem)
{
    bool ok = decide(plan, name, problem);
    *changes = ok && name_changes(name);
    if (!ok || *changes || plan->kind != BAG_CHANGE_POLL)
        return ok;
    for (size_t i = 0; i < name->count; i++)
        undo(name->versions[i]);
    name->is_decided = false;
    plan->num_names--;
    return true;
}

/* ---- all names ------------------------------------------------------------------------------- */

/* Returns whether the name is listed, no version of it answers, and no request unloaded it. */
static bool is_lost(const struct bag_name *name)
{
    bool is_listed = false;
    for (size_t i = 0; i < name->count; i++) {
        const struct bag_model *model = name->versions[i]->now.model;
        if (model && (model->state != BAG_MODEL_UNAVAILABLE || model->is_unloaded))
            return false;
        is_listed |= model != NULL;
    }
    return is_listed;
}

/* Returns whether a model that the request does not name is tried again. It is a collection of
 * which no version answers, and the request loads a table that it needs. */
static bool is_retried(const struct bag_control *control, const struct bag_name *name)
{
    bool found = false;
    for (size_t i = 0; is_lost(name) && i < name->count; i++) {
        const struct bag_source *source = name->versions[i]->found;
        for (size_t j = 0; source && j < source->model->num_features; j++) {
            const struct bag_control_item *item =
                bag_control_find(control, source->model->features[j].model);
            found |= item && !item->unload;
        }
    }
    return found;
}

/* Returns whether the change is about the name, which may be in no catalog and only be asked for.
 */
static bool is_target(const struct bag_change_plan *plan, struct bag_name *name)
{
    name->is_retried = false;
    if (!plan->control || bag_control_find(plan->control, name->text))
        return true;
    return name->is_retried = is_retried(plan->control, name);
}

bool bag_change_plan_decide(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_control *control = plan->control;
    bool ok = true, changes;
    for (size_t i = 0; ok && control && i < control->count; i++)
        ok =
            bag_models_name(plan->models, control->items[i].name) || bag_problem_no_memory(problem);
    struct bag_name **names = bag_models_in_order(plan->models);
    ok = ok && (names || bag_problem_no_memory(problem));
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; ok && i < plan->models->num_names; i++) {
            if (bag_name_has_collection(names[i]) == (pass == 1) && is_target(plan, names[i]))
                ok = bag_change_plan_add(plan, names[i], &changes, problem);
        }
    }
    free(names);
    return ok && bag_change_plan_complete(plan, problem);
}

/* Returns whether a feature of the source pins the version of a table. NULL has no features. */
static bool pins(const struct bag_source *source, const struct bag_version *table)
{
    bool found = false;
    for (size_t i = 0; source && !found && i < source->model->num_features; i++) {
        const struct bag_feature_config *feature = &source->model->features[i];
        found = feature->version == table->number && strcmp(feature->model, table->name->text) == 0;
    }
    return found;
}

bool bag_change_plan_pins(const struct bag_version *collection, const struct bag_version *table)
{
    return pins(bag_version_source(collection), table);
}

/* Returns a version of a collection that pins the version of a table, or did so before the change;
 * NULL if there is none. */
static const struct bag_version *find_pinning(const struct bag_change_plan *plan,
                                              const struct bag_version *table)
{
    const struct bag_version *found = NULL;
    for (size_t i = 0; !found && i < plan->models->num_names; i++) {
        const struct bag_name *name = plan->models->names[i];
        for (size_t j = 0; !found && j < name->count; j++) {
            const struct bag_version *version = name->versions[j];
            const struct bag_model *now = version->now.model;
            if (bag_change_plan_pins(version, table) || pins(now ? now->source : NULL, table))
                found = version;
        }
    }
    return found;
}

/* Returns another version of the table's name that is in memory, or will be. */
static const struct bag_version *find_beside(const struct bag_version *version)
{
    for (size_t i = 0; i < version->name->count; i++) {
        const struct bag_version *other = version->name->versions[i];
        if (other != version && (other->source || bag_listed_is_ready(&other->now)))
            return other;
    }
    return NULL;
}

bool bag_change_plan_explain_memory(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_problem why = *problem;
    for (size_t i = plan->num_loads; why.kind == BAG_ERROR_NO_MEMORY && i-- > 0;) {
        const struct bag_version *version = plan->loads[i];
        const struct bag_version *other =
            version->stored || bag_source_is_collection(version->source) ? NULL
                                                                         : find_beside(version);
        const struct bag_version *collection = other ? find_pinning(plan, other) : NULL;
        if (collection)
            return bag_problem_set(
                problem, why.kind,
                "%s; model '%s' version %llu does not fit beside version %llu, which model '%s' "
                "version %llu pins",
                why.text, version->name->text, (unsigned long long)version->number,
                (unsigned long long)other->number, collection->name->text,
                (unsigned long long)collection->number);
    }
    return false;
}

/* Decides again about a name. If the change is not about the name, all versions stay. */
static bool decide_again(struct bag_change_plan *plan, struct bag_name *name,
                         struct bag_problem *problem)
{
    for (size_t i = 0; i < name->count; i++)
        undo(name->versions[i]);
    if (name->is_kept)
        keep_all(name);
    return name->is_kept || decide(plan, name, problem);
}

/* Decides again about the collections that were to be loaded over a failed version. A lower version
 * of a collection may pin other tables. */
static bool decide_over(struct bag_change_plan *plan, const struct bag_version *failed,
                        struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_names; i++) {
        bool is_over = false;
        for (size_t j = 0; j < plan->names[i]->count; j++) {
            const struct bag_version *version = plan->names[i]->versions[j];
            is_over |= version->source && bag_change_plan_pins(version, failed);
        }
        ok = !is_over || decide_again(plan, plan->names[i], problem);
    }
    return ok;
}

bool bag_change_plan_go_without(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_version *failed = plan->failed;
    struct bag_name *name = failed->name;
    plan->failed = NULL;
    for (size_t i = 0; i < name->count; i++)
        undo(name->versions[i]);
    /* Look at the files again: they may have been replaced while they were read. */
    if (failed->found && !failed->found->remote && !bag_source_is_collection(failed->found)) {
        struct bag_source *renewed = renew(failed->found, problem);
        if (!renewed)
            return false;
        bag_source_free(failed->found);
        failed->found = renewed;
    } else if (failed->found) {
        bag_source_reject(failed->found, failed->failed->problem.text);
    }
    return decide_again(plan, name, problem) && decide_over(plan, failed, problem) &&
           bag_change_plan_complete(plan, problem);
}

/* ---- collections ----------------------------------------------------------------------------- */

/* Returns whether the version will serve as a collection. */
static bool is_collection(const struct bag_version *version)
{
    const struct bag_source *source =
        bag_version_will_serve(version) ? bag_version_source(version) : NULL;
    return source && bag_source_is_collection(source);
}

/* Returns whether a version of the name is in the folder of models, also if it cannot be served. */
static bool is_in_folder(const struct bag_change_plan *plan, const char *text)
{
    const struct bag_name *name = bag_models_find(plan->models, text);
    for (size_t i = 0; name && i < name->count; i++) {
        const struct bag_version *version = name->versions[i];
        const struct bag_source *source = bag_version_source(version);
        if ((version->source || bag_version_next(version)->model) && !(source && source->is_named))
            return true;
    }
    return false;
}

/* Returns the facts about a collection that is served, or would be. */
static struct bag_collection_plan describe(const struct bag_change_plan *plan,
                                           const struct bag_version *version, bool lacks_table)
{
    const struct bag_source *source = bag_version_source(version);
    struct bag_collection_plan collection = {
        .kind = plan->kind,
        .is_published = !version->source,
        .was_ready = bag_listed_is_ready(&version->now),
        .is_requested = bag_control_find(plan->control, version->name->text) != NULL,
        .unloads_dependents = plan->control && plan->control->unload_dependents,
        .is_retried = version->name->is_retried,
        .is_named = source->is_named,
        .lacks_table = lacks_table,
        .takes_updates = plan->models->updates != NULL};
    for (size_t i = 0; !collection.has_folder_table && i < source->model->num_features; i++)
        collection.has_folder_table = is_in_folder(plan, source->model->features[i].model);
    return collection;
}

/* Makes a version UNAVAILABLE, or fails the change for it. */
static bool reject(const struct bag_change_plan *plan, struct bag_version *version,
                   enum bag_collection_action action, const struct bag_problem *why,
                   struct bag_problem *problem)
{
    if (action == BAG_COLLECTION_MARK_UNAVAILABLE)
        return bag_version_reject(version, why->text, false, problem);
    *problem = *why;
    if ((why->kind == BAG_ERROR_CONFIGURATION || why->kind == BAG_ERROR_FILE) &&
        plan->kind != BAG_CHANGE_START)
        problem->kind = BAG_ERROR_BAD_REQUEST;
    return false;
}

/* Rejects a version while the change is planned. If the change fails for a version that does not
 * serve, remembers why, so that a load which passes over it does not count it again. */
static bool reject_planned(struct bag_change_plan *plan, struct bag_version *version,
                           enum bag_collection_action action, const struct bag_problem *why,
                           struct bag_problem *problem)
{
    if (action == BAG_COLLECTION_FAIL && !bag_listed_is_ready(&version->now)) {
        plan->failed = version;
        note_bad(plan->models, version, bag_version_source(version), why->text);
    }
    return reject(plan, version, action, why, problem);
}

bool bag_change_plan_reject_collection(const struct bag_change_plan *plan,
                                       struct bag_version *version, const struct bag_problem *why,
                                       struct bag_problem *problem)
{
    const struct bag_collection_plan collection = describe(plan, version, false);
    return reject(plan, version, bag_plan_unloadable_collection(&collection, why->kind), why,
                  problem);
}

/* Makes the change one of this name, too, whose versions stay unless that is changed. */
static bool take_over(struct bag_change_plan *plan, struct bag_name *name,
                      struct bag_problem *problem)
{
    if (name->is_decided)
        return true;
    name->is_retried = false;
    name->is_kept = !bag_name_has_collection(name);
    name->next_desired = name->desired;
    keep_all(name);
    return include(plan, name, problem);
}

/* Returns whether the collection is over the tables that its features pool, which all serve. */
static bool has_same_tables(const struct bag_change_plan *plan, const struct bag_model *collection)
{
    const struct bag_feature_config *features = collection->source->model->features;
    for (size_t i = 0; i < collection->num_features; i++) {
        const struct bag_version *table = bag_change_plan_find_table(plan, &features[i]);
        if (table->source || bag_version_next(table)->model != collection->features[i].model)
            return false;
    }
    return true;
}

/* Opens the collection over its tables. If it turns out to be as published, that one stays. */
static bool open_collection(struct bag_change_plan *plan, struct bag_version *version,
                            const struct bag_source *const *tables, struct bag_problem *problem)
{
    struct bag_model *now = version->now.model;
    bool is_default = bag_version_next(version)->is_default;
    struct bag_problem why;
    if (!version->source || version->source->num_features) {
        /* The tables are others than before, or than in the first attempt; the configuration is the
         * same. */
        struct bag_source *renewed = renew(bag_version_source(version), problem);
        if (!renewed || !take_over(plan, version->name, problem)) {
            bag_source_free(renewed);
            return false;
        }
        bag_listed_clear(&version->next);
        bag_source_free(version->source);
        version->next.is_default = is_default;
        version->source = renewed;
    }
    if (!bag_source_open_collection(version->source, tables, &why)) {
        const struct bag_collection_plan collection = describe(plan, version, false);
        return reject_planned(plan, version, bag_plan_unopened_collection(&collection, why.kind),
                              &why, problem);
    }
    if (!bag_listed_is_ready(&version->now) || !is_of(now, version->source) ||
        !has_same_tables(plan, now))
        return true;
    bag_source_free(version->source);
    version->source = NULL;
    return set_next(version, now, is_default, NULL, problem);
}

/* Unloads a version of a collection together with a table that it needs, or all versions if none
 * of the table's is left. Returns false and sets *problem if that is not possible. */
static bool unload_dependent(struct bag_change_plan *plan, struct bag_version *version,
                             const struct bag_feature_config *feature, struct bag_problem *problem)
{
    struct bag_name *name = version->name;
    const struct bag_name *table = bag_models_find(plan->models, feature->model);
    struct bag_control_item item = {.unload = true};
    if (!take_over(plan, name, problem))
        return false;
    if (!feature->version || !table || table->next_desired.is_unloaded)
        name->next_desired.is_unloaded = true;
    snprintf(item.version, sizeof item.version, "%s", version->now.model->version);
    if (!name->next_desired.is_unloaded && !bag_desired_state_apply(&name->next_desired, &item, 0))
        return bag_problem_set(problem, BAG_ERROR_CONFLICT, BAG_TOO_MANY_UNLOADED, name->text,
                               BAG_MAX_UNLOADED_VERSIONS);
    return bag_version_reject(version, "unloaded", true, problem);
}

/* Decides about a collection of which a feature has no table, for the reason in *why. */
static bool lack_table(struct bag_change_plan *plan, struct bag_version *version,
                       const struct bag_feature_config *feature, const struct bag_problem *why,
                       struct bag_problem *problem)
{
    const struct bag_collection_plan collection = describe(plan, version, true);
    const char *name = version->name->text;
    const char *advice = plan->control ? "; unload that one in the same group, or send "
                                         "\"parameters\": {\"unload_dependents\": true}"
                                       : ", which is to stay";
    enum bag_collection_action action = bag_plan_collection(&collection);
    switch (action) {
    case BAG_COLLECTION_UNLOAD:
        return unload_dependent(plan, version, feature, problem);
    case BAG_COLLECTION_REFUSE_UNLOAD:
        if (feature->version)
            return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                                   "model '%s' version %llu is used by '%s' version %s, which pins "
                                   "it%s",
                                   feature->model, (unsigned long long)feature->version, name,
                                   version->now.model->version, advice);
        return bag_problem_set(problem, BAG_ERROR_CONFLICT, "model '%s' is used by '%s'%s",
                               feature->model, name, advice);
    case BAG_COLLECTION_KEEP:
    case BAG_COLLECTION_LOAD:
    case BAG_COLLECTION_MARK_UNAVAILABLE:
    case BAG_COLLECTION_FAIL:
        break;
    }
    return reject_planned(plan, version, action, why, problem);
}

/* Finds the version that a feature will pool. If the feature pins one that nothing else serves,
 * makes that one serve as well. Returns false and sets *why if there is none. */
static bool take_table(struct bag_change_plan *plan, struct bag_version *collection,
                       const struct bag_feature_config *feature, const struct bag_source **table,
                       struct bag_problem *why)
{
    const struct bag_source *source = bag_version_source(collection);
    const struct bag_version *version = bag_change_plan_find_table(plan, feature);
    struct pinned pinned;
    bool is_changing;
    if (!version && feature->version) {
        if (!find_pinned(plan, source, feature, &pinned, &is_changing, why) ||
            !take_over(plan, pinned.version->name, why))
            return false;
        bag_listed_clear(&pinned.version->next);
        if (!take_action(pinned.version, &pinned.step, false, why))
            return false;
        version = pinned.version;
    }
    if (!version || is_collection(version))
        return bag_problem_set(why, BAG_ERROR_CONFLICT,
                               "model '%s': model '%s', whose table it needs, is not served%s",
                               collection->name->text, feature->model,
                               version ? " in a version that is a table" : "");
    *table = bag_version_source(version);
    return true;
}

/* Resolves one collection. `tables` has space for the sources of its features' tables. */
static bool resolve(struct bag_change_plan *plan, struct bag_version *version,
                    const struct bag_source **tables, struct bag_problem *problem)
{
    const struct bag_model_config *config = bag_version_source(version)->model;
    struct bag_problem why;
    for (size_t i = 0; i < config->num_features; i++) {
        if (!take_table(plan, version, &config->features[i], &tables[i], &why))
            return lack_table(plan, version, &config->features[i], &why, problem);
    }
    const struct bag_collection_plan collection = {
        .kind = plan->kind,
        .is_published = !version->source,
        .has_same_tables =
            !version->source && has_same_tables(plan, bag_version_next(version)->model)};
    return bag_plan_collection(&collection) == BAG_COLLECTION_KEEP ||
           open_collection(plan, version, tables, problem);
}

/* Finds the tables of each collection, and opens those again whose tables are others than before,
 * so that an answer never mixes versions. */
static bool resolve_collections(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_name **names = bag_models_in_order(plan->models);
    bool ok = names || bag_problem_no_memory(problem);
    for (size_t i = 0; ok && i < plan->models->num_names; i++) {
        for (size_t j = 0; ok && j < names[i]->count; j++) {
            struct bag_version *version = names[i]->versions[j];
            if (!is_collection(version))
                continue;
            const struct bag_source **tables =
                calloc(bag_version_source(version)->model->num_features, sizeof *tables);
            ok = tables ? resolve(plan, version, tables, problem) : bag_problem_no_memory(problem);
            free(tables);
        }
    }
    free(names);
    return ok;
}

/* Marks the versions that collections of the next snapshot pin. Returns the number of versions that
 * serve only because of a pin. */
static size_t mark_pins(struct bag_change_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->models->num_names; i++) {
        for (size_t j = 0; j < plan->models->names[i]->count; j++) {
            struct bag_version *version = plan->models->names[i]->versions[j];
            version->is_needed = false;
            count += bag_version_next(version)->is_pinned;
        }
    }
    for (size_t i = 0; count && i < plan->models->num_names; i++) {
        for (size_t j = 0; j < plan->models->names[i]->count; j++) {
            const struct bag_version *version = plan->models->names[i]->versions[j];
            const struct bag_model_config *config =
                is_collection(version) ? bag_version_source(version)->model : NULL;
            for (size_t k = 0; config && k < config->num_features; k++) {
                struct bag_version *table = bag_change_plan_find_table(plan, &config->features[k]);
                if (table && config->features[k].version)
                    table->is_needed = true;
            }
        }
    }
    return count;
}

/* Removes versions that served for collections which pinned them and are no more. */
static bool drop_pins(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool ok = true;
    size_t count = mark_pins(plan);
    for (size_t i = 0; ok && count && i < plan->models->num_names; i++) {
        struct bag_name *name = plan->models->names[i];
        for (size_t j = 0; ok && j < name->count; j++) {
            struct bag_version *version = name->versions[j];
            if (!bag_version_next(version)->is_pinned || version->is_needed)
                continue;
            ok = take_over(plan, name, problem);
            if (ok)
                undo(version);
        }
    }
    return ok;
}

/* ---- tables that are shared ------------------------------------------------------------------ */

static int compare_shared(const void *a, const void *b)
{
    const struct bag_shared_table *x = a, *y = b;
    return (x->fingerprint > y->fingerprint) - (x->fingerprint < y->fingerprint);
}

/* Adds the model's table to those in memory. Returns false without memory. */
static bool add_shared(struct bag_change_plan *plan, const struct bag_model *model)
{
    if (!model || !model->stored)
        return true;
    if (!BAG_GROW(plan->shared, plan->num_shared))
        return false;
    plan->shared[plan->num_shared++] =
        (struct bag_shared_table){.fingerprint = model->stored->fingerprint, .model = model};
    return true;
}

/* Lists all tables in memory by their files: of models that serve, are retained, or were made. */
static bool list_shared(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool ok = true;
    plan->num_shared = 0;
    for (size_t i = 0; ok && i < plan->models->num_names; i++) {
        const struct bag_name *name = plan->models->names[i];
        for (size_t j = 0; ok && j < name->count; j++)
            ok = add_shared(plan, name->versions[j]->now.model) &&
                 add_shared(plan, name->versions[j]->made);
        for (size_t j = 0; ok && j < name->num_retained; j++)
            ok = add_shared(plan, name->retained[j].model);
    }
    if (plan->num_shared)
        qsort(plan->shared, plan->num_shared, sizeof *plan->shared, compare_shared);
    return ok || bag_problem_no_memory(problem);
}

/* Returns the table in memory that was read from these files and has all updates, or NULL. */
static struct bag_stored_table *find_shared(const struct bag_change_plan *plan,
                                            const struct bag_source *source)
{
    uint64_t fingerprint = source->table_fingerprint;
    size_t low = 0, high = plan->num_shared;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (plan->shared[middle].fingerprint < fingerprint)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < plan->num_shared && plan->shared[low].fingerprint == fingerprint; low++) {
        const struct bag_model *model = plan->shared[low].model;
        if (!bag_models_lack_updates(plan->models, model) &&
            !bag_source_was_written_over(model->source, source))
            return model->stored;
    }
    return NULL;
}

/* Finds the tables of the versions that are loaded which need not be read, and adds up the memory
 * of the others. */
static bool share_tables(struct bag_change_plan *plan, struct bag_problem *problem)
{
    plan->bytes = 0;
    if (plan->num_loads && !list_shared(plan, problem))
        return false;
    for (size_t i = 0; i < plan->num_loads; i++) {
        struct bag_version *version = plan->loads[i];
        uint64_t fingerprint = version->source->table_fingerprint;
        plan->bytes += bag_source_bytes(version->source);
        if (!fingerprint)
            continue;
        bool is_shared = version->stored != NULL;
        if (!is_shared && (version->stored = find_shared(plan, version->source))) {
            version->stored->holders++;
            is_shared = true;
        }
        for (size_t j = 0; !is_shared && j < i; j++)
            is_shared = plan->loads[j]->source->table_fingerprint == fingerprint;
        if (is_shared)
            plan->bytes -= bag_source_table_bytes(version->source);
    }
    return true;
}

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

bool bag_change_plan_uses(const struct bag_change_plan *plan, const struct bag_stored_table *stored)
{
    uintptr_t address = (uintptr_t)stored;
    return plan->num_used &&
           bsearch(&address, plan->used, plan->num_used, sizeof address, compare_addresses);
}

bool bag_change_plan_list_used(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool ok = true;
    plan->num_used = 0;
    for (size_t i = 0; i < plan->models->num_names; i++) {
        const struct bag_name *name = plan->models->names[i];
        for (size_t j = 0; ok && j < name->count; j++) {
            const struct bag_version *version = name->versions[j];
            const struct bag_model *model = bag_version_next(version)->model;
            const struct bag_stored_table *stored = version->stored ? version->stored
                                                    : model         ? model->stored
                                                                    : NULL;
            if (!stored)
                continue;
            ok = BAG_GROW(plan->used, plan->num_used);
            if (ok)
                plan->used[plan->num_used++] = (uintptr_t)stored;
        }
    }
    if (plan->num_used)
        qsort(plan->used, plan->num_used, sizeof *plan->used, compare_addresses);
    return ok || bag_problem_no_memory(problem);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static int compare_orders(const void *a, const void *b)
{
    const struct bag_name *x = *(struct bag_name *const *)a, *y = *(struct bag_name *const *)b;
    return (x->order > y->order) - (x->order < y->order);
}

/* Lists the versions that are loaded. */
static bool list_loads(struct bag_change_plan *plan, struct bag_problem *problem)
{
    plan->num_loads = 0;
    if (plan->num_names)
        qsort(plan->names, plan->num_names, sizeof(struct bag_name *), compare_orders);
    for (size_t i = 0; i < plan->num_names; i++) {
        for (size_t j = 0; j < plan->names[i]->count; j++) {
            struct bag_version *version = plan->names[i]->versions[j];
            if (!version->source)
                continue;
            if (!BAG_GROW(plan->loads, plan->num_loads))
                return bag_problem_no_memory(problem);
            plan->loads[plan->num_loads++] = version;
            if (plan->models->updates)
                version->oldest_through = find_oldest_through(plan->names[i]);
        }
    }
    return true;
}

bool bag_change_plan_complete(struct bag_change_plan *plan, struct bag_problem *problem)
{
    return resolve_collections(plan, problem) && drop_pins(plan, problem) &&
           list_loads(plan, problem) && share_tables(plan, problem) &&
           bag_change_plan_list_used(plan, problem);
}

void bag_change_plan_init(struct bag_change_plan *plan, struct bag_models *models,
                          enum bag_change_kind kind, const struct bag_control *control)
{
    *plan = (struct bag_change_plan){.models = models, .kind = kind, .control = control};
    /* Release retained versions that lack an update: a roll back reads their files again. */
    for (size_t i = 0; models->updates && i < models->num_names; i++) {
        struct bag_name *name = models->names[i];
        for (size_t j = name->num_retained; j-- > 0;) {
            if (bag_models_lack_updates(models, name->retained[j].model))
                bag_name_release(name, j);
        }
    }
}

void bag_change_plan_free(struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->num_names; i++) {
        struct bag_name *name = plan->names[i];
        for (size_t j = 0; j < name->count; j++) {
            struct bag_version *version = name->versions[j];
            undo(version);
            /* Files that were read in vain are found again. */
            if (version->made && version->now.model != version->made && !version->found) {
                version->found = version->made->source;
                version->made->source = NULL;
            }
            bag_model_release(version->made);
            version->made = NULL;
            version->is_announced = false;
            version->oldest_through = 0;
        }
        name->is_decided = name->is_retried = name->is_kept = false;
    }
    while (plan->num_unloaded_first > 0)
        bag_listed_clear(&plan->unloaded_first[--plan->num_unloaded_first].listed);
    free(plan->unloaded_first);
    free(plan->names);
    free(plan->loads);
    free(plan->shared);
    free(plan->used);
    *plan = (struct bag_change_plan){.models = plan->models};
}

bool bag_change_plan_changes(const struct bag_change_plan *plan)
{
    bool changes = false;
    for (size_t i = 0; !changes && i < plan->num_names; i++)
        changes = name_changes(plan->names[i]);
    return changes;
}

size_t bag_change_plan_count(const struct bag_change_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->num_names; i++) {
        for (size_t j = 0; j < plan->names[i]->count; j++)
            count += bag_version_will_serve(plan->names[i]->versions[j]);
    }
    return count;
}
