/* Publishing and releasing what a plan says; see carry_out.h. */
#include "carry_out.h"

#include "proto/arena.h"
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

/* ---- what is shown meanwhile ----------------------------------------------------------------- */

/* Publishes `now` of all versions, and logs if that fails: the index of models is not up to date.
 */
static void publish_now(struct bag_models *models)
{
    struct bag_problem why;
    if (!bag_models_publish(models, false, &why))
        bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", why.text));
}

/* Shows a version without a table. Returns false with *problem without memory. */
static bool show_state(const struct bag_change_plan *plan, struct bag_version *version,
                       enum bag_model_state state, bool is_default, const char *reason,
                       struct bag_problem *problem)
{
    struct bag_model *model = bag_version_stub(version, state, reason, false, problem);
    if (!model)
        return false;
    bag_version_show(version, (struct bag_listed){.model = model, .is_default = is_default},
                     plan->kind == BAG_CHANGE_START);
    return true;
}

void bag_change_plan_show_bad(const struct bag_change_plan *plan)
{
    struct bag_version *version = plan->bad;
    const char *reason = plan->bad_problem.text;
    struct bag_problem why;
    char remark[sizeof why.text + 128];
    if (!version)
        return;
    snprintf(remark, sizeof remark, BAG_LOADED_BEFORE "%s", reason);
    bag_text_hide_folders(remark);
    if (bag_listed_is_ready(&version->now)) {
        free(version->now.remark);
        version->now.remark = strdup(remark);
    } else {
        show_state(plan, version, BAG_MODEL_UNAVAILABLE, false, reason, &why);
    }
    publish_now(plan->models);
}

void bag_models_unlist_rejected(struct bag_models *models)
{
    bool shows = false;
    for (size_t i = 0; i < models->num_names; i++) {
        const struct bag_name *name = models->names[i];
        bool exists = bag_config_find_model(models->config, name->text) != NULL;
        for (size_t j = 0; !exists && j < name->count; j++) {
            struct bag_version *version = name->versions[j];
            const struct bag_source *found = version->found;
            if (!version->now.model || bag_listed_is_ready(&version->now) || !found ||
                (!found->is_named && !bag_model_has_shards(found->model)))
                continue;
            bag_version_show(version, (struct bag_listed){0}, false);
            shows = true;
        }
    }
    if (shows)
        publish_now(models);
}

/* Returns whether the version is to be loaded and does not answer meanwhile. */
static bool is_unavailable_meanwhile(const struct bag_version *version)
{
    return version->source && !bag_listed_is_ready(&version->now);
}

