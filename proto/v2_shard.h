/* What is read of a server that has a part of a table: who it is, which versions of a model it has
 * ready, and which part of what table one of them is. Anybody may have answered: all of it is
 * checked, and sentences begin behind the server's name. */
#ifndef BAG_V2_SHARD_H
#define BAG_V2_SHARD_H

#include "kernels/part.h"
#include "kernels/table.h"
#include "problem.h"

/* Hexadecimal digits of a process, with the NUL. */
#define BAG_INSTANCE_BYTES 17

/* Identifies what a shard reports: its process, and a number that changes with its models. */
struct bag_shard_generation {
    char instance[BAG_INSTANCE_BYTES];
    uint64_t generation; /* 0: not reported */
};

/* Reads GET /v2; rejects what is no bagserve. */
bool bag_shard_read_generation(const char *text, size_t bytes, struct bag_shard_generation *report,
                               struct bag_problem *problem);

/* The versions of a model that are READY, the highest so many, ascending. */
#define BAG_SHARD_MAX_VERSIONS 8
struct bag_shard_versions {
    uint64_t numbers[BAG_SHARD_MAX_VERSIONS];
    size_t count;
};

/* Reads GET /v2/models/M. */
bool bag_shard_read_versions(const char *text, size_t bytes, struct bag_shard_versions *versions,
                             struct bag_problem *problem);

/* What of its rules a shard goes by whatever it is asked. */
struct bag_shard_rules {
    enum bag_missing missing; /* of a keyed table; a request may make it an error */
    bool weighted_mean, prune_invalid, has_default_index;
    int64_t default_index, hash_rows;
};

/* One version: its part, and the whole table. */
struct bag_shard_table {
    struct bag_part part; /* a whole table is part 0 of 1, by rows, or by keys where it has some */
    bool is_keyed;
    enum bag_dtype dtype, keys_dtype, output_dtype;
    enum bag_row_format row_format;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK]; /* of the whole table */
    uint64_t row_elements;       /* of the whole table's rows */
    uint64_t digest;             /* of what the part was cut from; 0: it does not say */
    struct bag_shard_rules rules;
};

/* Reads GET /v2/models/M/versions/V, which does not say the rules. */
bool bag_shard_read_table(const char *text, size_t bytes, struct bag_shard_table *table,
                          struct bag_problem *problem);

#endif
