/* Recycled memory: sizes, alignment, what is kept and what is not. */
#include "testing.h"

#include "server/memory/buffers.h"

static void test_memory_is_aligned_and_large_enough(void **state)
{
    static const size_t sizes[] = {0, 1, 1023, 1024, 1025, 4096, 4097, 1 << 24, (1 << 24) + 1};
    struct bag_buffers buffers;
    (void)state;
    assert_true(bag_buffers_init(&buffers, false));
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

static void test_memory_is_recycled_by_class(void **state)
{
    struct bag_buffers buffers;
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        assert_true(bag_buffers_init(&buffers, shared));
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

/* 16 MiB is the largest class, and four of them are all that is kept. */
static void test_a_pool_is_bounded(void **state)
{
    struct bag_buffers buffers;
    char *memory[6];
    (void)state;
    assert_true(bag_buffers_init(&buffers, false));
    for (int i = 0; i < 5; i++)
        memory[i] = bag_buffers_get(&buffers, 16 << 20);
    memory[5] = bag_buffers_get(&buffers, (16 << 20) + 1);
    for (int i = 0; i < 6; i++)
        bag_buffers_put(memory[i]);
    assert_int_equal(buffers.kept_bytes, 64 << 20);
    bag_buffers_free(&buffers);
}

static void test_sizes_do_not_overflow(void **state)
{
    struct bag_buffers buffers;
    (void)state;
    assert_true(bag_buffers_init(&buffers, false));
    assert_null(bag_buffers_get(&buffers, SIZE_MAX));
    assert_null(bag_buffers_get(&buffers, SIZE_MAX - 63));
    bag_buffers_free(&buffers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_aligned_and_large_enough),
        cmocka_unit_test(test_memory_is_recycled_by_class),
        cmocka_unit_test(test_a_pool_is_bounded),
        cmocka_unit_test(test_sizes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
