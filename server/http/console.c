/* Handlers of the console: the parts of its page, which hold no data, and the documents about the
 * whole server that it shows. */
#include "server/console/console.h"
#include "metadata.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the page -------------------------------------------------------------------------------- */

#define PAGE_PATH "/console"

static bool is_console_on(const struct bag_http_request *request)
{
    return request->context->service->config->options.console == BAG_SWITCH_ON;
}

const char *bag_http_console_path(const struct bag_http_request *request)
{
    const char *path = bag_http_head_path(request->line.target);
    bool is_page = request->head.wants_html && strcmp(path, "/") == 0 && is_console_on(request);
    return is_page ? PAGE_PATH : path;
}

static const struct bag_embedded *find_in(const struct bag_embedded *list, const char *name)
{
    while (list->name && strcmp(list->name, name) != 0)
        list++;
    return list->name ? list : NULL;
}

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
    (void)text; /* the program's own */
}

/* No cache keeps it: the next version's parts do not go with this one's. */
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
    return answer_part(request, path + strlen(PAGE_PATH "/"));
}

/* ---- history --------------------------------------------------------------------------------- */

static void answer(struct bag_http_request *request, char *document)
{
    bag_http_reply_json(&request->reply, 200, document);
    request->reply.no_store = true;
}

static const char *state_of(const struct bag_http_request *request)
{
    static const char *const names[] = {[BAG_SERVICE_LOADING] = "loading",
                                        [BAG_SERVICE_READY] = "ready",
                                        [BAG_SERVICE_LEAVING] = "leaving",
                                        [BAG_SERVICE_DRAINING] = "draining"};
    return names[request->context->service->state];
}

static size_t count_ready(const struct bag_snapshot *snapshot)
{
    size_t ready = 0;
    for (size_t i = 0; i < snapshot->count; i++)
        ready += snapshot->models[i]->state == BAG_MODEL_READY;
    return ready;
}

static void make_history(struct bag_http_request *request)
{
    struct bag_service *service = request->context->service;
    const struct bag_v2_server server = {
        .version = BAG_VERSION,
        .state = state_of(request),
        .started_ms = bag_metrics_epoch_ms(&service->metrics, service->history.begun_ns / 1000000),
        .workers = service->workers->count,
        .processors = uv_available_parallelism(),
        .max_connections = service->max_connections,
        .max_request_bytes = service->budget.max_bytes,
        .max_table_bytes = bag_pages_limit(),
        .latency_target_ms = service->metrics.latency_target_ms,
        .models = request->snapshot->count,
        .models_ready = count_ready(request->snapshot)};
    answer(request, bag_history_describe(&service->history, &server));
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

/* What a model is listed with. */
struct listing {
    struct bag_v2_feature table;
    uint64_t durations[BAG_SECONDS_BOUND_COUNT + 1];
    char text[BAG_HTTP_REASON_BYTES];
};

/* Each table once, though features share it. */
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

static void add_counts(const struct bag_metrics *metrics, const struct bag_model *model,
                       struct listing *listing, struct bag_v2_listed_model *listed)
{
    struct bag_model_counters sum;
    bag_metrics_sum_model(metrics, model, &sum);
    for (size_t i = 0; i <= BAG_SECONDS_BOUND_COUNT; i++)
        listing->durations[i] = bag_counter_get(&sum.duration[0][i]);
    for (size_t i = 0; i < BAG_FAILURE_COUNT; i++)
        listed->failures += bag_counter_get(sum.failure[i]);
    listed->durations = listing->durations;
    listed->requests = bag_histogram_count(sum.duration[0]);
    listed->bags = bag_counter_get(sum.bags[0]);
    listed->rows = bag_counter_get(sum.rows[0]);
}

static void list_model(const struct bag_http_request *request, const struct bag_model *model,
                       const struct bag_load_view *view, struct listing *listing,
                       struct bag_v2_listed_model *listed)
{
    const struct bag_metrics *metrics = &request->context->service->metrics;
    *listed = (struct bag_v2_listed_model){
        .entry = bag_http_describe_state(request->snapshot, model, bag_http_is_stopping(request),
                                         view, listing->text, sizeof listing->text),
        .is_default = bag_snapshot_find(request->snapshot, model->name, "") == model,
        .is_collection = model->num_features > 0 && bag_model_is_collection(model),
        .num_features = model->num_features,
        .mapped = model->mapped,
        .bytes = bytes_of(model)};
    if (model->memory) {
        listing->table = bag_http_describe_feature(&model->features[0]);
        listed->table = &listing->table;
    }
    if (metrics->on)
        add_counts(metrics, model, listing, listed);
}

static void make_model_list(struct bag_http_request *request)
{
    const struct bag_snapshot *snapshot = request->snapshot;
    struct bag_load_view view;
    struct bag_v2_listed_model *models = malloc((snapshot->count + 1) * sizeof *models);
    struct listing *listings = malloc((snapshot->count + 1) * sizeof *listings);
    bag_load_status_read(request->context->service->metrics.loading, &view);
    for (size_t i = 0; models && listings && i < snapshot->count; i++)
        list_model(request, snapshot->listed[i], &view, &listings[i], &models[i]);
    const struct bag_v2_model_list list = {.models = models,
                                           .count = snapshot->count,
                                           .bounds_ns = bag_seconds_bounds,
                                           .num_bounds = BAG_SECONDS_BOUND_COUNT,
                                           .loading = {.name = view.name,
                                                       .version = view.version,
                                                       .done_bytes = view.done_bytes,
                                                       .total_bytes = view.total_bytes,
                                                       .left_s = (uint64_t)(view.left_s + 0.5)},
                                           .metrics = request->context->service->metrics.on,
                                           .at_ns = uv_hrtime()};
    answer(request, models && listings ? bag_v2_describe_model_list(&list) : NULL);
    free(models);
    free(listings);
}

enum bag_http_outcome bag_http_get_model_list(struct bag_http_request *request)
{
    return bag_http_request_on_worker(request, make_model_list);
}

/* ---- options --------------------------------------------------------------------------------- */

/* Whether who asks may do what needs the scope, as far as the token goes. */
static bool covers(const struct bag_http_request *request, enum bag_scope scope)
{
    return !request->context->service->tokens || bag_scopes_cover(request->scopes, scope);
}

enum bag_http_outcome bag_http_get_options(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    bool is_admin = !request->context->infers;
    bool controls = service->config->options.model_control != BAG_MODEL_CONTROL_NONE;
    const struct bag_v2_access access = {
        .listener = is_admin ? "admin" : "main",
        .needs_token = service->tokens != NULL,
        .infers = bag_http_may_infer(request) && covers(request, BAG_SCOPE_INFER),
        .controls = controls,
        .changes_models = controls && is_admin && covers(request, BAG_SCOPE_ADMIN)};
    if (!bag_http_are_metrics_here(request))
        return BAG_HTTP_DONE;
    answer(request, bag_v2_describe_options(
                        &access, bag_config_describe_options(service->config, is_admin)));
    return BAG_HTTP_DONE;
}
