/* The describing handlers: what the server is, how it is, and which models it has. */
#include "kernels/dispatch.h"
#include "proto/v2_documents.h"
#include "proto/v2_request.h"
#include "routes.h"

#include <stdlib.h>
#include <string.h>

void bag_http_get_root(const struct bag_service *service, const struct bag_http_target *target,
                       struct bag_http_reply *reply)
{
    (void)target;
    bag_http_reply_json(
        reply, 200,
        bag_v2_describe_root(BAG_VERSION, bag_isa_names[bag_isa_used()], service->metrics.on));
}

void bag_http_get_openapi(const struct bag_service *service, const struct bag_http_target *target,
                          struct bag_http_reply *reply)
{
    (void)service, (void)target;
    bag_http_reply_json(reply, 200, strdup(bag_openapi));
}

void bag_http_get_server(const struct bag_service *service, const struct bag_http_target *target,
                         struct bag_http_reply *reply)
{
    (void)target;
    bag_http_reply_json(reply, 200, bag_v2_describe_server(BAG_VERSION, service->metrics.on));
}

void bag_http_get_live(const struct bag_service *service, const struct bag_http_target *target,
                       struct bag_http_reply *reply)
{
    (void)service, (void)target;
    bag_http_reply_json(reply, 200, bag_v2_describe_health("live", true, NULL));
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

/* Replies with what was described for that state. */
static void reply_readiness(struct bag_http_reply *reply, enum bag_service_state state,
                            char *document)
{
    if (states[state].why_not)
        bag_http_reply_failure(reply, states[state].error, document);
    else
        bag_http_reply_json(reply, 200, document);
}

void bag_http_get_ready(const struct bag_service *service, const struct bag_http_target *target,
                        struct bag_http_reply *reply)
{
    const enum bag_service_state state = service->state; /* it may change meanwhile */
    const char *why = states[state].why_not;
    (void)target;
    reply_readiness(reply, state, bag_v2_describe_health("ready", !why, why));
}

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
void bag_http_get_models(const struct bag_service *service, const struct bag_http_target *target,
                         struct bag_http_reply *reply)
{
    const struct bag_config *config = service->config;
    const char **names = malloc((config->num_models + 1) * sizeof *names);
    size_t count = 0;
    (void)target;
    for (size_t i = 0; names && i < config->num_models; i++) {
        if (!is_repeated(config, i))
            names[count++] = config->models[i].name;
    }
    bag_http_reply_json(reply, 200, names ? bag_v2_describe_models(names, count) : NULL);
    free(names);
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

static void describe_model(const struct bag_service *service, const struct bag_http_target *target,
                           char *(*describe)(const struct bag_v2_model *),
                           struct bag_http_reply *reply)
{
    const struct bag_model *model = bag_http_find_model(service, target, reply);
    if (!model)
        return;
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
    bag_http_reply_json(reply, 200, versions && features ? describe(&description) : NULL);
    free(features);
    free(versions);
}

void bag_http_get_model(const struct bag_service *service, const struct bag_http_target *target,
                        struct bag_http_reply *reply)
{
    describe_model(service, target, bag_v2_describe_model, reply);
}

void bag_http_get_model_config(const struct bag_service *service,
                               const struct bag_http_target *target, struct bag_http_reply *reply)
{
    describe_model(service, target, bag_v2_describe_config, reply);
}

void bag_http_get_model_ready(const struct bag_service *service,
                              const struct bag_http_target *target, struct bag_http_reply *reply)
{
    const enum bag_service_state state = service->state; /* it may change meanwhile */
    const char *why = states[state].why_not;
    const struct bag_model *model = bag_http_find_model(service, target, reply);
    if (!model && reply->error == BAG_ERROR_NOT_FOUND)
        return;
    free(reply->body); /* of the 503 while loading, which this one says in its own form */
    reply_readiness(reply, state, bag_v2_describe_readiness(target->model, !why, why));
}

void bag_http_post_index(const struct bag_service *service, const struct bag_http_target *target,
                         struct bag_http_reply *reply)
{
    const struct bag_config *config = service->config;
    const enum bag_service_state state = service->state; /* it may change meanwhile */
    const char *why = states[state].why_not;
    struct bag_problem problem;
    bool ready_only;
    if (!bag_v2_index_read(target->body, target->body_bytes, &ready_only, &problem)) {
        bag_http_reply_problem(reply, &problem);
        return;
    }
    size_t count = ready_only && why ? 0 : config->num_models;
    struct bag_v2_index_entry *entries = malloc((count + 1) * sizeof *entries);
    for (size_t i = 0; entries && i < count; i++)
        entries[i] = (struct bag_v2_index_entry){.name = config->models[i].name,
                                                 .version = config->models[i].version,
                                                 .state = states[state].word,
                                                 .reason = why ? why : ""};
    bag_http_reply_json(reply, 200, entries ? bag_v2_describe_index(entries, count) : NULL);
    free(entries);
}
