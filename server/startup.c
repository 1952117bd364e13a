/* From configured models to loaded ones; see startup.h. */
#include "startup.h"

#include "backend.h"
#include "log.h"
#include "memory/memory.h"
#include "systemd.h"
#include "table/progress.h"
#include "table/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool is_demo(const struct bag_model_config *model)
{
    return model->path && strncmp(model->path, BAG_DEMO_PREFIX, strlen(BAG_DEMO_PREFIX)) == 0;
}

/* Rules with the type of results, complete for a table of that shape. `what` names them in
 * messages.
 */
static bool complete_rules(enum bag_dtype output_datatype, const struct bag_table *table,
                           struct bag_rules *rules, const char *what, struct bag_problem *problem)
{
    struct bag_fault fault;
    rules->output_dtype = output_datatype == BAG_DTYPE_COUNT ? table->dtype : output_datatype;
    if (bag_rules_check(table, rules, &fault) == BAG_STATUS_OK)
        return true;
    bag_problem_from_fault(problem, &fault);
    bag_problem_prefix(problem, "%s", what);
    return false;
}

static bool complete_model(const struct bag_model_config *model, const struct bag_table *table,
                           struct bag_rules *rules, struct bag_problem *problem)
{
    char what[512];
    snprintf(what, sizeof what, "model '%s' (%s)", model->name, model->path);
    *rules = model->rules;
    return complete_rules(model->output_datatype, table, rules, what, problem);
}

/* The rules of a collection's feature, for the table that its model `table_model` has. */
static bool complete_feature(const struct bag_model_config *collection,
                             const struct bag_feature_config *feature,
                             const struct bag_model_config *table_model,
                             const struct bag_table *table, struct bag_rules *rules,
                             struct bag_problem *problem)
{
    char what[512];
    enum bag_dtype output_datatype;
    snprintf(what, sizeof what, "model '%s', feature '%s'", collection->name, feature->name);
    bag_config_feature_rules(table_model, feature, rules, &output_datatype);
    return complete_rules(output_datatype, table, rules, what, problem);
}

static bool take_format(const struct bag_model_config *model, struct bag_table *table,
                        uint32_t rank, struct bag_problem *problem)
{
    if (bag_table_take_format(table, rank, model->row_format, problem))
        return true;
    bag_problem_prefix(problem, "model '%s' (%s)", model->name, model->path);
    return false;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* What is named for a model's table, or for a feature of it. NULL where nothing is. */
static const struct bag_projection_files *projection_of(const struct bag_model_config *table_model,
                                                        const struct bag_feature_config *feature,
                                                        struct bag_projection_files *files)
{
    files->matrix = bag_config_projection(table_model, feature, &files->bias);
    return files->matrix ? files : NULL;
}

/* Looks at a projection's files, and finds the library for it. */
static bool open_projection(struct bag_startup *startup, const struct bag_model_config *table_model,
                            const struct bag_feature_config *feature, const struct bag_table *table,
                            struct bag_problem *problem)
{
    struct bag_projection_files files;
    if (!projection_of(table_model, feature, &files))
        return true;
    return bag_projection_check(&files, table, &startup->total_bytes, problem) &&
           (startup->gemm = bag_blas_load(problem)) != NULL;
}

/* The table that a file holds, without its elements. */
static bool describe_table(const struct bag_model_config *model, const struct bag_table_file *file,
                           struct bag_table *table, struct bag_problem *problem)
{
    *table = (struct bag_table){.dtype = file->npy.dtype,
                                .num_rows = file->npy.shape[0],
                                .row_elements = file->npy.row_elements};
    return take_format(model, table, file->npy.rank, problem);
}

static bool open_table(struct bag_startup *startup, size_t i, struct bag_problem *problem)
{
    const struct bag_model_config *model = &startup->config->models[i];
    struct bag_table_file *file = &startup->files[i];
    struct bag_table table;
    struct bag_rules rules;
    if (is_demo(model) || !model->path)
        return true;
    if (!bag_table_file_open(model->path, model->datatype, file, problem)) {
        bag_problem_prefix(problem, "model '%s'", model->name);
        return false;
    }
    if (!describe_table(model, file, &table, problem) ||
        !complete_model(model, &table, &rules, problem) ||
        !open_projection(startup, model, NULL, &table, problem))
        return false;
    if (__builtin_add_overflow(startup->total_bytes, bag_table_file_bytes(file),
                               &startup->total_bytes))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "the tables are larger than any memory");
    return true;
}

/* Features of demo tables are looked at when those are made. */
static bool open_features(struct bag_startup *startup, const struct bag_model_config *collection,
                          struct bag_problem *problem)
{
    const struct bag_config *config = startup->config;
    for (size_t i = 0; i < collection->num_features; i++) {
        const struct bag_feature_config *feature = &collection->features[i];
        const struct bag_model_config *model = bag_config_find_model(config, feature->model);
        struct bag_table table;
        struct bag_rules rules;
        if (is_demo(model))
            continue;
        if (!describe_table(model, &startup->files[model - config->models], &table, problem) ||
            !complete_feature(collection, feature, model, &table, &rules, problem) ||
            !open_projection(startup, model, feature, &table, problem))
            return false;
    }
    return true;
}

