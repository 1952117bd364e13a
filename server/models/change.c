/* Plans are carried out: tables are loaded, and snapshots published; see change.h. */
#include "change.h"
#include "proto/text.h"
#include "server/memory/memory.h"
#include "server/system/log.h"
#include "server/system/sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- publishing ------------------------------------------------------------------------------ */

/* What is to be published; of each model one hold is its own. */
struct listing {
    struct bag_listed *models;
    size_t count;
};

/* Takes over the caller's hold of the model; false where it is NULL. */
static bool list_model(struct listing *listing, struct bag_model *model, bool is_default,
                       const char *note)
{
    listing->models[listing->count] = (struct bag_listed){model, is_default, note};
    listing->count += model != NULL;
    return model;
}

static void list_entry(struct listing *listing, const struct bag_change_entry *entry)
{
    list_model(listing, bag_model_retain(entry->model), entry->is_default, entry->note);
}

/* Publishes what was listed, if all was, and frees the listing. */
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

static struct listing make_listing(size_t room)
{
    return (struct listing){.models = calloc(room + 1, sizeof(struct bag_listed))};
}

static bool is_dropped(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->num_dropped; i++) {
        if (plan->dropped[i] == model)
            return true;
    }
    return false;
}

/* Whether it is shown as LOADING. At the start, what is loaded already waits for the next plan as
 * it is. */
static bool is_shown_loading(const struct bag_change_plan *plan,
                             const struct bag_change_entry *entry)
{
    return entry->is_announced && (entry->source || plan->kind != BAG_CHANGE_START);
}

static bool has_announced(const struct bag_change_plan *plan, const struct bag_model *model)
{
    const struct bag_change_entry *entry =
        bag_change_find(plan->entries, plan->count, model->name, model->version);
    return entry && is_shown_loading(plan, entry);
}

/* What was published, with `state` for the versions that were announced, and without what is
 * dropped, which is UNLOADING. */
static bool publish_meanwhile(const struct bag_change_plan *plan, enum bag_model_state state,
                              const char *reason, struct bag_problem *problem)
{
    struct listing listing = make_listing(plan->num_prior + plan->count);
    bool ok = listing.models != NULL;
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (is_dropped(plan, model))
            ok =
                has_announced(plan, model) ||
                list_model(&listing,
                           bag_model_without_table(model->name, model->version, BAG_MODEL_UNLOADING,
                                                   "makes room for another version"),
                           plan->prior[i].is_default, NULL);
        else if (!has_announced(plan, model))
            list_entry(&listing, &plan->prior[i]);
    }
    for (size_t i = 0; ok && i < plan->count; i++) {
        const struct bag_change_entry *entry = &plan->entries[i];
        if (is_shown_loading(plan, entry))
            ok = list_model(&listing,
                            bag_model_without_table(bag_entry_name(entry), bag_entry_version(entry),
                                                    state, reason),
                            false, NULL);
        else if (plan->num_prior == 0 && entry->model)
            list_model(&listing, bag_model_retain(entry->model), false, NULL);
    }
    return publish(plan->changer->registry, &listing, ok, problem);
}

/* Whether the model takes the place of one that served, and is unloaded. */
static bool is_leaving(const struct bag_change_plan *plan, const struct bag_model *gone)
{
    return gone->is_unloaded && bag_change_find_ready(plan, gone->name, gone->version);
}

/* Publishes what was planned, or what was published before; `leaving`: what is unloaded is
 * UNLOADING, until it has left. */
static bool publish_entries(const struct bag_change_plan *plan,
                            const struct bag_change_entry *entries, size_t count, bool leaving,
                            struct bag_problem *problem)
{
    struct listing listing = make_listing(count);
    bool ok = listing.models != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        const struct bag_model *model = entries[i].model;
        if (leaving && is_leaving(plan, model))
            ok = list_model(&listing,
                            bag_model_without_table(model->name, model->version,
                                                    BAG_MODEL_UNLOADING, "it is being unloaded"),
                            entries[i].is_default, NULL);
        else
            list_entry(&listing, &entries[i]);
    }
    return publish(plan->changer->registry, &listing, ok, problem);
}

