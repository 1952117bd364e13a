/* Loading tables, and making models over them; see carry_out.h. */
#include "carry_out.h"

#include "server/system/log.h"
#include "server/system/sockets.h"
#include "server/tables/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

/* Sets *problem: there is not enough memory for the model. Returns false. */
static bool lacks_memory(const struct bag_source *source, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                           source->model->name);
}

/* ---- projections ----------------------------------------------------------------------------- */

/* Sets *memory to the feature's projection, or to NULL if it has none. */
static bool load_projection(const struct bag_feature_source *feature, bag_gemm_fn *gemm,
                            struct bag_projection_memory **memory, struct bag_problem *problem)
{
    const struct bag_projection_source *source = feature->projection;
    *memory = NULL;
    if (!source)
        return true;
    *memory = bag_projection_load(source, gemm, problem);
    return *memory;
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Makes the model of a table, which takes over the source. Returns NULL and sets *problem if it
 * cannot; the source then stays the caller's. */
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
        model->features[0].output_row_format = feature->output_row_format;
        model->source = source;
        model->shown = source->model->shown;
        return model;
    }
    bag_projection_free(projection);
    lacks_memory(source, problem);
    return NULL;
}

/* Checks that the table, with all its updates, has the default key of its own model. */
static bool check_table(const struct bag_model *model, struct bag_problem *problem)
{
    char what[512];
    snprintf(what, sizeof what, "model '%s' (%s)", model->name, model->source->model->path);
    return bag_source_check_keys(&model->features[0].rules, model->memory, what, problem);
}

/* Enters the features of a collection into their tables, then checks that each table has the
 * feature's default key. From then on updates keep the rows and keys that the features need, so the
 * check stays true. Returns false and sets *problem if a table lacks one of them. */
static bool enter_features(struct bag_model *model, struct bag_problem *problem)
{
    char what[512];
    for (size_t i = 0; i < model->num_features; i++) {
        struct bag_feature *feature = &model->features[i];
        struct bag_live_rows *live = feature->memory->live;
        snprintf(what, sizeof what, "model '%s', feature '%s'", model->name, feature->name);
        if (live && !bag_updates_enter(live, &feature->reader, problem))
            return bag_problem_prefix(problem, "%s", what);
        if (!bag_source_check_keys(&feature->rules, feature->memory, what, problem))
            return false;
    }
    return true;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* The state of loading the tables of one plan, and their progress. */
struct loading {
    struct bag_change_plan *plan;
    struct bag_progress progress;
    size_t before_bytes; /* bytes of the tables that were loaded before */
};

/* Loading a table that takes less than this is logged at the level debug only. One second, in ns.
 */
#define QUIET_NS UINT64_C(1000000000)

/* Shows the progress: draws the bar on a terminal; otherwise logs a line, and tells systemd. */
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

/* Called on the loading thread after it has read `bytes` more bytes of the current table. */
static void on_progress(void *context, size_t bytes)
{
    struct loading *loading = context;
    struct bag_load_status *status = &loading->plan->facts.models->status;
    bag_progress_update(&loading->progress, loading->progress.done_bytes + bytes, uv_hrtime());
    status->now.done_bytes = loading->before_bytes + loading->progress.done_bytes;
    bag_load_status_report(status);
}

/* Returns the options for reading tables. The start uses all processors at full speed. Later loads
 * use one thread and the configured rate, because requests are served beside them. */
static struct bag_load_options options_of(struct loading *loading)
{
    const struct bag_models *models = loading->plan->facts.models;
    const struct bag_option_values *options = models->options;
    bool starts = loading->plan->facts.kind == BAG_CHANGE_START;
    long processors = starts ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
    return (struct bag_load_options){.threads = processors > 0 ? (unsigned)processors : 1,
                                     .bytes_per_second =
                                         starts ? 0 : (uint64_t)options->load_bytes_per_second,
                                     .cancelled = &models->cancelled,
                                     .progress = on_progress,
                                     .context = loading};
}

/* Lists the features of the plan's collections that pool the model's table, and returns their
 * number. If `readers` is NULL, only counts them. */
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
                readers[count] = (struct bag_live_reader){.model = source->model->name,
                                                          .feature = feature->name,
                                                          .rules = &source->features[j].rules};
            count++;
        }
    }
    return count;
}

