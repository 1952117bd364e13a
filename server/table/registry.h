/* The models that are served: their tables, versions and rules.
 *
 * Filled while starting, by one thread; from then on read by all without a lock. Owns the names and
 * the tables' memory. */
#ifndef BAG_REGISTRY_H
#define BAG_REGISTRY_H

#include "load.h"

struct bag_model {
    char *name;
    char *version; /* decimal, from 1 */
    uint64_t version_number;
    struct bag_rules rules; /* complete: output_dtype is set */
    struct bag_table_memory memory;
};

struct bag_registry {
    struct bag_model *models; /* sorted by name, then by version */
    size_t count;
};

/* Room for `capacity` models. */
bool bag_registry_init(struct bag_registry *registry, size_t capacity);
void bag_registry_free(struct bag_registry *registry);

/* Adds a model under copies of its name and version and takes over `memory`. Name and version are
 * valid and not there yet, and there is room (the configuration has seen to both). False without
 * memory; then `memory` stays the caller's. */
bool bag_registry_add(struct bag_registry *registry, const char *name, const char *version,
                      const struct bag_rules *rules, const struct bag_table_memory *memory);

/* All versions of a model: the first of them, and how many follow it (itself included); NULL where
 * the name is unknown. */
const struct bag_model *bag_registry_versions(const struct bag_registry *registry, const char *name,
                                              size_t *count);

/* A version of a model; the highest one where `version` is empty. NULL where there is none. */
const struct bag_model *bag_registry_find(const struct bag_registry *registry, const char *name,
                                          const char *version);

#endif
