/* Planning the next snapshot; see plan.h. */
#include "plan.h"

#include "proto/arena.h"
#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- entries --------------------------------------------------------------------------------- */

struct bag_entry *bag_change_plan_find(const struct bag_change_plan *plan, const char *name,
                                       const char *version)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (strcmp(bag_entry_name(&plan->entries[i]), name) == 0 &&
            strcmp(bag_entry_version(&plan->entries[i]), version) == 0)
            return &plan->entries[i];
    }
    return NULL;
}

/* Adds an entry, which is valid until the next one is added. Returns NULL without memory. */
static struct bag_entry *add_entry(struct bag_change_plan *plan, struct bag_problem *problem)
{
    if (!BAG_GROW(plan->entries, plan->count)) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    plan->entries[plan->count] = (struct bag_entry){.same_as = SIZE_MAX};
    return &plan->entries[plan->count++];
}

/* Adds a model with a remark, from which names of folders are removed; NULL: no remark. */
static bool add_model(struct bag_change_plan *plan, struct bag_model *model, bool is_default,
                      const char *remark, struct bag_problem *problem)
{
    struct bag_entry *entry = add_entry(plan, problem);
    if (!entry)
        return false;
    entry->model = bag_model_retain(model);
    entry->is_default = is_default;
    if (remark && !(entry->remark = strdup(remark)))
        return bag_problem_no_memory(problem);
    if (remark)
        bag_text_hide_folders(entry->remark);
    return true;
}

static bool add_published(struct bag_change_plan *plan, const struct bag_listed *published,
                          struct bag_problem *problem)
{
    return add_model(plan, published->model, published->is_default, published->remark, problem);
}

/* Adds all that is published under the name. */
static bool add_all_published(struct bag_change_plan *plan, const char *name,
                              struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < plan->facts.num_published; i++) {
        if (strcmp(plan->facts.published[i].model->name, name) == 0)
            ok = add_published(plan, &plan->facts.published[i], problem);
    }
    return ok;
}

/* Makes an UNAVAILABLE model, of which the caller has the reference. Returns NULL and sets *problem
 * without memory. */
static struct bag_model *make_unavailable(const char *name, const char *version, const char *reason,
                                          bool is_unloaded, struct bag_problem *problem)
{
    struct bag_model *model = bag_model_without_table(name, version, BAG_MODEL_UNAVAILABLE, reason);
    if (model)
        model->is_unloaded = is_unloaded;
    else
        bag_problem_no_memory(problem);
    return model;
}

/* Adds a version that is UNAVAILABLE. A model that is published with the same reason stays. */
static bool add_unavailable(struct bag_change_plan *plan, const char *name, const char *version,
                            const char *reason, bool is_unloaded, struct bag_problem *problem)
{
    const struct bag_listed *published = bag_facts_find(&plan->facts, name, version);
    const struct bag_model *before = published ? published->model : NULL;
    if (before && before->state == BAG_MODEL_UNAVAILABLE && before->is_unloaded == is_unloaded &&
        strcmp(before->cause, reason) == 0)
        return add_model(plan, published->model, false, NULL, problem);
    struct bag_model *model = make_unavailable(name, version, reason, is_unloaded, problem);
    bool ok = model && add_model(plan, model, false, NULL, problem);
    bag_model_release(model);
    return ok;
}

bool bag_entry_reject(struct bag_entry *entry, const char *reason, bool is_unloaded,
                      struct bag_problem *problem)
{
    struct bag_model *model = make_unavailable(bag_entry_name(entry), bag_entry_version(entry),
                                               reason, is_unloaded, problem);
    if (!model)
        return false;
    bag_source_free(entry->source);
    bag_model_release(entry->model);
    free(entry->remark);
    entry->source = NULL;
    entry->model = model;
    entry->remark = NULL;
    entry->is_default = false;
    return true;
}

/* ---- actions become entries ------------------------------------------------------------------ */

/* Adds an entry that will be loaded, and takes its source out of the catalog. A trial only notes
 * that there is something to load. */
