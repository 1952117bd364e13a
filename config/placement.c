/* A configuration over several servers; see placement.h. */
#include "placement.h"

#include "kernels/part.h"
#include "proto/json.h"

#include <stdio.h>
#include <stdlib.h>

static cJSON *first_model(const struct bag_divided *divided)
{
    const cJSON *models = bag_json_member(divided->tree, "models");
    return models ? models->child : NULL;
}

/* The first bytes of a text, a text between, and a text; to be freed. */
static char *join(const char *first, size_t first_bytes, const char *between, const char *last)
{
    size_t bytes = first_bytes + strlen(between) + strlen(last) + 1;
    char *text = malloc(bytes);
    if (text)
        snprintf(text, bytes, "%.*s%s%s", (int)first_bytes, first, between, last);
    return text;
}

/* ---- paths ----------------------------------------------------------------------------------- */

static bool make_absolute(cJSON *object, const char *folder)
{
    static const char *const keys[] = {"path", "keys", "projection", "bias"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *value = bag_json_text(object, keys[i]);
        if (!value || value[0] == '/' || value[0] == 0)
            continue;
        char *joined = join(folder, strlen(folder), "/", value);
        cJSON *text = joined ? cJSON_CreateString(joined) : NULL;
        free(joined);
        if (!text || !cJSON_ReplaceItemInObjectCaseSensitive(object, keys[i], text))
            return false;
    }
    const cJSON *features = bag_json_member(object, "features");
    for (cJSON *feature = features ? features->child : NULL; feature; feature = feature->next) {
        if (!make_absolute(feature, folder))
            return false;
    }
    return true;
}

/* ---- what was placed ------------------------------------------------------------------------- */

bool bag_divided_init(struct bag_divided *divided, const char *text, size_t text_bytes,
                      const char *folder, const struct bag_placed *placed, size_t count,
                      struct bag_problem *problem)
{
    *divided = (struct bag_divided){.placed = placed, .count = count};
    divided->tree = bag_json_parse(text, text_bytes, problem);
    if (!divided->tree)
        return false;
    bool ok = bag_names_reserve(&divided->names, count);
    for (size_t i = 0; ok && i < count; i++)
        bag_names_put(&divided->names, placed[i].name, NULL, i);
    for (cJSON *model = first_model(divided); ok && model; model = model->next)
        ok = make_absolute(model, folder);
    return ok || bag_problem_no_memory(problem);
}

void bag_divided_free(struct bag_divided *divided)
{
    bag_json_free(divided->tree);
    bag_names_free(&divided->names);
}

