/* What there is, what is published and what was asked for -> the versions of the next snapshot; see
 * change.h. */
#include "change.h"

#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- entries --------------------------------------------------------------------------------- */

struct bag_change_entry *bag_change_add_entry(struct bag_change_plan *plan,
                                              struct bag_problem *problem)
{
    if (plan->count == plan->room) {
        size_t room = plan->room ? 2 * plan->room : 64;
        struct bag_change_entry *entries = reallocarray(plan->entries, room, sizeof *entries);
        if (!entries) {
            bag_problem_no_memory(problem);
            return NULL;
        }
        plan->entries = entries;
        plan->room = room;
    }
    struct bag_change_entry *entry = &plan->entries[plan->count++];
    *entry = (struct bag_change_entry){0};
    return entry;
}

bool bag_change_add_model(struct bag_change_plan *plan, struct bag_model *model, bool is_default,
                          struct bag_problem *problem)
{
    struct bag_change_entry *entry = bag_change_add_entry(plan, problem);
    if (!entry)
        return false;
    model->holders++;
    entry->model = model;
    entry->is_default = is_default;
    return true;
}

bool bag_change_note(struct bag_change_entry *entry, const char *text, struct bag_problem *problem)
{
    free(entry->note);
    entry->note = strdup(text);
    return entry->note || bag_problem_no_memory(problem);
}

bool bag_change_add_published(struct bag_change_plan *plan, const struct bag_change_entry *prior,
                              struct bag_problem *problem)
{
    return bag_change_add_model(plan, prior->model, prior->is_default, problem) &&
           (!prior->note || bag_change_note(&plan->entries[plan->count - 1], prior->note, problem));
}

/* One that does not answer; the one that was published where it says the same. */
bool bag_change_add_placeholder(struct bag_change_plan *plan, const char *name, const char *version,
                                const char *reason, bool is_unloaded, struct bag_problem *problem)
{
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->state == BAG_MODEL_UNAVAILABLE && model->is_unloaded == is_unloaded &&
            strcmp(model->name, name) == 0 && strcmp(model->version, version) == 0 &&
            strcmp(model->cause, reason) == 0)
            return bag_change_add_model(plan, model, false, problem);
    }
    struct bag_model *model = bag_model_without_table(name, version, BAG_MODEL_UNAVAILABLE, reason);
    if (!model)
        return bag_problem_no_memory(problem);
    model->is_unloaded = is_unloaded;
    bool ok = bag_change_add_model(plan, model, false, problem);
    bag_model_drop(model);
    return ok;
}

struct bag_change_entry *bag_change_plan_find_default(const struct bag_change_plan *plan,
                                                      const char *name)
{
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_change_entry *entry = &plan->entries[i];
        if (entry->is_default && bag_entry_serves(entry) &&
            strcmp(bag_entry_name(entry), name) == 0)
            return entry;
    }
    return NULL;
}

/* ---- wishes ---------------------------------------------------------------------------------- */

/* The plan's own wish of a model, which is made where there is none; NULL without memory. */
struct bag_wish *bag_change_wish(struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->num_wishes; i++) {
        if (strcmp(plan->wishes[i].name, name) == 0)
            return &plan->wishes[i];
    }
    struct bag_wish *wishes = reallocarray(plan->wishes, plan->num_wishes + 1, sizeof *wishes);
    if (!wishes)
        return NULL;
    plan->wishes = wishes;
    struct bag_wish *wish = &wishes[plan->num_wishes++];
    *wish = (struct bag_wish){0};
    snprintf(wish->name, sizeof wish->name, "%s", name);
    return wish;
}

const struct bag_control_item *bag_change_item(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; plan->control && i < plan->control->count; i++) {
        if (strcmp(plan->control->items[i].name, name) == 0)
            return &plan->control->items[i];
    }
    return NULL;
}

static bool is_target(const struct bag_change_plan *plan, const char *name)
{
    return plan->control ? bag_change_item(plan, name) != NULL
                         : !plan->only || strcmp(plan->only, name) == 0;
}

/* ---- all models ------------------------------------------------------------------------------ */

static bool has_prior(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_snapshot *current =
        atomic_load_explicit(&plan->changer->registry->current, memory_order_relaxed);
    size_t count = 0;
    return current && bag_snapshot_versions(current, name, &count);
}

