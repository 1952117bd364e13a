/* Flags, the configuration file and a folder of models -> sources; see catalog.h. */
#include "catalog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is found
 * ------------------------------------------------------------------------------- */

static bool add_named(struct bag_scan *scan, struct bag_problem *problem)
{
    const struct bag_config *config = scan->config;
    for (size_t i = 0; i < config->num_models; i++) {
        if (!bag_config_add_copy(&scan->found, &config->models[i]))
            return bag_problem_no_memory(problem);
    }
    scan->num_named = config->num_models;
    return true;
}

/* Features of models that are not there, and the like. */
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

static bool make_sources(struct bag_scan *scan, struct bag_catalog *catalog,
                         struct bag_problem *problem)
{
    size_t count = scan->found.num_models;
    catalog->sources = calloc(count + 1, sizeof *catalog->sources);
    for (size_t i = 0; catalog->sources && i < count; i++) {
        struct bag_source *source = bag_source_make(&scan->found.models[i], i < scan->num_named);
        if (!source)
            return bag_problem_no_memory(problem);
        catalog->sources[catalog->count++] = source;
        enum bag_load load = source->model->load;
        source->is_alone = scan->config->options.updates == BAG_SWITCH_ON;
        source->maps = (load == BAG_LOAD_COUNT ? scan->config->options.load : load) == BAG_LOAD_MAP;
    }
    return catalog->sources || bag_problem_no_memory(problem);
}

/* ---- by name --------------------------------------------------------------------------------- */

static int compare_named(const void *a, const void *b)
{
    const struct bag_named_source *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

static bool sort_sources(struct bag_catalog *catalog, struct bag_problem *problem)
{
    catalog->named = calloc(catalog->count + 1, sizeof *catalog->named);
    if (!catalog->named)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < catalog->count; i++) {
        struct bag_named_source *named = &catalog->named[i];
        named->place = &catalog->sources[i];
        snprintf(named->name, sizeof named->name, "%s", catalog->sources[i]->model->name);
    }
    qsort(catalog->named, catalog->count, sizeof *catalog->named, compare_named);
    return true;
}

const struct bag_named_source *bag_catalog_find(const struct bag_catalog *catalog, const char *name,
                                                size_t *count)
{
    size_t low = 0, high = catalog->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(catalog->named[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (*count = 0; low + *count < catalog->count; ++*count) {
        if (strcmp(catalog->named[low + *count].name, name) != 0)
            break;
    }
    return *count ? &catalog->named[low] : NULL;
}

/* ---- all ------------------------------------------------------------------------------------- */

bool bag_catalog_scan(struct bag_catalog *catalog, const struct bag_config *config, bool is_first,
                      struct bag_problem *problem)
{
    struct bag_scan scan = {.config = config, .is_first = is_first};
    *catalog = (struct bag_catalog){0};
    bool ok = add_named(&scan, problem) && (!config->models_dir || bag_scan_folder(&scan, problem));
    if (ok && config->models_dir && scan.found.num_models == 0)
        ok = bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                             "%s: no models in it, and none are named elsewhere; put NAME.npy or "
                             "NAME/VERSION/TABLE.npy there, or mount the volume that has them",
                             config->models_dir);
    ok = ok && check_models(&scan, problem) && make_sources(&scan, catalog, problem) &&
         sort_sources(catalog, problem);
    bag_config_free_models(&scan.found);
    return ok;
}

void bag_catalog_free(struct bag_catalog *catalog)
{
    for (size_t i = 0; i < catalog->count; i++)
        bag_source_free(catalog->sources[i]);
    free(catalog->sources);
    free(catalog->named);
    *catalog = (struct bag_catalog){0};
}