/* Shows why the versions that were announced are not there, and the one that failed. */
static void show_failure(struct bag_change_plan *plan, const struct bag_problem *why)
{
    const char *reason = why->kind == BAG_ERROR_DRAINING ? "the server is stopping" : why->text;
    struct bag_problem ignored, of_pin;
    bool shows = false;
    if (plan->failed)
        plan->failed->is_announced |= is_unavailable_meanwhile(plan->failed);
    for (size_t i = 0; i < plan->num_names; i++) {
        for (size_t j = 0; j < plan->names[i]->count; j++) {
            struct bag_version *version = plan->names[i]->versions[j];
            bool is_over = plan->failed && bag_change_plan_pins(version, plan->failed);
            if (is_over)
                bag_problem_set(&of_pin, why->kind,
                                "version %llu of model '%s', which it pins, cannot be served: %s",
                                (unsigned long long)plan->failed->number, plan->failed->name->text,
                                reason);
            if (version->is_announced)
                shows |= show_state(plan, version, BAG_MODEL_UNAVAILABLE, false,
                                    is_over ? of_pin.text : reason, &ignored);
        }
    }
    if (shows)
        publish_now(plan->models);
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
static bool is_unload_first(const struct bag_name *name)
{
    bool found = false;
    for (size_t i = 0; name->is_decided && i < name->count; i++) {
        const struct bag_version *version = name->versions[i];
        const struct bag_source *source = version->source;
        found |= source && !version->stored && !bag_source_is_collection(source) &&
                 source->model->reload == BAG_RELOAD_UNLOAD_FIRST;
    }
    return found;
}

/* Returns whether the plan unloads the model before it loads others. */
static bool is_unloaded_first(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        if (plan->unloaded_first[i].listed.model == model)
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

/* Adds a version to those that are unloaded first. */
static bool add_unloaded_first(struct bag_change_plan *plan, struct bag_version *version,
                               struct bag_problem *problem)
{
    if (!BAG_GROW(plan->unloaded_first, plan->num_unloaded_first))
        return bag_problem_no_memory(problem);
    plan->unloaded_first[plan->num_unloaded_first++] =
        (struct bag_unloaded_first){.version = version, .listed = bag_listed_copy(&version->now)};
    return true;
}

/* Finds the tables that are unloaded first and, if there are any, the collections over them. */
static bool find_unloaded_first(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_models *models = plan->models;
    bool ok = true;
    for (size_t i = 0; i < plan->num_names; i++) {
        const struct bag_name *name = plan->names[i];
        bool unloads = is_unload_first(name);
        for (size_t j = 0; ok && unloads && j < name->count; j++) {
            const struct bag_model *model = name->versions[j]->now.model;
            if (model && model->memory && !bag_change_plan_uses(plan, model->stored))
                ok = add_unloaded_first(plan, name->versions[j], problem);
        }
    }
    for (size_t i = 0; ok && plan->num_unloaded_first && i < models->num_names; i++) {
        const struct bag_name *name = models->names[i];
        for (size_t j = 0; ok && j < name->count; j++) {
            const struct bag_model *model = name->versions[j]->now.model;
            if (model && depends_on_unloaded(plan, model))
                ok = add_unloaded_first(plan, name->versions[j], problem);
        }
    }
    return ok;
}

/* Returns the number of the plan's own references to a model that is unloaded first: that of the
 * list, and those of collections in the list. */
static size_t own_references(const struct bag_change_plan *plan, const struct bag_model *model)
{
    size_t count = 1;
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        const struct bag_model *other = plan->unloaded_first[i].listed.model;
        for (size_t j = 0; other != model && j < other->num_features; j++)
            count += other->features[j].model == model;
    }
    return count;
}

/* Waits until no request reads the models that are unloaded first, and frees them. If requests do
 * not leave, or these models could not be announced, all are as before, and published again. */
static bool free_unloaded_first(struct bag_change_plan *plan, bool is_announced,
                                struct bag_problem *problem)
{
    struct bag_models *models = plan->models;
    bool ok = is_announced;
    for (size_t i = 0; ok && i < plan->num_unloaded_first; i++) {
        const struct bag_model *model = plan->unloaded_first[i].listed.model;
        ok = wait_until_left(models, model, own_references(plan, model));
        if (!ok && atomic_load(&models->cancelled))
            bag_problem_set(problem, BAG_ERROR_DRAINING, "the server is stopping");
        else if (!ok)
            bag_problem_set(problem, BAG_ERROR_CONFLICT,
                            "model '%s' version %s: requests do not end that still read its "
                            "table, so that it cannot be unloaded first",
                            model->name, model->version);
    }
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        struct bag_version *version = plan->unloaded_first[i].version;
        struct bag_listed *listed = &plan->unloaded_first[i].listed;
        if (ok && version->is_announced)
            continue;
        struct bag_listed unloaded = {
            .model = ok ? bag_version_stub(version, BAG_MODEL_UNAVAILABLE,
                                           "was unloaded to make room for another version", false,
                                           problem)
                        : NULL};
        ok = ok && unloaded.model;
        /* Nothing is logged: the versions are unlisted soon, or never ceased to serve. */
        bag_listed_clear(&version->now);
        version->now = ok ? unloaded : *listed;
        if (!ok)
            *listed = (struct bag_listed){0};
        version->is_announced &= ok;
    }
    while (plan->num_unloaded_first > 0)
        bag_listed_clear(&plan->unloaded_first[--plan->num_unloaded_first].listed);
    if (!ok)
        publish_now(models);
    return ok;
}

/* ---- retained versions ----------------------------------------------------------------------- */

/* Returns the name and the index of the version that was retained first, of those that the plan
 * does not use; NULL if there is none. */
