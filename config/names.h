/* Names, or names with versions, and the place that each is at: found by hash, as a configuration
 * or a folder may have tens of thousands. */
#ifndef BAG_CONFIG_NAMES_H
#define BAG_CONFIG_NAMES_H

#include "config.h"

/* Where the name is; NULL where it is not there. `version` is NULL for a name alone, which is
 * another entry than the name with a version. Valid until the next bag_names_reserve. */
size_t *bag_names_find(const struct bag_names *names, const char *name, const char *version);

/* Makes room for so many more; false without memory. */
bool bag_names_reserve(struct bag_names *names, size_t count);

/* Adds what is not there, in room that was reserved. The texts are borrowed. */
void bag_names_put(struct bag_names *names, const char *name, const char *version, size_t place);

void bag_names_free(struct bag_names *names);

#endif
