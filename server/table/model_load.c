/* Models are made of open sources; see change.h. */
#include "change.h"

#include "load.h"
#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool no_memory(const struct bag_source *source, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                           source->model->name);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Keys are read when the elements are there. */
struct key_progress {
    const struct bag_load_options *options;
    size_t before_bytes;
};

static void on_keys_progress(void *context, size_t done_bytes, size_t total_bytes)
{
    const struct key_progress *keys = context;
    if (keys->options->progress)
        keys->options->progress(keys->options->context, keys->before_bytes + done_bytes,
                                total_bytes);
}

static enum bag_map_residence residence_of(const struct bag_model_config *model)
{
    if (model->lock_pages)
        return BAG_MAP_LOCKED;
    return model->warm ? BAG_MAP_WARM : BAG_MAP_ON_DEMAND;
}

static size_t bytes_of(const struct bag_table_file *files, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += bag_table_file_bytes(&files[i]);
    return bytes;
}

static size_t element_bytes(const struct bag_source *source)
{
    bool reads = !source->maps || residence_of(source->model) != BAG_MAP_ON_DEMAND;
    return reads ? bytes_of(source->files, source->num_files) : 0;
}

size_t bag_source_read_bytes(const struct bag_source *source)
{
    return element_bytes(source) + bytes_of(source->key_files, source->num_key_files);
}

/* Maps or reads the elements. */
static bool bring_elements(const struct bag_source *source, const struct bag_load_options *options,
                           struct bag_table_memory *memory, struct bag_problem *problem)
{
    if (!source->maps)
        return bag_table_load_parts(source->files, source->num_files,
                                    (size_t)source->model->spare_rows, options, memory, problem);
    if (!bag_table_map(&source->files[0], residence_of(source->model), options->progress,
                       options->context, memory, problem))
        return false;
    bag_log(BAG_LOG_LEVEL_INFO, "mapped", BAG_LOG_TEXT("model", source->model->name),
            BAG_LOG_TEXT("file", source->files[0].path),
            BAG_LOG_NUMBER("bytes", bytes_of(source->files, source->num_files)));
    return true;
}

/* Elements and then keys. */
static bool read_table(const struct bag_source *source, const struct bag_load_options *options,
                       struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct key_progress keys = {options, element_bytes(source)};
    if (!bring_elements(source, options, memory, problem))
        return false;
    if (!bag_source_is_keyed(source) ||
        bag_table_load_keys(source->key_files, source->num_key_files, options->threads,
                            on_keys_progress, &keys, memory, problem))
        return true;
    bag_table_unload(memory);
    return false;
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
static bool load_elements(const struct bag_source *source, const struct bag_load_options *options,
                          struct bag_table_memory *memory, struct bag_problem *problem)
{
    if (!(source->make ? make_table(source, memory, problem)
                       : read_table(source, options, memory, problem)))
        return false;
    const void *rows = memory->table.rows;
    memory->table = source->table;
    memory->table.rows = rows;
    memcpy(memory->shape, source->shape, sizeof memory->shape);
    return true;
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
    if (!gemm)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "%s: the server started without any projection, and cannot begin "
                               "to project while it runs; restart it",
                               source->matrix.path);
    *memory = bag_projection_load(&source->matrix, source->has_bias ? &source->bias : NULL, gemm,
                                  problem);
    return *memory;
}

/* ---- models ---------------------------------------------------------------------------------- */

struct bag_model *bag_model_load(struct bag_source *source, const struct bag_load_options *options,
                                 bag_gemm_fn *gemm, struct bag_problem *problem)
{
    struct bag_table_memory memory;
    struct bag_projection_memory *projection = NULL;
    struct bag_model *model = NULL;
    if (!load_elements(source, options, &memory, problem))
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
    if (model) {
        model->source = source;
        model->shown = source->model->shown;
        return model;
    }
    bag_projection_free(projection);
    bag_table_unload(&memory);
    return NULL;
}

static bool check_feature(const struct bag_source *collection, const struct bag_feature *feature,
                          struct bag_problem *problem)
{
    char what[512];
    snprintf(what, sizeof what, "model '%s', feature '%s'", collection->model->name, feature->name);
    return bag_source_check_keys(&feature->rules, feature->model->memory, what, problem);
}

struct bag_model *bag_model_load_collection(struct bag_source *source,
                                            struct bag_model *const *tables, bag_gemm_fn *gemm,
                                            struct bag_problem *problem)
{
    size_t count = source->num_features;
    struct bag_feature *features = calloc(count, sizeof *features);
    struct bag_model *model = NULL;
    bool ok = features != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        features[i].name = source->model->features[i].name;
        features[i].model = tables[i];
        features[i].rules = source->features[i].rules;
        ok = check_feature(source, &features[i], problem) &&
             load_projection(&source->features[i], gemm, &features[i].projection, problem);
    }
    if (ok)
        model = bag_model_of_features(source->model->name, source->model->version, features, count);
    if (!features || (ok && !model))
        no_memory(source, problem);
    for (size_t i = 0; features && !model && i < count; i++)
        bag_projection_free(features[i].projection);
    free(features);
    if (model)
        model->source = source;
    return model;
}
