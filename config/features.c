/* The features of collections, once all models are known: which table each one is of, and what it
 * takes over from that table's model. */
#include "features.h"

#include "model_options.h"
#include "proto/text.h"

#include <string.h>

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

static bool reject_unknown(const struct bag_config *config, const char *collection,
                           const struct bag_feature_config *feature, struct bag_problem *problem)
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
        return reject_unknown(config, collection, feature, problem);
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

bool bag_config_check_features(const struct bag_config *config, struct bag_problem *problem)
{
    for (size_t i = 0; i < config->num_models; i++) {
        const struct bag_model_config *model = &config->models[i];
        if (!check_bias(model->name, model->projection, model->bias, problem))
            return false;
        for (size_t j = 0; j < model->num_features; j++) {
            const struct bag_feature_config *feature = &model->features[j];
            if (!check_feature(config, model->name, feature, problem) ||
                !check_bias(model->name, feature->projection, feature->bias, problem))
                return false;
        }
    }
    return true;
}

void bag_config_feature_rules(const struct bag_model_config *table,
                              const struct bag_feature_config *feature, struct bag_rules *rules,
                              enum bag_dtype *output_datatype)
{
    struct {
        struct bag_rules rules;
        enum bag_dtype output_datatype;
    } merged = {table->rules, table->output_datatype};
    uint32_t bit = 1;
#define BAG_X(member, ...)               \
    if (feature->set & bit)              \
        merged.member = feature->member; \
    bit <<= 1;
    BAG_POOLING_KEYS(BAG_X)
#undef BAG_X
    merged.rules.has_padding_idx |= feature->rules.has_padding_idx;
    *rules = merged.rules;
    *output_datatype = merged.output_datatype;
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
