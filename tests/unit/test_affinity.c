/* Lists of processors. */
#include "testing.h"

#include "server/engine/affinity.h"

#include <sys/resource.h>
#include <uv.h>

static void test_reads_lists(void **state)
{
    struct bag_problem problem;
    cpu_set_t processors;
    (void)state;
    assert_true(bag_affinity_parse("", &processors, &problem));
    assert_int_equal(CPU_COUNT(&processors), 0);
    assert_true(bag_affinity_parse("0", &processors, &problem));
    assert_int_equal(CPU_COUNT(&processors), 1);
    assert_true(CPU_ISSET(0, &processors));
    assert_true(bag_affinity_parse("0-0,0", &processors, &problem));
    assert_int_equal(CPU_COUNT(&processors), 1);
}

static void test_rejects_other_texts(void **state)
{
    static const char *const texts[] = {",",           "0,",       "a",  "0-",
                                        "-1",          "1-0",      "0 ", "0;1",
                                        "0x1",         "0,,0",     "+0", "99999999999999999999",
                                        "0-1023,1024", "1000-1023"};
    struct bag_problem problem;
    cpu_set_t processors;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (bag_affinity_parse(texts[i], &processors, &problem))
            fail_msg("taken: '%s'", texts[i]);
        assert_non_null(strstr(problem.text, texts[i]));
    }
}

/* A thread that is pinned stays pinned to the first processor it was given. */
static void test_pins_a_thread_once(void **state)
{
    struct bag_affinity affinity;
    cpu_set_t before, after;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    bag_affinity_init(&affinity, "", 0);
    bag_affinity_thread(&affinity);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    bag_affinity_init(&affinity, "0", 0);
    bag_affinity_thread(&affinity);
    bag_affinity_thread(&affinity);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_int_equal(CPU_COUNT(&after), 1);
    assert_true(CPU_ISSET(0, &after));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void step_back_twice(void *nice)
{
    struct bag_affinity affinity;
    bag_affinity_init(&affinity, "", 3);
    bag_affinity_thread(&affinity);
    bag_affinity_thread(&affinity);
    *(int *)nice = getpriority(PRIO_PROCESS, 0);
}

/* A worker's nice value is raised once, and nobody else's. */
static void test_steps_back_once(void **state)
{
    uv_thread_t thread;
    int before = getpriority(PRIO_PROCESS, 0), nice = -1;
    (void)state;
    assert_int_equal(uv_thread_create(&thread, step_back_twice, &nice), 0);
    assert_int_equal(uv_thread_join(&thread), 0);
    assert_int_equal(nice, before + 3 < 19 ? before + 3 : 19);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_lists),
        cmocka_unit_test(test_rejects_other_texts),
        cmocka_unit_test(test_pins_a_thread_once),
        cmocka_unit_test(test_steps_back_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
