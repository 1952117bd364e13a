/* The figures for those who ask: GET /metrics and the statistics of the protocol. */
#ifndef BAG_EXPOSE_H
#define BAG_EXPOSE_H

#include "metrics.h"
#include "proto/v2_describe.h"

/* Everything in Prometheus' text format; the caller frees it. NULL without memory. The first
 * `num_models` of the registry are there: 0 while it is filled. */
char *bag_expose_prometheus(const struct bag_metrics *metrics, size_t num_models,
                            const char *version);

/* One model's statistics. */
void bag_expose_statistics(const struct bag_metrics *metrics, const struct bag_model *model,
                           struct bag_v2_statistics *statistics);

#endif
