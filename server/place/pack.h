/* Which table is on which node: packing, which knows bytes and rates alone.
 *
 * A table is whole where it fits into a node, and otherwise in parts, each on another node. What
 * was placed before stays where it is as far as it can, so that little moves when a node joins.
 * Pure: equal input gives equal output. */
#ifndef BAG_PLACE_PACK_H
#define BAG_PLACE_PACK_H

#include "proto/problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BAG_PLACE_MAX_NODES 1024

/* One table. */
struct bag_place_item {
    const char *name;    /* borrowed; for problems */
    uint64_t bytes;      /* of all of it */
    uint64_t keys;       /* of a keyed table, which are spread by hash; 0: it is dense */
    uint64_t kept_bytes; /* that each part has beside its share */
    double rate;         /* what is asked of it, in any unit; 0: not known */
    uint32_t most_parts; /* into which it can be cut, at least 1 */
    uint32_t *before;    /* owned; the node of each part in the placement before */
    uint32_t num_before; /* parts then; 0: it was not placed */
    uint32_t *nodes;     /* owned; the node of each part; set by packing */
    uint32_t parts;      /* 1: it is whole */
};

struct bag_place_node {
    uint64_t bytes;
    double rate;
};

struct bag_placement {
    struct bag_place_item *items; /* owned */
    size_t num_items;
    uint64_t memory_bytes;        /* of each node */
    uint32_t num_before;          /* nodes of the placement before; 0: there was none */
    uint32_t num_nodes;           /* 0: as few as suffice; set by packing */
    struct bag_place_node *nodes; /* owned; set by packing, as what follows */
    uint64_t bytes;               /* of all items */
    uint64_t moved_bytes;         /* of items that were placed before, on another node than then */
};

/* Places all items. False with CONFLICT where they do not fit, and says what would do. */
bool bag_place_pack(struct bag_placement *placement, struct bag_problem *problem);

/* The most bytes of one part of an item that is cut into so many. Keys that are spread by hash are
 * not spread evenly: a part has four standard deviations more than its share. */
uint64_t bag_place_part_bytes(const struct bag_place_item *item, uint32_t parts);

/* Frees what the placement owns. */
void bag_placement_free(struct bag_placement *placement);

#endif
