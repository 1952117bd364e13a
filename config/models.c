/* Configured models: their keys, names and versions, the table of each feature, and the settings
 * that a feature takes from its table's model. */
#include "config.h"

#include "json.h"
#include "model_options.h"
#include "names.h"
#include "proto/arena.h"
#include "proto/text.h"
#include "shards.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- the keys of models and features --------------------------------------------------------- */

/* The words of datatypes. Tables contain numbers, so other types have no word. */
#define BAG_TABLE_SIGNED(name)                 name,
#define BAG_TABLE_UNSIGNED(name)               name,
#define BAG_TABLE_FLOAT(name)                  name,
#define BAG_TABLE_OTHER(name)                  NULL,
#define BAG_TABLE_DTYPE(id, name, bytes, kind) BAG_TABLE_##kind(name)

#define BAG_TYPE_CHOICE_DTYPE           .type = BAG_SETTING_CHOICE, .words = {dtypes, COUNT_OF(dtypes)}
#define BAG_TYPE_CHOICE_REDUCTION       BAG_TYPE_CHOICE(BAG_REDUCTIONS)
#define BAG_TYPE_CHOICE_LOAD            BAG_TYPE_CHOICE(BAG_LOADS)
#define BAG_TYPE_CHOICE_ROW_FORMAT      BAG_TYPE_CHOICE(BAG_ROW_FORMATS)
#define BAG_TYPE_CHOICE_OUT_OF_RANGE    BAG_TYPE_CHOICE(BAG_OUT_OF_RANGE)
#define BAG_TYPE_CHOICE_MISSING         BAG_TYPE_CHOICE(BAG_MISSINGS)
#define BAG_TYPE_CHOICE_RELOAD          BAG_TYPE_CHOICE(BAG_RELOADS)
#define BAG_TYPE_CHOICE_SHARD_READY     BAG_TYPE_CHOICE(BAG_SHARD_READIES)
#define BAG_TYPE_CHOICE_SHARD_ABSENT    BAG_TYPE_CHOICE(BAG_SHARD_ABSENTS)
#define BAG_TYPE_CHOICE_SHARD_HEDGE     BAG_TYPE_CHOICE(BAG_SHARD_HEDGES)
#define BAG_TYPE_CHOICE_FORM            BAG_TYPE_CHOICE(BAG_FORMS)
#define BAG_TYPE_CHOICE_OPTIONAL_INPUTS BAG_TYPE_CHOICE(BAG_V2_OPTIONAL_INPUTS)

static const char *const dtypes[] = {BAG_DTYPES(BAG_TABLE_DTYPE)};

/* Initialises the setting of one key for a member of struct `type`. */
#define BAG_MODEL_SETTING(type, member, key_, TYPE, minimum_, maximum_)                \
    {                                                                                  \
        .key = (key_), .offset = offsetof(struct type, member), .minimum = (minimum_), \
        .maximum = (maximum_), .unit = "", BAG_TYPE_##TYPE                             \
    }

static const char *const feature_identity[] = {BAG_FEATURE_IDENTITY(BAG_ID)};

static const struct bag_setting feature_settings[] = {
#define BAG_X(member, key, TYPE, minimum, maximum, sentence) \
    BAG_MODEL_SETTING(bag_feature_config, member, key, TYPE, minimum, maximum),
    BAG_POOLING_KEYS(BAG_X) BAG_PROJECTION_KEYS(BAG_X)
#undef BAG_X
};

_Static_assert(COUNT_OF(feature_settings) <= 32, "struct bag_feature_config has a bit for each");

const struct bag_entry_keys bag_feature_keys = {feature_identity, COUNT_OF(feature_identity),
                                                feature_settings, COUNT_OF(feature_settings)};

static const char *const model_identity[] = {BAG_MODEL_IDENTITY(BAG_ID)};

static const struct bag_setting model_settings[] = {
#define BAG_X(member, key, TYPE, minimum, maximum, sentence) \
    BAG_MODEL_SETTING(bag_model_config, member, key, TYPE, minimum, maximum),
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
};

const struct bag_entry_keys bag_model_keys = {model_identity, COUNT_OF(model_identity),
                                              model_settings, COUNT_OF(model_settings)};

/* The number of settings up to the end of a group, in the order of BAG_MODEL_KEYS. Files come
 * first, then shards, then the other keys of one version. The keys of the whole model follow. */
