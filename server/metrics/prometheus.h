/* Prometheus' text format, version 0.0.4. */
#ifndef BAG_PROMETHEUS_H
#define BAG_PROMETHEUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Its own room, and not libc's stream, which takes three times as long for a line. */
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

/* The label `le`: a histogram's bound. */
void bag_prometheus_bound(struct bag_prometheus *out, uint64_t bound, bool ns);

/* The whole text, which is the caller's from then on (free); NULL without memory. */
char *bag_prometheus_end(struct bag_prometheus *out);

#endif
