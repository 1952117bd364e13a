/* Cutting one checked call into ranges that cost about the same.
 *
 * Must not know: threads, queues. */
#ifndef BAG_CUT_H
#define BAG_CUT_H

#include "kernels/pool.h"

/* Cuts the whole result into at most `parts` (>= 1) disjoint ranges that cover it, by numbers of
 * indices, or by columns where one bag holds most of them. Returns how many, at least 1. */
unsigned bag_cut(const struct bag_pool *pool, unsigned parts, struct bag_range *ranges);

#endif
