/* Handlers of the console: the parts of its page, which hold no data, and the documents about the
 * whole server that it shows. */
#include "server/console/console.h"
#include "metadata.h"
#include "proto/tokens.h"

#include <string.h>
#include <unistd.h>

/* ---- the page -------------------------------------------------------------------------------- */

static bool is_console_on(const struct bag_http_request *request)
{
    return request->context->service->config->options.console == BAG_SWITCH_ON;
}

/* Returns the file of a list with this name, or NULL. */
static const struct bag_embedded *find_in(const struct bag_embedded *list, const char *name)
{
    while (list->name && strcmp(list->name, name) != 0)
        list++;
    return list->name ? list : NULL;
}

/* Returns the content type of a file by its suffix. */
static const char *type_of(const char *name)
{
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".js", "text/javascript; charset=utf-8"},
                                           {".svg", "image/svg+xml"}};
    const char *suffix = strrchr(name, '.');
    for (size_t i = 0; suffix && i < sizeof types / sizeof *types; i++) {
        if (strcmp(suffix, types[i][0]) == 0)
            return types[i][1];
    }
    return "text/plain; charset=utf-8";
}

static void keep(void *text)
{
    (void)text; /* the text is part of the program */
}

/* Answers with a part of the page. No cache may keep it, because parts of two versions of the
 * program do not fit together. */
static enum bag_http_outcome answer_part(struct bag_http_request *request, const char *name)
{
    const struct bag_embedded *part = find_in(bag_console_parts, name);
    if (!part)
        part = find_in(bag_chart_js, name);
    if (!part || !is_console_on(request)) {
        bag_http_reply_error(&request->reply, BAG_ERROR_NOT_FOUND,
                             is_console_on(request) ? "the console has no part of that name"
                                                    : "the console is switched off (console)");
        return BAG_HTTP_DONE;
    }
    request->reply = (struct bag_http_reply){.status = 200,
                                             .body = (char *)(uintptr_t)part->text,
                                             .free_body = keep,
                                             .body_bytes = part->bytes,
                                             .type = type_of(part->name),
                                             .no_store = true,
                                             .varies_by_accept = true,
                                             .is_page = true};
    return BAG_HTTP_DONE;
}

enum bag_http_outcome bag_http_get_console(struct bag_http_request *request)
{
    return answer_part(request, "index.html");
}

enum bag_http_outcome bag_http_get_console_part(struct bag_http_request *request)
{
    const char *path = bag_http_head_path(request->line.target);
    return answer_part(request, path + strlen(BAG_HTTP_CONSOLE_PATH "/"));
}

/* ---- history --------------------------------------------------------------------------------- */

static const char *state_of(const struct bag_http_request *request)
{
    static const char *const names[] = {[BAG_SERVICE_LOADING] = "loading",
                                        [BAG_SERVICE_READY] = "ready",
                                        [BAG_SERVICE_LEAVING] = "leaving",
                                        [BAG_SERVICE_DRAINING] = "draining"};
    return names[request->context->service->state];
}

/* Returns the number of versions that are served. */
static size_t count_ready(const struct bag_snapshot *snapshot)
{
    size_t ready = 0;
    for (size_t i = 0; i < snapshot->count; i++)
        ready += snapshot->models[i]->state == BAG_MODEL_READY;
    return ready;
}

/* Fills the reply with the state of the server and the history of its metrics. Runs on a worker. */
static void make_history(struct bag_http_request *request)
{
    struct bag_service *service = request->context->service;
    struct bag_json_writer json = {.is_pretty = false};
    uint64_t started_ms =
        bag_metrics_epoch_ms(&service->metrics, service->history.begun_ns / 1000000);
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("version", BAG_VERSION), BAG_KEY("state", state_of(request)),
                   BAG_KEY("started_ms", started_ms),
                   BAG_KEY("workers", (uint64_t)service->workers->count),
                   BAG_KEY("processors", (uint64_t)uv_available_parallelism()),
                   BAG_KEY("max_connections", (uint64_t)service->max_connections),
                   BAG_KEY("max_request_bytes", (uint64_t)service->budget.max_bytes),
                   BAG_KEY("max_table_bytes", (uint64_t)bag_pages_limit()),
                   BAG_KEY("latency_target_ms", (uint64_t)service->metrics.latency_target_ms),
                   BAG_KEY("models", request->target.snapshot->count),
                   BAG_KEY("models_ready", count_ready(request->target.snapshot)));
    bag_history_write(&service->history, &json);
    bag_http_answer_now(request, bag_json_end(&json));
}

