/* Recycled memory: sizes, alignment, what is kept and what is not. */
#include "testing.h"

#include "server/memory/memory.h"

#include <malloc.h>

TEST(test_memory_is_aligned_and_large_enough)
{
    static const size_t sizes[] = {0,    1,    1023,    1024,          1025,
                                   4096, 4097, 1 << 24, (1 << 24) + 1, (64 << 20) + 1};
    struct bag_buffers buffers;
    assert_true(bag_buffers_init(&buffers, false, NULL));
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        char *memory = bag_buffers_get(&buffers, sizes[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(memory, 0xA5, sizes[i]);
        bag_buffers_put(memory);
    }
    bag_buffers_put(NULL);
    bag_buffers_free(&buffers);
}

TEST(test_memory_is_recycled_by_class)
{
    struct bag_buffers buffers;
    for (int shared = 0; shared < 2; shared++) {
        assert_true(bag_buffers_init(&buffers, shared, NULL));
        char *small = bag_buffers_get(&buffers, 1000), *large = bag_buffers_get(&buffers, 1025);
        bag_buffers_put(small);
        bag_buffers_put(large);
        assert_int_equal(buffers.kept_bytes, 1024 + 2048);
        assert_ptr_equal(bag_buffers_get(&buffers, 2048), large);
        assert_ptr_equal(bag_buffers_get(&buffers, 1), small);
        assert_int_equal(buffers.kept_bytes, 0);
        bag_buffers_put(small);
        bag_buffers_put(large);
        bag_buffers_free(&buffers);
    }
}

/* Buffers between others are freed. New ones of their size take their places in the heap, which
 * does not grow. */
TEST(test_the_heap_has_room_again_for_buffers_of_the_same_size)
{
    enum { COUNT = 200, BYTES = 32 << 10 };
    struct bag_buffers buffers;
    char *memory[COUNT];
    assert_true(bag_buffers_init(&buffers, false, NULL));
    for (int i = 0; i < COUNT; i++)
        memory[i] = bag_buffers_get(&buffers, BYTES);
    size_t before = mallinfo2().arena;
    for (int i = 0; i < COUNT; i += 2)
        bag_buffers_put(memory[i]);
    for (int i = 0; i < 2; i++)
        bag_buffers_trim(&buffers); /* the first one keeps what was used before it */
    while (bag_buffers_free_some(&buffers))
        ;
    assert_int_equal(buffers.kept_bytes, 0);
    for (int i = 0; i < COUNT; i += 2)
        memory[i] = bag_buffers_get(&buffers, BYTES);
    assert_in_range(mallinfo2().arena, 0, before + COUNT / 2 * BYTES / 4);
    for (int i = 0; i < COUNT; i++)
        bag_buffers_put(memory[i]);
    bag_buffers_free(&buffers);
}

/* 64 MiB is the largest class, and two of them are all that is kept. */
TEST(test_a_pool_is_bounded)
{
    struct bag_buffers buffers;
    char *memory[4];
    assert_true(bag_buffers_init(&buffers, false, NULL));
    for (int i = 0; i < 3; i++)
        memory[i] = bag_buffers_get(&buffers, 64 << 20);
    memory[3] = bag_buffers_get(&buffers, (64 << 20) + 1);
    for (int i = 0; i < 4; i++)
        bag_buffers_put(memory[i]);
    assert_int_equal(buffers.kept_bytes, 128 << 20);
    for (int i = 0; i < 3; i++)
        bag_buffers_trim(&buffers); /* the first one keeps what was used before it */
    assert_int_equal(buffers.kept_bytes, 0);
    bag_buffers_free(&buffers);
}

/* Tests how much a buffer of a size takes from the budget. */
TEST(test_sizes_are_rounded_up)
{
    static const size_t mib = (size_t)1 << 20;
    static const struct {
        size_t bytes, room;
    } cases[] = {{1, 1024},
                 {1025, 2048},
                 {16 * mib, 16 * mib},
                 {16 * mib + 1, 20 * mib},
                 {20 * mib, 20 * mib},
                 {26 * mib, 28 * mib},
                 {32 * mib, 32 * mib},
                 {32 * mib + 1, 40 * mib},
                 {63 * mib, 64 * mib},
                 {64 * mib, 64 * mib},
                 {64 * mib + 1, 64 * mib + 64}};
    struct bag_budget budget;
    struct bag_buffers buffers;
    bag_budget_init(&budget, (size_t)1 << 40, 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_true(bag_buffers_init(&buffers, false, &budget));
        void *memory = bag_buffers_get(&buffers, cases[i].bytes);
        assert_int_equal(budget.used_bytes, cases[i].room + 64);
        bag_buffers_put(memory);
        bag_buffers_free(&buffers);
        assert_int_equal(budget.used_bytes, 0);
    }
}

TEST(test_sizes_do_not_overflow)
{
    struct bag_buffers buffers;
    assert_true(bag_buffers_init(&buffers, false, NULL));
    assert_null(bag_buffers_get(&buffers, SIZE_MAX));
    assert_null(bag_buffers_get(&buffers, SIZE_MAX - 63));
    bag_buffers_free(&buffers);
}

/* Kept buffers and buffers in use count. Pools free kept buffers before they reject a request. */
TEST(test_a_budget_bounds_all_pools)
{
    struct bag_budget budget;
    struct bag_buffers one, two;
    bag_budget_init(&budget, 64 << 20, 0);
    assert_true(bag_buffers_init(&one, false, &budget));
    assert_true(bag_buffers_init(&two, true, &budget));
    void *large = bag_buffers_get(&one, 40 << 20);
    assert_non_null(large);
    assert_int_equal(budget.used_bytes, (40 << 20) + 64);
    assert_null(bag_buffers_get(&two, 16 << 20)); /* 56 MiB are for large ones */
    void *medium = bag_buffers_get(&two, (16 << 20) - 128 + 1 - (1 << 20));
    assert_null(medium); /* the size class is 16 MiB too */
    medium = bag_buffers_get(&two, 8 << 20);
    assert_non_null(medium);
    void *small[8];
    for (size_t i = 0; i < COUNT_OF(small); i++) {
        small[i] = bag_buffers_get(&two, 500 << 10);
        assert_non_null(small[i]);
    }
    assert_null(bag_buffers_get(&one, 8 << 20));
    for (size_t i = 0; i < COUNT_OF(small); i++)
        bag_buffers_put(small[i]);
    bag_buffers_put(large);
    assert_true(two.kept_bytes > 0);
    size_t before = budget.used_bytes;
    assert_null(bag_buffers_get(&two, 48 << 20));
    assert_int_equal(two.kept_bytes, 0);
    assert_true(budget.used_bytes < before);
    bag_buffers_put(medium);
    bag_buffers_free(&one);
    bag_buffers_free(&two);
    assert_int_equal(budget.used_bytes, 0);
}

/* However many pools share a budget, what they keep leaves 15 of 16 parts to requests. */
TEST(test_pools_share_what_they_keep)
{
    enum { POOLS = 8 };
    static const size_t mib = (size_t)1 << 20;
    static struct bag_buffers pools[POOLS];
    struct bag_budget budget;
    void *memory[20];
    bag_budget_init(&budget, 96 * mib, 0);
    for (int i = 0; i < POOLS; i++)
        assert_true(bag_buffers_init(&pools[i], i % 2, &budget));
    for (int i = 0; i < POOLS; i++) {
        for (size_t j = 0; j < COUNT_OF(memory); j++)
            memory[j] = bag_buffers_get(&pools[i], 128 << 10);
        for (size_t j = 0; j < COUNT_OF(memory); j++)
            bag_buffers_put(memory[j]);
        assert_int_equal(pools[i].kept_bytes, 6 * mib / POOLS);
        while (bag_buffers_free_some(&pools[i]))
            continue;
    }
    assert_in_range(budget.used_bytes, 6 * mib, 6 * mib + (32 << 10));
    void *large = bag_buffers_get(&pools[0], 76 * mib);
    assert_non_null(large);
    bag_buffers_put(large);
    for (int i = 0; i < POOLS; i++)
        bag_buffers_free(&pools[i]);
    assert_int_equal(budget.used_bytes, 0);
    assert_int_equal(budget.num_pools, 0);
}

/* Memory that was used since the last call stays. */
TEST(test_unused_memory_goes_back)
{
    struct bag_budget budget;
    struct bag_buffers buffers;
    void *memory[4];
    bag_budget_init(&budget, (size_t)1 << 30, 0);
    assert_true(bag_buffers_init(&buffers, false, &budget));
    for (int i = 0; i < 4; i++)
        memory[i] = bag_buffers_get(&buffers, 1024);
    for (int i = 0; i < 4; i++)
        bag_buffers_put(memory[i]);
    bag_buffers_trim(&buffers); /* all were in use since the beginning */
    assert_int_equal(buffers.kept_bytes, 4096);
    memory[0] = bag_buffers_get(&buffers, 1024);
    bag_buffers_put(memory[0]);
    bag_buffers_trim(&buffers);
    assert_int_equal(buffers.kept_bytes, 1024);
    bag_buffers_trim(&buffers);
    assert_int_equal(buffers.kept_bytes, 0);
    assert_true(bag_buffers_free_some(&buffers));
    assert_false(bag_buffers_free_some(&buffers));
    assert_int_equal(budget.used_bytes, 0);
    bag_buffers_free(&buffers);
}

/* A turn of the loop frees only a part of a large buffer, so that no size blocks the loop. */
TEST(test_memory_goes_back_by_steps)
{
    static const size_t mib = (size_t)1 << 20;
    struct bag_budget budget;
    struct bag_buffers buffers;
    void *memory[3];
    bag_budget_init(&budget, (size_t)4 << 30, 0);
    for (int shared = 0; shared < 2; shared++) {
        assert_true(bag_buffers_init(&buffers, shared, &budget));
        memory[0] = bag_buffers_get(&buffers, 200 * mib);
        memory[1] = bag_buffers_get(&buffers, 64 * mib);
        memory[2] = bag_buffers_get(&buffers, mib);
        memset(memory[0], 1, 200 * mib);
        for (int i = 0; i < 3; i++)
            bag_buffers_put(memory[i]);
        bag_buffers_trim(&buffers);
        bag_buffers_trim(&buffers);
        assert_int_equal(budget.used_bytes, 265 * mib + 3 * 64);
        for (size_t before = budget.used_bytes; before; before = budget.used_bytes) {
            assert_true(bag_buffers_free_some(&buffers));
            assert_in_range(before - budget.used_bytes, 64, 4 * mib - 1);
        }
        assert_false(bag_buffers_free_some(&buffers));
        bag_buffers_put(bag_buffers_get(&buffers, 200 * mib));
        bag_buffers_free(&buffers);
        assert_int_equal(budget.used_bytes, 0);
    }
}

/* The flags of the mapping that has this address ("VmFlags: rd wr mr mw me ac"). */
static void read_flags(const void *memory, char *flags, size_t room)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    unsigned long begin, end, wanted = (unsigned long)memory;
    bool inside = false, found = false;
    assert_non_null(file);
    while (!found && fgets(flags, (int)room, file)) {
        if (strncmp(flags, "VmFlags:", 8) == 0)
            found = inside;
        else if (sscanf(flags, "%lx-%lx ", &begin, &end) == 2)
            inside = begin <= wanted && wanted < end;
    }
    fclose(file);
    assert_true(found);
}

