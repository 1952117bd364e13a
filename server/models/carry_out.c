/* Publishing and releasing what a plan says; see carry_out.h. */
#include "carry_out.h"

#include "proto/text.h"
#include "server/memory/memory.h"
#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* The maximum time for which a change waits until requests have left a table that is unloaded. One
 * minute, in ns. */
#define LEAVE_NS (UINT64_C(60) * 1000000000)

/* ---- publishing ------------------------------------------------------------------------------ */

/* The models of a snapshot that is to be published, with a reference to each. */
struct listing {
    struct bag_listed *models;
    size_t count;
};

/* Makes a listing for up to `capacity` models. `models` is NULL without memory. */
static struct listing make_listing(size_t capacity)
{
    return (struct listing){.models = calloc(capacity + 1, sizeof(struct bag_listed))};
}

/* Adds a model with a new reference to the listing. */
static void list(struct listing *listing, struct bag_model *model, bool is_default, char *remark)
{
    listing->models[listing->count++] =
        (struct bag_listed){bag_model_retain(model), is_default, remark};
}

/* Lists a version without a table. Returns false without memory. */
static bool list_state(struct listing *listing, const char *name, const char *version,
                       enum bag_model_state state, bool is_default, const char *reason)
{
    struct bag_model *model = bag_model_without_table(name, version, state, reason);
    if (model)
        listing->models[listing->count++] = (struct bag_listed){model, is_default, NULL};
    return model;
}

/* Publishes what was listed, if `ok`, and frees the listing. Returns false and sets *problem if it
 * was not listed or cannot be published. */
static bool publish(struct bag_registry *registry, struct listing *listing, bool ok,
                    struct bag_problem *problem)
{
    struct bag_snapshot *snapshot =
        ok ? bag_snapshot_make(listing->models, listing->count, registry->max_readers) : NULL;
    ok = snapshot ? bag_registry_publish(registry, snapshot, problem)
                  : bag_problem_no_memory(problem);
    if (!ok && snapshot)
        bag_snapshot_free(snapshot);
    for (size_t i = 0; i < listing->count; i++)
        bag_model_release(listing->models[i].model);
    free(listing->models);
    return ok;
}

/* Logs that the index of models could not be brought up to date. */
static void log_failure(const struct bag_problem *why)
{
    bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", why->text));
}

/* Returns whether the plan unloads the model before it loads others. */
static bool is_unloaded_first(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        if (plan->unloaded_first[i] == model)
            return true;
    }
    return false;
}

/* Returns whether the entry is shown as LOADING. If a plan of the start failed, the models that it
 * loaded keep their state until the next plan. */
static bool is_shown_loading(const struct bag_change_plan *plan, const struct bag_entry *entry)
{
    return entry->is_announced && (entry->source || plan->facts.kind != BAG_CHANGE_START);
}

/* Publishes what serves while the plan is carried out: announced versions are in `state`, and
 * models that are unloaded first are UNLOADING. */
static bool publish_meanwhile(const struct bag_change_plan *plan, enum bag_model_state state,
                              const char *reason, struct bag_problem *problem)
{
    const struct bag_facts *facts = &plan->facts;
    struct listing listing = make_listing(facts->num_published + plan->count);
    bool ok = listing.models != NULL;
    for (size_t i = 0; ok && i < facts->num_published; i++) {
        const struct bag_listed *published = &facts->published[i];
        const struct bag_model *model = published->model;
        const struct bag_entry *entry = bag_change_plan_find(plan, model->name, model->version);
        if (entry && is_shown_loading(plan, entry))
            continue;
        if (is_unloaded_first(plan, model))
            ok = list_state(&listing, model->name, model->version, BAG_MODEL_UNLOADING,
                            published->is_default, "makes room for another version");
        else
            list(&listing, published->model, published->is_default, published->remark);
    }
    for (size_t i = 0; ok && i < plan->count; i++) {
        const struct bag_entry *entry = &plan->entries[i];
        if (is_shown_loading(plan, entry))
            ok = list_state(&listing, bag_entry_name(entry), bag_entry_version(entry), state, false,
                            reason);
        else if (facts->num_published == 0 && entry->model)
            list(&listing, entry->model, false, NULL);
    }
    return publish(facts->models->registry, &listing, ok, problem);
}

/* Returns whether the entry's version serves now, and is unloaded by the plan. */
static bool is_leaving(const struct bag_change_plan *plan, const struct bag_entry *entry)
{
    return entry->model->is_unloaded &&
           bag_facts_find_ready(&plan->facts, entry->model->name, entry->model->version);
}