/* What was to be published for the index cannot be. */
static void log_failure(const struct bag_problem *why)
{
    bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", why->text));
}

/* ---- what is unloaded first ------------------------------------------------------------------ */

/* Whether a version of the name is to be read, whose configuration wants room first. */
static bool wants_room(const struct bag_change_plan *plan, const char *name)
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

/* Whether the model holds the table of one that is dropped. */
static bool holds_dropped(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < model->num_features; i++) {
        if (is_dropped(plan, model->features[i].model))
            return true;
    }
    return false;
}

/* Tables that make room, and the collections over them. */
static bool find_dropped(struct bag_change_plan *plan, struct bag_problem *problem)
{
    plan->dropped = calloc(plan->num_prior + 1, sizeof *plan->dropped);
    if (!plan->dropped)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->memory && wants_room(plan, model->name) && !bag_change_uses(plan, model->stored))
            plan->dropped[plan->num_dropped++] = bag_model_retain(model);
    }
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (!model->memory && holds_dropped(plan, model))
            plan->dropped[plan->num_dropped++] = bag_model_retain(model);
    }
    return true;
}

/* How many holds of a dropped model are the plan's own: its list's, that of what was published, and
 * those of dropped collections. */
static size_t own_holds(const struct bag_change_plan *plan, const struct bag_model *model)
{
    size_t holds = 2;
    for (size_t i = 0; i < plan->num_dropped; i++) {
        const struct bag_model *other = plan->dropped[i];
        for (size_t j = 0; other != model && j < other->num_features; j++)
            holds += other->features[j].model == model;
    }
    return holds;
}

static bool replace_dropped(struct bag_change_plan *plan, struct bag_problem *problem)
{
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_change_entry *entry = &plan->prior[i];
        if (!is_dropped(plan, entry->model))
            continue;
        bool is_default = entry->is_default;
        if (!bag_change_reject(entry, "was unloaded to make room for another version", false,
                               problem))
            return false;
        entry->is_default = is_default;
    }
    return true;
}

/* Waits until no request reads them any more, and frees them. */
static bool free_dropped(struct bag_change_plan *plan, struct bag_problem *problem)
{
    const struct bag_changer *changer = plan->changer;
    for (size_t i = 0; i < plan->num_dropped; i++) {
        const struct bag_model *model = plan->dropped[i];
        if (changer->wait_until_left(changer->context, model, own_holds(plan, model)))
            continue;
        if (changer->cancelled && atomic_load(changer->cancelled))
            return bag_problem_set(problem, BAG_ERROR_DRAINING, "the server is stopping");
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "model '%s' version %s: requests do not end that still read its "
                               "table, so that it cannot be unloaded first",
                               model->name, model->version);
    }
    if (!replace_dropped(plan, problem))
        return false;
    while (plan->num_dropped > 0)
        bag_model_release(plan->dropped[--plan->num_dropped]);
    return true;
}

static size_t dropped_bytes(const struct bag_change_plan *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->num_dropped; i++) {
        const struct bag_model *model = plan->dropped[i];
        if (model->source && (!model->stored || model->stored->holders == 1))
            bytes += bag_source_bytes(model->source);
    }
    return bytes;
}

/* ---- announcing ------------------------------------------------------------------------------ */

/* Versions that are only held make room. */
static bool check_room(struct bag_change_plan *plan, struct bag_problem *problem)
{
    size_t freed = dropped_bytes(plan);
    while (!bag_pages_check(plan->bytes, freed, problem) ||
           (plan->bytes > freed && !bag_memory_check(plan->bytes - freed, problem))) {
        if (!bag_change_let_go(plan))
            return false;
    }
    return true;
}

/* Whether the version is to be loaded and none answers meanwhile. */
static bool is_away(const struct bag_change_plan *plan, const struct bag_change_entry *entry)
{
    const struct bag_model *ready =
        bag_change_find_ready(plan, bag_entry_name(entry), bag_entry_version(entry));
    return entry->source && (!ready || is_dropped(plan, ready));
}

/* Whether it is a collection that could not be served and is tried again. That reads nothing, and a
 * poll does it each time: it goes on saying why. */
