/* Plans are carried out: tables are loaded, and snapshots published; see change.h. */
#include "change.h"
#include "server/memory/memory.h"
#include "server/system/log.h"
#include "server/system/sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool no_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- how far loading is ---------------------------------------------------------------------- */

void bag_load_status_read(struct bag_load_status *status, struct bag_load_view *view)
{
    pthread_mutex_lock(&status->lock);
    *view = (struct bag_load_view){.done_bytes = status->done_bytes,
                                   .total_bytes = status->total_bytes,
                                   .num_done = status->num_done,
                                   .num_failed = status->num_failed,
                                   .num_kept = status->num_kept,
                                   .kept_bytes = status->kept_bytes};
    memcpy(view->name, status->name, sizeof view->name);
    memcpy(view->version, status->version, sizeof view->version);
    uint64_t begun_ns = status->begun_ns;
    pthread_mutex_unlock(&status->lock);
    if (view->done_bytes && view->total_bytes > view->done_bytes)
        view->left_s = (double)(now_ns() - begun_ns) * 1e-9 / (double)view->done_bytes *
                       (double)(view->total_bytes - view->done_bytes);
}

static void begin_status(struct bag_load_status *status, size_t total_bytes)
{
    pthread_mutex_lock(&status->lock);
    status->done_bytes = 0;
    status->total_bytes = total_bytes;
    status->begun_ns = now_ns();
    pthread_mutex_unlock(&status->lock);
}

static void enter_status(struct bag_load_status *status, const char *name, const char *version)
{
    pthread_mutex_lock(&status->lock);
    snprintf(status->name, sizeof status->name, "%s", name);
    snprintf(status->version, sizeof status->version, "%s", version);
    pthread_mutex_unlock(&status->lock);
}

static void move_status(struct bag_load_status *status, size_t done_bytes)
{
    pthread_mutex_lock(&status->lock);
    status->done_bytes = done_bytes;
    pthread_mutex_unlock(&status->lock);
}

static void end_status(struct bag_load_status *status, bool ok)
{
    enter_status(status, "", "");
    pthread_mutex_lock(&status->lock);
    status->done_bytes = status->total_bytes = 0;
    status->num_done += ok;
    status->num_failed += !ok;
    pthread_mutex_unlock(&status->lock);
}

/* ---- publishing ------------------------------------------------------------------------------ */

/* What is to be published: models, of which some are default versions. */
struct listing {
    struct bag_model **models; /* each held */
    bool *preferred;
    size_t count;
};

static void free_listing(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        bag_model_drop(listing->models[i]);
    free(listing->models);
    free(listing->preferred);
}

static bool make_listing(struct listing *listing, size_t room)
{
    *listing = (struct listing){.models = calloc(room + 1, sizeof *listing->models),
                                .preferred = calloc(room + 1, sizeof *listing->preferred)};
    return listing->models && listing->preferred;
}

/* Takes over the caller's hold of the model; false where it is NULL. */
static bool list_model(struct listing *listing, struct bag_model *model, bool is_default)
{
    listing->models[listing->count] = model;
    listing->preferred[listing->count] = is_default;
    listing->count += model != NULL;
    return model;
}

static struct bag_model *hold(struct bag_model *model)
{
    model->holders++;
    return model;
}

static bool publish(struct bag_registry *registry, const struct listing *listing,
                    struct bag_problem *problem)
{
    struct bag_snapshot *snapshot =
        bag_snapshot_make(listing->models, listing->count, registry->max_readers);
    if (!snapshot)
        return no_memory(problem);
    for (size_t i = 0; i < listing->count; i++) {
        if (listing->preferred[i])
            bag_snapshot_prefer(snapshot, listing->models[i]);
    }
    if (bag_registry_publish(registry, snapshot, problem))
        return true;
    bag_snapshot_free(snapshot);
    return false;
}

static bool is_same(const struct bag_model *model, const struct bag_change_entry *entry)
{
    return strcmp(model->name, bag_entry_name(entry)) == 0 &&
           strcmp(model->version, bag_entry_version(entry)) == 0;
}

