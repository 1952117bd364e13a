/* Memory that dies together: alignment, bounds, the maximum. */
#include "testing.h"

#include "proto/arena.h"

TEST(test_memory_is_aligned_and_apart)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 100000};
    struct bag_arena arena;
    char *blocks[COUNT_OF(sizes)];
    bag_arena_init(&arena, 1 << 20);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        blocks[i] = bag_arena_alloc(&arena, sizes[i]);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        memset(blocks[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (size_t at = 0; at < sizes[i]; at++)
            assert_int_equal(blocks[i][at], (int)i + 1);
    }
    bag_arena_free(&arena);
}

TEST(test_stops_at_its_maximum)
{
    struct bag_arena arena;
    bag_arena_init(&arena, 0);
    assert_null(bag_arena_alloc(&arena, 1));
    bag_arena_init(&arena, 64);
    assert_non_null(bag_arena_alloc(&arena, 48));
    assert_non_null(bag_arena_alloc(&arena, 16));
    assert_null(bag_arena_alloc(&arena, 1));
    bag_arena_free(&arena);
    assert_null(bag_arena_alloc(&arena, 65));
    assert_non_null(bag_arena_alloc(&arena, 64));
    bag_arena_free(&arena);
}

TEST(test_sizes_do_not_overflow)
{
    struct bag_arena arena;
    bag_arena_init(&arena, SIZE_MAX);
    assert_null(bag_arena_alloc(&arena, SIZE_MAX));
    assert_null(bag_arena_alloc(&arena, SIZE_MAX - 15));
    assert_null(bag_arena_alloc(&arena, SIZE_MAX - 16));
    assert_null(bag_arena_array(&arena, SIZE_MAX / 8 + 1, 8));
    assert_null(bag_arena_array(&arena, 8, SIZE_MAX / 8 + 1));
    assert_non_null(bag_arena_array(&arena, 0, 8));
    bag_arena_free(&arena);
}
