/* Handlers of metadata and statistics: what the server is, whether it is ready, which models it
 * has, and what it has counted. All answer at once. */
#include "kernels/dispatch.h"
#include "proto/v2_documents.h"
#include "proto/v2_request.h"
#include "request.h"
#include "server/metrics/expose.h"

#include <stdlib.h>
#include <string.h>

/* The document becomes the reply; NULL: there was no memory for it. */
static enum bag_http_outcome answer(struct bag_http_request *request, int status, char *document)
{
    bag_http_reply_json(&request->reply, status, document);
    return BAG_HTTP_DONE;
}

/* ---- the server ------------------------------------------------------------------------------ */

enum bag_http_outcome bag_http_get_root(struct bag_http_request *request)
{
    const char *isa = bag_isa_names[bag_isa_used()];
    bool metrics = request->context->service->metrics.on;
    return answer(request, 200, bag_v2_describe_root(BAG_VERSION, isa, metrics));
}

enum bag_http_outcome bag_http_get_openapi(struct bag_http_request *request)
{
    return answer(request, 200, strdup(bag_openapi));
}

enum bag_http_outcome bag_http_get_server(struct bag_http_request *request)
{
    bool metrics = request->context->service->metrics.on;
    return answer(request, 200, bag_v2_describe_server(BAG_VERSION, metrics));
}

enum bag_http_outcome bag_http_get_live(struct bag_http_request *request)
{
    return answer(request, 200, bag_v2_describe_health("live", true, NULL));
}

/* What every model is, all being of one state: they become ready together, and leave together. */
static const struct {
    const char *word, *why_not; /* the index's; why nothing is ready, or NULL */
    enum bag_error error;       /* where nothing is ready */
} states[] = {
    [BAG_SERVICE_LOADING] = {"LOADING", "the tables are still being loaded", BAG_ERROR_NOT_READY},
    [BAG_SERVICE_READY] = {.word = "READY"},
    [BAG_SERVICE_DRAINING] = {"UNLOADING", "the server is stopping", BAG_ERROR_DRAINING},
};

/* Answers with what was described for that state. */
static enum bag_http_outcome answer_readiness(struct bag_http_request *request,
                                              enum bag_service_state state, char *document)
{
    if (!states[state].why_not)
        return answer(request, 200, document);
    bag_http_reply_failure(&request->reply, states[state].error, document);
    return BAG_HTTP_DONE;
}

enum bag_http_outcome bag_http_get_ready(struct bag_http_request *request)
{
    const enum bag_service_state state = request->context->service->state; /* it may change */
    const char *why = states[state].why_not;
    return answer_readiness(request, state, bag_v2_describe_health("ready", !why, why));
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Whether an earlier entry has the name of entry i: every version is an entry. */
static bool is_repeated(const struct bag_config *config, size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (strcmp(config->models[j].name, config->models[i].name) == 0)
            return true;
    }
    return false;
}

/* Names as configured, which are known before the tables are loaded. */
enum bag_http_outcome bag_http_get_models(struct bag_http_request *request)
{
    const struct bag_config *config = request->context->service->config;
    const char **names = malloc((config->num_models + 1) * sizeof *names);
    size_t count = 0;
    for (size_t i = 0; names && i < config->num_models; i++) {
        if (!is_repeated(config, i))
            names[count++] = config->models[i].name;
    }
    answer(request, 200, names ? bag_v2_describe_models(names, count) : NULL);
    free(names);
    return BAG_HTTP_DONE;
}

/* The features as documents show them; on the heap, NULL without memory. */
static struct bag_v2_feature *describe_features(const struct bag_model *model)
{
    struct bag_v2_feature *features = malloc(model->num_features * sizeof *features);
    for (size_t i = 0; features && i < model->num_features; i++) {
        const struct bag_feature *feature = &model->features[i];
        features[i] = (struct bag_v2_feature){
            .name = feature->name,
            .table = feature->table,
            .weights_dtype = feature->memory->table.dtype,
            .output_dtype = feature->rules.output_dtype,
            .row_shape = feature->projection ? &feature->projection->matrix.shape[1]
                                             : &feature->memory->shape[1],
            .row_rank = feature->projection ? 1 : feature->memory->rank - 1,
            .row_elements = bag_feature_columns(feature),
            .rules = &feature->rules};
    }
    return features;
}

