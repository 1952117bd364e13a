/* Looking for other files and other versions of shards than before; see loader.h. */
#include "loader.h"

#include "server/system/log.h"

#include <stdlib.h>
#include <string.h>

/* What the last poll said of a model is said once; of the whole folder under an empty name. Without
 * memory it is said again. */
static void log_poll(struct bag_loader *loader, const char *name, const struct bag_problem *why)
{
    struct bag_record *record = bag_record_make(&loader->changer, name);
    if (record && strcmp(record->said.text, why->text) == 0)
        return;
    if (record)
        record->said = *why;
    bag_log(BAG_LOG_LEVEL_WARNING, "not loaded", BAG_LOG_TEXT("model", name),
            BAG_LOG_TEXT("reason", why->text));
}

static void forget_problem(struct bag_loader *loader, const char *name)
{
    struct bag_record *record = bag_record_find(&loader->changer, name);
    if (record)
        *record->said.text = 0;
}

/* A model whose files have changed is a change of its own, so that none waits for another. */
static void poll_model(struct bag_loader *loader, struct bag_catalog *catalog, const char *name)
{
    struct bag_problem why;
    const struct bag_change_names only = {&name, 1};
    loader->changer.num_changes++;
    if (!bag_change_is_needed(&loader->changer, catalog, name)) {
        forget_problem(loader, name);
        return;
    }
    struct bag_change_plan *plan =
        bag_change_plan_make(&loader->changer, BAG_CHANGE_POLL, catalog, NULL, &only, &why);
    bool ok = plan && bag_change_plan_carry_out(plan, &why);
    if (ok)
        forget_problem(loader, name);
    else
        log_poll(loader, name, &why);
    if (!ok && plan) {
        bag_changer_count_failure(&loader->changer);
        bag_change_plan_may_go_without(plan, &why);
    }
    bag_change_plan_free(plan);
}

/* What is polled at a time: all; or, where shards have others than before, models of shards,
 * collections over them, or both. */
enum { ALL = 1, FRONTS = 2, OVER_FRONTS = 4 };

static bool is_front(const struct bag_config *config, const char *name)
{
    const struct bag_model_config *model = bag_config_find_model(config, name);
    return model && bag_model_is_front(model);
}

static bool is_polled(const struct bag_config *config, const struct bag_named_source *named,
                      unsigned polled)
{
    const struct bag_source *source = *named->place;
    bool found = (polled & ALL) || ((polled & FRONTS) && is_front(config, named->name));
    for (size_t i = 0; (polled & OVER_FRONTS) && source && i < source->model->num_features; i++)
        found |= is_front(config, source->model->features[i].model);
    return found;
}

/* The models that are configured and in folders, as they are now. */
static bool scan(struct bag_loader *loader, struct bag_catalog *catalog)
{
    struct bag_problem why;
    bool ok = bag_catalog_scan(catalog, loader->changer.config, loader->shards, false, &why);
    if (ok)
        forget_problem(loader, "");
    else
        log_poll(loader, "", &why);
    return ok;
}

/* The names, each once, are those of the catalog. NULL without memory. */
static const char **list_polled(struct bag_loader *loader, const struct bag_catalog *catalog,
                                unsigned polled, size_t *count)
{
    const char **names = calloc(catalog->count + 1, sizeof *names);
    *count = 0;
    for (size_t i = 0; names && i < catalog->count; i++) {
        const char *name = catalog->named[i].name;
        bool is_first = i == 0 || strcmp(name, catalog->named[i - 1].name) != 0;
        if (is_first && is_polled(loader->changer.config, &catalog->named[i], polled))
            names[(*count)++] = name;
    }
    return names;
}

static void poll_names(struct bag_loader *loader, struct bag_catalog *catalog, unsigned polled)
{
    size_t count;
    const char **names = list_polled(loader, catalog, polled, &count);
    for (size_t i = 0; names && i < count && !atomic_load(&loader->cancelled); i++)
        poll_model(loader, catalog, names[i]);
    free(names);
}

/* Models of shards read nothing: all that have changed are one change, with the collections over
 * them. False where that cannot be made. */
static bool poll_together(struct bag_loader *loader, struct bag_catalog *catalog)
{
    struct bag_problem ignored;
    struct bag_change_names only;
    struct bag_change_plan *plan = NULL;
    bool is_needed = false;
    loader->changer.num_changes++;
    only.names = list_polled(loader, catalog, FRONTS | OVER_FRONTS, &only.count);
    if (!only.names)
        return false;
    for (size_t i = 0; !is_needed && i < only.count; i++)
        is_needed = bag_change_is_needed(&loader->changer, catalog, only.names[i]);
    if (is_needed)
        plan =
            bag_change_plan_make(&loader->changer, BAG_CHANGE_POLL, catalog, NULL, &only, &ignored);
    bool ok = !is_needed || (plan && bag_change_plan_carry_out(plan, &ignored));
    bag_change_plan_free(plan);
    for (size_t i = 0; ok && i < only.count; i++)
        forget_problem(loader, only.names[i]);
    free(only.names);
    return ok;
}

void bag_loader_poll_fronts(struct bag_loader *loader)
{
    struct bag_catalog catalog;
    bool ok = !scan(loader, &catalog) || poll_together(loader, &catalog);
    bag_catalog_free(&catalog);
    if (ok)
        return;
    if (scan(loader, &catalog)) {
        poll_names(loader, &catalog, FRONTS);
        poll_names(loader, &catalog, OVER_FRONTS);
    }
    bag_catalog_free(&catalog);
}

void bag_loader_poll_files(struct bag_loader *loader)
{
    struct bag_catalog catalog;
    struct bag_problem why;
    bool ok = scan(loader, &catalog);
    loader->changer.num_polls++;
    if (ok)
        poll_names(loader, &catalog, ALL);
    bag_catalog_free(&catalog);
    if (ok && !atomic_load(&loader->cancelled)) {
        bag_records_trim(&loader->changer);
        bag_changer_take_deltas(&loader->changer, NULL, true, &why);
    }
}
