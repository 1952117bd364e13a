/* Finds many keys at once. Included once for plain C, and once for each instruction set that
 * compares the words of a line at once, after
 *
 *   #define MATCH_SLOTS   a function like bag_keys_match, which always sets bit 7
 *
 * It defines find_keys, which works on blocks of keys. The home lines of the next block are
 * prefetched while those of the current one are searched, without a branch that depends on the
 * keys. The few keys that may be elsewhere are collected and found later, many at a time. */
#include "keys_line.h"

/* The number of keys of a block. With 32, a Zen 3 took twice as long: it drops prefetches while it
 * waits for about 24 lines. */
#define FIND_BLOCK 16

/* Calls with at most this number of keys also prefetch the lines of the second probes. */
#define FIND_SHORT 12

/* The number of collected keys from which they are found. */
#define FIND_LATER 32

/* The home lines of a block's keys, and the keys' words there. */
struct find_homes {
    _Alignas(64) const struct bag_keys_line *lines[FIND_BLOCK];
    uint64_t words[FIND_BLOCK];
};

/* The positions of keys that are not at home but may be elsewhere. */
struct find_later {
    size_t count;
    uint64_t *positions; /* an array of its own, so that the count stays in a register */
};

/* ---- lines ----------------------------------------------------------------------------------- */

static __attribute__((noinline)) int64_t find_again(struct bag_keys keys,
                                                    struct bag_keys_place place)
{
    return bag_keys_row_at(&keys, place);
}

/* Returns the row of a key in the line, or -1 if it is not there. The eighth word of the line,
 * which is read if no slot matches, has the high bits of the rows. */
static inline __attribute__((always_inline)) int64_t
find_at(const struct bag_keys *keys, const struct bag_keys_line *line, uint64_t word)
{
    unsigned slot = (unsigned)__builtin_ctz(MATCH_SLOTS(keys, line, word));
    const uint64_t *at = (const uint64_t *)(const void *)line + slot;
    uint64_t found = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    uint64_t high = __atomic_load_n((const uint8_t *)line->high + slot, __ATOMIC_ACQUIRE);
    uint64_t low = found ^ word;
    /* Computed without a branch, because whether the key is here could not be predicted. */
    uint64_t absent = 0 - (uint64_t)(slot == BAG_KEYS_PER_LINE);
    uint64_t changed = low >> keys->low_bits | (__atomic_load_n(at, __ATOMIC_ACQUIRE) ^ found);
    if (__builtin_expect((changed & ~absent) != 0, 0))
        return find_again(*keys, (struct bag_keys_place){(size_t)(line - keys->lines), word});
    return (int64_t)(high << keys->low_bits | low | absent);
}

/* Searches the home lines of a block. Returns the number of keys that are not there. `first` is the
 * position of the block's first key. */
static inline __attribute__((always_inline)) size_t
find_each(const struct bag_keys *keys, const struct find_homes *homes, size_t first, size_t count,
          int64_t *rows, struct find_later *later)
{
    size_t absent = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t row = find_at(keys, homes->lines[i], homes->words[i]);
        size_t is_absent = (uint64_t)row >> 63; /* without a branch, again */
        rows[first + i] = row;
        absent += is_absent;
        later->positions[later->count] = first + i;
        later->count += is_absent & bag_keys_is_passed(keys, homes->lines[i], homes->words[i]);
    }
    return absent;
}

#if defined(__AVX512F__)
#include "keys_avx512.h"
#else

/* Sets the home lines and words of a block's keys. */
static inline __attribute__((always_inline)) void find_homes(const struct bag_keys *keys,
                                                             const struct bag_ids *ids,
                                                             size_t first, size_t count,
                                                             struct find_homes *homes)
{
    for (size_t i = 0; i < count; i++) {
        struct bag_keys_place home = bag_keys_home(keys, (uint64_t)bag_id_at(ids, first + i));
        homes->lines[i] = &keys->lines[home.line];
        homes->words[i] = home.word;
    }
}

#define find_block find_each

#endif

/* ---- keys that are not at home --------------------------------------------------------------- */