static bool load(struct bag_change_plan *plan, const struct bag_version_plan *version,
                 bool is_default, struct bag_problem *problem)
{
    plan->loads = true;
    if (plan->is_trial)
        return true;
    struct bag_entry *entry = add_entry(plan, problem);
    if (!entry)
        return false;
    entry->source = *version->source;
    entry->is_default = is_default;
    *version->source = NULL;
    return true;
}

/* Adds the version that serves. If its files have become bad, its remark says so. */
static bool keep(struct bag_change_plan *plan, const struct bag_version_plan *version,
                 bool is_default, struct bag_problem *problem)
{
    const struct bag_source *source = version->source ? *version->source : NULL;
    char remark[sizeof problem->text + 128];
    bool is_bad = source && source->model->reason;
    if (is_bad)
        snprintf(remark, sizeof remark, BAG_LOADED_BEFORE "%s", source->model->reason);
    return add_model(plan, version->ready, is_default, is_bad ? remark : NULL, problem);
}

/* Adds the entry of one version, as its action says. */
static bool take_action(struct bag_change_plan *plan, const struct bag_model_facts *of_model,
                        size_t i, struct bag_problem *problem)
{
    const struct bag_version_plan *version = &of_model->plan.versions[i];
    bool is_default = i == of_model->plan.preferred;
    switch (version->action) {
    case BAG_ACTION_NONE:
        return true;
    case BAG_ACTION_KEEP:
        return keep(plan, version, is_default, problem);
    case BAG_ACTION_RESTORE:
        return add_model(plan, version->retained, is_default, NULL, problem);
    case BAG_ACTION_LOAD:
        return load(plan, version, is_default, problem);
    case BAG_ACTION_MARK_UNAVAILABLE:
        break;
    }
    const struct bag_model_config *config = (*version->source)->model;
    return add_unavailable(plan, of_model->name, config->version, config->reason, false, problem);
}

/* Adds the versions of the actions, and those that were served, or listed as unloaded, until they
 * are loaded again. */
static bool take_actions(struct bag_change_plan *plan, const struct bag_model_facts *of_model,
                         struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < of_model->plan.count; i++)
        ok = take_action(plan, of_model, i, problem);
    for (size_t i = 0; ok && i < plan->facts.num_published; i++) {
        const struct bag_model *model = plan->facts.published[i].model;
        if (strcmp(model->name, of_model->name) == 0 &&
            bag_desired_state_unloads(of_model->plan.desired, model->version_number) &&
            !bag_change_plan_find(plan, model->name, model->version))
            ok = add_unavailable(plan, model->name, model->version, "unloaded", true, problem);
    }
    return ok;
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
static void set_error(const struct bag_model_facts *of_model, const char *version, const char *why)
{
    struct bag_plan_error *error = &of_model->facts->models->error;
    snprintf(error->name, sizeof error->name, "%s", of_model->name);
    snprintf(error->version, sizeof error->version, "%s", version);
    bag_problem_set(&error->problem, BAG_ERROR_FILE, "%s", why);
}

/* Sets the problem of a request for a version, or for a model, that is bad, or has no files. */
static bool fail_bad(const struct bag_model_facts *of_model, struct bag_problem *problem)
{
    const struct bag_facts *facts = of_model->facts;
    const struct bag_control_item *item = of_model->plan.item;
    size_t failed = of_model->plan.failed_version;
    const struct bag_source *source =
        failed == SIZE_MAX ? NULL : *of_model->plan.versions[failed].source;
    const char *reason = source ? source->model->reason : "there are no files of it any more";
    char start[160];
    int length = snprintf(start, sizeof start, "model '%s'", item->name);
    if (source)
        set_error(of_model, source->model->version, reason);
    for (size_t i = 0; !source && i < facts->num_published; i++) {
        const struct bag_model *model = facts->published[i].model;
        if (facts->published[i].is_default && strcmp(model->name, of_model->name) == 0)
            set_error(of_model, model->version, "they are not there any more");
    }
    /* The reason may begin with the model's name. */
    if (length > 0 && strncmp(reason, start, (size_t)length) == 0)
        reason += length + strspn(reason + length, ":, ");
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "model '%s'%s%s cannot be served: %s",
                           item->name, *item->version ? " version " : "", item->version, reason);
}

