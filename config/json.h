/* A configuration document while it is applied: the tree, its objects of keys, and rejections that
 * name the place. Private to config; which keys there are is said in options.h and model_options.h.
 */
#ifndef BAG_CONFIG_JSON_H
#define BAG_CONFIG_JSON_H

#include "kernels/table.h"
#include "options.h"
#include "proto/json.h"

struct bag_config_json {
    const char *file_name; /* borrowed, as the text */
    const char *text;
    size_t text_bytes;
    cJSON *tree; /* freed by bag_json_free */
    struct bag_problem *problem;
};

/* Fills *json with the tree of a strict document whose outermost value is an object. */
bool bag_config_json_parse(struct bag_config_json *json, const char *file_name, const char *text,
                           size_t text_bytes, struct bag_problem *problem);

/* Sets the problem to "FILE: line L, column C: ..." of the node; returns false. */
bool bag_config_json_reject(const struct bag_config_json *json, const cJSON *item,
                            const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Rejects a key: "unknown key 'prot' in 'http'; did you mean 'port'?". `where` is "" or, for
 * example, " in 'http'"; returns false. */
bool bag_config_json_unknown(const struct bag_config_json *json, const cJSON *item,
                             const char *where, const char *nearest);

/* Sets the member in `base` from the value of a key; paths get the document's folder in front. */
bool bag_config_json_apply(const struct bag_config_json *json, const cJSON *item, const char *where,
                           const struct bag_setting *setting, void *base);

/* A copy of `path`, joined to the document's folder unless it is absolute; NULL without memory.
 * The caller frees it. */
char *bag_config_json_path(const struct bag_config_json *json, const char *path);

/* ---- objects: a model or a feature ----------------------------------------------------------- */

/* The keys that an object may have: some that say what it is, and the settings of its struct. */
struct bag_entry_keys {
    const char *const *identity;
    size_t num_identity;
    const struct bag_setting *settings;
    size_t num_settings;
};

/* Of models and of features (models.c). */
extern const struct bag_entry_keys bag_model_keys, bag_feature_keys;

/* Whether a setting of a model is of its table, which a collection has none of; NULL is none. */
bool bag_setting_is_of_table(const struct bag_setting *setting);

struct bag_model_config;

/* Why a model cannot have that setting, "needs ..."; NULL: it can. NULL is none. */
const char *bag_setting_misfit(const struct bag_setting *setting,
                               const struct bag_model_config *model);

/* The object, and its name in messages: " in model 'items'". */
struct bag_entry {
    const struct bag_config_json *json;
    const cJSON *object;
    const struct bag_entry_keys *keys;
    char where[320];
};

bool bag_entry_is_identity(const struct bag_entry *entry, const char *key);

/* The setting of that key; NULL where there is none. */
const struct bag_setting *bag_entry_setting(const struct bag_entry *entry, const char *key);

/* Rejects a key that is not known, naming the nearest one; returns false. */
bool bag_entry_unknown(const struct bag_entry *entry, const cJSON *item, bool with_identity);

/* Rejects unknown keys, before any value is read: a missing key is most often a misspelt one.
 */
bool bag_entry_check_keys(const struct bag_entry *entry);

/* Sets what the object says of the settings in `base`, the struct that they are of; `rules` is the
 * part of it that says how to pool. */
bool bag_entry_apply(const struct bag_entry *entry, void *base, struct bag_rules *rules);

/* A member of the object; NULL where it is not there. */
const cJSON *bag_entry_member(const struct bag_entry *entry, const char *key);

/* A key that must be there, as a text that is not empty; NULL where it is rejected. */
const char *bag_entry_required(const struct bag_entry *entry, const char *key);

#endif