enum bag_http_outcome bag_http_get_history(struct bag_http_request *request)
{
    if (!bag_http_are_metrics_on(request) || !bag_http_are_metrics_here(request))
        return BAG_HTTP_DONE;
    if (request->context->service->history.ring)
        return bag_http_request_on_worker(request, make_history);
    bag_http_reply_error(&request->reply, BAG_ERROR_NOT_FOUND,
                         "nothing is kept for the console, which is switched off (console)");
    return BAG_HTTP_DONE;
}

/* ---- the list of models ---------------------------------------------------------------------- */

/* Returns the size of the model's tables. A table that several features share counts once. */
static uint64_t bytes_of(const struct bag_model *model)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < model->num_features; i++) {
        size_t j = 0;
        while (model->features[j].memory != model->features[i].memory)
            j++;
        if (j == i)
            bytes += bag_table_memory_bytes(model->features[i].memory);
    }
    return bytes;
}

/* Writes an array of numbers. */
static void write_numbers(struct bag_json_writer *json, const char *key, const uint64_t *numbers,
                          size_t count)
{
    bag_json_open(json, key, '[');
    for (size_t i = 0; i < count; i++)
        bag_json_count(json, NULL, numbers[i]);
    bag_json_close(json);
}

/* Writes one version of a model. A collection has no shape, because its features differ. */
static void write_model(struct bag_json_writer *json, const struct bag_http_request *request,
                        const struct bag_listed *listed, const struct bag_load_view *view)
{
    const struct bag_model *model = listed->model;
    const struct bag_metrics *metrics = &request->context->service->metrics;
    const bool is_default = bag_snapshot_find(request->target.snapshot, model->name, "") == model;
    const bool is_collection = model->num_features > 0 && bag_model_is_collection(model);
    struct bag_http_model_state found;
    bag_http_find_state(listed, bag_http_is_stopping(request), view, &found);
    bag_json_open(json, NULL, '{');
    bag_http_write_state(json, model, &found);
    BAG_JSON_WRITE(json, BAG_KEY("default", is_default), BAG_KEY("collection", is_collection),
                   BAG_KEY("features", model->num_features), BAG_KEY("mapped", model->mapped),
                   BAG_KEY("bytes", bytes_of(model)));
    if (model->memory) {
        const struct bag_feature *feature = &model->features[0];
        const struct bag_table_memory *rows = bag_http_shape_of(feature);
        BAG_JSON_WRITE(json, BAG_KEY("num_rows", bag_table_rows_now(model->memory)));
        bag_json_integers(json, "row_shape", &rows->shape[1], rows->rank - 1);
        BAG_JSON_WRITE(json, BAG_KEY("datatype", bag_dtypes[feature->rules.output_dtype].name),
                       BAG_KEY("row_format", bag_row_format_names[model->memory->table.row_format]),
                       BAG_KEY("keyed", feature->rules.keyed));
    }
    if (metrics->on) {
        /* Write the counters of a model. Durations are written up to the last one that is not 0. */
        struct bag_model_counters sum;
        uint64_t failures = 0, durations[BAG_SECONDS_BOUND_COUNT + 1];
        size_t used = 0;
        bag_metrics_sum_model(metrics, model, &sum);
        for (size_t i = 0; i <= BAG_SECONDS_BOUND_COUNT; i++) {
            durations[i] = bag_counter_get(&sum.duration[0][i]);
            used = durations[i] ? i + 1 : used;
        }
        for (size_t i = 0; i < BAG_FAILURE_COUNT; i++)
            failures += bag_counter_get(sum.failure[i]);
        BAG_JSON_WRITE(json, BAG_KEY("requests", bag_histogram_count(sum.duration[0])),
                       BAG_KEY("failures", failures), BAG_KEY("bags", bag_counter_get(sum.bags[0])),
                       BAG_KEY("rows", bag_counter_get(sum.rows[0])));
        write_numbers(json, "durations", durations, used);
    }
    bag_json_close(json);
}

