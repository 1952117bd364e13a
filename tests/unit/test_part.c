/* Parts of a table: ranges without gap or overlap, and the hash of keys that the protocol names. */
#include "kernels/part.h"
#include "testing.h"

TEST(finds_every_way_by_its_name)
{
    for (int i = 0; i < BAG_PART_WAY_COUNT; i++)
        assert_int_equal(bag_part_way_find(bag_part_way_names[i], strlen(bag_part_way_names[i])),
                         i);
    assert_int_equal(bag_part_way_find("row", 3), BAG_PART_WAY_COUNT);
    assert_int_equal(bag_part_way_find("Rows", 4), BAG_PART_WAY_COUNT);
}

TEST(begins_where_the_protocol_says)
{
    static const struct {
        uint64_t size;
        uint32_t index, of;
        uint64_t begin;
    } cases[] = {{10, 0, 3, 0},
                 {10, 1, 3, 3},
                 {10, 2, 3, 6},
                 {10, 3, 3, 10},
                 {0, 0, 1, 0},
                 {0, 5, 7, 0},
                 {0, 7, 7, 0},
                 {1, 6, 7, 0},
                 {1, 7, 7, 1},
                 {2, 2048, BAG_MAX_PARTS, 1},
                 {2, 2047, BAG_MAX_PARTS, 0},
                 {INT64_MAX, 1, 2, INT64_MAX / 2},
                 {INT64_MAX, BAG_MAX_PARTS, BAG_MAX_PARTS, INT64_MAX},
                 {INT64_MAX, BAG_MAX_PARTS - 1, BAG_MAX_PARTS, INT64_MAX - (INT64_C(1) << 51)},
                 {UINT64_MAX, 2, 3, UINT64_MAX / 3 * 2}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal(bag_part_begin(cases[i].size, cases[i].index, cases[i].of),
                         cases[i].begin);
}

/* Each row of a small table, for every number of parts up to more than it has rows. */
TEST(every_row_is_of_the_part_that_holds_it)
{
    for (uint64_t size = 1; size < 40; size++) {
        for (uint32_t of = 1; of < 60; of++) {
            assert_int_equal(bag_part_begin(size, 0, of), 0);
            assert_int_equal(bag_part_begin(size, of, of), size);
            for (uint64_t row = 0; row < size; row++) {
                uint32_t part = bag_part_of_row(row, size, of);
                assert_in_range(part, 0, of - 1);
                assert_true(bag_part_begin(size, part, of) <= row);
                assert_true(bag_part_begin(size, part + 1, of) > row);
            }
        }
    }
}

TEST(rows_of_huge_tables_have_parts)
{
    const uint64_t size = INT64_MAX;
    for (uint32_t index = 0; index < BAG_MAX_PARTS; index++) {
        uint64_t begin = bag_part_begin(size, index, BAG_MAX_PARTS);
        uint64_t end = bag_part_begin(size, index + 1, BAG_MAX_PARTS);
        assert_int_equal(bag_part_of_row(begin, size, BAG_MAX_PARTS), index);
        assert_int_equal(bag_part_of_row(end - 1, size, BAG_MAX_PARTS), index);
    }
}

/* The table of the protocol. */
TEST(hashes_keys_as_the_protocol_says)
{
    static const struct {
        uint64_t key;
        uint32_t of_3, of_4096;
    } cases[] = {{0, 0, 0},
                 {1, 2, 2885},
                 {2, 0, 939},
                 {42, 1, 2064},
                 {UINT64_C(1) << 31, 2, 3643},
                 {UINT64_C(1) << 53, 0, 185},
                 {UINT64_C(1) << 63, 1, 2295},
                 {UINT64_MAX, 1, 1611}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(bag_part_of_key(cases[i].key, 1), 0);
        assert_int_equal(bag_part_of_key(cases[i].key, 3), cases[i].of_3);
        assert_int_equal(bag_part_of_key(cases[i].key, BAG_MAX_PARTS), cases[i].of_4096);
    }
}

/* Keys one after the other, as many have them: 2^20 over 16 parts differ by chance alone, by less
 * than 5 of its standard deviations of 248. */
TEST(spreads_keys_evenly)
{
    uint32_t counts[16] = {0};
    for (uint64_t key = 0; key < UINT64_C(1) << 20; key++)
        counts[bag_part_of_key(key, 16)]++;
    for (int i = 0; i < 16; i++)
        assert_in_range(counts[i], 65536 - 1240, 65536 + 1240);
}