/* Sets *problem to why the change cannot be planned. Returns false. The outcome is neither ACTIONS
 * nor UNCHANGED. */
static bool fail(const struct bag_model_facts *of_model, enum bag_plan_outcome outcome,
                 struct bag_problem *problem)
{
    const struct bag_model_plan *plan = &of_model->plan;
    const char *name = of_model->name, *version = plan->item ? plan->item->version : "";
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
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s': %d versions are unloaded one by one already; unload "
                               "the model, and load what is to be served",
                               name, BAG_MAX_UNLOADED_VERSIONS);
    case BAG_PLAN_NAMED_BAD:
        return bag_problem_set(problem, BAG_ERROR_FILE, "%s",
                               (*plan->versions[plan->failed_version].source)->model->reason);
    case BAG_PLAN_BAD:
    case BAG_PLAN_ACTIONS:
    case BAG_PLAN_UNCHANGED:
        break;
    }
    return fail_bad(of_model, problem);
}

/* ---- one model ------------------------------------------------------------------------------- */

/* Adds the versions of a model that the change is about, once in a plan. */
static bool add_versions(struct bag_change_plan *plan, const char *name,
                         struct bag_problem *problem)
{
    struct bag_record *record = bag_record_make(plan->facts.models, name);
    struct bag_model_facts of_model;
    size_t first = plan->count;
    if (!record)
        return bag_problem_no_memory(problem);
    if (record->planned_by == plan->facts.plan)
        return true;
    record->planned_by = plan->facts.plan;
    bool ok = bag_facts_gather_model(&plan->facts, name, &of_model, problem);
    if (ok) {
        enum bag_plan_outcome outcome = bag_plan_model(&of_model.plan);
        ok = of_model.lacks_memory           ? bag_problem_no_memory(problem)
             : outcome == BAG_PLAN_ACTIONS   ? take_actions(plan, &of_model, problem)
             : outcome == BAG_PLAN_UNCHANGED ? add_all_published(plan, name, problem)
                                             : fail(&of_model, outcome, problem);
    }
    free(of_model.plan.versions);
    if (!ok || !plan->facts.models->updates || plan->is_trial)
        return ok;
    uint64_t oldest_through = bag_facts_oldest_through(&plan->facts, name);
    for (size_t i = first; i < plan->count; i++)
        plan->entries[i].oldest_through = oldest_through;
    return true;
}

/* ---- all models ------------------------------------------------------------------------------ */

/* Compares a name with an element of a sorted list of names, for bsearch(). */
static int compare_target(const void *name, const void *listed)
{
    return strcmp(name, *(const char *const *)listed);
}

/* Returns whether the change is about the model. */
static bool is_target(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_model_names *only = plan->only;
    if (plan->facts.control)
        return bag_control_find(plan->facts.control, name) != NULL;
    return !only || bsearch(name, only->names, only->count, sizeof *only->names, compare_target);
}

/* Returns whether no version of the model answers, and no request unloaded it. */
static bool is_lost(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->facts.num_published; i++) {
        const struct bag_model *model = plan->facts.published[i].model;
        if (strcmp(model->name, name) == 0 &&
            (model->state != BAG_MODEL_UNAVAILABLE || model->is_unloaded))
            return false;
    }
    return true;
}

/* Returns whether a model that the request does not name is tried again. It is a collection of
 * which no version answers, and the request loads a table that it needs. */
