/* Models as configured: their names and versions, which table each feature is of, and what it takes
 * over from that table's model. */
#include "config.h"

#include "model_options.h"
#include "proto/text.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST_NAME 128

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

bool bag_model_name_valid(const char *name)
{
    size_t bytes = strnlen(name, LONGEST_NAME + 1);
    for (size_t i = 0; i < bytes; i++) {
        if (!is_name_byte(name[i]))
            return false;
    }
    return bytes >= 1 && bytes <= LONGEST_NAME && name[0] != '.';
}

static bool version_valid(const char *version)
{
    int64_t number;
    return bag_integer_parse(version, &number) && number >= 1 && number <= BAG_LARGEST_EXACT;
}

/* Where a model comes from, in messages. */
static const char *source_of(const char *path)
{
    return path ? path : "features";
}

static bool check_identity(const struct bag_config *config, const char *name, const char *path,
                           const char *version, struct bag_problem *problem)
{
    if (!bag_model_name_valid(name))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "model name '%s' must be 1 to 128 of A-Z a-z 0-9 . _ - with no dot "
                               "in front",
                               bag_quote(name, strlen(name)).text);
    if (!version_valid(version))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "model '%s': version '%s' must be a whole number from 1 to %lld",
                               name, bag_quote(version, strlen(version)).text,
                               (long long)BAG_LARGEST_EXACT);
    for (size_t i = 0; i < config->num_models; i++) {
        const struct bag_model_config *other = &config->models[i];
        if (strcmp(other->name, name) == 0 && strcmp(other->version, version) == 0)
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "model '%s' version %s is named twice: '%s' and '%s'", name,
                                   version, source_of(other->path), source_of(path));
    }
    return true;
}

static bool copy_identity(struct bag_model_config *model, const char *name, const char *path,
                          const char *version)
{
    model->name = strdup(name);
    model->path = path ? strdup(path) : NULL;
    model->version = strdup(version);
    if (model->name && (model->path || !path) && model->version)
        return true;
    bag_model_config_free(model);
    return false;
}

void bag_model_config_free(struct bag_model_config *model)
{
    for (size_t i = 0; i < model->num_features; i++) {
        free(model->features[i].name);
        free(model->features[i].model);
        free(model->features[i].projection);
        free(model->features[i].bias);
    }
    free(model->features);
    free(model->projection);
    free(model->bias);
    free(model->tensor);
    free(model->keys_tensor);
    free(model->keys);
    free(model->name);
    free(model->path);
    free(model->version);
}

bool bag_config_add_model(struct bag_config *config, const char *name, const char *path,
                          const char *version, struct bag_problem *problem)
{
    struct bag_model_config model = {.datatype = BAG_DTYPE_COUNT,
                                     .updates_through = -1,
                                     .output_datatype = BAG_DTYPE_COUNT,
                                     .load = BAG_LOAD_COUNT,
                                     .out_of_range = BAG_MISSING_COUNT,
                                     .missing = BAG_MISSING_COUNT,
                                     .rules = {.reduction = BAG_SUM, .default_index = -1}};
    if (!check_identity(config, name, path, version, problem))
        return false;
    struct bag_model_config *models =
        reallocarray(config->models, config->num_models + 1, sizeof *models);
    if (models)
        config->models = models;
    if (!models || !copy_identity(&model, name, path, version))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory for model '%s'",
                               name);
    config->models[config->num_models++] = model;
    return true;
}

/* ---- features of collections, once all models are known -------------------------------------- */

const struct bag_model_config *bag_config_find_model(const struct bag_config *config,
                                                     const char *name)
{
    const struct bag_model_config *found = NULL;
    int64_t highest = 0, version;
    for (size_t i = 0; i < config->num_models; i++) {
        const struct bag_model_config *model = &config->models[i];
        if (strcmp(model->name, name) != 0 || !bag_integer_parse(model->version, &version) ||
            version <= highest)
            continue;
        found = model;
        highest = version;
    }
    return found;
}

static bool reject_unknown_model(const struct bag_config *config, const char *collection,
                                 const struct bag_feature_config *feature,
                                 struct bag_problem *problem)
{
    struct bag_suggestion suggestion = {.written = feature->model};
    struct bag_quoted name = bag_quote(feature->model, strlen(feature->model));
    for (size_t i = 0; i < config->num_models; i++) {
        if (config->models[i].path)
            bag_suggest_offer(&suggestion, config->models[i].name);
    }
    if (!suggestion.nearest[0])
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "model '%s', feature '%s': there is no model '%s', nor any other "
                               "of a table",
                               collection, feature->name, name.text);
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "model '%s', feature '%s': there is no model '%s'; did you mean '%s'?",
                           collection, feature->name, name.text, suggestion.nearest);
}

static bool check_feature(const struct bag_config *config, const char *collection,
                          const struct bag_feature_config *feature, struct bag_problem *problem)
{
    const struct bag_model_config *model = bag_config_find_model(config, feature->model);
    if (!model)
        return reject_unknown_model(config, collection, feature, problem);
    return model->path || bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                          "model '%s', feature '%s': model '%s' is a collection; "
                                          "a feature is of a table",
                                          collection, feature->name, feature->model);
}

/* A bias is added to what was projected. */
static bool check_bias(const char *model, const char *projection, const char *bias,
                       struct bag_problem *problem)
{
    return !bias || !*bias || (projection && *projection) ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "model '%s': 'bias' needs a 'projection' beside it", model);
}

bool bag_config_check_model(const struct bag_config *config, const struct bag_model_config *model,
                            struct bag_problem *problem)
{
    if (!check_bias(model->name, model->projection, model->bias, problem))
        return false;
    for (size_t j = 0; j < model->num_features; j++) {
        const struct bag_feature_config *feature = &model->features[j];
        if (!check_feature(config, model->name, feature, problem) ||
            !check_bias(model->name, feature->projection, feature->bias, problem))
            return false;
    }
    return true;
}

bool bag_config_check_models(const struct bag_config *config, struct bag_problem *problem)
{
    for (size_t i = 0; i < config->num_models; i++) {
        if (!bag_config_check_model(config, &config->models[i], problem))
            return false;
    }
    return true;
}

void bag_config_pooling(const struct bag_model_config *table,
                        const struct bag_feature_config *feature,
                        struct bag_feature_config *pooling)
{
    uint32_t set = feature ? feature->set : 0, bit = 1;
    pooling->rules = table->rules;
#define BAG_X(member, key, ...)                                              \
    pooling->member = (set & bit) ? feature->member : table->member;         \
    if ((set & bit) && strcmp(key, "padding_idx") == 0)                      \
        pooling->rules.has_padding_idx = feature->rules.has_padding_idx;     \
    if ((set & bit) && strcmp(key, "default_index") == 0)                    \
        pooling->rules.has_default_index = feature->rules.has_default_index; \
    bit <<= 1;
    BAG_POOLING_KEYS(BAG_X)
#undef BAG_X
}

const char *bag_config_projection(const struct bag_model_config *table,
                                  const struct bag_feature_config *feature, const char **bias)
{
    bool own = feature && feature->projection;
    const char *projection = own ? feature->projection : table->projection;
    *bias = own ? feature->bias : table->bias;
    if (*bias && !**bias)
        *bias = NULL;
    return projection && *projection ? projection : NULL;
}
