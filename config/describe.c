/* Describes the options as a JSON document, with their values and sources. */
#include "config.h"
#include "proto/json_writer.h"

#include <string.h>

static const char *const origins[] = {BAG_ORIGINS(BAG_NAME)};

/* Returns the last part of a path, with the slashes at its end. */
static const char *name_of(const char *path)
{
    const char *at = path + strlen(path);
    while (at > path && at[-1] == '/')
        at--;
    while (at > path && at[-1] != '/')
        at--;
    return at;
}

/* Writes the value that an option has in a configuration. Unless `shows_folders` is set, a path is
 * cut to its last part. Only the admin listener shows folders. */
static void write_value(struct bag_json_writer *json, const char *key,
                        const struct bag_setting *setting, const struct bag_config *config,
                        bool shows_folders)
{
    const char *member = (const char *)config + setting->offset;
    if (setting->type == BAG_SETTING_TEXT) {
        const char *text = *(char *const *)member;
        bool cuts =
            text && !shows_folders && (setting->is_path || strcmp(setting->unit, "path") == 0);
        BAG_JSON_WRITE(json, BAG_KEY(key, cuts ? name_of(text) : text));
    } else if (setting->type == BAG_SETTING_CHOICE) {
        BAG_JSON_WRITE(json, BAG_KEY(key, setting->words.names[*(const unsigned *)member]));
    } else if (setting->type == BAG_SETTING_SECONDS) {
        BAG_JSON_WRITE(json, BAG_KEY(key, (double)*(const int64_t *)member / 1000));
    } else {
        BAG_JSON_WRITE(json, BAG_KEY(key, *(const int64_t *)member));
    }
}

void bag_config_write_options(const struct bag_config *config, bool shows_folders,
                              struct bag_json_writer *json)
{
    struct bag_config defaults;
    if (!bag_config_init(&defaults))
        json->text.failed = true;
    bag_json_open(json, "options", '[');
    for (size_t i = 0; !json->text.failed && i < bag_num_options; i++) {
        const struct bag_option *option = &bag_options[i];
        const struct bag_setting *setting = &option->setting;
        bag_json_open(json, NULL, '{');
        BAG_JSON_WRITE(json, BAG_KEY("key", setting->key), BAG_KEY("section", option->section));
        write_value(json, "value", setting, config, shows_folders);
        write_value(json, "default", setting, &defaults, true);
        BAG_JSON_WRITE(json, BAG_KEY("source", origins[config->origins[i]]),
                       BAG_KEY("unit", setting->unit), BAG_KEY("about", option->sentence));
        bag_json_close(json);
    }
    bag_json_close(json);
    bag_config_free(&defaults);
}
