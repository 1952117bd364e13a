#ifndef BAG_BENCH_LENGTHS_H
#define BAG_BENCH_LENGTHS_H

#include "draw.h"

/* Reads a file of bags' lengths: a .npy file of whole numbers, or text with blanks between them.
 * What it gets is owned by *lengths. */
bool bag_bench_read_lengths(const char *path, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem);

#endif
