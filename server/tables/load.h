/* Loading the table of an open source. See source.h for the life of a table. */
#pragma once

#include "source.h"

/* Returns the bytes of files that loading reads: 0 for a table that is computed, and of a mapped
 * one only the keys unless it is read before it is served. */
size_t bag_source_read_bytes(const struct bag_source *source);

/* Loads the table; the caller gets the first reference. Returns NULL and sets *problem if files
 * changed or cannot be read or mapped (BAG_ERROR_FILE, BAG_ERROR_SYSTEM), if keys are wrong
 * (BAG_ERROR_FILE), if loading was cancelled (BAG_ERROR_DRAINING), or without memory
 * (BAG_ERROR_NO_MEMORY). */
struct bag_stored_table *bag_source_load(const struct bag_source *source,
                                         const struct bag_load_options *options,
                                         struct bag_problem *problem);

/* Builds the index of the keys alone. The caller frees *index. Fails as bag_source_load does. */
bool bag_source_load_keys(const struct bag_source *source, unsigned threads,
                          struct bag_keys_index *index, struct bag_problem *problem);