static struct bag_name *find_oldest(const struct bag_change_plan *plan, size_t *index)
{
    const struct bag_models *models = plan->models;
    struct bag_name *oldest = NULL;
    for (size_t i = 0; i < models->num_names; i++) {
        struct bag_name *name = models->names[i];
        for (size_t j = 0; j < name->num_retained; j++) {
            if (bag_change_plan_uses(plan, name->retained[j].model->stored) ||
                (oldest && oldest->retained[*index].order < name->retained[j].order))
                continue;
            oldest = name;
            *index = j;
        }
    }
    return oldest;
}

/* Returns how many versions of the model are retained, as its default version says. */
static size_t max_retained(const struct bag_name *name)
{
    const struct bag_version *version = bag_name_next_default(name);
    const struct bag_source *source = version ? bag_version_source(version) : NULL;
    return source ? (size_t)source->model->keep_versions : 0;
}

/* Releases the versions of a name that serve again, or are too many. Without memory all stay until
 * the next change. */
static void trim_retained(const struct bag_change_plan *plan, struct bag_name *name)
{
    size_t count = name->num_retained;
    bool *flags = count ? calloc(2 * count, sizeof *flags) : NULL;
    if (!flags)
        return;
    for (size_t i = 0; i < count; i++)
        flags[i] = bag_change_plan_uses(plan, name->retained[i].model->stored);
    bag_plan_retained(flags, count, max_retained(name), flags + count);
    for (size_t i = count; i-- > 0;) {
        if (flags[count + i])
            bag_name_release(name, i);
    }
    free(flags);
}

/* ---- announcing ------------------------------------------------------------------------------ */

/* Returns whether the i-th model that is unloaded first is the first one of these with its table,
 * and no other model keeps that. */
static bool frees_table(const struct bag_change_plan *plan, size_t i)
{
    const struct bag_stored_table *stored = plan->unloaded_first[i].listed.model->stored;
    size_t holders = 0;
    for (size_t j = 0; j < plan->num_unloaded_first; j++) {
        bool is_same = plan->unloaded_first[j].listed.model->stored == stored;
        if (is_same && j < i)
            return false;
        holders += is_same;
    }
    return holders == stored->holders;
}

/* Checks that memory suffices, releasing retained versions until enough is free. */
static bool check_memory(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    size_t freed = 0; /* memory that unloading first releases */
    bag_registry_collect(plan->models->registry);
    for (size_t i = 0; i < plan->num_unloaded_first; i++) {
        const struct bag_model *model = plan->unloaded_first[i].listed.model;
        freed += model->source ? bag_source_bytes(model->source) : 0;
        if (model->source && model->stored && !frees_table(plan, i))
            freed -= bag_source_table_bytes(model->source);
    }
    while (!bag_pages_check(plan->bytes, freed, problem) ||
           (plan->bytes > freed && !bag_memory_check(plan->bytes - freed, problem))) {
        /* Release the version that was retained first, and wait until requests that read it have
         * ended. */
        size_t index;
        struct bag_name *name = find_oldest(plan, &index);
        if (!name)
            return false;
        struct bag_model *model = bag_model_retain(name->retained[index].model);
        bag_name_release(name, index);
        bool has_left = wait_until_left(plan->models, model, 1);
        bag_log(BAG_LOG_LEVEL_INFO, "version released", BAG_LOG_TEXT("model", model->name),
                BAG_LOG_TEXT("version", model->version));
        bag_model_release(model);
        if (!has_left)
            return false;
    }
    return true;
}

/* Returns whether the version is a collection that was UNAVAILABLE and is tried again. That reads
 * nothing, and a poll does it each time, so the reason stays published. */
static bool is_tried_again(const struct bag_change_plan *plan, const struct bag_version *version)
{
    return plan->kind != BAG_CHANGE_START && bag_source_is_collection(version->source) &&
           version->now.model && version->now.model->state == BAG_MODEL_UNAVAILABLE;
}

/* Shows that versions are loaded or unloaded first. The start also shows those that cannot be
 * served. Sets *shows if the index of models changes. */
