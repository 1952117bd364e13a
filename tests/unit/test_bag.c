/* The tables of words: names, sizes, look-up. */
#include "kernels/pool_loop.h"
#include "pool_fixture.h"

#include <stdio.h>

TEST(finds_every_dtype_by_its_name)
{
    for (int i = 0; i < BAG_DTYPE_COUNT; i++)
        assert_int_equal(bag_dtype_find(bag_dtypes[i].name, strlen(bag_dtypes[i].name)), i);
    assert_int_equal(bag_dtype_find("FP32xx", 4), BAG_F32);
    assert_int_equal(bag_dtype_find("FP3", 3), BAG_DTYPE_COUNT);
    assert_int_equal(bag_dtype_find("fp32", 4), BAG_DTYPE_COUNT);
    assert_int_equal(bag_dtype_find("", 0), BAG_DTYPE_COUNT);
}

TEST(knows_sizes_and_kinds)
{
    assert_int_equal(bag_dtypes[BAG_BF16].bytes, 2);
    assert_int_equal(bag_dtypes[BAG_F64].bytes, 8);
    assert_int_equal(bag_dtypes[BAG_BYTES].bytes, 0);
    assert_int_equal(bag_dtypes[BAG_U64].kind, BAG_KIND_UNSIGNED);
    assert_int_equal(bag_dtypes[BAG_I8].kind, BAG_KIND_SIGNED);
    assert_int_equal(bag_dtypes[BAG_F16].kind, BAG_KIND_FLOAT);
    assert_int_equal(bag_dtypes[BAG_BOOL].kind, BAG_KIND_OTHER);
}

TEST(finds_every_reduction_by_its_name)
{
    for (int i = 0; i < BAG_REDUCTION_COUNT; i++)
        assert_int_equal(bag_reduction_find(bag_reduction_names[i], strlen(bag_reduction_names[i])),
                         i);
    assert_int_equal(bag_reduction_find("SUM", 3), BAG_REDUCTION_COUNT);
    assert_int_equal(bag_reduction_find("sqrt", 4), BAG_REDUCTION_COUNT);
}

TEST(every_status_has_a_keyword_of_its_own)
{
    for (int i = 0; i < BAG_STATUS_COUNT; i++) {
        assert_non_null(bag_status_keywords[i]);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(bag_status_keywords[i], bag_status_keywords[j]);
    }
    assert_string_equal(bag_status_keywords[BAG_STATUS_OK], "ok");
    assert_string_equal(bag_input_names[BAG_PER_SAMPLE_WEIGHTS], "per_sample_weights");
}

/* Reads a file of the operating system on a cache of the first processor. Returns false if there is
 * none. */
static bool read_cache(int index, const char *what, const char *format, void *value)
{
    char path[80];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, what);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    bool is_read = fscanf(file, format, value) == 1;
#pragma GCC diagnostic pop
    fclose(file);
    return is_read;
}

/* Returns the KiB of the first processor's cache of that level for data, as the operating system
 * says. Returns 0 if it does not. */
static size_t told_kib(int wanted)
{
    for (int i = 0; i < 8; i++) {
        char type[20];
        int level;
        size_t kib;
        if (read_cache(i, "level", "%d", &level) && level == wanted &&
            read_cache(i, "type", "%19s", type) && strcmp(type, "Instruction") != 0 &&
            read_cache(i, "size", "%zu", &kib))
            return kib;
    }
    return 0;
}

TEST(knows_the_caches_of_the_processor)
{
    struct bag_caches caches = bag_caches_of_processor();
    assert_true(caches.second > 0 && caches.third >= caches.second);
#if defined(__x86_64__)
    if (told_kib(1))
        assert_int_equal(caches.first, told_kib(1) << 10);
    if (told_kib(2))
        assert_int_equal(caches.second, told_kib(2) << 10);
    if (told_kib(3))
        assert_int_equal(caches.third, told_kib(3) << 10);
#endif
    bag_isa_use(BAG_ISA_GENERIC);
    assert_int_equal(bag_caches.first, caches.first);
    assert_int_equal(bag_caches.second, caches.second);
    assert_int_equal(bag_caches.third, caches.third);
}

/* Returns whether rows of a table of so many bytes are prefetched into the first cache. */
static bool fetches_to_first(enum bag_dtype dtype, size_t table_bytes)
{
    const size_t row_bytes = 16 * bag_dtypes[dtype].bytes;
    const struct bag_table table = {
        .dtype = dtype, .num_rows = (int64_t)(table_bytes / row_bytes), .row_elements = 16};
    const struct bag_rules rules = {.output_dtype = dtype, .default_index = -1};
    struct bag_pool_plan plan;
    bag_pool_prepare(&table, &rules, &plan);
    return plan.walk.fetch == BAG_FETCH_FIRST;
}

TEST(fetches_rows_into_the_first_cache_where_the_caches_hold_the_table)
{
    bag_caches = (struct bag_caches){48 << 10, 1 << 20, 32 << 20};
    assert_false(fetches_to_first(BAG_F32, 1 << 20));
    assert_true(fetches_to_first(BAG_F32, 8 << 20));
    assert_false(fetches_to_first(BAG_F32, 64 << 20));
    bag_caches.first = 32 << 10;
    assert_false(fetches_to_first(BAG_F32, 8 << 20));
    assert_false(fetches_to_first(BAG_BF16, 256 << 10));
    assert_true(fetches_to_first(BAG_BF16, 8 << 20));
    assert_false(fetches_to_first(BAG_BF16, 64 << 20));
    bag_caches = bag_caches_of_processor();
}

