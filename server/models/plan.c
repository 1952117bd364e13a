/* What there is, what is published and what was asked for -> the next snapshot; see change.h. */
#include "change.h"

#include "proto/arena.h"
#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- entries --------------------------------------------------------------------------------- */

struct bag_change_entry *bag_change_find(struct bag_change_entry *entries, size_t count,
                                         const char *name, const char *version)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(bag_entry_name(&entries[i]), name) == 0 &&
            strcmp(bag_entry_version(&entries[i]), version) == 0)
            return &entries[i];
    }
    return NULL;
}

struct bag_model *bag_change_find_ready(const struct bag_change_plan *plan, const char *name,
                                        const char *version)
{
    const struct bag_change_entry *prior =
        bag_change_find(plan->prior, plan->num_prior, name, version);
    return prior && prior->model->state == BAG_MODEL_READY ? prior->model : NULL;
}

struct bag_change_entry *bag_change_add_entry(struct bag_change_plan *plan,
                                              struct bag_problem *problem)
{
    struct bag_change_entry *entries = bag_grow(plan->entries, plan->count, sizeof *entries);
    if (!entries) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    plan->entries = entries;
    entries[plan->count] = (struct bag_change_entry){0};
    return &entries[plan->count++];
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
    if (!entry->note)
        return bag_problem_no_memory(problem);
    bag_text_hide_folders(entry->note);
    return true;
}

bool bag_change_add_published(struct bag_change_plan *plan, const struct bag_change_entry *prior,
                              struct bag_problem *problem)
{
    return bag_change_add_model(plan, prior->model, prior->is_default, problem) &&
           (!prior->note || bag_change_note(&plan->entries[plan->count - 1], prior->note, problem));
}

bool bag_change_reject(struct bag_change_entry *entry, const char *reason, bool is_unloaded,
                       struct bag_problem *problem)
{
    struct bag_model *model = bag_model_without_table(
        bag_entry_name(entry), bag_entry_version(entry), BAG_MODEL_UNAVAILABLE, reason);
    if (!model)
        return bag_problem_no_memory(problem);
    model->is_unloaded = is_unloaded;
    bag_source_free(entry->source);
    bag_model_release(entry->model);
    free(entry->note);
    entry->source = NULL;
    entry->model = model;
    entry->note = NULL;
    entry->is_default = false;
    return true;
}

bool bag_change_add_placeholder(struct bag_change_plan *plan, const char *name, const char *version,
                                const char *reason, bool is_unloaded, struct bag_problem *problem)
{
    const struct bag_change_entry *prior =
        bag_change_find(plan->prior, plan->num_prior, name, version);
    if (prior && prior->model->state == BAG_MODEL_UNAVAILABLE &&
        prior->model->is_unloaded == is_unloaded && strcmp(prior->model->cause, reason) == 0)
        return bag_change_add_model(plan, prior->model, false, problem);
    struct bag_model *model = bag_model_without_table(name, version, BAG_MODEL_UNAVAILABLE, reason);
    if (!model)
        return bag_problem_no_memory(problem);
    model->is_unloaded = is_unloaded;
    bool ok = bag_change_add_model(plan, model, false, problem);
    bag_model_release(model);
    return ok;
}

/* ---- desired states
 * ---------------------------------------------------------------------------------- */

struct bag_desired_state *bag_change_desired_state(struct bag_change_plan *plan, const char *name)
{
    struct bag_record *record = bag_record_make(plan->changer, name);
    if (!record)
        return NULL;
    if (record->desired_by != plan->number)
        record->planned = record->desired;
    record->desired_by = plan->number;
    return &record->planned;
}

const struct bag_control_item *bag_control_find(const struct bag_control *control, const char *name)
{
    for (size_t i = 0; control && i < control->count; i++) {
        if (strcmp(control->items[i].name, name) == 0)
            return &control->items[i];
    }
    return NULL;
}

static int compare_target(const void *name, const void *listed)
{
    return strcmp(name, *(const char *const *)listed);
}

static bool is_target(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_change_names *only = plan->only;
    if (plan->control)
        return bag_control_find(plan->control, name) != NULL;
    return !only || bsearch(name, only->names, only->count, sizeof *only->names, compare_target);
}

/* ---- all models ------------------------------------------------------------------------------ */

/* Adds the versions of a model, once in a plan. */
static bool add_once(struct bag_change_plan *plan, const char *name, struct bag_problem *problem)
{
    struct bag_record *record = bag_record_make(plan->changer, name);
    if (!record)
        return bag_problem_no_memory(problem);
    if (record->plan == plan->number)
        return true;
    record->plan = plan->number;
    return bag_change_add_versions(plan, name, problem);
}