static bool show_announced(struct bag_change_plan *plan, bool *shows, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < plan->num_unloaded_first; i++) {
        struct bag_version *version = plan->unloaded_first[i].version;
        ok = show_state(plan, version, BAG_MODEL_UNLOADING, version->now.is_default,
                        "makes room for another version", problem);
    }
    for (size_t i = 0; ok && i < plan->num_loads; i++) {
        struct bag_version *version = plan->loads[i];
        if (!is_unavailable_meanwhile(version) || is_tried_again(plan, version))
            continue;
        version->is_announced = *shows = true;
        ok = show_state(plan, version, BAG_MODEL_LOADING, false,
                        "the tables are still being loaded", problem);
    }
    for (size_t i = 0; plan->kind == BAG_CHANGE_START && i < plan->num_names; i++) {
        for (size_t j = 0; j < plan->names[i]->count; j++) {
            struct bag_version *version = plan->names[i]->versions[j];
            *shows = true;
            if (version->next.model && !version->now.model)
                bag_version_show(version, bag_listed_copy(&version->next), true);
        }
    }
    return ok;
}

bool bag_change_plan_announce(struct bag_change_plan *plan, struct bag_problem *problem)
{
    if (!find_unloaded_first(plan, problem))
        return false;
    if (!check_memory(plan, problem))
        return bag_change_plan_explain_memory(plan, problem);
    bool shows = plan->num_unloaded_first > 0 || plan->kind == BAG_CHANGE_START;
    bool ok = show_announced(plan, &shows, problem) &&
              (!shows || bag_models_publish(plan->models, false, problem));
    return plan->num_unloaded_first ? free_unloaded_first(plan, ok, problem) : ok;
}

/* ---- updates of rows ------------------------------------------------------------------------- */

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

/* Closes the streams of versions of the name that its new default version replaces and whose
 * updates it cannot take. The new one may have been checked long ago: no update may be acknowledged
 * that it lacks. */
static bool close_updates(const struct bag_change_plan *plan, const struct bag_name *name,
                          struct bag_problem *problem)
{
    const struct bag_version *version = bag_name_next_default(name);
    const struct bag_model *model = version ? version->next.model : NULL;
    const char *misfit = NULL;
    if (!model || (version->now.model == model && version->now.is_default))
        return true;
    for (size_t i = 0; i < name->count; i++) {
        const struct bag_model *old = name->versions[i]->now.model;
        const bool is_replaced = old && old->stored && !bag_change_plan_uses(plan, old->stored);
        const char *reason = is_replaced ? find_misfit(model, old) : NULL;
        if (reason) {
            bag_updates_close(old->memory->live, reason);
            misfit = reason;
        }
    }
    const bool has_rows = model->stored && !model->memory->remote;
    return !has_rows || (!misfit && !model->mapped) ||
           check_updates(plan->models->updates, model, misfit, problem);
}

/* Makes the tables of the decided names take updates again: those that serve, and those that will.
 */
static void open_updates(const struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->num_names; i++) {
        for (size_t j = 0; j < plan->names[i]->count; j++) {
            const struct bag_version *version = plan->names[i]->versions[j];
            const struct bag_model *both[] = {version->now.model, version->next.model};
            for (size_t k = 0; k < 2; k++) {
                if (both[k] && both[k]->stored)
                    bag_updates_close(both[k]->memory->live, NULL);
            }
        }
    }
}

/* ---- the end of a change --------------------------------------------------------------------- */

/* Warns if the version's rows have another width than those of the version that was the default
 * one.
 */
static void log_shape(const struct bag_version *version)
{
    const struct bag_model *model = version->next.model;
    for (size_t i = 0; model->memory && i < version->name->count; i++) {
        const struct bag_listed *now = &version->name->versions[i]->now;
        const struct bag_table_memory *old = now->model ? now->model->memory : NULL;
        if (old && now->is_default && old->table.row_elements != model->memory->table.row_elements)
            bag_log(BAG_LOG_LEVEL_WARNING, "row width changed", BAG_LOG_TEXT("model", model->name),
                    BAG_LOG_NUMBER("elements_before", old->table.row_elements),
                    BAG_LOG_NUMBER("elements", model->memory->table.row_elements));
    }
}

/* A version that was unloaded and is UNLOADING until its last request has ended. */
struct leaving {
    struct bag_version *version;
    struct bag_model *old, *unloaded; /* references; the model that served, NULL for a collection,
                                         which would keep the models of its tables; what is listed
                                         then */
};

struct leaving_list {
    struct leaving *list; /* owned, with elements */
    size_t count;
};