static bool is_retried(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_control *control = plan->facts.control;
    size_t count = 0;
    bool found = false;
    const struct bag_named_source *named =
        control && is_lost(plan, name) ? bag_catalog_find(plan->facts.catalog, name, &count) : NULL;
    for (size_t i = 0; i < count; i++) {
        const struct bag_source *source = *named[i].place;
        for (size_t j = 0; source && j < source->model->num_features; j++) {
            const struct bag_control_item *item =
                bag_control_find(control, source->model->features[j].model);
            found |= item && !item->unload;
        }
    }
    return found;
}

/* Adds what is published of a model that the change is not about. */
static bool add_other(struct bag_change_plan *plan, const struct bag_listed *published,
                      struct bag_problem *problem)
{
    size_t first = plan->count;
    if (!is_retried(plan, published->model->name))
        return add_published(plan, published, problem);
    bool ok = add_versions(plan, published->model->name, problem);
    for (size_t i = first; i < plan->count; i++)
        plan->entries[i].is_retried = true;
    return ok;
}

/* Adds the models in the published order, then those that are new in the catalog, then those that
 * are requested and not found. */
static bool add_all(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_facts *facts = &plan->facts;
    bool ok = true;
    for (size_t i = 0; ok && i < facts->num_published; i++) {
        const char *name = facts->published[i].model->name;
        ok = is_target(plan, name) ? add_versions(plan, name, problem)
                                   : add_other(plan, &facts->published[i], problem);
    }
    for (size_t i = 0; ok && i < facts->catalog->count; i++) {
        const struct bag_source *source = facts->catalog->sources[i];
        char name[129];
        if (!source || !is_target(plan, source->model->name))
            continue;
        snprintf(name, sizeof name, "%s", source->model->name); /* the plan takes the source */
        ok = add_versions(plan, name, problem);
    }
    for (size_t i = 0; ok && facts->control && i < facts->control->count; i++)
        ok = add_versions(plan, facts->control->items[i].name, problem);
    return ok;
}

/* ---- default versions ------------------------------------------------------------------------ */

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, bag_entry_name(*(struct bag_entry *const *)entry));
}

static int compare_names(const void *a, const void *b)
{
    return compare_name(bag_entry_name(*(struct bag_entry *const *)a), b);
}

/* Sorts the entries that are planned as default versions by name, so that collections find their
 * tables. Entries may not be added any more, as the list points to them. */
static bool list_served(struct bag_change_plan *plan, struct bag_problem *problem)
{
    plan->served = calloc(plan->count + 1, sizeof(struct bag_entry *));
    for (size_t i = 0; plan->served && i < plan->count; i++) {
        if (plan->entries[i].is_default && bag_entry_serves(&plan->entries[i]))
            plan->served[plan->num_served++] = &plan->entries[i];
    }
    if (plan->num_served)
        qsort(plan->served, plan->num_served, sizeof(struct bag_entry *), compare_names);
    return plan->served || bag_problem_no_memory(problem);
}

/* Returns the entry that was planned as the default version of the name, or NULL. It may have been
 * rejected since. */
static struct bag_entry *find_planned(const struct bag_change_plan *plan, const char *name)
{
    struct bag_entry **found = plan->num_served ? bsearch(name, plan->served, plan->num_served,
                                                          sizeof *found, compare_name)
                                                : NULL;
    return found ? *found : NULL;
}

struct bag_entry *bag_change_plan_find_default(const struct bag_change_plan *plan, const char *name)
{
    struct bag_entry *entry = find_planned(plan, name);
    return entry && bag_entry_serves(entry) ? entry : NULL;
}

/* ---- collections ----------------------------------------------------------------------------- */

/* Returns whether the entry will serve as a collection. */
static bool is_collection(const struct bag_entry *entry)
{
    const struct bag_source *source = bag_entry_serves(entry) ? bag_entry_source(entry) : NULL;
    return source && bag_source_is_collection(source);
}

/* Returns whether a version of the name is in the folder of models, also if it cannot be served. */
static bool is_in_folder(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_source *source = bag_entry_source(&plan->entries[i]);
        if (strcmp(bag_entry_name(&plan->entries[i]), name) == 0 && !(source && source->is_named))
            return true;
    }
    return false;
}

