/* Documents, positions, values and objects of configuration files; see json.h. */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool bag_config_json_parse(struct bag_config_json *json, const char *file_name, const char *text,
                           size_t text_bytes, struct bag_problem *problem)
{
    *json = (struct bag_config_json){
        .file_name = file_name, .text = text, .text_bytes = text_bytes, .problem = problem};
    json->tree = bag_json_parse(text, text_bytes, problem);
    if (!json->tree) {
        bag_problem_prefix(problem, "%s", file_name);
        if (problem->kind == BAG_ERROR_BAD_REQUEST)
            problem->kind = BAG_ERROR_CONFIGURATION;
        return false;
    }
    if (cJSON_IsObject(json->tree))
        return true;
    bag_config_json_reject(json, json->tree, "the configuration must be an object: {...}");
    bag_json_free(json->tree);
    return false;
}

bool bag_config_json_reject(const struct bag_config_json *json, const cJSON *item,
                            const char *format, ...)
{
    char text[BAG_PROBLEM_TEXT_BYTES];
    struct bag_json_position at = bag_json_locate(json->text, json->text_bytes, json->tree, item);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return bag_problem_set(json->problem, BAG_ERROR_CONFIGURATION, "%s: line %zu, column %zu: %s",
                           json->file_name, at.line, at.column, text);
}

bool bag_config_json_unknown(const struct bag_config_json *json, const cJSON *item,
                             const char *where, const struct bag_suggestion *suggestion)
{
    return bag_config_json_reject(json, item, "unknown key '%s'%s%s",
                                  bag_quote(item->string, strlen(item->string)).text, where,
                                  bag_suggestion_question(suggestion, "'").text);
}

/* ---- paths ----------------------------------------------------------------------------------- */

char *bag_config_json_path(const struct bag_config_json *json, const char *path)
{
    const char *slash = path[0] == '/' ? NULL : strrchr(json->file_name, '/');
    size_t folder_bytes = slash ? (size_t)(slash - json->file_name) + 1 : 0;
    size_t path_bytes = strlen(path) + 1;
    char *joined = malloc(folder_bytes + path_bytes);
    if (!joined)
        return NULL;
    memcpy(joined, json->file_name, folder_bytes);
    memcpy(joined + folder_bytes, path, path_bytes);
    return joined;
}