enum {
    NUM_FILE_SETTINGS = BAG_FILE_KEYS(BAG_ONE),
    NUM_STORED_SETTINGS = BAG_FILE_KEYS(BAG_ONE) BAG_SHARD_KEYS(BAG_ONE),
    NUM_TABLE_SETTINGS = BAG_FILE_KEYS(BAG_ONE) BAG_SHARD_KEYS(BAG_ONE) BAG_SHOWN_KEYS(BAG_ONE)
        BAG_POOLING_KEYS(BAG_ONE) BAG_PROJECTION_KEYS(BAG_ONE)
};

bool bag_setting_is_of_table(const struct bag_setting *setting)
{
    return setting && (size_t)(setting - model_settings) < NUM_TABLE_SETTINGS;
}

const char *bag_setting_misfit(const struct bag_setting *setting,
                               const struct bag_model_config *model)
{
    size_t place = setting ? (size_t)(setting - model_settings) : NUM_TABLE_SETTINGS;
    bool has_shards = bag_model_has_shards(model);
    if (has_shards && place < NUM_FILE_SETTINGS)
        return "is of a table's file, and the shards have the files";
    return !has_shards && place >= NUM_FILE_SETTINGS && place < NUM_STORED_SETTINGS
               ? "needs 'shards' beside it"
               : NULL;
}

/* ---- names and versions ---------------------------------------------------------------------- */

/* The maximum length of a model's name in bytes. */
#define LONGEST_NAME 128

bool bag_model_name_valid(const char *name)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t bytes = strspn(name, allowed);
    return bytes >= 1 && bytes <= LONGEST_NAME && !name[bytes] && name[0] != '.';
}

bool bag_model_version_parse(const char *version, uint64_t *number)
{
    int64_t value;
    bool ok = bag_integer_parse(version, &value) && value >= 1 && value <= BAG_LARGEST_EXACT;
    *number = ok ? (uint64_t)value : 0;
    return ok;
}

/* Returns the source of a model for messages. */
static const char *source_of(const char *path)
{
    return path ? path : "features";
}

/* Copies name, path and version. Returns false without memory; the model then owns nothing. */
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
    free(model->shard_model);
    free(model->shard_token_file);
    free(model->name);
    free(model->path);
    free(model->version);
    free(model->reason);
}

/* Reserves memory for one more model and its names. */
static bool reserve(struct bag_config *config)
{
    return BAG_GROW(config->models, config->num_models) && bag_names_reserve(&config->names, 2);
}

/* Returns the version as a number. All versions are valid when they are added. */
static uint64_t number_of(const struct bag_model_config *model)
{
    uint64_t number;
    bag_model_version_parse(model->version, &number);
    return number;
}

/* Adds a model, whose members the configuration then owns. Memory for it must have been
 * reserved. */
static void put_model(struct bag_config *config, const struct bag_model_config *model)
{
    size_t *highest = bag_names_find(&config->names, model->name, NULL);
    size_t place = config->num_models++;
    config->models[place] = *model;
    bag_names_put(&config->names, model->name, model->version, place);
    /* The name alone stands for the highest version. */
    if (!highest)
        bag_names_put(&config->names, model->name, NULL, place);
    else if (number_of(model) > number_of(&config->models[*highest]))
        *highest = place;
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
    /* Check the name and the version of a new model. */
    if (!bag_model_name_valid(name))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "model name '%s' must be 1 to 128 of A-Z a-z 0-9 . _ - with no dot "
                               "in front",
                               bag_quote(name, strlen(name)).text);
    uint64_t number;
    if (!bag_model_version_parse(version, &number))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "model '%s': version '%s' must be a whole number from 1 to %lld",
                               name, bag_quote(version, strlen(version)).text,
                               (long long)BAG_LARGEST_EXACT);
    size_t other = bag_config_find_version(config, name, version);
    if (other != config->num_models)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "model '%s' version %s is named twice: '%s' and '%s'", name, version,
                               source_of(config->models[other].path), source_of(path));
    if (!reserve(config) || !copy_identity(&model, name, path, version))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory for model '%s'",
                               name);
    put_model(config, &model);
    return true;
}