static bool is_dropped(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->num_dropped; i++) {
        if (plan->dropped[i] == model)
            return true;
    }
    return false;
}

/* Whether a version in the plan stands in place of what was published of it until it is loaded. */
static bool is_announced(const struct bag_change_plan *plan, const struct bag_change_entry *entry)
{
    for (size_t i = 0; i < plan->num_prior; i++) {
        const struct bag_model *model = plan->prior[i].model;
        if (is_same(model, entry) && model->state == BAG_MODEL_READY && !is_dropped(plan, model))
            return false;
    }
    return true;
}

static bool has_announced(const struct bag_change_plan *plan, const struct bag_model *model,
                          const struct bag_change_entry *loading, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (loading[i].source && is_same(model, &loading[i]) && is_announced(plan, &loading[i]))
            return true;
    }
    return false;
}

/* What was published, with `state` for the versions that are being loaded, and without what is
 * dropped, which is UNLOADING. */
static bool publish_meanwhile(const struct bag_change_plan *plan,
                              const struct bag_change_entry *loading, enum bag_model_state state,
                              const char *reason, struct bag_problem *problem)
{
    struct listing listing;
    bool ok = make_listing(&listing, plan->num_prior + plan->count);
    for (size_t i = 0; ok && i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (has_announced(plan, model, loading, plan->count))
            continue;
        if (is_dropped(plan, model))
            ok =
                list_model(&listing,
                           bag_model_without_table(model->name, model->version, BAG_MODEL_UNLOADING,
                                                   "makes room for another version"),
                           plan->prior[i].is_default);
        else
            ok = list_model(&listing, hold(model), plan->prior[i].is_default);
    }
    for (size_t i = 0; ok && i < plan->count; i++) {
        if (loading[i].source && is_announced(plan, &loading[i]))
            ok = list_model(&listing,
                            bag_model_without_table(bag_entry_name(&loading[i]),
                                                    bag_entry_version(&loading[i]), state, reason),
                            false);
        else if (plan->num_prior == 0 && loading[i].model)
            ok = list_model(&listing, hold(loading[i].model), false);
    }
    ok = ok ? publish(plan->changer->registry, &listing, problem) : no_memory(problem);
    free_listing(&listing);
    return ok;
}

/* ---- what is unloaded first ------------------------------------------------------------------ */

static bool is_in_plan(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->entries[i].model == model)
            return true;
    }
    return false;
}

/* Whether a version of the name is to be loaded, whose configuration wants room first. */
static bool wants_room(const struct bag_change_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_source *source = plan->entries[i].source;
        if (source && !bag_source_is_collection(source) && strcmp(source->model->name, name) == 0 &&
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

static void drop_model(struct bag_change_plan *plan, struct bag_model *model)
{
    plan->dropped[plan->num_dropped++] = hold(model);
}

/* Tables that make room, and the collections over them. */
static bool find_dropped(struct bag_change_plan *plan, struct bag_problem *problem)
{
    plan->dropped = calloc(plan->num_prior + 1, sizeof *plan->dropped);
    if (!plan->dropped)
        return no_memory(problem);
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->memory && wants_room(plan, model->name) && !is_in_plan(plan, model))
            drop_model(plan, model);
    }
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (!model->memory && holds_dropped(plan, model))
            drop_model(plan, model);
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
        struct bag_model *gone = bag_model_without_table(
            entry->model->name, entry->model->version, BAG_MODEL_UNAVAILABLE,
            "was unloaded to make room for another version");
        if (!gone)
            return no_memory(problem);
        bag_model_drop(entry->model);
        entry->model = gone;
    }
    return true;
}

/* Waits until no request reads them any more, and frees them. */
static bool free_dropped(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_changer *changer = plan->changer;
    for (size_t i = 0; i < plan->num_dropped; i++) {
        const struct bag_model *model = plan->dropped[i];
        if (!changer->wait_until_left(changer->context, model, own_holds(plan, model)))
            return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                                   "model '%s' version %s: requests do not end that still read "
                                   "its table, so that it cannot be unloaded first",
                                   model->name, model->version);
    }
    if (!replace_dropped(plan, problem))
        return false;
    while (plan->num_dropped > 0)
        bag_model_drop(plan->dropped[--plan->num_dropped]);
    return true;
}

