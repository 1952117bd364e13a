/* Parses what a shard reports about itself. There are three replies: one names its process, one the
 * versions of a model that are ready, and one the part of a table in a version. The replies may
 * come from any process, so all of them are checked. The sentences of problems follow the server's
 * name. */
#pragma once

#include "kernels/part.h"
#include "kernels/table.h"
#include "problem.h"

/* The number of hexadecimal digits that identify a process, plus the NUL. */
#define BAG_INSTANCE_BYTES 17

/* Identifies the state that a shard reports: its process, and a number that changes with its
 * models. */
struct bag_shard_generation {
    char instance[BAG_INSTANCE_BYTES];
    uint64_t generation; /* 0: not reported */
};

/* Parses the reply to GET /v2. Returns false and sets *problem if the server is not bagserve. */
bool bag_shard_read_generation(const char *text, size_t bytes, struct bag_shard_generation *report,
                               struct bag_problem *problem);

/* The highest versions of a model that are READY, in ascending order. */
#define BAG_SHARD_MAX_VERSIONS 8
struct bag_shard_versions {
    uint64_t numbers[BAG_SHARD_MAX_VERSIONS];
    size_t count;
};

/* Parses the reply to GET /v2/models/M. Returns false and sets *problem if it is invalid. */
bool bag_shard_read_versions(const char *text, size_t bytes, struct bag_shard_versions *versions,
                             struct bag_problem *problem);

/* The shard's rules that apply to every request. */
struct bag_shard_rules {
    enum bag_missing missing; /* used by keyed tables; a request may make missing keys an error */
    bool weighted_mean, prune_invalid, has_default_index;
    int64_t default_index, hash_rows;
};

/* One version of a model: its part, and the whole table. */
struct bag_shard_table {
    struct bag_part
        part; /* a whole table is part 0 of 1, by keys if it has keys, otherwise by rows */
    bool is_keyed;
    enum bag_dtype dtype, keys_dtype, output_dtype;
    enum bag_row_format row_format;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK]; /* shape of the whole table */
    uint64_t row_elements;       /* elements of a row of the whole table */
    uint64_t digest; /* digest of the files from which the part was cut; 0: not reported */
    struct bag_shard_rules rules;
};

/* Parses the reply to GET /v2/models/M/versions/V, which does not contain the rules. Returns false
 * and sets *problem if it is invalid. */
bool bag_shard_read_table(const char *text, size_t bytes, struct bag_shard_table *table,
                          struct bag_problem *problem);
