/* Files of tables, keys and numbers, read as a server reads them. A path may be any that `serve
 * --table NAME=PATH` takes, with the keys of a model after it, as in "items.npy,datatype=BF16". */
#pragma once

#include "draw.h"
#include "proto/v2_client.h"
#include "server/tables/memory.h"

/* Loads integers. With `of_keys`, `path` is that of a keyed table or of an array of keys. The keys
 * are INT64 or UINT64, of one dimension, and at least one. Returns false and sets *problem if there
 * are none. The caller calls bag_table_unload. */
bool bag_bench_integers_load(const char *path, bool of_keys, struct bag_table_memory *integers,
                             struct bag_problem *problem);

/* Reads the lengths of bags from a .npy file of integers, or from a text of integers with blanks
 * between them. Lengths that were recorded in production give requests the same distribution: each
 * bag takes a random element. *lengths owns the list. Returns false and sets *problem if the file
 * is wrong. */
bool bag_bench_read_lengths(const char *path, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem);

/* Maps the table that has the server's facts, or loads it if its file cannot be mapped. `keys` are
 * those of its rows if the files hold none; without rows it is a dense table. Returns NULL and sets
 * *problem (CONFLICT if the files are of another table). The caller calls bag_stored_table_drop. */
struct bag_stored_table *bag_bench_table_load(const char *path,
                                              const struct bag_client_table *facts,
                                              const struct bag_table_memory *keys,
                                              struct bag_problem *problem);
