/* Memory of tables: alignment, huge pages that were got, the bound of all of it, lists of nodes. */
#include "server/memory/memory.h"
#include "testing.h"

#define MIB ((size_t)1 << 20)

static void configure(enum bag_hugepages hugepages, size_t max_table_bytes)
{
    struct bag_option_values options = {.hugepages = hugepages,
                                        .max_table_bytes = (int64_t)max_table_bytes};
    bag_pages_configure(&options);
}

static char *map(size_t bytes)
{
    struct bag_problem problem;
    char *memory = bag_pages_map(bytes, &problem);
    if (!memory)
        fail_msg("%s", problem.text);
    return memory;
}

TEST(blocks_are_aligned_and_zeroed)
{
    static const size_t sizes[] = {1, 4096, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 33 * MIB + 5};
    for (int kind = BAG_HUGEPAGES_OFF; kind <= BAG_HUGEPAGES_EXPLICIT; kind++) {
        configure((enum bag_hugepages)kind, 0);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            char *memory = map(sizes[i]);
            assert_int_equal((uintptr_t)memory % (sizes[i] < 2 * MIB ? 4096 : 2 * MIB), 0);
            assert_int_equal(memory[0] | memory[sizes[i] - 1], 0);
            memset(memory, 7, sizes[i]);
            assert_int_equal(bag_pages_used(), sizes[i]);
            bag_pages_unmap(memory, sizes[i]);
            assert_int_equal(bag_pages_used(), 0);
        }
    }
}

/* Huge pages as they are on this machine: off has none; a block never has more than it is, nor
 * those of its neighbours. */
TEST(huge_pages_are_counted_for_each_block)
{
    enum { BLOCKS = 4 };
    char *blocks[BLOCKS];
    size_t bytes = 32 * MIB + 100;
    for (size_t i = 0; i < BLOCKS; i++) {
        configure(i % 2 ? BAG_HUGEPAGES_TRANSPARENT : BAG_HUGEPAGES_OFF, 0);
        blocks[i] = map(bytes);
        memset(blocks[i], 1, bytes);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        size_t huge = bag_pages_huge(blocks[i], bytes);
        print_message("block %zu: %zu bytes in huge pages\n", i, huge);
        assert_true(i % 2 ? huge <= bytes : huge == 0);
    }
    for (size_t i = 0; i < BLOCKS; i++)
        bag_pages_unmap(blocks[i], bytes);
}

static void expect(const char *text, size_t new_bytes, size_t freed_bytes)
{
    struct bag_problem problem = {.text = ""};
    bool ok = bag_pages_check(new_bytes, freed_bytes, &problem);
    assert_int_equal(ok, text == NULL);
    if (text)
        assert_string_equal(problem.text, text);
}

TEST(all_tables_are_bounded)
{
    configure(BAG_HUGEPAGES_TRANSPARENT, 10 * MIB);
    assert_int_equal(bag_pages_limit(), 10 * MIB);
    expect(NULL, 10 * MIB, 0);
    char *memory = map(4 * MIB);
    expect(NULL, 6 * MIB, 0);
    expect("the tables to be loaded take 6.50 MiB beside 4.00 MiB of those that are there; "
           "max_table_bytes is 10.00 MiB",
           6 * MIB + MIB / 2, 0);
    expect(NULL, 9 * MIB, 3 * MIB);
    expect(NULL, 10 * MIB, 50 * MIB);
    bag_pages_count(MIB);
    expect("the tables to be loaded take 6.00 MiB beside 5.00 MiB of those that are there; "
           "max_table_bytes is 10.00 MiB",
           6 * MIB, 0);
    bag_pages_uncount(MIB);
    assert_false(bag_pages_check(SIZE_MAX, 0, &(struct bag_problem){0}));
    bag_pages_unmap(memory, 4 * MIB);
    configure(BAG_HUGEPAGES_TRANSPARENT, 0);
    expect(NULL, SIZE_MAX, 0);
}

TEST(lists_of_nodes)
{
    assert_true(bag_pages_parse_nodes("0\n") == 1);
    assert_true(bag_pages_parse_nodes("0-1\n") == 3);
    assert_true(bag_pages_parse_nodes("0,2-4,7") == 0x9d);
    assert_true(bag_pages_parse_nodes("63") == UINT64_C(1) << 63);
    assert_true(bag_pages_parse_nodes("64-900") == 0);
    assert_true(bag_pages_parse_nodes("") == 0);
    assert_true(bag_pages_parse_nodes("\n") == 0);
    assert_true(bag_pages_nodes() >= 1);
}

/* Asks for a node that no machine has, and for huge pages if their pool is too small. The memory is
 * allocated all the same, and the refusals are counted. */
TEST(refusals_are_counted)
{
    uint64_t nodes = bag_pages_node_refusals(), huge = bag_pages_huge_refusals();
    configure(BAG_HUGEPAGES_TRANSPARENT, 0);
    bag_pages_interleave(UINT64_C(1) << 63);
    char *memory = map(2 * MIB);
    memory[2 * MIB - 1] = 1;
    bag_pages_unmap(memory, 2 * MIB);
    assert_int_equal(bag_pages_node_refusals(), nodes + 1);
    assert_int_equal(bag_pages_huge_refusals(), huge);
    bag_pages_interleave(0);
    configure(BAG_HUGEPAGES_EXPLICIT, 0);
    memory = map(64 * MIB);
    memset(memory, 1, 64 * MIB);
    bool is_explicit = bag_pages_huge_refusals() == huge;
    assert_true(is_explicit ? bag_pages_huge(memory, 64 * MIB) == 64 * MIB
                            : bag_pages_huge_refusals() == huge + 1);
    bag_pages_unmap(memory, 64 * MIB);
    assert_int_equal(bag_pages_node_refusals(), nodes + 1);
}
