/* Loading models and publishing them; see loader.h. */
#include "loader.h"

#include "backend.h"
#include "memory/memory.h"
#include "server/system/log.h"
#include "server/system/sockets.h"
#include "table/map.h"
#include "table/progress.h"
#include "table/updates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool bag_loader_open(struct bag_loader *loader, const struct bag_config *config,
                     struct bag_problem *problem)
{
    loader->gemm = NULL;
    return bag_sources_open(&loader->sources, config, problem) &&
           (!loader->sources.projects || (loader->gemm = bag_blas_load(problem)) != NULL) &&
           bag_memory_check(loader->sources.total_bytes, problem);
}

void bag_loader_close(struct bag_loader *loader)
{
    bag_sources_close(&loader->sources);
}

/* ---- the progress of loading ----------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

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
    (void)total_bytes;
    bag_progress_update(context, done_bytes, now_ns());
}

/* Keys are read when the elements are there. */
struct key_progress {
    struct bag_progress *progress;
    size_t before_bytes;
};

static void on_keys_progress(void *context, size_t done_bytes, size_t total_bytes)
{
    const struct key_progress *keys = context;
    (void)total_bytes;
    bag_progress_update(keys->progress, keys->before_bytes + done_bytes, now_ns());
}

/* ---- one table ------------------------------------------------------------------------------- */

static size_t bytes_of(const struct bag_table_file *files, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += bag_table_file_bytes(&files[i]);
    return bytes;
}

static enum bag_map_residence residence_of(const struct bag_model_config *model)
{
    if (model->lock_pages)
        return BAG_MAP_LOCKED;
    return model->warm ? BAG_MAP_WARM : BAG_MAP_ON_DEMAND;
}

/* Maps or reads the elements. */
static bool bring_elements(const struct bag_source *source, unsigned threads,
                           struct bag_progress *progress, struct bag_table_memory *memory,
                           struct bag_problem *problem)
{
    return source->maps ? bag_table_map(&source->files[0], residence_of(source->model), on_progress,
                                        progress, memory, problem)
                        : bag_table_load_parts(source->files, source->num_files,
                                      (size_t)source->model->spare_rows, threads, on_progress,
                                      progress, memory, problem);
}

/* Elements and then keys, with their progress. */
static bool read_table(const struct bag_source *source, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    struct bag_progress progress;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    bag_progress_init(&progress, print_progress, &progress, isatty(STDERR_FILENO));
    unsigned threads = processors > 0 ? (unsigned)processors : 1;
    bool reads = !source->maps || residence_of(source->model) != BAG_MAP_ON_DEMAND;
    struct key_progress keys = {&progress, reads ? bytes_of(source->files, source->num_files) : 0};
    bag_progress_start(&progress, source->model->name,
                       keys.before_bytes + bytes_of(source->key_files, source->num_key_files),
                       now_ns());
    bool ok = bring_elements(source, threads, &progress, memory, problem);
    if (ok && bag_source_is_keyed(source) &&
        !bag_table_load_keys(source->key_files, source->num_key_files, threads, on_keys_progress,
                             &keys, memory, problem)) {
        bag_table_unload(memory);
        ok = false;
    }
    if (ok)
        bag_progress_finish(&progress, now_ns());
    else
        bag_progress_abandon(&progress);
    return ok;
}

/* A mapped table of which nothing is read beforehand has no progress to show. */
static bool read_or_map_table(const struct bag_source *source, struct bag_table_memory *memory,
                              struct bag_problem *problem)
{
    bool instant = source->maps && !bag_source_is_keyed(source) &&
                   residence_of(source->model) == BAG_MAP_ON_DEMAND;
    bool ok = instant ? bag_table_map(source->files, BAG_MAP_ON_DEMAND, NULL, NULL, memory, problem)
                      : read_table(source, memory, problem);
    if (ok && source->maps)
        bag_log(BAG_LOG_LEVEL_INFO, "mapped", BAG_LOG_TEXT("model", source->model->name),
                BAG_LOG_TEXT("file", source->files[0].path),
                BAG_LOG_NUMBER("bytes", bytes_of(source->files, source->num_files)));
    return ok;
}

static bool make_table(const struct bag_source *source, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    if (!bag_table_create(source->table.dtype, source->rank, source->shape, memory, problem))
        return false;
    source->make(memory->mapping);
    return true;
}

/* The elements are those of the file; what they stand for, the source knows. */
static bool load_elements(const struct bag_source *source, struct bag_table_memory *memory,
                          struct bag_problem *problem)
{
    if (!(source->make ? make_table(source, memory, problem)
                       : read_or_map_table(source, memory, problem)))
        return false;
    const void *rows = memory->table.rows;
    memory->table = source->table;
    memory->table.rows = rows;
    memcpy(memory->shape, source->shape, sizeof memory->shape);
    return true;
}