/* Publishes the entries. If `leaving`, versions that were unloaded are UNLOADING, until their last
 * request has ended. */
static bool publish_entries(const struct bag_change_plan *plan, bool leaving,
                            struct bag_problem *problem)
{
    struct listing listing = make_listing(plan->count);
    bool ok = listing.models != NULL;
    for (size_t i = 0; ok && i < plan->count; i++) {
        const struct bag_entry *entry = &plan->entries[i];
        if (leaving && is_leaving(plan, entry))
            ok = list_state(&listing, entry->model->name, entry->model->version,
                            BAG_MODEL_UNLOADING, entry->is_default, "it is being unloaded");
        else
            list(&listing, entry->model, entry->is_default, entry->remark);
    }
    return publish(plan->facts.models->registry, &listing, ok, problem);
}

void bag_models_show_error(struct bag_models *models)
{
    const struct bag_plan_error *error = &models->error;
    const struct bag_snapshot *current =
        atomic_load_explicit(&models->registry->current, memory_order_relaxed);
    struct bag_problem why;
    char remark[sizeof why.text + 128];
    if (!*error->name || !current)
        return;
    snprintf(remark, sizeof remark, BAG_LOADED_BEFORE "%s", error->problem.text);
    bag_text_hide_folders(remark);
    struct listing listing = make_listing(current->count + 1);
    bool is_ready = false;
    for (size_t i = 0; listing.models && i < current->count; i++) {
        const struct bag_listed *listed = current->listed[i];
        struct bag_model *model = listed->model;
        bool is_failed =
            strcmp(model->name, error->name) == 0 && strcmp(model->version, error->version) == 0;
        is_ready |= is_failed && model->state == BAG_MODEL_READY;
        if (!is_failed || model->state == BAG_MODEL_READY)
            list(&listing, model, listed->is_default, is_failed ? remark : listed->remark);
    }
    bool ok = listing.models &&
              (is_ready || list_state(&listing, error->name, error->version, BAG_MODEL_UNAVAILABLE,
                                      false, error->problem.text));
    if (!publish(models->registry, &listing, ok, &why))
        log_failure(&why);
}

/* ---- waiting for requests -------------------------------------------------------------------- */

/* Frees snapshots until the model has only `holders` references left. Returns false if requests
 * that read it take too long, or the server stops. */
static bool wait_until_left(struct bag_models *models, const struct bag_model *model,
                            size_t holders)
{
    uint64_t until_ns = uv_hrtime() + LEAVE_NS;
    bool is_late = false;
    bag_registry_collect(models->registry);
    while (model->holders > holders && !is_late && !atomic_load(&models->cancelled)) {
        bag_monitor_lock(&models->monitor);
        if (!models->has_left && !atomic_load(&models->cancelled))
            is_late = !bag_monitor_wait(&models->monitor, until_ns);
        models->has_left = false;
        bag_monitor_unlock(&models->monitor);
        bag_registry_collect(models->registry);
    }
    return model->holders <= holders;
}

/* ---- models that are unloaded first ---------------------------------------------------------- */

/* Returns whether a version of the name is to be read from files, and its configuration says that
 * the one that serves is unloaded first. */
static bool is_unload_first(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_source *source = plan->entries[i].source;
        if (source && !plan->entries[i].stored && !bag_source_is_collection(source) &&
            strcmp(source->model->name, name) == 0 &&
            source->model->reload == BAG_RELOAD_UNLOAD_FIRST)
            return true;
    }
    return false;
}

/* Returns whether the model is a collection over a model that is unloaded first. */
static bool depends_on_unloaded(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; !model->memory && i < model->num_features; i++) {
        if (is_unloaded_first(plan, model->features[i].model))
            return true;
    }
    return false;
}

/* Finds the tables that are unloaded first, then the collections over them. */
static bool find_unloaded_first(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_facts *facts = &plan->facts;
    plan->unloaded_first = calloc(facts->num_published + 1, sizeof *plan->unloaded_first);
    if (!plan->unloaded_first)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < facts->num_published; i++) {
        struct bag_model *model = facts->published[i].model;
        if (model->memory && is_unload_first(plan, model->name) &&
            !bag_change_plan_uses(plan, model->stored))
            plan->unloaded_first[plan->num_unloaded_first++] = bag_model_retain(model);
    }
    for (size_t i = 0; i < facts->num_published; i++) {
        struct bag_model *model = facts->published[i].model;
        if (depends_on_unloaded(plan, model))
            plan->unloaded_first[plan->num_unloaded_first++] = bag_model_retain(model);
    }
    return true;
}