/* Applies the deltas that follow the table. Collections are made later, so their features enter the
 * table meanwhile: the deltas must keep the keys that they need. */
static void take_first_deltas(const struct bag_change_plan *plan, struct bag_live_rows *live,
                              struct bag_live_reader *readers, size_t count,
                              const struct bag_updates_table *table)
{
    struct bag_problem ignored;
    for (size_t i = 0; live && i < count; i++)
        bag_updates_enter(live, &readers[i], &ignored);
    if (bag_updates_is_next(live))
        bag_updates_take_deltas(plan->facts.models->updates, table,
                                plan->facts.kind == BAG_CHANGE_POLL, &ignored);
    for (size_t i = 0; i < count; i++)
        bag_updates_leave(&readers[i]);
}

/* Returns whether the server starts without the model, whose version could not be brought up to
 * date, see bag_plan_starts_without(). Adds to *problem that it is not tried again, if so. */
static bool may_start_without(const struct bag_change_plan *plan, const struct bag_model *model,
                              struct bag_problem *problem)
{
    const struct bag_models *models = plan->facts.models;
    const struct bag_problem why = *problem;
    if (plan->facts.kind == BAG_CHANGE_START && why.kind != BAG_ERROR_NO_MEMORY &&
        models->options->model_control == BAG_MODEL_CONTROL_NONE)
        bag_problem_set(problem, why.kind,
                        "%s; then restart this server: with model_control none it does not try "
                        "again",
                        why.text);
    return bag_plan_starts_without(plan->facts.kind, model->source->is_named,
                                   bag_updates_is_shut(models->updates, model->name), why.kind);
}

/* Lets a loaded table take updates, and brings it up to date: no acknowledged update is missing. */
static bool follow_updates(struct bag_change_plan *plan, struct bag_entry *entry,
                           struct bag_problem *problem)
{
    struct bag_model *model = entry->model;
    struct bag_updates *updates = plan->facts.models->updates;
    size_t count = list_features(plan, model, NULL);
    struct bag_live_reader *readers = calloc(count + 1, sizeof *readers);
    struct bag_updates_table table = bag_updates_table_of(model);
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
    return may_start_without(plan, model, problem) &&
           bag_entry_reject(entry, problem->text, false, problem);
}

/* Reads the files of an entry into a new stored table, and reports the progress. Returns false and
 * sets *problem if that fails. */
static bool read_stored(struct loading *loading, struct bag_entry *entry,
                        struct bag_problem *problem)
{
    struct bag_load_status *status = &loading->plan->facts.models->status;
    const struct bag_source *source = entry->source;
    struct bag_load_options options = options_of(loading);
    size_t bytes = bag_source_read_bytes(source);
    snprintf(status->now.name, sizeof status->now.name, "%s", source->model->name);
    snprintf(status->now.version, sizeof status->now.version, "%s", source->model->version);
    bag_load_status_report(status);
    if (bytes) {
        bag_log(BAG_LOG_LEVEL_DEBUG, "loading table", BAG_LOG_TEXT("model", source->model->name),
                BAG_LOG_TEXT("version", source->model->version), BAG_LOG_NUMBER("bytes", bytes));
        bag_progress_start(&loading->progress, source->model->name, bytes, uv_hrtime());
    }
    entry->stored = bag_source_load(source, &options, problem);
    if (bytes && entry->stored)
        bag_progress_finish(&loading->progress, uv_hrtime());
    else if (bytes)
        bag_progress_abandon(&loading->progress);
    status->now.done_bytes = loading->before_bytes += bytes;
    bag_load_status_report(status);
    return entry->stored;
}

/* Makes the model of a table. Shares the table of an earlier entry if both read the same files,
 * otherwise reads the files. Returns false and sets *problem if the change fails for this entry. */
