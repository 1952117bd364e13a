/* Finding the files of a configured table: one file of some format, files in parts, or files in a
 * folder, with keys or without. */
#pragma once

#include "source.h"

/* Returns whether a file in a folder is a table, by the end of its name. */
bool bag_source_is_table(const char *name);

/* Finds and opens the files of a model of a table: sets files, key_files, scales, beside and
 * deltas. Returns false and sets *problem if they are missing or wrong (BAG_ERROR_FILE) or the
 * configuration does not name one table (BAG_ERROR_CONFIGURATION). */
bool bag_source_locate(struct bag_source *source, struct bag_problem *problem);
