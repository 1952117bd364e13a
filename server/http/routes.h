/* Paths -> routes, each with a handler, and who may ask for them.
 *
 * Runs on the loop's thread. */
#ifndef BAG_HTTP_ROUTES_H
#define BAG_HTTP_ROUTES_H

#include "message.h"
#include "proto/tokens.h"
#include "server/models/snapshot.h"

#include <uv.h>

struct bag_http_request;

/* What a path names. */
struct bag_http_target {
    char model[129];  /* decoded; empty where the path has none */
    char version[21]; /* decoded, and perhaps of no model; empty: the highest */
};

enum bag_http_outcome {
    BAG_HTTP_DONE,    /* the request's reply is filled */
    BAG_HTTP_SUSPEND, /* it will be, and bag_http_request_resume called; not before this returns */
    BAG_HTTP_LATER    /* it is to be called again, as it has to suspend, which it may not yet */
};

/* Answers a request whose body is complete. */
typedef enum bag_http_outcome bag_http_handler(struct bag_http_request *request);

/* Asked before the body comes: sets request->max_body_bytes, or rejects the request with a reply
 * and returns false. */
typedef bool bag_http_accept(struct bag_http_request *request);

/* Of routes that no token is needed for. */
#define BAG_HTTP_NO_SCOPE (-1)

/* One bit each. */
enum bag_http_method {
    BAG_HTTP_GET = 1, /* and HEAD */
    BAG_HTTP_POST = 2
};

/* A path has a line for each of its methods. */
struct bag_http_route {
    const char *pattern; /* "/v2/models/{model}/infer" */
    enum bag_http_method method;
    bag_http_accept *accept; /* NULL: takes no body, and one that comes is dropped */
    bag_http_handler *handler;
    int scope; /* enum bag_scope, which a token must cover; or BAG_HTTP_NO_SCOPE */
};

/* The route of a path as the request line has it, without its query. Fills `target`. NULL with a
 * 404 or 405 in `reply` where there is none, and with a 204 for OPTIONS. */
const struct bag_http_route *bag_http_route(const char *method, const char *path,
                                            struct bag_http_target *target,
                                            struct bag_http_reply *reply);

/* The same among other routes than the server's own. */
const struct bag_http_route *bag_http_find_route(const struct bag_http_route *among, size_t count,
                                                 const char *method, const char *path,
                                                 struct bag_http_target *target,
                                                 struct bag_http_reply *reply);

/* Returns the model that a target names, which is READY. Returns NULL and fills `reply` with a 404
 * or 503 if there is none. Whoever looks up a model for the second time uses the second result: in
 * another snapshot it may be gone, or be of another kind (request.h). */
const struct bag_model *bag_http_find_model(const struct bag_snapshot *snapshot,
                                            const struct bag_http_target *target,
                                            struct bag_http_reply *reply);

/* The last path of a POST and what it led to: most clients ask one. One for each loop. */
struct bag_http_route_cache {
    char path[256];      /* empty: none */
    uint64_t generation; /* of the snapshot that has the model; a later one may not */
    const struct bag_http_route *route;
    const struct bag_model *model;
};

/* Whether the cache is of this request, which has acquired the snapshot. */
bool bag_http_route_cache_is_of(const struct bag_http_route_cache *cache,
                                const struct bag_snapshot *snapshot, const char *method,
                                const char *path);

/* Keeps what the path of a POST led to. */
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

/* The path that a request asks for: a browser that asks for / is shown the console. */
const char *bag_http_console_path(const struct bag_http_request *request);

/* ---- access tokens (authorize.c) ------------------------------------------------------------- */

/* Who may ask for what: access tokens (token_file), and the scope that a route needs.
 *
 * All loops read the tokens, and the first one may replace them at any time. */
struct bag_http_tokens {
    uv_mutex_t lock;         /* of the list */
    struct bag_tokens *list; /* owned */
};

bool bag_http_tokens_init(struct bag_http_tokens *tokens);

/* Takes the tokens of a file in the place of those before. False with *problem where it cannot be
 * read, is malformed, or others than its owner may read it: those before stay. */
bool bag_http_tokens_load(struct bag_http_tokens *tokens, const char *path,
                          struct bag_problem *problem);

/* Tokens that requests are compared with now. */
size_t bag_http_tokens_count(struct bag_http_tokens *tokens);

void bag_http_tokens_free(struct bag_http_tokens *tokens);

/* Whether the request's route may be asked with the token that its head brings, if any, and whose
 * scopes are kept, and by the page in a browser that asks. Otherwise the reply is filled: 401, or
 * 403 that says why. On the loop's thread. */
bool bag_http_authorize(struct bag_http_request *request);

#endif
