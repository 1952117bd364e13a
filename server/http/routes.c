/* The table of routes; see routes.h. */
#include "routes.h"

#include "proto/tokens.h"
#include "request.h"

/* Parts of a route: its method, the functions that are called before the body and at the end, and
 * for some its handler; then scopes. */
#define GET  BAG_HTTP_GET, NULL, NULL
#define POST BAG_HTTP_POST, bag_http_accept_small, NULL
#define INFER \
    BAG_HTTP_POST, bag_http_accept_infer, bag_http_drop_infer, bag_http_post_infer, BAG_SCOPE_INFER
#define ROWS    BAG_HTTP_POST, bag_http_accept_rows, NULL, bag_http_post_rows, BAG_SCOPE_ADMIN
#define CONTROL BAG_HTTP_POST, bag_http_accept_control, NULL
#define ADMIN   BAG_SCOPE_ADMIN
#define READ    BAG_SCOPE_READ
#define OPEN    BAG_HTTP_NO_SCOPE
/* A route for people, which openapi.json does not describe. */
#define PAGE GET

const struct bag_http_route bag_http_routes[] = {
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
    {.pattern = NULL},
};
