/* Files that are read whole: configuration, tokens. On any thread. */
#ifndef BAG_TEXT_FILE_H
#define BAG_TEXT_FILE_H

#include "proto/problem.h"

#include <stddef.h>

/* Reads a file of at most `max_bytes`. Returns its text, owned by the caller and ended with a NUL,
 * and sets *bytes; or NULL with *problem naming the path. */
char *bag_file_read(const char *path, size_t max_bytes, size_t *bytes, struct bag_problem *problem);

/* The same for a file of secrets; rejected where others than its owner may read or write it. */
char *bag_file_read_private(const char *path, size_t max_bytes, size_t *bytes,
                            struct bag_problem *problem);

#endif
