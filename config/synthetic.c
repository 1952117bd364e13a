/* Tables of made-up rows; see synthetic.h. */
#include "synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The limits of a table, which keep its size in bytes below 2^60. */
#define MAX_ROWS     (INT64_C(1) << 40)
#define MAX_ELEMENTS 65536

/* ---- one table ------------------------------------------------------------------------------- */

bool bag_synthetic_parse(const char *text, int64_t *rows, int64_t *elements)
{
    const char *equals = strchr(text, '='), *cross;
    char digits[24];
    if (!equals || equals == text)
        return false;
    cross = strchr(++equals, 'x');
    if (!cross || (size_t)(cross - equals) >= sizeof digits)
        return false;
    memcpy(digits, equals, (size_t)(cross - equals));
    digits[cross - equals] = 0;
    return bag_integer_parse(digits, rows) && bag_integer_parse(cross + 1, elements) &&
           *rows >= 1 && *rows <= MAX_ROWS && *elements >= 1 && *elements <= MAX_ELEMENTS;
}

/* Adds a model with the path "synthetic:NAME=ROWSxELEMENTS", whose text has been checked. */
static bool add(struct bag_config *config, const char *text, struct bag_problem *problem)
{
    size_t path_bytes = sizeof BAG_SYNTHETIC_PREFIX + strlen(text);
    char *path = malloc(path_bytes), *name = strndup(text, strcspn(text, "="));
    if (path)
        snprintf(path, path_bytes, BAG_SYNTHETIC_PREFIX "%s", text);
    bool added = name && path ? bag_config_add_model(config, name, path, "1", problem)
                              : bag_problem_no_memory(problem);
    free(name);
    free(path);
    return added;
}

bool bag_synthetic_add(struct bag_config *config, const char *text, struct bag_problem *problem)
{
    struct bag_quoted shown = bag_quote(text, strlen(text));
    int64_t rows, elements;
    if (!bag_synthetic_parse(text, &rows, &elements))
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--synthetic %s: write NAME=ROWSxELEMENTS, such as "
                               "items=1000000x64, or " BAG_MLPERF_DLRM_V2_NAME
                               " or " BAG_MLPERF_DLRM_V3_NAME,
                               shown.text);
    return add(config, text, problem) || bag_problem_prefix(problem, "--synthetic %s", shown.text);
}

/* ---- presets --------------------------------------------------------------------------------- */

struct table {
    const char *name;
    int64_t rows;
};

/* Tables as published, and the collection over them. */
static const struct preset {
    const char *name, *collection;
    const char *features; /* names, each after ", ", in the collection; NULL: one for each table */
    const char *model;    /* config.json of each table */
    int64_t elements, row_bytes; /* elements and bytes of a row of each table */
    struct table tables[BAG_MLPERF_DLRM_V2_TABLES];
    size_t num_tables;
} presets[] = {
    [BAG_SYNTHETIC_DLRM_V2] = {.name = BAG_MLPERF_DLRM_V2_NAME,
                               .collection = BAG_MLPERF_DLRM_V2_COLLECTION,
                               .model = "{}",
                               .elements = BAG_MLPERF_DLRM_V2_ELEMENTS,
                               .row_bytes = 4 * BAG_MLPERF_DLRM_V2_ELEMENTS,
#define BAG_X(rows, ids) {NULL, rows},
                               .tables = {BAG_MLPERF_DLRM_V2(BAG_X)},
#undef BAG_X
                               .num_tables = BAG_MLPERF_DLRM_V2_TABLES},
    [BAG_SYNTHETIC_DLRM_V3] = {.name = BAG_MLPERF_DLRM_V3_NAME,
                               .collection = BAG_MLPERF_DLRM_V3_COLLECTION,
#define BAG_X(name, table, ids) ", {\"name\": \"" name "\", \"model\": \"" table "\"}"
                               .features = BAG_MLPERF_DLRM_V3_FEATURES(BAG_X),
#undef BAG_X
                               .model = "{\"datatype\": \"FP16\", \"reduction\": \"none\"}",
                               .elements = BAG_MLPERF_DLRM_V3_ELEMENTS,
                               .row_bytes = 2 * BAG_MLPERF_DLRM_V3_ELEMENTS,
#define BAG_X(name, rows) {name, rows},
                               .tables = {BAG_MLPERF_DLRM_V3_TABLES(BAG_X)},
#undef BAG_X
                               .num_tables = 3}};

enum bag_synthetic_preset bag_synthetic_find_preset(const char *name)
{
    for (size_t i = BAG_SYNTHETIC_NONE + 1; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(name, presets[i].name) == 0)
            return (enum bag_synthetic_preset)i;
    }
    return BAG_SYNTHETIC_NONE;
}

/* Returns the number of rows of a table that may have at most `most`. */
static int64_t shortened(int64_t rows, int64_t most)
{
    return rows < most ? rows : most;
}

bool bag_synthetic_add_preset(struct bag_config *config, enum bag_synthetic_preset id,
                              int64_t bytes, struct bag_problem *problem)
{
    const struct preset *preset = &presets[id];
    int64_t rows = bytes / preset->row_bytes;
    /* A binary search: `most` rows fit, and more than `high` do not. */
    int64_t most = 1, high = 0;
    for (size_t i = 0; i < preset->num_tables; i++)
        high = preset->tables[i].rows > high ? preset->tables[i].rows : high;
    while (most < high) {
        int64_t middle = most + (high - most + 1) / 2, sum = 0;
        for (size_t i = 0; i < preset->num_tables; i++)
            sum += shortened(preset->tables[i].rows, middle);
        if (sum <= rows)
            most = middle;
        else
            high = middle - 1;
    }
    char features[1024] = "";
    for (size_t i = 0; i < preset->num_tables; i++) {
        /* Add a table of the preset. Tables without a name are called f0, f1, ... */
        char name[32], table[96];
        snprintf(name, sizeof name, "f%zu", i);
        snprintf(table, sizeof table, "%s=%lldx%lld",
                 preset->tables[i].name ? preset->tables[i].name : name,
                 (long long)shortened(preset->tables[i].rows, most), (long long)preset->elements);
        if (!(add(config, table, problem) &&
              bag_config_apply_model_file(config, config->num_models - 1, "--synthetic",
                                          preset->model, strlen(preset->model), false, problem)))
            return false;
        if (!preset->features)
            bag_text_add(features, sizeof features, ", {\"name\": \"f%zu\", \"model\": \"f%zu\"}",
                         i, i);
    }
    char file[1100];
    snprintf(file, sizeof file, "{\"features\": [%s]}",
             (preset->features ? preset->features : features) + strlen(", "));
    return bag_config_add_model(config, preset->collection, NULL, "1", problem) &&
           bag_config_apply_model_file(config, config->num_models - 1, "--synthetic", file,
                                       strlen(file), false, problem);
}