/* NULL: it is a collection. */
static const struct bag_placed *placed_of(const struct bag_divided *divided, const cJSON *model)
{
    const char *name = bag_json_text(model, "name");
    const size_t *at = name ? bag_names_find(&divided->names, name, NULL) : NULL;
    return at ? &divided->placed[*at] : NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What a front has of a table, and not its shards. */
static const char *const projection_keys[] = {"projection", "bias"};
static const char *const front_keys[] = {"form", "optional_inputs", "projection", "bias"};

/* All options; the caller adds models to *models. */
static cJSON *begin(const struct bag_divided *divided, cJSON **models)
{
    cJSON *copy = cJSON_CreateObject();
    bool ok = copy != NULL;
    for (const cJSON *item = divided->tree->child; ok && item; item = item->next) {
        if (strcmp(item->string, "models") != 0)
            ok = cJSON_AddItemToObject(copy, item->string, cJSON_Duplicate(item, true));
    }
    *models = ok ? cJSON_AddArrayToObject(copy, "models") : NULL;
    if (*models)
        return copy;
    cJSON_Delete(copy);
    return NULL;
}

static char *end(cJSON *tree, bool ok)
{
    char *text = ok ? cJSON_Print(tree) : NULL;
    cJSON_Delete(tree);
    return text;
}

static bool add_part(cJSON *model, const struct bag_placed *placed, uint32_t index)
{
    cJSON *part = cJSON_AddObjectToObject(model, "part");
    return part && cJSON_AddStringToObject(part, "by", placed->by) &&
           cJSON_AddNumberToObject(part, "index", index) &&
           cJSON_AddNumberToObject(part, "of", placed->parts);
}

char *bag_divided_node(const struct bag_divided *divided, uint32_t node)
{
    cJSON *models, *tree = begin(divided, &models);
    bool ok = tree != NULL;
    for (const cJSON *model = first_model(divided); ok && model; model = model->next) {
        const struct bag_placed *placed = placed_of(divided, model);
        uint32_t index = 0;
        while (placed && index < placed->parts && placed->nodes[index] != node)
            index++;
        if (!placed || index == placed->parts)
            continue;
        cJSON *copy = cJSON_Duplicate(model, true);
        for (size_t i = 0; i < 2; i++)
            cJSON_DeleteItemFromObjectCaseSensitive(copy, projection_keys[i]);
        ok = cJSON_AddItemToArray(models, copy) &&
             (placed->parts == 1 || add_part(copy, placed, index));
    }
    return end(tree, ok);
}

char *bag_divided_address(const char *address, uint32_t node)
{
    static const char marker[] = "{index}";
    const char *at = strstr(address, marker);
    char number[12];
    if (!at)
        return strdup(address);
    snprintf(number, sizeof number, "%u", node);
    return join(address, (size_t)(at - address), number, at + sizeof marker - 1);
}

/* `last` is the last of the table's versions, which says how the front serves it. */
static bool add_shards(cJSON *models, const struct bag_placed *placed, const cJSON *last,
                       const char *address)
{
    cJSON *front = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(models, front) ||
        !cJSON_AddStringToObject(front, "name", placed->name))
        return false;
    cJSON *shards = cJSON_AddArrayToObject(front, "shards");
    bool ok = shards != NULL;
    for (uint32_t i = 0; ok && i < placed->parts; i++) {
        char *text = bag_divided_address(address, placed->nodes[i]);
        ok = text && cJSON_AddItemToArray(shards, cJSON_CreateString(text));
        free(text);
    }
    for (size_t i = 0; ok && i < sizeof front_keys / sizeof *front_keys; i++) {
        const cJSON *value = bag_json_member(last, front_keys[i]);
        ok = !value || cJSON_AddItemToObject(front, front_keys[i], cJSON_Duplicate(value, true));
    }
    return ok;
}

char *bag_divided_front(const struct bag_divided *divided, const char *address)
{
    cJSON *models, *tree = begin(divided, &models);
    const cJSON **last = calloc(divided->count + 1, sizeof *last);
    bool ok = tree && last;
    for (const cJSON *model = first_model(divided); ok && model; model = model->next) {
        const struct bag_placed *placed = placed_of(divided, model);
        if (placed)
            last[placed - divided->placed] = model;
    }
    for (size_t i = 0; ok && i < divided->count; i++)
        ok = add_shards(models, &divided->placed[i], last[i], address);
    for (const cJSON *model = first_model(divided); ok && model; model = model->next)
        ok =
            placed_of(divided, model) || cJSON_AddItemToArray(models, cJSON_Duplicate(model, true));
    free(last);
    return end(tree, ok);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* An integer from 0 to BAG_MAX_PARTS; -1: it is something else. */
static int number_of(const cJSON *object, const char *key)
{
    const cJSON *item = bag_json_member(object, key);
    bool ok = cJSON_IsNumber(item) && item->valuedouble >= 0 &&
              item->valuedouble <= BAG_MAX_PARTS && item->valuedouble == item->valueint;
    return ok ? item->valueint : -1;
}

bool bag_divided_read(const char *text, size_t text_bytes, bag_placed_found *found, void *context,
                      struct bag_problem *problem)
{
    struct bag_divided divided = {.tree = bag_json_parse(text, text_bytes, problem)};
    for (const cJSON *model = first_model(&divided); model; model = model->next) {
        const char *name = bag_json_text(model, "name");
        const cJSON *part = bag_json_member(model, "part");
        int index = part ? number_of(part, "index") : 0, of = part ? number_of(part, "of") : 1;
        if (name && index >= 0 && index < of)
            found(context, name, (uint32_t)index, (uint32_t)of);
    }
    bool ok = divided.tree != NULL;
    bag_divided_free(&divided);
    return ok;
}
