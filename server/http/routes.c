/* Paths -> routes; see routes.h. */
#include "routes.h"

#include "proto/text.h"
#include "request.h"
#include "server/system/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Methods, and what is asked before the body; scopes. */
#define GET     "GET, HEAD, OPTIONS", NULL
#define POST    "POST, OPTIONS", bag_http_accept_small
#define INFER   "POST, OPTIONS", bag_http_accept_infer, bag_http_post_infer, BAG_SCOPE_INFER
#define ROWS    "POST, OPTIONS", bag_http_accept_rows, bag_http_post_rows, BAG_SCOPE_ADMIN
#define CONTROL "POST, OPTIONS", bag_http_accept_control
#define ADMIN   BAG_SCOPE_ADMIN
#define READ    BAG_SCOPE_READ
#define OPEN    BAG_HTTP_NO_SCOPE

static const struct bag_http_route routes[] = {
    {"/", GET, bag_http_get_root, READ},
    {"/openapi.json", GET, bag_http_get_openapi, READ},
    {"/metrics", GET, bag_http_get_metrics, READ},
    {"/v2", GET, bag_http_get_server, READ},
    {"/v2/health/live", GET, bag_http_get_live, OPEN},
    {"/v2/health/ready", GET, bag_http_get_ready, OPEN},
    {"/v2/models", GET, bag_http_get_models, READ},
    {"/v2/models/stats", GET, bag_http_get_all_statistics, READ},
    {"/v2/models/{model}", GET, bag_http_get_model, READ},
    {"/v2/models/{model}/ready", GET, bag_http_get_model_ready, READ},
    {"/v2/models/{model}/config", GET, bag_http_get_model_config, READ},
    {"/v2/models/{model}/stats", GET, bag_http_get_statistics, READ},
    {"/v2/models/{model}/infer", INFER},
    {"/v2/models/{model}/rows", ROWS},
    {"/v2/models/{model}/versions/{version}", GET, bag_http_get_model, READ},
    {"/v2/models/{model}/versions/{version}/ready", GET, bag_http_get_model_ready, READ},
    {"/v2/models/{model}/versions/{version}/config", GET, bag_http_get_model_config, READ},
    {"/v2/models/{model}/versions/{version}/stats", GET, bag_http_get_statistics, READ},
    {"/v2/models/{model}/versions/{version}/infer", INFER},
    {"/v2/repository/index", POST, bag_http_post_index, READ},
    {"/v2/repository/load", CONTROL, bag_http_post_load_group, ADMIN},
    {"/v2/repository/models/{model}/load", CONTROL, bag_http_post_load, ADMIN},
    {"/v2/repository/models/{model}/unload", CONTROL, bag_http_post_unload, ADMIN},
};

/* Takes a segment as the model's name or version; false where it cannot be one. */
static bool capture(const char *what, const char *segment, size_t bytes,
                    struct bag_http_target *target)
{
    if (strncmp(what, "{model}", 7) == 0)
        return bytes && bag_url_decode(segment, bytes, target->model, sizeof target->model);
    return bytes && bag_url_decode(segment, bytes, target->version, sizeof target->version);
}

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

/* Whether the comma-separated list holds the method. */
static bool allows(const char *methods, const char *method)
{
    size_t bytes = strlen(method);
    for (const char *at = methods; bytes && *at; at += strspn(at, ", ")) {
        size_t length = strcspn(at, ",");
        if (length == bytes && memcmp(at, method, bytes) == 0)
            return true;
        at += length;
    }
    return false;
}

/* What a path answers to, or the server as a whole. */
static void answer_options(const char *methods, struct bag_http_reply *reply)
{
    bag_http_reply_empty(reply, 204);
    reply->allow = methods;
}

