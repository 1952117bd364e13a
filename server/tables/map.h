/* Tables that stay in their files: mapped memory, whose pages the kernel reads as they are touched.
 *
 * A file may be truncated while it is mapped. Touching what is gone raises SIGBUS, whose handler
 * puts a page of zeros there, a hole, so that the thread goes on; whoever pools therefore asks for
 * the file's state again afterwards:
 *
 *   epoch = bag_map_epoch()
 *   pool
 *   bag_map_refresh(map, ...), and again bag_map_epoch(): where it is another one, pool again
 *   bag_map_has_row(map, row) for every row that was touched, where not bag_map_is_whole(map)
 *
 * A file that has grown again in its place is mapped again by bag_map_refresh. One that was
 * replaced by rename stays as it was, until it is loaded anew.
 *
 * bag_table_map and bag_map_free are called by the thread that changes the tables, all else by any.
 */
#ifndef BAG_TABLES_MAP_H
#define BAG_TABLES_MAP_H

#include "load.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* When pages come into memory. */
enum bag_map_residence {
    BAG_MAP_ON_DEMAND, /* as they are touched or prefetched */
    BAG_MAP_WARM,      /* once before the table is served; they may leave again */
    BAG_MAP_LOCKED     /* likewise, and they stay (mlock) */
};

/* Whether the file holds its elements as the table has them, so that it can be mapped. */
bool bag_table_can_map(const struct bag_table_file *file, struct bag_problem *problem);

/* Maps the elements of a file that holds them as the table has them: in C order, little-endian. At
 * any offset; on failure nothing stays mapped and *problem names the file and the reason. */
bool bag_table_map(const struct bag_table_file *file, enum bag_map_residence residence,
                   const struct bag_load_options *options, struct bag_table_memory *memory,
                   struct bag_problem *problem);

/* Nobody reads the table any more. NULL is ignored. */
void bag_map_free(struct bag_map *map);

/* ---- prefetching ----------------------------------------------------------------------------- */

#define BAG_MAP_PREFETCH_RANGES 256

/* Rows that will be touched soon: the kernel is asked for their pages together, and reads them
 * while the caller goes on. */
struct bag_map_prefetch {
    struct bag_map *map;
    size_t count;
    struct iovec ranges[BAG_MAP_PREFETCH_RANGES];
};

/* False where all that was touched of late was in memory: prefetching would cost more than it
 * gains. */
bool bag_map_prefetch_begin(struct bag_map_prefetch *prefetch, struct bag_map *map);
void bag_map_prefetch_row(struct bag_map_prefetch *prefetch, int64_t row);
void bag_map_prefetch_end(struct bag_map_prefetch *prefetch);

/* ---- files that change ----------------------------------------------------------------------- */

/* Counts what happened to any mapped file. */
struct bag_map_epoch {
    uint64_t holes;  /* made, or filled again */
    uint64_t states; /* of files, in size or time of change */
};
struct bag_map_epoch bag_map_epoch(void);

/* Whether the calling thread had to read from a disk since it last asked. */
bool bag_map_has_read(void);

/* Asks what became of the file since the last call, and maps pages again that it has again. To be
 * called after rows were touched, with what bag_map_has_read says. */
void bag_map_refresh(struct bag_map *map, bool has_read);

/* Whether the file has all rows now, though nobody reads any. */
bool bag_map_has_file(const struct bag_map *map);

/* Whether every row could be read at the last refresh; whether one row could. */
bool bag_map_is_whole(const struct bag_map *map);
bool bag_map_has_row(const struct bag_map *map, int64_t row);

/* Says that a row is missing, without the file's path, which is in the log; returns false. */
bool bag_map_reject_row(const struct bag_map *map, int64_t row, struct bag_problem *problem);

/* Says that the file does not come to rest; returns false. */
bool bag_map_reject_changing(struct bag_problem *problem);

/* ---- between map.c and map_holes.c ----------------------------------------------------------- */

/* After so many jobs in a row for which nothing was read from the disk, nothing is prefetched. */
#define BAG_MAP_QUIET_JOBS 16

struct bag_map {
    /* Set before the table is published. */
    char *path; /* owned */
    int fd;
    enum bag_map_residence residence;
    char *start; /* of the mapping, whole pages */
    size_t bytes;
    size_t page_bytes;
    uint64_t file_offset; /* of `start` */
    size_t data_offset;   /* of the first row, from `start` */
    size_t data_bytes;
    size_t row_bytes;
    size_t locked_bytes; /* that are counted as taken */

    atomic_uint quiet_jobs;   /* in a row, for which nothing was read from the disk */
    atomic_size_t file_bytes; /* from `start` on, that the file had at the last refresh */
    _Atomic uint64_t state;   /* of the file then, see bag_map_state */
    atomic_size_t num_holes;  /* marked below */
    atomic_uint changers;     /* threads that are making or filling holes */
    atomic_bool was_cut;      /* a hole beyond the file's end was made since the last refresh */
    atomic_ulong *holes;      /* owned; a bit for each page */
    pthread_mutex_t lock;     /* held by a refresh */
    uint64_t tried_ns;        /* when pages within the file were last tried again */
};

/* From now on a page of the mapping that cannot be had becomes a hole; until bag_map_unregister.
 * False without memory. */
bool bag_map_register(struct bag_map *map);
void bag_map_unregister(struct bag_map *map);

/* Sets the handler of SIGBUS, once. */
bool bag_map_catch_sigbus(struct bag_problem *problem);

/* Bytes of the mapping that a file in this state has. */
size_t bag_map_file_bytes(const struct bag_map *map, const struct stat *state);

/* The time of a file's last change: two are equal where nobody wrote to the file, or truncated it,
 * in between. */
uint64_t bag_map_state(const struct stat *state);

/* Pages that so many bytes take. */
static inline size_t bag_map_pages(const struct bag_map *map, size_t bytes)
{
    return (bytes + map->page_bytes - 1) / map->page_bytes;
}

#endif
