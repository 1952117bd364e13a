/* Lines of five keys; see keys.h.
 *
 * A line's state holds, from the lowest bit: how many keys it has (3 bits), whether a key that
 * belongs here stands in a later line (1), a lock (1), two unused bits, and the high 5 bits of each
 * of its rows. While threads add keys at once none is removed, so a line that is full stays so: two
 * that add the same key meet in the same line, whichever they passed. */
#include "keys.h"
#include "pool_entries.h"

#define COUNT_MASK 7u
#define PASSED_BIT 8u
#define LOCK_BIT   16u
#define HIGH_SHIFT 7
#define HIGH_BITS  5

_Static_assert(sizeof(struct bag_keys_line) == 64, "a line of the cache");
_Static_assert(HIGH_SHIFT + HIGH_BITS * BAG_KEYS_PER_LINE == 32, "bits of a state");
_Static_assert(BAG_KEYS_MAX_ROWS == INT64_C(1) << (32 + HIGH_BITS), "bits of a row");

/* ---- hashes ---------------------------------------------------------------------------------- */

/* Both halves of a product, folded. */
static inline uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline size_t home_line(const struct bag_keys *keys, uint64_t key)
{
    const uint64_t *seed = keys->seed.words;
    uint64_t hash = fold(fold(key ^ seed[0], seed[1] | 1) ^ seed[2], seed[3] | 1);
    return (size_t)(((unsigned __int128)hash * keys->num_lines) >> 64);
}

static inline size_t next_line(const struct bag_keys *keys, size_t line)
{
    return line + 1 == keys->num_lines ? 0 : line + 1;
}

static inline size_t max_probe(const struct bag_keys *keys)
{
    return keys->num_lines < BAG_KEYS_MAX_PROBE ? keys->num_lines : BAG_KEYS_MAX_PROBE;
}

size_t bag_keys_num_lines(size_t num_keys)
{
    return num_keys / 4 + 1;
}