/* ---- models ---------------------------------------------------------------------------------- */

static bool no_memory(const struct bag_source *source, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                           source->model->name);
}

/* Sets *memory to the feature's projection, or to NULL where it has none. */
static bool load_projection(const struct bag_feature_source *feature, bag_gemm_fn *gemm,
                            struct bag_projection_memory **memory, struct bag_problem *problem)
{
    const struct bag_projection_source *source = feature->projection;
    *memory = NULL;
    if (source)
        *memory = bag_projection_load(&source->matrix, source->has_bias ? &source->bias : NULL,
                                      gemm, problem);
    return !source || *memory;
}

/* Makes a loaded table take updates, and brings it up to date. Where that fails its model is not
 * served, and others are: nothing that was acknowledged is left out. */
static struct bag_model *follow_updates(const struct bag_loader *loader,
                                        const struct bag_source *source, struct bag_model *model,
                                        struct bag_problem *problem)
{
    char *deltas = bag_source_deltas(source);
    struct bag_updates_table table = {.name = model->name,
                                      .memory = model->memory,
                                      .rules = &model->features[0].rules,
                                      .through = bag_source_updates_through(source),
                                      .deltas = deltas};
    bool ok = bag_updates_attach(loader->updates, &table, NULL, NULL, problem);
    free(deltas);
    if (ok && bag_model_follow_updates(model))
        return model;
    bag_log(BAG_LOG_LEVEL_ERROR, "model not served", BAG_LOG_TEXT("model", model->name),
            BAG_LOG_TEXT("reason", problem->text));
    struct bag_model *instead =
        bag_model_without_table(model->name, model->version, BAG_MODEL_UNAVAILABLE, problem->text);
    bag_model_drop(model);
    return instead;
}

/* NULL with the problem set. */
static struct bag_model *load_table(const struct bag_source *source, bag_gemm_fn *gemm,
                                    struct bag_problem *problem)
{
    struct bag_table_memory memory;
    struct bag_projection_memory *projection = NULL;
    struct bag_model *model = NULL;
    if (!load_elements(source, &memory, problem))
        return NULL;
    char what[512];
    snprintf(what, sizeof what, "model '%s' (%s)", source->model->name, source->model->path);
    if (bag_source_check_keys(&source->features[0].rules, &memory, what, problem) &&
        load_projection(&source->features[0], gemm, &projection, problem)) {
        model = bag_model_of_table(source->model->name, source->model->version,
                                   &source->features[0].rules, &memory, projection);
        if (!model)
            no_memory(source, problem);
    }
    if (!model) {
        bag_projection_free(projection);
        bag_table_unload(&memory);
    }
    return model;
}

static bool check_feature(const struct bag_source *collection, const struct bag_feature *feature,
                          struct bag_problem *problem)
{
    char what[512];
    snprintf(what, sizeof what, "model '%s', feature '%s'", collection->model->name, feature->name);
    return bag_source_check_keys(&feature->rules, feature->model->memory, what, problem);
}

/* A collection over a table that is not served. */
static struct bag_model *reject_table(const struct bag_source *source,
                                      const struct bag_model *table)
{
    char reason[512];
    snprintf(reason, sizeof reason, "its table '%s' is not served: %s", table->name, table->reason);
    return bag_model_without_table(source->model->name, source->model->version,
                                   BAG_MODEL_UNAVAILABLE, reason);
}

/* When all tables are loaded: `models` are those of the sources, in their order. */
static struct bag_model *make_collection(const struct bag_loader *loader,
                                         const struct bag_source *source,
                                         struct bag_model *const *models,
                                         struct bag_problem *problem)
{
    size_t count = source->num_features;
    struct bag_feature *features = calloc(count, sizeof *features);
    struct bag_model *model = NULL;
    bool ok = features != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        features[i].name = source->model->features[i].name;
        features[i].model = models[source->features[i].table - loader->sources.sources];
        features[i].rules = source->features[i].rules;
        ok = check_feature(source, &features[i], problem) &&
             load_projection(&source->features[i], loader->gemm, &features[i].projection, problem);
    }
    if (ok)
        model = bag_model_of_features(source->model->name, source->model->version, features, count);
    if (!features || (ok && !model))
        no_memory(source, problem);
    for (size_t i = 0; features && !model && i < count; i++)
        bag_projection_free(features[i].projection);
    free(features);
    return model;
}

/* The first table of a collection that is not served; NULL where all are. */
static const struct bag_model *find_missing(const struct bag_loader *loader,
                                            const struct bag_source *source,
                                            struct bag_model *const *models)
{
    for (size_t i = 0; i < source->num_features; i++) {
        const struct bag_model *table = models[source->features[i].table - loader->sources.sources];
        if (table->state != BAG_MODEL_READY)
            return table;
    }
    return NULL;
}