/* Bodies are written by the loop's thread. */
TEST(test_no_huge_page_is_waited_for)
{
    struct bag_buffers buffers;
    char flags[512];
    assert_true(bag_buffers_init(&buffers, false, NULL));
    void *memory = bag_buffers_get(&buffers, 60 << 20);
    read_flags(memory, flags, sizeof flags);
    assert_non_null(strstr(flags, " wr "));
    assert_null(strstr(flags, " hg"));
    bag_buffers_put(memory);
    bag_buffers_free(&buffers);
}

static unsigned dropped;

static void drop(void *object)
{
    (void)object;
    dropped++;
}

/* An attachment is found again with its memory and is dropped when the memory is freed. Kept memory
 * is freed at the end, other memory at once. */
TEST(test_an_attachment_stays_with_its_memory)
{
    struct bag_buffers buffers;
    int object;
    dropped = 0;
    assert_true(bag_buffers_init(&buffers, false, NULL));
    void *kept = bag_buffers_get(&buffers, 1000), *other = bag_buffers_get(&buffers, 256 << 20);
    assert_null(bag_buffers_attachment(kept)->object);
    *bag_buffers_attachment(kept) = (struct bag_attachment){&object, drop, {1, 2, 3, 4}};
    *bag_buffers_attachment(other) = (struct bag_attachment){&object, drop, {0}};
    bag_buffers_put(other);
    assert_int_equal(dropped, 1);
    bag_buffers_put(kept);
    assert_ptr_equal(bag_buffers_get(&buffers, 1), kept);
    assert_ptr_equal(bag_buffers_attachment(kept)->object, &object);
    assert_int_equal(bag_buffers_attachment(kept)->keys[3], 4);
    bag_buffers_put(kept);
    assert_int_equal(dropped, 1);
    bag_buffers_free(&buffers);
    assert_int_equal(dropped, 2);
}

TEST(test_the_default_is_half_of_what_is_left)
{
    struct bag_budget all, half;
    bag_budget_init(&all, 0, 0);
    bag_budget_init(&half, 0, all.max_bytes);
    assert_true(all.max_bytes >= 64 << 20);
    assert_in_range(half.max_bytes, all.max_bytes / 4, all.max_bytes / 4 * 3);
    bag_budget_init(&all, 0, SIZE_MAX);
    assert_int_equal(all.max_bytes, 64 << 20);
}