/* What was published goes on. */
static void restore_dropped(struct bag_change_plan *plan)
{
    struct listing listing;
    struct bag_problem ignored;
    bool ok = make_listing(&listing, plan->num_prior);
    for (size_t i = 0; ok && i < plan->num_prior; i++)
        ok = list_model(&listing, hold(plan->prior[i].model), plan->prior[i].is_default);
    if (!ok || !publish(plan->changer->registry, &listing, &ignored))
        bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", "not enough memory"));
    free_listing(&listing);
}

static size_t dropped_bytes(const struct bag_change_plan *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->num_dropped; i++)
        bytes += plan->dropped[i]->source ? bag_source_bytes(plan->dropped[i]->source) : 0;
    return bytes;
}

/* ---- announcing ------------------------------------------------------------------------------ */

static bool check_room(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    size_t freed = dropped_bytes(plan);
    return plan->bytes <= freed || bag_memory_check(plan->bytes - freed, problem);
}

bool bag_change_plan_announce(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool announces = plan->kind == BAG_CHANGE_START;
    if (!find_dropped(plan, problem) || !check_room(plan, problem))
        return false;
    for (size_t i = 0; i < plan->count; i++)
        announces |= plan->entries[i].source && is_announced(plan, &plan->entries[i]);
    if (announces && !publish_meanwhile(plan, plan->entries, BAG_MODEL_LOADING,
                                        "the tables are still being loaded", problem))
        return false;
    if (plan->num_dropped == 0 || free_dropped(plan, problem))
        return true;
    restore_dropped(plan);
    return false;
}

/* ---- loading --------------------------------------------------------------------------------- */

struct loading {
    struct bag_change_plan *plan;
    struct bag_progress progress;
    size_t before_bytes; /* of the tables that are loaded */
};

static void print_progress(void *context, const char *text)
{
    const struct bag_progress *progress = context;
    if (!progress->terminal) {
        bag_systemd_notify("STATUS=Loading: %s", text);
        bag_log(BAG_LOG_LEVEL_INFO, "loading", BAG_LOG_TEXT("message", text));
    } else if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* nobody watches */
}

static void on_progress(void *context, size_t done_bytes, size_t total_bytes)
{
    struct loading *loading = context;
    (void)total_bytes;
    bag_progress_update(&loading->progress, done_bytes, now_ns());
    move_status(loading->plan->changer->status, loading->before_bytes + done_bytes);
}

static struct bag_load_options options_of(struct loading *loading)
{
    const struct bag_changer *changer = loading->plan->changer;
    const struct bag_option_values *options = &changer->config->options;
    bool starts = loading->plan->kind == BAG_CHANGE_START;
    long processors = starts ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
    struct bag_load_options read = {.threads = processors > 0 ? (unsigned)processors : 1,
                                    .bytes_per_second =
                                        starts ? 0 : (uint64_t)options->load_bytes_per_second,
                                    .cancelled = changer->cancelled,
                                    .progress = on_progress,
                                    .context = loading};
    if (options->load_threads)
        read.threads = (unsigned)options->load_threads;
    return read;
}

/* Makes a loaded table take updates, and brings it up to date: nothing that was acknowledged is
 * left out. At the start, where that fails, its model is not served, and others are. */
static bool follow_updates(struct bag_change_plan *plan, struct bag_change_entry *entry,
                           struct bag_problem *problem)
{
    struct bag_model *model = entry->model;
    char *deltas = bag_source_deltas(model->source);
    struct bag_updates_table table = {.name = model->name,
                                      .memory = model->memory,
                                      .rules = &model->features[0].rules,
                                      .through = bag_source_updates_through(model->source),
                                      .deltas = deltas};
    bool ok = bag_updates_attach(plan->changer->updates, &table, NULL, NULL, problem);
    free(deltas);
    if (ok)
        return bag_model_follow_updates(model) || no_memory(problem);
    if (plan->kind != BAG_CHANGE_START)
        return false;
    entry->model =
        bag_model_without_table(model->name, model->version, BAG_MODEL_UNAVAILABLE, problem->text);
    entry->is_default = false;
    bag_model_drop(model);
    return entry->model || no_memory(problem);
}

