/* Documents about the whole server; see v2_server.h. */
#include "v2_server.h"

#include "numbers.h"
#include "text.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays of numbers ----------------------------------------------------------------------- */

/* "[1,null,3]" in a buffer of its own: as a node each of thousands of numbers would take as long as
 * all else. */
static bool add_numbers(cJSON *object, const char *key, const uint64_t *values, size_t count)
{
    char *text = malloc(count * (BAG_DIGITS_BYTES + 1) + 3), *out = text;
    if (!text)
        return false;
    *out++ = '[';
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            *out++ = ',';
        if (values[i] == BAG_V2_NO_VALUE) {
            memcpy(out, "null", 4);
            out += 4;
        } else {
            out = bag_digits_put(out, values[i]);
        }
    }
    *out++ = ']';
    *out = 0;
    bool ok = cJSON_AddRawToObject(object, key, text) != NULL;
    free(text);
    return ok;
}

static bool add_columns(cJSON *tree, const char *key, const struct bag_v2_column *columns,
                        size_t count, size_t values)
{
    cJSON *object = cJSON_AddObjectToObject(tree, key);
    bool ok = object != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = add_numbers(object, columns[i].name, columns[i].values, values);
    return ok;
}

/* ---- history --------------------------------------------------------------------------------- */

static bool add_server(cJSON *tree, const struct bag_v2_server *server)
{
    return cJSON_AddStringToObject(tree, "version", server->version) &&
           cJSON_AddStringToObject(tree, "state", server->state) &&
           bag_v2_add_integer(tree, "started_ms", server->started_ms) &&
           bag_v2_add_integer(tree, "workers", server->workers) &&
           bag_v2_add_integer(tree, "processors", server->processors) &&
           bag_v2_add_integer(tree, "max_connections", server->max_connections) &&
           bag_v2_add_integer(tree, "max_request_bytes", server->max_request_bytes) &&
           bag_v2_add_integer(tree, "max_table_bytes", server->max_table_bytes) &&
           bag_v2_add_integer(tree, "latency_target_ms", server->latency_target_ms) &&
           bag_v2_add_integer(tree, "models", server->models) &&
           bag_v2_add_integer(tree, "models_ready", server->models_ready);
}

static bool add_recent(cJSON *tree, const struct bag_v2_history *history)
{
    cJSON *object = cJSON_AddObjectToObject(tree, "recent");
    bool ok = object != NULL;
    for (size_t i = 0; ok && i < history->num_recent; i++) {
        const struct bag_v2_column *column = &history->recent[i];
        ok = *column->values == BAG_V2_NO_VALUE
                 ? cJSON_AddNullToObject(object, column->name) != NULL
                 : bag_v2_add_integer(object, column->name, *column->values);
    }
    return ok;
}

char *bag_v2_describe_history(const struct bag_v2_server *server,
                              const struct bag_v2_history *history)
{
    cJSON *tree = cJSON_CreateObject();
    bool ok =
        add_server(tree, server) && bag_v2_add_integer(tree, "until_ms", history->until_ms) &&
        bag_v2_add_integer(tree, "seconds", history->seconds) && add_recent(tree, history) &&
        add_columns(tree, "columns", history->columns, history->num_columns, history->seconds) &&
        add_columns(tree, "rejected", history->rejected, history->num_rejected, history->seconds);
    return bag_v2_print_tree(tree, ok);
}

/* ---- models ---------------------------------------------------------------------------------- */

static bool add_table(cJSON *object, const struct bag_v2_feature *table)
{
    cJSON *shape = NULL;
    bool ok = bag_v2_add_integer(object, "num_rows", (uint64_t)table->num_rows) &&
              (shape = cJSON_AddArrayToObject(object, "row_shape"));
    for (uint32_t i = 0; ok && i < table->row_rank; i++) {
        cJSON *size = cJSON_CreateNumber((double)table->row_shape[i]);
        ok = size && cJSON_AddItemToArray(shape, size);
    }
    return ok &&
           cJSON_AddStringToObject(object, "datatype", bag_dtypes[table->output_dtype].name) &&
           cJSON_AddStringToObject(object, "row_format",
                                   bag_row_format_names[table->rows->row_format]) &&
           cJSON_AddBoolToObject(object, "keyed", table->rules->keyed);
}

