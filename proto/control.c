/* Bodies that ask for loading and unloading; see v2_request.h. */
#include "v2_request.h"

#include "json.h"
#include "json_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reject(struct bag_problem *problem, const char *what)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", what);
}

/* Rejects an unknown key. `where` follows the key in the sentence. Returns false. */
static bool reject_unknown(const char *where, const char *key, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "unknown key '%s'%s",
                           bag_quote(key, strlen(key)).text, where);
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool read_flag(const cJSON *item, bool *flag, struct bag_problem *problem)
{
    if (!cJSON_IsBool(item))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s must be true or false",
                               item->string);
    *flag = cJSON_IsTrue(item);
    return true;
}

/* Reads a version: a number, or a text of digits without leading zeros, from 1 to below 2^53, up to
 * which JSON numbers are exact. Copies its digits to `version`, which has room for 20 and a NUL. */
static bool read_version(const cJSON *item, char version[21], struct bag_problem *problem)
{
    char text[32] = "";
    int64_t number = 0;
    if (cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble < 0x1p53 &&
        item->valuedouble == (double)(int64_t)item->valuedouble)
        snprintf(text, sizeof text, "%" PRId64, (int64_t)item->valuedouble);
    else if (cJSON_IsString(item) && strlen(item->valuestring) < 21)
        snprintf(text, sizeof text, "%s", item->valuestring);
    if (*text == '0' || strspn(text, "0123456789") != strlen(text) ||
        !bag_integer_parse(text, &number) || number < 1 || number >= INT64_C(1) << 53)
        return reject(problem, "version must be a whole number from 1, as a text of its digits or "
                               "as a number");
    memcpy(version, text, strlen(text) + 1);
    return true;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Reads one member of "parameters". In the body of a group (`is_group`) a version stands in the
 * entry of its model, so the parameter `version` is unknown there. */
static bool read_parameter(const cJSON *item, bool is_group, struct bag_control *control,
                           struct bag_problem *problem)
{
    if (strcmp(item->string, "unload_dependents") == 0)
        return read_flag(item, &control->unload_dependents, problem);
    if (strcmp(item->string, "version") == 0 && !is_group)
        return read_version(item, control->items->version, problem);
    /* Triton's ways to bring a model along. */
    if (strcmp(item->string, "config") == 0 || strncmp(item->string, "file:", 5) == 0)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "parameter '%s' is not supported: a model's configuration and files "
                               "are those in its folder",
                               bag_quote(item->string, strlen(item->string)).text);
    return reject_unknown(" in parameters", item->string, problem);
}

static bool read_parameters(const cJSON *object, bool is_group, struct bag_control *control,
                            struct bag_problem *problem)
{
    const cJSON *item;
    if (!cJSON_IsObject(object))
        return reject(problem, "parameters must be an object");
    cJSON_ArrayForEach(item, object)
    {
        if (!read_parameter(item, is_group, control, problem))
            return false;
    }
    return true;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Reads an entry of "models" into *item, which is zeroed. The caller prefixes a problem with the
 * position of the entry. */
static bool read_item(const cJSON *object, struct bag_control_item *item,
                      struct bag_problem *problem)
{
    const cJSON *member;
    if (!cJSON_IsObject(object))
        return reject(problem, "must be an object: {\"name\": ..., \"version\": ...}");
    cJSON_ArrayForEach(member, object)
    {
        const char *text = cJSON_GetStringValue(member);
        bool is_name = strcmp(member->string, "name") == 0, ok = true;
        if (is_name && (!text || !*text || strlen(text) > 128))
            return reject(problem, "name must be a text of 1 to 128 bytes");
        if (is_name)
            memcpy(item->name, text, strlen(text) + 1);
        else if (strcmp(member->string, "version") == 0)
            ok = read_version(member, item->version, problem);
        else if (strcmp(member->string, "unload") == 0)
            ok = read_flag(member, &item->unload, problem);
        else
            ok = reject_unknown("", member->string, problem);
        if (!ok)
            return false;
    }
    return *item->name || reject(problem, "the key 'name' is missing");
}

/* There are at most BAG_CONTROL_MAX_ITEMS entries, so comparing all of them is cheap enough. */
const struct bag_control_item *bag_control_find(const struct bag_control *control, const char *name)
{
    for (size_t i = 0; control && i < control->count; i++) {
        if (strcmp(control->items[i].name, name) == 0)
            return &control->items[i];
    }
    return NULL;
}

/* Reads the list "models" of a group. control->count has the complete entries, also after a
 * failure, so that bag_control_free can free them. */
static bool read_models(const cJSON *models, struct bag_control *control,
                        struct bag_problem *problem)
{
    int count = cJSON_IsArray(models) ? cJSON_GetArraySize(models) : 0;
    const cJSON *object;
    if (count < 1 || count > BAG_CONTROL_MAX_ITEMS)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "models must be an array of 1 to %d objects: [{\"name\": ...}]",
                               BAG_CONTROL_MAX_ITEMS);
    control->items = calloc((size_t)count, sizeof *control->items);
    if (!control->items)
        return bag_problem_no_memory(problem);
    cJSON_ArrayForEach(object, models)
    {
        struct bag_control_item *item = &control->items[control->count];
        bool ok = read_item(object, item, problem);
        if (ok && bag_control_find(control, item->name))
            ok = bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "name '%s' is there twice",
                                 bag_quote(item->name, strlen(item->name)).text);
        if (!ok)
            return bag_problem_prefix(problem, "models[%zu]", control->count);
        control->count++;
    }
    return true;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* Reads the members of the body. The entry of a single model was made by the caller; a group must
 * have the key "models". */