static struct bag_model *load_collection(const struct bag_loader *loader,
                                         const struct bag_source *source,
                                         struct bag_model *const *models,
                                         struct bag_problem *problem)
{
    const struct bag_model *missing = find_missing(loader, source, models);
    return missing ? reject_table(source, missing)
                   : make_collection(loader, source, models, problem);
}

static bool load_models(const struct bag_loader *loader, struct bag_model **models,
                        struct bag_problem *problem)
{
    const struct bag_source *sources = loader->sources.sources;
    for (size_t i = 0; i < loader->sources.count; i++) {
        if (!bag_source_is_collection(&sources[i]) &&
            !(models[i] = load_table(&sources[i], loader->gemm, problem)))
            return false;
        if (models[i] && loader->updates &&
            !(models[i] = follow_updates(loader, &sources[i], models[i], problem)))
            return no_memory(&sources[i], problem);
    }
    for (size_t i = 0; i < loader->sources.count; i++) {
        if (bag_source_is_collection(&sources[i]) &&
            !(models[i] = load_collection(loader, &sources[i], models, problem)))
            return false;
    }
    return true;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

static bool announce_models(const struct bag_loader *loader, struct bag_model **models,
                            struct bag_problem *problem)
{
    for (size_t i = 0; i < loader->sources.count; i++) {
        const struct bag_source *source = &loader->sources.sources[i];
        models[i] = bag_model_without_table(source->model->name, source->model->version,
                                            BAG_MODEL_LOADING, "the tables are still being loaded");
        if (!models[i])
            return no_memory(source, problem);
    }
    return true;
}

/* Publishes what `make` makes of all sources: the only holder of a model is then the snapshot. */
static bool publish(const struct bag_loader *loader,
                    bool (*make)(const struct bag_loader *, struct bag_model **,
                                 struct bag_problem *),
                    struct bag_problem *problem)
{
    size_t count = loader->sources.count;
    struct bag_model **models = calloc(count + 1, sizeof *models);
    struct bag_snapshot *snapshot = NULL;
    bool ok = models && make(loader, models, problem);
    if (ok)
        snapshot = bag_snapshot_make(models, count, loader->registry->max_readers);
    if (!models || (ok && !snapshot))
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
    for (size_t i = 0; models && i < count; i++)
        bag_model_drop(models[i]);
    free(models);
    if (!snapshot)
        return false;
    if (bag_registry_publish(loader->registry, snapshot, problem))
        return true;
    bag_snapshot_free(snapshot);
    return false;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void on_left(void *context)
{
    struct bag_loader *loader = context;
    uv_mutex_lock(&loader->lock);
    loader->collect = true;
    uv_cond_signal(&loader->wake);
    uv_mutex_unlock(&loader->lock);
}

static void run(void *argument)
{
    struct bag_loader *loader = argument;
    struct bag_problem problem;
    bool failed = !publish(loader, load_models, &problem);
    uv_mutex_lock(&loader->lock);
    loader->failed = failed;
    if (failed)
        loader->problem = problem;
    uv_mutex_unlock(&loader->lock);
    loader->on_loaded(loader->context);
    uv_mutex_lock(&loader->lock);
    while (!loader->stop) {
        if (!loader->collect) {
            uv_cond_wait(&loader->wake, &loader->lock);
            continue;
        }
        loader->collect = false;
        uv_mutex_unlock(&loader->lock);
        bag_registry_collect(loader->registry);
        uv_mutex_lock(&loader->lock);
    }
    uv_mutex_unlock(&loader->lock);
}

bool bag_loader_succeeded(struct bag_loader *loader, struct bag_problem *problem)
{
    uv_mutex_lock(&loader->lock);
    bool failed = loader->failed;
    if (failed)
        *problem = loader->problem;
    uv_mutex_unlock(&loader->lock);
    return !failed;
}

bool bag_loader_announce(struct bag_loader *loader, struct bag_registry *registry,
                         struct bag_problem *problem)
{
    loader->registry = registry;
    return publish(loader, announce_models, problem);
}

bool bag_loader_start(struct bag_loader *loader, struct bag_problem *problem)
{
    if (uv_mutex_init(&loader->lock) != 0 || uv_cond_init(&loader->wake) != 0)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
    loader->registry->on_left = on_left;
    loader->registry->left_context = loader;
    int error = uv_thread_create(&loader->thread, run, loader);
    if (error)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "no thread can be started to load tables: %s", uv_strerror(error));
    return true;
}

void bag_loader_stop(struct bag_loader *loader)
{
    uv_mutex_lock(&loader->lock);
    loader->stop = true;
    uv_cond_signal(&loader->wake);
    uv_mutex_unlock(&loader->lock);
    uv_thread_join(&loader->thread);
    loader->registry->on_left = NULL;
    uv_cond_destroy(&loader->wake);
    uv_mutex_destroy(&loader->lock);
}
