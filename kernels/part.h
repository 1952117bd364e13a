/* Parts of a table: which rows, columns or keys each server of several has. The numbers are the
 * same in every process: they are a part of the protocol (proto/PROTOCOL.md). */
#ifndef BAG_PART_H
#define BAG_PART_H

#include "table.h"

#include <stddef.h>
#include <stdint.h>

/* How a table is divided. X(ID, name) */
#define BAG_PART_WAYS(X)  \
    X(COLUMNS, "columns") \
    X(ROWS, "rows")       \
    X(KEYS, "keys")

enum bag_part_by {
#define BAG_X(id, name) BAG_PART_##id,
    BAG_PART_WAYS(BAG_X)
#undef BAG_X
        BAG_PART_WAY_COUNT
};

extern const char *const bag_part_way_names[BAG_PART_WAY_COUNT];

/* The way of that name, or BAG_PART_WAY_COUNT. */
enum bag_part_by bag_part_way_find(const char *name, size_t name_bytes);

/* Of how many parts a table may be at most. */
#define BAG_MAX_PARTS 4096

/* Which part of a table it is: number `index` of `of`, from 0. of 0: the whole table. */
struct bag_part {
    enum bag_part_by by;
    uint32_t index, of;
};

/* Where part `index` of `of` begins in `size` rows or columns, and part `index` - 1 ends: at
 * size * index / of, rounded down. index <= of, 1 <= of <= BAG_MAX_PARTS. */
uint64_t bag_part_begin(uint64_t size, uint32_t index, uint32_t of);

/* Of which of `of` parts a row is; row < num_rows. */
uint32_t bag_part_of_row(uint64_t row, uint64_t num_rows, uint32_t of);

/* Of which of `of` parts a key is: with all numbers modulo 2^64
 *
 *   h = key
 *   h = (h ^ h >> 33) * 0xff51afd7ed558ccd
 *   h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53
 *   h = h ^ h >> 33
 *
 * it is of part floor(h * of / 2^64), exactly. It has nothing to do with the row that
 * bag_keys_hashed_row gives the key, so that what one scatters the other does not gather. */
uint32_t bag_part_of_key(uint64_t key, uint32_t of);

/* Cuts rows as the table `whole` stores them, whose own rows are not looked at, to `num_columns`
 * columns from `first_column` on, with scale and bias where there are some: to rows as a table of
 * so many columns stores them. `rows` and `out` have any alignment and do not overlap. */
void bag_part_cut_rows(const struct bag_table *whole, const void *rows, size_t num_rows,
                       size_t first_column, size_t num_columns, void *out);

#endif
