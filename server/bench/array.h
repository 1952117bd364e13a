/* Arrays of files, mapped: of .npy files, and those that safetensors and .npz files hold. */
#ifndef BAG_BENCH_ARRAY_H
#define BAG_BENCH_ARRAY_H

#include "kernels/part.h"
#include "proto/formats.h"

/* What of a table's path is read. */
enum bag_bench_part {
    BAG_BENCH_ROWS,
    BAG_BENCH_KEYS,        /* of a path that names them */
    BAG_BENCH_KEYS_BESIDE, /* of a path that names the rows */
};

struct bag_bench_array {
    struct bag_npy npy;
    enum bag_row_format row_format; /* that the file says; else PLAIN */
    const unsigned char *data;      /* the elements in C order and the machine's byte order */
    void *mapping;                  /* owned; of the whole file; */
    size_t mapping_bytes;
    void *placed; /* owned; elements that are not in that order there; NULL: they are */
};

/* Reads FILE.npy; FILE.safetensors and FILE.npz with #ARRAY behind it, or without: of the keys the
 * array "keys", of the rows "values" or the only one of 2 dimensions; or keys.npy and values.npy of
 * a folder. `unnamed` is the dtype of 2-byte elements that a .npy file cannot name (BAG_BF16), or
 * BAG_DTYPE_COUNT. On failure there is nothing to free. A file that becomes shorter while its
 * array is used ends the program with a sentence and exit code 1. */
bool bag_bench_array_read(const char *path, enum bag_bench_part part, enum bag_dtype unnamed,
                          struct bag_bench_array *array, struct bag_problem *problem);

/* An array of zeros is allowed. */
void bag_bench_array_free(struct bag_bench_array *array);

/* Leaves those keys that are of the part; there must be one. */
bool bag_bench_keys_of_part(struct bag_bench_array *keys, const struct bag_part *part,
                            struct bag_problem *problem);

/* Reads 64-bit keys, of one dimension. */
bool bag_bench_keys_read(const char *path, enum bag_bench_part part, struct bag_bench_array *keys,
                         struct bag_problem *problem);

#endif