static bool is_repeated(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (strcmp(bag_entry_name(&plan->entries[i]), name) == 0)
            return true;
    }
    return false;
}

/* Whether the i-th that was published is the first of its name: others need not stand beside it. */
static bool is_first_prior(const struct bag_change_plan *plan, size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (strcmp(plan->prior[j].model->name, plan->prior[i].model->name) == 0)
            return false;
    }
    return true;
}

/* Whether a source that is there is the first of its name in the catalog. */
static bool is_first_source(const struct bag_change_plan *plan, size_t i)
{
    struct bag_source **place = &plan->catalog->sources[i];
    size_t count;
    return bag_change_find_sources(plan, (*place)->model->name, &count)->place == place;
}

/* In the order that was published, and what is new after it. */
static bool add_all(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (!is_target(plan, model->name))
            ok = bag_change_add_published(plan, &plan->prior[i], problem);
        else if (is_first_prior(plan, i))
            ok = bag_change_add_versions(plan, model->name, problem);
    }
    for (size_t i = 0; ok && i < plan->catalog->count; i++) {
        const struct bag_source *source = plan->catalog->sources[i];
        char name[129];
        if (!source || !is_target(plan, source->model->name) ||
            has_prior(plan, source->model->name) || !is_first_source(plan, i))
            continue;
        snprintf(name, sizeof name, "%s", source->model->name);
        ok = bag_change_add_versions(plan, name, problem);
    }
    return ok;
}

/* Items of which nothing is there. */
static bool check_items(struct bag_change_plan *plan, struct bag_problem *problem)
{
    for (size_t i = 0; plan->control && i < plan->control->count; i++) {
        const struct bag_control_item *item = &plan->control->items[i];
        if (!is_repeated(plan, item->name) && !has_prior(plan, item->name) &&
            !bag_change_add_versions(plan, item->name, problem))
            return false;
    }
    return true;
}

/* ---- collections ----------------------------------------------------------------------------- */

static bool is_collection(const struct bag_change_entry *entry)
{
    const struct bag_source *source = bag_entry_serves(entry) ? bag_entry_source(entry) : NULL;
    return source && bag_source_is_collection(source);
}

/* Sets tables[i] to the entry of the i-th feature's table. False where one is not served, or where
 * the version that is served is no table: *missing is its name. */
static bool find_tables(const struct bag_change_plan *plan, const struct bag_model_config *config,
                        struct bag_change_entry **tables, const char **missing)
{
    for (size_t i = 0; i < config->num_features; i++) {
        *missing = config->features[i].model;
        tables[i] = bag_change_plan_find_default(plan, *missing);
        if (!tables[i] || is_collection(tables[i]))
            return false;
    }
    return true;
}

/* Whether a published collection is over these tables. */
static bool is_over(const struct bag_model *collection, struct bag_change_entry *const *tables)
{
    for (size_t i = 0; i < collection->num_features; i++) {
        if (tables[i]->model != collection->features[i].model)
            return false;
    }
    return true;
}

/* Replaces an entry by a model that is UNAVAILABLE for that reason. */
static bool reject_entry(struct bag_change_plan *plan, size_t position, const char *reason,
                         bool is_unloaded, struct bag_problem *problem)
{
    struct bag_change_entry *entry = &plan->entries[position];
    struct bag_model *model = bag_model_without_table(
        bag_entry_name(entry), bag_entry_version(entry), BAG_MODEL_UNAVAILABLE, reason);
    if (!model)
        return bag_problem_no_memory(problem);
    model->is_unloaded = is_unloaded;
    bag_source_free(entry->source);
    bag_model_drop(entry->model);
    free(entry->note);
    *entry = (struct bag_change_entry){.model = model};
    return true;
}

/* A table that a published collection needs is not served any more. */
static bool lose_table(struct bag_change_plan *plan, size_t position, const char *table,
                       struct bag_problem *problem)
{
    const char *name = bag_entry_name(&plan->entries[position]);
    if (plan->control && !plan->control->unload_dependents)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' is used by '%s'; unload that one in the same group, or "
                               "send \"parameters\": {\"unload_dependents\": true}",
                               table, name);
    if (!plan->control)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' is used by '%s', which is to stay", table, name);
    struct bag_wish *wish = bag_change_wish(plan, name);
    if (!wish)
        return bag_problem_no_memory(problem);
    wish->is_unloaded = true;
    return reject_entry(plan, position, "unloaded", true, problem);
}

