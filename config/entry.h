/* One object of keys in a configuration document: a model or a feature. Private to config.
 *
 * Must not know: which keys there are; a struct bag_entry_keys lists them. */
#ifndef BAG_CONFIG_ENTRY_H
#define BAG_CONFIG_ENTRY_H

#include "json.h"
#include "kernels/pool.h"

/* The keys that an object may have: some that say what it is, and the settings of its struct. */
struct bag_entry_keys {
    const char *const *identity;
    size_t num_identity;
    const struct bag_setting *settings;
    size_t num_settings;
};

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

/* Rejects unknown keys, before any value is looked at: a missing key is most often a misspelt one.
 */
bool bag_entry_check_keys(const struct bag_entry *entry);

/* Sets what the object says of the settings in `base`, the struct that they are of; `rules` is the
 * part of it that says how to pool. Texts are paths and get the document's folder in front. */
bool bag_entry_apply(const struct bag_entry *entry, void *base, struct bag_rules *rules);

/* A member of the object; NULL where it is not there. */
const cJSON *bag_entry_member(const struct bag_entry *entry, const char *key);

/* A key that must be there, as a text that is not empty; NULL where it is rejected. */
const char *bag_entry_required(const struct bag_entry *entry, const char *key);

#endif
