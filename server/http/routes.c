/* Paths -> routes; see routes.h. */
#include "routes.h"

#include "proto/text.h"
#include "request.h"

#include <stdio.h>
#include <string.h>

/* Parts of a route: its method, the function that is called before the body, and for some its
 * handler; then scopes. */
#define GET     BAG_HTTP_GET, NULL
#define POST    BAG_HTTP_POST, bag_http_accept_small
#define INFER   BAG_HTTP_POST, bag_http_accept_infer, bag_http_post_infer, BAG_SCOPE_INFER
#define ROWS    BAG_HTTP_POST, bag_http_accept_rows, bag_http_post_rows, BAG_SCOPE_ADMIN
#define CONTROL BAG_HTTP_POST, bag_http_accept_control
#define ADMIN   BAG_SCOPE_ADMIN
#define READ    BAG_SCOPE_READ
#define OPEN    BAG_HTTP_NO_SCOPE
/* A route for people, which openapi.json does not describe. */
#define PAGE GET

static const struct bag_http_route routes[] = {
    {"/", GET, bag_http_get_root, READ},
    {"/console", PAGE, bag_http_get_console, OPEN},
    {"/console/{part}", PAGE, bag_http_get_console_part, OPEN},
    {"/openapi.json", GET, bag_http_get_openapi, READ},
    {"/metrics", GET, bag_http_get_metrics, READ},
    {"/v2", GET, bag_http_get_server, READ},
    {"/v2/health/live", GET, bag_http_get_live, OPEN},
    {"/v2/health/ready", GET, bag_http_get_ready, OPEN},
    {"/v2/server/history", GET, bag_http_get_history, READ},
    {"/v2/server/models", GET, bag_http_get_model_list, READ},
    {"/v2/server/options", GET, bag_http_get_options, READ},
    {"/v2/models", GET, bag_http_get_models, READ},
    {"/v2/models/stats", GET, bag_http_get_all_statistics, READ},
    {"/v2/models/{model}", GET, bag_http_get_model, READ},
    {"/v2/models/{model}/ready", GET, bag_http_get_model_ready, READ},
    {"/v2/models/{model}/config", GET, bag_http_get_model_config, READ},
    {"/v2/models/{model}/stats", GET, bag_http_get_statistics, READ},
    {"/v2/models/{model}/metrics", GET, bag_http_get_model_metrics, READ},
    {"/v2/models/{model}/infer", INFER},
    {"/v2/models/{model}/rows", ROWS},
    {"/v2/models/{model}/versions/{version}", GET, bag_http_get_model, READ},
    {"/v2/models/{model}/versions/{version}/ready", GET, bag_http_get_model_ready, READ},
    {"/v2/models/{model}/versions/{version}/config", GET, bag_http_get_model_config, READ},
    {"/v2/models/{model}/versions/{version}/stats", GET, bag_http_get_statistics, READ},
    {"/v2/models/{model}/versions/{version}/metrics", GET, bag_http_get_model_metrics, READ},
    {"/v2/models/{model}/versions/{version}/infer", INFER},
    {"/v2/repository/index", POST, bag_http_post_index, READ},
    {"/v2/repository/load", CONTROL, bag_http_post_load_group, ADMIN},
    {"/v2/repository/models/{model}/load", CONTROL, bag_http_post_load, ADMIN},
    {"/v2/repository/models/{model}/unload", CONTROL, bag_http_post_unload, ADMIN},
};

/* Stores a segment as the model's name or version. Returns false if it cannot be one. Handlers read
 * other segments. */
static bool capture(const char *what, const char *segment, size_t bytes,
                    struct bag_http_target *target)
{
    if (strncmp(what, "{model}", 7) == 0)
        return bytes && bag_url_decode(segment, bytes, target->model, sizeof target->model);
    if (strncmp(what, "{version}", 9) != 0)
        return bytes > 0;
    return bytes && bag_url_decode(segment, bytes, target->version, sizeof target->version);
}

