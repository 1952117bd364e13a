/* How many connections the loops take, by the limit of open files. */
#include "testing.h"

#include "server/loops.h"

TEST(test_limits_without_want)
{
    struct bag_http_limits limits = bag_loops_limit_connections(4096, 1 << 20);
    assert_int_equal(limits.connections, 4096);
    assert_int_equal(limits.accepted, 4096 + 512 + 16);
    limits = bag_loops_limit_connections(1, SIZE_MAX);
    assert_int_equal(limits.connections, 1);
    assert_int_equal(limits.accepted, 17);
}

/* Where descriptors are short, as many as fit; one more would not. */
TEST(test_limits_by_descriptors)
{
    for (size_t descriptors = 0; descriptors < 8000; descriptors++) {
        struct bag_http_limits limits = bag_loops_limit_connections(4096, descriptors);
        size_t usable = descriptors / 4 * 3;
        assert_in_range(limits.connections, 1, 4096);
        assert_true(limits.accepted <= usable || limits.connections == 1);
        if (limits.connections < 4096 && usable > 40)
            assert_true(limits.connections + 9 + (limits.connections + 9) / 8 + 16 > usable);
        if (usable >= 4096 + 512 + 16)
            assert_int_equal(limits.connections, 4096);
    }
}

TEST(test_loops_by_processors)
{
    static const unsigned expected[][2] = {{1, 1}, {8, 1}, {15, 1}, {16, 2}, {64, 8}, {4096, 256}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_int_equal(bag_loops_default(expected[i][0]), expected[i][1]);
}
