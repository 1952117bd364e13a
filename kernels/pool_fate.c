/* What becomes of single entries; see pool_fate.h. */
#include "pool_fate.h"

#include "pool_block.h"

const char *const bag_entry_status_names[BAG_ENTRY_COUNT] = {
#define BAG_X(id, name) [BAG_ENTRY_##id] = name,
    BAG_ENTRY_STATUSES(BAG_X)
#undef BAG_X
};

enum bag_entry_status bag_pool_entry_status(const struct bag_pool_args *args, size_t entry)
{
    int64_t row = bag_id_at(&args->indices, entry);
    if (bag_keeps(args, entry, row))
        return BAG_ENTRY_KEPT;
    if (args->padding_row >= 0 && row == args->padding_row)
        return BAG_ENTRY_PADDING;
    if (row >= args->table.num_rows || (row < 0 && !args->prunes))
        return BAG_ENTRY_OUTSIDE;
    return BAG_ENTRY_PRUNED;
}

size_t bag_pool_first_entry(const struct bag_pool_args *args, size_t bag)
{
    size_t entry, hint = 0;
    bag_pool_bounds(args, bag, bag, &hint, &entry);
    return entry;
}