/* Returns the row of a key that is not at any probe up to this one, or -1 if it is missing. */
static __attribute__((noinline)) int64_t
find_on(const struct bag_keys *keys, struct bag_keys_place place, const struct bag_keys_line *home)
{
    int64_t row = -1;
    while (row < 0 && bag_keys_has_next(keys, home, place.word)) {
        place = bag_keys_next(keys, place);
        row = bag_keys_row_at(keys, place);
    }
    return row;
}

/* Finds the collected keys, nearly all of which are at their second probe. Returns the number of
 * keys that were found. */
static __attribute__((noinline)) size_t find_others(const struct bag_keys *keys,
                                                    const struct bag_ids *ids,
                                                    struct find_later later, int64_t *rows)
{
    const struct bag_keys_line *homes[FIND_LATER + FIND_BLOCK] BAG_UNSET;
    struct bag_keys_place next[FIND_LATER + FIND_BLOCK] BAG_UNSET;
    size_t found = 0;
    for (size_t i = 0; i < later.count; i++) {
        uint64_t key = (uint64_t)bag_id_at(ids, later.positions[i]);
        struct bag_keys_place home = bag_keys_home(keys, key);
        homes[i] = &keys->lines[home.line];
        next[i] = bag_keys_next(keys, home);
        __builtin_prefetch(&keys->lines[next[i].line], 0, 3);
    }
    for (size_t i = 0; i < later.count; i++) {
        int64_t row = find_at(keys, &keys->lines[next[i].line], next[i].word);
        if ((row < 0) & bag_keys_has_next(keys, homes[i], next[i].word))
            row = find_on(keys, next[i], homes[i]);
        rows[later.positions[i]] = row;
        found += row >= 0;
    }
    return found;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void find_begin(const struct bag_keys *keys,
                                                             const struct bag_ids *ids,
                                                             size_t first, struct find_homes *homes)
{
    size_t left = ids->count - first, count = left < FIND_BLOCK ? left : FIND_BLOCK;
    find_homes(keys, ids, first, count, homes);
    for (size_t i = 0; i < count; i++)
        __builtin_prefetch(homes->lines[i], 0, 3);
}

/* Prefetches the lines of the second probes, because the keys of a short call would have to wait
 * for them. Does nothing if the near caches hold all lines. Always inlined, like prefetch_probes in
 * keys.c. */
static inline __attribute__((always_inline)) void
find_fetch_next(const struct bag_keys *keys, const struct find_homes *homes, size_t count)
{
    if (keys->num_lines * sizeof *keys->lines <= bag_caches.second)
        return;
    for (size_t i = 0; i < count; i++) {
        size_t home = (size_t)(homes->lines[i] - keys->lines);
        struct bag_keys_place place = {home, homes->words[i]};
        __builtin_prefetch(&keys->lines[bag_keys_next(keys, place).line], 0, 3);
    }
}

static inline __attribute__((always_inline)) size_t
find_all(const struct bag_keys *index, const struct bag_ids *sent, bool wide, int64_t *rows)
{
    const struct bag_ids ids = {sent->data, sent->count, wide};
    const struct bag_keys copy = *index, *keys = &copy; /* a copy, which stays in registers */
    struct find_homes homes[2] BAG_UNSET;
    uint64_t positions[FIND_LATER + FIND_BLOCK] BAG_UNSET;
    struct find_later later = {0, positions};
    size_t missing = 0;
    find_begin(keys, &ids, 0, &homes[0]);
    if (ids.count <= FIND_SHORT)
        find_fetch_next(keys, &homes[0], ids.count);
    for (size_t i = 0; i < ids.count; i += FIND_BLOCK) {
        size_t left = ids.count - i, count = left < FIND_BLOCK ? left : FIND_BLOCK;
        const struct find_homes *now = &homes[i / FIND_BLOCK % 2];
        if (left > FIND_BLOCK)
            find_begin(keys, &ids, i + FIND_BLOCK, &homes[(i / FIND_BLOCK + 1) % 2]);
        missing += find_block(keys, now, i, count, rows, &later);
        if (later.count >= FIND_LATER) {
            missing -= find_others(index, sent, later, rows);
            later.count = 0;
        }
    }
    return missing - find_others(index, sent, later, rows);
}

static size_t find_keys(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows)
{
    return ids->wide ? find_all(keys, ids, true, rows) : find_all(keys, ids, false, rows);
}