/* Returns the facts about a collection that is served, or would be. */
static struct bag_collection_plan describe(const struct bag_change_plan *plan,
                                           const struct bag_entry *entry, bool lacks_table)
{
    const struct bag_facts *facts = &plan->facts;
    const struct bag_source *source = bag_entry_source(entry);
    const char *name = bag_entry_name(entry);
    struct bag_collection_plan collection = {
        .kind = facts->kind,
        .is_published = entry->model != NULL,
        .was_ready = bag_facts_find_ready(facts, name, bag_entry_version(entry)) != NULL,
        .is_requested = bag_control_find(facts->control, name) != NULL,
        .unloads_dependents = facts->control && facts->control->unload_dependents,
        .is_retried = entry->is_retried,
        .is_named = source->is_named,
        .lacks_table = lacks_table,
        .takes_updates = facts->models->updates != NULL};
    for (size_t i = 0; !collection.has_folder_table && i < source->model->num_features; i++)
        collection.has_folder_table = is_in_folder(plan, source->model->features[i].model);
    return collection;
}

/* Makes the entry UNAVAILABLE, or fails the change for it. */
static bool reject(const struct bag_change_plan *plan, struct bag_entry *entry,
                   enum bag_collection_action action, const struct bag_problem *why,
                   struct bag_problem *problem)
{
    if (action == BAG_COLLECTION_MARK_UNAVAILABLE)
        return bag_entry_reject(entry, why->text, false, problem);
    *problem = *why;
    if ((why->kind == BAG_ERROR_CONFIGURATION || why->kind == BAG_ERROR_FILE) &&
        plan->facts.kind != BAG_CHANGE_START)
        problem->kind = BAG_ERROR_BAD_REQUEST;
    return false;
}

bool bag_change_plan_reject_collection(const struct bag_change_plan *plan, struct bag_entry *entry,
                                       const struct bag_problem *why, struct bag_problem *problem)
{
    const struct bag_collection_plan collection = describe(plan, entry, false);
    return reject(plan, entry, bag_plan_unloadable_collection(&collection, why->kind), why,
                  problem);
}

/* Makes the source of a collection whose tables are others than before. Its configuration is the
 * same. */
static bool renew_source(struct bag_entry *entry, struct bag_problem *problem)
{
    struct bag_model_config copy;
    bool is_named = entry->model->source->is_named;
    if (!bag_model_config_copy(&copy, entry->model->source->model))
        return bag_problem_no_memory(problem);
    entry->source = bag_source_make(&copy, is_named);
    if (!entry->source) {
        bag_model_config_free(&copy);
        return bag_problem_no_memory(problem);
    }
    bag_model_release(entry->model);
    entry->model = NULL;
    return true;
}

/* Returns whether the collection is over the default versions of the models whose tables it pools,
 * which all serve. */
static bool has_same_tables(const struct bag_change_plan *plan, const struct bag_model *collection)
{
    const struct bag_feature_config *features = collection->source->model->features;
    for (size_t i = 0; i < collection->num_features; i++) {
        if (find_planned(plan, features[i].model)->model != collection->features[i].model)
            return false;
    }
    return true;
}

/* Opens the collection over its tables. If it turns out to be as published, that one stays. */
static bool open_collection(const struct bag_change_plan *plan, struct bag_entry *entry,
                            const struct bag_source *const *tables, struct bag_problem *problem)
{
    if (!entry->source && !renew_source(entry, problem))
        return false;
    struct bag_model *published =
        bag_facts_find_ready(&plan->facts, bag_entry_name(entry), bag_entry_version(entry));
    struct bag_problem why;
    if (!bag_source_open_collection(entry->source, tables, &why)) {
        const struct bag_collection_plan collection = describe(plan, entry, false);
        return reject(plan, entry, bag_plan_unopened_collection(&collection, why.kind), &why,
                      problem);
    }
    if (!published || !published->source ||
        published->source->fingerprint != entry->source->fingerprint ||
        !has_same_tables(plan, published))
        return true;
    bag_source_free(entry->source);
    entry->source = NULL;
    entry->model = bag_model_retain(published);
    return true;
}

