/* The elements of an open table file -> memory, by several threads. Private to server/table. */
#ifndef BAG_TABLE_READ_H
#define BAG_TABLE_READ_H

#include "load.h"

/* Reads all elements into `rows`, which has npy->data_bytes. Starts up to `threads` readers and
 * joins them; `progress` (may be NULL) is called by the caller's own thread. */
bool bag_table_read(int fd, const struct bag_npy *npy, unsigned threads,
                    bag_load_progress *progress, void *context, void *rows,
                    struct bag_problem *problem);

#endif
