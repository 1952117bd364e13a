/* From configured models to loaded ones.
 *
 * bag_startup_open finds and checks every file, in a moment; bag_startup_load then reads their
 * elements, which may take minutes and runs on a worker. */
#ifndef BAG_STARTUP_H
#define BAG_STARTUP_H

#include "kernels/project.h"
#include "server/table/registry.h"
#include "server/table/source.h"

struct bag_startup {
    struct bag_sources sources;
    bag_gemm_fn *gemm; /* NULL: no projection needs one */
};

/* Opens the sources of all models, and checks that memory will suffice. In any case
 * bag_startup_close is due. */
bool bag_startup_open(struct bag_startup *startup, const struct bag_config *config,
                      struct bag_problem *problem);
void bag_startup_close(struct bag_startup *startup);

/* Loads all models into the registry, with a progress bar on a terminal and log lines elsewhere. */
bool bag_startup_load(const struct bag_startup *startup, struct bag_registry *registry,
                      struct bag_problem *problem);

#endif