/* Decides about a collection that needs a table which is not served, or only as a collection. */
static bool lack_table(const struct bag_change_plan *plan, struct bag_entry *entry,
                       const char *table, bool is_no_table, struct bag_problem *problem)
{
    const struct bag_collection_plan collection = describe(plan, entry, true);
    const char *name = bag_entry_name(entry);
    enum bag_collection_action action = bag_plan_collection(&collection);
    struct bag_desired_state *desired;
    struct bag_problem why;
    switch (action) {
    case BAG_COLLECTION_UNLOAD:
        desired = bag_facts_desired_state(&plan->facts, name);
        if (!desired)
            return bag_problem_no_memory(problem);
        desired->is_unloaded = true;
        return bag_entry_reject(entry, "unloaded", true, problem);
    case BAG_COLLECTION_REFUSE_UNLOAD:
        return bag_problem_set(
            problem, BAG_ERROR_CONFLICT, "model '%s' is used by '%s'%s", table, name,
            plan->facts.control ? "; unload that one in the same group, or send \"parameters\": "
                                  "{\"unload_dependents\": true}"
                                : ", which is to stay");
    case BAG_COLLECTION_KEEP:
    case BAG_COLLECTION_LOAD:
    case BAG_COLLECTION_MARK_UNAVAILABLE:
    case BAG_COLLECTION_FAIL:
        break;
    }
    bag_problem_set(&why, BAG_ERROR_CONFLICT,
                    "model '%s': model '%s', whose table it needs, is not served%s", name, table,
                    is_no_table ? " in a version that is a table" : "");
    return reject(plan, entry, action, &why, problem);
}

/* Resolves one collection. `tables` has space for the sources of its features' tables. */
static bool resolve(const struct bag_change_plan *plan, struct bag_entry *entry,
                    const struct bag_source **tables, struct bag_problem *problem)
{
    const struct bag_model_config *config = bag_entry_source(entry)->model;
    for (size_t i = 0; i < config->num_features; i++) {
        const char *name = config->features[i].model;
        const struct bag_entry *table = find_planned(plan, name);
        if (!table || !bag_entry_serves(table) || is_collection(table))
            return lack_table(plan, entry, name, table != NULL, problem);
        tables[i] = bag_entry_source(table);
    }
    const struct bag_collection_plan collection = {
        .kind = plan->facts.kind,
        .is_published = entry->model != NULL,
        .has_same_tables = entry->model && has_same_tables(plan, entry->model)};
    return bag_plan_collection(&collection) == BAG_COLLECTION_KEEP ||
           open_collection(plan, entry, tables, problem);
}

/* Finds the tables of each collection, and opens those again whose tables are others than before,
 * so that an answer never mixes versions. */
static bool resolve_collections(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < plan->count; i++) {
        struct bag_entry *entry = &plan->entries[i];
        if (!is_collection(entry))
            continue;
        const struct bag_source **tables =
            calloc(bag_entry_source(entry)->model->num_features, sizeof *tables);
        ok = tables ? resolve(plan, entry, tables, problem) : bag_problem_no_memory(problem);
        free(tables);
    }
    return ok;
}

/* ---- tables that are shared ------------------------------------------------------------------ */

bool bag_change_plan_uses(const struct bag_change_plan *plan, const struct bag_stored_table *stored)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_entry *entry = &plan->entries[i];
        if (entry->stored == stored || (entry->model && entry->model->stored == stored))
            return true;
    }
    return false;
}

