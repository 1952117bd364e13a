/* Flags, the configuration file and a folder of models -> sources; see catalog.h. */
#include "catalog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is found --------------------------------------------------------------------------- */

/* Adds a copy of a model's configuration. Takes over `remote`, the table that shards have (NULL:
 * none), also on failure. Returns false without memory. */
static bool add_copy(struct bag_scan *scan, const struct bag_model_config *model,
                     struct bag_remote *remote)
{
    if (!BAG_GROW(scan->remotes, scan->num_remotes) || !bag_config_add_copy(&scan->found, model)) {
        bag_remote_free(remote);
        return false;
    }
    scan->remotes[scan->num_remotes++] = remote;
    return true;
}

/* Adds a version that cannot be served, with the reason. Returns false without memory. */
static bool add_rejected(struct bag_scan *scan, const struct bag_model_config *model,
                         const char *reason)
{
    if (!add_copy(scan, model, NULL))
        return false;
    char **own = &scan->found.models[scan->found.num_models - 1].reason;
    free(*own);
    return (*own = strdup(reason)) != NULL;
}

/* Adds the versions that all shards of a group have. If there are none, adds one version with the
 * reason. Returns false without memory. */
static bool add_versions(struct bag_scan *scan, const struct bag_model_config *model,
                         struct bag_shard_group *group)
{
    struct bag_shard_version *versions;
    char reason[BAG_PROBLEM_TEXT_BYTES];
    size_t count;
    if (!bag_shard_group_list(group, &versions, &count, reason))
        return false;
    bool ok = count > 0 || add_rejected(scan, model, reason);
    for (size_t i = 0; ok && i < count; i++) {
        const struct bag_shard_version *version = &versions[i];
        struct bag_remote *remote = version->reason ? NULL : bag_remote_make(group, version);
        ok = version->reason ? add_rejected(scan, &version->config, version->reason)
                             : remote && add_copy(scan, &version->config, remote);
    }
    bag_shard_versions_free(versions, count);
    return ok;
}

/* Adds the versions of a model that is on shards. Returns false and sets *problem if its
 * configuration is wrong or memory is short. */
static bool add_front(struct bag_scan *scan, const struct bag_model_config *model,
                      struct bag_problem *problem)
{
    if (!bag_config_check_model(scan->config, model, problem))
        return false;
    struct bag_shard_group *group = bag_shards_find(scan->shards, model, problem);
    if (!group)
        return false;
    bool ok = add_versions(scan, model, group);
    bag_shard_group_release(group);
    return ok || bag_problem_no_memory(problem);
}

/* Adds the models that the configuration names, with and without shards. */
static bool add_named(struct bag_scan *scan, struct bag_problem *problem)
{
    const struct bag_config *config = scan->config;
    bool ok = true;
    for (size_t i = 0; ok && i < config->num_models; i++) {
        const struct bag_model_config *model = &config->models[i];
        ok = bag_model_has_shards(model)
                 ? add_front(scan, model, problem)
                 : add_copy(scan, model, NULL) || bag_problem_no_memory(problem);
    }
    scan->num_named = scan->found.num_models;
    return ok;
}

/* Checks what needs all models, such as features of models that do not exist. */
static bool check_models(struct bag_scan *scan, struct bag_problem *problem)
{
    struct bag_problem why;
    for (size_t i = 0; i < scan->found.num_models; i++) {
        struct bag_model_config *model = &scan->found.models[i];
        if (model->reason || bag_config_check_model(&scan->found, model, &why))
            continue;
        if (i < scan->num_named) {
            *problem = why;
            return false;
        }
        if (!(model->reason = strdup(why.text)))
            return bag_problem_no_memory(problem);
    }
    return true;
}

/* Makes a source of each model that was found, in the same order. */
static bool make_sources(struct bag_scan *scan, struct bag_catalog *catalog,
                         struct bag_problem *problem)
{
    size_t count = scan->found.num_models;
    catalog->sources = calloc(count + 1, sizeof *catalog->sources);
    for (size_t i = 0; catalog->sources && i < count; i++) {
        /* Versions on shards come and go, as those in a folder do. */
        bool is_named = i < scan->num_named && !bag_model_has_shards(&scan->found.models[i]);
        struct bag_source *source = bag_source_make(&scan->found.models[i], is_named);
        if (!source)
            return bag_problem_no_memory(problem);
        catalog->sources[catalog->count++] = source;
        if (i < scan->num_remotes) {
            source->remote = scan->remotes[i];
            scan->remotes[i] = NULL;
        }
        enum bag_load load = source->model->load;
        source->is_alone = scan->options->updates == BAG_SWITCH_ON;
        source->maps = (load == BAG_LOAD_COUNT ? scan->options->load : load) == BAG_LOAD_MAP;
    }
    return catalog->sources || bag_problem_no_memory(problem);
}

/* ---- all ------------------------------------------------------------------------------------- */

bool bag_catalog_scan(struct bag_catalog *catalog, const struct bag_config *config,
                      const struct bag_option_values *options, struct bag_shards *shards,
                      bool is_first, struct bag_problem *problem)
{
    struct bag_scan scan = {
        .config = config, .options = options, .shards = shards, .is_first = is_first};
    *catalog = (struct bag_catalog){0};
    bool ok = add_named(&scan, problem) && (!config->models_dir || bag_scan_folder(&scan, problem));
    if (ok && config->models_dir && scan.found.num_models == 0)
        ok = bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                             "%s: no models in it, and none are named elsewhere; put NAME.npy or "
                             "NAME/VERSION/TABLE.npy there, or mount the volume that has them",
                             config->models_dir);
    ok = ok && check_models(&scan, problem) && make_sources(&scan, catalog, problem);
    if (ok)
        bag_shards_forget(shards);
    for (size_t i = 0; i < scan.num_remotes; i++)
        bag_remote_free(scan.remotes[i]);
    free(scan.remotes);
    bag_config_free_models(&scan.found);
    return ok;
}

void bag_catalog_free(struct bag_catalog *catalog)
{
    for (size_t i = 0; i < catalog->count; i++)
        bag_source_free(catalog->sources[i]);
    free(catalog->sources);
    *catalog = (struct bag_catalog){0};
}