bool bag_config_add_copy(struct bag_config *config, const struct bag_model_config *model)
{
    struct bag_model_config copy;
    if (!reserve(config) || !bag_model_config_copy(&copy, model))
        return false;
    put_model(config, &copy);
    return true;
}

void bag_config_free_models(struct bag_config *config)
{
    for (size_t i = 0; i < config->num_models; i++)
        bag_model_config_free(&config->models[i]);
    free(config->models);
    bag_names_free(&config->names);
    config->models = NULL;
    config->num_models = 0;
}

size_t bag_config_find_version(const struct bag_config *config, const char *name,
                               const char *version)
{
    const size_t *place = bag_names_find(&config->names, name, version);
    return place ? *place : config->num_models;
}

/* ---- features of collections, once all models are known -------------------------------------- */

const struct bag_model_config *bag_config_find_model(const struct bag_config *config,
                                                     const char *name)
{
    const size_t *highest = bag_names_find(&config->names, name, NULL);
    return highest ? &config->models[*highest] : NULL;
}

bool bag_config_uses_shards(const struct bag_config *config, const struct bag_model_config *model)
{
    bool found = bag_model_has_shards(model);
    for (size_t i = 0; i < model->num_features && !found; i++) {
        const struct bag_model_config *table =
            bag_config_find_model(config, model->features[i].model);
        found = table && bag_model_has_shards(table);
    }
    return found;
}

/* Checks that the model of a feature exists and has a table. Collections of collections are not
 * supported. */
static bool check_feature(const struct bag_config *config, const char *collection,
                          const struct bag_feature_config *feature, struct bag_problem *problem)
{
    const struct bag_model_config *model = bag_config_find_model(config, feature->model);
    if (!model) {
        /* Reject a feature whose model does not exist, with the nearest model that has a table as a
         * suggestion. */
        struct bag_suggestion suggestion = {.written = feature->model};
        struct bag_quoted name = bag_quote(feature->model, strlen(feature->model));
        for (size_t i = 0; i < config->num_models; i++) {
            if (config->models[i].path)
                bag_suggest_offer(&suggestion, config->models[i].name);
        }
        if (!suggestion.nearest[0])
            return bag_problem_set(
                problem, BAG_ERROR_CONFIGURATION,
                "model '%s', feature '%s': there is no model '%s', nor any other "
                "of a table",
                collection, feature->name, name.text);
        return bag_problem_set(
            problem, BAG_ERROR_CONFIGURATION, "model '%s', feature '%s': there is no model '%s'%s",
            collection, feature->name, name.text, bag_suggestion_question(&suggestion, "'").text);
    }
    return model->path || bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                          "model '%s', feature '%s': model '%s' is a collection; "
                                          "a feature is of a table",
                                          collection, feature->name, feature->model);
}

/* Checks that a bias has a projection, to whose result it is added. */
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
    if (bag_model_has_shards(model)) {
        const char *name = bag_shards_model(model);
        if (!bag_shards_check(model, problem))
            return false;
        if (!bag_model_name_valid(name))
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "model '%s': shard_model '%s' is no model's name", model->name,
                                   bag_quote(name, strlen(name)).text);
    }
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
    /* `bit` is that of the current key. It moves in the order in which find_set() numbers them. */
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

/* ---- copies and hashes of models ------------------------------------------------------------- */

/* Replaces the texts of `copy`, which are those of the original, by copies. */
static bool copy_texts(const struct bag_setting *settings, size_t count, void *copy)
{
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        char **text = (char **)((char *)copy + settings[i].offset);
        if (settings[i].type == BAG_SETTING_TEXT && *text)
            ok &= (*text = strdup(*text)) != NULL;
    }
    return ok;
}

/* Replaces the features of `copy` by copies. Returns false without memory; the copy can then be
 * freed. */
static bool copy_features(struct bag_model_config *copy, const struct bag_model_config *model)
{
    bool ok = true;
    copy->features = calloc(model->num_features + 1, sizeof *copy->features);
    copy->num_features = copy->features ? model->num_features : 0;
    for (size_t i = 0; i < copy->num_features; i++) {
        struct bag_feature_config *feature = &copy->features[i];
        *feature = model->features[i];
        ok &= copy_texts(feature_settings, COUNT_OF(feature_settings), feature);
        ok &= (feature->name = strdup(feature->name)) != NULL;
        ok &= (feature->model = strdup(feature->model)) != NULL;
    }
    return ok && copy->features;
}

