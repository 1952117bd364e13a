/* What becomes of single entries: for explaining a result, not for making it.
 *
 * Must not know: how rows are pooled. */
#ifndef BAG_POOL_ENTRIES_H
#define BAG_POOL_ENTRIES_H

#include "pool.h"

/* X(ID, name) */
#define BAG_ENTRY_STATUSES(X) \
    X(KEPT, "kept")           \
    X(PADDING, "padding")     \
    X(PRUNED, "pruned")       \
    X(OUTSIDE, "out_of_range")

enum bag_entry_status {
#define BAG_X(id, name) BAG_ENTRY_##id,
    BAG_ENTRY_STATUSES(BAG_X)
#undef BAG_X
        BAG_ENTRY_COUNT
};

extern const char *const bag_entry_status_names[BAG_ENTRY_COUNT];

/* Whether the entry counts, and if not, why. */
enum bag_entry_status bag_pool_entry_status(const struct bag_pool_args *args, size_t entry);

/* Where bag number `bag` begins among the entries, 0 <= bag <= num_bags; the last one ends where
 * one more would begin. */
size_t bag_pool_first_entry(const struct bag_pool_args *args, size_t bag);

#endif
