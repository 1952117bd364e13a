/* The last path; see route_cache.h. */
#include "route_cache.h"

#include <string.h>

bool bag_http_route_cache_is_of(const struct bag_http_route_cache *route_cache, const char *method,
                                const char *path)
{
    return strcmp(method, "POST") == 0 && strcmp(path, route_cache->path) == 0;
}

void bag_http_route_cache_keep(struct bag_http_route_cache *route_cache, const char *path,
                               const struct bag_http_route *route, const struct bag_model *model)
{
    if (strlen(path) >= sizeof route_cache->path)
        return;
    strcpy(route_cache->path, path);
    route_cache->route = route;
    route_cache->model = model;
}