/* A collection that cannot be made: a change fails for it, unless it was only found. */
static bool reject_collection(struct bag_change_plan *plan, size_t position, bool was_published,
                              const struct bag_problem *why, struct bag_problem *problem)
{
    const struct bag_change_entry *entry = &plan->entries[position];
    const struct bag_source *source = bag_entry_source(entry);
    bool is_asked = bag_change_item(plan, bag_entry_name(entry)) != NULL;
    if (!was_published && !is_asked && !source->is_named)
        return reject_entry(plan, position, why->text, false, problem);
    *problem = *why;
    if (problem->kind == BAG_ERROR_CONFIGURATION || problem->kind == BAG_ERROR_FILE)
        problem->kind = plan->kind == BAG_CHANGE_START ? problem->kind : BAG_ERROR_BAD_REQUEST;
    return false;
}

/* The published READY model of the same name and version; NULL: none. */
static struct bag_model *find_published(const struct bag_change_plan *plan,
                                        const struct bag_change_entry *entry)
{
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->state == BAG_MODEL_READY && strcmp(model->name, bag_entry_name(entry)) == 0 &&
            strcmp(model->version, bag_entry_version(entry)) == 0)
            return model;
    }
    return NULL;
}

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
    bag_model_drop(entry->model);
    entry->model = NULL;
    return true;
}

static bool open_collection(struct bag_change_plan *plan, size_t position,
                            struct bag_change_entry **tables, struct bag_problem *problem)
{
    struct bag_change_entry *entry = &plan->entries[position];
    struct bag_model *published = find_published(plan, entry);
    struct bag_problem why;
    const struct bag_source **sources = calloc(entry->source->model->num_features, sizeof *sources);
    if (!sources)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < entry->source->model->num_features; i++)
        sources[i] = bag_entry_source(tables[i]);
    bool ok = bag_source_open_collection(entry->source, sources, &why);
    free(sources);
    if (!ok)
        return reject_collection(plan, position, published != NULL, &why, problem);
    if (!bag_change_is_of(published, entry->source) || !is_over(published, tables))
        return true;
    bag_source_free(entry->source);
    entry->source = NULL;
    entry->model = published;
    published->holders++;
    return true;
}

static bool resolve_collection(struct bag_change_plan *plan, size_t position,
                               struct bag_problem *problem)
{
    struct bag_change_entry *entry = &plan->entries[position];
    const struct bag_model_config *config = bag_entry_source(entry)->model;
    struct bag_change_entry **tables = calloc(config->num_features, sizeof *tables);
    const char *missing;
    struct bag_problem why;
    bool ok;
    if (!tables)
        return bag_problem_no_memory(problem);
    if (!find_tables(plan, config, tables, &missing)) {
        bag_problem_set(
            &why, BAG_ERROR_CONFLICT,
            "model '%s': model '%s', whose table it needs, is not served%s", config->name, missing,
            bag_change_plan_find_default(plan, missing) ? " in a version that is a table" : "");
        ok = entry->model ? lose_table(plan, position, missing, problem)
                          : reject_collection(plan, position, false, &why, problem);
    } else if (entry->model && is_over(entry->model, tables)) {
        ok = true;
    } else {
        ok = (entry->source || renew_source(entry, problem)) &&
             open_collection(plan, position, tables, problem);
    }
    free(tables);
    return ok;
}

static bool resolve_collections(struct bag_change_plan *plan, struct bag_problem *problem)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (is_collection(&plan->entries[i]) && !resolve_collection(plan, i, problem))
            return false;
    }
    return true;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bool copy_prior(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_snapshot *current =
        atomic_load_explicit(&plan->changer->registry->current, memory_order_relaxed);
    size_t count = current ? current->count : 0;
    plan->prior = calloc(count + 1, sizeof *plan->prior);
    plan->wishes = calloc(plan->changer->num_wishes + 1, sizeof *plan->wishes);
    if (!plan->prior || !plan->wishes)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        plan->prior[i].model = current->listed[i];
        plan->prior[i].is_default = bag_snapshot_prefers(current, current->listed[i]);
        current->listed[i]->holders++;
        plan->num_prior = i + 1;
        const char *note = bag_snapshot_find_note(current, current->listed[i]);
        if (note && !bag_change_note(&plan->prior[i], note, problem))
            return false;
    }
    plan->num_wishes = plan->changer->num_wishes;
    if (plan->num_wishes)
        memcpy(plan->wishes, plan->changer->wishes, plan->num_wishes * sizeof *plan->wishes);
    return true;
}

