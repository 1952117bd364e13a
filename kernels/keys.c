/* Builds and changes the index of keys.h, and finds keys in it. */
#include "keys_line.h"
#include "pool_loop.h"
#include "random.h"

#define HIGH_BITS 8

_Static_assert(sizeof(struct bag_keys_line) == 64, "a line of the cache");

/* ---- hashes ---------------------------------------------------------------------------------- */

/* Returns the home line of the key at a place. */
static size_t home_line(const struct bag_keys *keys, struct bag_keys_place place)
{
    size_t line = place.line;
    for (unsigned probe = bag_keys_probe(keys, place.word) - 1; probe > 0; probe--) {
        size_t distance = bag_keys_distance_after(keys, place.word, probe);
        line = line >= distance ? line - distance : line + keys->num_lines - distance;
    }
    return line;
}

struct bag_keys bag_keys_for(size_t max_keys)
{
    unsigned row_bits = HIGH_BITS;
    while (max_keys >> row_bits)
        row_bits++;
    size_t num_lines = max_keys / 12 * 2 + 2;
    return (struct bag_keys){.num_lines =
                                 num_lines < BAG_KEYS_MIN_LINES ? BAG_KEYS_MIN_LINES : num_lines,
                             .low_bits = row_bits - HIGH_BITS};
}

