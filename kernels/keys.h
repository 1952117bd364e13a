/* From 64-bit keys to rows: a hash index of cache lines, five keys with their rows in each.
 *
 * Keys are bit patterns, and every pattern is an ordinary key: 0 and -1 too. A key's line follows
 * from a hash with a random seed, so that nobody can choose keys that meet in one line; where the
 * line is full the key stands in one of the next lines, at most BAG_KEYS_MAX_PROBE away. Lines are
 * filled to four fifths, which makes 16 bytes a key.
 *
 * The caller brings memory and seed and decides what becomes of missing keys. Nothing is allocated
 * here. Any number of threads may add keys at once, or look keys up at once; not both. */
#ifndef BAG_KEYS_H
#define BAG_KEYS_H

#include "pool.h"

#define BAG_KEYS_PER_LINE 5

/* The largest table: a row's number takes 37 bits. */
#define BAG_KEYS_MAX_ROWS (INT64_C(1) << 37)

/* How many lines are searched for a key at most. Full lines follow each other with a probability
 * that falls by a ninth with each: a run of so many comes up in no table of random keys. */
#define BAG_KEYS_MAX_PROBE 512

struct bag_keys_line {
    _Alignas(64) uint64_t keys[BAG_KEYS_PER_LINE];
    uint32_t rows[BAG_KEYS_PER_LINE]; /* the low 32 bits of each */
    uint32_t state;                   /* see keys.c; 0: an empty line */
};

struct bag_keys_seed {
    uint64_t words[4]; /* random and secret */
};

/* The lines are borrowed; those of an index without keys are zeros. */
struct bag_keys {
    struct bag_keys_line *lines;
    size_t num_lines;
    struct bag_keys_seed seed;
};

/* Lines for so many keys; at least 1. */
size_t bag_keys_num_lines(size_t num_keys);

enum bag_keys_outcome {
    BAG_KEYS_ADDED,     /* all of them */
    BAG_KEYS_DUPLICATE, /* one is there already */
    BAG_KEYS_CROWDED    /* no room within BAG_KEYS_MAX_PROBE lines: try another seed */
};

/* Adds `count` keys, 8 bytes each at any alignment, of rows first_row, first_row + 1, ... Stops at
 * the first that cannot be added; *stopped is its position among `keys`, *other the row of the same
 * key where it is a duplicate. */
enum bag_keys_outcome bag_keys_add(const struct bag_keys *keys, const void *added, size_t count,
                                   int64_t first_row, size_t *stopped, int64_t *other);

/* Adds a key; *other is set to the row of the same key where that is there already, which stays.
 * Not while others use the index. */
enum bag_keys_outcome bag_keys_insert(const struct bag_keys *keys, uint64_t key, int64_t row,
                                      int64_t *other);

/* Removes a key; returns its row, -1 where it is missing. Not while others use the index. */
int64_t bag_keys_remove(const struct bag_keys *keys, uint64_t key);

/* The row of one key; -1: missing. */
int64_t bag_keys_find_one(const struct bag_keys *keys, uint64_t key);

/* The rows of keys, -1 for missing ones; returns how many are missing. INT32 keys are
 * sign-extended. Where `fetched` is not NULL, the rows of that table are asked into the cache; pays
 * while all of them fit. */
size_t bag_keys_find(const struct bag_keys *keys, const struct bag_ids *ids,
                     const struct bag_table *fetched, int64_t *rows);

/* The row in [0, num_rows) that stands in for a missing key; num_rows >= 1. The same in every
 * process: with all numbers modulo 2^64
 *
 *   z = key + 0x9e3779b97f4a7c15
 *   z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
 *   z = (z ^ z >> 27) * 0x94d049bb133111eb
 *   z = z ^ z >> 31
 *
 * and the row is floor(z * num_rows / 2^64), exactly. */
int64_t bag_keys_hashed_row(uint64_t key, int64_t num_rows);

/* ---- a checked call -------------------------------------------------------------------------- */

/* Whether rows must take the place of indices after bag_pool_check, before anything else is done
 * with its args: those of keyed tables, and of dense ones where a default row takes the place of
 * what is outside. */
static inline bool bag_needs_rows(const struct bag_rules *rules)
{
    return rules->keyed || rules->missing == BAG_MISSING_DEFAULT;
}

struct bag_resolving {
    const struct bag_keys *keys;     /* NULL: a dense table */
    const struct bag_rules *rules;   /* as bag_pool_check got them */
    const struct bag_inputs *inputs; /* likewise */
    bool fetches;                    /* the rows are asked into the cache */
    int64_t *rows;                   /* room for one for each index; args points at it afterwards */
    uint8_t *replaced;               /* room for as many, for args->replaced; NULL: not wanted */
    size_t num_missing;              /* set: keys, or indices, that the table does not have */
};

/* Puts rows in the place of the indices of `args` and of default_index. Keys that are padding leave
 * first; then missing ones are rejected, skipped or given a row. */
enum bag_status bag_keys_resolve(struct bag_resolving *resolving, struct bag_pool_args *args,
                                 struct bag_fault *fault);

#endif
