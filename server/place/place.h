/* `bagserve place`: tables that are too large for one machine, over several. What is read, and what
 * is written; pack.h decides in between. */
#ifndef BAG_PLACE_H
#define BAG_PLACE_H

#include "config/placement.h"
#include "kernels/part.h"
#include "pack.h"
#include "proto/embedded.h"

/* What is to be placed. */
struct bag_place {
    struct bag_config config; /* owned; options and models of CONFIG */
    char *text;               /* owned; CONFIG */
    size_t text_bytes;
    const char *path;               /* of CONFIG; borrowed */
    const char *address;            /* of a node, with {index} in place of its number; borrowed */
    bool by_columns;                /* how dense tables are cut; otherwise by rows */
    enum bag_part_by *ways;         /* owned; how each item is cut */
    struct bag_names names;         /* owned; of the items, and their places */
    struct bag_placement placement; /* an item for each name of a table, in their order */
};

void bag_place_free(struct bag_place *place);

/* Reads CONFIG and the heads of its tables' files: items with their bytes. In any case
 * bag_place_free is due. */
bool bag_place_read(struct bag_place *place, const char *path, struct bag_problem *problem);

/* Whether a model has files: the front keeps others as they are. */
bool bag_place_is_table(const struct bag_model_config *model);

/* What earlier runs wrote into the folder: where items were. One that has none is no error. */
bool bag_place_read_before(struct bag_place *place, const char *folder,
                           struct bag_problem *problem);

/* Adds what a server's GET /metrics, which the file holds, says of how much is asked of items: the
 * bytes that were gathered for a model, or for a collection, shared equally by its features. */
bool bag_place_read_metrics(struct bag_place *place, const char *path, struct bag_problem *problem);

/* Writes the files of a placement into the folder, which is made where it is not there, and removes
 * those of nodes that are gone. */
bool bag_place_write(const struct bag_place *place, const char *folder,
                     struct bag_problem *problem);

/* Manifests for Kubernetes that need no change (deploy/kubernetes/overlays/shards). */
extern const struct bag_embedded bag_place_manifests[];

#endif