static bool load_table(struct loading *loading, struct bag_change_entry *entry,
                       struct bag_problem *problem)
{
    struct bag_changer *changer = loading->plan->changer;
    struct bag_source *source = entry->source;
    struct bag_load_options options = options_of(loading);
    size_t bytes = bag_source_read_bytes(source);
    enter_status(changer->status, source->model->name, source->model->version);
    if (bytes)
        bag_progress_start(&loading->progress, source->model->name, bytes, now_ns());
    entry->model = bag_model_load(source, &options, changer->gemm, problem);
    if (bytes && entry->model)
        bag_progress_finish(&loading->progress, now_ns());
    else if (bytes)
        bag_progress_abandon(&loading->progress);
    if (!entry->model)
        return false;
    entry->source = NULL;
    loading->before_bytes += bytes;
    move_status(changer->status, loading->before_bytes);
    return !changer->updates || follow_updates(loading->plan, entry, problem);
}

/* A table of the collection is not served after all. */
static bool reject_collection(struct bag_change_entry *entry, const char *table,
                              struct bag_problem *problem)
{
    const struct bag_model_config *config = entry->source->model;
    char reason[256];
    snprintf(reason, sizeof reason, "its table '%s' is not served", table);
    entry->model =
        bag_model_without_table(config->name, config->version, BAG_MODEL_UNAVAILABLE, reason);
    entry->is_default = false;
    if (!entry->model)
        return no_memory(problem);
    bag_source_free(entry->source);
    entry->source = NULL;
    return true;
}

static bool load_collection(struct bag_change_plan *plan, struct bag_change_entry *entry,
                            struct bag_problem *problem)
{
    struct bag_source *source = entry->source;
    const struct bag_feature_config *features = source->model->features;
    struct bag_model **tables = calloc(source->num_features, sizeof *tables);
    if (!tables)
        return no_memory(problem);
    for (size_t i = 0; i < source->num_features; i++) {
        const struct bag_change_entry *table =
            bag_change_plan_find_default(plan, features[i].model);
        if (!table) {
            free(tables);
            return reject_collection(entry, features[i].model, problem);
        }
        tables[i] = table->model;
    }
    entry->model = bag_model_load_collection(source, tables, plan->changer->gemm, problem);
    free(tables);
    if (entry->model)
        entry->source = NULL;
    return entry->model;
}

static bool load_all(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct loading loading = {.plan = plan};
    bag_progress_init(&loading.progress, print_progress, &loading.progress, isatty(STDERR_FILENO));
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < plan->count; i++) {
            struct bag_change_entry *entry = &plan->entries[i];
            if (!entry->source || bag_source_is_collection(entry->source) != (pass == 1))
                continue;
            if (pass == 0 ? load_table(&loading, entry, problem)
                          : load_collection(plan, entry, problem))
                continue;
            plan->failed = entry;
            return false;
        }
    }
    return true;
}

/* ---- versions that are held ------------------------------------------------------------------ */

static void drop_kept(struct bag_changer *changer, size_t position)
{
    bag_model_drop(changer->kept[position]);
    memmove(&changer->kept[position], &changer->kept[position + 1],
            (changer->num_kept - position - 1) * sizeof *changer->kept);
    changer->num_kept--;
}

static bool keep(struct bag_changer *changer, struct bag_model *model)
{
    struct bag_model **kept = reallocarray(changer->kept, changer->num_kept + 1, sizeof *kept);
    if (!kept)
        return false;
    changer->kept = kept;
    kept[changer->num_kept++] = hold(model);
    return true;
}

/* How many versions of the model are held, as its default version says; of one that was unloaded,
 * none. */
