/* Paths -> handlers.
 *
 * Must not know: libmicrohttpd, bodies. Runs on the loop's thread. */
#ifndef BAG_HTTP_ROUTES_H
#define BAG_HTTP_ROUTES_H

#include "message.h"
#include "server/service.h"

/* What a request names; the handlers of POST routes see its body as well. */
struct bag_http_target {
    char model[129];  /* decoded; empty where the path has none */
    char version[21]; /* decoded, and perhaps of no model; empty: the highest */
    const char *body; /* borrowed; of POST routes */
    size_t body_bytes;
};

typedef void bag_http_handler(const struct bag_service *service,
                              const struct bag_http_target *target, struct bag_http_reply *reply);

struct bag_http_route {
    const char *pattern;       /* "/v2/models/{model}/infer" */
    const char *methods;       /* for Allow: "GET, HEAD, OPTIONS" or "POST, OPTIONS" */
    bool takes_body;           /* POST; what other requests bring is dropped */
    bag_http_handler *handler; /* NULL: inference, which needs the body */
};

/* The route of a path as it stands in the request line, without its query. Fills `target`. NULL
 * with a 404 or 405 in `reply` where there is none, with a 204 for OPTIONS, and with a 403 for
 * inference unless the server `infers`. */
const struct bag_http_route *bag_http_route(const char *method, const char *path, bool infers,
                                            struct bag_http_target *target,
                                            struct bag_http_reply *reply);

/* The model that a target names; NULL with a 404 or 503 in `reply`. */
const struct bag_model *bag_http_find_model(const struct bag_service *service,
                                            const struct bag_http_target *target,
                                            struct bag_http_reply *reply);

/* The handlers of describe.c, and those of measure.c. */
bag_http_handler bag_http_get_root, bag_http_get_openapi, bag_http_get_server, bag_http_get_live,
    bag_http_get_ready, bag_http_get_models, bag_http_get_model, bag_http_get_model_ready,
    bag_http_get_model_config, bag_http_post_index;
bag_http_handler bag_http_get_metrics, bag_http_get_all_statistics, bag_http_get_statistics;

#endif
