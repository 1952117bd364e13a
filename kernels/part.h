/* Parts of a table: the rows, columns or keys that each of several servers has. The numbers are the
 * same in every process, because they are part of the protocol (proto/PROTOCOL.md). */
#pragma once

#include "table.h"

#include <stddef.h>
#include <stdint.h>

/* The divisions of a table. X(ID, name) */
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

/* Returns the division with this name, or BAG_PART_WAY_COUNT if there is none. */
enum bag_part_by bag_part_way_find(const char *name, size_t name_bytes);

/* The maximum number of parts of a table. */
#define BAG_MAX_PARTS 4096

/* Part number `index` of `of` parts, from 0. `of` is 0 for the whole table. */
struct bag_part {
    enum bag_part_by by;
    uint32_t index, of;
};

/* Returns the start of part `index` of `of` in `size` rows or columns, which is the end of the part
 * before it: size * index / of, rounded down. index <= of, 1 <= of <= BAG_MAX_PARTS. */
uint64_t bag_part_begin(uint64_t size, uint32_t index, uint32_t of);

/* Returns the part that a row belongs to, of `of` parts; row < num_rows. */
uint32_t bag_part_of_row(uint64_t row, uint64_t num_rows, uint32_t of);

/* Returns the part that a key belongs to, of `of` parts. With all numbers modulo 2^64,
 *
 *   h = key
 *   h = (h ^ h >> 33) * 0xff51afd7ed558ccd
 *   h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53
 *   h = h ^ h >> 33
 *
 * the part is exactly floor(h * of / 2^64). It is independent of the row that bag_keys_hashed_row
 * gives the key, so that the keys of a part are spread over all rows. */
uint32_t bag_part_of_key(uint64_t key, uint32_t of);

/* Copies `num_columns` columns from `first_column` on out of rows in the format of table `whole`,
 * with scale and bias if the format has them. The result has the format of a table with that number
 * of columns. Does not read the rows of `whole` itself. `rows` and `out` have any alignment and do
 * not overlap. */
void bag_part_cut_rows(const struct bag_table *whole, const void *rows, size_t num_rows,
                       size_t first_column, size_t num_columns, void *out);

/* Writes the columns of a row that bag_part_cut_rows cut out of it, and the scale and bias, into a
 * quantised row of `row_elements`. The columns of a row are written in their order. */
void bag_part_join_row(enum bag_row_format format, size_t row_elements, const void *part,
                       size_t first_column, size_t num_columns, void *row);
