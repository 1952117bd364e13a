/* What there is to serve: the models that are named by flags and in the configuration file, and
 * those found in a folder, each version with a source that is not open yet.
 *
 *   DIR/NAME.npy                    model NAME, version 1; likewise .npz and .safetensors
 *   DIR/NAME/config.json            optionally, keys for all versions of the model
 *   DIR/NAME/VERSION/TABLE.npy      one table (a file, or files that belong together), with
 *   DIR/NAME/VERSION/config.json    optionally, keys of this version; or alone, with the features
 *                                   of a collection
 *
 * Of a model of shards there are the versions that all of its shards have; where there are none,
 * one with the reason.
 *
 * Names with a leading dot are skipped (mounted volumes hold some); other files are ignored. A
 * version of a folder that cannot be served has a source with a reason. Used by one thread at a
 * time. */
#ifndef BAG_MODELS_CATALOG_H
#define BAG_MODELS_CATALOG_H

#include "server/tables/source.h"

/* A source, by its name, which stays when the source is taken. */
struct bag_named_source {
    char name[129];
    struct bag_source **place;
};

struct bag_catalog {
    struct bag_source **sources; /* owned; in the order in which they were named and found; an
                                    element may be NULL: it was taken */
    size_t count;
    struct bag_named_source *named; /* owned: the same by name, and of one name in their order */
};

/* Looks for them. `is_first`: what is ignored is logged. False with *problem where something that
 * is named is wrong, the folder cannot be read, or two have one name and version; what serves is
 * then not touched. In any case bag_catalog_free is due. */
bool bag_catalog_scan(struct bag_catalog *catalog, const struct bag_config *config,
                      struct bag_shards *shards, bool is_first, struct bag_problem *problem);

void bag_catalog_free(struct bag_catalog *catalog);

/* The sources of a model, also those that were taken since; NULL with *count 0: there are none. */
const struct bag_named_source *bag_catalog_find(const struct bag_catalog *catalog, const char *name,
                                                size_t *count);

/* ---- scanning (folder.c): private to the catalog ----------------------------------------------
 */

struct bag_scan {
    const struct bag_config *config;
    struct bag_shards *shards;
    struct bag_config found;     /* models alone */
    size_t num_named;            /* of them, at the beginning */
    struct bag_remote **remotes; /* owned; of the first num_remotes what shards have; NULL: it is
                                    no model of shards, or cannot be served */
    size_t num_remotes;
    bool is_first;
};

/* Adds what is in the folder of models. */
bool bag_scan_folder(struct bag_scan *scan, struct bag_problem *problem);

#endif
