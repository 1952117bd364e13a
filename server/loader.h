/* The loader: the one thread that changes which models are served.
 *
 * bag_loader_open finds and checks every file, in a moment. The thread then reads their elements,
 * which may take minutes, publishes the models, and from then on frees the snapshots that nobody
 * reads any more. It is no worker, so that neither holds up the other. */
#ifndef BAG_LOADER_H
#define BAG_LOADER_H

#include "kernels/pool.h"
#include "server/table/registry.h"
#include "server/table/source.h"

#include <uv.h>

struct bag_loader {
    struct bag_sources sources;
    bag_gemm_fn *gemm;             /* NULL: no projection needs one */
    struct bag_registry *registry; /* borrowed */
    struct bag_updates *updates;   /* borrowed; NULL: rows never change */
    uv_thread_t thread;
    uv_mutex_t lock; /* guards what follows */
    uv_cond_t wake;
    bool stop, collect;         /* what the thread is to do */
    bool failed;                /* the models cannot be published, */
    struct bag_problem problem; /* and why */
    /* Told on the loader's thread when bag_loader_succeeded may be asked. Set before the start. */
    void (*on_loaded)(void *context);
    void *context;
};

/* Opens the sources of all models, and checks that memory will suffice. In any case
 * bag_loader_close is due. */
bool bag_loader_open(struct bag_loader *loader, const struct bag_config *config,
                     struct bag_problem *problem);
void bag_loader_close(struct bag_loader *loader);

/* Publishes the first snapshot, in which every model is LOADING. */
bool bag_loader_announce(struct bag_loader *loader, struct bag_registry *registry,
                         struct bag_problem *problem);

/* Starts the thread, with a progress bar on a terminal and log lines elsewhere. `on_loaded` and
 * `context` are set. */
bool bag_loader_start(struct bag_loader *loader, struct bag_problem *problem);

/* Whether the models were published; otherwise *problem says why not. On any thread. */
bool bag_loader_succeeded(struct bag_loader *loader, struct bag_problem *problem);

/* Ends the thread, once it has loaded. */
void bag_loader_stop(struct bag_loader *loader);

#endif
