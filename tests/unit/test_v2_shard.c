/* Valid and invalid metadata of servers of parts. */
#include "testing.h"

#include "proto/v2_shard.h"

static const char part[] =
    "{\"name\": \"items\", \"versions\": [\"2\"], \"inputs\": [{\"name\": \"indices\", "
    "\"datatype\": \"INT64\", \"shape\": [-1]}], \"outputs\": [{\"name\": \"embeddings\", "
    "\"datatype\": \"FP32\", \"shape\": [-1, 3]}], \"parameters\": {\"rows\": 4, "
    "\"row_elements\": 3, \"datatype\": \"FP16\", \"row_format\": \"plain\", \"keyed\": false%s}}";

static bool read(const char *more, struct bag_shard_table *table, struct bag_problem *problem)
{
    char text[1024];
    snprintf(text, sizeof text, part, more);
    return bag_shard_read_table(text, strlen(text), table, problem);
}

TEST(test_parts)
{
    struct bag_shard_table table;
    struct bag_problem problem;
    assert_true(read("", &table, &problem));
    assert_int_equal(table.part.by, BAG_PART_ROWS);
    assert_int_equal(table.part.index, 0);
    assert_int_equal(table.part.of, 1);
    assert_int_equal(table.rank, 2);
    assert_int_equal(table.shape[0], 4);
    assert_int_equal(table.shape[1], 3);
    assert_int_equal(table.dtype, BAG_F16);
    assert_int_equal(table.output_dtype, BAG_F32);
    assert_true(read(", \"part\": {\"by\": \"columns\", \"index\": 1, \"of\": 3, \"rows\": 4, "
                     "\"row_elements\": 8}",
                     &table, &problem));
    assert_int_equal(table.part.by, BAG_PART_COLUMNS);
    assert_int_equal(table.shape[1], 8); /* columns 2 to 5 of 8 are here */
    assert_true(read(", \"part\": {\"by\": \"rows\", \"index\": 2, \"of\": 3, \"rows\": 12, "
                     "\"row_elements\": 3}",
                     &table, &problem));
    assert_int_equal(table.shape[0], 12);
    assert_int_equal(table.part.index, 2);
    assert_int_equal(table.digest, 0);
    assert_true(read(", \"part\": {\"by\": \"rows\", \"index\": 2, \"of\": 3, \"rows\": 12, "
                     "\"row_elements\": 3, \"digest\": \"fedcba9876543210\"}",
                     &table, &problem));
    assert_int_equal(table.digest, 0xfedcba9876543210);
}

TEST(test_wrong_parts)
{
    static const char *const wrong[] = {
        ", \"part\": {}",
        ", \"part\": {\"by\": \"rows\", \"index\": 0, \"of\": 3, \"rows\": 12, \"row_elements\": "
        "3, "
        "\"digest\": \"fedcba987654321\"}",
        ", \"part\": 1",
        ", \"part\": {\"by\": \"row\", \"index\": 0, \"of\": 3, \"rows\": 12, \"row_elements\": 3}",
        ", \"part\": {\"by\": \"rows\", \"index\": 3, \"of\": 3, \"rows\": 12, \"row_elements\": "
        "3}",
        ", \"part\": {\"by\": \"rows\", \"index\": 0, \"of\": 0, \"rows\": 12, \"row_elements\": "
        "3}",
        ", \"part\": {\"by\": \"rows\", \"index\": 0, \"of\": 4097, \"rows\": 12, "
        "\"row_elements\": 3}",
        ", \"part\": {\"by\": \"rows\", \"index\": 0, \"of\": 3, \"rows\": -1, \"row_elements\": "
        "3}",
        ", \"part\": {\"by\": \"rows\", \"index\": 0.5, \"of\": 3, \"rows\": 12, "
        "\"row_elements\": 3}"};
    struct bag_shard_table table;
    struct bag_problem problem;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        if (read(wrong[i], &table, &problem))
            fail_msg("%s was taken", wrong[i]);
        assert_string_equal(problem.text,
                            "its answer is no metadata of a table, or of a part of one");
    }
    static const char *const others[][2] = {
        {", \"part\": {\"by\": \"rows\", \"index\": 0, \"of\": 3, \"rows\": 12, \"row_elements\": "
         "4}",
         "its rows are projected there; the coordinator has 'projection'"},
        {", \"part\": {\"by\": \"columns\", \"index\": 0, \"of\": 3, \"rows\": 4, "
         "\"row_elements\": 8}",
         "its rows are projected there; the coordinator has 'projection'"},
        {", \"shards\": 3", "its table is on shards of its own: name those here"},
        {", \"features\": []", "its model is a collection: a model of shards is one table"}};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        assert_false(read(others[i][0], &table, &problem));
        assert_string_equal(problem.text, others[i][1]);
    }
    assert_false(bag_shard_read_table("{", 1, &table, &problem));
    assert_int_equal(strncmp(problem.text, "its answer is no JSON", 21), 0);
}

TEST(test_versions)
{
    static const char text[] = "{\"versions\": [\"3\", \"12\", \"1\", \"4\", \"5\", \"6\", \"7\", "
                               "\"8\", \"9\", \"3\"]}";
    static const uint64_t highest[] = {3, 4, 5, 6, 7, 8, 9, 12};
    static const char *const wrong[] = {"{}", "{\"versions\": [1]}", "{\"versions\": [\"0\"]}",
                                        "{\"versions\": [\"a\"]}", "[]"};
    struct bag_shard_versions versions;
    struct bag_problem problem;
    assert_true(bag_shard_read_versions(text, sizeof text - 1, &versions, &problem));
    assert_int_equal(versions.count, COUNT_OF(highest));
    assert_memory_equal(versions.numbers, highest, sizeof highest);
    assert_true(bag_shard_read_versions("{\"versions\": []}", 16, &versions, &problem));
    assert_int_equal(versions.count, 0);
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_false(bag_shard_read_versions(wrong[i], strlen(wrong[i]), &versions, &problem));
}

TEST(test_instances)
{
    static const struct {
        const char *text;
        uint64_t generation;
    } numbers[] = {{"1", 1},     {"9007199254740991", UINT64_C(9007199254740991)},
                   {"0", 0},     {"-1", 0},
                   {"1.5", 0},   {"1e30", 0},
                   {"\"7\"", 0}, {"null", 0}};
    static const char *const wrong[] = {
        "{}",
        "{\"name\": \"triton\", \"instance\": "
        "\"0123456789abcdef\"}",
        "{\"name\": \"bagserve\"}", "{\"name\": \"bagserve\", \"instance\": \"0123456789abcde\"}",
        "{\"name\": \"bagserve\", \"instance\": "
        "\"0123456789abcdeg\"}"};
    static const char right[] = "{\"name\": \"bagserve\", \"instance\": \"0123456789abcdef\"}";
    struct bag_shard_generation stamp;
    struct bag_problem problem;
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_false(bag_shard_read_generation(wrong[i], strlen(wrong[i]), &stamp, &problem));
    assert_true(bag_shard_read_generation(right, sizeof right - 1, &stamp, &problem));
    assert_string_equal(stamp.instance, "0123456789abcdef");
    assert_int_equal(stamp.generation, 0);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        char text[200];
        int bytes = snprintf(text, sizeof text, "%.*s, \"generation\": %s}", (int)sizeof right - 2,
                             right, numbers[i].text);
        assert_true(bag_shard_read_generation(text, (size_t)bytes, &stamp, &problem));
        assert_int_equal(stamp.generation, numbers[i].generation);
    }
}
