/* The table of routes: each method of each path with its functions. Nothing below refers to it: a
 * request finds its route in the table that its context points to. */
#pragma once

#include "target.h"

/* All routes. One without a pattern ends the list. */
extern const struct bag_http_route bag_http_routes[];

/* The functions of routes in metadata.c, console.c, infer.c and control.c. */
bag_http_handler bag_http_get_root, bag_http_get_openapi, bag_http_get_server, bag_http_get_live,
    bag_http_get_ready, bag_http_get_models, bag_http_get_model, bag_http_get_model_ready,
    bag_http_get_model_config, bag_http_post_index;
bag_http_handler bag_http_get_metrics, bag_http_get_all_statistics, bag_http_get_statistics;
bag_http_handler bag_http_get_model_metrics;
bag_http_handler bag_http_get_history, bag_http_get_model_list, bag_http_get_options;
bag_http_handler bag_http_get_console, bag_http_get_console_part;
bag_http_handler bag_http_post_infer;
bag_http_accept bag_http_accept_infer;
bag_http_drop bag_http_drop_infer;
bag_http_handler bag_http_post_rows;
bag_http_handler bag_http_post_load, bag_http_post_unload, bag_http_post_load_group;
bag_http_accept bag_http_accept_control, bag_http_accept_rows;
