/* Loading the tables of a plan, how far that is, and making models over them; see change.h. */
#include "change.h"
#include "server/system/log.h"
#include "server/system/sockets.h"
#include "server/tables/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

static bool lacks_memory(const struct bag_source *source, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                           source->model->name);
}

/* ---- projections ----------------------------------------------------------------------------- */

/* Sets *memory to the feature's projection, or to NULL where it has none. */
static bool load_projection(const struct bag_feature_source *feature, bag_gemm_fn *gemm,
                            struct bag_projection_memory **memory, struct bag_problem *problem)
{
    const struct bag_projection_source *source = feature->projection;
    *memory = NULL;
    if (!source)
        return true;
    *memory = bag_projection_load(&source->matrix, source->has_bias ? &source->bias : NULL, gemm,
                                  problem);
    return *memory;
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Makes the model of a table, which takes over the source. NULL with *problem; the source then
 * stays the caller's. */
static struct bag_model *make_model(struct bag_source *source, struct bag_stored_table *stored,
                                    bag_gemm_fn *gemm, struct bag_problem *problem)
{
    const struct bag_feature_source *feature = &source->features[0];
    struct bag_projection_memory *projection = NULL;
    if (!load_projection(feature, gemm, &projection, problem))
        return NULL;
    struct bag_model *model = bag_model_of_table(source->model->name, source->model->version,
                                                 &feature->rules, stored, projection);
    if (model) {
        model->source = source;
        model->shown = source->model->shown;
        return model;
    }
    bag_projection_free(projection);
    lacks_memory(source, problem);
    return NULL;
}

/* Whether the table has the model's own default key, once it has all updates. */
static bool check_table(const struct bag_model *model, struct bag_problem *problem)
{
    char what[512];
    snprintf(what, sizeof what, "model '%s' (%s)", model->name, model->source->model->path);
    return bag_source_check_keys(&model->features[0].rules, model->memory, what, problem);
}

/* The same of the tables of a collection; what the features need of them stays from here on. */
static bool enter_features(struct bag_model *model, struct bag_problem *problem)
{
    char what[512];
    for (size_t i = 0; i < model->num_features; i++) {
        struct bag_feature *feature = &model->features[i];
        struct bag_live_rows *live = feature->memory->live;
        snprintf(what, sizeof what, "model '%s', feature '%s'", model->name, feature->name);
        if (live && !bag_updates_enter(live, &feature->reader, problem)) {
            bag_problem_prefix(problem, "%s", what);
            return false;
        }
        if (!bag_source_check_keys(&feature->rules, feature->memory, what, problem))
            return false;
    }
    return true;
}

/* Makes a collection of its features, whose models are set; likewise. */
static struct bag_model *make_collection(struct bag_source *source, struct bag_feature *features,
                                         bag_gemm_fn *gemm, struct bag_problem *problem)
{
    size_t count = source->num_features;
    struct bag_model *model = NULL;
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        features[i].name = source->model->features[i].name;
        features[i].rules = source->features[i].rules;
        ok = load_projection(&source->features[i], gemm, &features[i].projection, problem);
    }
    if (ok)
        model = bag_model_of_features(source->model->name, source->model->version, features, count);
    if (ok && !model)
        lacks_memory(source, problem);
    for (size_t i = 0; !model && i < count; i++)
        bag_projection_free(features[i].projection);
    if (model && !enter_features(model, problem)) {
        bag_model_release(model);
        model = NULL;
    }
    if (model)
        model->source = source;
    return model;
}

/* ---- how far loading is ---------------------------------------------------------------------- */

void bag_load_status_read(struct bag_load_status *status, struct bag_load_view *view)
{
    *view = (struct bag_load_view){0};
    if (!status)
        return;
    pthread_mutex_lock(&status->lock);
    *view = status->told;
    pthread_mutex_unlock(&status->lock);
    if (view->done_bytes && view->total_bytes > view->done_bytes)
        view->left_s = (double)(uv_hrtime() - view->begun_ns) * 1e-9 / (double)view->done_bytes *
                       (double)(view->total_bytes - view->done_bytes);
}

void bag_load_status_tell(struct bag_load_status *status)
{
    pthread_mutex_lock(&status->lock);
    status->told = status->now;
    pthread_mutex_unlock(&status->lock);
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
    } else {
        bag_log_draw(text);
    }
}

static void on_progress(void *context, size_t bytes)
{
    struct loading *loading = context;
    struct bag_load_status *status = loading->plan->changer->status;
    bag_progress_update(&loading->progress, loading->progress.done_bytes + bytes, uv_hrtime());
    status->now.done_bytes = loading->before_bytes + loading->progress.done_bytes;
    bag_load_status_tell(status);
}