/* Returns the index of the first entry before `end` that reads these files, or SIZE_MAX. */
static size_t find_reading(const struct bag_change_plan *plan, size_t end, uint64_t fingerprint)
{
    for (size_t i = 0; i < end; i++) {
        const struct bag_source *source = plan->entries[i].source;
        if (source && source->table_fingerprint == fingerprint)
            return i;
    }
    return SIZE_MAX;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Frees everything that the plan owns, but not the plan itself. */
static void free_members(struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        bag_source_free(plan->entries[i].source);
        bag_model_release(plan->entries[i].model);
        bag_stored_table_drop(plan->entries[i].stored);
        free(plan->entries[i].remark);
    }
    free(plan->entries);
    free(plan->served);
    while (plan->num_unloaded_first > 0)
        bag_model_release(plan->unloaded_first[--plan->num_unloaded_first]);
    free(plan->unloaded_first);
    bag_facts_free(&plan->facts);
}

void bag_change_plan_free(struct bag_change_plan *plan)
{
    if (plan)
        free_members(plan);
    free(plan);
}

bool bag_change_plan_changes(const struct bag_change_plan *plan)
{
    bool changes = plan->count != plan->facts.num_published;
    for (size_t i = 0; !changes && i < plan->count; i++) {
        const struct bag_entry *entry = &plan->entries[i];
        const struct bag_listed *published = &plan->facts.published[i];
        bool is_same_remark = entry->remark && published->remark
                                  ? strcmp(entry->remark, published->remark) == 0
                                  : entry->remark == published->remark;
        changes = entry->model != published->model || entry->is_default != published->is_default ||
                  !is_same_remark;
    }
    return changes;
}

struct bag_change_plan *bag_change_plan_make(struct bag_models *models, enum bag_change_kind kind,
                                             struct bag_catalog *catalog,
                                             const struct bag_control *control,
                                             const struct bag_model_names *only,
                                             struct bag_problem *problem)
{
    struct bag_change_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    models->error = (struct bag_plan_error){0};
    plan->facts =
        (struct bag_facts){.models = models, .kind = kind, .control = control, .catalog = catalog};
    plan->only = only;
    if (bag_facts_gather(&plan->facts, NULL, problem) && add_all(plan, problem) &&
        list_served(plan, problem) && resolve_collections(plan, problem)) {
        /* Find the tables that need not be read, and add up the memory of the others. */
        for (size_t i = 0; i < plan->count; i++) {
            struct bag_entry *entry = &plan->entries[i];
            uint64_t fingerprint = entry->source ? entry->source->table_fingerprint : 0;
            plan->bytes += entry->source ? bag_source_bytes(entry->source) : 0;
            if (!fingerprint)
                continue;
            entry->stored = bag_facts_find_stored(&plan->facts, fingerprint);
            if (entry->stored)
                entry->stored->holders++;
            else
                entry->same_as = find_reading(plan, i, fingerprint);
            if (entry->stored || entry->same_as != SIZE_MAX)
                plan->bytes -= bag_source_table_bytes(entry->source);
        }
        return plan;
    }
    bag_change_plan_free(plan);
    return NULL;
}

bool bag_change_plan_is_needed(struct bag_models *models, struct bag_catalog *catalog,
                               const char *name)
{
    struct bag_problem ignored;
    struct bag_change_plan plan = {
        .facts = {.models = models, .kind = BAG_CHANGE_POLL, .catalog = catalog}, .is_trial = true};
    bool ok = bag_facts_gather(&plan.facts, name, &ignored) && add_versions(&plan, name, &ignored);
    bool is_needed = !ok || plan.loads || bag_change_plan_changes(&plan);
    free_members(&plan);
    return is_needed;
}

size_t bag_change_plan_memory_bytes(const struct bag_change_plan *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_model *model = plan->entries[i].model;
        bool is_shared = false;
        if (!model || !model->source)
            continue;
        bytes += bag_source_bytes(model->source);
        for (size_t j = 0; j < i && model->stored && model->stored->holders > 1; j++)
            is_shared |= plan->entries[j].model->stored == model->stored;
        if (is_shared)
            bytes -= bag_source_table_bytes(model->source);
    }
    return bytes;
}

size_t bag_change_plan_count(const struct bag_change_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++)
        count += bag_entry_serves(&plan->entries[i]);
    return count;
}