/* Returns the number of the plan's own references to a model that is unloaded first. The list and
 * the published models have one each; the others are those of collections in the list. */
static size_t own_references(const struct bag_change_plan *plan, const struct bag_model *model)
{
    size_t count = 2;
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        const struct bag_model *other = plan->unloaded_first[i];
        for (size_t j = 0; other != model && j < other->num_features; j++)
            count += other->features[j].model == model;
    }
    return count;
}

/* Waits until no request reads the models that are unloaded first, and frees them. */
static bool free_unloaded_first(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_models *models = plan->facts.models;
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        const struct bag_model *model = plan->unloaded_first[i];
        if (wait_until_left(models, model, own_references(plan, model)))
            continue;
        if (atomic_load(&models->cancelled))
            return bag_problem_set(problem, BAG_ERROR_DRAINING, "the server is stopping");
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' version %s: requests do not end that still read its "
                               "table, so that it cannot be unloaded first",
                               model->name, model->version);
    }
    /* Put a model without a table in the place of each model that was unloaded first. */
    for (size_t i = 0; i < plan->facts.num_published; i++) {
        struct bag_listed *published = &plan->facts.published[i];
        const struct bag_model *model = published->model;
        if (!is_unloaded_first(plan, model))
            continue;
        struct bag_model *unloaded =
            bag_model_without_table(model->name, model->version, BAG_MODEL_UNAVAILABLE,
                                    "was unloaded to make room for another version");
        if (!unloaded)
            return bag_problem_no_memory(problem);
        bag_model_release(published->model);
        free(published->remark);
        published->model = unloaded;
        published->remark = NULL;
    }
    while (plan->num_unloaded_first > 0)
        bag_model_release(plan->unloaded_first[--plan->num_unloaded_first]);
    return true;
}

/* ---- retained versions ----------------------------------------------------------------------- */

/* Returns the record and the index of the version that was retained first, of those that the plan
 * does not use; NULL if there is none. */
static struct bag_record *find_oldest(const struct bag_change_plan *plan, size_t *index)
{
    const struct bag_models *models = plan->facts.models;
    struct bag_record *oldest = NULL;
    for (size_t i = 0; i < models->num_records; i++) {
        struct bag_record *record = models->records[i];
        for (size_t j = 0; j < record->num_retained; j++) {
            if (bag_change_plan_uses(plan, record->retained[j].model->stored) ||
                (oldest && oldest->retained[*index].order < record->retained[j].order))
                continue;
            oldest = record;
            *index = j;
        }
    }
    return oldest;
}

/* Returns how many versions of the model are retained, as its default version says. */
static size_t max_retained(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_entry *entry = bag_change_plan_find_default(plan, name);
    const struct bag_source *source = entry ? bag_entry_source(entry) : NULL;
    return source ? (size_t)source->model->keep_versions : 0;
}

/* Releases the versions of a name that serve again, or are too many. Without memory all stay until
 * the next change. */
static void trim_retained(const struct bag_change_plan *plan, struct bag_record *record)
{
    size_t count = record->num_retained;
    bool *flags = count ? calloc(2 * count, sizeof *flags) : NULL;
    if (!flags)
        return;
    for (size_t i = 0; i < count; i++)
        flags[i] = bag_change_plan_uses(plan, record->retained[i].model->stored);
    bag_plan_retained(flags, count, max_retained(plan, record->name), flags + count);
    for (size_t i = count; i-- > 0;) {
        if (flags[count + i])
            bag_record_release(record, i);
    }
    free(flags);
}

/* Returns whether a request unloaded the version. */
static bool is_to_unload(const struct bag_change_plan *plan, const struct bag_model *model)
{
    const struct bag_entry *entry = bag_change_plan_find(plan, model->name, model->version);
    return entry && entry->model->is_unloaded;
}

/* ---- announcing ------------------------------------------------------------------------------ */

/* Returns whether the i-th model that is unloaded first is the first one of these with its table,
 * and no other model keeps that. */
