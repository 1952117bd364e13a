/* Lines of seven keys; see keys.h.
 *
 * A hash times the number of lines is 128 bits long: the high half is the home line, the low half
 * says where in that line's range the hash is. Neighbours differ there by the number of lines, so
 * its lowest `s` bits can be left out, where 2^s is at most that number. A word holds, from the
 * highest bit: the probe (1 to 15, at least 4 bits), the 64 - s others, and the low bits of the
 * row. Line, probe and rest tell the home line and the hash: an equal word is the same key. */
#include "keys.h"
#include "pool_entries.h"

#define HIGH_BITS 8

/* About as many lines from one probe to the next at most: mostly within the same large page. */
#define MAX_DISTANCE 4096

/* With so many lines a probe has 4 bits in tables of any size; see bag_keys_for. */
#define MIN_LINES 16

_Static_assert(sizeof(struct bag_keys_line) == 64, "a line of the cache");

/* ---- hashes ---------------------------------------------------------------------------------- */

/* Where a key may be. */
struct place {
    size_t line;
    uint64_t word; /* of its slot there, with zeros in place of the row */
};

static inline uint64_t hash(const struct bag_keys *keys, uint64_t key)
{
    const uint64_t *seed = keys->seed.words;
    key = (key ^ seed[0]) * (seed[1] | 1);
    key = ((key ^ key >> 32) + seed[2]) * (seed[3] | 1);
    return key ^ key >> 32;
}

static inline unsigned hash_bits(const struct bag_keys *keys)
{
    return 1 + (unsigned)__builtin_clzll(keys->num_lines);
}

static inline unsigned probe_shift(const struct bag_keys *keys)
{
    return hash_bits(keys) + keys->low_bits;
}

static inline struct place home_of(const struct bag_keys *keys, uint64_t key)
{
    unsigned __int128 product = (unsigned __int128)hash(keys, key) * keys->num_lines;
    uint64_t rest = (uint64_t)product >> (64 - hash_bits(keys));
    return (struct place){(size_t)(product >> 64),
                          rest << keys->low_bits | UINT64_C(1) << probe_shift(keys)};
}

static inline unsigned probe_of(const struct bag_keys *keys, uint64_t word)
{
    return (unsigned)(word >> probe_shift(keys));
}

/* How far the line after this probe is; the distances grow by one from probe to probe, so that few
 * lines are tried twice, however many there are. `word` may have any row and probe. */
static inline size_t distance_after(const struct bag_keys *keys, uint64_t word, unsigned probe)
{
    uint64_t rest = word << (64 - probe_shift(keys)) >> (64 - hash_bits(keys));
    size_t most = keys->num_lines - MIN_LINES;
    uint64_t mixed = rest * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    return (size_t)(mixed * (most < MAX_DISTANCE ? most : MAX_DISTANCE) >> 32) + probe;
}

static inline struct place next_place(const struct bag_keys *keys, struct place place)
{
    size_t line = place.line + distance_after(keys, place.word, probe_of(keys, place.word));
    return (struct place){line < keys->num_lines ? line : line - keys->num_lines,
                          place.word + (UINT64_C(1) << probe_shift(keys))};
}

/* The home line of the key that is at a place. */
static size_t home_line(const struct bag_keys *keys, struct place place)
{
    size_t line = place.line;
    for (unsigned probe = probe_of(keys, place.word) - 1; probe > 0; probe--) {
        size_t distance = distance_after(keys, place.word, probe);
        line = line >= distance ? line - distance : line + keys->num_lines - distance;
    }
    return line;
}