int64_t bag_keys_hashed_row(uint64_t key, int64_t num_rows)
{
    uint64_t z = bag_mix(key + BAG_RANDOM_STEP);
    return (int64_t)(((unsigned __int128)z * (uint64_t)num_rows) >> 64);
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Writes a key and its row to an empty slot. */
static void put(const struct bag_keys *keys, struct bag_keys_place place, unsigned slot,
                int64_t row)
{
    struct bag_keys_line *line = &keys->lines[place.line];
    uint64_t low = (uint64_t)row & ((UINT64_C(1) << keys->low_bits) - 1);
    __atomic_store_n(&line->high[slot], (uint8_t)(row >> keys->low_bits), __ATOMIC_RELEASE);
    __atomic_store_n(&line->words[slot], place.word | low, __ATOMIC_RELEASE);
}

/* ---- filling --------------------------------------------------------------------------------- */

enum filled { FILLED, FULL, TWICE };

/* Takes the first empty slot of the home line. No thread removes keys meanwhile, so two threads
 * with the same key meet in the same slot, or both find the line full. */
static inline enum filled fill_line(const struct bag_keys *keys, struct bag_keys_place home,
                                    int64_t row)
{
    struct bag_keys_line *line = &keys->lines[home.line];
    uint64_t filled = home.word | ((uint64_t)row & ((UINT64_C(1) << keys->low_bits) - 1));
    for (unsigned slot = 0; slot < BAG_KEYS_PER_LINE; slot++) {
        uint64_t word = bag_keys_word(line, slot);
        if (word == 0 && __atomic_compare_exchange_n(&line->words[slot], &word, filled, false,
                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            line->high[slot] = (uint8_t)(row >> keys->low_bits);
            return FILLED;
        }
        if ((word ^ home.word) >> keys->low_bits == 0)
            return TWICE;
    }
    return FULL;
}

/* How many keys ahead their lines are prefetched; a power of two. */
#define AHEAD 64

bool bag_keys_fill(const struct bag_keys *keys, const void *added, size_t count, int64_t first_row,
                   struct bag_keys_entry *crowded, size_t *num_crowded)
{
    struct bag_ids ids = {added, count, true};
    struct bag_keys_place homes[AHEAD];
    *num_crowded = 0;
    for (size_t i = 0; i < count + AHEAD; i++) {
        struct bag_keys_place *home = &homes[i % AHEAD];
        if (i >= AHEAD) {
            uint64_t key = (uint64_t)bag_id_at(&ids, i - AHEAD);
            int64_t row = first_row + (int64_t)(i - AHEAD);
            enum filled filled = fill_line(keys, *home, row);
            if (filled == TWICE)
                return false;
            if (filled == FULL)
                crowded[(*num_crowded)++] = (struct bag_keys_entry){key, row};
        }
        if (i < count) {
            *home = bag_keys_home(keys, (uint64_t)bag_id_at(&ids, i));
            __builtin_prefetch(&keys->lines[home->line], 1, 3);
        }
    }
    return true;
}

/* ---- inserting and removing ------------------------------------------------------------------ */

/* Returns the first empty slot of a line, or -1 if there is none. */
static int empty_slot(const struct bag_keys_line *line)
{
    for (int slot = 0; slot < BAG_KEYS_PER_LINE; slot++) {
        if (line->words[slot] == 0)
            return slot;
    }
    return -1;
}

/* Puts a key into the place's line. Returns false if the line is full. */
static bool settle(const struct bag_keys *keys, struct bag_keys_place place, size_t home,
                   int64_t row)
{
    int slot = empty_slot(&keys->lines[place.line]);
    if (slot < 0)
        return false;
    if (bag_keys_probe(keys, place.word) > 1)
        bag_keys_pass(keys, &keys->lines[home], place.word);
    put(keys, place, (unsigned)slot, row);
    return true;
}

/* Returns the place of the key in a slot, and sets *row to its row. */
static struct bag_keys_place place_of(const struct bag_keys *keys, size_t line, unsigned slot,
                                      int64_t *row)
{
    uint64_t low_mask = (UINT64_C(1) << keys->low_bits) - 1, word = keys->lines[line].words[slot];
    *row = (int64_t)((uint64_t)keys->lines[line].high[slot] << keys->low_bits | (word & low_mask));
    return (struct bag_keys_place){line, word & ~low_mask};
}

/* Moves one key of the line to its own next probe, at most `last_probe`. Returns its slot, or -1 if
 * no key can move. Keys only move to later probes, so that threads that look for them at the same
 * time find them. */
static int make_room(const struct bag_keys *keys, size_t line, unsigned last_probe)
{
    int64_t row;
    for (unsigned slot = 0; slot < BAG_KEYS_PER_LINE; slot++)
        __builtin_prefetch(&keys->lines[bag_keys_next(keys, place_of(keys, line, slot, &row)).line],
                           1, 3);
    for (unsigned slot = 0; slot < BAG_KEYS_PER_LINE; slot++) {
        struct bag_keys_place place = place_of(keys, line, slot, &row);
        if (bag_keys_probe(keys, place.word) < last_probe &&
            settle(keys, bag_keys_next(keys, place), home_line(keys, place), row))
            return (int)slot;
    }
    return -1;
}

/* Finds the place of a key, or that of its last probe. Returns its row, or -1 if it is missing. */
static int64_t search(const struct bag_keys *keys, struct bag_keys_place *place)
{
    const struct bag_keys_line *home = &keys->lines[place->line];
    int64_t row;
    while ((row = bag_keys_row_at(keys, *place)) < 0 && bag_keys_has_next(keys, home, place->word))
        *place = bag_keys_next(keys, *place);
    return row;
}

/* Empties a slot in one of the key's first lines, and moves *place from the home line to that line.
 * The key that was there moves to a probe up to `last_probe`. Returns false if none can move. */
static bool find_room(const struct bag_keys *keys, struct bag_keys_place *place, unsigned lines,
                      unsigned last_probe)
{
    for (; lines > 0; lines--) {
        int slot = make_room(keys, place->line, last_probe);
        if (slot >= 0) {
            __atomic_store_n(&keys->lines[place->line].words[slot], 0, __ATOMIC_RELEASE);
            return true;
        }
        *place = bag_keys_next(keys, *place);
    }
    return false;
}

/* The number of probes at which nearly all keys are found. Rather than use a later one, a key makes
 * space at home. */
#define NEAR_PROBES 2

enum bag_keys_outcome bag_keys_insert(const struct bag_keys *keys, uint64_t key, int64_t row,
                                      int64_t *other)
{
    struct bag_keys_place home = bag_keys_home(keys, key), place = home, room = {0};
    int last_probe = (int)bag_keys_last_probe(keys->lines[home.line].passed);
    for (int probe = 1; probe <= last_probe || (!room.word && probe <= BAG_KEYS_MAX_PROBE);
         probe++) {
        *other = bag_keys_row_at(keys, place);
        if (*other >= 0)
            return BAG_KEYS_DUPLICATE;
        if (!room.word && empty_slot(&keys->lines[place.line]) >= 0)
            room = place;
        place = bag_keys_next(keys, place);
    }
    place = home;
    if ((!room.word || bag_keys_probe(keys, room.word) > NEAR_PROBES) &&
        find_room(keys, &place, 1, NEAR_PROBES))
        room = place;
    if (!room.word) {
        room = home;
        if (!find_room(keys, &room, BAG_KEYS_MAX_PROBE, BAG_KEYS_MAX_PROBE))
            return BAG_KEYS_CROWDED;
    }
    settle(keys, room, home.line, row);
    return BAG_KEYS_ADDED;
}

/* How many keys ahead lines are prefetched, and for how many probes. */
#define INSERT_AHEAD      4
#define PREFETCHED_PROBES 3

/* Prefetches the lines of a key. Always inlined, because compilers drop calls of functions that
 * only prefetch. */
static inline __attribute__((always_inline)) void prefetch_probes(const struct bag_keys *keys,
                                                                  uint64_t key)
{
    struct bag_keys_place place = bag_keys_home(keys, key);
    for (int probe = 1; probe <= PREFETCHED_PROBES; probe++) {
        __builtin_prefetch(&keys->lines[place.line], 1, 3);
        place = bag_keys_next(keys, place);
    }
}

enum bag_keys_outcome bag_keys_insert_all(const struct bag_keys *keys,
                                          const struct bag_keys_entry *added, size_t count,
                                          size_t *stopped, int64_t *other)
{
    for (size_t i = *stopped = 0; i < count; *stopped = ++i) {
        if (count - i > INSERT_AHEAD)
            prefetch_probes(keys, added[i + INSERT_AHEAD].key);
        enum bag_keys_outcome outcome = bag_keys_insert(keys, added[i].key, added[i].row, other);
        if (outcome != BAG_KEYS_ADDED)
            return outcome;
    }
    return BAG_KEYS_ADDED;
}

int64_t bag_keys_remove(const struct bag_keys *keys, uint64_t key)
{
    struct bag_keys_place place = bag_keys_home(keys, key);
    int64_t row = search(keys, &place);
    if (row >= 0) {
        struct bag_keys_line *line = &keys->lines[place.line];
        int slot = __builtin_ctz(bag_keys_match(keys, line, place.word));
        __atomic_store_n(&line->words[slot], 0, __ATOMIC_RELEASE);
    }
    return row;
}

/* ---- finding --------------------------------------------------------------------------------- */

int64_t bag_keys_find_one(const struct bag_keys *keys, uint64_t key)
{
    struct bag_keys_place place = bag_keys_home(keys, key);
    int64_t row = search(keys, &place);
    return row >= 0 && keys->rows ? (int64_t)keys->rows[row] : row;
}

size_t bag_keys_find(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows)
{
    if (ids->count == 1) {
        rows[0] = bag_keys_find_one(keys, (uint64_t)bag_id_at(ids, 0));
        return rows[0] < 0;
    }
    size_t missing = bag_kernels_used->find_keys(keys, ids, rows);
    for (size_t i = 0; keys->rows && i < ids->count; i++)
        rows[i] = rows[i] < 0 ? rows[i] : (int64_t)keys->rows[rows[i]];
    return missing;
}
