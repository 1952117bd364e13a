/* Counts sampled ids; see hot_rows.h. */
#include "hot_rows.h"

#include "kernels/bag.h"
#include "kernels/random.h"
#include "server/memory/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SET_BITS 8
#define NUM_SETS ((size_t)1 << SET_BITS)
#define WAYS     8

/* Counts are halved when they stand for this many samples, which are two billion ids. */
#define MAX_SAMPLES ((uint64_t)1 << 24)

/* The number of hottest ids whose counts the hottest share adds up. The spread stands for the other
 * ids. A smaller number would let chance move the share more. A larger one would make the share too
 * large, because ids that were sampled by luck are among them. */
#define NUM_KNOWN 400

/* The ids whose hashes begin with the same bits, in two cache lines. A slot with the count 0 is
 * free, and its id means nothing. */
struct set {
    _Alignas(64) uint64_t ids[WAYS];
    _Alignas(64) uint32_t counts[WAYS];
    uint32_t floor; /* no count of the set is smaller; used by `top` */
};

struct bag_hot_sketch {
    struct set top[NUM_SETS], spread[NUM_SETS];
    unsigned level;   /* at most 53: of the hashes of one set, only WAYS end with 53 zero bits */
    uint64_t seed;    /* secret seed of the hash */
    uint64_t random;  /* state of the random admission */
    uint64_t samples; /* number of samples in the counts */
};

_Thread_local struct bag_hot_sampling bag_hot_sampling;

size_t bag_hot_distance(void)
{
    const uint64_t random = bag_random(&bag_hot_sampling.random) >> 32;
    return 1 + (size_t)(random * (2 * BAG_HOT_ROWS_EVERY - 1) >> 32);
}

struct bag_hot_rows *bag_hot_rows_make(void)
{
    struct bag_hot_rows *hot = calloc(1, sizeof *hot);
    if (hot && (getrandom(&hot->seed, sizeof hot->seed, 0) != (ssize_t)sizeof hot->seed ||
                pthread_mutex_init(&hot->lock, NULL) != 0)) {
        free(hot);
        return NULL;
    }
    return hot;
}

void bag_hot_rows_free(struct bag_hot_rows *hot)
{
    if (!hot)
        return;
    bag_memory_unmap(hot->sketch, sizeof *hot->sketch);
    pthread_mutex_destroy(&hot->lock);
    free(hot);
}

/* ---- adding ---------------------------------------------------------------------------------- */

/* Returns the hash of an id. It is a bijection. */
static uint64_t hash_of(const struct bag_hot_sketch *sketch, uint64_t id)
{
    return bag_mix(id + sketch->seed);
}

/* Returns the slot of an id in its set, or WAYS if it has none. */
static size_t find(const struct set *set, uint64_t id)
{
    size_t at = 0;
    while (at < WAYS && set->ids[at] != id)
        at++;
    return at;
}

/* Returns the slot with the smallest count. */
static size_t find_smallest(const struct set *set)
{
    size_t smallest = 0;
    for (size_t i = 1; i < WAYS; i++)
        smallest = set->counts[i] < set->counts[smallest] ? i : smallest;
    return smallest;
}

/* Returns whether a random number of 32 bits lets an id replace one with this count. */
static bool is_admitted(uint64_t random, uint32_t count)
{
    return random * ((uint64_t)count + 1) >> 32 == 0;
}

/* Adds a sample to the hottest ids. Most ids without a slot are rejected by the floor, which saves
 * the search for the smallest count. */
static void add_top(struct bag_hot_sketch *sketch, uint64_t id, uint64_t hash)
{
    struct set *set = &sketch->top[hash >> (64 - SET_BITS)];
    size_t at = find(set, id);
    if (at == WAYS) {
        const uint64_t random = bag_random(&sketch->random) >> 32;
        if (!is_admitted(random, set->floor))
            return;
        at = find_smallest(set);
        set->floor = set->counts[at];
        if (!is_admitted(random, set->floor))
            return;
        set->ids[at] = id;
    }
    set->counts[at]++;
}

/* Returns whether the spread counts ids with this hash. */
static bool is_spread(const struct bag_hot_sketch *sketch, uint64_t hash)
{
    return (hash & ((UINT64_C(1) << sketch->level) - 1)) == 0;
}

/* Removes about half of the ids of the spread. */
static void thin_out(struct bag_hot_sketch *sketch)
{
    sketch->level++;
    for (struct set *set = sketch->spread; set < sketch->spread + NUM_SETS; set++) {
        for (size_t i = 0; i < WAYS; i++)
            set->counts[i] = is_spread(sketch, hash_of(sketch, set->ids[i])) ? set->counts[i] : 0;
    }
}

/* Adds a sample to the spread, and makes space for it if its set is full. */
static void add_spread(struct bag_hot_sketch *sketch, uint64_t id, uint64_t hash)
{
    struct set *set = &sketch->spread[hash >> (64 - SET_BITS)];
    while (is_spread(sketch, hash)) {
        size_t at = find(set, id);
        if (at == WAYS)
            at = find_smallest(set);
        if (set->ids[at] == id || set->counts[at] == 0) {
            set->ids[at] = id;
            set->counts[at]++;
            return;
        }
        thin_out(sketch);
    }
}

/* Halves all counts. */
static void halve(struct bag_hot_sketch *sketch)
{
    sketch->samples /= 2;
    for (size_t i = 0; i < NUM_SETS * WAYS; i++) {
        sketch->top[i / WAYS].counts[i % WAYS] /= 2;
        sketch->spread[i / WAYS].counts[i % WAYS] /= 2;
    }
    for (size_t i = 0; i < NUM_SETS; i++)
        sketch->top[i].floor /= 2;
}

