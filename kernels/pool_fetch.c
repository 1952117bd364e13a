/* Prefetches rows before the loop, which prefetches only those that are further ahead. */
#include "pool_loop.h"

void bag_fetch_rows(const struct bag_pool_args *args, size_t first, size_t end)
{
    const size_t row_bytes = args->walk->row_bytes;
    for (; first < end; first++) {
        uintptr_t id = (uintptr_t)bag_id_at(&args->indices, first);
        uintptr_t row = (uintptr_t)args->table.rows + id * row_bytes;
        bag_fetch_lines(2, (const char *)row, row_bytes);
        if (args->walk->straddles)
            bag_fetch_line(2, (const char *)(row + row_bytes - 1));
    }
    /* GCC drops calls of a function that only prefetches. */
    __asm__ volatile("");
}

void bag_pool_prefetch_rows(const struct bag_pool_args *args)
{
    bag_fetch_rows(args, 0, args->indices.count);
}

void bag_pool_far(const struct bag_pool_args *args, const struct bag_tiles *tiles, size_t first_bag,
                  size_t end_bag, char *out)
{
    const size_t ahead = args->ahead;
    /* bag_pool_prefetch has prefetched the rows of calls with few indices. */
    if (args->indices.count > args->walk->early) {
        const size_t first = bag_offset_at(args, first_bag), end = bag_offset_at(args, end_bag);
        bag_fetch_rows(args, first, end - first < ahead ? end : first + ahead);
    }
    tiles->loop(args, tiles, first_bag, end_bag, out);
}
