/* A list that hands items from any thread to one thread, without a lock.
 *
 * Any thread pushes items. One thread takes all of them at once, and gets them in the order in
 * which they were pushed. Only the push to an empty list reports that the taking thread must be
 * woken, because one wake-up is enough for all items. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Embedded in an item. */
struct bag_handoff_item {
    struct bag_handoff_item *next; /* NULL: the last item */
};

/* A list of items, which it does not own. Zeroed: empty. */
struct bag_handoff {
    _Atomic(struct bag_handoff_item *) newest;
};

/* Returns the struct of the given type whose member the item is. */
#define BAG_HANDOFF_OWNER(item, type, member) \
    ((type *)(void *)((char *)(item)-offsetof(type, member)))

/* Adds an item. Returns true if the list was empty. The taking thread may free the item before this
 * returns. */
static inline bool bag_handoff_push(struct bag_handoff *handoff, struct bag_handoff_item *item)
{
    struct bag_handoff_item *newest = atomic_load_explicit(&handoff->newest, memory_order_relaxed);
    do
        item->next = newest;
    while (!atomic_compare_exchange_weak_explicit(&handoff->newest, &newest, item,
                                                  memory_order_release, memory_order_relaxed));
    return !newest;
}

/* Removes all items and returns the oldest, or NULL if there is none. The others follow by `next`.
 * Called by one thread only. */
static inline struct bag_handoff_item *bag_handoff_take(struct bag_handoff *handoff)
{
    struct bag_handoff_item *newest = NULL, *oldest = NULL, *next;
    if (atomic_load_explicit(&handoff->newest, memory_order_relaxed))
        newest = atomic_exchange_explicit(&handoff->newest, NULL, memory_order_acquire);
    for (; newest; newest = next) {
        next = newest->next;
        newest->next = oldest;
        oldest = newest;
    }
    return oldest;
}
