/* The positions of a key in the index of keys.h, and the contents of a line.
 *
 * A hash times the number of lines has 128 bits. The high half is the home line. The low half is
 * the position of the hash in that line's range. Neighbouring hashes differ there by the number of
 * lines, so the lowest `s` bits can be left out, where 2^s is at most that number.
 *
 * A word contains, from the highest bit, the probe (1 to 15, at least 4 bits), the other 64 - s
 * bits, and the low bits of the row. Line, probe and these bits determine the home line and the
 * hash, so an equal word means an equal key. */
#pragma once

#include "keys.h"
#include "pool_entries.h"

/* The approximate maximum distance in lines from one probe to the next, mostly within the same huge
 * page. */
#define BAG_KEYS_MAX_DISTANCE 4096

/* With at least this number of lines, a probe has 4 bits in tables of any size; see
 * bag_keys_for. */
#define BAG_KEYS_MIN_LINES 16

/* A position at which a key may be. */
struct bag_keys_place {
    size_t line;
    uint64_t word; /* word of its slot, with zeros in place of the row */
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

/* Returns the distance to the line of the next probe. The distances grow by one from probe to
 * probe, so that few lines are tried twice, however many there are. `word` may have any row and
 * probe. */
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

/* Returns a bit for each slot of the line whose word equals this one except for the row. At most
 * one slot matches. */
static inline unsigned bag_keys_match(const struct bag_keys *keys, const struct bag_keys_line *line,
                                      uint64_t word)
{
    unsigned matches = 0;
    for (unsigned slot = 0; slot < BAG_KEYS_PER_LINE; slot++)
        matches |= (unsigned)((bag_keys_word(line, slot) ^ word) >> keys->low_bits == 0) << slot;
    return matches;
}

/* Returns the row of the key at this place, or -1 if it is not there. Reads the word again, because
 * the slot may change meanwhile. */
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

/* ---- the summary of a home line ---------------------------------------------------------------
 *
 * A byte summarises the keys of a home line that are elsewhere. Its upper three bits have their
 * last probe, where 7 means any probe from 7 on. The others have a bit for each class, a fifth of
 * all keys, which is set if there is a key of this class. The summary only grows. */

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

/* Adds a key that is placed elsewhere to the summary of its home line. Called before the key is
 * written there. */
static inline void bag_keys_pass(const struct bag_keys *keys, struct bag_keys_line *home,
                                 uint64_t word)
{
    unsigned probe = bag_keys_probe(keys, word), last = home->passed >> BAG_KEYS_CLASSES;
    unsigned classes = (home->passed | 1u << bag_keys_class(keys, word)) & 31;
    last = probe < last ? last : probe < 7 ? probe : 7;
    __atomic_store_n(&home->passed, (uint8_t)(last << BAG_KEYS_CLASSES | classes),
                     __ATOMIC_RELEASE);
}

/* Returns whether a key that is not at this place may be at a later one. Called after the place was
 * read: a key that was moved meanwhile was added to the summary before. */
static inline bool bag_keys_has_next(const struct bag_keys *keys, const struct bag_keys_line *home,
                                     uint64_t word)
{
    unsigned passed = __atomic_load_n(&home->passed, __ATOMIC_ACQUIRE);
    return (passed >> bag_keys_class(keys, word) & 1) &
           (bag_keys_probe(keys, word) < bag_keys_last_probe(passed));
}

/* Returns what bag_keys_has_next returns for a key that is not in its home line. Classes are in the
 * summary only if their keys are at later probes. */
static inline bool bag_keys_is_passed(const struct bag_keys *keys, const struct bag_keys_line *home,
                                      uint64_t word)
{
    unsigned passed = __atomic_load_n(&home->passed, __ATOMIC_ACQUIRE);
    return passed >> bag_keys_class(keys, word) & 1;
}
