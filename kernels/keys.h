/* The index of keys: a hash table from 64-bit keys to rows. Its buckets are cache lines with seven
 * keys and their rows each.
 *
 * Keys are bit patterns, and every pattern is an ordinary key, including 0 and -1. A key is hashed
 * by a bijection with a random seed, so that nobody can choose keys that collide. The high part of
 * the hash is the number of the key's home line. A slot holds the rest of the hash, the row, and
 * the number of the probe at which the key was placed: 9 bytes together. Probe 1 is the home line.
 * The hash determines the distances to the later probes. The home line knows the last probe of its
 * keys, and the classes of those that are elsewhere. Most missing keys are therefore searched only
 * there. Lines are filled to 12 fourteenths, which makes 10.67 bytes for a key.
 *
 * The caller provides memory and seed, and decides how missing keys are handled. Nothing is
 * allocated here.
 *
 * Threads: any number of threads may call bag_keys_fill at the same time, or the functions that
 * find keys. While threads find keys, one thread may insert and remove. The word of a slot is read
 * and written as a whole and is written last, so a key is found with its row or not at all. A key
 * that is moved to make space is found all the time. A thread that looks up a key while it is
 * removed may still find its row. Before the row is given to another key, the owner must wait for
 * such threads. */
#pragma once

#include "part.h"
#include "table.h"

struct bag_pool_args; /* pool.h */

#define BAG_KEYS_PER_LINE 7

/* The maximum number of rows: a row number has 37 bits. */
#define BAG_KEYS_MAX_ROWS (INT64_C(1) << 37)

/* The maximum number of lines that are searched for a key. */
#define BAG_KEYS_MAX_PROBE 15

/* A line of slots. A slot of zeros is empty. */
struct bag_keys_line {
    /* Probe, rest of the hash, and low bits of the row. */
    _Alignas(64) uint64_t words[BAG_KEYS_PER_LINE];
    uint8_t high[BAG_KEYS_PER_LINE]; /* high bits of the rows */
    uint8_t passed; /* summary of keys that have this home line and are elsewhere */
};

struct bag_keys_seed {
    uint64_t words[4]; /* random and secret */
};

/* An index. The lines are borrowed. The lines of an index without keys are zeros. */
struct bag_keys {
    struct bag_keys_line *lines;
    size_t num_lines;  /* this and low_bits are set by bag_keys_for */
    unsigned low_bits; /* number of a row's bits in the word */
    struct bag_keys_seed seed;
    /* Borrowed. NULL: rows are row numbers of the table. Otherwise the index numbers its rows from
     * 0, so that a part of a table has a small index, and `rows` has the table's row for each of
     * them. This kind of index never changes. */
    const uint64_t *rows;
};

/* Returns an index for up to `max_keys` keys and rows, at most BAG_KEYS_MAX_ROWS, without lines and
 * seed. Every row that it holds is less than `max_keys`: a larger one would be found as another. */
struct bag_keys bag_keys_for(size_t max_keys);

enum bag_keys_outcome {
    BAG_KEYS_ADDED,     /* all keys were added */
    BAG_KEYS_DUPLICATE, /* the key exists already */
    BAG_KEYS_CROWDED /* no space within BAG_KEYS_MAX_PROBE lines: try more lines or another seed */
};

struct bag_keys_entry {
    uint64_t key;
    int64_t row; /* less than the max_keys of bag_keys_for */
};

/* First step of building an index. Adds `count` keys of 8 bytes at any alignment, whose rows are
 * first_row, first_row + 1, and so on. Keys whose home line is full are written to `crowded`
 * instead, which has capacity for `count`. The caller inserts these after all keys went through
 * this step. Returns false if a key exists already; any of the others may have been added. */
bool bag_keys_fill(const struct bag_keys *keys, const void *added, size_t count, int64_t first_row,
                   struct bag_keys_entry *crowded, size_t *num_crowded);

/* Adds a key. If the key exists already, it is unchanged and *other is set to its row. */
enum bag_keys_outcome bag_keys_insert(const struct bag_keys *keys, uint64_t key, int64_t row,
                                      int64_t *other);

/* Adds several keys with bag_keys_insert. Stops at the first one that cannot be added, and sets
 * *stopped to its position. */
enum bag_keys_outcome bag_keys_insert_all(const struct bag_keys *keys,
                                          const struct bag_keys_entry *added, size_t count,
                                          size_t *stopped, int64_t *other);

/* Removes a key. Returns its row, or -1 if it is missing. */
int64_t bag_keys_remove(const struct bag_keys *keys, uint64_t key);

/* Returns the row of a key, or -1 if it is missing. */
int64_t bag_keys_find_one(const struct bag_keys *keys, uint64_t key);

/* Sets rows[i] to the row of key i, or -1 if it is missing. Returns the number of missing keys.
 * INT32 keys are sign-extended. It does not prefetch rows, because pooling does that as fast. */
size_t bag_keys_find(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows);

/* Returns the row in [0, num_rows) that replaces a missing key; num_rows must be at least 1. It is
 * the same in every process. With all numbers modulo 2^64,
 *
 *   z = key + 0x9e3779b97f4a7c15
 *   z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
 *   z = (z ^ z >> 27) * 0x94d049bb133111eb
 *   z = z ^ z >> 31
 *
 * the row is exactly floor(z * num_rows / 2^64). */
int64_t bag_keys_hashed_row(uint64_t key, int64_t num_rows);

/* ---- a checked call -------------------------------------------------------------------------- */

/* The ids of a part by rows or by keys. */
struct bag_part_ids {
    struct bag_part part;
    bool is_partial; /* ids of other parts are left out; false: they are rejected */
    bool takes_kept; /* kept_row counts as the part's own */

    /* Parts by rows: */
    int64_t first_row,
        own_rows; /* rows of the whole table that the part has; they come first in memory */
    int64_t
        local_rows;   /* rows in memory; the row after the part's own is kept_row of another part */
    int64_t kept_row; /* -1: none; in a part by keys it is the key */
};

struct bag_resolving {
    const struct bag_keys *keys;     /* NULL: a dense table */
    const struct bag_part_ids *part; /* NULL: all ids are the table's own */
    const struct bag_rules *rules;   /* the rules that bag_pool_check got */
    const struct bag_inputs *inputs; /* the inputs that bag_pool_check got */
    int64_t *rows; /* memory for one row for each index, to which args points afterwards */
    uint8_t
        *replaced; /* memory for one mark for each index, for args->replaced; NULL: not wanted */
    size_t num_missing; /* out: keys or indices that the table does not have */
    size_t num_other;   /* out: ids of other parts, which were left out */
};

/* Replaces the indices of `args`, and default_index, by rows. First leaves out padding. Then leaves
 * out or rejects ids of other parts. Rejects or leaves out missing keys, or gives them a row. Gives
 * indices outside of a dense table a row. For a part by rows, `args` must have been checked as if
 * its table had all rows of the whole table. Returns the status and sets *fault if an id is
 * rejected. */
enum bag_status bag_keys_resolve(struct bag_resolving *resolving, struct bag_pool_args *args,
                                 struct bag_fault *fault);