const struct bag_http_route *bag_http_route(const char *method, const char *path,
                                            struct bag_http_target *target,
                                            struct bag_http_reply *reply)
{
    bool asks_options = strcmp(method, "OPTIONS") == 0;
    if (asks_options && strcmp(path, "*") == 0) {
        answer_options("GET, HEAD, POST, OPTIONS", reply);
        return NULL;
    }
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (!match(routes[i].pattern, path, target))
            continue;
        if (asks_options) {
            answer_options(routes[i].methods, reply);
            return NULL;
        }
        if (allows(routes[i].methods, method))
            return &routes[i];
        bag_http_reply_error(reply, BAG_ERROR_METHOD_NOT_ALLOWED,
                             "method %s cannot be used with %s; use %s",
                             bag_quote(method, strlen(method)).text,
                             bag_quote(path, strlen(path)).text, routes[i].methods);
        reply->allow = routes[i].methods;
        return NULL;
    }
    bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND, "unknown path '%s'; GET / lists what there is",
                         bag_quote(path, strlen(path)).text);
    return NULL;
}

static const struct bag_model *reject_unknown(const char *name, struct bag_http_reply *reply)
{
    bag_http_reply_error(reply, BAG_ERROR_NOT_FOUND,
                         "unknown model '%s'; GET /v2/models lists the models", name);
    return NULL;
}

/* The versions that are served, as "version 3 is served" or "versions 1, 2 and 5 are served". */
static void list_served(struct bag_model *const *models, size_t count, char *text, size_t room)
{
    size_t used = 0, ready = 0, listed = 0;
    for (size_t i = 0; i < count; i++)
        ready += models[i]->state == BAG_MODEL_READY;
    used += (size_t)snprintf(text, room, ready == 1 ? "version" : ready ? "versions" : "none");
    for (size_t i = 0; i < count && used + 48 < room; i++) {
        if (models[i]->state != BAG_MODEL_READY)
            continue;
        listed++;
        used += (size_t)snprintf(text + used, room - used, "%s %s",
                                 listed == 1       ? ""
                                 : listed == ready ? " and"
                                                   : ",",
                                 models[i]->version);
    }
    snprintf(text + used, room - used, ready <= 1 ? " is served" : " are served");
}

/* A version that there is not, or that is not served though others are. */
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
    if (!bag_snapshot_versions(snapshot, target->model, &versions))
        return reject_unknown(bag_quote(target->model, strlen(target->model)).text, reply);
    return reject_version(snapshot, target, "", reply);
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

/* ---- access tokens --------------------------------------------------------------------------- */

/* Enough for more than a hundred of the longest tokens: every request is compared with all. */
#define TOKEN_FILE_BYTES ((size_t)64 << 10)

struct bag_http_token_list {
    struct bag_tokens *tokens; /* owned */
    unsigned users;            /* loops that hold it, and the server while it is the current one */
};

/* ---- the lists ------------------------------------------------------------------------------- */

bool bag_http_tokens_init(struct bag_http_tokens *tokens)
{
    tokens->current = NULL;
    atomic_init(&tokens->version, 0);
    return uv_mutex_init(&tokens->lock) == 0;
}

/* Under the lock. */
static void drop(struct bag_http_token_list *list)
{
    if (!list || --list->users > 0)
        return;
    bag_tokens_free(list->tokens);
    free(list);
}

static struct bag_tokens *read_file(const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read_private(path, TOKEN_FILE_BYTES, &bytes, problem);
    if (!text)
        return NULL;
    struct bag_tokens *tokens = bag_tokens_parse(text, bytes, problem);
    if (!tokens)
        bag_problem_prefix(problem, "%s", path);
    explicit_bzero(text, bytes);
    free(text);
    return tokens;
}

bool bag_http_tokens_load(struct bag_http_tokens *tokens, const char *path,
                          struct bag_problem *problem)
{
    struct bag_tokens *read = read_file(path, problem);
    if (!read) {
        bag_problem_prefix(problem, "token file");
        return false;
    }
    struct bag_http_token_list *list = malloc(sizeof *list);
    if (!list) {
        bag_tokens_free(read);
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory for the tokens");
    }
    *list = (struct bag_http_token_list){.tokens = read, .users = 1};
    uv_mutex_lock(&tokens->lock);
    drop(tokens->current);
    tokens->current = list;
    atomic_fetch_add_explicit(&tokens->version, 1, memory_order_release);
    uv_mutex_unlock(&tokens->lock);
    return true;
}

