/* Cutting the pools of one request into slices that cost about the same.
 *
 * Must not know: threads, queues. */
#ifndef BAG_CUT_H
#define BAG_CUT_H

#include "pooling.h"

/* Cuts the whole of `count` (>= 1) poolings into at most `parts` (>= 1) disjoint slices that cover
 * it: by the bytes of the rows that are read, across poolings and between bags; or by columns where
 * one bag holds most of them. Returns how many, at least 1. */
unsigned bag_cut(const struct bag_pooling *poolings, size_t count, unsigned parts,
                 struct bag_slice *slices);

#endif
