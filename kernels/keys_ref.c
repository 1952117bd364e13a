/* Finds keys in plain C, for instruction sets that have no better way. */
#include "keys_line.h"
#include "pool_loop.h"

static inline unsigned match_slots(const struct bag_keys *keys, const struct bag_keys_line *line,
                                   uint64_t word)
{
    return bag_keys_match(keys, line, word) | 1u << BAG_KEYS_PER_LINE;
}

#define MATCH_SLOTS match_slots
#include "keys_find.h"

size_t bag_ref_keys_find(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows)
{
    return find_keys(keys, ids, rows);
}