/* Returns whether a path matches a pattern, and stores its model and version. */
static bool match(const char *pattern, const char *path, struct bag_http_target *target)
{
    target->model[0] = target->version[0] = 0;
    while (*pattern) {
        if (*pattern != '{') {
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        size_t bytes = strcspn(path, "/");
        if (!capture(pattern, path, bytes, target))
            return false;
        pattern += strcspn(pattern, "}") + 1;
        path += bytes;
    }
    return !*path;
}

/* The value of Allow by the method of a path. */
static const char *const allow_of[] = {
    [BAG_HTTP_GET] = "GET, HEAD, OPTIONS",
    [BAG_HTTP_POST] = "POST, OPTIONS",
};

/* Returns whether a route has a method. */
static bool has_method(const struct bag_http_route *route, const char *name)
{
    if (route->method == BAG_HTTP_POST)
        return strcmp(name, "POST") == 0;
    return strcmp(name, "GET") == 0 || strcmp(name, "HEAD") == 0;
}

const struct bag_http_route *bag_http_route(const char *method, const char *path,
                                            struct bag_http_target *target,
                                            struct bag_http_reply *reply)
{
    const struct bag_http_route *route = routes, *end = routes + sizeof routes / sizeof routes[0];
    const bool is_options = strcmp(method, "OPTIONS") == 0;
    const bool is_server = is_options && strcmp(path, "*") == 0;
    /* No path has two routes: the first pattern that matches decides. */
    while (!is_server && route < end && !match(route->pattern, path, target))
        route++;
    if (route == end) {
        bag_http_reply_error(
            reply, BAG_ERROR_NOT_FOUND, "unknown path '%s'; %s", bag_quote(path, strlen(path)).text,
            strncmp(path, "/v1/", 4) == 0 ? "use the V2 protocol: POST /v2/models/NAME/infer"
                                          : "GET / lists what there is");
        return NULL;
    }
    if (!is_server && has_method(route, method))
        return route;
    const char *allow = is_server ? "GET, HEAD, POST, OPTIONS" : allow_of[route->method];
    if (is_options)
        bag_http_reply_empty(reply, 204);
    else
        bag_http_reply_error(
            reply, BAG_ERROR_METHOD_NOT_ALLOWED, "method %s cannot be used with %s; use %s",
            bag_quote(method, strlen(method)).text, bag_quote(path, strlen(path)).text, allow);
    reply->allow = allow;
    return NULL;
}

/* Writes the versions that are served, as "version 3 is served" or "versions 1, 2 and 5 are
 * served". */
static void list_served(struct bag_model *const *models, size_t count, char *text, size_t room)
{
    size_t ready = 0, listed = 0;
    for (size_t i = 0; i < count; i++)
        ready += models[i]->state == BAG_MODEL_READY;
    snprintf(text, room, ready == 1 ? "version" : ready ? "versions" : "none");
    for (size_t i = 0; i < count && strlen(text) + 48 < room; i++) {
        if (models[i]->state != BAG_MODEL_READY)
            continue;
        listed++;
        bag_text_add(text, room, "%s %s",
                     listed == 1       ? ""
                     : listed == ready ? " and"
                                       : ",",
                     models[i]->version);
    }
    bag_text_add(text, room, ready <= 1 ? " is served" : " are served");
}

/* Fills the reply for a version that does not exist, or that is not served although others are.
 * Returns NULL. */
static const struct bag_model *reject_version(const struct bag_snapshot *snapshot,
                                              const struct bag_http_target *target,
                                              const char *reason, struct bag_http_reply *reply)
{
    struct bag_quoted name = bag_quote(target->model, strlen(target->model));
    struct bag_quoted version = bag_quote(target->version, strlen(target->version));
    size_t count;
    char served[160];
    struct bag_model *const *models = bag_snapshot_versions(snapshot, target->model, &count);
    list_served(models, count, served, sizeof served);
    if (*reason)
        bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND,
                             "model '%s' version '%s' is not served (%s); %s", name.text,
                             version.text, reason, served);
    else
        bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND, "model '%s' has no version '%s'; %s",
                             name.text, version.text, served);
    return NULL;
}

/* Fills the reply for a model that exists but is not READY. Returns NULL. */
static const struct bag_model *reject_state(const struct bag_snapshot *snapshot,
                                            const struct bag_http_target *target,
                                            const struct bag_model *model,
                                            struct bag_http_reply *reply)
{
    struct bag_quoted name = bag_quote(model->name, strlen(model->name));
    const struct bag_model *other = bag_snapshot_find(snapshot, model->name, "");
    if (model->is_unloaded && !*target->version)
        bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND, "model '%s' is unloaded", name.text);
    else if (model->is_unloaded ||
             (model->state == BAG_MODEL_UNAVAILABLE && other->state == BAG_MODEL_READY))
        return reject_version(snapshot, target, model->reason, reply);
    else if (model->state == BAG_MODEL_LOADING)
        bag_http_reply_error(reply, BAG_ERROR_NOT_READY, "model '%s' is still being loaded",
                             name.text);
    else
        bag_http_reply_error(reply, BAG_ERROR_NOT_READY, "model '%s' version %s is %s: %s",
                             name.text, model->version, bag_model_state_names[model->state],
                             model->reason);
    return NULL;
}

const struct bag_model *bag_http_find_model(const struct bag_snapshot *snapshot,
                                            const struct bag_http_target *target,
                                            struct bag_http_reply *reply)
{
    const struct bag_model *model = bag_snapshot_find(snapshot, target->model, target->version);
    size_t versions;
    if (model)
        return model->state == BAG_MODEL_READY ? model
                                               : reject_state(snapshot, target, model, reply);
    if (bag_snapshot_versions(snapshot, target->model, &versions))
        return reject_version(snapshot, target, "", reply);
    bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND,
                         "unknown model '%s'; GET /v2/models lists the models",
                         bag_quote(target->model, strlen(target->model)).text);
    return NULL;
}

bool bag_http_route_cache_is_of(const struct bag_http_route_cache *cache,
                                const struct bag_snapshot *snapshot, const char *method,
                                const char *path)
{
    return cache->generation == snapshot->generation && strcmp(method, "POST") == 0 &&
           strcmp(path, cache->path) == 0;
}

void bag_http_route_cache_keep(struct bag_http_route_cache *cache,
                               const struct bag_snapshot *snapshot, const char *path,
                               const struct bag_http_route *route, const struct bag_model *model)
{
    if (strlen(path) >= sizeof cache->path)
        return;
    strcpy(cache->path, path);
    cache->generation = snapshot->generation;
    cache->route = route;
    cache->model = model;
}
