/* One inference: what a plan costs and what it may ask for. Limits are met exactly, and passed by
 * one byte. */
#include "model_fixture.h"
#include "testing.h"

#include "server/infer/infer.h"

#define ROWS    100
#define COLUMNS 64

/* Bags beyond the ids that no ratio bounds. */
#define FREE_BAGS 16384

static struct {
    struct bag_model model;
    struct bag_feature feature;
    struct bag_table_memory memory;
    struct bag_infer_limits limits;
    struct bag_infer infer;
    float rows[ROWS * COLUMNS];
} world;

static int set_up(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.limits = (struct bag_infer_limits){
        .max_body_bytes = 1 << 20, .max_reply_bytes = 64 << 20, .explains = true};
    set_up_model(&world.model, &world.feature, &world.memory, world.rows, ROWS, COLUMNS);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    bag_infer_free(&world.infer);
    return 0;
}

AROUND_EACH(set_up, tear_down)

/* Writes a body of `bags` bags without an index. */
static void write_body(char *body, size_t room, size_t bags, const char *parameters)
{
    int bytes = snprintf(
        body, room,
        "{%s\"inputs\":[{\"name\":\"indices\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]},"
        "{\"name\":\"segment_ids\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]},"
        "{\"name\":\"num_segments\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[%zu]}]}",
        parameters, bags);
    assert_in_range(bytes, 1, room - 1);
}

/* Plans the body; the problem's text must have the words, NULL: there is none. */
static void plan(const char *body, const char *words)
{
    struct bag_problem problem;
    size_t bytes = strlen(body);
    bag_infer_reset(&world.infer);
    world.infer.input = (struct bag_infer_input){.model = &world.model,
                                                 .limits = &world.limits,
                                                 .body = body,
                                                 .body_bytes = bytes,
                                                 .header_bytes = bytes};
    bool planned = bag_infer_plan(&world.infer, NULL, &problem);
    if (planned && words)
        fail_msg("planned, without '%s'", words);
    if (!planned && (!words || !strstr(problem.text, words)))
        fail_msg("'%s' lacks '%s'", problem.text, words ? words : "nothing");
    if (!planned)
        assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
}

static const char binary[] = "\"parameters\":{\"binary_data_output\":true},";

TEST(test_a_reply_is_bounded_by_its_request)
{
    char body[512];
    world.limits.max_reply_ratio = 1000;
    write_body(body, sizeof body, 17000, binary);
    size_t bags = FREE_BAGS + 1000 * strlen(body) / (COLUMNS * sizeof(float));
    assert_in_range(bags, FREE_BAGS + 100, 99999); /* also of five digits */
    write_body(body, sizeof body, bags, binary);
    plan(body, NULL);
    write_body(body, sizeof body, bags + 1, binary);
    plan(body, "max_reply_ratio");
    world.limits.max_reply_ratio = 0;
    plan(body, NULL);
    /* As JSON, 12 bytes for a number. */
    world.limits.max_reply_ratio = 1000;
    write_body(body, sizeof body, 17000, "");
    bags = FREE_BAGS + 1000 * strlen(body) / (COLUMNS * 12);
    write_body(body, sizeof body, bags, "");
    plan(body, NULL);
    write_body(body, sizeof body, bags + 1, "");
    plan(body, "max_reply_ratio");
}

TEST(test_explanations_count_as_replies)
{
    char body[512];
    world.limits.max_reply_ratio = 1000;
    write_body(body, sizeof body, FREE_BAGS + 800, binary);
    plan(body, NULL);
    write_body(body, sizeof body, FREE_BAGS + 800,
               "\"parameters\":{\"binary_data_output\":true,\"explain\":true},");
    world.limits.max_reply_ratio = 800 * COLUMNS * sizeof(float) / strlen(body) + 1;
    plan(body, "max_reply_ratio");
}

