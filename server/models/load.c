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
    struct bag_load_status *status = &loading->plan->models->status;
    bag_progress_update(&loading->progress, loading->progress.done_bytes + bytes, uv_hrtime());
    status->now.done_bytes = loading->before_bytes + loading->progress.done_bytes;
    bag_load_status_report(status);
}

/* Returns the options for reading tables. The start uses all processors at full speed. Later loads
 * use one thread and the configured rate, because requests are served beside them. */
static struct bag_load_options options_of(struct loading *loading)
{
    const struct bag_models *models = loading->plan->models;
    const struct bag_option_values *options = models->options;
    bool starts = loading->plan->kind == BAG_CHANGE_START;
    long processors = starts ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
    return (struct bag_load_options){.threads = processors > 0 ? (unsigned)processors : 1,
                                     .bytes_per_second =
                                         starts ? 0 : (uint64_t)options->load_bytes_per_second,
                                     .cancelled = &models->cancelled,
                                     .progress = on_progress,
                                     .context = loading};
}

/* Lists the features of collections that will pool the model's table, and returns their number. If
 * `readers` is NULL, only counts them. */
static size_t list_features(const struct bag_models *models, const struct bag_model *model,
                            struct bag_live_reader *readers)
{
    size_t count = 0;
    for (size_t i = 0; i < models->num_names; i++) {
        for (size_t j = 0; j < models->names[i]->count; j++) {
            const struct bag_source *source = bag_version_source(models->names[i]->versions[j]);
            bool has_features = source && bag_source_is_collection(source);
            for (size_t k = 0; has_features && k < source->num_features; k++) {
                const struct bag_feature_config *feature = &source->model->features[k];
                if (strcmp(feature->model, model->name) != 0 ||
                    (feature->version && feature->version != model->version_number))
                    continue;
                if (readers)
                    readers[count] = (struct bag_live_reader){.model = source->model->name,
                                                              .feature = feature->name,
                                                              .rules = &source->features[k].rules};
                count++;
            }
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
        bag_updates_take_deltas(plan->models->updates, table, plan->kind == BAG_CHANGE_POLL,
                                &ignored);
    for (size_t i = 0; i < count; i++)
        bag_updates_leave(&readers[i]);
}

/* Returns whether the server starts without the model, whose version could not be brought up to
 * date, see bag_plan_starts_without(). Adds to *problem that it is not tried again, if so. */
static bool may_start_without(const struct bag_change_plan *plan, const struct bag_model *model,
                              struct bag_problem *problem)
{
    const struct bag_models *models = plan->models;
    const struct bag_problem why = *problem;
    if (plan->kind == BAG_CHANGE_START && why.kind != BAG_ERROR_NO_MEMORY &&
        models->options->model_control == BAG_MODEL_CONTROL_NONE)
        bag_problem_set(problem, why.kind,
                        "%s; then restart this server: with model_control none it does not try "
                        "again",
                        why.text);
    return bag_plan_starts_without(plan->kind, model->source->is_named,
                                   bag_updates_is_shut(models->updates, model->name), why.kind);
}

/* Lets a loaded table take updates, and brings it up to date: no acknowledged update is missing. */
static bool follow_updates(struct bag_change_plan *plan, struct bag_version *version,
                           struct bag_problem *problem)
{
    struct bag_model *model = version->made;
    struct bag_updates *updates = plan->models->updates;
    size_t count = list_features(plan->models, model, NULL);
    struct bag_live_reader *readers = calloc(count + 1, sizeof *readers);
    struct bag_updates_table table = bag_updates_table_of(model);
    struct bag_live_rows *live = model->memory->live;
    bool ok = readers || bag_problem_no_memory(problem);
    count = ok ? list_features(plan->models, model, readers) : 0;
    table.kept_rows = bag_live_rows_kept_by(&model->features[0].rules);
    for (size_t i = 0; i < count; i++) {
        int64_t kept_rows = bag_live_rows_kept_by(readers[i].rules);
        table.kept_rows = kept_rows > table.kept_rows ? kept_rows : table.kept_rows;
    }
    table.oldest_through = version->oldest_through;
    ok = ok && (live ? bag_updates_enter(live, table.reader, problem)
                     : bag_updates_attach(updates, &table, problem));
    if (ok)
        take_first_deltas(plan, model->memory->live, readers, count, &table);
    free(readers);
    ok = ok && check_table(model, problem);
    if (ok)
        return bag_model_follow_updates(model) || bag_problem_no_memory(problem);
    if (!may_start_without(plan, model, problem) ||
        !bag_version_reject(version, problem->text, false, problem))
        return false;
    bag_model_release(model);
    version->made = NULL;
    return true;
}

/* Reads the files of a version into a new stored table, and reports the progress. Returns false and
 * sets *problem if that fails. */
static bool read_stored(struct loading *loading, struct bag_version *version,
                        struct bag_problem *problem)
{
    struct bag_load_status *status = &loading->plan->models->status;
    const struct bag_source *source = version->source;
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
    version->stored = bag_source_load(source, &options, problem);
    if (bytes && version->stored)
        bag_progress_finish(&loading->progress, uv_hrtime());
    else if (bytes)
        bag_progress_abandon(&loading->progress);
    status->now.done_bytes = loading->before_bytes += bytes;
    bag_load_status_report(status);
    return version->stored;
}

/* Returns the table that this change has made of the same files for another version, or NULL. */
static struct bag_stored_table *find_made(const struct bag_change_plan *plan, uint64_t fingerprint)
{
    for (size_t i = 0; i < plan->num_loads; i++) {
        const struct bag_model *made = plan->loads[i]->made;
        if (made && made->stored && made->stored->fingerprint == fingerprint)
            return made->stored;
    }
    return NULL;
}

/* Makes the model of a table. Shares the table of another version if both read the same files,
 * otherwise reads the files. Returns false and sets *problem if the version cannot be loaded. */
static bool load_table(struct loading *loading, struct bag_version *version,
                       struct bag_problem *problem)
{
    struct bag_models *models = loading->plan->models;
    if (!version->stored &&
        (version->stored = find_made(loading->plan, version->source->table_fingerprint)))
        version->stored->holders++;
    if (!version->stored && !read_stored(loading, version, problem))
        return false;
    version->made = make_model(version->source, version->stored, models->gemm, problem);
    bag_stored_table_drop(version->stored);
    version->stored = NULL;
    if (!version->made)
        return false;
    version->source = NULL;
    bool ok = models->updates && !version->made->memory->remote
                  ? follow_updates(loading->plan, version, problem)
                  : check_table(version->made, problem);
    if (ok && version->made) {
        version->next.model = bag_model_retain(version->made);
    } else if (!ok) {
        /* Give the source back: the version could not be loaded. */
        version->source = version->made->source;
        version->made->source = NULL;
        bag_model_release(version->made);
        version->made = NULL;
    }
    return ok;
}

/* Makes a collection over the tables of the plan. Marks it UNAVAILABLE if one of its tables could
 * not be loaded. Returns false and sets *problem if the change fails for it. */
static bool load_collection(const struct bag_change_plan *plan, struct bag_version *version,
                            struct bag_problem *problem)
{
    struct bag_source *source = version->source;
    struct bag_feature *features = calloc(source->num_features, sizeof *features);
    if (!features)
        return lacks_memory(source, problem);
    for (size_t i = 0; i < source->num_features; i++) {
        const struct bag_feature_config *feature = &source->model->features[i];
        const struct bag_version *table = bag_change_plan_find_table(plan, feature);
        if (!table) {
            char reason[256];
            free(features);
            snprintf(reason, sizeof reason, "its table '%s' is not served", feature->model);
            if (feature->version)
                snprintf(reason, sizeof reason, "its table '%s' is not served in version %llu",
                         feature->model, (unsigned long long)feature->version);
            return bag_version_reject(version, reason, false, problem);
        }
        features[i].model = bag_version_next(table)->model;
        features[i].is_pinned = feature->version != 0;
    }
    struct bag_problem why;
    /* Make a collection of its features, whose models are set, as make_model(). */
    bag_gemm_fn *gemm = plan->models->gemm;
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
    free(features);
    if (!model)
        return bag_change_plan_reject_collection(plan, version, &why, problem);
    model->source = source;
    version->next.model = model;
    version->source = NULL;
    return true;
}

bool bag_change_plan_load_gemm(const struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct bag_models *models = plan->models;
    bool projects = false;
    for (size_t i = 0; i < plan->num_loads; i++)
        projects |= bag_source_projects(plan->loads[i]->source);
    if (projects && !models->gemm)
        models->gemm = models->load_gemm(problem);
    return !projects || models->gemm;
}

/* Returns whether an earlier version of the plan reads the same files. */
static bool is_read_before(const struct bag_change_plan *plan, size_t i)
{
    uint64_t fingerprint = plan->loads[i]->source->table_fingerprint;
    for (size_t j = 0; fingerprint && j < i; j++) {
        if (plan->loads[j]->source->table_fingerprint == fingerprint)
            return true;
    }
    return false;
}

bool bag_change_plan_load(struct bag_change_plan *plan, struct bag_problem *problem)
{
    struct loading loading = {.plan = plan};
    struct bag_load_view *now = &plan->models->status.now;
    now->done_bytes = now->total_bytes = 0;
    for (size_t i = 0; i < plan->num_loads; i++) {
        if (!plan->loads[i]->stored && !is_read_before(plan, i))
            now->total_bytes += bag_source_read_bytes(plan->loads[i]->source);
    }
    now->started_ns = uv_hrtime();
    bag_load_status_report(&plan->models->status);
    if (!bag_change_plan_load_gemm(plan, problem))
        return false;
    bag_progress_init(&loading.progress, print_progress, &loading.progress, isatty(STDERR_FILENO));
    loading.progress.quiet_ns = QUIET_NS;
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < plan->num_loads; i++) {
            struct bag_version *version = plan->loads[i];
            if (!version->source || bag_source_is_collection(version->source) != (pass == 1))
                continue;
            if (pass == 0 ? load_table(&loading, version, problem)
                          : load_collection(plan, version, problem))
                continue;
            plan->failed = version;
            return false;
        }
    }
    return true;
}

void bag_change_plan_finish_loading(struct bag_change_plan *plan, bool ok)
{
    struct bag_load_view *now = &plan->models->status.now;
    *now->name = *now->version = 0;
    now->done_bytes = now->total_bytes = 0;
    now->num_done += ok;
    if (ok && plan->serves_others)
        now->done_at_ms = bag_epoch_ms();
    bag_load_status_report(&plan->models->status);
    if (plan->kind != BAG_CHANGE_START)
        bag_systemd_notify("STATUS=Serving");
}
