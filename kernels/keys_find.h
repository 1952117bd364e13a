/* Looking many keys up at once. Included once for plain C, and for each instruction set that
 * compares the words of a line at once, after
 *
 *   #define MATCH_SLOTS   as bag_keys_match
 *
 * and defines find_keys. Most keys are in their home lines: these are looked through without a
 * branch that depends on the keys, and the others noted down. */
#include "keys_line.h"

/* How many keys ahead their lines are prefetched, and how many are noted down at most. */
#define FIND_AHEAD 32
#define FIND_LATER 128

static __attribute__((noinline)) int64_t find_again(const struct bag_keys *keys,
                                                    struct bag_keys_place place)
{
    return bag_keys_row_at(keys, place);
}

/* The row of a key that is in the place's line, else -1, and whether it may be in a later one. */
static inline __attribute__((always_inline)) int64_t
find_at(const struct bag_keys *keys, struct bag_keys_place place, size_t home, bool *later)
{
    const struct bag_keys_line *line = &keys->lines[place.line];
    unsigned matches = MATCH_SLOTS(keys, place);
    unsigned slot = (unsigned)__builtin_ctz(matches | 1u << (BAG_KEYS_PER_LINE - 1));
    uint64_t word = bag_keys_word(line, slot);
    uint64_t high = __atomic_load_n(&line->high[slot], __ATOMIC_ACQUIRE);
    uint64_t low = word ^ place.word;
    /* Sums of bits, as a branch on whether the key is here would often be guessed wrong. */
    uint64_t changed = low >> keys->low_bits | (bag_keys_word(line, slot) ^ word);
    uint64_t absent = matches ? 0 : ~UINT64_C(0);
    int64_t row = (int64_t)(high << keys->low_bits | low | absent);
    if (__builtin_expect((changed & ~absent) != 0, 0))
        row = find_again(keys, place);
    *later = (row < 0) & bag_keys_has_next(keys, place, home);
    return row;
}

/* A key that is looked for in other lines than its home. */
struct find_later {
    struct bag_keys_place place; /* where it was looked for last */
    size_t home, position;
};

/* Looks all of them up, a line each and then the next of those that remain; returns how many are
 * missing. */
static inline size_t find_others(const struct bag_keys *keys, struct find_later *later,
                                 size_t count, int64_t *rows)
{
    size_t missing = 0;
    while (count > 0) {
        size_t remaining = 0;
        for (size_t i = 0; i < count; i++) {
            later[i].place = bag_keys_next(keys, later[i].place);
            __builtin_prefetch(&keys->lines[later[i].place.line], 0, 3);
        }
        for (size_t i = 0; i < count; i++) {
            const struct find_later one = later[i];
            bool remains;
            int64_t row = find_at(keys, one.place, one.home, &remains);
            rows[one.position] = row;
            missing += (row < 0) & !remains;
            later[remaining] = one;
            remaining += remains;
        }
        count = remaining;
    }
    return missing;
}

static inline struct bag_keys_place find_begin(const struct bag_keys *keys,
                                               const struct bag_ids *ids, size_t position)
{
    struct bag_keys_place home = bag_keys_home(keys, (uint64_t)bag_id_at(ids, position));
    __builtin_prefetch(&keys->lines[home.line], 0, 3);
    return home;
}

static inline __attribute__((always_inline)) size_t
find_all(const struct bag_keys *index, struct bag_ids ids, bool wide, int64_t *rows)
{
    const struct bag_keys copy = *index, *keys = &copy; /* so that it stays in registers */
    struct bag_keys_place homes[FIND_AHEAD] BAG_UNSET;
    struct find_later later[FIND_LATER] BAG_UNSET;
    size_t num_later = 0, missing = 0;
    ids.wide = wide;
    for (size_t i = 0; i < ids.count && i < FIND_AHEAD; i++)
        homes[i] = find_begin(keys, &ids, i);
    for (size_t i = 0; i < ids.count; i++) {
        const struct bag_keys_place home = homes[i % FIND_AHEAD];
        bool is_later;
        if (i + FIND_AHEAD < ids.count)
            homes[i % FIND_AHEAD] = find_begin(keys, &ids, i + FIND_AHEAD);
        int64_t row = find_at(keys, home, home.line, &is_later);
        rows[i] = row;
        missing += (row < 0) & !is_later;
        later[num_later] = (struct find_later){home, home.line, i};
        num_later += is_later;
        if (num_later == FIND_LATER) {
            missing += find_others(keys, later, num_later, rows);
            num_later = 0;
        }
    }
    return missing + find_others(keys, later, num_later, rows);
}

static size_t find_keys(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows)
{
    return ids->wide ? find_all(keys, *ids, true, rows) : find_all(keys, *ids, false, rows);
}
