/* Documents about the whole server under /v2/server: what the console shows, and programs may ask,
 * too. Each function returns its document on the heap, for the caller to free(), or NULL where
 * there is no memory. */
#ifndef BAG_V2_SERVER_H
#define BAG_V2_SERVER_H

#include "v2_documents.h"

/* ---- GET /v2/server/history ------------------------------------------------------------------ */

/* The server now. */
struct bag_v2_server {
    const char *version;
    const char *state; /* loading, ready, leaving or draining */
    uint64_t started_ms, workers, processors, max_connections;
    uint64_t max_request_bytes, max_table_bytes; /* 0: any */
    uint64_t latency_target_ms;                  /* 0: there is none */
    uint64_t models, models_ready;
};

/* A value that is not known. */
#define BAG_V2_NO_VALUE UINT64_MAX

/* One number for each second. */
struct bag_v2_column {
    const char *name;
    const uint64_t *values;
};

struct bag_v2_history {
    uint64_t until_ms; /* since 1970: the end of the last second */
    size_t seconds;    /* in each column */
    const struct bag_v2_column *columns;
    size_t num_columns;
    const struct bag_v2_column *rejected; /* by reason */
    size_t num_rejected;
    const struct bag_v2_column *recent; /* one value each, of the last seconds together */
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
    const struct bag_v2_feature *table; /* NULL: a collection, or it is not READY */
    bool mapped;
    uint64_t bytes; /* of its table, of a collection of all that it uses */
    uint64_t requests, failures, bags, rows;
    const uint64_t *durations; /* requests by duration, as bag_v2_describe_list's bounds */
};

/* How far a change of models is; `total_bytes` 0: none is made. */
struct bag_v2_loading {
    const char *name, *version;
    uint64_t done_bytes, total_bytes, left_s;
};

struct bag_v2_model_list {
    const struct bag_v2_listed_model *models;
    size_t count;
    const uint64_t *bounds_ns; /* upper ones, of durations; one more is beyond the last */
    size_t num_bounds;
    struct bag_v2_loading loading;
    bool metrics;   /* otherwise nothing is counted */
    uint64_t at_ns; /* of a clock that goes evenly: rates are differences of two lists */
};

char *bag_v2_describe_model_list(const struct bag_v2_model_list *list);

/* ---- GET /v2/server/options ------------------------------------------------------------------ */

/* What who asked may do here, and the options, a JSON array that is taken over; NULL: no memory. */
struct bag_v2_access {
    const char *listener; /* main or admin */
    bool needs_token, infers, changes_models, controls;
};

char *bag_v2_describe_options(const struct bag_v2_access *access, char *options);

#endif
