/* From configured models to loaded ones.
 *
 * bag_startup_open looks at every file and rejects what cannot be served, in a moment;
 * bag_startup_load then reads them, which may take minutes and runs on a worker. */
#ifndef BAG_STARTUP_H
#define BAG_STARTUP_H

#include "server/table/registry.h"
#include "service.h"

struct bag_startup {
    const struct bag_config *config; /* borrowed */
    struct bag_table_file *files;    /* owned; one for each model, unused for demo tables */
    size_t total_bytes;              /* of all tables */
    bag_gemm_fn *gemm;               /* NULL: no projection needs one */
};

/* Opens every file, checks its model's rules against it, and that memory will suffice. In any case
 * bag_startup_close is due. */
bool bag_startup_open(struct bag_startup *startup, const struct bag_config *config,
                      struct bag_problem *problem);
void bag_startup_close(struct bag_startup *startup);

/* Loads all tables into the registry, with a progress bar on a terminal and log lines elsewhere. */
bool bag_startup_load(struct bag_startup *startup, struct bag_registry *registry,
                      struct bag_problem *problem);

#endif
