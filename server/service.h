/* What the whole server shares: its configuration, its models, and the state it is in.
 *
 * Lives on the loop's thread; workers see only the models, which do not change while they run. */
#ifndef BAG_SERVICE_H
#define BAG_SERVICE_H

#include "config/config.h"
#include "server/metrics/metrics.h"
#include "server/table/registry.h"

enum bag_service_state {
    BAG_SERVICE_LOADING,  /* listening, but the tables are not complete */
    BAG_SERVICE_READY,    /* serving */
    BAG_SERVICE_DRAINING, /* finishing what runs, taking nothing new */
};

struct bag_service {
    const struct bag_config *config;
    struct bag_registry registry; /* complete unless LOADING */
    enum bag_service_state state;
    struct bag_metrics metrics; /* of all loops */
};

#endif
