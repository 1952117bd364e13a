/* A configuration document while it is being applied: its tree, its objects, and errors that name
 * the position in the file. Private to config/. The keys are declared in options.h and
 * model_options.h. */
#pragma once

#include "kernels/table.h"
#include "options.h"
#include "proto/json.h"
#include "proto/text.h"

/* A document that is being applied. Lives for one call of bag_config_apply_file or
 * bag_config_apply_model_file. */
struct bag_config_json {
    const char *file_name; /* borrowed, like `text`; its folder is that of relative paths */
    const char *text;
    size_t text_bytes;
    cJSON *tree;                 /* owned; freed with bag_json_free */
    struct bag_problem *problem; /* borrowed; every function below reports here */
};

/* Parses a strict JSON document into *json. Returns false and sets *problem if it is not one, or
 * its outermost value is not an object. */
bool bag_config_json_parse(struct bag_config_json *json, const char *file_name, const char *text,
                           size_t text_bytes, struct bag_problem *problem);

/* Sets the problem to "FILE: line L, column C: ..." of the node; returns false. */
bool bag_config_json_reject(const struct bag_config_json *json, const cJSON *item,
                            const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Sets the problem to "unknown key 'prot' in 'http'; did you mean 'port'?", without the question if
 * no key is near, and returns false. `where` is "" or a context such as " in 'http'". */
bool bag_config_json_unknown(const struct bag_config_json *json, const cJSON *item,
                             const char *where, const struct bag_suggestion *suggestion);

/* Sets the member of `base` that `setting` describes to the value of a key. A relative path is
 * joined to the document's folder. Returns false and sets the problem if the value is invalid. */
bool bag_config_json_apply(const struct bag_config_json *json, const cJSON *item, const char *where,
                           const struct bag_setting *setting, void *base);

/* Returns a copy of `path`, joined to the document's folder unless it is absolute. The caller frees
 * it. Returns NULL if memory is exhausted. */
char *bag_config_json_path(const struct bag_config_json *json, const char *path);

/* ---- objects: a model or a feature ----------------------------------------------------------- */

/* The keys that an object may have: its identity (such as name and path), and the settings of its
 * struct. */
struct bag_entry_keys {
    const char *const *identity; /* read by file.c, each in its own way */
    size_t num_identity;
    const struct bag_setting *settings; /* applied by bag_entry_apply */
    size_t num_settings;
};

/* The keys of models and of features (models.c). */
extern const struct bag_entry_keys bag_model_keys, bag_feature_keys;

/* Returns whether a setting of a model belongs to its table; collections have no such settings.
 * Returns false for NULL. */
bool bag_setting_is_of_table(const struct bag_setting *setting);

struct bag_model_config;

/* Returns why a model cannot have that setting, as "needs ...", or NULL if it can. `setting` may be
 * NULL. */
const char *bag_setting_misfit(const struct bag_setting *setting,
                               const struct bag_model_config *model);

/* An object of the document, and its name in messages, such as " in model 'items'". */
struct bag_entry {
    const struct bag_config_json *json;
    const cJSON *object; /* borrowed from the tree */
    const struct bag_entry_keys *keys;
    char where[320];
};

/* Returns whether the key is one of the object's identity. */
bool bag_entry_is_identity(const struct bag_entry *entry, const char *key);

/* Returns the setting with that key, or NULL if there is none. */
const struct bag_setting *bag_entry_setting(const struct bag_entry *entry, const char *key);

/* Rejects an unknown key, with the nearest known one as a suggestion. Keys of the identity are
 * suggested only if `with_identity` is set. Returns false. */
bool bag_entry_unknown(const struct bag_entry *entry, const cJSON *item, bool with_identity);

/* Checks that all keys of the object are known. Returns false and sets the problem if one is not.
 * Called before any value is read, because a required key that seems to be missing is usually
 * misspelt. */
bool bag_entry_check_keys(const struct bag_entry *entry);

/* Applies all settings of the object to `base`, the struct that they describe. `rules` is the part
 * of that struct with the pooling rules. Returns false and sets the problem at the first invalid
 * value. */
bool bag_entry_apply(const struct bag_entry *entry, void *base, struct bag_rules *rules);

/* Returns a member of the object, or NULL if it is absent. */
const cJSON *bag_entry_member(const struct bag_entry *entry, const char *key);

/* Returns the value of a required key, a non-empty string. Returns NULL and sets the problem if it
 * is anything else. */
const char *bag_entry_required(const struct bag_entry *entry, const char *key);
