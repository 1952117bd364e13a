/* Packing tables into nodes: what must always hold, for tables that were drawn, and for those of
 * MLPerf's DLRM. */
#include "server/place/pack.h"
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB UINT64_C(1000000000)

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

static void begin(struct bag_placement *placement, size_t count, uint64_t memory_bytes,
                  uint32_t nodes)
{
    *placement = (struct bag_placement){.items = calloc(count, sizeof *placement->items),
                                        .num_items = count,
                                        .memory_bytes = memory_bytes,
                                        .num_nodes = nodes};
    assert_non_null(placement->items);
    for (size_t i = 0; i < count; i++)
        placement->items[i] = (struct bag_place_item){.name = "table", .most_parts = 1024};
}

/* Each part is on one node, two parts of a table are not on the same, no node has more than its
 * memory, and the sums are right. Returns the bytes of the fullest node. */
static uint64_t check(const struct bag_placement *placement)
{
    uint64_t *bytes = calloc(placement->num_nodes, sizeof *bytes), fullest = 0;
    assert_non_null(bytes);
    for (size_t i = 0; i < placement->num_items; i++) {
        const struct bag_place_item *item = &placement->items[i];
        assert_in_range(item->parts, 1, item->most_parts);
        for (uint32_t j = 0; j < item->parts; j++) {
            assert_true(item->nodes[j] < placement->num_nodes);
            bytes[item->nodes[j]] += bag_place_part_bytes(item, item->parts);
            for (uint32_t k = 0; k < j; k++)
                assert_int_not_equal(item->nodes[j], item->nodes[k]);
        }
    }
    for (uint32_t node = 0; node < placement->num_nodes; node++) {
        assert_true(bytes[node] <= placement->memory_bytes);
        assert_true(bytes[node] == placement->nodes[node].bytes);
        fullest = bytes[node] > fullest ? bytes[node] : fullest;
    }
    free(bytes);
    return fullest;
}

static size_t count_whole(const struct bag_placement *placement)
{
    size_t count = 0;
    for (size_t i = 0; i < placement->num_items; i++)
        count += placement->items[i].parts == 1;
    return count;
}

static void pack(struct bag_placement *placement)
{
    struct bag_problem problem;
    if (!bag_place_pack(placement, &problem))
        fail_msg("%s", problem.text);
}

/* The placement becomes the one before, of which `nodes` are wanted now. */
static void again(struct bag_placement *placement, uint32_t nodes)
{
    for (size_t i = 0; i < placement->num_items; i++) {
        struct bag_place_item *item = &placement->items[i];
        free(item->before);
        item->before = item->nodes;
        item->num_before = item->parts;
        item->nodes = NULL;
    }
    placement->num_before = placement->num_nodes;
    placement->num_nodes = nodes;
    pack(placement);
}

/* Rows of the 26 tables of MLPerf's DLRM-v2, each of 128 FP32 numbers. */
static const uint64_t mlperf_rows[] = {
    40000000, 39060,    17295,    7424,     20265,  3,     7122, 1543, 63,
    40000000, 3067956,  405282,   10,       2209,   11938, 155,  4,    976,
    14,       40000000, 40000000, 40000000, 590152, 12973, 108,  36};
#define MLPERF_TABLES (sizeof mlperf_rows / sizeof *mlperf_rows)

static void begin_mlperf(struct bag_placement *placement, uint64_t memory_bytes, uint32_t nodes)
{
    begin(placement, MLPERF_TABLES, memory_bytes, nodes);
    for (size_t i = 0; i < MLPERF_TABLES; i++) {
        placement->items[i].bytes = mlperf_rows[i] * 512;
        placement->items[i].most_parts = mlperf_rows[i] < 1024 ? (uint32_t)mlperf_rows[i] : 1024;
    }
}

/* 104.5 GB: with 5 % more memory than that in all, any number of nodes suffices. */
static void test_mlperf_fits_within_5_percent(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 40; nodes++) {
        struct bag_placement placement;
        begin_mlperf(&placement, 0, nodes);
        uint64_t bytes = 0;
        for (size_t i = 0; i < MLPERF_TABLES; i++)
            bytes += mlperf_rows[i] * 512;
        placement.memory_bytes = bytes / 100 * 105 / nodes;
        pack(&placement);
        assert_true(placement.bytes == bytes);
        check(&placement);
        assert_true(nodes == 1 || count_whole(&placement) >= MLPERF_TABLES - 8);
        bag_placement_free(&placement);
    }
}

/* Without a number of nodes as few as the bytes allow, and all tables whole where they fit. */
static void test_mlperf_takes_the_fewest_nodes(void **state)
{
    static const struct {
        uint64_t memory_gb;
        uint32_t nodes;
        size_t whole;
    } cases[] = {{110, 1, 26}, {64, 2, 26}, {44, 3, 26}, {36, 3, 24},
                 {27, 4, 24},  {23, 5, 26}, {22, 5, 25}, {12, 9, 21}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bag_placement placement;
        begin_mlperf(&placement, cases[i].memory_gb * GB, 0);
        pack(&placement);
        check(&placement);
        assert_int_equal(placement.num_nodes, cases[i].nodes);
        assert_int_equal(count_whole(&placement), cases[i].whole);
        bag_placement_free(&placement);
    }
}

/* Tables of a long tail: a few large ones, many small ones. */
static void begin_tail(struct bag_placement *placement, uint64_t seed, uint32_t nodes)
{
    uint64_t bytes = 0;
    begin(placement, 200, 0, nodes);
    for (size_t i = 0; i < 200; i++) {
        placement->items[i].bytes = 40 * GB / ((i + 1) * (i + 1)) + draw(&seed) % GB;
        bytes += placement->items[i].bytes;
    }
    placement->memory_bytes = bytes / 100 * 105 / nodes;
}

