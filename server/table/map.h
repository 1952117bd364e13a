/* Tables that stay in their files: mapped memory, whose pages the kernel reads as they are touched.
 *
 * A file may be cut while it is mapped. Touching what is gone raises SIGBUS, whose handler puts a
 * page of zeros there, a hole, so that the thread goes on; whoever pools therefore looks at the
 * file again afterwards:
 *
 *   epoch = bag_map_epoch()
 *   pool
 *   bag_map_look(map, ...), and again bag_map_epoch(): where it is another one, pool again
 *   bag_map_has_row(map, row) for every row that was touched, where not bag_map_is_whole(map)
 *
 * A file that has grown again in its place is mapped again by bag_map_look. One that was replaced
 * by rename stays as it was, until it is loaded anew.
 *
 * bag_table_map and bag_map_free are called by the thread that changes the tables, all else by any.
 */
#ifndef BAG_TABLE_MAP_H
#define BAG_TABLE_MAP_H

#include "load.h"

#include <sys/uio.h>

/* When pages come into memory. */
enum bag_map_residence {
    BAG_MAP_ON_DEMAND, /* as they are touched, or asked for */
    BAG_MAP_WARM,      /* once before the table is served; they may leave again */
    BAG_MAP_LOCKED     /* likewise, and they stay (mlock) */
};

/* Maps the elements of a file that holds them as the table has them: in C order, little-endian. At
 * any offset; on failure nothing stays mapped and *problem names the file and the reason.
 * `progress`, which may be NULL, is told of what is read. */
bool bag_table_map(const struct bag_table_file *file, enum bag_map_residence residence,
                   bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                   struct bag_problem *problem);

/* Nobody reads the table any more. NULL is ignored. */
void bag_map_free(struct bag_map *map);

/* ---- asking for pages ------------------------------------------------------------------------ */

#define BAG_MAP_ASKED_RANGES 256

/* Rows that will be touched soon: their pages are asked for together, and read while the caller
 * goes on. */
struct bag_map_asking {
    struct bag_map *map;
    size_t count;
    struct iovec ranges[BAG_MAP_ASKED_RANGES];
};

/* False where lately all that was touched was in memory: asking would cost more than it gains. */
bool bag_map_ask_begin(struct bag_map_asking *asking, struct bag_map *map);
void bag_map_ask_row(struct bag_map_asking *asking, int64_t row);
void bag_map_ask_end(struct bag_map_asking *asking);

/* ---- files that change ----------------------------------------------------------------------- */

/* Counts what happened to any mapped file. */
struct bag_map_epoch {
    uint64_t holes;  /* made, or filled again */
    uint64_t states; /* of files, in size or time of change */
};
struct bag_map_epoch bag_map_epoch(void);

/* Whether the calling thread had to read from a disk since it last asked. */
bool bag_map_has_read(void);

/* Sees what became of the file since it was last looked at, and maps pages again that it has again.
 * To be called after rows were touched, with what bag_map_has_read says. */
void bag_map_look(struct bag_map *map, bool has_read);

/* Whether every row is there, as it was last looked at. */
bool bag_map_is_whole(const struct bag_map *map);

bool bag_map_has_row(const struct bag_map *map, int64_t row);

/* Says that a row was not there; returns false. */
bool bag_map_reject_row(const struct bag_map *map, int64_t row, struct bag_problem *problem);

/* Says that the file does not come to rest; returns false. */
bool bag_map_reject_changing(const struct bag_map *map, struct bag_problem *problem);

#endif
