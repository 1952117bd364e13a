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
#define FIND_LATER 64

/* The row of a key that is in its home line, else -1, and whether it may be elsewhere: it is, too,
 * where the slot changed meanwhile. */
static inline int64_t find_home(const struct bag_keys *keys, struct bag_keys_place home,
                                bool *later)
{
    const struct bag_keys_line *line = &keys->lines[home.line];
    unsigned matches = MATCH_SLOTS(keys, home);
    unsigned slot = (unsigned)__builtin_ctz(matches | 1u << (BAG_KEYS_PER_LINE - 1));
    uint64_t word = bag_keys_word(line, slot);
    uint64_t high = __atomic_load_n(&line->high[slot], __ATOMIC_ACQUIRE);
    uint64_t low = word ^ home.word;
    bool found =
        (matches != 0) & (low >> keys->low_bits == 0) & (bag_keys_word(line, slot) == word);
    *later = (found == false) & ((matches != 0) | bag_keys_has_next(keys, home, home.line));
    return found ? (int64_t)(high << keys->low_bits | low) : -1;
}

/* A key that is looked for in other lines than its home. */
struct find_later {
    struct bag_keys_place place; /* that line was prefetched */
    size_t home, position;
};

static inline void find_begin(const struct bag_keys *keys, struct bag_keys_place home,
                              size_t position, struct find_later *one)
{
    *one = (struct find_later){home, home.line, position};
    if (!MATCH_SLOTS(keys, home)) {
        one->place = bag_keys_next(keys, home);
        __builtin_prefetch(&keys->lines[one->place.line], 0, 3);
    }
}

/* Looks all of them up in turn, a probe each; returns how many are missing. */
static size_t find_others(const struct bag_keys *keys, struct find_later *later, size_t running,
                          int64_t *rows)
{
    size_t missing = 0;
    for (size_t turn = 0; running > 0; turn = turn + 1 < running ? turn + 1 : 0) {
        struct find_later *one = &later[turn < running ? turn : 0];
        int64_t row = bag_keys_row_at(keys, one->place);
        if (row < 0 && bag_keys_has_next(keys, one->place, one->home)) {
            one->place = bag_keys_next(keys, one->place);
            __builtin_prefetch(&keys->lines[one->place.line], 0, 3);
            continue;
        }
        rows[one->position] = row;
        missing += row < 0;
        *one = later[--running];
    }
    return missing;
}

static inline __attribute__((always_inline)) size_t
find_all(const struct bag_keys *keys, struct bag_ids ids, bool wide, int64_t *rows)
{
    struct bag_keys_place homes[FIND_AHEAD] BAG_UNSET;
    struct find_later later[FIND_LATER] BAG_UNSET;
    size_t num_later = 0, missing = 0;
    ids.wide = wide;
    for (size_t i = 0; i < ids.count + FIND_AHEAD; i++) {
        struct bag_keys_place *home = &homes[i % FIND_AHEAD];
        if (i >= FIND_AHEAD) {
            bool is_later;
            int64_t row = find_home(keys, *home, &is_later);
            rows[i - FIND_AHEAD] = row;
            missing += (row < 0) & !is_later;
            if (is_later)
                find_begin(keys, *home, i - FIND_AHEAD, &later[num_later++]);
            if (num_later == FIND_LATER) {
                missing += find_others(keys, later, num_later, rows);
                num_later = 0;
            }
        }
        if (i < ids.count) {
            *home = bag_keys_home(keys, (uint64_t)bag_id_at(&ids, i));
            __builtin_prefetch(&keys->lines[home->line], 0, 3);
        }
    }
    return missing + find_others(keys, later, num_later, rows);
}

static size_t find_keys(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows)
{
    return ids->wide ? find_all(keys, *ids, true, rows) : find_all(keys, *ids, false, rows);
}
