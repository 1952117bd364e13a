/* The formats of quantised rows, which files do not name.
 *
 * Rows of several formats are equally wide, and rows that are read in a wrong one are wrong
 * numbers. So the configuration or the file names the format. Messages list all formats that a
 * width allows, and rows whose scale or bias cannot be meant are counted. */
#pragma once

#include "kernels/table.h"

/* Room for the list of all formats. */
#define BAG_ROW_FORMATS_TEXT 512

/* Writes the names of the formats but `except` in which rows of `row_elements` elements take this
 * many bytes. If row_elements is 0, writes all formats of which such rows are possible, with their
 * numbers of elements. The text is empty if there are none. */
void bag_row_formats_list(size_t row_bytes, size_t row_elements, enum bag_row_format except,
                          char text[BAG_ROW_FORMATS_TEXT]);

/* Returns how many of `count` rows, evenly spread over the table, have a scale or bias that is not
 * finite or beyond 1e4. Returns 0 if its format has neither. */
size_t bag_row_formats_count_implausible(const struct bag_table *table, size_t count);

/* Returns whether so many of `count` rows make the format implausible: more than 1 in 1,000. */
static inline bool bag_row_format_is_implausible(size_t implausible, size_t count)
{
    return implausible > count / 1000;
}
