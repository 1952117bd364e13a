/* What becomes of single entries; see pool_fate.h. */
#include "pool_fate.h"

#include "pool_block.h"

const char *const bag_fate_names[BAG_FATE_COUNT] = {
#define BAG_X(id, name) [BAG_FATE_##id] = name,
    BAG_FATES(BAG_X)
#undef BAG_X
};

enum bag_fate bag_pool_fate(const struct bag_pool *pool, size_t entry)
{
    int64_t row = bag_id_at(&pool->indices, entry);
    if (bag_keeps(pool, entry, row))
        return BAG_FATE_KEPT;
    if (pool->padding_row >= 0 && row == pool->padding_row)
        return BAG_FATE_PADDING;
    if (row >= pool->table.num_rows || (row < 0 && !pool->prunes))
        return BAG_FATE_OUTSIDE;
    return BAG_FATE_PRUNED;
}

size_t bag_pool_first_entry(const struct bag_pool *pool, size_t bag)
{
    size_t entry, hint = 0;
    bag_pool_borders(pool, bag, bag, &hint, &entry);
    return entry;
}
