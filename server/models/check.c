/* Checking all models without taking memory for their tables, for --check; see reconciler.h. */
#include "reconciler.h"

#include "proto/arena.h"
#include "server/system/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what is found --------------------------------------------------------------------------- */

/* Adds a version that cannot be served, unless it is there. */
static void add_fault(struct bag_check *check, const char *name, const char *version,
                      const char *reason)
{
    if (bag_check_find(check, name, version))
        return;
    char *copy = BAG_GROW(check->faults, check->count) ? strdup(reason) : NULL;
    if (!copy) {
        check->lacks_memory = true;
        return;
    }
    struct bag_check_fault *fault = &check->faults[check->count++];
    fault->reason = copy;
    snprintf(fault->name, sizeof fault->name, "%s", name);
    snprintf(fault->version, sizeof fault->version, "%s", version);
}

/* Adds a version that cannot be served because of a problem. */
static void add_problem(struct bag_check *check, const struct bag_model_config *model,
                        const struct bag_problem *why)
{
    add_fault(check, model->name, model->version, why->text);
}

const struct bag_check_fault *bag_check_find(const struct bag_check *check, const char *name,
                                             const char *version)
{
    for (size_t i = 0; i < check->count; i++) {
        if (strcmp(check->faults[i].name, name) == 0 &&
            strcmp(check->faults[i].version, version) == 0)
            return &check->faults[i];
    }
    return NULL;
}

void bag_check_free(struct bag_check *check)
{
    while (check->count > 0)
        free(check->faults[--check->count].reason);
    free(check->faults);
    check->faults = NULL;
}

/* ---- bags ------------------------------------------------------------------------------------ */

/* The bags of a table: those of its own model, or of a collection's feature. */
struct bags {
    const struct bag_source *owner;           /* the model that pools them */
    const struct bag_feature_source *feature; /* the table and its rules */
};

struct bags_list {
    struct bags *bags; /* owned */
    size_t count;
};

/* Adds all features of a model to the list. Returns false without memory. */
static bool add_bags(struct bags_list *list, const struct bag_source *owner)
{
    size_t count = list->count + owner->num_features;
    struct bags *grown = reallocarray(list->bags, count + 1, sizeof *grown);
    if (!grown)
        return false;
    list->bags = grown;
    for (size_t i = 0; i < owner->num_features; i++)
        grown[list->count++] = (struct bags){owner, &owner->features[i]};
    return true;
}

/* Orders bags by their tables. */
static int compare(const void *one, const void *other)
{
    const struct bag_model_config *a = ((const struct bags *)one)->feature->table->model;
    const struct bag_model_config *b = ((const struct bags *)other)->feature->table->model;
    int order = strcmp(a->name, b->name);
    return order ? order : strcmp(a->version, b->version);
}

/* ---- one table ------------------------------------------------------------------------------- */

/* Checks that the table has the default keys of its bags. */
static void check_defaults(struct bag_check *check, const struct bags *bags, size_t count,
                           const struct bag_table_memory *memory)
{
    for (size_t i = 0; i < count; i++) {
        const struct bag_model_config *model = bags[i].owner->model;
        struct bag_problem why;
        char what[512];
        if (bag_source_is_collection(bags[i].owner))
            snprintf(what, sizeof what, "model '%s', feature '%s'", model->name,
                     bags[i].feature->name);
        else
            snprintf(what, sizeof what, "model '%s' (%s)", model->name, model->path);
        if (!bag_source_check_keys(&bags[i].feature->rules, memory, what, &why))
            add_problem(check, model, &why);
    }
}

/* Checks all bags of one table. The index of a keyed table is made, as serving makes it, and freed.
 */