bool bag_model_config_copy(struct bag_model_config *copy, const struct bag_model_config *model)
{
    *copy = *model;
    /* Every text that the copy shares with the original is replaced, also after a failure, so that
     * the copy can be freed. */
    bool ok = copy_texts(model_settings, COUNT_OF(model_settings), copy);
    copy->path = model->path ? strdup(model->path) : NULL;
    copy->name = strdup(model->name);
    copy->version = strdup(model->version);
    copy->reason = NULL;
    ok = copy_features(copy, model) && ok && copy->name && copy->version;
    if (ok && (copy->path || !model->path))
        return true;
    bag_model_config_free(copy);
    memset(copy, 0, sizeof *copy);
    return false;
}

/* Continues a hash with a text and its NUL. NULL hashes differently from every text: no text in
 * UTF-8 begins with the byte 0xff. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    return text ? bag_hash_bytes(hash, text, strlen(text) + 1) : bag_hash_bytes(hash, "\xff", 1);
}

/* Continues a hash with the value of a setting in the struct at `base`. */
static uint64_t hash_setting(uint64_t hash, const struct bag_setting *setting, const void *base)
{
    const void *member = (const char *)base + setting->offset;
    const struct bag_shape *shape = member;
    const struct bag_version_policy *policy = member;
    const struct bag_part *part = member;
    switch (setting->type) {
    case BAG_SETTING_COUNT:
    case BAG_SETTING_BYTES:
    case BAG_SETTING_SECONDS:
    case BAG_SETTING_KEY:
        return bag_hash_bytes(hash, member, sizeof(int64_t));
    case BAG_SETTING_TEXT:
        return hash_text(hash, *(char *const *)member);
    case BAG_SETTING_SHAPE:
        return bag_hash_bytes(hash, shape->sizes, shape->rank * sizeof *shape->sizes);
    case BAG_SETTING_CHOICE:
        return bag_hash_bytes(hash, member, sizeof(unsigned));
    case BAG_SETTING_BOOL:
        return bag_hash_bytes(hash, member, sizeof(bool));
    case BAG_SETTING_POLICY:
        hash = bag_hash_bytes(hash, &policy->kind, sizeof policy->kind);
        return bag_hash_bytes(hash, policy->numbers, policy->count * sizeof *policy->numbers);
    case BAG_SETTING_PART:
        return bag_hash_bytes(hash, part, sizeof *part);
    }
    return hash;
}

/* Continues a hash with the two flags of the rules that no setting covers: whether the indices are
 * set. */
static uint64_t hash_rules(uint64_t hash, const struct bag_rules *rules)
{
    unsigned char set[] = {rules->has_padding_idx, rules->has_default_index};
    return bag_hash_bytes(hash, set, sizeof set);
}

uint64_t bag_model_config_hash_files(const struct bag_model_config *model, bool with_paths)
{
    uint64_t hash = with_paths ? hash_text(BAG_HASH_START, model->path) : BAG_HASH_START;
    for (size_t i = 0; i < NUM_STORED_SETTINGS; i++) {
        if (with_paths || !model_settings[i].is_path)
            hash = hash_setting(hash, &model_settings[i], model);
    }
    return hash;
}

uint64_t bag_model_config_hash(const struct bag_model_config *model)
{
    uint64_t hash = hash_rules(bag_model_config_hash_files(model, true), &model->rules);
    if (bag_model_has_shards(model))
        hash = bag_hash_bytes(hash, &model->set, sizeof model->set);
    for (size_t i = NUM_STORED_SETTINGS; i < COUNT_OF(model_settings); i++)
        hash = hash_setting(hash, &model_settings[i], model);
    for (size_t i = 0; i < model->num_features; i++) {
        const struct bag_feature_config *feature = &model->features[i];
        hash = hash_text(hash_text(hash, feature->name), feature->model);
        hash = bag_hash_word(hash, feature->version);
        hash = bag_hash_bytes(hash, &feature->set, sizeof feature->set);
        hash = hash_rules(hash, &feature->rules);
        for (size_t j = 0; j < COUNT_OF(feature_settings); j++)
            hash = hash_setting(hash, &feature_settings[j], feature);
    }
    return hash;
}
