/* Small files, read whole. */
#ifndef BAG_FILE_H
#define BAG_FILE_H

#include "proto/problem.h"

/* Reads a file of at most `max_bytes`. Returns its text, owned by the caller and ended with a NUL,
 * and sets *bytes; or NULL with *problem naming the path. */
char *bag_file_read(const char *path, size_t max_bytes, size_t *bytes, struct bag_problem *problem);

/* Configuration files are read up to this. */
#define BAG_CONFIG_FILE_BYTES (16u << 20)

#endif
