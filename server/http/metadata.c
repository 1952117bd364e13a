/* Handlers of health checks, and of metadata and statistics about the server and its models. A
 * worker makes documents whose size grows with the number of models. */
#include "metadata.h"
#include "kernels/isa.h"
#include "proto/v2_request.h"
#include "server/memory/memory.h"
#include "server/metrics/metrics.h"
#include "server/models/load_status.h"
#include "server/tables/live_rows.h"
#include "server/tables/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fills the reply with a document. Without memory (NULL) the reply is an error. */
static enum bag_http_outcome answer(struct bag_http_request *request, char *document)
{
    bag_http_reply_json(&request->reply, 200, document);
    return BAG_HTTP_DONE;
}

enum bag_http_outcome bag_http_answer_now(struct bag_http_request *request, char *document)
{
    bag_http_reply_json(&request->reply, 200, document);
    request->reply.no_store = true;
    return BAG_HTTP_DONE;
}

/* ---- health ---------------------------------------------------------------------------------- */

/* The file of a mapped table may have been truncated, or shards of a feature may be unavailable. */
bool bag_http_find_fault(const struct bag_model *model, char *text, size_t room)
{
    for (size_t i = 0; i < model->num_features; i++) {
        const struct bag_table_memory *memory = model->features[i].memory;
        if (memory->remote && bag_shard_group_is_unavailable(memory->remote->group, text, room))
            return true;
        if (memory->map && !bag_map_has_file(memory->map)) {
            snprintf(text, room,
                     "the table's file was truncated while it was served; publish a table by "
                     "renaming a complete file");
            return true;
        }
    }
    return false;
}

enum bag_http_outcome bag_http_get_live(struct bag_http_request *request)
{
    return bag_http_answer_now(request, BAG_JSON_DOCUMENT(BAG_KEY("live", (bool)true)));
}

/* Answers whether the server, or the model of that name, is ready: 503 with the reason `why` if it
 * is not. `stops`: because the server is stopping. */
static enum bag_http_outcome answer_readiness(struct bag_http_request *request, const char *name,
                                              bool is_ready, bool stops, const char *why)
{
    const enum bag_error error = stops ? BAG_ERROR_DRAINING : BAG_ERROR_NOT_READY;
    char *document = BAG_JSON_DOCUMENT(BAG_KEY_IF(name, "name", name), BAG_KEY("ready", is_ready),
                                       BAG_KEY_IF(!is_ready, "code", bag_error_codes[error]),
                                       BAG_KEY_IF(!is_ready, "error", why));
    if (is_ready)
        return bag_http_answer_now(request, document);
    bag_http_reply_failure(&request->reply, error, document);
    request->reply.no_store = true;
    return BAG_HTTP_DONE;
}

/* True from the signal on, even while everything is still served. */
bool bag_http_is_stopping(const struct bag_http_request *request)
{
    return request->context->service->state >= BAG_SERVICE_LEAVING;
}

const char bag_http_stopping[] = "the server is stopping";

/* Returns whether the server needs a model's shards. An unloaded model needs none. */
static bool needs_shards(const void *snapshot, const char *name)
{
    const struct bag_model *model = bag_snapshot_find(snapshot, name, "");
    return model && !model->is_unloaded;
}