bool bag_startup_open(struct bag_startup *startup, const struct bag_config *config,
                      struct bag_problem *problem)
{
    startup->config = config;
    startup->total_bytes = 0;
    startup->gemm = NULL;
    startup->files = calloc(config->num_models + 1, sizeof *startup->files);
    if (!startup->files)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
    for (size_t i = 0; i < config->num_models; i++) {
        if (!open_table(startup, i, problem))
            return false;
    }
    for (size_t i = 0; i < config->num_models; i++) {
        if (!open_features(startup, &config->models[i], problem))
            return false;
    }
    return bag_memory_check(startup->total_bytes, problem);
}

void bag_startup_close(struct bag_startup *startup)
{
    free(startup->files);
    startup->files = NULL;
}

/* ---- loading --------------------------------------------------------------------------------- */

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

static bool load_demo(const char *name, struct bag_table_memory *memory,
                      struct bag_problem *problem)
{
#define BAG_X(demo, maker)       \
    if (strcmp(name, demo) == 0) \
        return maker(memory, problem);
    BAG_DEMO_TABLES(BAG_X)
#undef BAG_X
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "there is no demo table '%s'", name);
}

static bool load_file(const char *name, const struct bag_table_file *file,
                      struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct bag_progress progress;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    bag_progress_init(&progress, print_progress, &progress, isatty(STDERR_FILENO));
    bag_progress_start(&progress, name, bag_table_file_bytes(file), now_ns());
    bool ok = bag_table_load(file, processors > 0 ? (unsigned)processors : 1, on_progress,
                             &progress, memory, problem);
    if (ok)
        bag_progress_finish(&progress, now_ns());
    else
        bag_progress_abandon(&progress);
    return ok;
}

/* Sets *memory to the projection, or to NULL where there is none. */
static bool load_projection(const struct bag_startup *startup,
                            const struct bag_model_config *table_model,
                            const struct bag_feature_config *feature, const struct bag_table *table,
                            struct bag_projection_memory **memory, struct bag_problem *problem)
{
    struct bag_projection_files files;
    *memory = NULL;
    if (!projection_of(table_model, feature, &files))
        return true;
    *memory = bag_projection_load(&files, table, startup->gemm, problem);
    return *memory;
}

static bool load_table(struct bag_startup *startup, size_t i, struct bag_registry *registry,
                       struct bag_problem *problem)
{
    const struct bag_model_config *model = &startup->config->models[i];
    struct bag_table_memory memory;
    struct bag_projection_memory *projection = NULL;
    struct bag_rules rules;
    bool loaded = is_demo(model)
                      ? load_demo(model->path + strlen(BAG_DEMO_PREFIX), &memory, problem)
                      : load_file(model->name, &startup->files[i], &memory, problem);
    if (!loaded)
        return false;
    bool ok = take_format(model, &memory.table, memory.rank, problem) &&
              complete_model(model, &memory.table, &rules, problem) &&
              load_projection(startup, model, NULL, &memory.table, &projection, problem);
    if (memory.table.row_format != BAG_ROWS_PLAIN)
        memory.shape[1] = (int64_t)memory.table.row_elements;
    if (ok && !bag_registry_add(registry, model->name, model->version, &rules, &memory, projection))
        ok = bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                             model->name);
    if (!ok) {
        bag_projection_free(projection);
        bag_table_unload(&memory);
    }
    return ok;
}

/* One feature of a collection; what it owns is its projection. */
static bool make_feature(const struct bag_startup *startup,
                         const struct bag_model_config *collection,
                         const struct bag_feature_config *config,
                         const struct bag_registry *registry, struct bag_feature *feature,
                         struct bag_problem *problem)
{
    const struct bag_model_config *model = bag_config_find_model(startup->config, config->model);
    const struct bag_table *table = &bag_registry_find(registry, config->model, "")->memory->table;
    feature->name = config->name;
    feature->table = config->model;
    return complete_feature(collection, config, model, table, &feature->rules, problem) &&
           load_projection(startup, model, config, table, &feature->projection, problem);
}

/* When all tables are loaded: each feature finds its own. */
static bool add_collection(const struct bag_startup *startup,
                           const struct bag_model_config *collection, struct bag_registry *registry,
                           struct bag_problem *problem)
{
    size_t count = collection->num_features;
    struct bag_feature *features = calloc(count, sizeof *features);
    bool ok = features != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = make_feature(startup, collection, &collection->features[i], registry, &features[i],
                          problem);
    if (!features || (ok && !bag_registry_add_collection(registry, collection->name,
                                                         collection->version, features, count)))
        ok = bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                             collection->name);
    for (size_t i = 0; features && !ok && i < count; i++)
        bag_projection_free(features[i].projection);
    free(features);
    return ok;
}

bool bag_startup_load(struct bag_startup *startup, struct bag_registry *registry,
                      struct bag_problem *problem)
{
    const struct bag_config *config = startup->config;
    for (size_t i = 0; i < config->num_models; i++) {
        if (config->models[i].path && !load_table(startup, i, registry, problem))
            return false;
    }
    for (size_t i = 0; i < config->num_models; i++) {
        if (!config->models[i].path &&
            !add_collection(startup, &config->models[i], registry, problem))
            return false;
    }
    return true;
}
