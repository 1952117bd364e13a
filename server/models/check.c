/* What serving would find wrong with the models, found without taking memory for their tables; see
 * reconciler.h. */
#include "reconciler.h"
#include "server/system/files.h"
#include "server/tables/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what is checked ------------------------------------------------------------------------- */

/* The bags of a table: those of its own model, or of a collection's feature. */
struct bags {
    const struct bag_source *owner;           /* the model that pools them */
    const struct bag_feature_source *feature; /* its table, and rules */
};

struct check {
    struct bags *bags; /* owned */
    size_t count;
};

static bool add(struct check *check, const struct bag_source *owner, struct bag_problem *problem)
{
    size_t count = check->count + owner->num_features;
    struct bags *grown = reallocarray(check->bags, count + 1, sizeof *grown);
    if (!grown)
        return bag_problem_no_memory(problem);
    check->bags = grown;
    for (size_t i = 0; i < owner->num_features; i++)
        grown[check->count++] = (struct bags){owner, &owner->features[i]};
    return true;
}

static int compare(const void *one, const void *other)
{
    const struct bag_model_config *a = ((const struct bags *)one)->feature->table->model;
    const struct bag_model_config *b = ((const struct bags *)other)->feature->table->model;
    int order = strcmp(a->name, b->name);
    return order ? order : strcmp(a->version, b->version);
}

/* ---- one table ------------------------------------------------------------------------------- */

static bool check_rows(const struct bag_source *source, struct bag_problem *problem)
{
    if (source->maps)
        return bag_table_can_map(&source->files[0], problem);
    return bag_table_files_check(source->files, source->num_files, problem);
}

static bool check_defaults(const struct bags *bags, size_t count,
                           const struct bag_table_memory *memory, struct bag_problem *problem)
{
    for (size_t i = 0; i < count; i++) {
        const struct bag_model_config *model = bags[i].owner->model;
        char what[512];
        if (bag_source_is_collection(bags[i].owner))
            snprintf(what, sizeof what, "model '%s', feature '%s'", model->name,
                     bags[i].feature->name);
        else
            snprintf(what, sizeof what, "model '%s' (%s)", model->name, model->path);
        if (!bag_source_check_keys(&bags[i].feature->rules, memory, what, problem))
            return false;
    }
    return true;
}

/* All bags of one table. Of a keyed one the index is made, as serving makes it, and given back. */
static bool check_table(const struct bags *bags, size_t count, struct bag_problem *problem)
{
    const struct bag_source *source = bags[0].feature->table;
    struct bag_table_memory memory = source->own;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (source->make)
        return true;
    if (!check_rows(source, problem))
        return false;
    if (!bag_source_is_keyed(source))
        return true;
    bool ok =
        bag_source_load_keys(source, processors > 0 ? (unsigned)processors : 1, &memory, problem) &&
        check_defaults(bags, count, &memory, problem);
    bag_keys_index_free(&memory.index);
    return ok;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* The files of a model of shards; the shards are not asked. */
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
    if (!ok)
        bag_problem_prefix(problem, "model '%s'", model->name);
    return ok;
}

/* Every version in the folder, also those that are not served. */
static bool add_catalog(struct check *check, const struct bag_catalog *catalog,
                        struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < catalog->count; i++) {
        struct bag_source *source = catalog->sources[i];
        if (bag_model_is_front(source->model))
            ok = check_front(source->model, problem);
        else if (source->model->reason)
            ok = bag_problem_set(problem, BAG_ERROR_FILE, "%s", source->model->reason);
        else if (!bag_source_is_collection(source))
            ok = bag_source_open_table(source, problem) && add(check, source, problem);
    }
    return ok;
}

/* Whether a model, or a table of a collection, is on shards, which are not asked. */
static bool is_of_shards(const struct bag_config *config, const char *name)
{
    const struct bag_model_config *model = bag_config_find_model(config, name);
    bool found = model && bag_model_is_front(model);
    for (size_t i = 0; model && !found && i < model->num_features; i++)
        found = is_of_shards(config, model->features[i].model);
    return found;
}

/* The features of collections that are served; nothing in the plan may be UNAVAILABLE. */
static bool add_collections(struct check *check, const struct bag_change_plan *plan,
                            struct bag_problem *problem)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_entry *entry = &plan->entries[i];
        if (!bag_entry_serves(entry) &&
            !is_of_shards(plan->facts.models->config, entry->model->name))
            return bag_problem_set(problem, BAG_ERROR_FILE, "%s", entry->model->reason);
        if (entry->source && bag_source_is_collection(entry->source) &&
            !add(check, entry->source, problem))
            return false;
    }
    return true;
}

static bool check_tables(struct check *check, struct bag_problem *problem)
{
    bool ok = true;
    if (check->count)
        qsort(check->bags, check->count, sizeof *check->bags, compare);
    for (size_t i = 0, end; ok && i < check->count; i = end) {
        for (end = i + 1; end < check->count && !compare(&check->bags[i], &check->bags[end]);)
            end++;
        ok = check_table(&check->bags[i], end - i, problem);
    }
    return ok;
}

bool bag_reconciler_check(const struct bag_reconciler *reconciler, struct bag_problem *problem)
{
    struct bag_catalog catalog;
    struct check check = {.count = 0};
    bool ok = bag_catalog_scan(&catalog, reconciler->config, reconciler->shards, false, problem) &&
              add_catalog(&check, &catalog, problem) &&
              add_collections(&check, reconciler->first, problem) && check_tables(&check, problem);
    free(check.bags);
    bag_catalog_free(&catalog);
    return ok;
}
