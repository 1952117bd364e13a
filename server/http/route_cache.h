/* The last path that was asked for inference and what it led to: most clients ask one.
 *
 * Must not know: libmicrohttpd. One for each loop; only its thread uses it. */
#ifndef BAG_HTTP_ROUTE_CACHE_H
#define BAG_HTTP_ROUTE_CACHE_H

#include "routes.h"

struct bag_http_route_cache {
    char path[256]; /* empty: none */
    const struct bag_http_route *route;
    const struct bag_model *model;
};

/* Whether the memo is of this request. */
bool bag_http_route_cache_is_of(const struct bag_http_route_cache *route_cache, const char *method,
                                const char *path);

/* Keeps what the path of a POST led to. */
void bag_http_route_cache_keep(struct bag_http_route_cache *route_cache, const char *path,
                               const struct bag_http_route *route, const struct bag_model *model);

#endif
