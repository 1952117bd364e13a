/* The last 15 minutes: what a sample is, seconds that were held up, and how little memory it takes.
 */
#include "server/metrics/history.h"
#include "testing.h"

#define SECOND_NS UINT64_C(1000000000)

struct world {
    struct bag_metrics metrics;
    struct bag_recorder *recorder;
    struct bag_history history;
    uint64_t now_ns;
};

static int begin(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    bag_metrics_init(&world->metrics, true, 1);
    assert_true(bag_metrics_add_loop(&world->metrics, &world->recorder));
    assert_true(bag_metrics_begin_slot(&world->metrics, 0));
    world->now_ns = 100 * SECOND_NS;
    assert_true(bag_history_init(&world->history, &world->metrics, world->now_ns, 0));
    *state = world;
    return 0;
}

static int end(void **state)
{
    struct world *world = *state;
    bag_history_free(&world->history);
    bag_metrics_free(&world->metrics);
    free(world);
    return 0;
}

AROUND_EACH(begin, end)

static void answer(struct world *world, size_t requests, size_t rows, uint64_t ns)
{
    const struct bag_model model = {.slot = 0};
    const struct bag_stopwatch watch = {.stage_ns = {ns}};
    const struct bag_metrics_work work = {.bags = 1, .rows = rows, .watch = &watch};
    for (size_t i = 0; i < requests; i++)
        bag_metrics_on_success(world->recorder, &model, &work);
}

static void pass(struct world *world, double seconds, uint32_t waiting)
{
    const struct bag_history_levels levels = {.waiting = waiting, .table_bytes = 5};
    world->now_ns += (uint64_t)(seconds * 1e9);
    bag_history_sample(&world->history, world->now_ns, &levels, world->now_ns / 2);
}

static char *describe(struct world *world)
{
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    bag_history_write(&world->history, &json);
    char *text = bag_json_end(&json);
    assert_non_null(text);
    return text;
}

static void expect(struct world *world, const char *part)
{
    char *text = describe(world);
    if (!strstr(text, part))
        fail_msg("%s is not in %s", part, text);
    free(text);
}

TEST(test_a_second)
{
    struct world *world = *state;
    answer(world, 99, 10, 2000);
    answer(world, 1, 10, 40000000);
    bag_metrics_on_rejection(world->recorder, NULL, BAG_REJECTION_QUEUE_FULL, NULL);
    pass(world, 1, 7);
    expect(world, "\"requests\":[100]");
    expect(world, "\"rows\":[1000]");
    /* The 50th of 99 between 1000 and 2500 ns, and the 99th of them. */
    expect(world, "\"p50_ns\":[1757]");
    expect(world, "\"p99_ns\":[2500]");
    expect(world, "\"waiting\":[7]");
    expect(world, "\"table_bytes\":[5]");
    expect(world, "\"rejected\":{\"queue_full\":[1]}");
    expect(world, "\"recent\":{\"span_ms\":1000,\"requests\":100,\"rows\":1000,\"p50_ns\":1757");
    pass(world, 1, 0);
    expect(world, "\"requests\":[100,0]");
    expect(world, "\"p50_ns\":[1757,null]");
    expect(world, "\"queue_full\":[1,0]");
}

TEST(test_a_clock_that_is_early)
{
    struct world *world = *state;
    answer(world, 3, 1, 2000);
    pass(world, 0.5, 0);
    expect(world, "\"requests\":[]");
    pass(world, 0.46, 0);
    expect(world, "\"requests\":[3]");
    answer(world, 2, 1, 2000);
    pass(world, 0.02, 0);
    expect(world, "\"requests\":[3]");
    pass(world, 1, 0);
    expect(world, "\"requests\":[3,2]");
}

TEST(test_seconds_that_were_held_up)
{
    struct world *world = *state;
    pass(world, 1, 0);
    answer(world, 400, 1, 2000);
    pass(world, 4, 0);
    expect(world, "\"requests\":[0,null,null,null,100]");
    pass(world, 1, 0);
    expect(world, "\"requests\":[0,null,null,null,100,0]");
    pass(world, 5000, 0);
    char *text = describe(world), *requests = strstr(text, "\"requests\":[");
    size_t commas = 0;
    for (char *at = strchr(requests, '['); *at != ']'; at++)
        commas += *at == ',';
    assert_int_equal(commas, BAG_HISTORY_SECONDS - 1);
    free(text);
}

TEST(test_the_ring_is_bounded)
{
    struct world *world = *state;
    for (int i = 0; i < 2 * BAG_HISTORY_SECONDS + 17; i++) {
        answer(world, (size_t)(i % 3), 1, 2000);
        pass(world, 1, (uint32_t)i);
    }
    expect(world, "\"seconds\":900,");
    expect(world, "\"waiting\":[917,918,");
    expect(world, ",1815,1816],\"in_flight\"");
    assert_true(BAG_HISTORY_SECONDS * sizeof *world->history.ring < 300000);
}
