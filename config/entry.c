/* One object of keys; see entry.h. */
#include "entry.h"

#include "proto/text.h"

#include <string.h>

bool bag_entry_is_identity(const struct bag_entry *entry, const char *key)
{
    for (size_t i = 0; i < entry->keys->num_identity; i++) {
        if (strcmp(entry->keys->identity[i], key) == 0)
            return true;
    }
    return false;
}

const struct bag_setting *bag_entry_setting(const struct bag_entry *entry, const char *key)
{
    for (size_t i = 0; i < entry->keys->num_settings; i++) {
        if (strcmp(entry->keys->settings[i].key, key) == 0)
            return &entry->keys->settings[i];
    }
    return NULL;
}

bool bag_entry_unknown(const struct bag_entry *entry, const cJSON *item, bool with_identity)
{
    struct bag_suggestion suggestion = {.written = item->string};
    for (size_t i = 0; with_identity && i < entry->keys->num_identity; i++)
        bag_suggest_offer(&suggestion, entry->keys->identity[i]);
    for (size_t i = 0; i < entry->keys->num_settings; i++)
        bag_suggest_offer(&suggestion, entry->keys->settings[i].key);
    return bag_config_json_unknown(entry->json, item, entry->where, suggestion.nearest);
}

bool bag_entry_check_keys(const struct bag_entry *entry)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        if (!bag_entry_is_identity(entry, item->string) && !bag_entry_setting(entry, item->string))
            return bag_entry_unknown(entry, item, true);
    }
    return true;
}

/* One value, and what comes with it. */
static bool apply(const struct bag_entry *entry, const cJSON *item,
                  const struct bag_setting *setting, void *base, struct bag_rules *rules)
{
    void *member = (char *)base + setting->offset;
    if (!bag_config_json_apply(entry->json, item, entry->where, setting, base))
        return false;
    /* Every index can be the padding one, so that no value of the member means "none". */
    if (member == &rules->padding_idx)
        rules->has_padding_idx = true;
    return setting->type != BAG_SETTING_TEXT || bag_config_json_join(entry->json, member);
}

bool bag_entry_apply(const struct bag_entry *entry, void *base, struct bag_rules *rules)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        const struct bag_setting *setting = bag_entry_setting(entry, item->string);
        if (setting && !apply(entry, item, setting, base, rules))
            return false;
    }
    return true;
}

const cJSON *bag_entry_member(const struct bag_entry *entry, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(entry->object, key);
}

const char *bag_entry_required(const struct bag_entry *entry, const char *key)
{
    const cJSON *item = bag_entry_member(entry, key);
    const char *text = cJSON_GetStringValue(item);
    if (text && *text)
        return text;
    if (item)
        bag_config_json_reject(entry->json, item, "%s%s must be a text that is not empty", key,
                               entry->where);
    else
        bag_config_json_reject(entry->json, entry->object, "key '%s' is missing%s", key,
                               entry->where);
    return NULL;
}