static bool frees_table(const struct bag_change_plan *plan, size_t i)
{
    const struct bag_stored_table *stored = plan->unloaded_first[i]->stored;
    size_t holders = 0;
    for (size_t j = 0; j < plan->num_unloaded_first; j++) {
        bool is_same = plan->unloaded_first[j]->stored == stored;
        if (is_same && j < i)
            return false;
        holders += is_same;
    }
    return holders == stored->holders;
}

/* Returns whether the version is to be loaded and none of it answers meanwhile. */
static bool is_unavailable_meanwhile(const struct bag_change_plan *plan,
                                     const struct bag_entry *entry)
{
    const struct bag_model *ready =
        bag_facts_find_ready(&plan->facts, bag_entry_name(entry), bag_entry_version(entry));
    return entry->source && (!ready || is_unloaded_first(plan, ready));
}

/* Returns whether the entry is a collection that was UNAVAILABLE and is tried again. That reads
 * nothing, and a poll does it each time, so the reason stays published. */
static bool is_tried_again(const struct bag_change_plan *plan, const struct bag_entry *entry)
{
    const struct bag_listed *published =
        bag_facts_find(&plan->facts, bag_entry_name(entry), bag_entry_version(entry));
    return plan->facts.kind != BAG_CHANGE_START && bag_source_is_collection(entry->source) &&
           published && published->model->state == BAG_MODEL_UNAVAILABLE;
}

bool bag_change_plan_announce(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool announces = plan->facts.kind == BAG_CHANGE_START;
    plan->is_announced = true;
    if (!find_unloaded_first(plan, problem))
        return false;
    /* Check that memory suffices, releasing retained versions until enough is free. */
    size_t freed = 0; /* memory that unloading first releases */
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        const struct bag_model *model = plan->unloaded_first[i];
        freed += model->source ? bag_source_bytes(model->source) : 0;
        if (model->source && model->stored && !frees_table(plan, i))
            freed -= bag_source_table_bytes(model->source);
    }
    while (!bag_pages_check(plan->bytes, freed, problem) ||
           (plan->bytes > freed && !bag_memory_check(plan->bytes - freed, problem))) {
        /* Release the version that was retained first, and wait until requests that read it have
         * ended. */
        struct bag_models *models = plan->facts.models;
        size_t index;
        struct bag_record *record = find_oldest(plan, &index);
        if (!record)
            return false;
        struct bag_model *model = bag_model_retain(record->retained[index].model);
        bag_record_release(record, index);
        bool has_left = wait_until_left(models, model, 1);
        bag_log(BAG_LOG_LEVEL_INFO, "version released", BAG_LOG_TEXT("model", model->name),
                BAG_LOG_TEXT("version", model->version));
        bag_model_release(model);
        if (!has_left)
            return false;
    }
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_entry *entry = &plan->entries[i];
        entry->is_announced = is_unavailable_meanwhile(plan, entry) && !is_tried_again(plan, entry);
        announces |= entry->is_announced;
    }
    if (announces &&
        !publish_meanwhile(plan, BAG_MODEL_LOADING, "the tables are still being loaded", problem))
        return false;
    if (plan->num_unloaded_first == 0 || free_unloaded_first(plan, problem))
        return true;
    /* Publish what was published before the plan was announced. */
    struct listing listing = make_listing(plan->facts.num_published);
    struct bag_problem why;
    for (size_t i = 0; listing.models && i < plan->facts.num_published; i++) {
        const struct bag_listed *published = &plan->facts.published[i];
        list(&listing, published->model, published->is_default, published->remark);
    }
    if (!publish(plan->facts.models->registry, &listing, listing.models != NULL, &why))
        log_failure(&why);
    return false;
}

/* ---- the end of a change --------------------------------------------------------------------- */

/* Logs the state of a model that was not published before. */
static void log_entry(const struct bag_change_plan *plan, const struct bag_model *model)
{
    bool is_first = plan->facts.kind == BAG_CHANGE_START, is_known = false;
    for (size_t i = 0; i < plan->facts.num_published; i++)
        is_known |= plan->facts.published[i].model == model;
    /* The start announces bad versions before it logs them. */
    if (is_known && !(is_first && model->state != BAG_MODEL_READY))
        return;
    if (model->state == BAG_MODEL_READY)
        bag_log(is_first ? BAG_LOG_LEVEL_DEBUG : BAG_LOG_LEVEL_INFO, "model ready",
                BAG_LOG_TEXT("model", model->name), BAG_LOG_TEXT("version", model->version));
    else
        bag_log(model->is_unloaded ? BAG_LOG_LEVEL_INFO : BAG_LOG_LEVEL_WARNING,
                model->is_unloaded ? "model unloaded" : "model unavailable",
                BAG_LOG_TEXT("model", model->name), BAG_LOG_TEXT("version", model->version),
                BAG_LOG_TEXT("reason", model->cause));
}

