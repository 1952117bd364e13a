/* Handlers of health checks: whether the server is alive, and whether it and its models are ready.
 */
#include "metadata.h"
#include "server/tables/map.h"

#include <stdio.h>

enum bag_http_outcome bag_http_answer_now(struct bag_http_request *request, char *document)
{
    bag_http_reply_json(&request->reply, 200, document);
    request->reply.no_store = true;
    return BAG_HTTP_DONE;
}

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

/* Answers with the document: 503 if the server or model is not ready, or the server drains. */
static enum bag_http_outcome answer_readiness(struct bag_http_request *request, bool is_ready,
                                              bool stops, char *document)
{
    if (is_ready)
        return bag_http_answer_now(request, document);
    bag_http_reply_failure(&request->reply, stops ? BAG_ERROR_DRAINING : BAG_ERROR_NOT_READY,
                           document);
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
    const struct bag_model *not_ready = request->snapshot->not_ready;
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
    if (!why && bag_shards_find_unavailable(service->shards, needs_shards, request->snapshot, text,
                                            sizeof text))
        why = text;
    return answer_readiness(
        request, !why, stops,
        BAG_JSON_DOCUMENT(BAG_KEY("ready", (bool)!why), BAG_KEY_IF(why, "error", why)));
}

enum bag_http_outcome bag_http_get_model_ready(struct bag_http_request *request)
{
    const struct bag_http_target *target = &request->target;
    const struct bag_model *model =
        bag_snapshot_find(request->snapshot, target->model, target->version);
    bool stops = bag_http_is_stopping(request);
    if (!model || model->is_unloaded) {
        bag_http_find_model(request->snapshot, target, &request->reply);
        return BAG_HTTP_DONE;
    }
    char fault[BAG_PROBLEM_TEXT_BYTES];
    bool is_faulty = bag_http_find_fault(model, fault, sizeof fault);
    bool ready = !stops && model->state == BAG_MODEL_READY && !is_faulty;
    const char *why = ready ? NULL : stops ? bag_http_stopping : is_faulty ? fault : model->reason;
    return answer_readiness(request, ready, stops,
                            BAG_JSON_DOCUMENT(BAG_KEY("name", (const char *)target->model),
                                              BAG_KEY("ready", ready),
                                              BAG_KEY_IF(why, "error", why)));
}