enum bag_http_outcome bag_http_get_ready(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    const struct bag_model *not_ready = request->target.snapshot->not_ready;
    bool stops = bag_http_is_stopping(request);
    /* If models may be loaded and unloaded, a model that does not answer does not make the server
     * unready. */
    if (service->config->options.model_control != BAG_MODEL_CONTROL_NONE &&
        service->state != BAG_SERVICE_LOADING)
        not_ready = NULL;
    char text[BAG_PROBLEM_TEXT_BYTES];
    /* The tables are published slightly before the server accepts changes and signals. */
    const char *loading =
        service->state == BAG_SERVICE_LOADING ? "the first tables are still being loaded" : NULL;
    const char *why = stops ? bag_http_stopping : not_ready ? not_ready->reason : loading;
    if (!stops && not_ready && not_ready->state != BAG_MODEL_LOADING) {
        snprintf(text, sizeof text, "model '%s' version %s is %s: %s", not_ready->name,
                 not_ready->version, bag_model_state_names[not_ready->state], not_ready->reason);
        why = text;
    }
    if (!why && bag_shards_find_unavailable(service->shards, needs_shards, request->target.snapshot,
                                            text, sizeof text))
        why = text;
    return answer_readiness(request, NULL, !why, stops, why);
}

enum bag_http_outcome bag_http_get_model_ready(struct bag_http_request *request)
{
    const struct bag_http_target *target = &request->target;
    const struct bag_model *model =
        bag_snapshot_find(request->target.snapshot, target->name, target->version);
    bool stops = bag_http_is_stopping(request);
    if (!model || model->is_unloaded) {
        bag_http_target_look_up(target, &request->reply);
        return BAG_HTTP_DONE;
    }
    char fault[BAG_PROBLEM_TEXT_BYTES];
    bool is_faulty = bag_http_find_fault(model, fault, sizeof fault);
    bool ready = !stops && model->state == BAG_MODEL_READY && !is_faulty;
    const char *why = ready ? NULL : stops ? bag_http_stopping : is_faulty ? fault : model->reason;
    return answer_readiness(request, target->name, ready, stops, why);
}

/* ---- the server ------------------------------------------------------------------------------ */

enum bag_http_outcome bag_http_get_root(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    const bool metrics = service->metrics.on;
    const bool console = service->config->options.console == BAG_SWITCH_ON;
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("name", "bagserve"), BAG_KEY("version", BAG_VERSION),
                   BAG_KEY("isa", bag_isa_names[bag_isa_used()]));
    bag_json_open(&json, "links", '{');
    BAG_JSON_WRITE(
        &json, BAG_KEY("server", "/v2"), BAG_KEY("live", "/v2/health/live"),
        BAG_KEY("ready", "/v2/health/ready"), BAG_KEY("models", "/v2/models"),
        BAG_KEY("openapi", "/openapi.json"), BAG_KEY_IF(metrics, "stats", "/v2/models/stats"),
        BAG_KEY_IF(metrics, "metrics", "/metrics"), BAG_KEY_IF(console, "console", "/console"));
    answer(request, bag_json_end(&json));
    request->reply.varies_by_accept = console;
    return BAG_HTTP_DONE;
}

enum bag_http_outcome bag_http_get_openapi(struct bag_http_request *request)
{
    return answer(request, strdup(bag_openapi->text));
}

enum bag_http_outcome bag_http_get_server(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    const char *extensions[5] = {"binary_tensor_data", "model_configuration"};
    struct bag_json_writer json = {.is_pretty = false};
    size_t count = 2;
    if (service->metrics.on)
        extensions[count++] = "statistics";
    if (service->config->options.model_control != BAG_MODEL_CONTROL_NONE) {
        extensions[count++] = "model_repository";
        extensions[count++] = "model_repository(unload_dependents)";
    }
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("name", "bagserve"), BAG_KEY("version", BAG_VERSION));
    bag_json_texts(&json, "extensions", extensions, count);
    BAG_JSON_WRITE(&json, BAG_KEY("instance", (const char *)service->shards->instance),
                   BAG_KEY("generation", request->target.snapshot->generation));
    return answer(request, bag_json_end(&json));
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Limits up to which the loop answers: number of versions and of features to describe, and size of
 * the body. More would take longer than a fraction of an iteration. */
#define FEW_VERSIONS   64
#define FEW_FEATURES   16
#define FEW_BODY_BYTES 4096