static void test_long_tails_fit_within_5_percent(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        for (uint32_t nodes = 1; nodes <= 12; nodes++) {
            struct bag_placement placement;
            begin_tail(&placement, seed, nodes);
            pack(&placement);
            check(&placement);
            assert_true(count_whole(&placement) >= 200 - 4);
            bag_placement_free(&placement);
        }
    }
}

static void test_a_node_that_joins_takes_its_share(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        for (uint32_t nodes = 2; nodes <= 8; nodes++) {
            struct bag_placement placement;
            begin_tail(&placement, seed, nodes);
            pack(&placement);
            again(&placement, nodes + 1);
            check(&placement);
            assert_true(placement.moved_bytes <= placement.bytes / (nodes + 1));
            assert_true(placement.nodes[nodes].bytes >= placement.bytes / (nodes + 1) / 2);
            bag_placement_free(&placement);
        }
    }
}

static void test_nothing_moves_where_nothing_has_changed(void **state)
{
    (void)state;
    struct bag_placement placement;
    begin_tail(&placement, 7, 5);
    pack(&placement);
    again(&placement, 0);
    assert_int_equal(placement.num_nodes, 5);
    assert_true(placement.moved_bytes == 0);
    check(&placement);
    bag_placement_free(&placement);
}

/* What was on a node that is gone is all that moves. */
static void test_a_node_that_leaves(void **state)
{
    (void)state;
    struct bag_placement placement;
    begin_tail(&placement, 3, 4);
    placement.memory_bytes *= 2;
    pack(&placement);
    uint64_t of_last = placement.nodes[3].bytes;
    again(&placement, 3);
    check(&placement);
    assert_true(placement.moved_bytes == of_last);
    bag_placement_free(&placement);
}

/* Tables that have grown beyond their node: only from there something moves. */
static void test_a_table_that_has_grown(void **state)
{
    (void)state;
    struct bag_placement placement;
    begin(&placement, 4, 10 * GB, 2);
    for (size_t i = 0; i < 4; i++)
        placement.items[i].bytes = (i < 2 ? 4 : 1) * GB;
    pack(&placement);
    placement.items[0].bytes = 10 * GB;
    uint32_t grown = placement.items[0].nodes[0];
    again(&placement, 2);
    check(&placement);
    assert_int_equal(placement.items[0].nodes[0], grown);
    assert_true(placement.moved_bytes == 1 * GB);
    bag_placement_free(&placement);
}

/* A table of which all is asked is alone, though it is small. */
static void test_rates_count(void **state)
{
    (void)state;
    struct bag_placement placement;
    begin(&placement, 5, 10 * GB, 2);
    for (size_t i = 0; i < 5; i++) {
        placement.items[i].bytes = 1 * GB;
        placement.items[i].rate = i == 4 ? 100 : 1;
    }
    pack(&placement);
    check(&placement);
    for (size_t i = 0; i < 4; i++)
        assert_int_not_equal(placement.items[i].nodes[0], placement.items[4].nodes[0]);
    bag_placement_free(&placement);
}

/* Parts of keyed tables have room for more than their share, and for what each part keeps. */
static void test_parts_of_keys(void **state)
{
    (void)state;
    struct bag_place_item item = {.bytes = 1000000, .keys = 10000, .kept_bytes = 300};
    assert_true(bag_place_part_bytes(&item, 1) == 1000000);
    assert_true(bag_place_part_bytes(&item, 4) == 250000 + 20000 + 300);
    item.keys = 0;
    item.kept_bytes = 0;
    assert_true(bag_place_part_bytes(&item, 3) == 333334);
}

static void test_what_does_not_fit(void **state)
{
    (void)state;
    struct bag_problem problem;
    struct bag_placement placement;
    begin(&placement, 2, 10 * GB, 2);
    placement.items[0].bytes = placement.items[1].bytes = 11 * GB;
    assert_false(bag_place_pack(&placement, &problem));
    assert_int_equal(problem.kind, BAG_ERROR_CONFLICT);
    assert_string_equal(problem.text,
                        "the tables take 22000000000 bytes, and do not fit into 2 nodes of "
                        "10000000000 bytes; give more --nodes or --memory, or leave --nodes out");
    placement.items[0].name = "wide";
    placement.items[0].most_parts = 1;
    placement.num_nodes = 0;
    assert_false(bag_place_pack(&placement, &problem));
    assert_string_equal(problem.text,
                        "table 'wide' takes 11000000000 bytes and can be cut into 1 parts; one of "
                        "them does not fit into --memory (10000000000 bytes)");
    bag_placement_free(&placement);
}

/* No table, tables without a byte, one node. */
static void test_edges(void **state)
{
    (void)state;
    struct bag_placement placement;
    begin(&placement, 3, 1, 0);
    pack(&placement);
    assert_int_equal(placement.num_nodes, 1);
    check(&placement);
    bag_placement_free(&placement);
    begin(&placement, 1, 5, 0);
    placement.items[0].bytes = 6;
    pack(&placement);
    assert_int_equal(placement.num_nodes, 2);
    assert_int_equal(placement.items[0].parts, 2);
    check(&placement);
    bag_placement_free(&placement);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlperf_fits_within_5_percent),
        cmocka_unit_test(test_mlperf_takes_the_fewest_nodes),
        cmocka_unit_test(test_long_tails_fit_within_5_percent),
        cmocka_unit_test(test_a_node_that_joins_takes_its_share),
        cmocka_unit_test(test_nothing_moves_where_nothing_has_changed),
        cmocka_unit_test(test_a_node_that_leaves),
        cmocka_unit_test(test_a_table_that_has_grown),
        cmocka_unit_test(test_rates_count),
        cmocka_unit_test(test_parts_of_keys),
        cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
