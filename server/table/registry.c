/* The models that are served; see registry.h. */
#include "registry.h"

#include <stdlib.h>
#include <string.h>

bool bag_registry_init(struct bag_registry *registry, size_t capacity)
{
    registry->count = 0;
    registry->models = calloc(capacity ? capacity : 1, sizeof *registry->models);
    return registry->models != NULL;
}

static void free_model(struct bag_model *model)
{
    bag_table_unload(&model->memory);
    free(model->name);
    free(model->version);
}

void bag_registry_free(struct bag_registry *registry)
{
    for (size_t i = 0; i < registry->count; i++)
        free_model(&registry->models[i]);
    free(registry->models);
    registry->models = NULL;
    registry->count = 0;
}

static int compare(const struct bag_model *model, const char *name, uint64_t version_number)
{
    int order = strcmp(model->name, name);
    if (order)
        return order;
    return (model->version_number > version_number) - (model->version_number < version_number);
}

bool bag_registry_add(struct bag_registry *registry, const char *name, const char *version,
                      const struct bag_rules *rules, const struct bag_table_memory *memory)
{
    struct bag_model model = {.name = strdup(name),
                              .version = strdup(version),
                              .version_number = strtoull(version, NULL, 10),
                              .rules = *rules,
                              .memory = *memory};
    size_t at = registry->count;
    if (!model.name || !model.version) {
        free(model.name);
        free(model.version);
        return false;
    }
    for (; at > 0 && compare(&registry->models[at - 1], name, model.version_number) > 0; at--)
        registry->models[at] = registry->models[at - 1];
    registry->models[at] = model;
    registry->count++;
    return true;
}

/* The position of the first model that is not before name and version. */
static size_t lower_bound(const struct bag_registry *registry, const char *name,
                          uint64_t version_number)
{
    size_t low = 0, high = registry->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(&registry->models[middle], name, version_number) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct bag_model *bag_registry_versions(const struct bag_registry *registry, const char *name,
                                              size_t *count)
{
    size_t first = lower_bound(registry, name, 0), end = first;
    while (end < registry->count && strcmp(registry->models[end].name, name) == 0)
        end++;
    *count = end - first;
    return *count ? &registry->models[first] : NULL;
}

const struct bag_model *bag_registry_find(const struct bag_registry *registry, const char *name,
                                          const char *version)
{
    size_t count;
    const struct bag_model *models = bag_registry_versions(registry, name, &count);
    if (!models || !*version)
        return models ? &models[count - 1] : NULL;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(models[i].version, version) == 0)
            return &models[i];
    }
    return NULL;
}
