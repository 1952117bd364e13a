/* `bagserve inspect CONFIG.json`: the memory that the tables of a configuration take when they are
 * served.
 */
#include "config/shards.h"
#include "proto/json_writer.h"
#include "server/memory/memory.h"
#include "server/system/files.h"
#include "tools.h"

#include <stdlib.h>

/* The maximum size of a configuration file. */
#define MAX_CONFIG_BYTES ((size_t)64 << 20)

/* A configuration and the sources of its tables. */
struct inspection {
    struct bag_config config;
    struct bag_source **sources; /* owned; open. Collections and models of shards are left out */
    size_t count;
};

bool bag_inspects_models(const char *in)
{
    return bag_has_suffix(in, ".json") && !bag_has_suffix(in, ".safetensors.index.json");
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Opens the table of a model as the server would, copied or mapped. */
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
    inspection->sources[inspection->count++] = source;
    enum bag_load load =
        model->load == BAG_LOAD_COUNT ? inspection->config.options.load : model->load;
    source->maps = load == BAG_LOAD_MAP;
    return bag_source_open_table(source, problem);
}

/* Returns the bytes of the file that the kernel caches: it may drop the pages of a mapped table
 * again, unless they are locked. */
static uint64_t mapped_bytes(const struct bag_source *source)
{
    return source->maps && !source->model->lock_pages
               ? (uint64_t)source->table.num_rows * bag_row_bytes(&source->table)
               : 0;
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
    inspection->sources = calloc(config->num_models + 1, sizeof *inspection->sources);
    if (!inspection->sources)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; ok && i < config->num_models; i++) {
        const struct bag_model_config *model = &config->models[i];
        enum bag_path_kind kind = bag_model_path_kind(model);
        bool has_table = kind != BAG_PATH_NONE && kind != BAG_PATH_SHARDS;
        ok = !has_table || add_table(inspection, model, problem);
    }
    return ok;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* Prints "NN of memory", and the bytes in mapped files if there are any. */
static void print_bytes(size_t serving_bytes, uint64_t in_files)
{
    printf("%s of memory", bag_format_bytes(serving_bytes).text);
    if (in_files > 0)
        printf(", %s in mapped files", bag_format_bytes(in_files).text);
    putchar('\n');
}

/* Returns {"models": [...]}. The caller frees it; NULL without memory. */
static char *make_json(const struct inspection *inspection)
{
    struct bag_json_writer json = {.is_pretty = true};
    bag_json_open(&json, NULL, '{');
    bag_json_open(&json, "models", '[');
    for (size_t i = 0; i < inspection->count; i++) {
        const struct bag_source *source = inspection->sources[i];
        const struct bag_model_config *model = source->model;
        const struct bag_table *table = &source->table;
        const struct bag_rules *rules = &source->features[0].rules;
        bag_json_open(&json, NULL, '{');
        BAG_JSON_WRITE(&json, BAG_KEY("name", model->name), BAG_KEY("version", model->version),
                       BAG_KEY("datatype", bag_dtypes[table->dtype].name),
                       BAG_KEY("row_format", bag_row_format_names[table->row_format]));
        bag_json_integers(&json, "shape", source->shape, source->rank);
        BAG_JSON_WRITE(
            &json, BAG_KEY("row_bytes", bag_row_bytes(table)),
            BAG_KEY("keyed", bag_source_is_keyed(source)),
            BAG_KEY("load", source->maps ? "map" : "copy"), BAG_KEY("mlock", model->lock_pages),
            BAG_KEY("serving_bytes", bag_source_bytes(source)),
            BAG_KEY("mapped_bytes", mapped_bytes(source)), BAG_KEY("hash_rows", rules->hash_rows),
            BAG_KEY("default_index", rules->default_index));
        bag_json_close(&json);
    }
    return bag_json_end(&json);
}

bool bag_inspect_models(const char *path, bool as_json, struct bag_problem *problem)
{
    struct inspection inspection = {.count = 0};
    bool ok = read_models(&inspection, path, problem);
    if (ok && as_json)
        ok = bag_tool_put(make_json(&inspection), problem);
    else if (ok) {
        /* Print a line for each table, and the sums. */
        size_t serving_bytes = 0;
        uint64_t in_files = 0;
        for (size_t i = 0; i < inspection.count; i++) {
            const struct bag_source *source = inspection.sources[i];
            serving_bytes += bag_source_bytes(source);
            in_files += mapped_bytes(source);
            printf("%s version %s: %lld rows of %zu bytes%s, ", source->model->name,
                   source->model->version, (long long)source->shape[0],
                   bag_row_bytes(&source->table), bag_source_is_keyed(source) ? " with keys" : "");
            print_bytes(bag_source_bytes(source), mapped_bytes(source));
        }
        printf("%zu table%s: ", inspection.count, inspection.count == 1 ? "" : "s");
        print_bytes(serving_bytes, in_files);
    }
    for (size_t i = 0; i < inspection.count; i++)
        bag_source_free(inspection.sources[i]);
    free(inspection.sources);
    bag_config_free(&inspection.config);
    return ok;
}
