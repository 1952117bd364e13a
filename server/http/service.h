/* The state that the whole server shares: its configuration, its models, and its stage of
 * operation. */
#pragma once

#include "config/config.h"
#include "server/engine/engine.h"
#include "server/memory/memory.h"
#include "server/metrics/history.h"
#include "server/models/snapshot.h"
#include "server/shards/shards.h"
#include "server/trace/trace.h"

#include <stdatomic.h>

enum bag_service_state {
    BAG_SERVICE_LOADING,  /* listening, while the first tables are loaded */
    BAG_SERVICE_READY,    /* serving */
    BAG_SERVICE_LEAVING,  /* serving as before, but readiness is 503 (drain_delay_s) */
    BAG_SERVICE_DRAINING, /* finishing what runs, taking nothing new */
};

struct bag_service {
    const struct bag_config *config;
    struct bag_registry registry; /* each loop is a reader of it */
    _Atomic enum bag_service_state state;
    size_t max_connections; /* limit of the option, or a lower one for lack of descriptors */
    size_t max_connections_per_client; /* limit of the option, or the one derived from the above */
    struct bag_workers *workers;       /* borrowed; of all loops */
    struct bag_updates *updates;       /* borrowed; NULL: rows never change */
    struct bag_reconciler *reconciler; /* borrowed; changes the models */
    struct bag_shards *shards;         /* borrowed; of all models of shards */
    bool has_admin;                    /* there is an admin listener */
    struct bag_budget budget;          /* memory of all requests */
    struct bag_metrics metrics;        /* metrics of all loops */
    struct bag_history history;     /* history of the metrics, if metrics and the console are on */
    struct bag_http_tokens *tokens; /* borrowed; NULL: requests need none */
    struct bag_trace *trace;        /* owned; NULL: nothing is traced */
};
