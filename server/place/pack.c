/* Packing tables into nodes; see pack.h.
 *
 * The largest table goes first, each to the node that has the least so far; one that fits into no
 * node is cut into as few parts as fit. Where even that fails, the largest tables are cut for all
 * nodes, one more with each try: what is left is then small beside a node. */
#include "pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nodes that would differ by less than this part of the mean are left as they are. */
#define EVEN_ENOUGH 0.01

/* A placement in the making. */
struct packing {
    struct bag_placement *placement;
    struct bag_place_node *nodes;
    struct bag_place_item **order; /* owned; the largest first */
    double rate;                   /* of all items */
    uint32_t *chosen;              /* owned; room for a number of each node */
};

uint64_t bag_place_part_bytes(const struct bag_place_item *item, uint32_t parts)
{
    if (parts == 1)
        return item->bytes;
    double share = (double)item->keys / parts;
    double more = item->keys ? 4 * sqrt(share) / (double)item->keys : 0;
    uint64_t bytes = item->bytes / parts + (item->bytes % parts > 0);
    return bytes + (uint64_t)(more * (double)item->bytes) + item->kept_bytes;
}

void bag_placement_free(struct bag_placement *placement)
{
    for (size_t i = 0; i < placement->num_items; i++) {
        free(placement->items[i].before);
        free(placement->items[i].nodes);
    }
    free(placement->items);
    free(placement->nodes);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* The larger one of a node's, or a table's, shares of all bytes and of what is asked of all. */
static double share_of(const struct packing *packing, double bytes, double rate)
{
    double by_bytes = packing->placement->bytes ? bytes / (double)packing->placement->bytes : 0;
    double by_rate = packing->rate > 0 ? rate / packing->rate : 0;
    return by_bytes > by_rate ? by_bytes : by_rate;
}

static double node_share(const struct packing *packing, uint32_t node)
{
    return share_of(packing, (double)packing->nodes[node].bytes, packing->nodes[node].rate);
}

static bool holds(const struct bag_place_item *item, uint32_t node)
{
    for (uint32_t i = 0; i < item->parts; i++) {
        if (item->nodes[i] == node)
            return true;
    }
    return false;
}

/* The node with the least share that has room for so many bytes and none of `chosen`; num_nodes
 * where there is none. */
static uint32_t emptiest(const struct packing *packing, uint64_t bytes, uint32_t num_chosen)
{
    uint32_t best = packing->placement->num_nodes;
    for (uint32_t node = 0; node < packing->placement->num_nodes; node++) {
        bool has_room = packing->nodes[node].bytes + bytes <= packing->placement->memory_bytes;
        for (uint32_t i = 0; has_room && i < num_chosen; i++)
            has_room = packing->chosen[i] != node;
        if (has_room && (best == packing->placement->num_nodes ||
                         node_share(packing, node) < node_share(packing, best)))
            best = node;
    }
    return best;
}

/* Puts so many bytes of an item on a node, or takes them away. */
static void count(struct packing *packing, const struct bag_place_item *item, uint32_t node,
                  bool added)
{
    struct bag_place_node *at = &packing->nodes[node];
    uint64_t bytes = bag_place_part_bytes(item, item->parts);
    at->bytes = added ? at->bytes + bytes : at->bytes - bytes;
    at->rate += (added ? item->rate : -item->rate) / item->parts;
}

/* Cuts an item into so many parts, 1 for none, and places them; false where they do not fit. */
static bool put(struct packing *packing, struct bag_place_item *item, uint32_t parts)
{
    uint64_t bytes = bag_place_part_bytes(item, parts);
    for (uint32_t i = 0; i < parts; i++) {
        packing->chosen[i] = emptiest(packing, bytes, i);
        if (packing->chosen[i] == packing->placement->num_nodes)
            return false;
    }
    item->parts = parts;
    for (uint32_t i = 0; i < parts; i++) {
        item->nodes[i] = packing->chosen[i];
        count(packing, item, item->nodes[i], true);
    }
    return true;
}

static uint32_t most_parts(const struct packing *packing, const struct bag_place_item *item)
{
    uint32_t nodes = packing->placement->num_nodes;
    return item->most_parts < nodes ? item->most_parts : nodes;
}

/* Whole, or in as few parts as fit. */
static bool put_somehow(struct packing *packing, struct bag_place_item *item)
{
    for (uint32_t parts = 1; parts <= most_parts(packing, item); parts++) {
        if (put(packing, item, parts))
            return true;
    }
    return false;
}

/* ---- from nothing ---------------------------------------------------------------------------- */

static void clear(struct packing *packing)
{
    struct bag_placement *placement = packing->placement;
    memset(packing->nodes, 0, placement->num_nodes * sizeof *packing->nodes);
    for (size_t i = 0; i < placement->num_items; i++)
        placement->items[i].parts = 0;
}

/* Places all, the largest `num_cut` of them in as many parts as can be. */
static bool pack_afresh(struct packing *packing, size_t num_cut)
{
    clear(packing);
    for (size_t i = 0; i < packing->placement->num_items; i++) {
        struct bag_place_item *item = packing->order[i];
        if (!(i < num_cut && put(packing, item, most_parts(packing, item))) &&
            !put_somehow(packing, item))
            return false;
    }
    return true;
}

static bool pack_somehow(struct packing *packing)
{
    size_t count = packing->placement->num_items;
    while (count > 0 && most_parts(packing, packing->order[count - 1]) == 1)
        count--;
    for (size_t cut = 0;; cut = cut < 64 ? cut + 1 : cut * 2) {
        if (pack_afresh(packing, cut))
            return true;
        if (cut >= count)
            return false;
    }
}

/* ---- from a placement that was before -------------------------------------------------------- */

/* Takes over what was where it was, but for nodes that are gone and parts that can no longer be. */
static void take_over(struct packing *packing)
{
    struct bag_placement *placement = packing->placement;
    clear(packing);
    for (size_t i = 0; i < placement->num_items; i++) {
        struct bag_place_item *item = &placement->items[i];
        bool stays = item->num_before > 0 && item->num_before <= most_parts(packing, item);
        for (uint32_t j = 0; stays && j < item->num_before; j++)
            stays = item->before[j] < placement->num_nodes;
        if (!stays)
            continue;
        item->parts = item->num_before;
        memcpy(item->nodes, item->before, item->parts * sizeof *item->nodes);
        for (uint32_t j = 0; j < item->parts; j++)
            count(packing, item, item->nodes[j], true);
    }
}

/* Takes the smallest tables from nodes that have grown too full. */
static void evict(struct packing *packing)
{
    for (uint32_t node = 0; node < packing->placement->num_nodes; node++) {
        for (size_t i = packing->placement->num_items; i-- > 0;) {
            struct bag_place_item *item = packing->order[i];
            if (packing->nodes[node].bytes <= packing->placement->memory_bytes)
                break;
            if (!holds(item, node))
                continue;
            for (uint32_t j = 0; j < item->parts; j++)
                count(packing, item, item->nodes[j], false);
            item->parts = 0;
        }
    }
}

/* The part whose move brings two nodes nearest to each other, and no more than `budget` bytes;
 * NULL: none does. */
static struct bag_place_item *find_move(const struct packing *packing, uint32_t from, uint32_t to,
                                        uint64_t budget)
{
    double gap = node_share(packing, from) - node_share(packing, to), nearest = gap;
    struct bag_place_item *best = NULL;
    for (size_t i = 0; i < packing->placement->num_items; i++) {
        struct bag_place_item *item = packing->order[i];
        uint64_t bytes = bag_place_part_bytes(item, item->parts);
        double left = fabs(gap - 2 * share_of(packing, (double)bytes, item->rate / item->parts));
        if (left < nearest && bytes <= budget && holds(item, from) && !holds(item, to) &&
            packing->nodes[to].bytes + bytes <= packing->placement->memory_bytes) {
            nearest = left;
            best = item;
        }
    }
    return best;
}

/* Moves what helps most from the fullest node that can give something to the emptiest one; false
 * where none can. */
static bool move_one(struct packing *packing, uint64_t *budget)
{
    const uint32_t nodes = packing->placement->num_nodes, to = emptiest(packing, 0, 0);
    struct bag_place_item *item = NULL;
    uint32_t from = 0;
    for (uint32_t node = 0; to < nodes && node < nodes; node++) {
        bool is_fuller = node_share(packing, node) - node_share(packing, to) > EVEN_ENOUGH / nodes;
        if (!is_fuller || (item && node_share(packing, node) <= node_share(packing, from)))
            continue;
        struct bag_place_item *found = find_move(packing, node, to, *budget);
        from = found ? node : from;
        item = found ? found : item;
    }
    if (!item)
        return false;
    for (uint32_t i = 0; i < item->parts; i++)
        item->nodes[i] = item->nodes[i] == from ? to : item->nodes[i];
    count(packing, item, from, false);
    count(packing, item, to, true);
    *budget -= bag_place_part_bytes(item, item->parts);
    return true;
}

/* Fills nodes that have joined from the fullest ones, moving at most one node's share. */
static void even_out(struct packing *packing)
{
    uint64_t budget = packing->placement->bytes / packing->placement->num_nodes;
    while (move_one(packing, &budget))
        ;
}

static bool pack_again(struct packing *packing)
{
    struct bag_placement *placement = packing->placement;
    take_over(packing);
    evict(packing);
    for (size_t i = 0; i < placement->num_items; i++) {
        if (packing->order[i]->parts == 0 && !put_somehow(packing, packing->order[i]))
            return false;
    }
    if (placement->num_nodes > placement->num_before)
        even_out(packing);
    return true;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Larger shares first, then in the order of the configuration. */
static int compare(const void *a, const void *b, void *context)
{
    const struct packing *packing = context;
    const struct bag_place_item *first = *(struct bag_place_item *const *)a;
    const struct bag_place_item *second = *(struct bag_place_item *const *)b;
    double of_first = share_of(packing, (double)first->bytes, first->rate);
    double of_second = share_of(packing, (double)second->bytes, second->rate);
    if (of_first != of_second)
        return of_first > of_second ? -1 : 1;
    return first < second ? -1 : first > second;
}

/* Makes room for so many nodes, in place of what was there. */
static bool resize(struct packing *packing, uint32_t nodes)
{
    struct bag_placement *placement = packing->placement;
    placement->num_nodes = nodes;
    packing->nodes = reallocarray(placement->nodes, nodes, sizeof *placement->nodes);
    placement->nodes = packing->nodes ? packing->nodes : placement->nodes;
    uint32_t *chosen = reallocarray(packing->chosen, nodes, sizeof *chosen);
    packing->chosen = chosen ? chosen : packing->chosen;
    bool ok = packing->nodes && chosen;
    for (size_t i = 0; ok && i < placement->num_items; i++) {
        struct bag_place_item *item = &placement->items[i];
        uint32_t *list = reallocarray(item->nodes, nodes, sizeof *list);
        item->nodes = list ? list : item->nodes;
        ok = list != NULL;
    }
    return ok;
}

static void count_moved(struct bag_placement *placement)
{
    placement->moved_bytes = 0;
    for (size_t i = 0; i < placement->num_items; i++) {
        const struct bag_place_item *item = &placement->items[i];
        for (uint32_t j = 0; item->num_before > 0 && j < item->parts; j++) {
            bool stays = item->parts == item->num_before && item->nodes[j] == item->before[j];
            placement->moved_bytes += stays ? 0 : bag_place_part_bytes(item, item->parts);
        }
    }
}

static bool reject(const struct bag_placement *placement, uint32_t nodes,
                   struct bag_problem *problem)
{
    const struct bag_place_item *largest = NULL;
    for (size_t i = 0; i < placement->num_items; i++) {
        const struct bag_place_item *item = &placement->items[i];
        uint64_t bytes = bag_place_part_bytes(item, item->most_parts);
        if (bytes > placement->memory_bytes && (!largest || item->bytes > largest->bytes))
            largest = item;
    }
    if (largest)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "table '%s' takes %llu bytes and can be cut into %u parts; one of "
                               "them does not fit into --memory (%llu bytes)",
                               largest->name, (unsigned long long)largest->bytes,
                               largest->most_parts, (unsigned long long)placement->memory_bytes);
    return bag_problem_set(
        problem, BAG_ERROR_CONFLICT,
        "the tables take %llu bytes, and do not fit into %u nodes of %llu bytes; "
        "give more --nodes or --memory, or leave --nodes out",
        (unsigned long long)placement->bytes, nodes, (unsigned long long)placement->memory_bytes);
}

/* The fewest nodes that could hold all bytes. */
static uint64_t fewest(const struct bag_placement *placement)
{
    uint64_t memory = placement->memory_bytes, nodes = placement->bytes / memory;
    nodes += placement->bytes % memory > 0;
    return nodes ? nodes : 1;
}

bool bag_place_pack(struct bag_placement *placement, struct bag_problem *problem)
{
    struct packing packing = {.placement = placement};
    uint64_t first = placement->num_nodes, last = placement->num_nodes;
    bool packed = false, has_memory;
    placement->bytes = 0;
    packing.order = calloc(placement->num_items ? placement->num_items : 1, sizeof *packing.order);
    has_memory = packing.order != NULL;
    for (size_t i = 0; has_memory && i < placement->num_items; i++) {
        placement->bytes += placement->items[i].bytes;
        packing.rate += placement->items[i].rate;
        packing.order[i] = &placement->items[i];
    }
    if (has_memory)
        qsort_r(packing.order, placement->num_items, sizeof *packing.order, compare, &packing);
    if (first == 0) {
        first = fewest(placement);
        if (first < placement->num_before)
            first = placement->num_before;
        last = BAG_PLACE_MAX_NODES;
    }
    for (uint64_t nodes = first; has_memory && !packed && nodes <= last; nodes++) {
        has_memory = resize(&packing, (uint32_t)nodes);
        packed = has_memory &&
                 ((placement->num_before && pack_again(&packing)) || pack_somehow(&packing));
    }
    free(packing.order);
    free(packing.chosen);
    if (!has_memory)
        return bag_problem_no_memory(problem);
    if (!packed)
        return reject(placement, (uint32_t)last, problem);
    count_moved(placement);
    return true;
}
