/* Lines of the index of keys: they are filled, emptied, and read while they change. */
#include "kernels/isa.h"
#include "kernels/keys.h"
#include "testing.h"

#include <pthread.h>
#include <sys/mman.h>

/* ---- small ones ----------------------------------------------------------------------------- */

/* Any but such small ones that all keys come to be in one line. */
static const struct bag_keys_seed some_seed = {
    {UINT64_C(0x243f6a8885a308d3), UINT64_C(0x13198a2e03707344), UINT64_C(0xa4093822299f31d0),
     UINT64_C(0x082efa98ec4e6c89)}};

/* The smallest index. */
struct small_index {
    struct bag_keys_line lines[16];
    struct bag_keys keys;
};

static void start_small(struct small_index *small)
{
    memset(small, 0, sizeof *small);
    small->keys = bag_keys_for(95);
    assert_int_equal(small->keys.num_lines, COUNT_OF(small->lines));
    small->keys.lines = small->lines;
    small->keys.seed = some_seed;
}

/* Maps the lines without reserving memory, so that only the lines of the added keys take memory. */
static void check_last_rows(size_t num_rows)
{
    struct bag_keys keys = bag_keys_for(num_rows);
    size_t bytes = keys.num_lines * sizeof *keys.lines;
    uint64_t added[50];
    int64_t other, first = (int64_t)num_rows - (int64_t)COUNT_OF(added);
    void *lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(lines, MAP_FAILED);
    keys.lines = lines;
    keys.seed = some_seed;
    for (size_t i = 0; i < COUNT_OF(added); i++) {
        added[i] = i;
        assert_int_equal(bag_keys_insert(&keys, i, first + (int64_t)i, &other), BAG_KEYS_ADDED);
    }
    for (size_t i = 0; i < COUNT_OF(added); i++)
        assert_int_equal(bag_keys_find_one(&keys, added[i]), first + (int64_t)i);
    assert_int_equal(bag_keys_insert(&keys, 3, 0, &other), BAG_KEYS_DUPLICATE);
    assert_int_equal(other, first + 3);
    munmap(lines, bytes);
}

TEST(keeps_all_bits_of_a_row)
{
    for (unsigned bits = 6; bits <= 34; bits++) {
        check_last_rows((size_t)1 << bits);
        check_last_rows(((size_t)1 << bits) + 1);
    }
}

/* Nearly every slot can be taken: keys make room for each other. */
TEST(fills_all_lines_and_says_so)
{
    struct small_index small;
    int64_t other;
    uint64_t added = 0;
    start_small(&small);
    while (bag_keys_insert(&small.keys, added, (int64_t)added, &other) == BAG_KEYS_ADDED)
        added++;
    assert_int_equal(other, -1);
    assert_in_range(added, 104, COUNT_OF(small.lines) * BAG_KEYS_PER_LINE);
    for (uint64_t key = 0; key < added; key++)
        assert_int_equal(bag_keys_find_one(&small.keys, key), key);
    assert_int_equal(bag_keys_find_one(&small.keys, added), -1);
    assert_int_equal(bag_keys_insert(&small.keys, 5, 99, &other), BAG_KEYS_DUPLICATE);
    assert_int_equal(other, 5);
}

TEST(removes_keys_and_reuses_their_slots)
{
    struct small_index small;
    int64_t other;
    start_small(&small);
    for (int64_t key = 0; key < 100; key++)
        assert_int_equal(bag_keys_insert(&small.keys, (uint64_t)key, key, &other), BAG_KEYS_ADDED);
    for (int64_t round = 0; round < 1000; round++) {
        uint64_t gone = (uint64_t)round, added = gone + 100;
        assert_int_equal(bag_keys_remove(&small.keys, gone), round % 100);
        assert_int_equal(bag_keys_remove(&small.keys, gone), -1);
        assert_int_equal(bag_keys_find_one(&small.keys, gone), -1);
        assert_int_equal(bag_keys_insert(&small.keys, added, round % 100, &other), BAG_KEYS_ADDED);
        for (uint64_t key = gone + 1; key <= added; key++)
            assert_int_equal(bag_keys_find_one(&small.keys, key), key % 100);
    }
}

/* ---- one writer, readers at the same time ---------------------------------------------------- */

#define STAYING 20
#define GOING   80

#define ROUNDS 2000 /* rounds of lookups of all keys */

struct changing {
    struct small_index small;
    bool done;
};

/* Keys that stay are always found; those that come and go with their own row or not at all: key k
 * has the rows k and 255 - k. */
static void *find_always(void *argument)
{
    struct changing *changing = argument;
    size_t wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t asked[STAYING + GOING];
        int64_t rows[STAYING + GOING];
        for (uint64_t i = 0; i < COUNT_OF(asked); i++)
            asked[i] = i;
        struct bag_ids ids = {asked, COUNT_OF(asked), true};
        bag_keys_find(&changing->small.keys, &ids, rows);
        for (size_t i = 0; i < COUNT_OF(asked); i++) {
            bool own = rows[i] == (int64_t)i || rows[i] == 255 - (int64_t)i;
            wrong += i < STAYING ? rows[i] != (int64_t)i : rows[i] != -1 && !own;
        }
    }
    __atomic_store_n(&changing->done, true, __ATOMIC_RELAXED);
    return (void *)wrong;
}

/* Full lines, so that keys are moved all the time. */
static void check_changing(void)
{
    static struct changing changing;
    pthread_t reader;
    void *wrong;
    int64_t other;
    changing.done = false;
    start_small(&changing.small);
    for (int64_t i = 0; i < STAYING; i++)
        assert_int_equal(bag_keys_insert(&changing.small.keys, (uint64_t)i, i, &other),
                         BAG_KEYS_ADDED);
    assert_int_equal(pthread_create(&reader, NULL, find_always, &changing), 0);
    uint64_t random = 1;
    while (!__atomic_load_n(&changing.done, __ATOMIC_RELAXED)) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t key = STAYING + (random >> 33) % (GOING * 2);
        if (random >> 63)
            bag_keys_remove(&changing.small.keys, key);
        else
            bag_keys_insert(&changing.small.keys, key,
                            (int64_t)(random >> 32 & 1 ? key : 255 - key), &other);
    }
    pthread_join(reader, &wrong);
    assert_int_equal((size_t)wrong, 0);
}

TEST(finds_keys_while_others_come_and_go)
{
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        bag_isa_use((enum bag_isa)isa);
        check_changing();
    }
    bag_isa_use(BAG_ISA_GENERIC);
}
