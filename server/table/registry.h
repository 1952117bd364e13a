/* The models that are served: tables and collections, their versions and rules.
 *
 * Filled while starting, by one thread; from then on read by all without a lock. Owns the names and
 * the tables' memory. */
#ifndef BAG_REGISTRY_H
#define BAG_REGISTRY_H

#include "load.h"

/* The name of a table model's output, and of the one that holds a collection's features side by
 * side. */
#define BAG_EMBEDDINGS "embeddings"

/* What a model pools: the bags of one table. */
struct bag_feature {
    char *name;                            /* of its output; owned */
    const char *table;                     /* the name of the model whose table it is; borrowed */
    struct bag_rules rules;                /* complete: output_dtype is set */
    const struct bag_table_memory *memory; /* borrowed from that model */
    struct bag_projection_memory *projection; /* owned; NULL: none */
};

/* A model of a table has one feature, named BAG_EMBEDDINGS, and its memory is its own. A collection
 * has features of other models. */
struct bag_model {
    char *name;
    char *version; /* decimal, from 1 */
    uint64_t version_number;
    struct bag_table_memory *memory; /* owned; NULL: a collection */
    struct bag_feature *features;    /* owned */
    size_t num_features;
    const struct bag_feature **sorted; /* owned; a collection's features by name */
    size_t typical_row_bytes;          /* the mean over the features */
    bool projects;                     /* some feature does */
};

struct bag_registry {
    struct bag_model *models; /* sorted by name, then by version */
    size_t count;
};

/* Room for `capacity` models. */
bool bag_registry_init(struct bag_registry *registry, size_t capacity);
void bag_registry_free(struct bag_registry *registry);

/* Adds a model of a table under copies of its name and version and takes over `memory` and
 * `projection`, which may be NULL. Name and
 * version are valid and not there yet, and there is room (the configuration has seen to both).
 * False without memory; then both stay the caller's. */
bool bag_registry_add(struct bag_registry *registry, const char *name, const char *version,
                      const struct bag_rules *rules, const struct bag_table_memory *memory,
                      struct bag_projection_memory *projection);

/* Adds a collection likewise, of copies of `count` features, at least 1. What is looked at of them
 * is their names, rules and projections, which are taken over, and `table`, a model of a table that
 * has been added: its highest version gives the memory, and must not be freed before the
 * collection. */
bool bag_registry_add_collection(struct bag_registry *registry, const char *name,
                                 const char *version, const struct bag_feature *features,
                                 size_t count);

/* The feature of that name, which need not end with a NUL; NULL where there is none. */
const struct bag_feature *bag_model_feature(const struct bag_model *model, const char *name,
                                            size_t name_bytes);

/* The elements of a feature's output after the first dimension. */
static inline size_t bag_feature_columns(const struct bag_feature *feature)
{
    return feature->projection ? feature->projection->projection.columns
                               : feature->memory->table.row_elements;
}

static inline bool bag_model_is_collection(const struct bag_model *model)
{
    return !model->memory;
}

/* All versions of a model: the first of them, and how many follow it (itself included); NULL where
 * the name is unknown. */
const struct bag_model *bag_registry_versions(const struct bag_registry *registry, const char *name,
                                              size_t *count);

/* A version of a model; the highest one where `version` is empty. NULL where there is none. */
const struct bag_model *bag_registry_find(const struct bag_registry *registry, const char *name,
                                          const char *version);

#endif