static struct bag_load_options options_of(struct loading *loading)
{
    const struct bag_changer *changer = loading->plan->changer;
    const struct bag_option_values *options = &changer->config->options;
    bool starts = loading->plan->kind == BAG_CHANGE_START;
    long processors = starts ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
    return (struct bag_load_options){.threads = processors > 0 ? (unsigned)processors : 1,
                                     .bytes_per_second =
                                         starts ? 0 : (uint64_t)options->load_bytes_per_second,
                                     .cancelled = changer->cancelled,
                                     .progress = on_progress,
                                     .context = loading};
}

/* Features of the plan's collections that pool the model's table; NULL: they are counted. */
static size_t list_features(const struct bag_change_plan *plan, const struct bag_model *model,
                            struct bag_live_reader *readers)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_source *source = bag_entry_source(&plan->entries[i]);
        bool has_features = source && bag_source_is_collection(source);
        for (size_t j = 0; has_features && j < source->num_features; j++) {
            const struct bag_feature_config *feature = &source->model->features[j];
            if (strcmp(feature->model, model->name) != 0)
                continue;
            if (readers)
                readers[count] = (struct bag_live_reader){source->model->name, feature->name,
                                                          &source->features[j].rules, NULL, NULL};
            count++;
        }
    }
    return count;
}

struct bag_updates_table bag_change_updates_table(const struct bag_model *model)
{
    return (struct bag_updates_table){.name = model->name,
                                      .version = model->version_number,
                                      .memory = model->memory,
                                      .reader = &model->features[0].reader,
                                      .through = bag_source_updates_through(model->source),
                                      .deltas = model->source->deltas};
}

/* Those that follow; collections are made later, and what their features need must stay. */
static void take_first_deltas(const struct bag_change_plan *plan, struct bag_live_rows *live,
                              struct bag_live_reader *readers, size_t count,
                              const struct bag_updates_table *table)
{
    struct bag_problem ignored;
    for (size_t i = 0; live && i < count; i++)
        bag_updates_enter(live, &readers[i], &ignored);
    if (bag_updates_is_next(live))
        bag_updates_take_deltas(plan->changer->updates, table, plan->kind == BAG_CHANGE_POLL,
                                &ignored);
    for (size_t i = 0; i < count; i++)
        bag_updates_leave(&readers[i]);
}

/* At the start a version that cannot be brought up to date is passed over as any bad one, for an
 * older one that can. Where there is none to try, as of a model that is named, or where that would
 * not help, as no version can read a journal that another server has, the model is not served, and
 * others are. A lack of memory passes, and ends the start. */
static bool may_start_without(struct bag_change_plan *plan, const struct bag_model *model,
                              struct bag_problem *problem)
{
    const struct bag_problem why = *problem;
    if (plan->kind != BAG_CHANGE_START || problem->kind == BAG_ERROR_NO_MEMORY)
        return false;
    if (plan->changer->config->options.model_control == BAG_MODEL_CONTROL_NONE)
        bag_problem_set(problem, why.kind,
                        "%s; then restart this server: with model_control none it does not try "
                        "again",
                        why.text);
    return model->source->is_named || bag_updates_is_shut(plan->changer->updates, model->name);
}

/* Makes a loaded table take updates, and brings it up to date: nothing that was acknowledged is
 * left out. */
static bool follow_updates(struct bag_change_plan *plan, struct bag_change_entry *entry,
                           struct bag_problem *problem)
{
    struct bag_model *model = entry->model;
    struct bag_updates *updates = plan->changer->updates;
    size_t count = list_features(plan, model, NULL);
    struct bag_live_reader *readers = calloc(count + 1, sizeof *readers);
    struct bag_updates_table table = bag_change_updates_table(model);
    struct bag_live_rows *live = model->memory->live;
    bool ok = readers || bag_problem_no_memory(problem);
    count = ok ? list_features(plan, model, readers) : 0;
    table.kept_rows = bag_live_rows_kept_by(&model->features[0].rules);
    for (size_t i = 0; i < count; i++) {
        int64_t kept_rows = bag_live_rows_kept_by(readers[i].rules);
        table.kept_rows = kept_rows > table.kept_rows ? kept_rows : table.kept_rows;
    }
    table.oldest_through = entry->oldest_through;
    ok = ok && (live ? bag_updates_enter(live, table.reader, problem)
                     : bag_updates_attach(updates, &table, problem));
    if (ok)
        take_first_deltas(plan, model->memory->live, readers, count, &table);
    free(readers);
    ok = ok && check_table(model, problem);
    if (ok)
        return bag_model_follow_updates(model) || bag_problem_no_memory(problem);
    if (may_start_without(plan, model, problem))
        return bag_change_reject(entry, problem->text, false, problem);
    entry->source = model->source;
    entry->model = NULL;
    model->source = NULL;
    bag_model_release(model);
    return false;
}

