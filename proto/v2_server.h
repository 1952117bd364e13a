/* The documents under /v2/server, which the console shows and other programs may use. Each function
 * returns its document on the heap, which the caller frees, or NULL if memory is exhausted. */
#ifndef BAG_V2_SERVER_H
#define BAG_V2_SERVER_H

#include "v2_documents.h"

/* ---- GET /v2/server/history ------------------------------------------------------------------ */

/* The present state of the server. */
struct bag_v2_server {
    const char *version;
    const char *state; /* loading, ready, leaving or draining */
    uint64_t started_ms, workers, processors, max_connections;
    uint64_t max_request_bytes, max_table_bytes; /* 0: unlimited */
    uint64_t latency_target_ms;                  /* 0: none */
    uint64_t models, models_ready;
};

/* An unknown value, printed as null. */
#define BAG_V2_NO_VALUE UINT64_MAX

/* One number for each second. */
struct bag_v2_column {
    const char *name;
    const uint64_t *values;
};

struct bag_v2_history {
    uint64_t until_ms; /* end of the last second, since 1970 */
    size_t seconds;    /* length of each column */
    const struct bag_v2_column *columns;
    size_t num_columns;
    const struct bag_v2_column *rejected; /* rejected requests, one column for each reason */
    size_t num_rejected;
    const struct bag_v2_column *recent; /* one value each, for the most recent seconds together */
    size_t num_recent;
};

char *bag_v2_describe_history(const struct bag_v2_server *server,
                              const struct bag_v2_history *history);

/* ---- GET /v2/server/models ------------------------------------------------------------------- */

/* A version of a model. */
struct bag_v2_listed_model {
    struct bag_v2_index_entry entry;
    bool is_default;
    bool is_collection;
    size_t num_features;
    const struct bag_v2_feature *table; /* NULL for a collection, or if the version is not READY */
    bool mapped;
    uint64_t bytes; /* size of its table, or of all tables of a collection */
    uint64_t requests, failures, bags, rows;
    const uint64_t *durations; /* number of requests by duration; see bounds_ns */
};

/* The progress of a change of models. total_bytes is 0 if there is no change. */
struct bag_v2_loading {
    const char *name, *version;
    uint64_t done_bytes, total_bytes, left_s;
};

struct bag_v2_model_list {
    const struct bag_v2_listed_model *models;
    size_t count;
    const uint64_t *bounds_ns; /* upper bounds of durations; a last interval has none */
    size_t num_bounds;
    struct bag_v2_loading loading;
    bool metrics;   /* false: nothing is counted */
    uint64_t at_ns; /* monotonic time; rates are differences of two lists */
};

char *bag_v2_describe_model_list(const struct bag_v2_model_list *list);

/* ---- GET /v2/server/options ------------------------------------------------------------------ */

/* What the client may do on this listener. */
struct bag_v2_access {
    const char *listener; /* main or admin */
    bool needs_token, infers, changes_models, controls;
};

/* `options` is a JSON array on the heap that this function takes over; NULL: memory is exhausted.
 */
char *bag_v2_describe_options(const struct bag_v2_access *access, char *options);

#endif