struct bag_keys bag_keys_for(size_t max_keys)
{
    unsigned row_bits = HIGH_BITS;
    while (max_keys >> row_bits)
        row_bits++;
    size_t num_lines = max_keys / 13 * 2 + 2;
    return (struct bag_keys){.num_lines = num_lines < MIN_LINES ? MIN_LINES : num_lines,
                             .low_bits = row_bits - HIGH_BITS};
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

static inline uint64_t word_at(const struct bag_keys_line *line, unsigned slot)
{
    return __atomic_load_n(&line->words[slot], __ATOMIC_ACQUIRE);
}

/* The slot of the line whose word is that of the place, but for the row; -1: none. One at most is.
 */
static inline int match(const struct bag_keys *keys, struct place place)
{
    const struct bag_keys_line *line = &keys->lines[place.line];
    unsigned matches = 0;
    for (unsigned slot = 0; slot < BAG_KEYS_PER_LINE; slot++)
        matches |= (unsigned)((word_at(line, slot) ^ place.word) >> keys->low_bits == 0) << slot;
    return matches ? __builtin_ctz(matches) : -1;
}

/* The row of the key in the place's line, -1 where it is not there. The slot may change meanwhile:
 * its word is read again. */
static inline int64_t row_at(const struct bag_keys *keys, struct place place)
{
    const struct bag_keys_line *line = &keys->lines[place.line];
    int slot;
    while ((slot = match(keys, place)) >= 0) {
        uint64_t word = word_at(line, (unsigned)slot);
        uint64_t high = __atomic_load_n(&line->high[slot], __ATOMIC_ACQUIRE);
        uint64_t low = word ^ place.word;
        if (low >> keys->low_bits == 0 && word_at(line, (unsigned)slot) == word)
            return (int64_t)(high << keys->low_bits | low);
    }
    return -1;
}

/* Writes an empty slot. */
static void put(const struct bag_keys *keys, struct place place, unsigned slot, int64_t row)
{
    struct bag_keys_line *line = &keys->lines[place.line];
    uint64_t low = (uint64_t)row & ((UINT64_C(1) << keys->low_bits) - 1);
    __atomic_store_n(&line->high[slot], (uint8_t)(row >> keys->low_bits), __ATOMIC_RELEASE);
    __atomic_store_n(&line->words[slot], place.word | low, __ATOMIC_RELEASE);
}

/* ---- filling --------------------------------------------------------------------------------- */

enum filled { FILLED, FULL, TWICE };

/* Takes the first empty slot. Nobody removes keys meanwhile, so two threads with the same key meet
 * in the same slot, or both find the line full. */
static inline enum filled fill_line(const struct bag_keys *keys, struct place home, int64_t row)
{
    struct bag_keys_line *line = &keys->lines[home.line];
    uint64_t filled = home.word | ((uint64_t)row & ((UINT64_C(1) << keys->low_bits) - 1));
    for (unsigned slot = 0; slot < BAG_KEYS_PER_LINE; slot++) {
        uint64_t word = word_at(line, slot);
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

/* How many keys ahead their lines are fetched; a power of two. */
#define AHEAD 64

bool bag_keys_fill(const struct bag_keys *keys, const void *added, size_t count, int64_t first_row,
                   struct bag_keys_entry *crowded, size_t *num_crowded)
{
    struct bag_ids ids = {added, count, true};
    struct place homes[AHEAD];
    *num_crowded = 0;
    for (size_t i = 0; i < count + AHEAD; i++) {
        struct place *home = &homes[i % AHEAD];
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
            *home = home_of(keys, (uint64_t)bag_id_at(&ids, i));
            __builtin_prefetch(&keys->lines[home->line], 1, 3);
        }
    }
    return true;
}

/* ---- inserting and removing ------------------------------------------------------------------ */

/* The first empty slot of a line; -1: none. */
static int empty_slot(const struct bag_keys_line *line)
{
    for (int slot = 0; slot < BAG_KEYS_PER_LINE; slot++) {
        if (line->words[slot] == 0)
            return slot;
    }
    return -1;
}

/* Puts a key into the place's line if that has room. */
static bool settle(const struct bag_keys *keys, struct place place, size_t home, int64_t row)
{
    int slot = empty_slot(&keys->lines[place.line]);
    uint8_t probe = (uint8_t)probe_of(keys, place.word);
    if (slot < 0)
        return false;
    put(keys, place, (unsigned)slot, row);
    if (probe > keys->lines[home].last_probe)
        __atomic_store_n(&keys->lines[home].last_probe, probe, __ATOMIC_RELEASE);
    return true;
}

/* Moves one key of the line to its own next probe; returns its slot, -1 where none has room there.
 * Keys move to later probes alone, so that those who look for them at the same time find them. */
static int make_room(const struct bag_keys *keys, size_t line)
{
    uint64_t low_mask = (UINT64_C(1) << keys->low_bits) - 1;
    for (int slot = 0; slot < BAG_KEYS_PER_LINE; slot++) {
        uint64_t word = keys->lines[line].words[slot];
        uint64_t row = (uint64_t)keys->lines[line].high[slot] << keys->low_bits | (word & low_mask);
        struct place place = {line, word & ~low_mask};
        if (probe_of(keys, word) < BAG_KEYS_MAX_PROBE &&
            settle(keys, next_place(keys, place), home_line(keys, place), (int64_t)row))
            return slot;
    }
    return -1;
}

/* Whether keys of the home line may be at later probes. Asked after the place was read: a key
 * that was moved on meanwhile has told the home line before. */
static inline bool has_next(const struct bag_keys *keys, struct place place, size_t home)
{
    return probe_of(keys, place.word) <
           __atomic_load_n(&keys->lines[home].last_probe, __ATOMIC_ACQUIRE);
}

/* Finds the place of a key, or that of its last probe; its row or -1. */
static int64_t search(const struct bag_keys *keys, struct place *place)
{
    size_t home = place->line;
    int64_t row;
    while ((row = row_at(keys, *place)) < 0 && has_next(keys, *place, home))
        *place = next_place(keys, *place);
    return row;
}

/* Empties a slot in one of the key's lines; *place moves from the home line to that one. */
static bool find_room(const struct bag_keys *keys, struct place *place)
{
    for (int probe = 1; probe <= BAG_KEYS_MAX_PROBE; probe++) {
        int slot = make_room(keys, place->line);
        if (slot >= 0) {
            __atomic_store_n(&keys->lines[place->line].words[slot], 0, __ATOMIC_RELEASE);
            return true;
        }
        *place = next_place(keys, *place);
    }
    return false;
}

enum bag_keys_outcome bag_keys_insert(const struct bag_keys *keys, uint64_t key, int64_t row,
                                      int64_t *other)
{
    struct place home = home_of(keys, key), place = home, room = {0};
    int last_probe = keys->lines[home.line].last_probe;
    for (int probe = 1; probe <= last_probe || (!room.word && probe <= BAG_KEYS_MAX_PROBE);
         probe++) {
        *other = row_at(keys, place);
        if (*other >= 0)
            return BAG_KEYS_DUPLICATE;
        if (!room.word && empty_slot(&keys->lines[place.line]) >= 0)
            room = place;
        place = next_place(keys, place);
    }
    if (!room.word) {
        room = home;
        if (!find_room(keys, &room))
            return BAG_KEYS_CROWDED;
    }
    settle(keys, room, home.line, row);
    return BAG_KEYS_ADDED;
}

/* How many keys ahead the lines of so many probes are fetched. */
#define INSERT_AHEAD      4
#define PREFETCHED_PROBES 6

/* Always inline: compilers leave out calls of functions that do nothing but fetch. */
static inline __attribute__((always_inline)) void prefetch_probes(const struct bag_keys *keys,
                                                                  uint64_t key)
{
    struct place place = home_of(keys, key);
    for (int probe = 1; probe <= PREFETCHED_PROBES; probe++) {
        __builtin_prefetch(&keys->lines[place.line], 1, 3);
        place = next_place(keys, place);
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
    struct place place = home_of(keys, key);
    int64_t row = search(keys, &place);
    if (row >= 0)
        __atomic_store_n(&keys->lines[place.line].words[match(keys, place)], 0, __ATOMIC_RELEASE);
    return row;
}

/* ---- finding --------------------------------------------------------------------------------- */

int64_t bag_keys_find_one(const struct bag_keys *keys, uint64_t key)
{
    struct place place = home_of(keys, key);
    return search(keys, &place);
}

static inline void prefetch_row(const char *rows, size_t row_bytes, int64_t row)
{
    const char *at = rows + (size_t)row * row_bytes;
    for (size_t byte = 0; byte < row_bytes; byte += 64)
        __builtin_prefetch(at + byte, 0, 2);
}

/* A key that is looked up. */
struct lookup {
    struct place place; /* that line was prefetched */
    size_t home, position;
};

static inline void start(const struct bag_keys *keys, const struct bag_ids *ids, size_t position,
                         struct lookup *lookup)
{
    struct place home = home_of(keys, (uint64_t)bag_id_at(ids, position));
    *lookup = (struct lookup){home, home.line, position};
    __builtin_prefetch(&keys->lines[lookup->place.line], 0, 3);
}

static inline void go_on(const struct bag_keys *keys, struct lookup *lookup)
{
    lookup->place = next_place(keys, lookup->place);
    __builtin_prefetch(&keys->lines[lookup->place.line], 0, 3);
}

/* Up to AHEAD keys are looked up in turn, a probe each; the next takes the place of one that is
 * done. `wide` and `fetched` are constants of each call. */
static inline __attribute__((always_inline)) size_t find_all(const struct bag_keys *keys,
                                                             struct bag_ids ids, bool wide,
                                                             const struct bag_table *fetched,
                                                             int64_t *rows)
{
    struct lookup lookups[AHEAD];
    size_t row_bytes = fetched ? bag_row_bytes(fetched) : 0, next = 0, missing = 0, turn = 0;
    size_t running = ids.count < AHEAD ? ids.count : AHEAD;
    ids.wide = wide;
    while (next < running) {
        start(keys, &ids, next, &lookups[next]);
        next++;
    }
    while (running > 0) {
        turn = turn < running ? turn : 0;
        struct lookup *lookup = &lookups[turn];
        int64_t row = row_at(keys, lookup->place);
        if (row < 0 && has_next(keys, lookup->place, lookup->home)) {
            go_on(keys, lookup);
            turn++;
            continue;
        }
        rows[lookup->position] = row;
        missing += row < 0;
        if (fetched && row >= 0)
            prefetch_row(fetched->rows, row_bytes, row);
        if (next < ids.count) {
            start(keys, &ids, next++, lookup);
            turn++;
        } else {
            *lookup = lookups[--running];
        }
    }
    return missing;
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
