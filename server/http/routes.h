/* Paths -> routes, each with a handler.
 *
 * Runs on the loop's thread. */
#ifndef BAG_HTTP_ROUTES_H
#define BAG_HTTP_ROUTES_H

#include "proto/tokens.h"
#include "response.h"
#include "service.h"

struct bag_http_request;

/* What a path names. */
struct bag_http_target {
    char model[129];  /* decoded; empty where the path has none */
    char version[21]; /* decoded, and perhaps of no model; empty: the highest */
};

enum bag_http_outcome {
    BAG_HTTP_DONE,   /* the request's reply is filled */
    BAG_HTTP_SUSPEND /* it will be, and bag_http_request_resume called; not before this returns */
};

/* Answers a request whose body is complete. */
typedef enum bag_http_outcome bag_http_handler(struct bag_http_request *request);

/* Asked before the body comes: sets request->max_body_bytes, or rejects the request with a reply
 * and returns false. */
typedef bool bag_http_accept(struct bag_http_request *request);

/* Of routes that no token is needed for. */
#define BAG_HTTP_NO_SCOPE (-1)

struct bag_http_route {
    const char *pattern;     /* "/v2/models/{model}/infer" */
    const char *methods;     /* for Allow: "GET, HEAD, OPTIONS" or "POST, OPTIONS" */
    bag_http_accept *accept; /* NULL: takes no body, and one that comes is dropped */
    bag_http_handler *handler;
    int scope; /* enum bag_scope, which a token must cover; or BAG_HTTP_NO_SCOPE */
};

/* The route of a path as the request line has it, without its query. Fills `target`. NULL with a
 * 404 or 405 in `reply` where there is none, and with a 204 for OPTIONS. */
const struct bag_http_route *bag_http_route(const char *method, const char *path,
                                            struct bag_http_target *target,
                                            struct bag_http_reply *reply);

/* The model that a target names, which is READY; NULL with a 404 or 503 in `reply`. */
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

/* The handlers of metadata.c, and those of infer.c. */
bag_http_handler bag_http_get_root, bag_http_get_openapi, bag_http_get_server, bag_http_get_live,
    bag_http_get_ready, bag_http_get_models, bag_http_get_model, bag_http_get_model_ready,
    bag_http_get_model_config, bag_http_post_index;
bag_http_handler bag_http_get_metrics, bag_http_get_all_statistics, bag_http_get_statistics;
bag_http_handler bag_http_post_infer;
bag_http_accept bag_http_accept_infer;

#endif