/* Makes the plan of sums of a table of rows of so many bytes, which are not read. */
static void plan_for(enum bag_row_format format, size_t table_bytes, size_t row_bytes,
                     struct bag_pool_plan *plan)
{
    const bool is_plain = format == BAG_ROWS_PLAIN;
    const size_t elements = is_plain ? row_bytes / sizeof(float) : row_bytes - 2 * sizeof(float);
    const struct bag_rules rules = rules_for(BAG_F32, BAG_SUM);
    struct bag_table table = table_of(BAG_F32, (int64_t)(table_bytes / row_bytes), elements, NULL);
    table.row_format = format;
    bag_pool_prepare(&table, &rules, plan);
}

static struct bag_row_walk walk_of(enum bag_row_format format, size_t table_bytes, size_t row_bytes)
{
    struct bag_pool_plan plan;
    plan_for(format, table_bytes, row_bytes, &plan);
    return plan.walk;
}

TEST(prefetches_few_rows_before_a_call_where_that_gains)
{
    bag_caches = (struct bag_caches){32 << 10, 512 << 10, 16 << 20};
    struct bag_row_walk in_second = walk_of(BAG_ROWS_PLAIN, 256 << 10, 64);
    assert_int_equal(in_second.fetch, BAG_FETCH_NONE);
    assert_int_equal(in_second.early, 0);
    assert_int_equal(in_second.ahead, SIZE_MAX);
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 4 << 20, 64).fetch, BAG_FETCH_SECOND);
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 4 << 20, 64).early, 0);
    assert_int_equal(walk_of(BAG_ROWS_INT8, 1 << 20, 64).early, 0);
    assert_int_equal(walk_of(BAG_ROWS_INT8, 4 << 20, 64).early, 32);
    assert_int_equal(walk_of(BAG_ROWS_INT8, 4 << 20, 512).early, 32);
    assert_int_equal(walk_of(BAG_ROWS_INT8, 4 << 20, 1024).early, 0);
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 64 << 20, 512).fetch, BAG_FETCH_FAR);
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 64 << 20, 512).early, 32);
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 64 << 20, 1024).early, 0);
    bag_caches = bag_caches_of_processor();
}

/* An L2 waits for about 48 lines. */
TEST(prefetches_rows_in_memory_as_far_ahead_as_a_cache_can_wait_for)
{
    bag_caches = (struct bag_caches){32 << 10, 512 << 10, 16 << 20};
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 64 << 20, 64).ahead, 40);
    assert_int_equal(walk_of(BAG_ROWS_INT8, 64 << 20, 64).ahead, 40);
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 64 << 20, 4096).ahead, 12);
    assert_int_equal(walk_of(BAG_ROWS_PLAIN, 4 << 20, 64).ahead, 64);
    assert_int_equal(walk_of(BAG_ROWS_INT8, 4 << 20, 64).ahead, 32);
    assert_int_equal(walk_of(BAG_ROWS_INT8, 4 << 20, 136).ahead, 24);
    bag_caches = bag_caches_of_processor();
}

/* Tiles of wide rows in memory prefetch what follows them. */
TEST(prefetches_wide_rows_in_memory_by_several_tiles)
{
    bag_caches = (struct bag_caches){32 << 10, 512 << 10, 16 << 20};
    for (size_t columns = 255; columns <= 256; columns++) {
        const size_t bytes = columns * sizeof(float);
        const struct bag_row_walk far = walk_of(BAG_ROWS_PLAIN, 64 << 20, bytes);
        const struct bag_row_walk near = walk_of(BAG_ROWS_PLAIN, 4 << 20, bytes);
        const bool is_wide = columns == 256;
        assert_int_equal(far.whole[BAG_MODE_PLAIN].fetched_beyond > 0, is_wide);
        assert_true(far.whole[BAG_MODE_PLAIN].fetched_beyond < 2048);
        assert_int_equal(near.whole[BAG_MODE_PLAIN].fetched_beyond, 0);
    }
    bag_caches = bag_caches_of_processor();
}

/* Returns how far ahead a call for `count` rows of so many bytes prefetches: one with offsets, or
 * of the packed form. */
static size_t ahead_of_call(size_t table_bytes, size_t row_bytes, size_t count, bool is_packed)
{
    static const int32_t ids[256];
    const struct bag_tensor list = tensor_of(BAG_I32, 1, count, ids);
    const struct bag_tensor indices = is_packed ? with_shape(list, 1, (int64_t)count) : list;
    const struct bag_tensor offsets = tensor_of(BAG_I32, 1, 1, ids);
    const struct bag_inputs inputs = {
        {[BAG_INDICES] = &indices, [BAG_OFFSETS] = is_packed ? NULL : &offsets}};
    struct bag_pool_plan plan;
    struct bag_pool_args args;
    struct bag_fault fault;
    plan_for(BAG_ROWS_PLAIN, table_bytes, row_bytes, &plan);
    assert_int_equal(bag_pool_check(&plan, &inputs, SIZE_MAX, &args, &fault), BAG_STATUS_OK);
    return args.ahead;
}

TEST(prefetches_most_rows_of_short_calls_from_the_caches)
{
    bag_caches = (struct bag_caches){32 << 10, 512 << 10, 16 << 20};
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        assert_int_equal(ahead_of_call(4 << 20, 128, 31, is_packed), 32);
        assert_int_equal(ahead_of_call(4 << 20, 128, 32, is_packed), 8);
        assert_int_equal(ahead_of_call(4 << 20, 128, 127, is_packed), 31);
        assert_int_equal(ahead_of_call(4 << 20, 128, 128, is_packed), 32);
        assert_int_equal(ahead_of_call(4 << 20, 64, 32, is_packed), 64);
        assert_true(ahead_of_call(64 << 20, 128, 33, is_packed) >= 24);
        assert_int_equal(ahead_of_call(128 << 10, 128, 33, is_packed), SIZE_MAX);
    }
    bag_caches = bag_caches_of_processor();
}
