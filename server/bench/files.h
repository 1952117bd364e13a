/* Files that `bagserve bench` reads: arrays of .npy files, lengths of bags, tokens. */
#ifndef BAG_BENCH_FILES_H
#define BAG_BENCH_FILES_H

#include "draw.h"
#include "proto/formats.h"

/* An array in memory. */
struct bag_bench_array {
    struct bag_npy npy;
    unsigned char *data; /* owned; the elements in C order and the machine's byte order */
};

/* Reads a .npy file. On failure there is nothing to free. */
bool bag_bench_array_read(const char *path, struct bag_bench_array *array,
                          struct bag_problem *problem);

void bag_bench_array_free(struct bag_bench_array *array);

/* Reads 64-bit keys, of one dimension: a .npy file, or keys.npy in a folder. */
bool bag_bench_keys_read(const char *path, struct bag_bench_array *keys,
                         struct bag_problem *problem);

/* Reads a file of bags' lengths: a .npy file of whole numbers, or text with blanks between them.
 * What it gets is owned by *lengths. */
bool bag_bench_read_lengths(const char *path, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem);

/* The first token of a file of tokens, or the file's only word; for the caller to free. */
char *bag_bench_read_token(const char *path, struct bag_problem *problem);

#endif
