/* From 64-bit keys to rows: a hash index of cache lines, seven keys with their rows in each.
 *
 * Keys are bit patterns, and every pattern is an ordinary key: 0 and -1 too. A key is hashed by a
 * bijection with a random seed, so that nobody can choose keys that meet in one line. The hash's
 * high part is the number of the key's home line; a slot holds the rest of the hash, the row and
 * the number of the probe that found it room, together 9 bytes. Probe 1 is the home line;
 * how far the others are from each other follows from the hash. The home line knows the last
 * probe of its keys, and of what classes those are that had no room in it, so that most missing
 * keys are looked for there alone. Lines are filled to 12 fourteenths, which makes 10.67 bytes a
 * key.
 *
 * The caller brings memory and seed and decides what becomes of missing keys. Nothing is allocated
 * here.
 *
 * Threads: any number may call bag_keys_fill at once, or the functions that find keys. While they
 * find keys one thread at a time may insert and remove: a slot's word is read and written as a
 * whole and is written last, so a key is found with its row or not at all, and keys that are moved
 * to make room are found all the time. The row of a removed key is found by those who look it up
 * at that moment: who gives the row to another key waits for them. */
#ifndef BAG_KEYS_H
#define BAG_KEYS_H

#include "part.h"
#include "table.h"

struct bag_pool_args; /* pool.h */

#define BAG_KEYS_PER_LINE 7

/* The largest table: a row's number takes 37 bits. */
#define BAG_KEYS_MAX_ROWS (INT64_C(1) << 37)

/* How many lines are searched for a key at most. */
#define BAG_KEYS_MAX_PROBE 15

/* A slot of zeros is empty. */
struct bag_keys_line {
    /* Probe, rest of the hash, low bits of the row. */
    _Alignas(64) uint64_t words[BAG_KEYS_PER_LINE];
    uint8_t high[BAG_KEYS_PER_LINE]; /* the row's high bits */
    uint8_t passed;                  /* keys whose home this is and that are elsewhere */
};

struct bag_keys_seed {
    uint64_t words[4]; /* random and secret */
};

/* The lines are borrowed; those of an index without keys are zeros. */
struct bag_keys {
    struct bag_keys_line *lines;
    size_t num_lines;  /* these two as bag_keys_for gives them */
    unsigned low_bits; /* how many of a row's bits are in the word */
    struct bag_keys_seed seed;
    /* Borrowed; NULL: rows are the table's. Else the index numbers its rows from 0, so that a part
     * of a table has a small index, and this has the table's row for each of them. Such an index
     * never changes. */
    const uint64_t *rows;
};

/* Returns an index for up to `max_keys` keys and rows, at most BAG_KEYS_MAX_ROWS, without lines and
 * seed. Every row that it holds is less than `max_keys`: a larger one would be found as another. */
struct bag_keys bag_keys_for(size_t max_keys);

enum bag_keys_outcome {
    BAG_KEYS_ADDED,     /* all of them */
    BAG_KEYS_DUPLICATE, /* one is there already */
    BAG_KEYS_CROWDED    /* no room within BAG_KEYS_MAX_PROBE lines: more lines or another seed */
};

struct bag_keys_entry {
    uint64_t key;
    int64_t row; /* less than the max_keys of bag_keys_for */
};

/* Builds an index, first step: adds those of `count` keys, 8 bytes each at any alignment, of rows
 * first_row, first_row + 1, ..., that have room in their home lines; the others go to `crowded`,
 * which has room for `count`, and are inserted when all keys were in this step. False where a key
 * is there already; any of the others may have been added. */
bool bag_keys_fill(const struct bag_keys *keys, const void *added, size_t count, int64_t first_row,
                   struct bag_keys_entry *crowded, size_t *num_crowded);

/* Adds a key; *other is set to the row of the same key where that is there already, which stays. */
enum bag_keys_outcome bag_keys_insert(const struct bag_keys *keys, uint64_t key, int64_t row,
                                      int64_t *other);

/* The same for keys in turn. Stops at the first that cannot be added: *stopped is its position. */
enum bag_keys_outcome bag_keys_insert_all(const struct bag_keys *keys,
                                          const struct bag_keys_entry *added, size_t count,
                                          size_t *stopped, int64_t *other);

/* Removes a key; returns its row, -1 where it is missing. */
int64_t bag_keys_remove(const struct bag_keys *keys, uint64_t key);

/* The row of one key; -1: missing. */
int64_t bag_keys_find_one(const struct bag_keys *keys, uint64_t key);

/* The rows of keys, -1 for missing ones; returns how many are missing. INT32 keys are
 * sign-extended. Rows are not prefetched meanwhile: pooling does that as fast. */
size_t bag_keys_find(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows);

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

/* Which ids are those of a part by rows or by keys. */
struct bag_part_ids {
    struct bag_part part;
    bool is_partial; /* those of other parts leave their bags; otherwise they are rejected */
    bool takes_kept; /* but for kept_row, which counts as the part's own */

    /* Of a part by rows. */
    int64_t first_row, own_rows; /* of the whole table those from first_row on, which come first
                                    in memory */
    int64_t local_rows;          /* in memory; the row behind its own is kept_row, another part's */
    int64_t kept_row;            /* -1: none; of a part by keys, the key */
};

struct bag_resolving {
    const struct bag_keys *keys;     /* NULL: a dense table */
    const struct bag_part_ids *part; /* NULL: all ids are the table's own */
    const struct bag_rules *rules;   /* as bag_pool_check got them */
    const struct bag_inputs *inputs; /* likewise */
    int64_t *rows;                   /* room for one for each index; args points at it afterwards */
    uint8_t *replaced;               /* room for as many, for args->replaced; NULL: not wanted */
    size_t num_missing;              /* set: keys, or indices, that the table does not have */
    size_t num_other;                /* set: that are another part's, and left out */
};

/* Puts rows in the place of the indices of `args` and of default_index. Entries that are padding
 * leave first; then those of other parts are left out or rejected, missing keys are rejected,
 * skipped or given a row, and indices outside of a dense table are given one. Of a part by rows
 * `args` was checked as if its table had all rows of the whole one. */
enum bag_status bag_keys_resolve(struct bag_resolving *resolving, struct bag_pool_args *args,
                                 struct bag_fault *fault);

#endif
