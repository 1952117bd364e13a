/* Files of lengths of bags.
 *
 * Lengths that were recorded in production give requests the same distribution. Each bag takes a
 * random element of the list. */
#pragma once

#include "draw.h"

/* Reads the lengths of bags from a .npy file of integers, or from a text of integers with blanks
 * between them. *lengths owns the list. Returns false and sets *problem if the file is wrong. */
bool bag_bench_read_lengths(const char *path, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem);