static bool load_table(struct loading *loading, struct bag_entry *entry,
                       struct bag_problem *problem)
{
    struct bag_models *models = loading->plan->facts.models;
    const struct bag_entry *same =
        entry->same_as < loading->plan->count ? &loading->plan->entries[entry->same_as] : NULL;
    if (same && same->model && same->model->stored) {
        entry->stored = same->model->stored;
        entry->stored->holders++;
    }
    if (!entry->stored && !read_stored(loading, entry, problem))
        return false;
    entry->model = make_model(entry->source, entry->stored, models->gemm, problem);
    bag_stored_table_drop(entry->stored);
    entry->stored = NULL;
    if (!entry->model)
        return false;
    entry->source = NULL;
    if (models->updates && !entry->model->memory->remote
            ? follow_updates(loading->plan, entry, problem)
            : check_table(entry->model, problem))
        return true;
    /* Give the source back: the entry could not be loaded. */
    struct bag_model *model = entry->model;
    entry->source = model->source;
    entry->model = NULL;
    model->source = NULL;
    bag_model_release(model);
    return false;
}

/* Makes a collection over the tables of the plan. Marks it UNAVAILABLE if one of its tables could
 * not be loaded. Returns false and sets *problem if the change fails for it. */
static bool load_collection(struct bag_change_plan *plan, struct bag_entry *entry,
                            struct bag_problem *problem)
{
    struct bag_source *source = entry->source;
    struct bag_feature *features = calloc(source->num_features, sizeof *features);
    if (!features)
        return lacks_memory(source, problem);
    for (size_t i = 0; i < source->num_features; i++) {
        const char *name = source->model->features[i].model;
        const struct bag_entry *table = bag_change_plan_find_default(plan, name);
        if (!table) {
            char reason[256];
            free(features);
            snprintf(reason, sizeof reason, "its table '%s' is not served", name);
            return bag_entry_reject(entry, reason, false, problem);
        }
        features[i].model = table->model;
    }
    struct bag_problem why;
    /* Make a collection of its features, whose models are set, as make_model(). */
    bag_gemm_fn *gemm = plan->facts.models->gemm;
    size_t count = source->num_features;
    struct bag_model *model = NULL;
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        features[i].name = source->model->features[i].name;
        features[i].rules = source->features[i].rules;
        features[i].output_row_format = source->features[i].output_row_format;
        ok = load_projection(&source->features[i], gemm, &features[i].projection, &why);
    }
    if (ok)
        model = bag_model_of_features(source->model->name, source->model->version, features, count);
    if (ok && !model)
        lacks_memory(source, &why);
    for (size_t i = 0; !model && i < count; i++)
        bag_projection_free(features[i].projection);
    if (model && !enter_features(model, &why)) {
        bag_model_release(model);
        model = NULL;
    }
    if (model)
        model->source = source;
    entry->model = model;
    free(features);
    if (!entry->model)
        return bag_change_plan_reject_collection(plan, entry, &why, problem);
    entry->source = NULL;
    return true;
}

bool bag_change_plan_load_gemm(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_models *models = plan->facts.models;
    bool projects = false;
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_source *source = plan->entries[i].source;
        projects |= source && bag_source_projects(source);
    }
    if (projects && !models->gemm)
        models->gemm = models->load_gemm(problem);
    return !projects || models->gemm;
}

bool bag_change_plan_load(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct loading loading = {.plan = plan};
    struct bag_load_view *now = &plan->facts.models->status.now;
    now->done_bytes = now->total_bytes = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_entry *entry = &plan->entries[i];
        if (entry->source && !entry->stored && entry->same_as == SIZE_MAX)
            now->total_bytes += bag_source_read_bytes(entry->source);
    }
    now->started_ns = uv_hrtime();
    bag_load_status_report(&plan->facts.models->status);
    if (!bag_change_plan_load_gemm(plan, problem))
        return false;
    bag_progress_init(&loading.progress, print_progress, &loading.progress, isatty(STDERR_FILENO));
    loading.progress.quiet_ns = QUIET_NS;
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < plan->count; i++) {
            struct bag_entry *entry = &plan->entries[i];
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

void bag_change_plan_finish_loading(struct bag_change_plan *plan, bool ok)
{
    struct bag_load_view *now = &plan->facts.models->status.now;
    *now->name = *now->version = 0;
    now->done_bytes = now->total_bytes = 0;
    now->num_done += ok;
    if (ok)
        now->done_at_ms = bag_epoch_ms();
    bag_load_status_report(&plan->facts.models->status);
    if (plan->facts.kind != BAG_CHANGE_START)
        bag_systemd_notify("STATUS=Serving");
}
