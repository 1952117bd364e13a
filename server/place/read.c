/* What is to be placed: the configuration, the heads of its tables, and what earlier runs and
 * metrics say of them. */
#include "config/shards.h"
#include "kernels/pool.h"
#include "place.h"
#include "proto/samples.h"
#include "server/system/files.h"
#include "server/tables/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG_BYTES  ((size_t)64 << 20)
#define MAX_METRICS_BYTES ((size_t)256 << 20)

/* No counter of bytes is larger; sums of such are finite. */
#define MAX_METRIC 0x1p64

void bag_place_free(struct bag_place *place)
{
    bag_config_free(&place->config);
    bag_names_free(&place->names);
    free(place->text);
    free(place->ways);
    bag_placement_free(&place->placement);
}

bool bag_place_is_table(const struct bag_model_config *model)
{
    return model->path && !bag_model_is_front(model);
}

static struct bag_place_item *find(const struct bag_place *place, const char *name)
{
    const size_t *at = bag_names_find(&place->names, name, NULL);
    return at ? &place->placement.items[*at] : NULL;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* How a table is cut. Of rows that stay in their file there are no columns. */
static enum bag_part_by way_of(const struct bag_place *place, const struct bag_source *source)
{
    if (bag_source_is_keyed(source))
        return BAG_PART_KEYS;
    bool has_columns = source->rank == 2 && !source->maps;
    return place->by_columns && has_columns ? BAG_PART_COLUMNS : BAG_PART_ROWS;
}

/* Whether the table can be served in parts, as bag_source_describe_own has it: a mapped table has
 * no row but its own. */
static bool can_be_cut(const struct bag_source *source)
{
    const struct bag_model_config *model = source->model;
    bool is_keyed = bag_source_is_keyed(source);
    bool needs_whole = is_keyed ? model->lock_pages : source->features[0].rules.default_index >= 0;
    return !(source->maps && needs_whole);
}

/* Into how many parts a table can be cut. */
static uint32_t most_parts(const struct bag_source *source, enum bag_part_by way)
{
    uint64_t units =
        way == BAG_PART_COLUMNS ? source->table.row_elements : (uint64_t)source->table.num_rows;
    if (units < 1 || !can_be_cut(source))
        return 1;
    return units < BAG_PLACE_MAX_NODES ? (uint32_t)units : BAG_PLACE_MAX_NODES;
}

/* Rows that stay in their file, which the kernel is to keep in memory. */
static uint64_t rows_in_file(const struct bag_source *source)
{
    bool counts = source->maps && !source->model->lock_pages;
    return counts ? (uint64_t)source->table.num_rows * bag_row_bytes(&source->table) : 0;
}

static bool is_same(const char *one, const char *other)
{
    return strcmp(one ? one : "", other ? other : "") == 0;
}

/* What is projected is the sum over all parts: the front does it, for all versions in one way. */
static bool check_projection(const struct bag_place *place, const struct bag_model_config *model,
                             struct bag_problem *problem)
{
    const struct bag_model_config *first = bag_config_find_model(&place->config, model->name);
    return (is_same(first->projection, model->projection) && is_same(first->bias, model->bias)) ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: versions of model '%s' have different projections; the front that "
                           "projects what nodes have takes one",
                           place->path, model->name);
}

/* Versions of a table are placed together: the item has the bytes of all, and is whole where they
 * cannot be cut in one way. */
static bool add_version(struct bag_place *place, const struct bag_source *source,
                        struct bag_problem *problem)
{
    struct bag_placement *placement = &place->placement;
    struct bag_place_item *item = find(place, source->model->name);
    const struct bag_rules *rules = &source->features[0].rules;
    enum bag_part_by way = way_of(place, source);
    uint64_t kept = (uint64_t)rules->hash_rows + 1;
    uint32_t parts = most_parts(source, way);
    if (source->model->part.of > 0)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: model '%s' has a part already; leave \"part\" out: the "
                               "placement says which parts there are",
                               place->path, source->model->name);
    if (!item) {
        item = &placement->items[placement->num_items];
        place->ways[placement->num_items] = way;
        item->name = bag_config_find_model(&place->config, source->model->name)->name;
        item->most_parts = parts;
        bag_names_put(&place->names, item->name, NULL, placement->num_items++);
    }
    if (way != place->ways[item - placement->items])
        parts = 1;
    if (parts < item->most_parts)
        item->most_parts = parts;
    item->bytes += bag_source_bytes(source) + rows_in_file(source);
    item->keys += way == BAG_PART_KEYS ? (uint64_t)source->table.num_rows : 0;
    item->kept_bytes += kept * bag_row_bytes(&source->table);
    return true;
}

static bool add_table(struct bag_place *place, const struct bag_model_config *model,
                      struct bag_problem *problem)
{
    struct bag_model_config copy;
    if (!check_projection(place, model, problem))
        return false;
    if (!bag_model_config_copy(&copy, model))
        return bag_problem_no_memory(problem);
    struct bag_source *source = bag_source_make(&copy, true);
    if (!source) {
        bag_model_config_free(&copy);
        return bag_problem_no_memory(problem);
    }
    enum bag_load load = source->model->load;
    source->maps = (load == BAG_LOAD_COUNT ? place->config.options.load : load) == BAG_LOAD_MAP;
    bool ok = bag_source_open_table(source, problem) && add_version(place, source, problem);
    bag_source_free(source);
    return ok;
}

