/* Which tables the collections of the next snapshot are over, and which of them are made anew; see
 * change.h. */
#include "change.h"

#include <stdlib.h>
#include <string.h>

static bool is_collection(const struct bag_change_entry *entry)
{
    const struct bag_source *source = bag_entry_serves(entry) ? bag_entry_source(entry) : NULL;
    return source && bag_source_is_collection(source);
}

/* ---- what cannot be served ------------------------------------------------------------------- */

/* A table that a published collection needs is not served any more. */
static bool lose_table(struct bag_change_plan *plan, struct bag_change_entry *entry,
                       const char *table, struct bag_problem *problem)
{
    const char *name = bag_entry_name(entry);
    if (plan->control && !plan->control->unload_dependents)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' is used by '%s'; unload that one in the same group, or "
                               "send \"parameters\": {\"unload_dependents\": true}",
                               table, name);
    if (!plan->control)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' is used by '%s', which is to stay", table, name);
    struct bag_desired_state *desired = bag_change_desired_state(plan, name);
    if (!desired)
        return bag_problem_no_memory(problem);
    desired->is_unloaded = true;
    return bag_change_reject(entry, "unloaded", true, problem);
}

/* Whether a version in the folder of models is served of the name, or cannot be. */
static bool is_in_folder(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_source *source = bag_entry_source(&plan->entries[i]);
        if (strcmp(bag_entry_name(&plan->entries[i]), name) == 0 && !(source && source->is_named))
            return true;
    }
    return false;
}

bool bag_change_goes_without(const struct bag_change_plan *plan,
                             const struct bag_change_entry *entry, const struct bag_problem *why)
{
    const struct bag_source *source = bag_entry_source(entry);
    bool found = false;
    if (entry->is_retried)
        return why->kind != BAG_ERROR_NO_MEMORY;
    bool reads_all = plan->kind == BAG_CHANGE_START || plan->kind == BAG_CHANGE_CONFIGURATION;
    if (!reads_all || !source->is_named || why->kind == BAG_ERROR_FILE ||
        why->kind == BAG_ERROR_NO_MEMORY ||
        bag_change_find_ready(plan, bag_entry_name(entry), bag_entry_version(entry)))
        return false;
    for (size_t i = 0; i < source->model->num_features; i++)
        found |= is_in_folder(plan, source->model->features[i].model);
    return found;
}

/* A collection that cannot be made: a change fails for it, unless it was only found. */
static bool reject_collection(const struct bag_change_plan *plan, struct bag_change_entry *entry,
                              bool was_published, const struct bag_problem *why,
                              struct bag_problem *problem)
{
    bool is_asked = bag_control_find(plan->control, bag_entry_name(entry)) != NULL;
    bool is_polled = plan->kind == BAG_CHANGE_POLL;
    bool is_found =
        !was_published && !is_asked && (is_polled || !bag_entry_source(entry)->is_named);
    if (is_found || bag_change_goes_without(plan, entry, why))
        return bag_change_reject(entry, why->text, false, problem);
    *problem = *why;
    if (problem->kind == BAG_ERROR_CONFIGURATION || problem->kind == BAG_ERROR_FILE)
        problem->kind = plan->kind == BAG_CHANGE_START ? problem->kind : BAG_ERROR_BAD_REQUEST;
    return false;
}

/* ---- what is made ---------------------------------------------------------------------------- */

/* Makes the source of a collection that is over other tables than it was: what it says is the same.
 */
static bool renew_source(struct bag_change_entry *entry, struct bag_problem *problem)
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

/* Whether the collection is over the default versions of the models whose tables it pools. */
static bool is_over(const struct bag_change_plan *plan, const struct bag_model *collection)
{
    const struct bag_feature_config *features = collection->source->model->features;
    for (size_t i = 0; i < collection->num_features; i++) {
        if (bag_change_find_served(plan, features[i].model)->model != collection->features[i].model)
            return false;
    }
    return true;
}

/* Opens the collection over its tables. One that turns out to be as it is published stays. */
static bool make_collection(const struct bag_change_plan *plan, struct bag_change_entry *entry,
                            const struct bag_source *const *tables, struct bag_problem *problem)
{
    if (!entry->source && !renew_source(entry, problem))
        return false;
    struct bag_model *published =
        bag_change_find_ready(plan, bag_entry_name(entry), bag_entry_version(entry));
    struct bag_problem why;
    if (!bag_source_open_collection(entry->source, tables, &why))
        return reject_collection(plan, entry, published != NULL, &why, problem);
    if (!published || !published->source ||
        published->source->fingerprint != entry->source->fingerprint || !is_over(plan, published))
        return true;
    bag_source_free(entry->source);
    entry->source = NULL;
    entry->model = bag_model_retain(published);
    return true;
}

/* ---- all collections ------------------------------------------------------------------------- */

/* A table that the collection needs is not served, or only a collection (`is_there`). */
static bool lack_table(struct bag_change_plan *plan, struct bag_change_entry *entry,
                       const char *table, bool is_there, struct bag_problem *problem)
{
    struct bag_problem why;
    if (entry->model)
        return lose_table(plan, entry, table, problem);
    bag_problem_set(&why, BAG_ERROR_CONFLICT,
                    "model '%s': model '%s', whose table it needs, is not served%s",
                    bag_entry_name(entry), table, is_there ? " in a version that is a table" : "");
    return reject_collection(plan, entry, false, &why, problem);
}

/* `tables` has room for the sources of its features' tables. */
static bool resolve(struct bag_change_plan *plan, struct bag_change_entry *entry,
                    const struct bag_source **tables, struct bag_problem *problem)
{
    const struct bag_model_config *config = bag_entry_source(entry)->model;
    for (size_t i = 0; i < config->num_features; i++) {
        const char *name = config->features[i].model;
        const struct bag_change_entry *table = bag_change_find_served(plan, name);
        if (!table || !bag_entry_serves(table) || is_collection(table))
            return lack_table(plan, entry, name, table != NULL, problem);
        tables[i] = bag_entry_source(table);
    }
    return (entry->model && is_over(plan, entry->model)) ||
           make_collection(plan, entry, tables, problem);
}

bool bag_change_resolve_collections(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < plan->count; i++) {
        struct bag_change_entry *entry = &plan->entries[i];
        if (!is_collection(entry))
            continue;
        const struct bag_source **tables =
            calloc(bag_entry_source(entry)->model->num_features, sizeof *tables);
        ok = tables ? resolve(plan, entry, tables, problem) : bag_problem_no_memory(problem);
        free(tables);
    }
    return ok;
}
