/* Maps methods and paths to routes, each with a handler, and authorizes requests.
 *
 * All functions run on the loop's thread unless their comment says otherwise. */
#pragma once

#include "message.h"
#include "proto/tokens.h"
#include "server/models/snapshot.h"

#include <uv.h>

struct bag_http_request;

/* The model and version in a path. */
struct bag_http_target {
    char model[129];  /* decoded; empty: none */
    char version[21]; /* decoded; may not exist; empty: the highest */
};

enum bag_http_outcome {
    BAG_HTTP_DONE,    /* the reply is filled */
    BAG_HTTP_SUSPEND, /* the reply is filled later, and bag_http_request_resume() is called then */
    BAG_HTTP_LATER    /* the handler must suspend, and must be called again when it may */
};

/* Answers a request whose body is complete. */
typedef enum bag_http_outcome bag_http_handler(struct bag_http_request *request);

/* Called before the body arrives. Sets request->max_body_bytes. Returns false with the reply filled
 * to reject the request. */
typedef bool bag_http_accept(struct bag_http_request *request);

/* The scope of routes that need no token. */
#define BAG_HTTP_NO_SCOPE (-1)

enum bag_http_method {
    BAG_HTTP_GET, /* and HEAD */
    BAG_HTTP_POST
};

/* A route: one method of one path. */
struct bag_http_route {
    const char *pattern; /* "/v2/models/{model}/infer" */
    enum bag_http_method method;
    bag_http_accept *accept; /* NULL: takes no body; one that arrives is discarded */
    bag_http_handler *handler;
    int scope; /* enum bag_scope that a token must cover, or BAG_HTTP_NO_SCOPE */
};

/* Returns the route of a path, which is as in the request line but without the query, and fills
 * `target`. Returns NULL and fills `reply` with a 404 or 405 if there is none, and with a 204 for
 * OPTIONS. */
const struct bag_http_route *bag_http_route(const char *method, const char *path,
                                            struct bag_http_target *target,
                                            struct bag_http_reply *reply);

/* Returns the model that a target names, which is READY. Returns NULL and fills `reply` with a 404
 * or 503 if there is none. Whoever looks up a model for the second time uses the second result: in
 * another snapshot it may be gone, or be of another kind (request.h). */
const struct bag_model *bag_http_find_model(const struct bag_snapshot *snapshot,
                                            const struct bag_http_target *target,
                                            struct bag_http_reply *reply);

/* The path of the last inference with its route and model, because most clients use one path. One
 * for each loop. An entry of another generation of the models is not used. */
struct bag_http_route_cache {
    char path[256];      /* empty: none */
    uint64_t generation; /* generation of the snapshot that contains the model */
    const struct bag_http_route *route;
    const struct bag_model *model;
};

/* Returns true if the cache holds the route of this request, which has retained the snapshot. */
bool bag_http_route_cache_is_of(const struct bag_http_route_cache *cache,
                                const struct bag_snapshot *snapshot, const char *method,
                                const char *path);

/* Stores the route and the model of the path of a POST. */
void bag_http_route_cache_keep(struct bag_http_route_cache *cache,
                               const struct bag_snapshot *snapshot, const char *path,
                               const struct bag_http_route *route, const struct bag_model *model);

/* The handlers of metadata.c, of console.c, of infer.c and of control.c. */
bag_http_handler bag_http_get_root, bag_http_get_openapi, bag_http_get_server, bag_http_get_live,
    bag_http_get_ready, bag_http_get_models, bag_http_get_model, bag_http_get_model_ready,
    bag_http_get_model_config, bag_http_post_index;
bag_http_handler bag_http_get_metrics, bag_http_get_all_statistics, bag_http_get_statistics;
bag_http_handler bag_http_get_model_metrics;
bag_http_handler bag_http_get_history, bag_http_get_model_list, bag_http_get_options;
bag_http_handler bag_http_get_console, bag_http_get_console_part;
bag_http_handler bag_http_post_infer;
bag_http_accept bag_http_accept_infer;
bag_http_handler bag_http_post_rows;
bag_http_handler bag_http_post_load, bag_http_post_unload, bag_http_post_load_group;
bag_http_accept bag_http_accept_control;
bag_http_accept bag_http_accept_rows;

/* Returns the path of a request. For a browser that asks for / it is that of the console. */
const char *bag_http_console_path(const struct bag_http_request *request);

/* ---- access tokens (authorize.c) ------------------------------------------------------------- */

/* The access tokens (token_file). All loops read them, and the first loop may replace them at any
 * time. */
struct bag_http_tokens {
    uv_mutex_t lock;         /* guards the list */
    struct bag_tokens *list; /* owned */
};

/* Makes an empty list. Returns false if the lock cannot be made. */
bool bag_http_tokens_init(struct bag_http_tokens *tokens);

/* Replaces the tokens by those of a file. Returns false, sets *problem and keeps the tokens if the
 * file cannot be read, is malformed, or is readable for others than its owner. */
bool bag_http_tokens_load(struct bag_http_tokens *tokens, const char *path,
                          struct bag_problem *problem);

/* Returns the number of tokens. */
size_t bag_http_tokens_count(struct bag_http_tokens *tokens);

/* Overwrites and frees the tokens. No loop may use them any more. */
void bag_http_tokens_free(struct bag_http_tokens *tokens);

/* Returns true if the request may use its route: its token covers the scope, and the page of a
 * browser may send it. Stores the scopes of the token. Otherwise returns false and fills the reply
 * with a 401 or 403. */
bool bag_http_authorize(struct bag_http_request *request);