static bool is_tried_again(const struct bag_change_plan *plan, const struct bag_change_entry *entry)
{
    const struct bag_change_entry *prior = bag_change_find(
        plan->prior, plan->num_prior, bag_entry_name(entry), bag_entry_version(entry));
    return plan->kind != BAG_CHANGE_START && bag_source_is_collection(entry->source) && prior &&
           prior->model->state == BAG_MODEL_UNAVAILABLE;
}

bool bag_change_plan_announce(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool announces = plan->kind == BAG_CHANGE_START;
    plan->is_announced = true;
    if (!find_dropped(plan, problem) || !check_room(plan, problem))
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_change_entry *entry = &plan->entries[i];
        entry->is_announced = is_away(plan, entry) && !is_tried_again(plan, entry);
        announces |= entry->is_announced;
    }
    if (announces &&
        !publish_meanwhile(plan, BAG_MODEL_LOADING, "the tables are still being loaded", problem))
        return false;
    if (plan->num_dropped == 0 || free_dropped(plan, problem))
        return true;
    struct bag_problem why;
    if (!publish_entries(plan, plan->prior, plan->num_prior, false, &why))
        log_failure(&why);
    return false;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void log_entry(const struct bag_change_plan *plan, const struct bag_model *model)
{
    bool is_known = plan->kind == BAG_CHANGE_START && model->state == BAG_MODEL_READY;
    for (size_t i = 0; i < plan->num_prior; i++)
        is_known |= plan->prior[i].model == model;
    if (is_known)
        return;
    if (model->state == BAG_MODEL_READY)
        bag_log(BAG_LOG_LEVEL_INFO, "model ready", BAG_LOG_TEXT("model", model->name),
                BAG_LOG_TEXT("version", model->version));
    else
        bag_log(model->is_unloaded ? BAG_LOG_LEVEL_INFO : BAG_LOG_LEVEL_WARNING,
                model->is_unloaded ? "model unloaded" : "model unavailable",
                BAG_LOG_TEXT("model", model->name), BAG_LOG_TEXT("version", model->version),
                BAG_LOG_TEXT("reason", model->cause));
}

static void log_shape(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; model->memory && i < plan->num_prior; i++) {
        const struct bag_model *old = plan->prior[i].model;
        if (old->memory && plan->prior[i].is_default && strcmp(old->name, model->name) == 0 &&
            old->memory->table.row_elements != model->memory->table.row_elements)
            bag_log(BAG_LOG_LEVEL_WARNING, "row width changed", BAG_LOG_TEXT("model", model->name),
                    BAG_LOG_NUMBER("elements_before", old->memory->table.row_elements),
                    BAG_LOG_NUMBER("elements", model->memory->table.row_elements));
    }
}

/* Lets go of what was published, and waits until what was unloaded is freed. */
static void wait_for_unloaded(struct bag_change_plan *plan)
{
    struct bag_changer *changer = plan->changer;
    struct bag_model **gone = calloc(plan->num_prior + 1, sizeof *gone);
    size_t count = 0;
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (gone && model->memory && bag_change_is_to_unload(plan, model))
            gone[count++] = bag_model_retain(model);
    }
    for (size_t i = 0; i < plan->num_prior; i++)
        bag_model_release(plan->prior[i].model);
    plan->num_prior = 0;
    for (size_t i = 0; i < count; i++) {
        changer->wait_until_left(changer->context, gone[i], 1);
        bag_model_release(gone[i]);
    }
    free(gone);
}

/* Tells why the versions that were announced are not there, and the one that failed. */
static void give_up(struct bag_change_plan *plan, const struct bag_problem *why)
{
    struct bag_problem ignored;
    const char *reason = why->kind == BAG_ERROR_DRAINING ? "the server is stopping" : why->text;
    if (plan->failed)
        plan->failed->is_announced |= is_away(plan, plan->failed);
    if (!publish_meanwhile(plan, BAG_MODEL_UNAVAILABLE, reason, &ignored))
        log_failure(&ignored);
}