/* Whether an entry before it reads the same files. */
static bool is_read_before(const struct bag_change_plan *plan, size_t position)
{
    uint64_t fingerprint = plan->entries[position].source->table_fingerprint;
    bool found = false;
    for (size_t i = 0; fingerprint && !found && i < position; i++) {
        const struct bag_source *source = plan->entries[i].source;
        found = source && source->table_fingerprint == fingerprint;
    }
    return found;
}

/* Tables that are in memory need not be read. */
static void share_tables(struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_change_entry *entry = &plan->entries[i];
        if (!entry->source)
            continue;
        entry->stored = bag_change_find_stored(plan, entry->source);
        if (entry->stored)
            entry->stored->holders++;
        plan->bytes += bag_source_bytes(entry->source);
        if (entry->stored || is_read_before(plan, i))
            plan->bytes -= bag_source_table_bytes(entry->source);
    }
}

struct bag_change_plan *bag_change_plan_make(struct bag_changer *changer, enum bag_change_kind kind,
                                             struct bag_catalog *catalog,
                                             const struct bag_control *control, const char *only,
                                             struct bag_problem *problem)
{
    struct bag_change_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    changer->refusal = (struct bag_refusal){0};
    *plan = (struct bag_change_plan){
        .changer = changer, .kind = kind, .catalog = catalog, .control = control, .only = only};
    if (copy_prior(plan, problem) && bag_change_sort_catalog(plan, problem) &&
        add_all(plan, problem) && check_items(plan, problem) &&
        resolve_collections(plan, problem)) {
        share_tables(plan);
        return plan;
    }
    bag_change_plan_free(plan);
    return NULL;
}

static void free_entries(struct bag_change_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bag_source_free(entries[i].source);
        bag_model_drop(entries[i].model);
        bag_stored_table_drop(entries[i].stored);
        free(entries[i].note);
    }
    free(entries);
}

void bag_change_plan_free(struct bag_change_plan *plan)
{
    if (!plan)
        return;
    free_entries(plan->entries, plan->count);
    free_entries(plan->prior, plan->num_prior);
    for (size_t i = 0; i < plan->num_dropped; i++)
        bag_model_drop(plan->dropped[i]);
    free(plan->dropped);
    free(plan->named);
    free(plan->wishes);
    free(plan);
}

/* What is published hides folders. */
static bool is_same_note(const char *planned, const char *published)
{
    char text[sizeof((struct bag_problem){0}).text + 128];
    if (!planned || !published)
        return planned == published;
    snprintf(text, sizeof text, "%s", planned);
    bag_text_hide_folders(text);
    return strcmp(text, published) == 0;
}

bool bag_change_plan_changes(const struct bag_change_plan *plan)
{
    bool changes = plan->count != plan->num_prior;
    for (size_t i = 0; !changes && i < plan->count; i++)
        changes = plan->entries[i].model != plan->prior[i].model ||
                  plan->entries[i].is_default != plan->prior[i].is_default ||
                  !is_same_note(plan->entries[i].note, plan->prior[i].note);
    return changes;
}

size_t bag_change_plan_count(const struct bag_change_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++)
        count += bag_entry_serves(&plan->entries[i]);
    return count;
}

size_t bag_change_plan_bytes(const struct bag_change_plan *plan)
{
    return plan->bytes;
}

bool bag_change_plan_load_gemm(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_changer *changer = plan->changer;
    bool projects = false;
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_source *source = plan->entries[i].source;
        projects |= source && bag_source_projects(source);
    }
    if (projects && !changer->gemm)
        changer->gemm = changer->load_gemm(problem);
    return !projects || changer->gemm;
}

bool bag_change_plan_check(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_change_entry *entry = &plan->entries[i];
        if (!bag_entry_serves(entry))
            return bag_problem_set(problem, BAG_ERROR_FILE, "%s", entry->model->reason);
    }
    return true;
}

void bag_change_plan_commit(struct bag_change_plan *plan)
{
    struct bag_changer *changer = plan->changer;
    free(changer->wishes);
    changer->wishes = plan->wishes;
    changer->num_wishes = plan->num_wishes;
    plan->wishes = NULL;
    plan->num_wishes = 0;
}