/* Puts the state UNLOADING into the place of versions that the plan unloads. */
static bool begin_leaving(struct bag_change_plan *plan, struct leaving_list *all,
                          struct bag_problem *problem)
{
    for (size_t i = 0; i < plan->num_names; i++) {
        for (size_t j = 0; j < plan->names[i]->count; j++) {
            struct bag_version *version = plan->names[i]->versions[j];
            struct bag_model *next = version->next.model;
            if (!next || !next->is_unloaded || !bag_listed_is_ready(&version->now))
                continue;
            struct bag_model *model = bag_version_stub(version, BAG_MODEL_UNLOADING,
                                                       "it is being unloaded", false, problem);
            if (!model || !BAG_GROW(all->list, all->count)) {
                bag_model_release(model);
                return bag_problem_no_memory(problem);
            }
            struct bag_model *old = version->now.model;
            all->list[all->count++] =
                (struct leaving){version, old->memory ? bag_model_retain(old) : NULL, next};
            version->next.model = model;
        }
    }
    return true;
}

/* Waits until the versions that were unloaded are freed, and shows them as unloaded. */
static void finish_leaving(struct bag_models *models, struct leaving_list *all)
{
    for (size_t i = 0; i < all->count; i++) {
        struct leaving *leaving = &all->list[i];
        if (leaving->old && !wait_until_left(models, leaving->old, 1) &&
            !atomic_load(&models->cancelled))
            bag_log(BAG_LOG_LEVEL_WARNING, "table still read",
                    BAG_LOG_TEXT("model", leaving->old->name),
                    BAG_LOG_TEXT("version", leaving->old->version));
        bag_model_release(leaving->old);
        leaving->old = NULL;
    }
    for (size_t i = 0; i < all->count; i++) {
        struct leaving *leaving = &all->list[i];
        bag_version_show(leaving->version, (struct bag_listed){.model = leaving->unloaded}, false);
        leaving->unloaded = NULL;
    }
    if (all->count)
        publish_now(models);
}

static void free_leaving(struct leaving_list *all)
{
    for (size_t i = 0; i < all->count; i++) {
        bag_model_release(all->list[i].old);
        bag_model_release(all->list[i].unloaded);
    }
    free(all->list);
}

/* Makes what was published the present state: nothing can fail any more. Retains the versions that
 * do not serve any more, if their models say so. */
static void commit(struct bag_change_plan *plan)
{
    struct bag_models *models = plan->models;
    for (size_t i = 0; i < plan->num_names; i++) {
        struct bag_name *name = plan->names[i];
        size_t limit = max_retained(name);
        for (size_t j = 0; j < name->count; j++) {
            struct bag_version *version = name->versions[j];
            struct bag_model *old = version->now.model;
            bool is_unloaded =
                version->next.model && version->next.model->state == BAG_MODEL_UNLOADING;
            bool is_other = version->next.model != old;
            plan->serves_others |= is_other && (bag_listed_is_ready(&version->now) ||
                                                bag_listed_is_ready(&version->next));
            if (version->next.model && is_other)
                log_shape(version);
            if (limit && old && old->stored && !is_unloaded &&
                !bag_change_plan_uses(plan, old->stored))
                bag_name_retain(models, name, old); /* without memory, a roll back reads it again */
        }
        for (size_t j = 0; j < name->count; j++) {
            struct bag_version *version = name->versions[j];
            bag_version_show(version, version->next, plan->kind == BAG_CHANGE_START);
            version->next = (struct bag_listed){0};
        }
        name->desired = name->next_desired;
        name->is_decided = false;
        *name->found.text = 0;
    }
}

/* Releases retained versions that are too many, and counts the others. */
static void trim(struct bag_change_plan *plan)
{
    struct bag_models *models = plan->models;
    struct bag_load_view *now = &models->status.now;
    now->num_retained = now->retained_bytes = 0;
    for (size_t i = 0; i < models->num_names; i++) {
        struct bag_name *name = models->names[i];
        trim_retained(plan, name);
        now->num_retained += name->num_retained;
        for (size_t j = 0; j < name->num_retained; j++)
            now->retained_bytes += bag_source_bytes(name->retained[j].model->source);
    }
    bag_load_status_report(&models->status);
}

/* Remembers what requests asked for. */
static void commit_desired(const struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->num_names; i++)
        plan->names[i]->desired = plan->names[i]->next_desired;
}

