/* The counters for those who ask: GET /metrics and the statistics of the protocol. */
#ifndef BAG_METRICS_EXPOSE_H
#define BAG_METRICS_EXPOSE_H

#include "metrics.h"
#include "proto/v2_documents.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the process ----------------------------------------------------------------------------- */

struct bag_process_stats {
#define BAG_X(member, ...) uint64_t member;
    BAG_PROCESS_METRICS(BAG_X)
#undef BAG_X
};

/* A number that cannot be had is 0. */
void bag_process_sample(struct bag_process_stats *counters);

/* ---- Prometheus' text format, version 0.0.4 -------------------------------------------------- */

#define BAG_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct bag_prometheus {
    char *text; /* owned */
    size_t bytes, room;
    bool failed;
    bool labelled; /* the sample that is being written has a label already */
};

/* # HELP and # TYPE; the help is the sentence and the unit. Samples of the family follow. */
void bag_prometheus_family(struct bag_prometheus *out, const char *name, const char *type,
                           const char *sentence, const char *unit);

/* A sample is begun with its name and suffix, given its labels, and ended with its value, which is
 * a whole number or a number of ns that is shown in seconds. */
void bag_prometheus_sample(struct bag_prometheus *out, const char *name, const char *suffix);
void bag_prometheus_label(struct bag_prometheus *out, const char *key, const char *value);
void bag_prometheus_value(struct bag_prometheus *out, uint64_t value, bool ns);

/* The label `le`: a bound as above. */
void bag_prometheus_bound(struct bag_prometheus *out, uint64_t bound, bool ns);

/* The whole text, which is the caller's from then on (free); NULL without memory. */
char *bag_prometheus_end(struct bag_prometheus *out);

/* ---- everything ------------------------------------------------------------------------------ */

/* Everything in Prometheus' text format; the caller frees it. NULL without memory. The snapshot is
 * one that the caller has acquired. */
char *bag_expose_prometheus(const struct bag_metrics *metrics, const struct bag_snapshot *snapshot,
                            const char *version);

/* One model's statistics. */
void bag_expose_statistics(const struct bag_metrics *metrics, const struct bag_model *model,
                           struct bag_v2_statistics *statistics);

#endif
