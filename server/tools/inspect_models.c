/* `bagserve inspect CONFIG.json`: the memory that the tables of a configuration take when they are
 * served.
 */
#include "config/shards.h"
#include "server/memory/memory.h"
#include "server/system/files.h"
#include "tools.h"

#include <stdlib.h>

/* The maximum size of a configuration file. */
#define MAX_CONFIG_BYTES ((size_t)64 << 20)

/* A configuration and what is known of its tables. */
struct inspection {
    struct bag_config config;
    struct bag_inspected_model *models; /* owned; their strings are the configuration's */
    size_t count; /* models that have a table; collections and models of shards are left out */
};

bool bag_inspects_models(const char *in)
{
    return bag_has_suffix(in, ".json") && !bag_has_suffix(in, ".safetensors.index.json");
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Fills *inspected from a source whose table is open. `model` outlives it. */
static void describe(struct bag_inspected_model *inspected, const struct bag_model_config *model,
                     const struct bag_source *source)
{
    const struct bag_table *table = &source->table;
    const struct bag_rules *rules = &source->features[0].rules;
    /* The system may drop the pages of a mapped table, unless they are locked. */
    bool is_cached = source->maps && !model->lock_pages;
    *inspected = (struct bag_inspected_model){
        .name = model->name,
        .version = model->version,
        .datatype = bag_dtypes[table->dtype].name,
        .row_format = bag_row_format_names[table->row_format],
        .rank = source->rank,
        .row_bytes = bag_row_bytes(table),
        .keyed = bag_source_is_keyed(source),
        .is_mapped = source->maps,
        .is_locked = model->lock_pages,
        .serving_bytes = bag_source_bytes(source),
        .mapped_bytes = is_cached ? (uint64_t)table->num_rows * bag_row_bytes(table) : 0,
        .hash_rows = (int64_t)rules->hash_rows,
        .default_index = rules->default_index};
    memcpy(inspected->shape, source->shape, sizeof inspected->shape);
}

/* Opens the table of a model as the server would, copied or mapped, and describes it. */
static bool add_table(struct inspection *inspection, const struct bag_model_config *model,
                      struct bag_problem *problem)
{
    struct bag_model_config copy;
    if (!bag_model_config_copy(&copy, model))
        return bag_problem_no_memory(problem);
    struct bag_source *source = bag_source_make(&copy, true);
    if (!source) {
        bag_model_config_free(&copy);
        return bag_problem_no_memory(problem);
    }
    enum bag_load load =
        model->load == BAG_LOAD_COUNT ? inspection->config.options.load : model->load;
    source->maps = load == BAG_LOAD_MAP;
    bool ok = bag_source_open_table(source, problem);
    if (ok)
        describe(&inspection->models[inspection->count++], model, source);
    bag_source_free(source);
    return ok;
}

/* Reads the configuration and the heads of its tables' files. The caller must call free_inspection
 * in either case. */
static bool read_models(struct inspection *inspection, const char *path,
                        struct bag_problem *problem)
{
    struct bag_config *config = &inspection->config;
    size_t bytes;
    if (!bag_config_init(config))
        return bag_problem_no_memory(problem);
    char *text = bag_file_read(path, MAX_CONFIG_BYTES, &bytes, problem);
    bool ok = text && bag_config_apply_file(config, path, text, bytes, problem) &&
              bag_config_check_models(config, problem);
    free(text);
    if (!ok)
        return false;
    inspection->models = calloc(config->num_models + 1, sizeof *inspection->models);
    if (!inspection->models)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; ok && i < config->num_models; i++) {
        const struct bag_model_config *model = &config->models[i];
        bool has_table = model->path && !bag_model_has_shards(model);
        ok = !has_table || add_table(inspection, model, problem);
    }
    return ok;
}

static void free_inspection(struct inspection *inspection)
{
    free(inspection->models);
    bag_config_free(&inspection->config);
}

/* ---- printing -------------------------------------------------------------------------------- */

/* Prints "NN of memory", and the bytes in mapped files if there are any. */
static void print_bytes(size_t serving_bytes, uint64_t mapped_bytes)
{
    printf("%s of memory", bag_format_bytes(serving_bytes).text);
    if (mapped_bytes > 0)
        printf(", %s in mapped files", bag_format_bytes(mapped_bytes).text);
    putchar('\n');
}

/* Prints a line for each table, and the sums. */
static void print_text(const struct inspection *inspection)
{
    size_t serving_bytes = 0;
    uint64_t mapped_bytes = 0;
    for (size_t i = 0; i < inspection->count; i++) {
        const struct bag_inspected_model *model = &inspection->models[i];
        serving_bytes += model->serving_bytes;
        mapped_bytes += model->mapped_bytes;
        printf("%s version %s: %lld rows of %zu bytes%s, ", model->name, model->version,
               (long long)model->shape[0], model->row_bytes, model->keyed ? " with keys" : "");
        print_bytes(model->serving_bytes, model->mapped_bytes);
    }
    printf("%zu table%s: ", inspection->count, inspection->count == 1 ? "" : "s");
    print_bytes(serving_bytes, mapped_bytes);
}

/* Prints the tables as JSON. Returns false and sets *problem without memory. */
static bool print_json(const struct inspection *inspection, struct bag_problem *problem)
{
    char *text = bag_inspected_models_print(inspection->models, inspection->count);
    bool ok = text && puts(text) >= 0;
    free(text);
    return ok || bag_problem_no_memory(problem);
}

bool bag_inspect_models(const char *path, bool as_json, struct bag_problem *problem)
{
    struct inspection inspection = {.count = 0};
    bool ok = read_models(&inspection, path, problem);
    if (ok && as_json)
        ok = print_json(&inspection, problem);
    else if (ok)
        print_text(&inspection);
    free_inspection(&inspection);
    return ok;
}
