/* Splitting the ops of one request into ranges that cost about the same. */
#ifndef BAG_SPLIT_H
#define BAG_SPLIT_H

#include "server/infer/ops.h"

/* Splits the whole of `count` (>= 1) ops into at most `parts` (>= 1) disjoint ranges that cover
 * it: by the bytes of the rows that are read, across ops and between bags; or by columns where
 * one bag holds most of them. Returns how many, at least 1. */
unsigned bag_split_ops(const struct bag_op *ops, size_t count, unsigned parts,
                       struct bag_split *splits);

#endif