/* Publishes the next snapshot, and retains or releases the models that only the last one had. */
static bool finish(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct leaving_list leaving = {.count = 0};
    bool ok = bag_change_plan_list_used(plan, problem);
    open_updates(plan);
    for (size_t i = 0;
         plan->models->updates && plan->kind != BAG_CHANGE_START && ok && i < plan->num_names; i++)
        ok = close_updates(plan, plan->names[i], problem);
    ok = ok && begin_leaving(plan, &leaving, problem) &&
         bag_models_publish(plan->models, true, problem);
    if (ok) {
        commit(plan);
        trim(plan);
        finish_leaving(plan->models, &leaving);
    } else {
        open_updates(plan);
    }
    free_leaving(&leaving);
    return ok;
}

/* Returns whether the version was to become a default one: that of its name, or by a pin of the
 * default version of a collection that is loaded. */
static bool is_for_default(const struct bag_change_plan *plan, const struct bag_version *failed)
{
    bool is_default = failed->next.is_default;
    for (size_t i = 0; !is_default && i < plan->num_loads; i++) {
        const struct bag_version *version = plan->loads[i];
        is_default =
            version->source && version->next.is_default && bag_change_plan_pins(version, failed);
    }
    return is_default;
}

/* Returns whether the version failed in this change before: it serves, and is to be loaded over
 * another table whatever is decided about it. */
static bool fails_again(const struct bag_change_plan *plan)
{
    const struct bag_failed_version *before = plan->failed->failed;
    return before && before->change == plan->models->num_changes &&
           before->fingerprint == plan->failed->source->fingerprint;
}

/* Remembers the tables that this change has read for a collection which cannot be made over them,
 * so that polls do not read them again and again. */
static void blame_tables(const struct bag_change_plan *plan, const struct bag_problem *why)
{
    const struct bag_model_config *config = plan->failed->source->model;
    for (size_t i = 0; i < config->num_features; i++) {
        struct bag_version *table = bag_change_plan_find_table(plan, &config->features[i]);
        if (table && table->made)
            bag_version_fail(plan->models, table, table->made->source->fingerprint, why);
    }
}

/* Remembers that a version could not be loaded. Returns whether the change is made without it. */
static bool goes_without(struct bag_change_plan *plan, const struct bag_problem *why)
{
    struct bag_version *failed = plan->failed;
    const struct bag_source *source = failed ? failed->source : NULL;
    if (!source || why->kind == BAG_ERROR_DRAINING)
        return false;
    if (fails_again(plan)) {
        blame_tables(plan, why);
        return false;
    }
    return bag_version_fail(plan->models, failed, source->fingerprint, why) &&
           bag_plan_goes_without(plan->kind, is_for_default(plan, failed), source->is_named,
                                 why->kind);
}

bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool ok, goes_on = true;
    if (plan->kind != BAG_CHANGE_START && !bag_change_plan_changes(plan)) {
        commit_desired(plan);
        return true;
    }
    do {
        ok = bag_change_plan_announce(plan, problem) && bag_change_plan_load(plan, problem);
        if (!ok)
            goes_on = goes_without(plan, problem) && bag_change_plan_go_without(plan, problem);
    } while (!ok && goes_on);
    ok = ok && finish(plan, problem);
    if (!ok)
        show_failure(plan, problem);
    bag_change_plan_finish_loading(plan, ok);
    return ok;
}

/* ---- deltas ---------------------------------------------------------------------------------- */

bool bag_models_take_deltas(struct bag_models *models, const struct bag_control *control,
                            bool polls, struct bag_problem *problem)
{
    struct bag_problem why;
    bool ok = true;
    for (size_t i = 0; models->updates && i < models->num_names; i++) {
        const struct bag_name *name = models->names[i];
        for (size_t j = 0; j < name->count; j++) {
            const struct bag_model *model = name->versions[j]->now.model;
            if (!model || !model->memory || model->memory->remote || !model->source ||
                (control && !bag_control_find(control, model->name)))
                continue;
            struct bag_updates_table table = bag_updates_table_of(model);
            if (!bag_updates_take_deltas(models->updates, &table, polls, &why) && ok) {
                *problem = why;
                ok = false;
            }
        }
    }
    return ok;
}
