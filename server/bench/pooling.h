/* Bags that are pooled from a table's file, in twice the precision of floats, of integers exactly.
 */
#ifndef BAG_BENCH_POOLING_H
#define BAG_BENCH_POOLING_H

#include "array.h"
#include "proto/v2_client.h"

/* What an element is: `real` of floats and quantised rows, `whole` of integers. */
union bag_bench_number {
    double real;
    __int128 whole;
};

/* What elements of that type keep of a sum: it is modulo 2 to the power of their bits. */
__int128 bag_bench_whole_keep(__int128 sum, enum bag_dtype dtype);

/* The numbers of a row of a table, or of a result. */
void bag_bench_row_read(const struct bag_table *table, size_t row, union bag_bench_number *numbers);

struct bag_bench_keyed_row {
    uint64_t key;
    size_t row;
};

/* A table as its file has it. */
struct bag_bench_table {
    struct bag_bench_array array;
    struct bag_table rows;            /* in the array */
    struct bag_bench_keyed_row *keys; /* owned; by key; NULL: ids are rows */
};

/* Opens the file of the table that has those facts; `keys` are those of its rows where it has any.
 * On failure bag_bench_table_close is due, too. */
bool bag_bench_table_open(const char *path, const struct bag_client_table *facts,
                          const struct bag_bench_array *keys, struct bag_bench_table *table,
                          struct bag_problem *problem);

void bag_bench_table_close(struct bag_bench_table *table);

/* One bag; all arrays have `elements`. */
struct bag_bench_pooled {
    union bag_bench_number *values, *row; /* owned */
    double *around; /* owned; sums of magnitudes, by which what floats lose is judged */
    size_t elements, count;
    double weights, squares;
};

/* False without memory; in any case bag_bench_pooled_free is due. */
bool bag_bench_pooled_make(size_t elements, struct bag_bench_pooled *pooled);

void bag_bench_pooled_free(struct bag_bench_pooled *pooled);

/* Pools the bag of `count` ids; weights NULL: none. False with *problem where the file has no row
 * for an id. */
bool bag_bench_pool(const struct bag_client_table *facts, enum bag_reduction reduction,
                    const struct bag_bench_table *table, const uint64_t *ids, const float *weights,
                    size_t count, struct bag_bench_pooled *pooled, struct bag_problem *problem);

#endif
