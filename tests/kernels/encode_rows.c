/* Rows of f32 on the standard input -> the same rows as a row format stores them, and then what
 * these stand for, on the standard output.
 *
 *   encode_rows ROW_FORMAT DATATYPE ELEMENTS
 *
 * DATATYPE is that of plain rows, FP32 for others. Ends with 3 at a row that cannot be stored. For
 * tests/kernels/encoders. */
#include "kernels/rowformat.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns all of the standard input, or NULL if memory is short. */
static char *read_all(size_t *bytes)
{
    size_t room = 1 << 20;
    char *data = malloc(room);
    *bytes = 0;
    for (size_t got = 1; data && got > 0; *bytes += got) {
        if (*bytes == room) {
            char *more = realloc(data, room *= 2);
            if (!more)
                free(data);
            data = more;
        }
        got = data ? fread(data + *bytes, 1, room - *bytes, stdin) : 0;
    }
    return data;
}

static int encode(struct bag_table *table, const float *values, size_t num_rows)
{
    size_t row_bytes = bag_row_bytes(table), row_elements = table->row_elements;
    unsigned char *rows = malloc(num_rows * row_bytes + 1);
    float *decoded = malloc(row_elements * sizeof *decoded + 1);
    int status = rows && decoded ? 0 : 1;
    for (size_t row = 0; status == 0 && row < num_rows; row++)
        if (!bag_row_encode(table, values + row * row_elements, rows + row * row_bytes))
            status = 3;
    if (status == 0 && fwrite(rows, row_bytes, num_rows, stdout) != num_rows)
        status = 1;
    table->rows = rows;
    for (size_t row = 0; status == 0 && row < num_rows; row++) {
        bag_row_decode(table, (int64_t)row, 0, row_elements, decoded);
        if (fwrite(decoded, sizeof *decoded, row_elements, stdout) != row_elements)
            status = 1;
    }
    free(rows);
    free(decoded);
    return status;
}

int main(int argc, char *argv[])
{
    if (argc != 4)
        return 2;
    struct bag_table table = {.dtype = bag_dtype_find(argv[2], strlen(argv[2])),
                              .row_format = bag_row_format_find(argv[1], strlen(argv[1])),
                              .row_elements = strtoul(argv[3], NULL, 10)};
    if (table.dtype == BAG_DTYPE_COUNT || table.row_format == BAG_ROW_FORMAT_COUNT ||
        table.row_elements == 0)
        return 2;
    size_t bytes;
    char *values = read_all(&bytes);
    size_t num_rows = bytes / sizeof(float) / table.row_elements;
    int status = values ? encode(&table, (const float *)(const void *)values, num_rows) : 1;
    free(values);
    return status;
}
