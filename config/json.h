/* A configuration document while it is applied: the tree, and rejections that name the place.
 *
 * Must not know: which keys there are. Private to config. */
#ifndef BAG_CONFIG_JSON_H
#define BAG_CONFIG_JSON_H

#include "proto/json.h"
#include "setting.h"

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

/* Sets the member in `base` from the value of a key. */
bool bag_config_json_apply(const struct bag_config_json *json, const cJSON *item, const char *where,
                           const struct bag_setting *setting, void *base);

/* Puts the document's folder in front of a path that a setting has just set: *path is replaced.
 * Empty ones stay empty. */
bool bag_config_json_join(const struct bag_config_json *json, char **path);

/* A copy of `path`, joined to the document's folder unless it is absolute; NULL without memory.
 * The caller frees it. */
char *bag_config_json_path(const struct bag_config_json *json, const char *path);

#endif
