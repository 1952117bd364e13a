/* What becomes of single entries: for explaining a result, not for making it.
 *
 * Must not know: how rows are pooled. */
#ifndef BAG_POOL_FATE_H
#define BAG_POOL_FATE_H

#include "pool.h"

/* X(ID, name) */
#define BAG_FATES(X)      \
    X(KEPT, "kept")       \
    X(PADDING, "padding") \
    X(PRUNED, "pruned")   \
    X(OUTSIDE, "out_of_range")

enum bag_fate {
#define BAG_X(id, name) BAG_FATE_##id,
    BAG_FATES(BAG_X)
#undef BAG_X
        BAG_FATE_COUNT
};

extern const char *const bag_fate_names[BAG_FATE_COUNT];

/* Whether the entry counts, and if not, why. */
enum bag_fate bag_pool_fate(const struct bag_pool *pool, size_t entry);

/* Where bag number `bag` begins among the entries, 0 <= bag <= num_bags; the last one ends where
 * one more would begin. */
size_t bag_pool_first_entry(const struct bag_pool *pool, size_t bag);

#endif