/* Warns if the model's rows have another width than those of the version that was the default one.
 */
static void log_shape(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; model->memory && i < plan->facts.num_published; i++) {
        const struct bag_model *old = plan->facts.published[i].model;
        if (old->memory && plan->facts.published[i].is_default &&
            strcmp(old->name, model->name) == 0 &&
            old->memory->table.row_elements != model->memory->table.row_elements)
            bag_log(BAG_LOG_LEVEL_WARNING, "row width changed", BAG_LOG_TEXT("model", model->name),
                    BAG_LOG_NUMBER("elements_before", old->memory->table.row_elements),
                    BAG_LOG_NUMBER("elements", model->memory->table.row_elements));
    }
}

/* Publishes why the versions that were announced are not there, and the one that failed. */
static void show_failure(struct bag_change_plan *plan, const struct bag_problem *why)
{
    struct bag_problem ignored;
    const char *reason = why->kind == BAG_ERROR_DRAINING ? "the server is stopping" : why->text;
    if (plan->failed)
        plan->failed->is_announced |= is_unavailable_meanwhile(plan, plan->failed);
    if (!publish_meanwhile(plan, BAG_MODEL_UNAVAILABLE, reason, &ignored))
        log_failure(&ignored);
}

/* Returns why updates of a version are none of the version that replaces it; NULL: they are. */
static const char *find_misfit(const struct bag_model *model, const struct bag_model *old)
{
    const struct bag_table_memory *from = old->memory, *to = model->memory;
    if (!model->stored)
        return "a collection";
    if (to->remote)
        return "a model of shards";
    if (model->mapped)
        return "a version that is mapped from a file";
    if (bag_table_is_keyed(from) != bag_table_is_keyed(to))
        return bag_table_is_keyed(to) ? "a version with keys" : "a version without keys";
    return bag_live_rows_converts(&from->table, &to->table) ? NULL : "a version with other rows";
}

/* Returns false and sets *problem if the version lacks an update that was acknowledged since it was
 * loaded. */
static bool check_updates(struct bag_updates *updates, const struct bag_model *model,
                          const char *misfit, struct bag_problem *problem)
{
    struct bag_updates_table table = bag_updates_table_of(model);
    if (model->mapped)
        return bag_updates_attach(updates, &table, problem);
    return !bag_updates_lacks(updates, &table) ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "model '%s' version %s: it lacks an update that was made while it was "
                           "loaded, and cannot take it: it is %s",
                           model->name, model->version, misfit);
}

/* Closes the streams of versions that are replaced by one which cannot take their updates. It may
 * have been checked long ago: no update may be acknowledged that it lacks. */
static bool close_updates(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_updates *updates = plan->facts.models->updates;
    bool checks = updates && plan->facts.kind != BAG_CHANGE_START, ok = true;
    for (size_t i = 0; checks && ok && i < plan->count; i++) {
        const struct bag_model *model = plan->entries[i].model;
        const struct bag_listed *published =
            bag_facts_find(&plan->facts, model->name, model->version);
        const char *misfit = NULL;
        bool was_default = published && published->model == model && published->is_default;
        if (!plan->entries[i].is_default || was_default)
            continue;
        for (size_t j = 0; j < plan->facts.num_published; j++) {
            const struct bag_model *old = plan->facts.published[j].model;
            const bool is_replaced = old->stored && strcmp(old->name, model->name) == 0 &&
                                     !bag_change_plan_uses(plan, old->stored);
            const char *reason = is_replaced ? find_misfit(model, old) : NULL;
            if (reason) {
                bag_updates_close(old->memory->live, reason);
                misfit = reason;
            }
        }
        const bool has_rows = model->stored && !model->memory->remote;
        ok = !has_rows || (!misfit && !model->mapped) ||
             check_updates(updates, model, misfit, problem);
    }
    return ok;
}

/* Makes the table of a published model take updates again. */
static void open_updates(const struct bag_model *model)
{
    if (model->stored)
        bag_updates_close(model->memory->live, NULL);
}

