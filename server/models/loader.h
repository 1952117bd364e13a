/* The loader: the one thread that changes which models are served.
 *
 * bag_loader_open finds and checks every file, in a moment. The thread then reads their elements,
 * which may take minutes, and publishes the models. From then on it makes the changes that are
 * submitted to it, one after the other, looks for new files where it polls, and frees the snapshots
 * that nobody reads any more: at low priority, and on no worker, so that neither holds up the
 * other. */
#ifndef BAG_MODELS_LOADER_H
#define BAG_MODELS_LOADER_H

#include "change.h"

/* A change that somebody asks for. Owned by whoever submits it; the loader's until on_done. */
struct bag_change {
    enum bag_change_kind kind;  /* MODELS or CONFIGURATION */
    struct bag_control control; /* of MODELS; owned by the change */
    char who[96];               /* asked for it; for the log */
    /* It is made, or cannot be: told once, on the loader's thread. May free the change. */
    void (*on_done)(struct bag_change *change);
    void *context;
    bool failed; /* set before on_done, */
    struct bag_problem problem;
    struct bag_change *next;
};

struct bag_loader {
    struct bag_changer changer;
    struct bag_load_status status;
    const struct bag_config *config; /* borrowed; options */
    struct bag_shards *shards;       /* owned */
    struct bag_config reread;        /* the last one that was read again; empty: none was */
    struct bag_change_plan *first;   /* owned; until it is carried out */
    size_t first_models, first_bytes;
    atomic_bool cancelled;
    uv_thread_t thread;
    uv_mutex_t lock; /* guards what follows */
    uv_cond_t wake;
    struct bag_change *first_change, **last_change; /* that wait, */
    size_t num_changes;                             /* and how many */
    bool stop, collect, polls_shards;               /* what the thread is to do */
    bool failed;                                    /* the models cannot be published, */
    struct bag_problem problem;                     /* and why */
    /* Set before the start. Told on the loader's thread when bag_loader_succeeded may be asked. */
    void (*on_loaded)(void *context);
    /* Reads the whole configuration again into *config, which the loader frees. */
    bool (*configure)(void *context, struct bag_config *config, struct bag_problem *problem);
    void *context;
};

/* Opens the sources of all models, and checks that memory will suffice. In any case
 * bag_loader_close is due. `gemm` loads what multiplies, where projections need it. */
bool bag_loader_open(struct bag_loader *loader, const struct bag_config *config,
                     struct bag_registry *registry,
                     bag_gemm_fn *(*load_gemm)(struct bag_problem *problem),
                     struct bag_problem *problem);
void bag_loader_close(struct bag_loader *loader);

/* Whether every version in the folder of models can be loaded, also those that are not served: all
 * that loading checks, without memory for their elements; for --check (check.c). After
 * bag_loader_open. */
bool bag_loader_check(const struct bag_loader *loader, struct bag_problem *problem);

/* The sources of the models that will be served, in their order, one with each call; NULL after the
 * last. *cursor is 0 before the first. Before the start. */
const struct bag_source *bag_loader_next(const struct bag_loader *loader, size_t *cursor);

/* Publishes the first snapshot, in which every model is LOADING. */
bool bag_loader_announce(struct bag_loader *loader, struct bag_problem *problem);

/* Starts the thread, with a progress bar on a terminal and log lines elsewhere. */
bool bag_loader_start(struct bag_loader *loader, struct bag_problem *problem);

/* Whether the models were published; otherwise *problem says why not. On any thread. */
bool bag_loader_succeeded(struct bag_loader *loader, struct bag_problem *problem);

#define BAG_MAX_QUEUED_CHANGES 64

/* Makes a change after those submitted before. On any thread, once the models were published. False
 * where BAG_MAX_QUEUED_CHANGES wait already; then it stays the caller's. */
bool bag_loader_submit(struct bag_loader *loader, struct bag_change *change,
                       struct bag_problem *problem);

/* The server stops: what is being loaded is given up, and changes fail with DRAINING. On any
 * thread. */
void bag_loader_cancel(struct bag_loader *loader);

/* Ends the thread. */
void bag_loader_stop(struct bag_loader *loader);

/* ---- private to server/models (poll.c) ------------------------------------------------------- */

/* Changes models whose files are others than before. */
void bag_loader_poll_files(struct bag_loader *loader);

/* Changes models of which shards have other versions than before, whatever model_control says of
 * files. Where one of them cannot change, the others do. */
void bag_loader_poll_fronts(struct bag_loader *loader);

#endif
