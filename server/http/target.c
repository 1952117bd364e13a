/* Targets of requests; see target.h. */
#include "target.h"

#include "proto/text.h"

#include <stdio.h>
#include <string.h>

/* ---- what is held ---------------------------------------------------------------------------- */

void bag_http_target_hold(struct bag_http_targets *targets, struct bag_http_target *target)
{
    if (target->snapshot)
        return;
    target->snapshot = bag_snapshot_acquire(targets->reader);
    if (target->generation != target->snapshot->generation)
        target->model = target->remembered = NULL;
    target->generation = target->snapshot->generation;
}

void bag_http_target_leave(struct bag_http_targets *targets, struct bag_http_target *target)
{
    if (target->snapshot)
        bag_snapshot_release(targets->reader, target->snapshot);
    target->snapshot = NULL;
}

bool bag_http_target_is_replaced(const struct bag_http_targets *targets,
                                 const struct bag_http_target *target)
{
    struct bag_snapshot *now = bag_snapshot_acquire(targets->reader);
    bool is_replaced = bag_snapshot_find(now, target->name, target->version) != target->model;
    bag_snapshot_release(targets->reader, now);
    return is_replaced;
}

/* ---- the route of a path --------------------------------------------------------------------- */

/* Stores a segment as the name or the version. Returns false if it cannot be one. Handlers read
 * other segments. */
static bool capture(const char *what, const char *segment, size_t bytes,
                    struct bag_http_target *target)
{
    if (bytes == 0)
        return false;
    if (strncmp(what, "{model}", 7) == 0)
        return bag_url_decode(segment, bytes, target->name, sizeof target->name);
    return strncmp(what, "{version}", 9) != 0 ||
           bag_url_decode(segment, bytes, target->version, sizeof target->version);
}

/* Returns whether a path matches a pattern, and stores its name and version. */
static bool match(const char *pattern, const char *path, struct bag_http_target *target)
{
    target->name[0] = target->version[0] = 0;
    for (;;) {
        while (*pattern && *pattern != '{' && *pattern == *path)
            pattern++, path++;
        if (*pattern != '{')
            return *pattern == *path;
        const size_t bytes = strcspn(path, "/");
        if (!capture(pattern, path, bytes, target))
            return false;
        pattern = strchr(pattern, '}') + 1;
        path += bytes;
    }
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

/* Takes everything from the last target if it is that of this path. Only targets of POST are
 * remembered. */
static bool remember(const struct bag_http_targets *targets, struct bag_http_target *target,
                     const char *method, const char *path)
{
    const struct bag_http_target *last = &targets->last;
    if (last->generation != target->generation || strcmp(path, targets->last_path) != 0 ||
        strcmp(method, "POST") != 0)
        return false;
    target->route = last->route;
    memcpy(target->name, last->name, sizeof last->name);
    memcpy(target->version, last->version, sizeof last->version);
    target->remembered = last->model;
    return true;
}

bool bag_http_target_route(struct bag_http_targets *targets, struct bag_http_target *target,
                           const char *method, const char *path, struct bag_http_reply *reply)
{
    const struct bag_http_route *route = targets->routes;
    const bool is_options = strcmp(method, "OPTIONS") == 0;
    const bool is_server = is_options && strcmp(path, "*") == 0;
    target->path = path;
    if (remember(targets, target, method, path))
        return true;
    /* No path has two routes: the first pattern that matches decides. */
    while (!is_server && route->pattern && !match(route->pattern, path, target))
        route++;
    if (!route->pattern) {
        bag_http_reply_error(
            reply, BAG_ERROR_NOT_FOUND, "unknown path '%s'; %s", bag_quote(path, strlen(path)).text,
            strncmp(path, "/v1/", 4) == 0 ? "use the V2 protocol: POST /v2/models/NAME/infer"
                                          : "GET / lists what there is");
        return false;
    }
    if (!is_server && has_method(route, method)) {
        target->route = route;
        return true;
    }
    const char *allow = is_server ? "GET, HEAD, POST, OPTIONS" : allow_of[route->method];
    if (is_options)
        bag_http_reply_empty(reply, 204);
    else
        bag_http_reply_error(
            reply, BAG_ERROR_METHOD_NOT_ALLOWED, "method %s cannot be used with %s; use %s",
            bag_quote(method, strlen(method)).text, bag_quote(path, strlen(path)).text, allow);
    reply->allow = allow;
    return false;
}

/* ---- the model ------------------------------------------------------------------------------- */

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
    struct bag_quoted name = bag_quote(target->name, strlen(target->name));
    struct bag_quoted version = bag_quote(target->version, strlen(target->version));
    size_t count;
    char served[160];
    struct bag_model *const *models = bag_snapshot_versions(snapshot, target->name, &count);
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

const struct bag_model *bag_http_target_look_up(const struct bag_http_target *target,
                                                struct bag_http_reply *reply)
{
    const struct bag_snapshot *snapshot = target->snapshot;
    const struct bag_model *model = bag_snapshot_find(snapshot, target->name, target->version);
    size_t versions;
    if (model)
        return model->state == BAG_MODEL_READY ? model
                                               : reject_state(snapshot, target, model, reply);
    if (bag_snapshot_versions(snapshot, target->name, &versions))
        return reject_version(snapshot, target, "", reply);
    bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND,
                         "unknown model '%s'; GET /v2/models lists the models",
                         bag_quote(target->name, strlen(target->name)).text);
    return NULL;
}

const struct bag_model *bag_http_target_find(struct bag_http_targets *targets,
                                             struct bag_http_target *target,
                                             struct bag_http_reply *reply)
{
    if (target->model)
        return target->model;
    if (target->remembered)
        return target->model = target->remembered;
    target->model = bag_http_target_look_up(target, reply);
    if (target->model && strlen(target->path) < sizeof targets->last_path) {
        strcpy(targets->last_path, target->path);
        targets->last = *target;
    }
    return target->model;
}