static void check_table(struct bag_check *check, const struct bags *bags, size_t count)
{
    const struct bag_source *source = bags[0].feature->table;
    struct bag_table_memory memory = source->own;
    struct bag_problem why;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (source->make)
        return;
    /* Rows can be mapped, or their files are unchanged and have the CRC-32 that they state. */
    if (!(source->maps ? bag_table_can_map(&source->files[0], &why)
                       : bag_table_files_check(source->files, source->num_files, &why))) {
        add_problem(check, source->model, &why);
    } else if (bag_source_is_keyed(source)) {
        if (bag_source_load_keys(source, processors > 0 ? (unsigned)processors : 1, &memory.index,
                                 &why))
            check_defaults(check, bags, count, &memory);
        else
            add_problem(check, source->model, &why);
        bag_keys_index_free(&memory.index);
    }
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Checks the files of a model of shards, which are not asked. */
static bool check_front(const struct bag_model_config *model, struct bag_problem *problem)
{
    const char *bias, *matrix = bag_config_projection(model, NULL, &bias);
    const char *token_file = model->shard_token_file;
    struct bag_table_file file;
    char *token = NULL;
    bool ok = !token_file || !*token_file ||
              (token = bag_file_read_token(token_file, BAG_SCOPE_COUNT, problem));
    free(token);
    ok = ok && (!matrix || bag_table_file_open(matrix, BAG_DTYPE_COUNT, &file, problem)) &&
         (!bias || bag_table_file_open(bias, BAG_DTYPE_COUNT, &file, problem));
    return ok || bag_problem_prefix(problem, "model '%s'", model->name);
}

/* Opens the files of every version that exists, also of those that are not served. */
static bool add_catalog(struct bag_check *check, struct bags_list *list,
                        const struct bag_catalog *catalog)
{
    for (size_t i = 0; i < catalog->count; i++) {
        struct bag_source *source = catalog->sources[i];
        struct bag_problem why;
        const struct bag_model_config *model = source->model;
        if (bag_model_has_shards(model)) {
            if (!check_front(model, &why))
                add_problem(check, model, &why);
        } else if (model->reason) {
            add_fault(check, model->name, model->version, model->reason);
        } else if (bag_source_is_collection(source)) {
            continue; /* see add_planned() */
        } else if (!bag_source_open_table(source, &why)) {
            add_problem(check, model, &why);
        } else if (!add_bags(list, source)) {
            return false;
        }
    }
    return true;
}

/* Adds the features of collections that are served, and what cannot be served. */
static bool add_planned(struct bag_check *check, struct bags_list *list,
                        const struct bag_change_plan *plan)
{
    const struct bag_config *config = plan->models->config;
    for (size_t i = 0; i < plan->num_names; i++) {
        const struct bag_name *name = plan->names[i];
        const struct bag_model_config *model = bag_config_find_model(config, name->text);
        bool uses_shards = model && bag_config_uses_shards(config, model);
        for (size_t j = 0; j < name->count; j++) {
            const struct bag_version *version = name->versions[j];
            const struct bag_model *next = version->next.model;
            if (next && !bag_version_will_serve(version) && !uses_shards)
                add_fault(check, name->text, next->version, next->reason);
            if (version->source && bag_source_is_collection(version->source) &&
                !add_bags(list, version->source))
                return false;
        }
    }
    return true;
}

bool bag_reconciler_check(const struct bag_reconciler *reconciler, struct bag_check *check,
                          struct bag_problem *problem)
{
    const struct bag_models *models = &reconciler->models;
    struct bag_catalog catalog;
    struct bags_list list = {.count = 0};
    *check = (struct bag_check){.count = 0};
    bool ok = bag_catalog_scan(&catalog, models->config, models->options, reconciler->shards, false,
                               problem);
    if (ok && add_catalog(check, &list, &catalog) &&
        add_planned(check, &list, &reconciler->first)) {
        /* Check each table once, with all the bags that pool it. */
        if (list.count)
            qsort(list.bags, list.count, sizeof *list.bags, compare);
        for (size_t i = 0, end; i < list.count; i = end) {
            for (end = i + 1; end < list.count && !compare(&list.bags[i], &list.bags[end]);)
                end++;
            check_table(check, &list.bags[i], end - i);
        }
    } else if (ok) {
        check->lacks_memory = true;
    }
    if (check->lacks_memory)
        ok = bag_problem_no_memory(problem);
    free(list.bags);
    bag_catalog_free(&catalog);
    return ok;
}
