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
    for (size_t i = 0; model->features && i < model->num_features; i++) {
        free(model->features[i].name);
        bag_projection_free(model->features[i].projection);
    }
    if (model->memory)
        bag_table_unload(model->memory);
    free(model->memory);
    free(model->sorted);
    free(model->features);
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

/* Puts a complete model in its place. */
static void insert(struct bag_registry *registry, const struct bag_model *model)
{
    size_t at = registry->count;
    for (; at > 0 && compare(&registry->models[at - 1], model->name, model->version_number) > 0;
         at--)
        registry->models[at] = registry->models[at - 1];
    registry->models[at] = *model;
    registry->count++;
}

/* A model with room for features, and for the index of their names; false without memory, and then
 * it holds nothing. */
static bool make_model(const char *name, const char *version, size_t num_features,
                       struct bag_model *model)
{
    *model = (struct bag_model){.name = strdup(name),
                                .version = strdup(version),
                                .version_number = strtoull(version, NULL, 10),
                                .features = calloc(num_features, sizeof *model->features),
                                .num_features = num_features,
                                .sorted = calloc(num_features, sizeof *model->sorted)};
    if (model->name && model->version && model->features && model->sorted)
        return true;
    free_model(model);
    return false;
}

bool bag_registry_add(struct bag_registry *registry, const char *name, const char *version,
                      const struct bag_rules *rules, const struct bag_table_memory *memory,
                      struct bag_projection_memory *projection)
{
    struct bag_model model;
    if (!make_model(name, version, 1, &model))
        return false;
    struct bag_table_memory *own = malloc(sizeof *own);
    model.features[0] = (struct bag_feature){strdup(BAG_EMBEDDINGS), model.name, *rules, own, NULL};
    if (!own || !model.features[0].name) {
        free(own);
        free_model(&model);
        return false;
    }
    *own = *memory;
    model.memory = own;
    model.features[0].projection = projection;
    model.projects = projection != NULL;
    model.sorted[0] = &model.features[0];
    model.typical_row_bytes = bag_row_bytes(&memory->table);
    insert(registry, &model);
    return true;
}

static int compare_features(const void *a, const void *b)
{
    const struct bag_feature *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Takes a copy of a feature, with its table's memory. */
static bool take_feature(const struct bag_registry *registry, const struct bag_feature *feature,
                         struct bag_feature *copy)
{
    const struct bag_model *table = bag_registry_find(registry, feature->table, "");
    *copy = (struct bag_feature){strdup(feature->name), table->name, feature->rules, table->memory,
                                 NULL};
    return copy->name;
}

bool bag_registry_add_collection(struct bag_registry *registry, const char *name,
                                 const char *version, const struct bag_feature *features,
                                 size_t count)
{
    struct bag_model model;
    size_t row_bytes = 0;
    if (!make_model(name, version, count, &model))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!take_feature(registry, &features[i], &model.features[i])) {
            free_model(&model);
            return false;
        }
        model.sorted[i] = &model.features[i];
        row_bytes += bag_row_bytes(&model.features[i].memory->table) / count;
    }
    for (size_t i = 0; i < count; i++) {
        model.features[i].projection = features[i].projection;
        model.projects |= features[i].projection != NULL;
    }
    qsort(model.sorted, count, sizeof *model.sorted, compare_features);
    model.typical_row_bytes = row_bytes;
    insert(registry, &model);
    return true;
}

/* As strcmp, of a name that need not end with a NUL. */
static int compare_name(const char *name, size_t name_bytes, const char *other)
{
    size_t other_bytes = strlen(other);
    int order = memcmp(name, other, name_bytes < other_bytes ? name_bytes : other_bytes);
    return order ? order : (name_bytes > other_bytes) - (name_bytes < other_bytes);
}

const struct bag_feature *bag_model_feature(const struct bag_model *model, const char *name,
                                            size_t name_bytes)
{
    size_t low = 0, high = model->num_features;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_name(name, name_bytes, model->sorted[middle]->name);
        if (order == 0)
            return model->sorted[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
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