/* Without the zeros behind the last duration that there was. */
static bool add_counts(cJSON *object, const struct bag_v2_listed_model *model, size_t bounds)
{
    size_t used = bounds + 1;
    while (used > 0 && model->durations[used - 1] == 0)
        used--;
    return bag_v2_add_integer(object, "requests", model->requests) &&
           bag_v2_add_integer(object, "failures", model->failures) &&
           bag_v2_add_integer(object, "bags", model->bags) &&
           bag_v2_add_integer(object, "rows", model->rows) &&
           add_numbers(object, "durations", model->durations, used);
}

static bool add_model(cJSON *list, const struct bag_v2_model_list *all,
                      const struct bag_v2_listed_model *model)
{
    cJSON *object = bag_v2_add_item(list);
    return object && cJSON_AddStringToObject(object, "name", model->entry.name) &&
           cJSON_AddStringToObject(object, "version", model->entry.version) &&
           cJSON_AddStringToObject(object, "state", model->entry.state) &&
           cJSON_AddStringToObject(object, "reason", model->entry.reason) &&
           cJSON_AddBoolToObject(object, "default", model->is_default) &&
           cJSON_AddBoolToObject(object, "collection", model->is_collection) &&
           bag_v2_add_integer(object, "features", model->num_features) &&
           cJSON_AddBoolToObject(object, "mapped", model->mapped) &&
           bag_v2_add_integer(object, "bytes", model->bytes) &&
           (!model->table || add_table(object, model->table)) &&
           (!all->metrics || add_counts(object, model, all->num_bounds));
}

static bool add_loading(cJSON *tree, const struct bag_v2_loading *loading)
{
    cJSON *object = loading->total_bytes ? cJSON_AddObjectToObject(tree, "loading")
                                         : cJSON_AddNullToObject(tree, "loading");
    return object && (!loading->total_bytes ||
                      (cJSON_AddStringToObject(object, "name", loading->name) &&
                       cJSON_AddStringToObject(object, "version", loading->version) &&
                       bag_v2_add_integer(object, "done_bytes", loading->done_bytes) &&
                       bag_v2_add_integer(object, "total_bytes", loading->total_bytes) &&
                       bag_v2_add_integer(object, "left_s", loading->left_s)));
}

char *bag_v2_describe_model_list(const struct bag_v2_model_list *list)
{
    cJSON *tree = cJSON_CreateObject(), *models = NULL;
    bool ok = bag_v2_add_integer(tree, "at_ns", list->at_ns) &&
              add_numbers(tree, "bounds_ns", list->bounds_ns, list->num_bounds) &&
              add_loading(tree, &list->loading) &&
              (models = cJSON_AddArrayToObject(tree, "models"));
    for (size_t i = 0; ok && i < list->count; i++)
        ok = add_model(models, list, &list->models[i]);
    return bag_v2_print_tree(tree, ok);
}

/* ---- options --------------------------------------------------------------------------------- */

char *bag_v2_describe_options(const struct bag_v2_access *access, char *options)
{
    cJSON *tree = cJSON_CreateObject();
    bool ok = options && cJSON_AddStringToObject(tree, "listener", access->listener) &&
              cJSON_AddBoolToObject(tree, "needs_token", access->needs_token) &&
              cJSON_AddBoolToObject(tree, "infers", access->infers) &&
              cJSON_AddBoolToObject(tree, "controls", access->controls) &&
              cJSON_AddBoolToObject(tree, "changes_models", access->changes_models) &&
              cJSON_AddRawToObject(tree, "options", options);
    free(options);
    return bag_v2_print_tree(tree, ok);
}