/* Fills in the reply directly if `is_short`, otherwise on a worker. */
static enum bag_http_outcome make(struct bag_http_request *request, bool is_short,
                                  void (*make_reply)(struct bag_http_request *))
{
    if (!is_short)
        return bag_http_request_on_worker(request, make_reply);
    make_reply(request);
    return BAG_HTTP_DONE;
}

/* Fills in a reply about all models. */
static enum bag_http_outcome describe_all(struct bag_http_request *request,
                                          void (*make_reply)(struct bag_http_request *))
{
    bool is_short =
        request->target.snapshot->count <= FEW_VERSIONS && request->body_bytes <= FEW_BODY_BYTES;
    return make(request, is_short, make_reply);
}

/* Fills the reply with the names of all models in the configured order, each once. */
static void make_models(struct bag_http_request *request)
{
    const struct bag_snapshot *snapshot = request->target.snapshot;
    struct bag_json_writer json = {.is_pretty = false};
    bool *listed = calloc(snapshot->count + 1, sizeof *listed); /* by a name's first version */
    const char **names = malloc((snapshot->count + 1) * sizeof *names);
    size_t count = 0;
    for (size_t i = 0; names && listed && i < snapshot->count; i++) {
        size_t versions;
        const char *name = snapshot->listed[i]->model->name;
        size_t first =
            (size_t)(bag_snapshot_versions(snapshot, name, &versions) - snapshot->models);
        if (!listed[first])
            names[count++] = name;
        listed[first] = true;
    }
    json.text.failed = !names || !listed;
    bag_json_open(&json, NULL, '{');
    bag_json_texts(&json, "models", names, count);
    answer(request, bag_json_end(&json));
    free(names);
    free(listed);
}

enum bag_http_outcome bag_http_get_models(struct bag_http_request *request)
{
    return describe_all(request, make_models);
}

/* Returns the version policy of the highest version. */
static struct bag_version_policy find_policy(struct bag_model *const *models, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        if (models[i]->source)
            return bag_source_policy(models[i]->source);
    }
    return (struct bag_version_policy){.kind = BAG_VERSIONS_ALL};
}

/* Answers with the document that `describe` makes of the model in the path, which must exist. */
static void answer_model(struct bag_http_request *request,
                         char *(*describe)(const struct bag_model *,
                                           const struct bag_http_versions *))
{
    const struct bag_snapshot *snapshot = request->target.snapshot;
    const struct bag_model *model =
        bag_snapshot_find(snapshot, request->target.name, request->target.version);
    size_t count;
    struct bag_model *const *models = bag_snapshot_versions(snapshot, model->name, &count);
    const char **ready = malloc(count * sizeof *ready);
    struct bag_http_versions versions = {.ready = ready, .policy = find_policy(models, count)};
    for (size_t i = 0; ready && i < count; i++) {
        if (models[i]->state == BAG_MODEL_READY)
            ready[versions.num_ready++] = models[i]->version;
    }
    answer(request, ready ? describe(model, &versions) : NULL);
    free(ready);
}

/* The metadata contains the last update of the rows, so it must not be cached if rows may
 * change. */
static void make_model(struct bag_http_request *request)
{
    answer_model(request, bag_http_describe_model);
    request->reply.no_store = request->context->service->updates != NULL;
}

static void make_config(struct bag_http_request *request)
{
    answer_model(request, bag_http_describe_config);
}

/* Answers with a document about the model in the path, which the loop makes if it is short. */
static enum bag_http_outcome describe_model(struct bag_http_request *request,
                                            void (*make_reply)(struct bag_http_request *))
{
    const struct bag_model *model = bag_http_target_look_up(&request->target, &request->reply);
    size_t count;
    if (!model)
        return BAG_HTTP_DONE;
    bag_snapshot_versions(request->target.snapshot, model->name, &count);
    return make(request, model->num_features <= FEW_FEATURES && count <= FEW_VERSIONS, make_reply);
}

