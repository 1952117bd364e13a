/* The table of versions; see versions.h. */
#include "versions.h"

#include "proto/text.h"
#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* ---- names ----------------------------------------------------------------------------------- */

/* Returns the index of the first name that is not before the text. */
static size_t lower_bound(const struct bag_models *models, const char *text)
{
    size_t low = 0, high = models->num_names;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(models->names[middle]->text, text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct bag_name *bag_models_find(const struct bag_models *models, const char *text)
{
    size_t i = lower_bound(models, text);
    bool found = i < models->num_names && strcmp(models->names[i]->text, text) == 0;
    return found ? models->names[i] : NULL;
}

struct bag_name *bag_models_name(struct bag_models *models, const char *text)
{
    size_t i = lower_bound(models, text), count = models->num_names;
    if (i < count && strcmp(models->names[i]->text, text) == 0)
        return models->names[i];
    struct bag_name *name = BAG_GROW(models->names, count) ? calloc(1, sizeof *name) : NULL;
    if (!name)
        return NULL;
    struct bag_name **place = &models->names[i];
    snprintf(name->text, sizeof name->text, "%s", text);
    name->order = ++models->num_orders;
    memmove(place + 1, place, (count - i) * sizeof(struct bag_name *));
    models->num_names++;
    return *place = name;
}

static int compare_orders(const void *a, const void *b)
{
    const struct bag_name *x = *(struct bag_name *const *)a, *y = *(struct bag_name *const *)b;
    return (x->order > y->order) - (x->order < y->order);
}

struct bag_name **bag_models_in_order(const struct bag_models *models)
{
    struct bag_name **names = calloc(models->num_names + 1, sizeof(struct bag_name *));
    if (!names)
        return NULL;
    for (size_t i = 0; i < models->num_names; i++)
        names[i] = models->names[i];
    qsort(names, models->num_names, sizeof(struct bag_name *), compare_orders);
    return names;
}

/* ---- versions -------------------------------------------------------------------------------- */

struct bag_version *bag_name_find(const struct bag_name *name, uint64_t number)
{
    for (size_t i = 0; i < name->count; i++) {
        if (name->versions[i]->number == number)
            return name->versions[i];
    }
    return NULL;
}

/* Returns the version of that number, and adds it if there is none. Returns NULL without memory. */
static struct bag_version *put(struct bag_name *name, uint64_t number)
{
    size_t i = name->count;
    while (i > 0 && name->versions[i - 1]->number >= number)
        i--;
    if (i < name->count && name->versions[i]->number == number)
        return name->versions[i];
    struct bag_version *version =
        BAG_GROW(name->versions, name->count) ? calloc(1, sizeof *version) : NULL;
    if (!version)
        return NULL;
    struct bag_version **place = &name->versions[i];
    version->name = name;
    version->number = number;
    memmove(place + 1, place, (name->count - i) * sizeof(struct bag_version *));
    name->count++;
    return *place = version;
}

static void free_version(struct bag_version *version)
{
    bag_listed_clear(&version->now);
    bag_listed_clear(&version->next);
    bag_source_free(version->found);
    bag_source_free(version->source);
    bag_stored_table_drop(version->stored);
    bag_model_release(version->made);
    free(version->failed);
    free(version);
}

/* Frees a name with its versions, and releases those that are retained. */
static void free_name(struct bag_name *name)
{
    while (name->num_retained > 0)
        bag_name_release(name, name->num_retained - 1);
    for (size_t i = 0; i < name->count; i++)
        free_version(name->versions[i]);
    free(name->retained);
    free(name->versions);
    free(name);
}

void bag_models_free(struct bag_models *models)
{
    for (size_t i = 0; i < models->num_names; i++)
        free_name(models->names[i]);
    free(models->names);
    models->names = NULL;
    models->num_names = 0;
}

bool bag_models_attach(struct bag_models *models, struct bag_catalog *catalog,
                       struct bag_problem *problem)
{
    models->num_scans++;
    for (size_t i = 0; i < catalog->count; i++) {
        struct bag_source *source = catalog->sources[i];
        struct bag_name *name = bag_models_name(models, source->model->name);
        struct bag_version *version =
            name ? put(name, strtoull(source->model->version, NULL, 10)) : NULL;
        if (!version)
            return bag_problem_no_memory(problem);
        bag_source_free(version->found);
        version->found = source;
        version->seen = models->num_scans;
        catalog->sources[i] = NULL;
    }
    return true;
}

/* Forgets versions of which nothing is left. */
static void forget_versions(const struct bag_models *models, struct bag_name *name)
{
    size_t count = 0;
    for (size_t i = 0; i < name->count; i++) {
        struct bag_version *version = name->versions[i];
        bool is_retained = false;
        for (size_t j = 0; j < name->num_retained; j++)
            is_retained |= name->retained[j].model->version_number == version->number;
        if (version->seen != models->num_scans && !version->now.model && !is_retained)
            free_version(version);
        else
            name->versions[count++] = version;
    }
    name->count = count;
}

void bag_models_detach(struct bag_models *models)
{
    size_t count = 0;
    for (size_t i = 0; i < models->num_names; i++) {
        struct bag_name *name = models->names[i];
        const struct bag_desired_state *desired = &name->desired;
        for (size_t j = 0; j < name->count; j++) {
            bag_source_free(name->versions[j]->found);
            name->versions[j]->found = NULL;
        }
        forget_versions(models, name);
        if (name->count || name->num_retained || desired->is_unloaded || desired->default_version ||
            desired->num_unloaded || *name->logged.text)
            models->names[count++] = name;
        else
            free_name(name);
    }
    models->num_names = count;
}

bool bag_name_has_collection(const struct bag_name *name)
{
    bool found = false;
    for (size_t i = 0; !found && i < name->count; i++) {
        const struct bag_version *version = name->versions[i];
        const struct bag_source *source = version->found       ? version->found
                                          : version->now.model ? version->now.model->source
                                                               : NULL;
        found = source && bag_source_is_collection(source);
    }
    return found;
}

/* ---- what is published ----------------------------------------------------------------------- */

struct bag_model *bag_version_stub(const struct bag_version *version, enum bag_model_state state,
                                   const char *reason, bool is_unloaded,
                                   struct bag_problem *problem)
{
    struct bag_model *now = version->now.model;
    char number[21];
    if (now && now->state == state && now->is_unloaded == is_unloaded &&
        strcmp(now->cause, reason) == 0)
        return bag_model_retain(now);
    snprintf(number, sizeof number, "%llu", (unsigned long long)version->number);
    struct bag_model *model = bag_model_without_table(version->name->text, number, state, reason);
    if (model)
        model->is_unloaded = is_unloaded;
    else
        bag_problem_no_memory(problem);
    return model;
}

struct bag_listed bag_listed_copy(const struct bag_listed *listed)
{
    struct bag_listed copy = *listed;
    if (copy.model)
        bag_model_retain(copy.model);
    copy.remark = listed->remark ? strdup(listed->remark) : NULL;
    return copy;
}

void bag_listed_clear(struct bag_listed *listed)
{
    bag_model_release(listed->model);
    free(listed->remark);
    *listed = (struct bag_listed){0};
}

/* Logs a version that serves now, or that cannot be served any more, once for each reason. */
static void log_version(struct bag_version *version, bool is_start)
{
    const struct bag_model *model = version->now.model;
    if (model->state == BAG_MODEL_READY) {
        version->logged = 0;
        bag_log(is_start ? BAG_LOG_LEVEL_DEBUG : BAG_LOG_LEVEL_INFO, "model ready",
                BAG_LOG_TEXT("model", model->name), BAG_LOG_TEXT("version", model->version));
    } else if (model->state == BAG_MODEL_UNAVAILABLE) {
        uint64_t hash = bag_hash_bytes(BAG_HASH_START, model->cause, strlen(model->cause));
        if (version->logged != hash)
            bag_log(model->is_unloaded ? BAG_LOG_LEVEL_INFO : BAG_LOG_LEVEL_WARNING,
                    model->is_unloaded ? "model unloaded" : "model unavailable",
                    BAG_LOG_TEXT("model", model->name), BAG_LOG_TEXT("version", model->version),
                    BAG_LOG_TEXT("reason", model->cause));
        version->logged = hash;
    }
}

void bag_version_show(struct bag_version *version, struct bag_listed listed, bool is_start)
{
    struct bag_listed before = version->now;
    version->now = listed;
    if (listed.model && listed.model != before.model)
        log_version(version, is_start);
    if (listed.remark && (!before.remark || strcmp(listed.remark, before.remark) != 0))
        bag_log(BAG_LOG_LEVEL_WARNING, "not loaded", BAG_LOG_TEXT("model", version->name->text),
                BAG_LOG_TEXT("version", listed.model->version),
                BAG_LOG_TEXT("reason",
                             version->failed ? version->failed->problem.text : listed.remark));
    bag_listed_clear(&before);
}

bool bag_models_publish(struct bag_models *models, bool decided, struct bag_problem *problem)
{
    struct bag_name **names = bag_models_in_order(models);
    struct bag_listed *listed = NULL;
    struct bag_snapshot *snapshot = NULL;
    size_t capacity = 0, count = 0;
    for (size_t i = 0; i < models->num_names; i++)
        capacity += models->names[i]->count;
    if (names)
        listed = calloc(capacity + 1, sizeof *listed);
    for (size_t i = 0; listed && i < models->num_names; i++) {
        for (size_t j = 0; j < names[i]->count; j++) {
            const struct bag_version *version = names[i]->versions[j];
            listed[count] = decided && names[i]->is_decided ? version->next : version->now;
            count += listed[count].model != NULL;
        }
    }
    free(names);
    if (listed)
        snapshot = bag_snapshot_make(listed, count, models->registry->max_readers);
    free(listed);
    if (!snapshot)
        return bag_problem_no_memory(problem);
    bool ok = bag_registry_publish(models->registry, snapshot, problem);
    if (!ok)
        bag_snapshot_free(snapshot);
    return ok;
}

size_t bag_models_count_ready(const struct bag_models *models)
{
    size_t count = 0;
    for (size_t i = 0; i < models->num_names; i++) {
        for (size_t j = 0; j < models->names[i]->count; j++)
            count += bag_listed_is_ready(&models->names[i]->versions[j]->now);
    }
    return count;
}

/* The memory of a model's table. */
struct use {
    uintptr_t table;
    size_t bytes;
};

static int compare_uses(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    return (x->table > y->table) - (x->table < y->table);
}

size_t bag_models_memory_bytes(const struct bag_models *models)
{
    struct use *uses = NULL;
    size_t bytes = 0, count = 0;
    for (size_t i = 0; i < models->num_names; i++) {
        for (size_t j = 0; j < models->names[i]->count; j++) {
            const struct bag_model *model = models->names[i]->versions[j]->now.model;
            if (!model || !model->source)
                continue;
            bytes += bag_source_bytes(model->source);
            if (model->stored && model->stored->holders > 1 && BAG_GROW(uses, count))
                uses[count++] = (struct use){.table = (uintptr_t)model->stored,
                                             .bytes = bag_source_table_bytes(model->source)};
        }
    }
    if (count)
        qsort(uses, count, sizeof *uses, compare_uses);
    for (size_t i = 1; i < count; i++)
        bytes -= uses[i].table == uses[i - 1].table ? uses[i].bytes : 0;
    free(uses);
    return bytes;
}

/* ---- facts about files and tables ------------------------------------------------------------ */

bool bag_name_retain(struct bag_models *models, struct bag_name *name, struct bag_model *model)
{
    if (!BAG_GROW(name->retained, name->num_retained))
        return false;
    name->retained[name->num_retained++] = (struct bag_retained_version){
        .model = bag_model_retain(model), .order = ++models->num_retained};
    return true;
}

void bag_name_release(struct bag_name *name, size_t index)
{
    bag_model_release(name->retained[index].model);
    memmove(&name->retained[index], &name->retained[index + 1],
            (name->num_retained - index - 1) * sizeof *name->retained);
    name->num_retained--;
}

void bag_models_count_failure(struct bag_models *models)
{
    models->status.now.num_failed++;
    bag_load_status_report(&models->status);
}

bool bag_version_fail(struct bag_models *models, struct bag_version *version, uint64_t fingerprint,
                      const struct bag_problem *why)
{
    struct bag_failed_version *failed = version->failed;
    if (!failed && !(failed = version->failed = calloc(1, sizeof *failed)))
        return false;
    if (failed->fingerprint != fingerprint || strcmp(failed->problem.text, why->text) != 0)
        bag_models_count_failure(models);
    *failed = (struct bag_failed_version){.fingerprint = fingerprint,
                                          .at_ns = uv_hrtime(),
                                          .change = models->num_changes,
                                          .problem = *why};
    return true;
}

struct bag_updates_table bag_updates_table_of(const struct bag_model *model)
{
    return (struct bag_updates_table){.name = model->name,
                                      .version = model->version_number,
                                      .memory = model->memory,
                                      .reader = &model->features[0].reader,
                                      .through = bag_source_updates_through(model->source),
                                      .deltas = model->source->deltas};
}

bool bag_models_lack_updates(const struct bag_models *models, const struct bag_model *model)
{
    if (!models->updates || !model->memory || model->memory->remote || !model->source)
        return false;
    struct bag_updates_table table = bag_updates_table_of(model);
    return bag_updates_lacks(models->updates, &table);
}
