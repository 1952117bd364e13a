/* Tables of made-up rows; see synthetic.h. */
#include "synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
                               "items=1000000x64, or " BAG_MLPERF_DLRM_V2_NAME,
                               shown.text);
    if (add(config, text, problem))
        return true;
    bag_problem_prefix(problem, "--synthetic %s", shown.text);
    return false;
}

/* ---- a preset -------------------------------------------------------------------------------- */

static const int64_t published_rows[BAG_MLPERF_DLRM_V2_TABLES] = {
#define BAG_X(rows, ids) rows,
    BAG_MLPERF_DLRM_V2(BAG_X)
#undef BAG_X
};

static int64_t shortened(int64_t rows, int64_t most)
{
    return rows < most ? rows : most;
}

/* The length that the largest tables are shortened to, so that all have at most `rows` together. */
static int64_t longest(int64_t rows)
{
    int64_t low = 1, high = 0;
    for (size_t i = 0; i < BAG_MLPERF_DLRM_V2_TABLES; i++)
        high = published_rows[i] > high ? published_rows[i] : high;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2, sum = 0;
        for (size_t i = 0; i < BAG_MLPERF_DLRM_V2_TABLES; i++)
            sum += shortened(published_rows[i], middle);
        if (sum <= rows)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

bool bag_synthetic_add_preset(struct bag_config *config, int64_t bytes, struct bag_problem *problem)
{
    const int64_t row_bytes = BAG_MLPERF_DLRM_V2_ELEMENTS * (int64_t)sizeof(float);
    int64_t most = longest(bytes / row_bytes);
    char features[1024];
    size_t used = (size_t)snprintf(features, sizeof features, "{\"features\": [");
    for (size_t i = 0; i < BAG_MLPERF_DLRM_V2_TABLES; i++) {
        char table[64];
        snprintf(table, sizeof table, "f%zu=%lldx%d", i,
                 (long long)shortened(published_rows[i], most), BAG_MLPERF_DLRM_V2_ELEMENTS);
        if (!add(config, table, problem))
            return false;
        used += (size_t)snprintf(features + used, sizeof features - used,
                                 "%s{\"name\": \"f%zu\", \"model\": \"f%zu\"}", i ? "," : "", i, i);
    }
    used += (size_t)snprintf(features + used, sizeof features - used, "]}");
    return bag_config_add_model(config, BAG_MLPERF_DLRM_V2_COLLECTION, NULL, "1", problem) &&
           bag_config_apply_model_file(config, config->num_models - 1, "--synthetic", features,
                                       used, false, problem);
}
