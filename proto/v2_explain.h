/* What became of every bag of a pool, as JSON.
 *
 * Must not know: requests, replies. Allocates nothing. */
#ifndef BAG_V2_EXPLAIN_H
#define BAG_V2_EXPLAIN_H

#include "kernels/pool.h"

/* The most bytes that bag_v2_explain writes for that pool and name; SIZE_MAX where it cannot be
 * counted. */
size_t bag_v2_explain_bound(const struct bag_pool_args *args, const char *name);

/* Writes {"name": name, "bags": [{"rows": ..., "default": ...}, ...]}, with the positions in
 * `indices` of entries that left their bag as "padding", "pruned" and "out_of_range" where there
 * are some; returns the end. `name` needs no escaping. The pool is one that bag_pool_sort need not
 * be called for. */
char *bag_v2_explain(const struct bag_pool_args *args, const char *name, char *out);

#endif
