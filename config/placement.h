/* The configurations of servers that share the tables of one: of each node, which has some tables
 * or parts of them, and of the front, which asks the nodes. */
#ifndef BAG_PLACEMENT_H
#define BAG_PLACEMENT_H

#include "config.h"
#include "names.h"

/* Where a table is. All is borrowed. */
struct bag_placed {
    const char *name;
    const char *by;        /* how it is cut, see kernels/part.h */
    const uint32_t *nodes; /* of each part */
    uint32_t parts;        /* 1: it is whole */
};

struct cJSON;

/* A configuration file whose tables were placed. */
struct bag_divided {
    struct cJSON *tree;              /* owned */
    struct bag_names names;          /* of what was placed, and its place in the list */
    const struct bag_placed *placed; /* borrowed */
    size_t count;
};

/* Takes the text of a file that bag_config_apply_file accepts. Paths that are not absolute get
 * `folder` in front, which is. In any case bag_divided_free is due. */
bool bag_divided_init(struct bag_divided *divided, const char *text, size_t text_bytes,
                      const char *folder, const struct bag_placed *placed, size_t count,
                      struct bag_problem *problem);
void bag_divided_free(struct bag_divided *divided);

/* The file of a node: all options, and of its tables each version, without projections: those are
 * of what the front adds up. On the heap; NULL without memory. */
char *bag_divided_node(const struct bag_divided *divided, uint32_t node);

/* The file of the front: all options, the tables as shards, with how they are shown and projected,
 * and the collections. `address` is that of a node, with {index} in place of its number. Likewise.
 */
char *bag_divided_front(const struct bag_divided *divided, const char *address);

/* The address of a node. Likewise. */
char *bag_divided_address(const char *address, uint32_t node);

/* Tells of each table in a node's file which part of it that is; 0 of 1: the whole. */
typedef void bag_placed_found(void *context, const char *name, uint32_t index, uint32_t of);
bool bag_divided_read(const char *text, size_t text_bytes, bag_placed_found *found, void *context,
                      struct bag_problem *problem);

#endif