size_t bag_http_tokens_count(struct bag_http_tokens *tokens)
{
    uv_mutex_lock(&tokens->lock);
    size_t count = tokens->current ? bag_tokens_count(tokens->current->tokens) : 0;
    uv_mutex_unlock(&tokens->lock);
    return count;
}

/* Makes the loop hold the current list. */
static void refresh(struct bag_http_tokens *tokens, struct bag_http_tokens_held *held)
{
    if (held->version == atomic_load_explicit(&tokens->version, memory_order_acquire))
        return;
    uv_mutex_lock(&tokens->lock);
    drop(held->list);
    held->list = tokens->current;
    held->list->users++;
    held->version = atomic_load_explicit(&tokens->version, memory_order_relaxed);
    uv_mutex_unlock(&tokens->lock);
}

void bag_http_tokens_release(struct bag_http_tokens *tokens, struct bag_http_tokens_held *held)
{
    uv_mutex_lock(&tokens->lock);
    drop(held->list);
    uv_mutex_unlock(&tokens->lock);
    *held = (struct bag_http_tokens_held){0};
}

void bag_http_tokens_free(struct bag_http_tokens *tokens)
{
    drop(tokens->current);
    tokens->current = NULL;
    uv_mutex_destroy(&tokens->lock);
}

/* ---- requests -------------------------------------------------------------------------------- */

#define REALM "Bearer realm=\"bagserve\""

/* For WWW-Authenticate, where a token's scope is too small (RFC 6750). */
static const char *const challenges[] = {
#define BAG_X(id, word) REALM ", error=\"insufficient_scope\", scope=\"" word "\"",
    BAG_SCOPES(BAG_X)
#undef BAG_X
};

static bool reject(struct bag_http_request *request, enum bag_error error, const char *challenge,
                   const char *text)
{
    struct bag_problem problem;
    bag_problem_set(&problem, error, "%s", text);
    bag_http_reply_problem(&request->reply, &problem);
    request->reply.challenge = challenge;
    request->job.infer.input.model = NULL;
    return false;
}

static bool reject_scope(struct bag_http_request *request, enum bag_scope scope)
{
    char text[BAG_PROBLEM_TEXT_BYTES];
    snprintf(text, sizeof text, "the access token does not cover this; it needs the scope %s%s",
             bag_scope_names[scope], scope == BAG_SCOPE_ADMIN ? "" : " or admin");
    return reject(request, BAG_ERROR_FORBIDDEN, challenges[scope], text);
}

bool bag_http_authorize(struct bag_http_request *request)
{
    struct bag_http_context *context = request->context;
    struct bag_text token;
    if (!context->service->tokens || request->route->scope == BAG_HTTP_NO_SCOPE)
        return true;
    enum bag_scope scope = (enum bag_scope)request->route->scope;
    if (!request->head.authorization)
        return reject(request, BAG_ERROR_UNAUTHORIZED, REALM,
                      "an access token is needed; send it as 'Authorization: Bearer TOKEN'");
    if (!bag_bearer_read(request->head.authorization, &token))
        return reject(request, BAG_ERROR_UNAUTHORIZED, REALM,
                      "the header Authorization must be one 'Bearer TOKEN'");
    refresh(context->service->tokens, &context->tokens);
    unsigned scopes = bag_tokens_find(context->tokens.list->tokens, token);
    if (scopes == 0)
        return reject(request, BAG_ERROR_UNAUTHORIZED, REALM ", error=\"invalid_token\"",
                      "the access token is not known");
    return bag_scopes_cover(scopes, scope) || reject_scope(request, scope);
}