/* Work is counted from bags and bytes of the result, too, and by no less than 2000 bytes. */
TEST(test_work_is_bounded_by_the_request)
{
    char body[512];
    write_body(body, sizeof body, 4000, binary);
    plan(body, NULL);
    uint64_t cost_ns = bag_infer_cost_ns(&world.infer);
    assert_true(cost_ns >= 4000 * COLUMNS * sizeof(float) / 8);
    world.limits.max_work_ns_per_byte = (cost_ns + 1999) / 2000;
    plan(body, NULL);
    world.limits.max_work_ns_per_byte = (cost_ns - 1) / 2000;
    plan(body, "max_work_us_per_byte");
}

TEST(test_sorting_and_explaining_are_work)
{
    static const char body[] =
        "{\"inputs\":[{\"name\":\"indices\",\"shape\":[4],\"datatype\":\"INT64\",\"data\":[1,2,3,4]"
        "},"
        "{\"name\":\"segment_ids\",\"shape\":[4],\"datatype\":\"INT64\",\"data\":[0,0,1,1]}]}";
    plan(body, NULL);
    uint64_t sorted_ns = bag_infer_cost_ns(&world.infer);
    world.feature.rules.unsorted_segments = true;
    plan(body, NULL);
    assert_true(bag_infer_cost_ns(&world.infer) > sorted_ns);
    world.feature.rules.unsorted_segments = false;
    char explained[512];
    snprintf(explained, sizeof explained, "{\"parameters\":{\"explain\":true},%s", body + 1);
    plan(explained, NULL);
    assert_true(bag_infer_cost_ns(&world.infer) > sorted_ns);
}

/* A row of the result takes COLUMNS products for each of its elements. */
TEST(test_projecting_is_work)
{
    enum { WIDTH = 4096, BAGS = 100 };
    struct bag_projection_memory projection = {
        .projection = {.rows = COLUMNS, .columns = WIDTH, .matrix = world.rows}};
    char body[512];
    write_body(body, sizeof body, BAGS, binary);
    plan(body, NULL);
    uint64_t pooled_ns = bag_infer_cost_ns(&world.infer);
    world.model.projects = true;
    world.feature.projection = &projection;
    plan(body, NULL);
    uint64_t cost_ns = bag_infer_cost_ns(&world.infer);
    assert_true(cost_ns >= pooled_ns + (uint64_t)BAGS * COLUMNS * WIDTH / 16);
    world.limits.max_work_ns_per_byte = (cost_ns + 1999) / 2000;
    plan(body, NULL);
    world.limits.max_work_ns_per_byte = (cost_ns - 1) / 2000;
    plan(body, "max_work_us_per_byte");
}

/* Runs the body, whose bags are of the default row, and checks the numbers of its binary reply;
 * whether they were streamed. */
static bool run(const char *body, bool is_binary)
{
    struct bag_problem problem;
    struct bag_buffers buffers;
    assert_true(bag_buffers_init(&buffers, false, NULL));
    plan(body, NULL);
    assert_true(bag_infer_run(&world.infer, &buffers, &problem));
    const struct bag_infer_output *output = &world.infer.output;
    for (size_t at = output->header_bytes; is_binary && at < output->bytes;
         at += sizeof world.rows / ROWS)
        assert_memory_equal(output->reply + at, world.rows, sizeof world.rows / ROWS);
    bag_infer_reset(&world.infer);
    bag_buffers_free(&buffers);
    return world.infer.plan.ops[0].args.streams;
}

/* Results for JSON are not streamed, because printing reads them again at once. */
TEST(test_long_binary_results_are_streamed)
{
    enum { STREAMED_BAGS = (12 << 20) / (COLUMNS * sizeof(float)) };
    char body[512];
    world.feature.rules.default_index = 0;
    for (size_t i = 0; i < COLUMNS; i++)
        world.rows[i] = (float)i;
    write_body(body, sizeof body, STREAMED_BAGS - 1, binary);
    assert_false(run(body, true));
    write_body(body, sizeof body, STREAMED_BAGS, binary);
    assert_true(run(body, true));
    write_body(body, sizeof body, STREAMED_BAGS, "");
    assert_false(run(body, false));
}