enum bag_http_outcome bag_http_get_model(struct bag_http_request *request)
{
    return describe_model(request, make_model);
}

enum bag_http_outcome bag_http_get_model_config(struct bag_http_request *request)
{
    return describe_model(request, make_config);
}

/* Describes the progress of a version that is being loaded, or whose table is being read again.
 * Returns false if there is none. */
static bool describe_loading(const struct bag_model *model, const struct bag_load_view *view,
                             char *text, size_t room)
{
    bool is_current =
        strcmp(model->name, view->name) == 0 && strcmp(model->version, view->version) == 0;
    if (view->total_bytes == 0 || (model->state != BAG_MODEL_LOADING && !is_current))
        return false;
    snprintf(text, room, "%s: %s of %s are read, about %.0f s left",
             is_current ? "is being loaded" : "waits for others of its change",
             bag_format_bytes(view->done_bytes).text, bag_format_bytes(view->total_bytes).text,
             view->left_s);
    return true;
}

/* A server that stops shows all its models as UNLOADING. */
void bag_http_find_state(const struct bag_listed *listed, bool stops,
                         const struct bag_load_view *view, struct bag_http_model_state *found)
{
    const struct bag_model *model = listed->model;
    bool loads = !stops && describe_loading(model, view, found->text, sizeof found->text);
    bool is_faulty =
        !stops && !loads && bag_http_find_fault(model, found->text, sizeof found->text);
    found->state = stops ? BAG_MODEL_UNLOADING : is_faulty ? BAG_MODEL_UNAVAILABLE : model->state;
    found->reason = stops                ? bag_http_stopping
                    : loads || is_faulty ? found->text
                    : listed->remark     ? listed->remark
                                         : model->reason;
}

void bag_http_write_state(struct bag_json_writer *json, const struct bag_model *model,
                          const struct bag_http_model_state *found)
{
    BAG_JSON_WRITE(json, BAG_KEY("name", model->name), BAG_KEY("version", model->version),
                   BAG_KEY("state", bag_model_state_names[found->state]),
                   BAG_KEY("reason", found->reason));
}

/* Fills the reply with the state of every version, as Triton's index of its repository. */
static void make_index(struct bag_http_request *request)
{
    const struct bag_snapshot *snapshot = request->target.snapshot;
    struct bag_json_writer json = {.is_pretty = false};
    bool stops = bag_http_is_stopping(request), ready_only;
    struct bag_problem problem;
    struct bag_load_view view;
    if (!bag_v2_index_read(request->body ? request->body : "", request->body_bytes, &ready_only,
                           &problem)) {
        bag_http_reply_problem(&request->reply, &problem);
        return;
    }
    bag_load_status_read(request->context->service->metrics.loading, &view);
    bag_json_open(&json, NULL, '[');
    for (size_t i = 0; i < snapshot->count; i++) {
        struct bag_http_model_state found;
        bag_http_find_state(snapshot->listed[i], stops, &view, &found);
        if (ready_only && found.state != BAG_MODEL_READY)
            continue;
        bag_json_open(&json, NULL, '{');
        bag_http_write_state(&json, snapshot->listed[i]->model, &found);
        bag_json_close(&json);
    }
    bag_http_answer_now(request, bag_json_end(&json));
}

enum bag_http_outcome bag_http_post_index(struct bag_http_request *request)
{
    return describe_all(request, make_index);
}

/* ---- metrics and statistics ------------------------------------------------------------------ */

/* Fills in the error reply if metrics are off. */
bool bag_http_are_metrics_on(struct bag_http_request *request)
{
    bool on = request->context->service->metrics.on;
    if (!on)
        bag_http_reply_error(&request->reply, BAG_ERROR_NOT_FOUND,
                             "metrics are switched off (metrics)");
    return on;
}

/* Returns whether the listener of the request shows metrics. With tokens every listener does,
 * because the token of the request was checked for the scope read. */