static void make_model_list(struct bag_http_request *request)
{
    const struct bag_snapshot *snapshot = request->target.snapshot;
    struct bag_json_writer json = {.is_pretty = false};
    struct bag_load_view view;
    bag_load_status_read(request->context->service->metrics.loading, &view);
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("at_ns", uv_hrtime()));
    write_numbers(&json, "bounds_ns", bag_seconds_bounds, BAG_SECONDS_BOUND_COUNT);
    if (view.total_bytes) {
        bag_json_open(&json, "loading", '{');
        BAG_JSON_WRITE(&json, BAG_KEY("name", view.name), BAG_KEY("version", view.version),
                       BAG_KEY("done_bytes", view.done_bytes),
                       BAG_KEY("total_bytes", view.total_bytes),
                       BAG_KEY("left_s", (uint64_t)(view.left_s + 0.5)));
        bag_json_close(&json);
    } else {
        bag_json_raw(&json, "loading", "null");
    }
    bag_json_open(&json, "models", '[');
    for (size_t i = 0; i < snapshot->count; i++)
        write_model(&json, request, snapshot->listed[i], &view);
    bag_http_answer_now(request, bag_json_end(&json));
}

enum bag_http_outcome bag_http_get_model_list(struct bag_http_request *request)
{
    return bag_http_request_on_worker(request, make_model_list);
}

/* ---- options --------------------------------------------------------------------------------- */

/* Returns whether the request may do what needs the scope, as far as its token decides. */
static bool covers(const struct bag_http_request *request, enum bag_scope scope)
{
    return !request->context->service->tokens || bag_scopes_cover(request->scopes, scope);
}

enum bag_http_outcome bag_http_get_options(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    const bool is_admin = !request->context->infers, needs_token = service->tokens != NULL;
    const bool controls = service->config->options.model_control != BAG_MODEL_CONTROL_NONE;
    const bool infers = bag_http_may_infer(request) && covers(request, BAG_SCOPE_INFER);
    const bool changes_models = controls && is_admin && covers(request, BAG_SCOPE_ADMIN);
    struct bag_json_writer json = {.is_pretty = false};
    if (!bag_http_are_metrics_here(request))
        return BAG_HTTP_DONE;
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("listener", is_admin ? "admin" : "main"),
                   BAG_KEY("needs_token", needs_token), BAG_KEY("infers", infers),
                   BAG_KEY("controls", controls), BAG_KEY("changes_models", changes_models),
                   BAG_KEY("has_admin", service->has_admin));
    /* Write the limits that hold in place of an option's value, which is 0 or beyond what the
     * system allows. */
    const struct bag_option_values *options = &service->config->options;
    const struct {
        const char *key;
        int64_t value;
        size_t holds;
    } limits[] = {{"max_memory", options->max_memory, service->budget.max_bytes},
                  {"max_connections", options->max_connections, service->max_connections},
                  {"max_connections_per_client", options->max_connections_per_client,
                   service->max_connections_per_client}};
    bag_json_open(&json, "derived", '{');
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if ((size_t)limits[i].value != limits[i].holds)
            BAG_JSON_WRITE(&json, BAG_KEY(limits[i].key, limits[i].holds));
    }
    bag_json_close(&json);
    bag_config_write_options(service->config, is_admin, &json);
    return bag_http_answer_now(request, bag_json_end(&json));
}