static size_t limit_of(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_change_entry *entry = bag_change_plan_find_default(plan, name);
    const struct bag_source *source = entry ? bag_entry_source(entry) : NULL;
    return source ? (size_t)source->model->keep_versions : 0;
}

/* From the newest on, as many as the model holds. */
static void trim_kept(const struct bag_change_plan *plan)
{
    struct bag_changer *changer = plan->changer;
    for (size_t i = changer->num_kept; i-- > 0;) {
        const char *name = changer->kept[i]->name;
        size_t newer = 0;
        for (size_t j = i + 1; j < changer->num_kept; j++)
            newer += strcmp(changer->kept[j]->name, name) == 0;
        if (newer >= limit_of(plan, name) || is_in_plan(plan, changer->kept[i]))
            drop_kept(changer, i);
    }
}

/* Whether it was asked for that the version be unloaded. */
static bool is_to_unload(const struct bag_change_plan *plan, const struct bag_model *model)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_model *planned = plan->entries[i].model;
        if (planned->is_unloaded && strcmp(planned->name, model->name) == 0 &&
            strcmp(planned->version, model->version) == 0)
            return true;
    }
    return false;
}

/* Holds the versions of tables that are not served any more, where their models say so. */
static void keep_versions(struct bag_change_plan *plan)
{
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->memory && !is_in_plan(plan, model) && !is_to_unload(plan, model) &&
            limit_of(plan, model->name) > 0 && !keep(plan->changer, model))
            break; /* it is loaded again when it is asked for */
    }
    trim_kept(plan);
    struct bag_load_status *status = plan->changer->status;
    pthread_mutex_lock(&status->lock);
    status->num_kept = plan->changer->num_kept;
    status->kept_bytes = 0;
    for (size_t i = 0; i < plan->changer->num_kept; i++)
        status->kept_bytes += bag_source_bytes(plan->changer->kept[i]->source);
    pthread_mutex_unlock(&status->lock);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The READY model that an unloaded one stands for; NULL: it was not served. */
static struct bag_model *find_unloaded(const struct bag_change_plan *plan,
                                       const struct bag_model *gone)
{
    for (size_t i = 0; gone->is_unloaded && i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->state == BAG_MODEL_READY && strcmp(model->name, gone->name) == 0 &&
            strcmp(model->version, gone->version) == 0)
            return model;
    }
    return NULL;
}

/* Publishes what was planned; `leaving`: what is unloaded is UNLOADING, until it has left. */
static bool publish_entries(const struct bag_change_plan *plan, bool leaving,
                            struct bag_problem *problem)
{
    struct listing listing;
    bool ok = make_listing(&listing, plan->count);
    for (size_t i = 0; ok && i < plan->count; i++) {
        const struct bag_change_entry *entry = &plan->entries[i];
        struct bag_model *model = entry->model;
        ok = list_model(&listing,
                        leaving && find_unloaded(plan, model)
                            ? bag_model_without_table(model->name, model->version,
                                                      BAG_MODEL_UNLOADING, "it is being unloaded")
                            : hold(model),
                        entry->is_default);
    }
    ok = ok ? publish(plan->changer->registry, &listing, problem) : no_memory(problem);
    free_listing(&listing);
    return ok;
}

static void log_entry(const struct bag_change_plan *plan, const struct bag_model *model)
{
    const char *event = model->state == BAG_MODEL_READY ? "model ready"
                        : model->is_unloaded            ? "model unloaded"
                                                        : "model unavailable";
    bool is_known = plan->kind == BAG_CHANGE_START && model->state == BAG_MODEL_READY;
    for (size_t i = 0; i < plan->num_prior; i++)
        is_known |= plan->prior[i].model == model;
    if (is_known)
        return;
    bag_log(model->state == BAG_MODEL_UNAVAILABLE && !model->is_unloaded ? BAG_LOG_LEVEL_WARNING
                                                                         : BAG_LOG_LEVEL_INFO,
            event, BAG_LOG_TEXT("model", model->name), BAG_LOG_TEXT("version", model->version),
            BAG_LOG_TEXT("reason", model->reason));
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
        if (gone && model->memory && is_to_unload(plan, model))
            gone[count++] = hold(model);
    }
    for (size_t i = 0; i < plan->num_prior; i++)
        bag_model_drop(plan->prior[i].model);
    plan->num_prior = 0;
    for (size_t i = 0; i < count; i++) {
        changer->wait_until_left(changer->context, gone[i], 1);
        bag_model_drop(gone[i]);
    }
    free(gone);
}

