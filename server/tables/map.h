/* Tables that stay in their files: mapped memory, whose pages the kernel reads as they are touched.
 *
 * A file may be truncated while it is mapped. Touching a page that is gone raises SIGBUS. Its
 * handler puts a page of zeros there, called a hole, so that the thread continues. Whoever pools
 * therefore checks the file's state afterwards:
 *
 *   epoch = bag_map_epoch()
 *   pool
 *   bag_map_refresh(map, ...), then bag_map_epoch() again: if it differs, pool again
 *   unless bag_map_is_whole(map), bag_map_has_row(map, row) for every row that was touched
 *
 * If the file has grown again, bag_map_refresh maps its pages again. A file that was replaced by
 * rename stays mapped as it was until the table is loaded again.
 *
 * bag_map_open and bag_map_free are called by the thread that changes the tables, all other
 * functions by any thread. */
#pragma once

#include "read.h"

#include <sys/uio.h>

/* When pages come into memory. */
enum bag_map_residence {
    BAG_MAP_ON_DEMAND, /* when they are touched or prefetched */
    BAG_MAP_WARM,      /* once before the table is served; the kernel may drop them again */
    BAG_MAP_LOCKED     /* once before the table is served, and kept (mlock) */
};

struct bag_map;

/* Returns whether the file holds its elements as the table has them, in C order and little-endian.
 * Otherwise sets *problem. */
bool bag_table_can_map(const struct bag_table_file *file, struct bag_problem *problem);

/* Maps the elements of a file, of which there is at least one, at any offset. Returns NULL and sets
 * *problem if the file cannot be mapped, read or locked (BAG_ERROR_SYSTEM), has another order or
 * changed (BAG_ERROR_FILE), or without memory (BAG_ERROR_NO_MEMORY). */
struct bag_map *bag_map_open(const struct bag_table_file *file, enum bag_map_residence residence,
                             const struct bag_load_options *options, struct bag_problem *problem);

/* Returns the first element. */
const void *bag_map_rows(const struct bag_map *map);

/* Unmaps the file. No thread may use the table any more. NULL is ignored. */
void bag_map_free(struct bag_map *map);

/* ---- prefetching ----------------------------------------------------------------------------- */

#define BAG_MAP_PREFETCH_RANGES 256

/* Rows that will be touched soon. The kernel is asked for their pages together, and reads them
 * while the caller continues. */
struct bag_map_prefetch {
    struct bag_map *map;
    size_t count;
    struct iovec ranges[BAG_MAP_PREFETCH_RANGES];
};

/* Returns false if the rows of recent jobs were all in memory: prefetching would cost more than it
 * gains. */
bool bag_map_prefetch_begin(struct bag_map_prefetch *prefetch, struct bag_map *map);

/* Adds a row; asks the kernel for the rows so far if the list is full. */
void bag_map_prefetch_row(struct bag_map_prefetch *prefetch, int64_t row);

/* Asks the kernel for the remaining rows. */
void bag_map_prefetch_end(struct bag_map_prefetch *prefetch);

/* ---- files that change ----------------------------------------------------------------------- */

/* Counters of events on any mapped file, and the time when they were read. */
struct bag_map_epoch {
    uint64_t holes;   /* made or filled again */
    uint64_t states;  /* changes of a file's size or time of change */
    uint64_t time_ns; /* monotonic */
};
struct bag_map_epoch bag_map_epoch(void);

/* Returns whether the calling thread had to read from a disk since it last called this. */
bool bag_map_has_read(void);

/* Checks the file's state, and maps pages again that it has again. The caller must call it after
 * rows were touched, with the result of bag_map_has_read. */
void bag_map_refresh(struct bag_map *map, bool has_read);

/* Returns whether the file has all rows now, even if no thread reads any. */
bool bag_map_has_file(const struct bag_map *map);

/* ---- rows in memory -------------------------------------------------------------------------- */

/* A loop must not wait for a disk, so it pools only rows that are known to be in memory: the file
 * is locked, or their pages were touched in the last seconds. A read from the disk voids what is
 * known of all pages. The kernel may evict a page in between, for which a loop then waits once. */

/* Returns the time for the functions below, in units of 250 ms. */
uint32_t bag_map_time(void);

/* Returns false if any row may have to be read: the file is not whole, or was not touched in the
 * last second. */
bool bag_map_is_watched(const struct bag_map *map, uint32_t now);

/* Returns whether a row of a watched file is in memory, as far as is known, and records then that
 * it is touched: the caller touches it now. */
bool bag_map_keeps_row(struct bag_map *map, int64_t row, uint32_t now);

/* Records that a row was touched. */
void bag_map_record_row(struct bag_map *map, int64_t row, uint32_t now);

/* ---- missing rows ---------------------------------------------------------------------------- */

/* Returns whether every row could be read at the last refresh. */
bool bag_map_is_whole(const struct bag_map *map);

/* Returns whether one row could be read at the last refresh. */
bool bag_map_has_row(const struct bag_map *map, int64_t row);

/* Sets a problem (BAG_ERROR_FILE): a row is missing. The file's path is in the log only. Returns
 * false. */
bool bag_map_reject_row(const struct bag_map *map, int64_t row, struct bag_problem *problem);

/* Sets a problem (BAG_ERROR_FILE): the file keeps changing. Returns false. */
bool bag_map_reject_changing(struct bag_problem *problem);
