/* From configured models to loaded ones; see startup.h. */
#include "startup.h"

#include "backend.h"
#include "log.h"
#include "memory/memory.h"
#include "systemd.h"
#include "table/progress.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool bag_startup_open(struct bag_startup *startup, const struct bag_config *config,
                      struct bag_problem *problem)
{
    startup->gemm = NULL;
    return bag_sources_open(&startup->sources, config, problem) &&
           (!startup->sources.projects || (startup->gemm = bag_blas_load(problem)) != NULL) &&
           bag_memory_check(startup->sources.total_bytes, problem);
}

void bag_startup_close(struct bag_startup *startup)
{
    bag_sources_close(&startup->sources);
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

/* ---- one table ------------------------------------------------------------------------------- */

static bool read_table(const struct bag_source *source, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    struct bag_progress progress;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    bag_progress_init(&progress, print_progress, &progress, isatty(STDERR_FILENO));
    bag_progress_start(&progress, source->model->name, bag_table_file_bytes(&source->file),
                       now_ns());
    bool ok = bag_table_load(&source->file, processors > 0 ? (unsigned)processors : 1, on_progress,
                             &progress, memory, problem);
    if (ok)
        bag_progress_finish(&progress, now_ns());
    else
        bag_progress_abandon(&progress);
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
    if (!(source->make ? make_table(source, memory, problem) : read_table(source, memory, problem)))
        return false;
    const void *rows = memory->table.rows;
    memory->table = source->table;
    memory->table.rows = rows;
    memcpy(memory->shape, source->shape, sizeof memory->shape);
    return true;
}

/* ---- models ---------------------------------------------------------------------------------- */

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

static bool load_table(const struct bag_source *source, bag_gemm_fn *gemm,
                       struct bag_registry *registry, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    struct bag_table_memory memory;
    struct bag_projection_memory *projection = NULL;
    if (!load_elements(source, &memory, problem))
        return false;
    bool ok = load_projection(&source->features[0], gemm, &projection, problem);
    if (ok && !bag_registry_add(registry, model->name, model->version, &source->features[0].rules,
                                &memory, projection))
        ok = bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                             model->name);
    if (!ok) {
        bag_projection_free(projection);
        bag_table_unload(&memory);
    }
    return ok;
}

/* When all tables are loaded: each feature finds its own. */
static bool add_collection(const struct bag_source *source, bag_gemm_fn *gemm,
                           struct bag_registry *registry, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    size_t count = source->num_features;
    struct bag_feature *features = calloc(count, sizeof *features);
    bool ok = features != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        features[i].name = model->features[i].name;
        features[i].table = model->features[i].model;
        features[i].rules = source->features[i].rules;
        ok = load_projection(&source->features[i], gemm, &features[i].projection, problem);
    }
    if (!features || (ok && !bag_registry_add_collection(registry, model->name, model->version,
                                                         features, count)))
        ok = bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                             model->name);
    for (size_t i = 0; features && !ok && i < count; i++)
        bag_projection_free(features[i].projection);
    free(features);
    return ok;
}

bool bag_startup_load(const struct bag_startup *startup, struct bag_registry *registry,
                      struct bag_problem *problem)
{
    const struct bag_source *sources = startup->sources.sources;
    for (size_t i = 0; i < startup->sources.count; i++) {
        if (!bag_source_is_collection(&sources[i]) &&
            !load_table(&sources[i], startup->gemm, registry, problem))
            return false;
    }
    for (size_t i = 0; i < startup->sources.count; i++) {
        if (bag_source_is_collection(&sources[i]) &&
            !add_collection(&sources[i], startup->gemm, registry, problem))
            return false;
    }
    return true;
}