static bool unloads(const struct bag_change_plan *plan)
{
    bool found = false;
    for (size_t i = 0; i < plan->count; i++)
        found |= find_unloaded(plan, plan->entries[i].model) != NULL;
    return found;
}

static bool finish(struct bag_change_plan *plan, struct bag_problem *problem)
{
    bool leaving = unloads(plan);
    if (!publish_entries(plan, leaving, problem))
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        log_shape(plan, plan->entries[i].model);
        log_entry(plan, plan->entries[i].model);
    }
    keep_versions(plan);
    bag_change_plan_commit(plan);
    if (!leaving)
        return true;
    wait_for_unloaded(plan);
    return publish_entries(plan, false, problem);
}

/* Tells why the versions that were announced are not there. */
static void give_up(struct bag_change_plan *plan, const struct bag_problem *why)
{
    struct bag_problem ignored;
    const char *reason = why->kind == BAG_ERROR_DRAINING ? "the server is stopping" : why->text;
    if (!publish_meanwhile(plan, plan->entries, BAG_MODEL_UNAVAILABLE, reason, &ignored))
        bag_log(BAG_LOG_LEVEL_ERROR, "failed", BAG_LOG_TEXT("message", ignored.text));
}

/* Notes that the version cannot be loaded as it is. */
static bool remember_failure(struct bag_changer *changer, const struct bag_source *source,
                             const struct bag_problem *why)
{
    struct bag_failure_record *failures =
        reallocarray(changer->failures, changer->num_failures + 1, sizeof *failures);
    if (!failures)
        return false;
    changer->failures = failures;
    for (size_t i = changer->num_failures; i-- > 0;) {
        if (strcmp(failures[i].name, source->model->name) == 0)
            failures[i] = failures[--changer->num_failures];
    }
    struct bag_failure_record *failure = &failures[changer->num_failures++];
    *failure = (struct bag_failure_record){.number = strtoull(source->model->version, NULL, 10),
                                           .fingerprint = source->fingerprint,
                                           .at_ns = now_ns(),
                                           .problem = *why};
    snprintf(failure->name, sizeof failure->name, "%s", source->model->name);
    return true;
}

bool bag_change_plan_may_go_without(const struct bag_change_plan *plan,
                                    const struct bag_problem *why)
{
    struct bag_changer *changer = plan->changer;
    const struct bag_source *source = plan->failed ? plan->failed->source : NULL;
    if (!source || source->is_named || why->kind == BAG_ERROR_DRAINING ||
        !remember_failure(changer, source, why))
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_model *model = plan->entries[i].model;
        if (model && model->memory && model->holders == 1 && !keep(changer, model))
            return false;
    }
    return true;
}

static size_t bytes_to_read(const struct bag_change_plan *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->count; i++)
        bytes += plan->entries[i].source ? bag_source_read_bytes(plan->entries[i].source) : 0;
    return bytes;
}

bool bag_change_plan_carry_out(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_load_status *status = plan->changer->status;
    begin_status(status, bytes_to_read(plan));
    bool ok = load_all(plan, problem);
    if (!ok)
        give_up(plan, problem);
    ok = ok && finish(plan, problem);
    end_status(status, ok);
    return ok;
}

void bag_changer_free(struct bag_changer *changer)
{
    for (size_t i = 0; i < changer->num_kept; i++)
        bag_model_drop(changer->kept[i]);
    free(changer->kept);
    free(changer->wishes);
    free(changer->failures);
    free(changer->sightings);
    *changer = (struct bag_changer){0};
}
