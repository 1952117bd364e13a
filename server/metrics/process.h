/* What the operating system says of this process. */
#ifndef BAG_PROCESS_H
#define BAG_PROCESS_H

#include "table.h"

#include <stdint.h>

struct bag_process_stats {
#define BAG_X(member, ...) uint64_t member;
    BAG_PROCESS_METRICS(BAG_X)
#undef BAG_X
};

/* A figure that cannot be had is 0. */
void bag_process_sample(struct bag_process_stats *counters);

#endif
