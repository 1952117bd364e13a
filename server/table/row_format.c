/* Tables of quantised rows; see row_format.h. */
#include "row_format.h"

bool bag_table_take_format(struct bag_table *table, uint32_t rank, enum bag_row_format format,
                           struct bag_problem *problem)
{
    const char *name = bag_row_format_names[format];
    if (format == BAG_ROWS_PLAIN)
        return true;
    if (table->dtype != BAG_U8 || rank != 2)
        return bag_problem_set(problem, 400,
                               "row_format %s needs a table of 2 dimensions of UINT8, rows and "
                               "their bytes; this one has %u of %s",
                               name, rank, bag_dtypes[table->dtype].name);
    size_t row_elements = bag_row_elements(format, table->row_elements);
    if (row_elements == 0)
        return bag_problem_set(problem, 400,
                               "row_format %s: rows of %zu bytes are too short to hold an element",
                               name, table->row_elements);
    table->dtype = BAG_F32;
    table->row_elements = row_elements;
    table->row_format = format;
    return true;
}
