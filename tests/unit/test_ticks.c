/* The cheap clock beside the system's. */
#include "testing.h"

#include "server/metrics/metrics.h"

#include <stdbool.h>

static uint64_t elapsed_by_ticks(uint64_t least_ns, uint64_t *by_system)
{
    uint64_t begin_ns = uv_hrtime(), begin = bag_ticks_now(), ns;
    do {
        ns = bag_ticks_ns(begin, bag_ticks_now());
        *by_system = uv_hrtime() - begin_ns;
    } while (*by_system < least_ns);
    return ns;
}

/* Before it is set up, and after: both are the system's time, to a thousandth. Whoever is held up
 * between the two looks tries again. */
static void test_agrees_with_the_system(void **state)
{
    (void)state;
    for (int set_up = 0; set_up < 2; set_up++) {
        uint64_t by_system = 0, by_ticks = 0;
        bool agrees = false;
        if (set_up)
            bag_ticks_init();
        for (int i = 0; i < 50 && !agrees; i++) {
            by_ticks = elapsed_by_ticks(5000000, &by_system);
            agrees =
                by_ticks > by_system - by_system / 1000 && by_ticks < by_system + by_system / 1000;
        }
        if (!agrees)
            fail_msg("%lu ns instead of %lu", (unsigned long)by_ticks, (unsigned long)by_system);
    }
}

static void test_never_negative(void **state)
{
    (void)state;
    assert_int_equal(bag_ticks_ns(100, 100), 0);
    assert_int_equal(bag_ticks_ns(101, 100), 0);
    assert_int_equal(bag_ticks_ns(UINT64_MAX, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_the_system),
        cmocka_unit_test(test_never_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