static bool shows_metrics(const struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    bool is_private = service->config->options.metrics == BAG_METRICS_PRIVATE;
    return !is_private || service->tokens || !request->context->infers;
}

bool bag_http_are_metrics_here(struct bag_http_request *request)
{
    if (shows_metrics(request))
        return true;
    bag_http_reply_error(&request->reply, BAG_ERROR_WRONG_PORT,
                         "metrics are not for this port (metrics private); ask the one for admin "
                         "(admin_port)");
    return false;
}

static void make_metrics(struct bag_http_request *request)
{
    char *text = bag_expose_prometheus(&request->context->service->metrics,
                                       request->target.snapshot, BAG_VERSION);
    bag_http_answer_now(request, text);
    request->reply.type = text ? BAG_PROMETHEUS_TYPE : NULL;
}

enum bag_http_outcome bag_http_get_metrics(struct bag_http_request *request)
{
    struct bag_workers *workers = request->context->engine.workers;
    if (!bag_http_are_metrics_on(request) || !bag_http_are_metrics_here(request))
        return BAG_HTTP_DONE;
    atomic_store(&request->context->service->metrics.busy_workers,
                 workers->count - bag_workers_idle(workers));
    return bag_http_request_on_worker(request, make_metrics);
}

/* Answers with the statistics of the models that answer. */
static void answer_statistics(struct bag_http_request *request, struct bag_model *const *models,
                              size_t count)
{
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    bag_json_open(&json, "model_stats", '[');
    for (size_t i = 0; i < count; i++) {
        if (models[i]->state == BAG_MODEL_READY)
            bag_expose_statistics(&request->context->service->metrics, models[i],
                                  shows_metrics(request), &json);
    }
    bag_http_answer_now(request, bag_json_end(&json));
}

static void make_all_statistics(struct bag_http_request *request)
{
    answer_statistics(request, request->target.snapshot->models, request->target.snapshot->count);
}

enum bag_http_outcome bag_http_get_all_statistics(struct bag_http_request *request)
{
    return bag_http_are_metrics_on(request)
               ? bag_http_request_on_worker(request, make_all_statistics)
               : BAG_HTTP_DONE;
}

/* Returns the versions of the model in the path, or the one that the path names. The model must
 * exist. */
static struct bag_model *const *find_versions(const struct bag_http_request *request, size_t *count)
{
    const struct bag_http_target *target = &request->target;
    const struct bag_model *model =
        bag_snapshot_find(request->target.snapshot, target->name, target->version);
    struct bag_model *const *models =
        bag_snapshot_versions(request->target.snapshot, model->name, count);
    if (!*target->version)
        return models;
    while (*models != model)
        models++;
    *count = 1;
    return models;
}

static void make_statistics(struct bag_http_request *request)
{
    size_t count;
    struct bag_model *const *models = find_versions(request, &count);
    answer_statistics(request, models, count);
}

enum bag_http_outcome bag_http_get_statistics(struct bag_http_request *request)
{
    if (!bag_http_are_metrics_on(request) ||
        !bag_http_target_look_up(&request->target, &request->reply))
        return BAG_HTTP_DONE;
    return bag_http_request_on_worker(request, make_statistics);
}

static void make_model_metrics(struct bag_http_request *request)
{
    size_t count;
    struct bag_model *const *models = find_versions(request, &count);
    char *text = bag_expose_models(&request->context->service->metrics, models, count);
    bag_http_answer_now(request, text);
    request->reply.type = text ? BAG_PROMETHEUS_TYPE : NULL;
}

enum bag_http_outcome bag_http_get_model_metrics(struct bag_http_request *request)
{
    if (!bag_http_are_metrics_on(request) || !bag_http_are_metrics_here(request) ||
        !bag_http_target_look_up(&request->target, &request->reply))
        return BAG_HTTP_DONE;
    return bag_http_request_on_worker(request, make_model_metrics);
}
