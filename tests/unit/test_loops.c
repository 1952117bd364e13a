/* How many connections the loops take, by the limit of open files. */
#include "testing.h"

#include "server/loops.h"

static void test_limits_without_want(void **state)
{
    (void)state;
    struct bag_connection_limits limits = bag_loops_limit_connections(4096, 1 << 20, 1);
    assert_int_equal(limits.connections, 4096);
    assert_int_equal(limits.in_library, 4096 + 512 + 16);
    limits = bag_loops_limit_connections(4096, 1 << 20, 4);
    assert_int_equal(limits.connections, 4096);
    assert_int_equal(limits.in_library, 4096 + (512 + 16) / 4);
    limits = bag_loops_limit_connections(1, SIZE_MAX, 1);
    assert_int_equal(limits.connections, 1);
    assert_int_equal(limits.in_library, 17);
}

/* Where descriptors are short, as many as fit; one more would not. */
static void test_limits_by_descriptors(void **state)
{
    (void)state;
    for (size_t descriptors = 0; descriptors < 8000; descriptors++) {
        struct bag_connection_limits limits = bag_loops_limit_connections(4096, descriptors, 1);
        size_t usable = descriptors / 4 * 3;
        assert_in_range(limits.connections, 1, 4096);
        assert_true(limits.in_library <= usable || limits.connections == 1);
        if (limits.connections < 4096 && usable > 40)
            assert_true(limits.connections + 9 + (limits.connections + 9) / 8 + 16 > usable);
        if (usable >= 4096 + 512 + 16)
            assert_int_equal(limits.connections, 4096);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_without_want),
        cmocka_unit_test(test_limits_by_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