/* Whether nothing of the name answers, and nobody asked for that. */
static bool is_lost(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->num_prior; i++) {
        const struct bag_model *model = plan->prior[i].model;
        if (strcmp(model->name, name) == 0 &&
            (model->state != BAG_MODEL_UNAVAILABLE || model->is_unloaded))
            return false;
    }
    return true;
}

/* Whether a model is a collection that is to be tried again, as a table that it needs is loaded. */
static bool is_retried(const struct bag_change_plan *plan, const char *name)
{
    size_t count = 0;
    bool found = false;
    const struct bag_named_source *named =
        plan->control && is_lost(plan, name) ? bag_catalog_find(plan->catalog, name, &count) : NULL;
    for (size_t i = 0; i < count; i++) {
        const struct bag_source *source = *named[i].place;
        for (size_t j = 0; source && j < source->model->num_features; j++) {
            const struct bag_control_item *item =
                bag_control_find(plan->control, source->model->features[j].model);
            found |= item && !item->unload;
        }
    }
    return found;
}

/* Adds what was published of a model that the change is not about. */
static bool add_other(struct bag_change_plan *plan, const struct bag_change_entry *prior,
                      struct bag_problem *problem)
{
    size_t first = plan->count;
    if (!is_retried(plan, prior->model->name))
        return bag_change_add_published(plan, prior, problem);
    bool ok = add_once(plan, prior->model->name, problem);
    for (size_t i = first; i < plan->count; i++)
        plan->entries[i].is_retried = true;
    return ok;
}

/* In the order that was published, then what is new in the catalog, then what is asked for and is
 * not there. */
static bool add_all(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_control *control = plan->control;
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        const char *name = plan->prior[i].model->name;
        ok = is_target(plan, name) ? add_once(plan, name, problem)
                                   : add_other(plan, &plan->prior[i], problem);
    }
    for (size_t i = 0; ok && i < plan->catalog->count; i++) {
        const struct bag_source *source = plan->catalog->sources[i];
        char name[129];
        if (!source || !is_target(plan, source->model->name))
            continue;
        snprintf(name, sizeof name, "%s", source->model->name); /* the plan takes the source */
        ok = add_once(plan, name, problem);
    }
    for (size_t i = 0; ok && control && i < control->count; i++)
        ok = add_once(plan, control->items[i].name, problem);
    return ok;
}

/* ---- default versions ------------------------------------------------------------------------ */

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, bag_entry_name(*(struct bag_change_entry *const *)entry));
}

static int compare_names(const void *a, const void *b)
{
    return compare_name(bag_entry_name(*(struct bag_change_entry *const *)a), b);
}

static bool list_served(struct bag_change_plan *plan, struct bag_problem *problem)
{
    plan->served = calloc(plan->count + 1, sizeof(struct bag_change_entry *));
    for (size_t i = 0; plan->served && i < plan->count; i++) {
        if (plan->entries[i].is_default && bag_entry_serves(&plan->entries[i]))
            plan->served[plan->num_served++] = &plan->entries[i];
    }
    if (plan->num_served)
        qsort(plan->served, plan->num_served, sizeof(struct bag_change_entry *), compare_names);
    return plan->served || bag_problem_no_memory(problem);
}

struct bag_change_entry *bag_change_find_served(const struct bag_change_plan *plan,
                                                const char *name)
{
    struct bag_change_entry **found =
        plan->num_served
            ? bsearch(name, plan->served, plan->num_served, sizeof *found, compare_name)
            : NULL;
    return found ? *found : NULL;
}

struct bag_change_entry *bag_change_plan_find_default(const struct bag_change_plan *plan,
                                                      const char *name)
{
    struct bag_change_entry *entry = bag_change_find_served(plan, name);
    return entry && bag_entry_serves(entry) ? entry : NULL;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What is published; where it only peeks, of the one model. */
static bool copy_prior(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_snapshot *current =
        atomic_load_explicit(&plan->changer->registry->current, memory_order_relaxed);
    size_t count = current ? current->count : 0;
    struct bag_model *const *models = current ? current->listed : NULL;
    if (current && plan->peeks)
        models = bag_snapshot_versions(current, plan->only->names[0], &count);
    plan->prior = calloc(count + 1, sizeof *plan->prior);
    if (!plan->prior)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        const char *note = bag_snapshot_find_remark(current, models[i]);
        plan->prior[i].model = bag_model_retain(models[i]);
        plan->prior[i].is_default = bag_snapshot_prefers(current, models[i]);
        plan->num_prior = i + 1;
        if (note && !bag_change_note(&plan->prior[i], note, problem))
            return false;
    }
    return true;
}

/* ---- tables that are shared ------------------------------------------------------------------ */

