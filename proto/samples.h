/* The text that Prometheus reads (exposition format 0.0.4), read: samples of one metric. */
#ifndef BAG_SAMPLES_H
#define BAG_SAMPLES_H

#include "text.h"

struct bag_sample {
    struct bag_text label; /* the value of the one that was asked for; data NULL: it has none */
    double value;
};

/* The next sample of the metric from *at on, which is moved behind it; false where there is none.
 * `text` ends with a NUL. Lines that are no samples are left out. */
bool bag_samples_next(const char **at, const char *metric, const char *label,
                      struct bag_sample *sample);

#endif