bool bag_changer_take_deltas(struct bag_changer *changer, const struct bag_control *control,
                             bool polls, struct bag_problem *problem)
{
    const struct bag_snapshot *current =
        atomic_load_explicit(&changer->registry->current, memory_order_relaxed);
    struct bag_problem why;
    bool ok = true;
    for (size_t i = 0; changer->updates && current && i < current->count; i++) {
        const struct bag_model *model = current->listed[i];
        if (!model->memory || model->memory->remote || !model->source ||
            (control && !bag_control_find(control, model->name)))
            continue;
        struct bag_updates_table table = bag_change_updates_table(model);
        if (!bag_updates_take_deltas(changer->updates, &table, polls, &why) && ok) {
            *problem = why;
            ok = false;
        }
    }
    return ok;
}

static bool read_stored(struct loading *loading, struct bag_change_entry *entry,
                        struct bag_problem *problem)
{
    struct bag_load_status *status = loading->plan->changer->status;
    const struct bag_source *source = entry->source;
    struct bag_load_options options = options_of(loading);
    size_t bytes = bag_source_read_bytes(source);
    snprintf(status->now.name, sizeof status->now.name, "%s", source->model->name);
    snprintf(status->now.version, sizeof status->now.version, "%s", source->model->version);
    bag_load_status_tell(status);
    if (bytes)
        bag_progress_start(&loading->progress, source->model->name, bytes, uv_hrtime());
    entry->stored = bag_source_load(source, &options, problem);
    if (bytes && entry->stored)
        bag_progress_finish(&loading->progress, uv_hrtime());
    else if (bytes)
        bag_progress_abandon(&loading->progress);
    status->now.done_bytes = loading->before_bytes += bytes;
    bag_load_status_tell(status);
    return entry->stored;
}

static bool load_table(struct loading *loading, struct bag_change_entry *entry,
                       struct bag_problem *problem)
{
    struct bag_changer *changer = loading->plan->changer;
    const struct bag_change_entry *same =
        entry->same_as < loading->plan->count ? &loading->plan->entries[entry->same_as] : NULL;
    if (same && same->model && same->model->stored) {
        entry->stored = same->model->stored;
        entry->stored->holders++;
    }
    if (!entry->stored && !read_stored(loading, entry, problem))
        return false;
    entry->model = make_model(entry->source, entry->stored, changer->gemm, problem);
    bag_stored_table_drop(entry->stored);
    entry->stored = NULL;
    if (!entry->model)
        return false;
    entry->source = NULL;
    return changer->updates && !entry->model->memory->remote
               ? follow_updates(loading->plan, entry, problem)
               : check_table(entry->model, problem);
}

static bool load_collection(struct bag_change_plan *plan, struct bag_change_entry *entry,
                            struct bag_problem *problem)
{
    struct bag_source *source = entry->source;
    struct bag_feature *features = calloc(source->num_features, sizeof *features);
    if (!features)
        return lacks_memory(source, problem);
    for (size_t i = 0; i < source->num_features; i++) {
        const char *name = source->model->features[i].model;
        const struct bag_change_entry *table = bag_change_plan_find_default(plan, name);
        if (!table) {
            char reason[256];
            free(features);
            snprintf(reason, sizeof reason, "its table '%s' is not served", name);
            return bag_change_reject(entry, reason, false, problem);
        }
        features[i].model = table->model;
    }
    entry->model = make_collection(source, features, plan->changer->gemm, problem);
    free(features);
    if (entry->model)
        entry->source = NULL;
    /* Updates may have taken from its tables what it needs: that is no reason not to start. */
    else if ((plan->kind == BAG_CHANGE_START && plan->changer->updates &&
              problem->kind == BAG_ERROR_CONFIGURATION) ||
             bag_change_goes_without(plan, entry, problem))
        return bag_change_reject(entry, problem->text, false, problem);
    return entry->model;
}

bool bag_change_load(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct loading loading = {.plan = plan};
    struct bag_load_view *now = &plan->changer->status->now;
    now->done_bytes = now->total_bytes = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_change_entry *entry = &plan->entries[i];
        if (entry->source && !entry->stored && entry->same_as == SIZE_MAX)
            now->total_bytes += bag_source_read_bytes(entry->source);
    }
    now->begun_ns = uv_hrtime();
    bag_load_status_tell(plan->changer->status);
    if (!bag_change_plan_load_gemm(plan, problem))
        return false;
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

void bag_changer_count_failure(struct bag_changer *changer)
{
    changer->status->now.num_failed++;
    bag_load_status_tell(changer->status);
}

void bag_change_end_loading(struct bag_change_plan *plan, bool ok)
{
    struct bag_load_view *now = &plan->changer->status->now;
    *now->name = *now->version = 0;
    now->done_bytes = now->total_bytes = 0;
    now->num_done += ok;
    if (ok)
        now->done_at_ms = bag_epoch_ms();
    bag_load_status_tell(plan->changer->status);
    if (plan->kind != BAG_CHANGE_START)
        bag_systemd_notify("STATUS=Serving");
}