void bag_hot_rows_add(struct bag_hot_rows *hot, const uint64_t *ids, size_t count)
{
    if (count == 0 || pthread_mutex_trylock(&hot->lock) != 0)
        return;
    struct bag_hot_sketch *sketch = hot->sketch;
    struct bag_problem ignored BAG_UNSET;
    /* Outside the heap: it stays for as long as the model, and would lie between the buffers of
     * requests, which come and go. */
    if (!sketch && (sketch = hot->sketch = bag_memory_map(sizeof *sketch, &ignored)))
        sketch->seed = hot->seed;
    /* The rows of a large request have pushed the sets out of the caches. */
    for (size_t i = 0; sketch && i < count; i++) {
        const struct set *set = &sketch->top[hash_of(sketch, ids[i]) >> (64 - SET_BITS)];
        __builtin_prefetch(set->ids, 1);
        __builtin_prefetch(set->counts, 1);
    }
    for (size_t i = 0; sketch && i < count; i++) {
        const uint64_t hash = hash_of(sketch, ids[i]);
        add_top(sketch, ids[i], hash);
        add_spread(sketch, ids[i], hash);
        if (++sketch->samples == MAX_SAMPLES)
            halve(sketch);
    }
    pthread_mutex_unlock(&hot->lock);
    if (sketch)
        atomic_fetch_add_explicit(&hot->sampled, count, memory_order_relaxed);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct counted {
    uint64_t id;
    uint32_t count;
};

/* Orders the larger count first, and equal ones by their ids. */
static int compare(const void *left, const void *right)
{
    const struct counted *one = left, *other = right;
    if (one->count != other->count)
        return one->count > other->count ? -1 : 1;
    return (one->id > other->id) - (one->id < other->id);
}

/* Fills `list` with the counted ids, and returns their number. */
static size_t list_ids(const struct set *sets, struct counted list[NUM_SETS * WAYS])
{
    size_t count = 0;
    for (size_t i = 0; i < NUM_SETS * WAYS; i++) {
        const struct set *set = &sets[i / WAYS];
        if (set->counts[i % WAYS])
            list[count++] = (struct counted){set->ids[i % WAYS], set->counts[i % WAYS]};
    }
    return count;
}

/* Moves the `wanted` hottest ids to the front of the list, in order (quickselect). A metrics
 * request reads many sketches, and sorting whole lists takes six times as long. */
static void sort_hottest(struct counted *list, size_t count, size_t wanted)
{
    size_t begin = 0, end = count;
    while (wanted < count && end - begin > 1) {
        const struct counted pivot = list[begin + (end - begin) / 2];
        size_t left = begin, right = end - 1;
        while (true) {
            while (compare(&list[left], &pivot) < 0)
                left++;
            while (compare(&pivot, &list[right]) < 0)
                right--;
            if (left >= right)
                break;
            const struct counted swapped = list[left];
            list[left++] = list[right];
            list[right--] = swapped;
        }
        if (wanted <= left)
            end = left;
        else
            begin = left;
    }
    qsort(list, wanted < count ? wanted : count, sizeof *list, compare);
}

/* Returns the share of the hottest `num_rows` of the lookups that the spread has counted. */
static double share_of_spread(const struct bag_hot_sketch *sketch, double num_rows,
                              struct counted *list)
{
    const size_t count = list_ids(sketch->spread, list);
    double left = num_rows / (double)(UINT64_C(1) << sketch->level), hottest = 0, all = 0;
    sort_hottest(list, count, left < (double)count ? (size_t)left + 1 : count);
    for (size_t i = 0; i < count; i++) {
        all += list[i].count;
        hottest += list[i].count * (left < 1 ? left : 1);
        left -= left < 1 ? left : 1;
    }
    return all > 0 ? hottest / all : 0;
}

/* Fills the report from a copy of a sketch. The spread, without the ids whose counts are known,
 * shows how hot the others are. */
static void read_sketch(struct bag_hot_sketch *sketch, struct bag_hot_report *report)
{
    struct counted list[NUM_SETS * WAYS] BAG_UNSET;
    const size_t count = list_ids(sketch->top, list);
    const size_t num_known = count < NUM_KNOWN ? count : NUM_KNOWN;
    sort_hottest(list, count, num_known);
    double others = 1;
    for (size_t i = 0; i < num_known; i++) {
        const uint64_t id = list[i].id;
        const double share = list[i].count / (double)sketch->samples;
        if (i < BAG_HOT_ROWS_TOP)
            report->top[report->num_top++] = (struct bag_hot_row){id, share};
        report->hottest_share += i < report->hottest ? share : 0;
        others -= share;
        struct set *set = &sketch->spread[hash_of(sketch, id) >> (64 - SET_BITS)];
        const size_t at = find(set, id);
        if (at < WAYS)
            set->counts[at] = 0;
    }
    if (report->hottest > num_known && others > 0)
        report->hottest_share +=
            others * share_of_spread(sketch, (double)(report->hottest - num_known), list);
    if (report->hottest_share > 1)
        report->hottest_share = 1;
}

void bag_hot_rows_read(struct bag_hot_rows *hot, uint64_t num_rows, struct bag_hot_report *report)
{
    report->hottest = (size_t)(num_rows / 100 + (num_rows % 100 > 0));
    report->hottest_share = 0;
    report->num_top = 0;
    struct bag_hot_sketch copy BAG_UNSET;
    pthread_mutex_lock(&hot->lock);
    const bool any = hot->sketch != NULL;
    if (any)
        copy = *hot->sketch;
    pthread_mutex_unlock(&hot->lock);
    if (any)
        read_sketch(&copy, report);
}
