/* The pooling rules that shards report; see shards.h. */
#include "json.h"
#include "shards.h"

#include <string.h>

/* Returns the text of a parameter of the model's configuration in the protocol, or NULL if it is
 * absent. */
static const char *rule_of(const cJSON *parameters, const char *key)
{
    const cJSON *rule = bag_json_member(parameters, key);
    return bag_json_text(rule, "string_value");
}

/* Sets the pooling key at index i of a model. Returns false and sets *problem if the shard's value
 * is one that this server does not know. */
static bool take_rule(struct bag_model_config *model, size_t i, const char *value,
                      struct bag_problem *problem)
{
    const struct bag_entry entry = {.keys = &bag_model_keys};
    const char *key = bag_feature_keys.settings[i].key;
    struct bag_reason reason;
    if (!bag_setting_apply(bag_entry_setting(&entry, key), model, value, &reason))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "its %s is '%s', which %s", key,
                               bag_quote(value, strlen(value)).text, reason.text);
    model->rules.has_padding_idx |= strcmp(key, "padding_idx") == 0;
    model->rules.has_default_index |= strcmp(key, "default_index") == 0;
    return true;
}

bool bag_shards_take_rules(struct bag_model_config *model, const char *text, size_t bytes,
                           struct bag_shard_table *table, struct bag_problem *problem)
{
    /* All rules of the shard, whether or not the model overrides them. */
    struct bag_model_config own = {.missing = BAG_MISSING_ERROR};
    cJSON *tree = bag_json_parse(text, bytes, problem);
    const cJSON *parameters = bag_json_member(tree, "parameters");
    bool ok = tree != NULL;
    if (ok && (!rule_of(parameters, "reduction") || rule_of(parameters, "projected")))
        ok = bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                             rule_of(parameters, "projected")
                                 ? "its rows are projected there; the coordinator has 'projection'"
                                 : "its answer is no configuration that names a reduction");
    for (size_t i = 0; ok && i < bag_feature_keys.num_settings; i++) {
        const char *key = bag_feature_keys.settings[i].key;
        const char *value = rule_of(parameters, key);
        if (strcmp(key, "output_datatype") == 0)
            value = bag_dtypes[table->output_dtype].name;
        if (!value || bag_feature_keys.settings[i].is_path)
            continue;
        /* "missing" was read before. If the model sets another value, it has no use for
         * hash_rows. */
        bool is_useless = strcmp(key, "hash_rows") == 0 && model->missing != BAG_MISSING_HASH;
        ok = take_rule(&own, i, value, problem) &&
             (model->set >> i & 1 || is_useless || take_rule(model, i, value, problem));
    }
    table->rules.missing = own.missing;
    table->rules.weighted_mean = own.rules.weighted_mean;
    table->rules.prune_invalid = own.rules.prune_invalid;
    table->rules.has_default_index = own.rules.has_default_index;
    table->rules.default_index = own.rules.default_index;
    table->rules.hash_rows = own.rules.hash_rows;
    bag_json_free(tree);
    return ok;
}
