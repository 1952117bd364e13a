/* Tables of quantised rows: what a file of bytes stands for. */
#ifndef BAG_TABLE_ROW_FORMAT_H
#define BAG_TABLE_ROW_FORMAT_H

#include "kernels/pool.h"
#include "proto/problem.h"

/* Takes the rows of `table`, which a file describes as 2-D UINT8, as rows of `format`: from then on
 * its dtype is FP32 and its row_elements are those of the rows that the bytes stand for. PLAIN
 * changes nothing; another shape or type is rejected. */
bool bag_table_take_format(struct bag_table *table, uint32_t rank, enum bag_row_format format,
                           struct bag_problem *problem);

#endif