static bool add_tables(struct bag_place *place, struct bag_problem *problem)
{
    size_t count = place->config.num_models;
    place->placement.items = calloc(count + 1, sizeof *place->placement.items);
    place->ways = calloc(count + 1, sizeof *place->ways);
    if (!place->placement.items || !place->ways || !bag_names_reserve(&place->names, count))
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        if (bag_place_is_table(&place->config.models[i]) &&
            !add_table(place, &place->config.models[i], problem))
            return false;
    }
    return place->placement.num_items > 0 ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "%s names no table in \"models\"",
                           place->path);
}

/* ---- the configuration ----------------------------------------------------------------------- */

bool bag_place_read(struct bag_place *place, const char *path, struct bag_problem *problem)
{
    place->path = path;
    if (!bag_config_init(&place->config))
        return bag_problem_no_memory(problem);
    place->text = bag_file_read(path, MAX_CONFIG_BYTES, &place->text_bytes, problem);
    if (!place->text ||
        !bag_config_apply_file(&place->config, path, place->text, place->text_bytes, problem) ||
        !bag_config_check_models(&place->config, problem))
        return false;
    if (place->config.models_dir)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s has a models_dir, of which nothing can be placed; name its "
                               "tables in \"models\"",
                               path);
    return add_tables(place, problem);
}

/* ---- the placement before -------------------------------------------------------------------- */

struct before {
    struct bag_place *place;
    uint32_t node;
    bool no_memory;
};

/* Notes that the node had a part of an item. */
static void note(void *context, const char *name, uint32_t index, uint32_t of)
{
    struct before *before = context;
    struct bag_place_item *item = find(before->place, name);
    if (!item)
        return;
    if (item->num_before == 0) {
        item->before = malloc(of * sizeof *item->before);
        before->no_memory |= !item->before;
        item->num_before = item->before ? of : 0;
        for (uint32_t i = 0; i < item->num_before; i++)
            item->before[i] = UINT32_MAX;
    }
    if (item->num_before == of)
        item->before[index] = before->node;
}

static bool read_node(struct bag_place *place, const char *path, uint32_t node,
                      struct bag_problem *problem)
{
    struct before before = {place, node, false};
    size_t bytes;
    char *text = bag_file_read(path, MAX_CONFIG_BYTES, &bytes, problem);
    bool ok = text && bag_divided_read(text, bytes, note, &before, problem);
    if (text && !ok)
        bag_problem_prefix(problem, "%s", path);
    free(text);
    return ok && (!before.no_memory || bag_problem_no_memory(problem));
}

/* Whether every part was on a node, each on another one. */
static bool was_whole(const struct bag_place_item *item)
{
    for (uint32_t i = 0; i < item->num_before; i++) {
        bool ok = item->before[i] != UINT32_MAX;
        for (uint32_t j = 0; ok && j < i; j++)
            ok = item->before[j] != item->before[i];
        if (!ok)
            return false;
    }
    return true;
}

/* What was not whole is as if it had not been placed. */
static void forget_incomplete(struct bag_place *place)
{
    for (size_t i = 0; i < place->placement.num_items; i++) {
        struct bag_place_item *item = &place->placement.items[i];
        if (!was_whole(item))
            item->num_before = 0;
    }
}

bool bag_place_read_before(struct bag_place *place, const char *folder, struct bag_problem *problem)
{
    bool ok = true;
    for (uint32_t node = 0; ok && node < BAG_PLACE_MAX_NODES; node++) {
        char *path = NULL;
        if (asprintf(&path, "%s/node-%u.json", folder, node) < 0)
            return bag_problem_no_memory(problem);
        bool is_there = bag_file_exists(path);
        ok = !is_there || read_node(place, path, node, problem);
        free(path);
        if (!is_there)
            break;
        place->placement.num_before = node + 1;
    }
    forget_incomplete(place);
    return ok;
}

/* ---- rates ----------------------------------------------------------------------------------- */

static void add_rate(struct bag_place *place, const char *name, double value)
{
    struct bag_place_item *item = find(place, name);
    const struct bag_model_config *model = bag_config_find_model(&place->config, name);
    if (item)
        item->rate += value;
    for (size_t i = 0; model && i < model->num_features; i++) {
        item = find(place, model->features[i].model);
        if (item)
            item->rate += value / (double)model->num_features;
    }
}

bool bag_place_read_metrics(struct bag_place *place, const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read(path, MAX_METRICS_BYTES, &bytes, problem), name[129];
    const char *at = text;
    struct bag_sample sample;
    size_t count = 0;
    if (!text)
        return false;
    while (bag_samples_next(&at, "bagserve_gathered_bytes_total", "model", &sample)) {
        if (!sample.label.data || sample.label.bytes >= sizeof name || sample.value < 0 ||
            sample.value > MAX_METRIC)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)sample.label.bytes, sample.label.data);
        add_rate(place, name, sample.value);
        count++;
    }
    free(text);
    return count > 0 ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s has no sample of bagserve_gathered_bytes_total; it must be what GET "
                           "/metrics of a server answered",
                           path);
}