/* Answers with what `describe` makes of the model that the path names. */
static enum bag_http_outcome describe_model(struct bag_http_request *request,
                                            char *(*describe)(const struct bag_v2_model *))
{
    const struct bag_service *service = request->context->service;
    const struct bag_model *model = bag_http_find_model(service, &request->target, &request->reply);
    if (!model)
        return BAG_HTTP_DONE;
    size_t count;
    const struct bag_model *first = bag_registry_versions(&service->registry, model->name, &count);
    const char **versions = malloc(count * sizeof *versions);
    struct bag_v2_feature *features = describe_features(model);
    for (size_t i = 0; versions && i < count; i++)
        versions[i] = first[i].version;
    struct bag_v2_model description = {.name = model->name,
                                       .versions = versions,
                                       .num_versions = count,
                                       .features = features,
                                       .num_features = model->num_features,
                                       .is_collection = bag_model_is_collection(model)};
    answer(request, 200, versions && features ? describe(&description) : NULL);
    free(features);
    free(versions);
    return BAG_HTTP_DONE;
}

enum bag_http_outcome bag_http_get_model(struct bag_http_request *request)
{
    return describe_model(request, bag_v2_describe_model);
}

enum bag_http_outcome bag_http_get_model_config(struct bag_http_request *request)
{
    return describe_model(request, bag_v2_describe_config);
}

enum bag_http_outcome bag_http_get_model_ready(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    const enum bag_service_state state = service->state; /* it may change */
    const char *why = states[state].why_not;
    const struct bag_model *model = bag_http_find_model(service, &request->target, &request->reply);
    if (!model && request->reply.error == BAG_ERROR_NOT_FOUND)
        return BAG_HTTP_DONE;
    bag_http_reply_drop(&request->reply); /* the 503 while loading has a form of its own here */
    return answer_readiness(request, state,
                            bag_v2_describe_readiness(request->target.model, !why, why));
}

enum bag_http_outcome bag_http_post_index(struct bag_http_request *request)
{
    const struct bag_config *config = request->context->service->config;
    const enum bag_service_state state = request->context->service->state; /* it may change */
    const char *why = states[state].why_not;
    struct bag_problem problem;
    bool ready_only;
    if (!bag_v2_index_read(request->body ? request->body : "", request->body_bytes, &ready_only,
                           &problem)) {
        bag_http_reply_problem(&request->reply, &problem);
        return BAG_HTTP_DONE;
    }
    size_t count = ready_only && why ? 0 : config->num_models;
    struct bag_v2_index_entry *entries = malloc((count + 1) * sizeof *entries);
    for (size_t i = 0; entries && i < count; i++)
        entries[i] = (struct bag_v2_index_entry){.name = config->models[i].name,
                                                 .version = config->models[i].version,
                                                 .state = states[state].word,
                                                 .reason = why ? why : ""};
    answer(request, 200, entries ? bag_v2_describe_index(entries, count) : NULL);
    free(entries);
    return BAG_HTTP_DONE;
}

/* ---- metrics and statistics ------------------------------------------------------------------ */

/* While tables load, the registry is the loader's. */
static size_t num_models(const struct bag_service *service)
{
    return service->state == BAG_SERVICE_LOADING ? 0 : service->registry.count;
}

/* Whether metrics are counted; otherwise the reply says why not. */
static bool are_metrics_on(struct bag_http_request *request)
{
    bool on = request->context->service->metrics.on;
    if (!on)
        bag_http_reply_error(&request->reply, BAG_ERROR_NOT_FOUND,
                             "metrics are switched off (metrics)");
    return on;
}

enum bag_http_outcome bag_http_get_metrics(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    if (!are_metrics_on(request))
        return BAG_HTTP_DONE;
    char *text = bag_expose_prometheus(&service->metrics, num_models(service), BAG_VERSION);
    answer(request, 200, text);
    request->reply.prometheus = text != NULL;
    return BAG_HTTP_DONE;
}

/* The statistics of models that are neighbours in the registry. */
static enum bag_http_outcome answer_statistics(struct bag_http_request *request,
                                               const struct bag_model *models, size_t count)
{
    struct bag_v2_statistics *statistics = malloc((count + 1) * sizeof *statistics);
    for (size_t i = 0; statistics && i < count; i++)
        bag_expose_statistics(&request->context->service->metrics, &models[i], &statistics[i]);
    answer(request, 200, statistics ? bag_v2_describe_statistics(statistics, count) : NULL);
    free(statistics);
    return BAG_HTTP_DONE;
}

enum bag_http_outcome bag_http_get_all_statistics(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    if (!are_metrics_on(request))
        return BAG_HTTP_DONE;
    return answer_statistics(request, service->registry.models, num_models(service));
}

/* All versions of a model, or the one that the path names. */
enum bag_http_outcome bag_http_get_statistics(struct bag_http_request *request)
{
    const struct bag_service *service = request->context->service;
    const struct bag_model *model;
    size_t count = 1;
    if (!are_metrics_on(request) ||
        !(model = bag_http_find_model(service, &request->target, &request->reply)))
        return BAG_HTTP_DONE;
    if (!*request->target.version)
        model = bag_registry_versions(&service->registry, model->name, &count);
    return answer_statistics(request, model, count);
}
