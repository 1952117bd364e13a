/* What the commands that work on table files say of them, as JSON: the report of `bagserve convert`
 * and the description by `bagserve inspect --json`. */
#ifndef BAG_TABLE_REPORT_H
#define BAG_TABLE_REPORT_H

#include "problem.h"

#include <stddef.h>

/* ---- convert --------------------------------------------------------------------------------- */

/* How far values are from what they stand for. A NaN for a NaN, and an infinity for the same one,
 * is no error. The cosine is that of the angle between two rows, 1 where both are zero. */
struct bag_error_sum {
    size_t rows, elements;
    double squared; /* sum over the elements */
    double max;     /* the largest, in magnitude */
    double cosines; /* sum over the rows */
};

/* Adds one row. */
void bag_error_add_row(struct bag_error_sum *sum, const float *want, const float *got,
                       size_t elements);

/* Adds all of `part`. */
void bag_error_add(struct bag_error_sum *sum, const struct bag_error_sum *part);

struct bag_worst_row {
    size_t row;
    uint64_t key; /* as the table has it; unused for a dense one */
    double mean_squared_error, max_error;
};

#define BAG_WORST_ROWS 10

/* The rows with the largest mean squared error, largest first; of equal ones the first rows. */
struct bag_worst_rows {
    struct bag_worst_row rows[BAG_WORST_ROWS];
    size_t count;
};

void bag_worst_rows_add(struct bag_worst_rows *worst, const struct bag_worst_row *row);

struct bag_convert_report {
    struct bag_error_sum rows, bags;
    struct bag_worst_rows worst;
    enum bag_dtype keys_dtype; /* I64 or U64; BAG_DTYPE_COUNT: there are none */
    size_t row_elements;
    size_t ids_per_bag;
    const char *reduction; /* of the bags */
};

/* The report as JSON text, to be freed; NULL without memory. */
char *bag_convert_report_print(const struct bag_convert_report *report);

/* ---- inspect --------------------------------------------------------------------------------- */

struct bag_inspected_tensor {
    const char *name;
    const char *datatype; /* of the V2 protocol, or as the file has it */
    uint32_t rank;
    const int64_t *shape;
    uint64_t bytes;
};

struct bag_inspect_report {
    const struct bag_inspected_tensor *tensors;
    size_t num_tensors;
    bool has_table; /* what follows is known */
    bool keyed;
    size_t nan, inf;                  /* elements, */
    size_t rows, row_elements;        /* of the table */
    size_t sampled_rows;              /* of which values were looked at */
    size_t zero_rows, duplicate_rows; /* among those */
    size_t serving_bytes;
    const char *datatype, *row_format;
    const char *path;                 /* for the configuration, absolute */
    const char *tensor, *keys_tensor; /* NULL: not needed */
};

/* The description as JSON text, to be freed; NULL without memory. */
char *bag_inspect_report_print(const struct bag_inspect_report *report);

/* The configuration that serves the table, alone, likewise. */
char *bag_inspect_configuration_print(const struct bag_inspect_report *report);

#endif
