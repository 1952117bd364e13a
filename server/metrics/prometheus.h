/* Writes Prometheus' text format, version 0.0.4.
 *
 * For each metric, call bag_prometheus_family(), and then for each of its samples
 * bag_prometheus_sample(), bag_prometheus_label() for each label, and bag_prometheus_value(). Lack
 * of memory is reported once, by bag_prometheus_end(). */
#pragma once

#include "proto/text.h"

/* A text that is being written, initially all zeros. It is not a stream of stdio, which takes three
 * times as long for a line. */
struct bag_prometheus {
    struct bag_growing_text text;
    bool labelled; /* the current sample has a label already */
};

/* Writes # HELP and # TYPE. The help is the sentence followed by the unit. The samples of the
 * family follow. */
void bag_prometheus_family(struct bag_prometheus *out, const char *name, const char *type,
                           const char *sentence, const char *unit);

/* Write one sample: its name and suffix, then its labels, then its value. The value is an integer,
 * or a number of ns that is printed in seconds. */
void bag_prometheus_sample(struct bag_prometheus *out, const char *name, const char *suffix);
void bag_prometheus_label(struct bag_prometheus *out, const char *key, const char *value);
void bag_prometheus_value(struct bag_prometheus *out, uint64_t value, bool ns);

/* Writes the label `le`, the bound of a histogram's bucket. */
void bag_prometheus_bound(struct bag_prometheus *out, uint64_t bound, bool ns);

/* Returns the whole text, which the caller frees, or NULL if there was not enough memory. */
char *bag_prometheus_end(struct bag_prometheus *out);
