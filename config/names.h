/* A hash map from a name, or a name with a version, to an index.
 *
 * A configuration or a folder may have tens of thousands of models, and each of them is looked up
 * by name while it is added. The map borrows the texts: it must be freed, or its entries forgotten,
 * before the models that own them. Entries are never removed one by one. */
#pragma once

#include "config.h"

/* Returns the index that is stored for a name, or NULL if there is none. `version` may be NULL: a
 * name alone is a different entry from the name with a version. The result is valid until the next
 * bag_names_reserve. */
size_t *bag_names_find(const struct bag_names *names, const char *name, const char *version);

/* Reserves capacity for `count` more entries. Returns false if memory is exhausted. */
bool bag_names_reserve(struct bag_names *names, size_t count);

/* Adds an entry that does not exist yet, with the index `place`, in reserved capacity. The texts
 * are borrowed. */
void bag_names_put(struct bag_names *names, const char *name, const char *version, size_t place);

/* Frees the slots and empties the map. The names are not freed. */
void bag_names_free(struct bag_names *names);
