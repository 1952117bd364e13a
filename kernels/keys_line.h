/* Where a key may be in the index of keys.h, and what is there. A hash times the number of lines is
 * 128 bits long: the high half is the home line, the low half says where in that line's range the
 * hash is. Neighbours differ there by the number of lines, so its lowest `s` bits can be left out,
 * where 2^s is at most that number. A word holds, from the highest bit: the probe (1 to 15, at
 * least 4 bits), the 64 - s others, and the low bits of the row. Line, probe and rest tell the home
 * line and the hash: an equal word is the same key. */
#ifndef BAG_KEYS_LINE_H
#define BAG_KEYS_LINE_H

#include "keys.h"
#include "pool_entries.h"

/* About as many lines from one probe to the next at most: mostly within the same large page. */
#define BAG_KEYS_MAX_DISTANCE 4096

/* With so many lines a probe has 4 bits in tables of any size; see bag_keys_for. */
#define BAG_KEYS_MIN_LINES 16

/* Where a key may be. */
struct bag_keys_place {
    size_t line;
    uint64_t word; /* of its slot there, with zeros in place of the row */
};

static inline uint64_t bag_keys_hash(const struct bag_keys *keys, uint64_t key)
{
    const uint64_t *seed = keys->seed.words;
    key = (key ^ seed[0]) * (seed[1] | 1);
    key = ((key ^ key >> 32) + seed[2]) * (seed[3] | 1);
    return key ^ key >> 32;
}

static inline unsigned bag_keys_hash_bits(const struct bag_keys *keys)
{
    return 1 + (unsigned)__builtin_clzll(keys->num_lines);
}

static inline unsigned bag_keys_probe_shift(const struct bag_keys *keys)
{
    return bag_keys_hash_bits(keys) + keys->low_bits;
}

static inline struct bag_keys_place bag_keys_home(const struct bag_keys *keys, uint64_t key)
{
    unsigned __int128 product = (unsigned __int128)bag_keys_hash(keys, key) * keys->num_lines;
    uint64_t rest = (uint64_t)product >> (64 - bag_keys_hash_bits(keys));
    return (struct bag_keys_place){(size_t)(product >> 64),
                                   rest << keys->low_bits | UINT64_C(1)
                                                                << bag_keys_probe_shift(keys)};
}

static inline unsigned bag_keys_probe(const struct bag_keys *keys, uint64_t word)
{
    return (unsigned)(word >> bag_keys_probe_shift(keys));
}

/* How far the line after this probe is; the distances grow by one from probe to probe, so that few
 * lines are tried twice, however many there are. `word` may have any row and probe. */
static inline size_t bag_keys_distance_after(const struct bag_keys *keys, uint64_t word,
                                             unsigned probe)
{
    uint64_t rest = word << (64 - bag_keys_probe_shift(keys)) >> (64 - bag_keys_hash_bits(keys));
    size_t most = keys->num_lines - BAG_KEYS_MIN_LINES;
    uint64_t mixed = rest * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    return (size_t)(mixed * (most < BAG_KEYS_MAX_DISTANCE ? most : BAG_KEYS_MAX_DISTANCE) >> 32) +
           probe;
}

static inline struct bag_keys_place bag_keys_next(const struct bag_keys *keys,
                                                  struct bag_keys_place place)
{
    size_t line =
        place.line + bag_keys_distance_after(keys, place.word, bag_keys_probe(keys, place.word));
    return (struct bag_keys_place){line < keys->num_lines ? line : line - keys->num_lines,
                                   place.word + (UINT64_C(1) << bag_keys_probe_shift(keys))};
}

static inline uint64_t bag_keys_word(const struct bag_keys_line *line, unsigned slot)
{
    return __atomic_load_n(&line->words[slot], __ATOMIC_ACQUIRE);
}

/* A bit for each slot of the line whose word is this one, but for the row. One at most is. */
static inline unsigned bag_keys_match(const struct bag_keys *keys, const struct bag_keys_line *line,
                                      uint64_t word)
{
    unsigned matches = 0;
    for (unsigned slot = 0; slot < BAG_KEYS_PER_LINE; slot++)
        matches |= (unsigned)((bag_keys_word(line, slot) ^ word) >> keys->low_bits == 0) << slot;
    return matches;
}

/* The row of the key in the place's line, -1 where it is not there. The slot may change meanwhile:
 * its word is read again. */
static inline int64_t bag_keys_row_at(const struct bag_keys *keys, struct bag_keys_place place)
{
    const struct bag_keys_line *line = &keys->lines[place.line];
    unsigned matches;
    while ((matches = bag_keys_match(keys, line, place.word)) != 0) {
        unsigned slot = (unsigned)__builtin_ctz(matches);
        uint64_t word = bag_keys_word(line, slot);
        uint64_t high = __atomic_load_n(&line->high[slot], __ATOMIC_ACQUIRE);
        uint64_t low = word ^ place.word;
        if (low >> keys->low_bits == 0 && bag_keys_word(line, slot) == word)
            return (int64_t)(high << keys->low_bits | low);
    }
    return -1;
}

/* ---- what a home line knows of its keys that are elsewhere ------------------------------------
 *
 * A byte: in the upper three bits the last probe of such keys, where 7 stands for any from there
 * on; in the others whether there are any of each class, which is a fifth of all keys. It only
 * grows. */

#define BAG_KEYS_CLASSES 5

static inline unsigned bag_keys_class(const struct bag_keys *keys, uint64_t word)
{
    return (unsigned)((word >> keys->low_bits & 0xff) * BAG_KEYS_CLASSES >> 8);
}

static inline unsigned bag_keys_last_probe(unsigned passed)
{
    unsigned last = passed >> BAG_KEYS_CLASSES;
    return last < 7 ? last : BAG_KEYS_MAX_PROBE;
}

/* Notes down that a key of the home line has a place elsewhere. Before it is written there. */
static inline void bag_keys_pass(const struct bag_keys *keys, struct bag_keys_line *home,
                                 uint64_t word)
{
    unsigned probe = bag_keys_probe(keys, word), last = home->passed >> BAG_KEYS_CLASSES;
    unsigned classes = (home->passed | 1u << bag_keys_class(keys, word)) & 31;
    last = probe < last ? last : probe < 7 ? probe : 7;
    __atomic_store_n(&home->passed, (uint8_t)(last << BAG_KEYS_CLASSES | classes),
                     __ATOMIC_RELEASE);
}

/* Whether a key that is not at this place may be at a later one. Asked after the place was read: a
 * key that was moved on meanwhile has told the home line before. */
static inline bool bag_keys_has_next(const struct bag_keys *keys, const struct bag_keys_line *home,
                                     uint64_t word)
{
    unsigned passed = __atomic_load_n(&home->passed, __ATOMIC_ACQUIRE);
    return (passed >> bag_keys_class(keys, word) & 1) &
           (bag_keys_probe(keys, word) < bag_keys_last_probe(passed));
}

#endif
