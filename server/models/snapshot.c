/* Models and snapshots of them; see snapshot.h. */
#include "snapshot.h"

#include "proto/text.h"
#include "server/updates/updates.h"

#include <stdlib.h>
#include <string.h>

const char *const bag_model_state_names[] = {
#define BAG_X(state) #state,
    BAG_MODEL_STATES(BAG_X)
#undef BAG_X
};

/* ---- models ---------------------------------------------------------------------------------- */

/* Frees a model that has no references left. Leaves live tables first, because a reader that is
 * entered points into the model. */
static void free_model(struct bag_model *model)
{
    for (size_t i = 0; model->features && i < model->num_features; i++) {
        bag_updates_leave(&model->features[i].reader);
        free(model->features[i].name);
        bag_projection_free(model->features[i].projection);
        bag_hot_rows_free(model->features[i].hot);
        if (model->features[i].model != model)
            bag_model_release(model->features[i].model);
    }
    bag_stored_table_drop(model->stored);
    free(model->live);
    bag_source_free(model->source);
    free(model->sorted);
    free(model->features);
    free(model->name);
    free(model->version);
    free(model->reason);
    free(model->cause);
    free(model);
}

void bag_model_release(struct bag_model *model)
{
    if (model && --model->holders == 0)
        free_model(model);
}

/* Makes a model with memory for features and for the index of their names. Returns NULL without
 * memory. */
static struct bag_model *make_model(const char *name, const char *version,
                                    enum bag_model_state state, const char *cause,
                                    size_t num_features)
{
    struct bag_model *model = calloc(1, sizeof *model);
    if (!model)
        return NULL;
    *model = (struct bag_model){.name = strdup(name),
                                .version = strdup(version),
                                .version_number = strtoull(version, NULL, 10),
                                .state = state,
                                .reason = strdup(cause),
                                .cause = strdup(cause),
                                .slot = SIZE_MAX,
                                .features = calloc(num_features + 1, sizeof *model->features),
                                .num_features = num_features,
                                .sorted = calloc(num_features + 1, sizeof *model->sorted),
                                .holders = 1};
    if (!model->name || !model->version || !model->reason || !model->cause || !model->features ||
        !model->sorted) {
        free_model(model);
        return NULL;
    }
    bag_text_hide_folders(model->reason);
    return model;
}

void bag_feature_prepare(const struct bag_feature *feature, struct bag_rules rules,
                         struct bag_pool_plan *plan)
{
    if (feature->projection)
        rules.output_dtype = BAG_F32;
    bag_pool_prepare(&feature->memory->table, &rules, plan);
    if (bag_table_divides_ids(feature->memory))
        bag_pool_prepare_part(plan, bag_table_by_ids(feature->memory).num_rows);
}

/* Makes the model's feature `i` pool the table of `table`: itself or another model, to which it
 * adds a reference. Returns false without memory. */
static bool set_feature(struct bag_model *model, size_t i, const char *name,
                        struct bag_model *table, const struct bag_rules *rules)
{
    struct bag_feature *feature = &model->features[i];
    *feature = (struct bag_feature){.name = strdup(name),
                                    .model = table,
                                    .rules = *rules,
                                    .memory = table->memory,
                                    .hot = bag_hot_rows_make()};
    feature->reader = (struct bag_live_reader){.model = model->name,
                                               .feature = table == model ? NULL : feature->name,
                                               .rules = &feature->rules};
    table->holders += table != model;
    model->sorted[i] = feature;
    model->typical_row_bytes += bag_row_bytes(&feature->memory->table) / model->num_features;
    model->mapped |= feature->memory->map != NULL;
    model->is_remote |= feature->memory->remote != NULL;
    return feature->name && feature->hot;
}

/* Completes a feature with its projection, which it takes over, and prepares its pooling plan.
 * Cannot fail, so a collection takes over its projections only after everything else succeeded. */
static void take_projection(struct bag_model *model, size_t i,
                            struct bag_projection_memory *projection)
{
    struct bag_feature *feature = &model->features[i];
    feature->projection = projection;
    model->projects |= projection != NULL;
    bag_feature_prepare(feature, feature->rules, &feature->plan);
    model->resolves |= feature->plan.needs_rows;
}

struct bag_model *bag_model_of_table(const char *name, const char *version,
                                     const struct bag_rules *rules, struct bag_stored_table *stored,
                                     struct bag_projection_memory *projection)
{
    struct bag_model *model = make_model(name, version, BAG_MODEL_READY, "", 1);
    if (!model)
        return NULL;
    stored->holders++;
    model->stored = stored;
    model->memory = &stored->memory;
    if (!set_feature(model, 0, BAG_EMBEDDINGS, model, rules)) {
        bag_model_release(model);
        return NULL;
    }
    take_projection(model, 0, projection);
    return model;
}

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

bool bag_model_follow_updates(struct bag_model *model)
{
    size_t count = 0, unique = 0;
    struct bag_live_rows **live = calloc(model->num_features + 1, sizeof(struct bag_live_rows *));
    if (!live)
        return false;
    for (size_t i = 0; i < model->num_features; i++) {
        if (model->features[i].memory->live)
            live[count++] = model->features[i].memory->live;
    }
    qsort(live, count, sizeof(struct bag_live_rows *), compare_addresses);
    for (size_t i = 0; i < count; i++) {
        if (unique == 0 || live[unique - 1] != live[i])
            live[unique++] = live[i];
    }
    free(model->live);
    model->live = live;
    model->num_live = unique;
    return true;
}