/* Publishes the next snapshot, and retains or releases the models that only the last one had. */
static bool finish(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool leaving = false;
    for (size_t i = 0; i < plan->count; i++) {
        leaving |= is_leaving(plan, &plan->entries[i]);
        open_updates(plan->entries[i].model);
    }
    if (!close_updates(plan, problem) || !publish_entries(plan, leaving, problem)) {
        for (size_t i = 0; i < plan->facts.num_published; i++)
            open_updates(plan->facts.published[i].model);
        show_failure(plan, problem);
        return false;
    }
    for (size_t i = 0; i < plan->count; i++) {
        log_shape(plan, plan->entries[i].model);
        log_entry(plan, plan->entries[i].model);
    }
    /* Retain the versions that do not serve any more, if their models say so, and release those
     * that are too many. */
    struct bag_models *models = plan->facts.models;
    struct bag_load_view *now = &models->status.now;
    for (size_t i = 0; i < plan->facts.num_published; i++) {
        struct bag_model *model = plan->facts.published[i].model;
        if (model->stored && max_retained(plan, model->name) > 0 &&
            !bag_change_plan_uses(plan, model->stored) && !is_to_unload(plan, model) &&
            !bag_models_add_retained(models, model))
            break; /* a roll back reads it again */
    }
    now->num_retained = now->retained_bytes = 0;
    for (size_t i = 0; i < models->num_records; i++) {
        struct bag_record *record = models->records[i];
        trim_retained(plan, record);
        now->num_retained += record->num_retained;
        for (size_t j = 0; j < record->num_retained; j++)
            now->retained_bytes += bag_source_bytes(record->retained[j].model->source);
    }
    bag_load_status_report(&models->status);
    bag_facts_commit(&plan->facts);
    if (!leaving)
        return true;
    /* Release what was published, and wait until what was unloaded is freed. */
    struct bag_facts *facts = &plan->facts;
    struct bag_model **unloaded = calloc(facts->num_published + 1, sizeof *unloaded);
    size_t count = 0;
    for (size_t i = 0; i < facts->num_published; i++) {
        struct bag_model *model = facts->published[i].model;
        if (unloaded && model->memory && is_to_unload(plan, model))
            unloaded[count++] = bag_model_retain(model);
    }
    bag_facts_free(facts);
    for (size_t i = 0; i < count; i++) {
        wait_until_left(facts->models, unloaded[i], 1);
        bag_model_release(unloaded[i]);
    }
    free(unloaded);
    return publish_entries(plan, false, problem);
}

bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem)
{
    if (plan->facts.kind != BAG_CHANGE_START && !bag_change_plan_changes(plan)) {
        bag_facts_commit(&plan->facts);
        return true;
    }
    if (!plan->is_announced && !bag_change_plan_announce(plan, problem))
        return false;
    bool ok = bag_change_plan_load(plan, problem);
    if (!ok)
        show_failure(plan, problem);
    ok = ok && finish(plan, problem);
    bag_change_plan_finish_loading(plan, ok);
    return ok;
}

bool bag_change_plan_may_go_without(const struct bag_change_plan *plan,
                                    const struct bag_problem *why)
{
    const struct bag_entry *failed = plan->failed;
    const struct bag_source *source = failed ? failed->source : NULL;
    if (!source || why->kind == BAG_ERROR_DRAINING ||
        !bag_facts_add_failure(&plan->facts, source, why) ||
        !bag_plan_goes_without(plan->facts.kind, failed->is_default, source->is_named, why->kind))
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_model *model = &plan->entries[i] != failed ? plan->entries[i].model : NULL;
        if (model && model->stored && model->holders == 1 &&
            !bag_models_add_retained(plan->facts.models, model))
            return false;
    }
    return true;
}

/* ---- deltas ------------ --------------------------------------------------------------------- */

bool bag_models_take_deltas(struct bag_models *models, const struct bag_control *control,
                            bool polls, struct bag_problem *problem)
{
    const struct bag_snapshot *current =
        atomic_load_explicit(&models->registry->current, memory_order_relaxed);
    struct bag_problem why;
    bool ok = true;
    for (size_t i = 0; models->updates && current && i < current->count; i++) {
        const struct bag_model *model = current->listed[i]->model;
        if (!model->memory || model->memory->remote || !model->source ||
            (control && !bag_control_find(control, model->name)))
            continue;
        struct bag_updates_table table = bag_updates_table_of(model);
        if (!bag_updates_take_deltas(models->updates, &table, polls, &why) && ok) {
            *problem = why;
            ok = false;
        }
    }
    return ok;
}
