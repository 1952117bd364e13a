/* Addresses of shards; see shards.h. */
#include "shards.h"

#include "json.h"
#include "names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOCKET_PREFIX "unix:"

/* The maximum length of a path in struct sockaddr_un. */
#define SOCKET_PATH_BYTES 107

bool bag_model_has_shards(const struct bag_model_config *model)
{
    return model->path && strncmp(model->path, BAG_SHARDS_PREFIX, strlen(BAG_SHARDS_PREFIX)) == 0;
}

const char *bag_shards_model(const struct bag_model_config *model)
{
    return model->shard_model && *model->shard_model ? model->shard_model : model->name;
}

char *bag_shards_path(const cJSON *addresses)
{
    const cJSON *item;
    /* Each address takes its length and one blank. */
    size_t bytes = sizeof BAG_SHARDS_PREFIX, used = sizeof BAG_SHARDS_PREFIX - 1;
    cJSON_ArrayForEach(item, addresses)
    {
        bytes += strlen(item->valuestring) + 1;
    }
    char *path = malloc(bytes);
    if (!path)
        return NULL;
    memcpy(path, BAG_SHARDS_PREFIX, used + 1);
    cJSON_ArrayForEach(item, addresses)
    {
        used += (size_t)snprintf(path + used, bytes - used, "%s%s",
                                 item == addresses->child ? "" : " ", item->valuestring);
    }
    return path;
}

/* Rejects an address. Returns false and sets *problem (CONFIGURATION). */
static bool reject(const struct bag_shard_address *address, const char *why,
                   struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "shards: address '%s': %s",
                           bag_quote(address->text, strlen(address->text)).text, why);
}

/* Checks address->text and sets the other members. Returns false and sets *problem if it is neither
 * http://HOST:PORT nor unix:PATH. */
static bool parse(struct bag_shard_address *address, struct bag_problem *problem)
{
    struct bag_problem why;
    address->socket = NULL;
    for (const char *byte = address->text; *byte; byte++) {
        if (*byte < '!' || *byte > '~' || *byte == '"' || *byte == '\\')
            return reject(address, "it has visible ASCII without quotes and backslashes", problem);
    }
    if (strncmp(address->text, SOCKET_PREFIX, strlen(SOCKET_PREFIX)) == 0) {
        address->socket = address->text + strlen(SOCKET_PREFIX);
        address->url = (struct bag_url){.authority = "localhost", .path = {"", 0}};
        size_t bytes = strlen(address->socket);
        return (bytes >= 1 && bytes <= SOCKET_PATH_BYTES) ||
               reject(address, "a socket's path has 1 to 107 bytes", problem);
    }
    if (strncmp(address->text, "http://", 7) != 0 && strncmp(address->text, "https://", 8) != 0)
        return reject(address, "write http://HOST:PORT or unix:PATH", problem);
    if (strchr(address->text, '@')) /* never log what may be a password */
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "shards: an address must not have a user");
    return bag_url_parse(address->text, &address->url, &why) || reject(address, why.text, problem);
}

bool bag_shards_next(const char **at, struct bag_shard_address *address,
                     struct bag_problem *problem)
{
    const char *text = *at;
    if (strncmp(text, BAG_SHARDS_PREFIX, strlen(BAG_SHARDS_PREFIX)) == 0)
        text += strlen(BAG_SHARDS_PREFIX);
    text += strspn(text, " ");
    size_t bytes = strcspn(text, " ");
    *at = text + bytes;
    problem->text[0] = 0;
    if (bytes == 0)
        return false;
    snprintf(address->text, sizeof address->text, "%.*s", (int)(bytes < 511 ? bytes : 511), text);
    return bytes < sizeof address->text ? parse(address, problem)
                                        : reject(address, "it has more than 511 bytes", problem);
}

bool bag_shards_check(const struct bag_model_config *model, struct bag_problem *problem)
{
    struct bag_shard_address address;
    struct bag_names names = {0};
    char *copy = strdup(model->path);
    const char *at = model->path;
    size_t count = 0;
    bool ok = copy || bag_problem_no_memory(problem);
    while (ok && bag_shards_next(&at, &address, problem)) {
        /* The index of names refers to this copy. */
        char *text = copy + (at - model->path) - strlen(address.text);
        copy[at - model->path] = 0;
        if (bag_names_find(&names, text, NULL))
            ok = reject(&address, "it is there twice", problem);
        else if (++count > BAG_MAX_SHARDS)
            ok = bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "shards: at most %d",
                                 BAG_MAX_SHARDS);
        else if (!bag_names_reserve(&names, 1))
            ok = bag_problem_no_memory(problem);
        else
            bag_names_put(&names, text, NULL, count);
    }
    ok = ok && !problem->text[0];
    if (ok && count == 0)
        ok = bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "shards: there is no address");
    if (!ok)
        bag_problem_prefix(problem, "model '%s'", model->name);
    bag_names_free(&names);
    free(copy);
    return ok;
}

/* ---- rules ----------------------------------------------------------------------------------- */

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