static int compare_features(const void *a, const void *b)
{
    const struct bag_feature *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

struct bag_model *bag_model_of_features(const char *name, const char *version,
                                        const struct bag_feature *features, size_t count)
{
    struct bag_model *model = make_model(name, version, BAG_MODEL_READY, "", count);
    bool ok = model != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        ok = set_feature(model, i, features[i].name, features[i].model, &features[i].rules);
        model->features[i].output_row_format = features[i].output_row_format;
        model->features[i].is_pinned = features[i].is_pinned;
    }
    if (!ok || !bag_model_follow_updates(model)) {
        bag_model_release(model);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        take_projection(model, i, features[i].projection);
    qsort(model->sorted, count, sizeof *model->sorted, compare_features);
    return model;
}

struct bag_model *bag_model_without_table(const char *name, const char *version,
                                          enum bag_model_state state, const char *cause)
{
    return make_model(name, version, state, cause, 0);
}

/* Compares as strcmp() a name that need not end with a NUL. */
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

/* ---- snapshots ------------------------------------------------------------------------------- */

/* Orders models by name, then by version. */
static int compare(const struct bag_model *model, const char *name, uint64_t version_number)
{
    int order = strcmp(model->name, name);
    if (order)
        return order;
    return (model->version_number > version_number) - (model->version_number < version_number);
}

static int compare_listed(const void *a, const void *b)
{
    const struct bag_listed *x = a, *y = b;
    return compare(x->model, y->model->name, y->model->version_number);
}

/* Returns the index of the first model that is not before name and version. */
static size_t lower_bound(const struct bag_snapshot *snapshot, const char *name,
                          uint64_t version_number)
{
    size_t low = 0, high = snapshot->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(snapshot->models[middle], name, version_number) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns the first model of a name without a version that is READY or was unloaded, or NULL. */
static const struct bag_model *find_not_ready(const struct bag_snapshot *snapshot)
{
    for (size_t i = 0, end; i < snapshot->count; i = end) {
        const struct bag_model *first = snapshot->models[i];
        bool ready = false;
        for (end = i;
             end < snapshot->count && strcmp(snapshot->models[end]->name, first->name) == 0; end++)
            ready |= snapshot->models[end]->state == BAG_MODEL_READY ||
                     snapshot->models[end]->is_unloaded;
        if (!ready)
            return first;
    }
    return NULL;
}

struct bag_snapshot *bag_snapshot_make(const struct bag_listed *listed, size_t count,
                                       size_t max_readers)
{
    size_t bytes = sizeof(struct bag_snapshot) + max_readers * sizeof(struct bag_lease);
    struct bag_snapshot *snapshot = aligned_alloc(_Alignof(struct bag_lease), bytes);
    if (!snapshot)
        return NULL;
    memset(snapshot, 0, bytes);
    snapshot->versions = calloc(count + 1, sizeof *snapshot->versions);
    snapshot->models = calloc(count + 1, sizeof *snapshot->models);
    snapshot->listed = calloc(count + 1, sizeof *snapshot->listed);
    bool ok = snapshot->versions && snapshot->models && snapshot->listed;
    for (size_t i = 0; ok && i < count; i++) {
        struct bag_listed *version = &snapshot->versions[snapshot->count++];
        *version = listed[i];
        bag_model_retain(version->model);
        if (listed[i].remark)
            ok = (version->remark = strdup(listed[i].remark)) != NULL;
    }
    if (!ok) {
        bag_snapshot_free(snapshot);
        return NULL;
    }
    qsort(snapshot->versions, count, sizeof *snapshot->versions, compare_listed);
    for (size_t i = 0; i < count; i++)
        snapshot->models[i] = snapshot->versions[i].model;
    for (size_t i = 0; i < count; i++) {
        const struct bag_model *model = listed[i].model;
        snapshot->listed[i] =
            &snapshot->versions[lower_bound(snapshot, model->name, model->version_number)];
    }
    snapshot->not_ready = find_not_ready(snapshot);
    return snapshot;
}

void bag_snapshot_free(struct bag_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->count; i++) {
        bag_model_release(snapshot->versions[i].model);
        free(snapshot->versions[i].remark);
    }
    free(snapshot->versions);
    free(snapshot->models);
    free(snapshot->listed);
    free(snapshot);
}

struct bag_model *const *bag_snapshot_versions(const struct bag_snapshot *snapshot,
                                               const char *name, size_t *count)
{
    size_t first = lower_bound(snapshot, name, 0), end = first;
    while (end < snapshot->count && strcmp(snapshot->models[end]->name, name) == 0)
        end++;
    *count = end - first;
    return *count ? &snapshot->models[first] : NULL;
}

const struct bag_model *bag_snapshot_find(const struct bag_snapshot *snapshot, const char *name,
                                          const char *version)
{
    size_t count;
    struct bag_model *const *models = bag_snapshot_versions(snapshot, name, &count);
    const struct bag_model *ready = NULL;
    for (size_t i = count; i-- > 0;) {
        bool is_ready = models[i]->state == BAG_MODEL_READY;
        if (*version ? strcmp(models[i]->version, version) == 0
                     : is_ready && snapshot->versions[models + i - snapshot->models].is_default)
            return models[i];
        if (is_ready && !ready && !*version)
            ready = models[i];
    }
    return ready ? ready : count && !*version ? models[count - 1] : NULL;
}