/* Prepends the document's folder to a path. An empty path stays empty. */
static bool join(const struct bag_config_json *json, char **path)
{
    if (!**path)
        return true;
    char *joined = bag_config_json_path(json, *path);
    if (!joined)
        return bag_problem_set(json->problem, BAG_ERROR_NO_MEMORY,
                               "not enough memory for the configuration");
    free(*path);
    *path = joined;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Settings parse texts only, so that all sources share one parser. A value of JSON is therefore
 * printed as the text that a flag would have. */

/* A scalar, an array of numbers, a version policy or a part as a text, which settings parse and
 * messages show. */
struct scalar {
    const char *text; /* NULL: not a scalar */
    char number[32];  /* storage of `text` for a number */
    char shape[800];  /* storage of `text` for an array, a policy or a part */
};

/* Prints a number. Integers are printed in full. Other numbers have their shortest digits, so that
 * none becomes an integer by rounding. Numbers from 2^53 on exceed every maximum. */
static void write_number(double value, struct scalar *scalar)
{
    char *text = scalar->number;
    scalar->text = text;
    if (floor(value) == value && fabs(value) < 0x1p53) {
        snprintf(text, sizeof scalar->number, "%" PRId64, (int64_t)value);
        return;
    }
    snprintf(text, sizeof scalar->number, "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof scalar->number, "%.17g", value);
}

/* Prints the dimensions of an array as "[100,64]". Leaves no text if it contains anything else or
 * too much. */
static void write_shape(const cJSON *array, struct scalar *scalar)
{
    size_t used = 0;
    char separator = '[';
    const cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        struct scalar size = {.text = NULL};
        if (cJSON_IsNumber(item))
            write_number(item->valuedouble, &size);
        if (!size.text || used + sizeof size.number >= sizeof scalar->shape)
            return;
        used += (size_t)snprintf(scalar->shape + used, sizeof scalar->shape - used, "%c%s",
                                 separator, size.text);
        separator = ',';
    }
    snprintf(scalar->shape + used, sizeof scalar->shape - used, "%s", used ? "]" : "[]");
    scalar->text = scalar->shape;
}

/* Prints {"latest": 2} as "latest 2", and {"specific": [1, 3]} as "specific 1 3". */
static void write_policy(const cJSON *object, struct scalar *scalar)
{
    const cJSON *member = object->child;
    struct scalar numbers = {.text = NULL};
    if (!member || member->next)
        return;
    if (cJSON_IsArray(member) && strcmp(member->string, "specific") == 0)
        write_shape(member, &numbers);
    else if (cJSON_IsNumber(member) && strcmp(member->string, "latest") == 0)
        write_number(member->valuedouble, &numbers);
    if (!numbers.text)
        return;
    snprintf(scalar->shape, sizeof scalar->shape, "%.8s %.780s", member->string,
             numbers.text + (*numbers.text == '['));
    scalar->text = scalar->shape;
    for (char *at = scalar->shape; *at; at++) {
        if (*at == ',' || *at == ']')
            *at = *at == ',' ? ' ' : '\0';
    }
}

/* Prints {"by": "rows", "index": 0, "of": 3} as "rows 0 of 3". Leaves no text if a member is
 * missing or unknown. */
static void write_part(const cJSON *object, struct scalar *scalar)
{
    static const char *const keys[] = {"index", "of"};
    const char *by = bag_json_text(object, "by");
    struct scalar numbers[2] = {{.text = NULL}, {.text = NULL}};
    for (int i = 0; i < 2; i++) {
        const cJSON *number = bag_json_member(object, keys[i]);
        if (cJSON_IsNumber(number))
            write_number(number->valuedouble, &numbers[i]);
    }
    if (!by || bag_part_way_find(by, strlen(by)) == BAG_PART_WAY_COUNT || !numbers[0].text ||
        !numbers[1].text || cJSON_GetArraySize(object) != 3)
        return;
    snprintf(scalar->shape, sizeof scalar->shape, "%s %s of %s", by, numbers[0].text,
             numbers[1].text);
    scalar->text = scalar->shape;
}

/* Returns whether the setting accepts JSON's type. */
static bool type_fits(const cJSON *item, enum bag_setting_type type)
{
    switch (type) {
    case BAG_SETTING_COUNT:
    case BAG_SETTING_SECONDS:
        return cJSON_IsNumber(item);
    case BAG_SETTING_BYTES:
        return cJSON_IsNumber(item) || cJSON_IsString(item);
    case BAG_SETTING_KEY: /* beyond 2^53 a number would be inexact */
        return cJSON_IsString(item) || (cJSON_IsNumber(item) && fabs(item->valuedouble) < 0x1p53);
    case BAG_SETTING_BOOL:
        return cJSON_IsBool(item);
    case BAG_SETTING_SHAPE:
        return cJSON_IsArray(item);
    case BAG_SETTING_POLICY:
        return cJSON_IsObject(item) ||
               (cJSON_IsString(item) && strcmp(item->valuestring, "all") == 0);
    case BAG_SETTING_PART:
        return cJSON_IsObject(item);
    case BAG_SETTING_TEXT:
    case BAG_SETTING_CHOICE:
        break;
    }
    return cJSON_IsString(item);
}

bool bag_config_json_apply(const struct bag_config_json *json, const cJSON *item, const char *where,
                           const struct bag_setting *setting, void *base)
{
    struct scalar scalar;
    struct bag_reason reason;
    /* Print a value in the form in which a setting of this type is parsed. Leave scalar->text NULL
     * if the value has no such form. */
    enum bag_setting_type type = setting->type;
    scalar.text = NULL;
    if (cJSON_IsArray(item))
        write_shape(item, &scalar);
    else if (cJSON_IsObject(item) && type == BAG_SETTING_PART)
        write_part(item, &scalar);
    else if (cJSON_IsObject(item))
        write_policy(item, &scalar);
    else if (cJSON_IsString(item))
        scalar.text = item->valuestring;
    else if (cJSON_IsBool(item))
        scalar.text = bag_bool_words[cJSON_IsTrue(item)];
    else if (cJSON_IsNumber(item))
        write_number(item->valuedouble, &scalar);
    if (!type_fits(item, setting->type) || !scalar.text)
        bag_setting_describe(setting, &reason);
    else if (bag_setting_apply(setting, base, scalar.text, &reason))
        return !setting->is_path || join(json, (char **)((char *)base + setting->offset));
    /* Reject a value with its key, the value as it is written, and the reason. */
    const char *quote = cJSON_IsString(item) ? "\"" : "";
    const char *shown = scalar.text           ? scalar.text
                        : cJSON_IsArray(item) ? "[...]"
                        : cJSON_IsNull(item)  ? "null"
                                              : "{...}";
    return bag_config_json_reject(json, item, "%s %s%s%s%s: %s", item->string, quote,
                                  bag_quote(shown, strlen(shown)).text, quote, where, reason.text);
}

/* ---- objects --------------------------------------------------------------------------------- */

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
    return bag_config_json_unknown(entry->json, item, entry->where, &suggestion);
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

/* Applies one value. Also sets has_padding_idx or has_default_index if the setting is padding_idx
 * or default_index. For these, null means that there is no index. */
static bool apply_value(const struct bag_entry *entry, const cJSON *item,
                        const struct bag_setting *setting, void *base, struct bag_rules *rules)
{
    void *member = (char *)base + setting->offset;
    bool absent = setting->type == BAG_SETTING_KEY && cJSON_IsNull(item);
    if (!absent && !bag_config_json_apply(entry->json, item, entry->where, setting, base))
        return false;
    /* Any index can be the padding index, and any key the default, so no value of the member can
     * mean "none". */
    if (member == &rules->padding_idx)
        rules->has_padding_idx = !absent;
    if (member == &rules->default_index)
        rules->has_default_index = !absent;
    if (absent)
        *(int64_t *)member = -1;
    return true;
}

bool bag_entry_apply(const struct bag_entry *entry, void *base, struct bag_rules *rules)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        const struct bag_setting *setting = bag_entry_setting(entry, item->string);
        if (setting && !apply_value(entry, item, setting, base, rules))
            return false;
    }
    return true;
}

const cJSON *bag_entry_member(const struct bag_entry *entry, const char *key)
{
    return bag_json_member(entry->object, key);
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
