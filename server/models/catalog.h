/* The catalog: all models that could be served. They are named by flags and in the configuration
 * file, or found in a folder. Each version has a source, which is not open yet.
 *
 *   DIR/NAME.npy                    model NAME, version 1; likewise .npz and .safetensors
 *   DIR/NAME/config.json            optionally, keys for all versions of the model
 *   DIR/NAME/VERSION/TABLE.npy      one table (a file, or files that belong together), with
 *   DIR/NAME/VERSION/config.json    optionally, keys of this version; or alone, with the features
 *                                   of a collection
 *
 * A model on shards has the versions that all of its shards have. If there are none, it has one
 * version with the reason.
 *
 * Names with a leading dot are skipped (mounted volumes have some); other files are ignored. A
 * version in the folder that cannot be served has a source with a reason. Used by one thread at a
 * time. */
#pragma once

#include "server/tables/source.h"

/* The result of a scan. */
struct bag_catalog {
    struct bag_source **sources; /* owned, with elements; in the order in which they were named and
                                    found; NULL: the source was taken */
    size_t count;
};

/* Finds all models of the configuration. `options` are those of the start, which do not change when
 * the configuration is read again. If `is_first`, logs which files are ignored. Returns false and
 * sets *problem if a model that is named is wrong, the folder cannot be read, or there is no model
 * at all. If the folder has a version that was found or named before, the earlier one gets a reason
 * and cannot be served: the scan does not know which of the two is meant. The caller must call
 * bag_catalog_free() in either case. */
bool bag_catalog_scan(struct bag_catalog *catalog, const struct bag_config *config,
                      const struct bag_option_values *options, struct bag_shards *shards,
                      bool is_first, struct bag_problem *problem);

void bag_catalog_free(struct bag_catalog *catalog);

/* ---- scanning (folder.c): private to the catalog --------------------------------------------- */

/* The state of a scan, until its sources are made. */
struct bag_scan {
    const struct bag_config *config;
    const struct bag_option_values *options;
    struct bag_shards *shards;
    struct bag_config found;     /* models alone */
    size_t num_named;            /* the first ones, which are named */
    struct bag_remote **remotes; /* owned, with elements; of the first num_remotes models what
                                    shards have; NULL: not on shards, or cannot be served */
    size_t num_remotes;
    bool is_first;
};

/* Adds the models in the folder of models to scan->found. Versions that cannot be served get a
 * reason. Returns false and sets *problem if the folder cannot be read or without memory. */
bool bag_scan_folder(struct bag_scan *scan, struct bag_problem *problem);
