/* Files that `bagserve bench` reads, beside arrays: lengths of bags, tokens. */
#ifndef BAG_BENCH_FILES_H
#define BAG_BENCH_FILES_H

#include "draw.h"
#include "proto/problem.h"

/* Reads a file of bags' lengths: a .npy file of whole numbers, or text with blanks between them.
 * What it gets is owned by *lengths. */
bool bag_bench_read_lengths(const char *path, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem);

/* The first token of a file of tokens, or the file's only word; for the caller to free. */
char *bag_bench_read_token(const char *path, struct bag_problem *problem);

#endif