static bool read_top(const cJSON *tree, bool is_group, struct bag_control *control,
                     struct bag_problem *problem)
{
    const cJSON *item;
    if (!cJSON_IsObject(tree))
        return reject(problem, "the body must be an object: {...}");
    cJSON_ArrayForEach(item, tree)
    {
        bool ok = strcmp(item->string, "wait") == 0 ? read_flag(item, &control->wait, problem)
                  : strcmp(item->string, "parameters") == 0
                      ? read_parameters(item, is_group, control, problem)
                  : is_group && strcmp(item->string, "models") == 0
                      ? read_models(item, control, problem)
                      : reject_unknown("", item->string, problem);
        if (!ok)
            return false;
    }
    return control->count > 0 || reject(problem, "the key 'models' is missing");
}

bool bag_control_read(const char *body, size_t bytes, const char *model, bool unload,
                      struct bag_control *control, struct bag_problem *problem)
{
    *control = (struct bag_control){.wait = true};
    if (model) {
        if (!(control->items = calloc(1, sizeof *control->items)))
            return bag_problem_no_memory(problem);
        control->count = 1;
        control->items->unload = unload;
        snprintf(control->items->name, sizeof control->items->name, "%s", model);
    }
    cJSON *tree = bag_json_parse(bytes ? body : "{}", bytes ? bytes : 2, problem);
    bool ok = tree && read_top(tree, !model, control, problem);
    bag_json_free(tree);
    if (!ok)
        bag_control_free(control);
    return ok;
}

void bag_control_free(struct bag_control *control)
{
    for (size_t i = 0; i < control->count; i++) {
        struct bag_control_item *item = &control->items[i];
        free(item->served);
        while (item->num_failed > 0)
            free(item->failed[--item->num_failed].reason);
        free(item->failed);
    }
    free(control->items);
    *control = (struct bag_control){0};
}

/* Writes the versions that were passed over. */
static void write_failed(struct bag_json_writer *json, const struct bag_control *control)
{
    bag_json_open(json, "failed", '[');
    for (size_t i = 0; i < control->count; i++) {
        const struct bag_control_item *item = &control->items[i];
        for (size_t k = 0; k < item->num_failed; k++) {
            char version[24];
            snprintf(version, sizeof version, "%" PRIu64, item->failed[k].version);
            bag_json_open(json, NULL, '{');
            BAG_JSON_WRITE(json, BAG_KEY("name", (const char *)item->name),
                           BAG_KEY("version", (const char *)version),
                           BAG_KEY("reason", (const char *)item->failed[k].reason));
            bag_json_close(json);
        }
    }
    bag_json_close(json);
}

char *bag_control_describe(const struct bag_control *control, bool done)
{
    bool has_failed = false;
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    bag_json_open(&json, "models", '[');
    for (size_t i = 0; i < control->count; i++) {
        const struct bag_control_item *item = &control->items[i];
        has_failed |= item->num_failed > 0;
        bag_json_open(&json, NULL, '{');
        BAG_JSON_WRITE(&json, BAG_KEY("name", (const char *)item->name),
                       BAG_KEY_IF(*item->version, "version", (const char *)item->version));
        if (item->served) {
            bag_json_open(&json, "versions", '[');
            for (size_t k = 0; k < item->num_served; k++) {
                char version[24];
                snprintf(version, sizeof version, "\"%" PRIu64 "\"", item->served[k]);
                bag_json_raw(&json, NULL, version);
            }
            bag_json_close(&json);
        }
        bag_json_close(&json);
    }
    bag_json_close(&json);
    if (has_failed)
        write_failed(&json, control);
    BAG_JSON_WRITE(&json, BAG_KEY("done", done));
    return bag_json_end(&json);
}