int64_t bag_keys_hashed_row(uint64_t key, int64_t num_rows)
{
    uint64_t z = key + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (int64_t)(((unsigned __int128)z * (uint64_t)num_rows) >> 64);
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* A bit for each of the line's keys that is this one: one at most. */
static inline unsigned match(const struct bag_keys_line *line, uint32_t state, uint64_t key)
{
    unsigned matches = 0;
    for (unsigned i = 0; i < BAG_KEYS_PER_LINE; i++)
        matches |= (unsigned)(line->keys[i] == key) << i;
    return matches & ((1u << (state & COUNT_MASK)) - 1);
}

static inline int64_t row_at(const struct bag_keys_line *line, uint32_t state, unsigned slot)
{
    uint32_t high = state >> (HIGH_SHIFT + HIGH_BITS * slot) & ((1u << HIGH_BITS) - 1);
    return (int64_t)((uint64_t)high << 32 | line->rows[slot]);
}

static inline void prefetch_line(const struct bag_keys *keys, size_t line)
{
    __builtin_prefetch(&keys->lines[line], 0, 3);
}

/* ---- adding ---------------------------------------------------------------------------------- */

/* Takes the line's lock; returns its state without the lock. */
static uint32_t lock_line(struct bag_keys_line *line)
{
    uint32_t state;
    while ((state = __atomic_fetch_or(&line->state, LOCK_BIT, __ATOMIC_ACQUIRE)) & LOCK_BIT) {
        while (__atomic_load_n(&line->state, __ATOMIC_RELAXED) & LOCK_BIT)
            ;
    }
    return state;
}

static void unlock_line(struct bag_keys_line *line, uint32_t state)
{
    __atomic_store_n(&line->state, state, __ATOMIC_RELEASE);
}

/* Adds the key to a locked line that has room; returns the new state. */
static uint32_t put(struct bag_keys_line *line, uint32_t state, uint64_t key, int64_t row)
{
    unsigned slot = state & COUNT_MASK;
    line->keys[slot] = key;
    line->rows[slot] = (uint32_t)row;
    return (state + 1) | (uint32_t)((uint64_t)row >> 32) << (HIGH_SHIFT + HIGH_BITS * slot);
}

/* Adds the key to the line, or finds it there, or leaves the line as one to pass. */
static bool settle(struct bag_keys_line *line, uint64_t key, int64_t row, int64_t *other)
{
    uint32_t state = lock_line(line);
    unsigned matches = match(line, state, key);
    bool full = (state & COUNT_MASK) == BAG_KEYS_PER_LINE;
    *other = matches ? row_at(line, state, (unsigned)__builtin_ctz(matches)) : -1;
    if (!matches)
        state = full ? state | PASSED_BIT : put(line, state, key, row);
    unlock_line(line, state);
    return matches || !full;
}

static enum bag_keys_outcome add_one(const struct bag_keys *keys, size_t line, uint64_t key,
                                     int64_t row, int64_t *other)
{
    for (size_t probe = max_probe(keys); probe > 0; probe--) {
        if (settle(&keys->lines[line], key, row, other))
            return *other < 0 ? BAG_KEYS_ADDED : BAG_KEYS_DUPLICATE;
        line = next_line(keys, line);
    }
    return BAG_KEYS_CROWDED;
}

/* How many keys ahead their lines are fetched; a power of two. */
#define AHEAD 32

enum bag_keys_outcome bag_keys_add(const struct bag_keys *keys, const void *added, size_t count,
                                   int64_t first_row, size_t *stopped, int64_t *other)
{
    struct bag_ids ids = {added, count, true};
    size_t homes[AHEAD];
    for (size_t i = 0; i < count + AHEAD; i++) {
        size_t *home = &homes[i % AHEAD];
        if (i >= AHEAD) {
            size_t at = *stopped = i - AHEAD;
            enum bag_keys_outcome outcome =
                add_one(keys, *home, (uint64_t)bag_id_at(&ids, at), first_row + (int64_t)at, other);
            if (outcome != BAG_KEYS_ADDED)
                return outcome;
        }
        if (i < count) {
            *home = home_line(keys, (uint64_t)bag_id_at(&ids, i));
            __builtin_prefetch(&keys->lines[*home], 1, 3);
        }
    }
    return BAG_KEYS_ADDED;
}

/* ---- finding --------------------------------------------------------------------------------- */

static inline int64_t find_from(const struct bag_keys *keys, size_t line, uint64_t key)
{
    for (size_t probe = max_probe(keys); probe > 0; probe--) {
        uint32_t state = keys->lines[line].state;
        unsigned matches = match(&keys->lines[line], state, key);
        if (matches)
            return row_at(&keys->lines[line], state, (unsigned)__builtin_ctz(matches));
        if (!(state & PASSED_BIT))
            return -1;
        line = next_line(keys, line);
    }
    return -1;
}

int64_t bag_keys_find_one(const struct bag_keys *keys, uint64_t key)
{
    return find_from(keys, home_line(keys, key), key);
}

static inline void prefetch_row(const char *rows, size_t row_bytes, int64_t row)
{
    const char *at = rows + (size_t)row * row_bytes;
    for (size_t byte = 0; byte < row_bytes; byte += 64)
        __builtin_prefetch(at + byte, 0, 2);
}

/* `wide` and `fetches` are constants of each call. */
static inline __attribute__((always_inline)) size_t find_all(const struct bag_keys *keys,
                                                             struct bag_ids ids, bool wide,
                                                             const struct bag_table *fetched,
                                                             int64_t *rows)
{
    size_t homes[AHEAD], missing = 0;
    size_t row_bytes = fetched ? bag_row_bytes(fetched) : 0;
    size_t start = ids.count < AHEAD ? ids.count : AHEAD;
    ids.wide = wide;
    for (size_t i = 0; i < start; i++) {
        homes[i] = home_line(keys, (uint64_t)bag_id_at(&ids, i));
        prefetch_line(keys, homes[i]);
    }
    for (size_t i = 0; i < ids.count; i++) {
        size_t *home = &homes[i % AHEAD], ahead = i + AHEAD;
        int64_t row = find_from(keys, *home, (uint64_t)bag_id_at(&ids, i));
        rows[i] = row;
        missing += row < 0;
        if (fetched && row >= 0)
            prefetch_row(fetched->rows, row_bytes, row);
        if (ahead < ids.count) {
            *home = home_line(keys, (uint64_t)bag_id_at(&ids, ahead));
            prefetch_line(keys, *home);
        }
    }
    return missing;
}

/* ---- one key at a time ----------------------------------------------------------------------- */

/* Once keys were removed, one may stand behind a line that has room again: look first. */
enum bag_keys_outcome bag_keys_insert(const struct bag_keys *keys, uint64_t key, int64_t row,
                                      int64_t *other)
{
    *other = bag_keys_find_one(keys, key);
    return *other >= 0 ? BAG_KEYS_DUPLICATE : add_one(keys, home_line(keys, key), key, row, other);
}

static uint32_t with_row(uint32_t state, unsigned slot, uint64_t row)
{
    unsigned shift = HIGH_SHIFT + HIGH_BITS * slot;
    uint32_t mask = ((1u << HIGH_BITS) - 1) << shift;
    return (state & ~mask) | ((uint32_t)(row >> 32) << shift & mask);
}

/* Puts the line's last key into the slot. */
static void clear_slot(struct bag_keys_line *line, unsigned slot)
{
    unsigned last = (line->state & COUNT_MASK) - 1;
    int64_t row = row_at(line, line->state, last);
    line->keys[slot] = line->keys[last];
    line->rows[slot] = line->rows[last];
    line->state = with_row(line->state, slot, (uint64_t)row);
    line->state = with_row(line->state, last, 0) - 1;
}

int64_t bag_keys_remove(const struct bag_keys *keys, uint64_t key)
{
    size_t at = home_line(keys, key);
    for (size_t probe = max_probe(keys); probe > 0; probe--) {
        struct bag_keys_line *line = &keys->lines[at];
        unsigned matches = match(line, line->state, key);
        if (matches) {
            unsigned slot = (unsigned)__builtin_ctz(matches);
            int64_t row = row_at(line, line->state, slot);
            clear_slot(line, slot);
            return row;
        }
        if (!(line->state & PASSED_BIT))
            return -1;
        at = next_line(keys, at);
    }
    return -1;
}

size_t bag_keys_find(const struct bag_keys *keys, const struct bag_ids *ids,
                     const struct bag_table *fetched, int64_t *rows)
{
    if (fetched)
        return ids->wide ? find_all(keys, *ids, true, fetched, rows)
                         : find_all(keys, *ids, false, fetched, rows);
    return ids->wide ? find_all(keys, *ids, true, NULL, rows)
                     : find_all(keys, *ids, false, NULL, rows);
}
