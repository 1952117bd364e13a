/* The formats of quantised rows, which files do not name; see row_formats.h. */
#include "row_formats.h"

#include "kernels/rowformat.h"
#include "proto/text.h"

#include <math.h>
#include <stdio.h>

/* Scales and biases of embeddings are far below this. */
#define MOST_PLAUSIBLE 1e4f

void bag_row_formats_list(size_t row_bytes, size_t row_elements, enum bag_row_format except,
                          char text[BAG_ROW_FORMATS_TEXT])
{
    *text = '\0';
    for (int i = BAG_ROWS_PLAIN + 1; i < BAG_ROW_FORMAT_COUNT; i++) {
        enum bag_row_format format = (enum bag_row_format)i;
        size_t elements = bag_row_elements(format, row_bytes);
        const char *name = bag_row_format_names[i], *comma = *text ? ", " : "";
        if (format == except)
            continue;
        if (row_elements && bag_encoded_row_bytes(format, row_elements) == row_bytes)
            bag_text_add(text, BAG_ROW_FORMATS_TEXT, "%s%s", comma, name);
        else if (!row_elements && elements)
            bag_text_add(text, BAG_ROW_FORMATS_TEXT, "%s%zu as %s", comma, elements, name);
    }
}

/* Returns whether the scale and bias of a row are numbers as embeddings have them. */
static bool is_plausible(const struct bag_row_layout *layout, const char *params)
{
    bool plausible = true;
    for (size_t i = 0; i < layout->num_params; i++)
        plausible &= fabsf(bag_row_param(layout, params, i)) <= MOST_PLAUSIBLE;
    return plausible;
}

size_t bag_row_formats_count_implausible(const struct bag_table *table, size_t count)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    const struct bag_row_places places = bag_row_places(table);
    const size_t num_rows = (size_t)table->num_rows;
    size_t implausible = 0;
    for (size_t i = 0; layout->num_params > 0 && i < count; i++) {
        size_t row = (size_t)((double)i / (double)count * (double)num_rows);
        const char *at = (const char *)table->rows + row * places.bytes;
        implausible += !is_plausible(layout, at + places.params_at);
    }
    return implausible;
}