/* Whether a version that is mapped from its file is the default one from here on, and was not. */
static bool is_new_mapped(const struct bag_change_plan *plan, const struct bag_change_entry *entry)
{
    bool found =
        entry->is_default && !bag_model_is_collection(entry->model) && entry->model->mapped;
    for (size_t i = 0; found && i < plan->num_prior; i++)
        found = plan->prior[i].model != entry->model || !plan->prior[i].is_default;
    return found;
}

/* A version that is mapped gets no updates, and may have been checked long ago: nothing that was
 * acknowledged since is left out, and what it takes the place of takes no more. */
static bool close_updates(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_updates *updates = plan->changer->updates;
    bool checks = updates && plan->kind != BAG_CHANGE_START, ok = true;
    for (size_t i = 0; checks && ok && i < plan->count; i++) {
        const struct bag_model *model = plan->entries[i].model;
        if (!is_new_mapped(plan, &plan->entries[i]))
            continue;
        for (size_t j = 0; j < plan->num_prior; j++) {
            const struct bag_model *old = plan->prior[j].model;
            if (old->stored && strcmp(old->name, model->name) == 0 &&
                !bag_change_uses(plan, old->stored))
                bag_updates_close(old->memory->live, true);
        }
        struct bag_updates_table table = bag_change_updates_table(model);
        ok = bag_updates_attach(updates, &table, problem);
    }
    return ok;
}

static void open_updates(const struct bag_change_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (entries[i].model->stored)
            bag_updates_close(entries[i].model->memory->live, false);
    }
}

static bool finish(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool leaving = false;
    for (size_t i = 0; i < plan->count; i++)
        leaving |= is_leaving(plan, plan->entries[i].model);
    open_updates(plan->entries, plan->count);
    if (!close_updates(plan, problem) ||
        !publish_entries(plan, plan->entries, plan->count, leaving, problem)) {
        open_updates(plan->prior, plan->num_prior);
        give_up(plan, problem);
        return false;
    }
    for (size_t i = 0; i < plan->count; i++) {
        log_shape(plan, plan->entries[i].model);
        log_entry(plan, plan->entries[i].model);
    }
    bag_change_keep_versions(plan);
    bag_change_plan_commit(plan);
    if (!leaving)
        return true;
    wait_for_unloaded(plan);
    return publish_entries(plan, plan->entries, plan->count, false, problem);
}

bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem)
{
    if (plan->kind != BAG_CHANGE_START && !bag_change_plan_changes(plan)) {
        bag_change_plan_commit(plan);
        return true;
    }
    if (!plan->is_announced && !bag_change_plan_announce(plan, problem))
        return false;
    bool ok = bag_change_load(plan, problem);
    if (!ok)
        give_up(plan, problem);
    ok = ok && finish(plan, problem);
    bag_change_end_loading(plan, ok);
    return ok;
}

/* ---- what is told of a change ---------------------------------------------------------------- */

void bag_changer_show_plan_error(struct bag_changer *changer)
{
    const struct bag_plan_error *error = &changer->error;
    const struct bag_snapshot *current =
        atomic_load_explicit(&changer->registry->current, memory_order_relaxed);
    struct bag_problem why;
    char note[sizeof why.text + 128];
    if (!*error->name || !current)
        return;
    snprintf(note, sizeof note, BAG_LOADED_BEFORE "%s", error->problem.text);
    bag_text_hide_folders(note);
    struct listing listing = make_listing(current->count + 1);
    bool is_ready = false;
    for (size_t i = 0; listing.models && i < current->count; i++) {
        struct bag_model *model = current->listed[i];
        bool is_refused =
            strcmp(model->name, error->name) == 0 && strcmp(model->version, error->version) == 0;
        is_ready |= is_refused && model->state == BAG_MODEL_READY;
        if (!is_refused || model->state == BAG_MODEL_READY)
            list_model(&listing, bag_model_retain(model), bag_snapshot_prefers(current, model),
                       is_refused ? note : bag_snapshot_find_remark(current, model));
    }
    bool ok =
        listing.models &&
        (is_ready || list_model(&listing,
                                bag_model_without_table(error->name, error->version,
                                                        BAG_MODEL_UNAVAILABLE, error->problem.text),
                                false, NULL));
    if (!publish(changer->registry, &listing, ok, &why))
        log_failure(&why);
}