/* The table of the model, where it is of those files and lacks no update. */
static struct bag_stored_table *stored_of(const struct bag_changer *changer,
                                          const struct bag_model *model, uint64_t fingerprint)
{
    bool is_same = model->stored && model->stored->fingerprint == fingerprint;
    return is_same && !bag_change_lacks_updates(changer, model) ? model->stored : NULL;
}

/* The table of those files that is in memory: one that serves, or is held. */
static struct bag_stored_table *find_stored(const struct bag_change_plan *plan,
                                            uint64_t fingerprint)
{
    const struct bag_changer *changer = plan->changer;
    struct bag_stored_table *stored = NULL;
    for (size_t i = 0; !stored && i < plan->num_prior; i++)
        stored = stored_of(changer, plan->prior[i].model, fingerprint);
    for (size_t i = 0; !stored && i < changer->num_records; i++) {
        for (size_t j = 0; !stored && j < changer->records[i]->num_retained; j++)
            stored = stored_of(changer, changer->records[i]->retained[j].model, fingerprint);
    }
    return stored;
}

/* The first entry before `end` that reads those files; SIZE_MAX: none does. */
static size_t find_reading(const struct bag_change_plan *plan, size_t end, uint64_t fingerprint)
{
    for (size_t i = 0; i < end; i++) {
        const struct bag_source *source = plan->entries[i].source;
        if (source && source->table_fingerprint == fingerprint)
            return i;
    }
    return SIZE_MAX;
}

/* Tables that are in memory need not be read, nor those that an entry before reads. */
static void share_tables(struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_change_entry *entry = &plan->entries[i];
        uint64_t fingerprint = entry->source ? entry->source->table_fingerprint : 0;
        entry->same_as = SIZE_MAX;
        plan->bytes += entry->source ? bag_source_bytes(entry->source) : 0;
        if (!fingerprint)
            continue;
        entry->stored = find_stored(plan, fingerprint);
        if (entry->stored)
            entry->stored->holders++;
        else
            entry->same_as = find_reading(plan, i, fingerprint);
        if (entry->stored || entry->same_as != SIZE_MAX)
            plan->bytes -= bag_source_table_bytes(entry->source);
    }
}

static void free_entries(struct bag_change_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bag_source_free(entries[i].source);
        bag_model_release(entries[i].model);
        bag_stored_table_drop(entries[i].stored);
        free(entries[i].note);
    }
    free(entries);
}

static void free_plan(struct bag_change_plan *plan)
{
    free_entries(plan->entries, plan->count);
    free_entries(plan->prior, plan->num_prior);
    for (size_t i = 0; i < plan->num_dropped; i++)
        bag_model_release(plan->dropped[i]);
    free(plan->dropped);
    free(plan->served);
}

void bag_change_plan_free(struct bag_change_plan *plan)
{
    if (plan)
        free_plan(plan);
    free(plan);
}

static bool is_same_note(const char *planned, const char *published)
{
    return planned && published ? strcmp(planned, published) == 0 : planned == published;
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

struct bag_change_plan *bag_change_plan_make(struct bag_changer *changer, enum bag_change_kind kind,
                                             struct bag_catalog *catalog,
                                             const struct bag_control *control,
                                             const struct bag_change_names *only,
                                             struct bag_problem *problem)
{
    struct bag_change_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    changer->error = (struct bag_plan_error){0};
    bag_change_forget_fallen(changer);
    *plan = (struct bag_change_plan){.changer = changer,
                                     .kind = kind,
                                     .number = ++changer->num_plans,
                                     .catalog = catalog,
                                     .control = control,
                                     .only = only};
    if (copy_prior(plan, problem) && add_all(plan, problem) && list_served(plan, problem) &&
        bag_change_resolve_collections(plan, problem)) {
        share_tables(plan);
        return plan;
    }
    bag_change_plan_free(plan);
    return NULL;
}

bool bag_change_is_needed(struct bag_changer *changer, struct bag_catalog *catalog,
                          const char *name)
{
    struct bag_problem ignored;
    const struct bag_change_names only = {&name, 1};
    struct bag_change_plan plan = {.changer = changer,
                                   .kind = BAG_CHANGE_POLL,
                                   .number = ++changer->num_plans,
                                   .catalog = catalog,
                                   .only = &only,
                                   .peeks = true};
    bool ok = copy_prior(&plan, &ignored) && bag_change_add_versions(&plan, name, &ignored);
    bool needed = !ok || plan.finds || bag_change_plan_changes(&plan);
    free_plan(&plan);
    return needed;
}

size_t bag_change_plan_count(const struct bag_change_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++)
        count += bag_entry_serves(&plan->entries[i]);
    return count;
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

void bag_change_plan_commit(struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->changer->num_records; i++) {
        struct bag_record *record = plan->changer->records[i];
        if (record->desired_by == plan->number)
            record->desired = record->planned;
    }
}
