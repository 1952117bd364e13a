/* The tables of words: names, sizes, look-up. */
#include "kernels/pool_block.h"
#include "pool_fixture.h"

#include <stdio.h>

static void finds_every_dtype_by_its_name(void **state)
{
    (void)state;
    for (int i = 0; i < BAG_DTYPE_COUNT; i++)
        assert_int_equal(bag_dtype_find(bag_dtypes[i].name, strlen(bag_dtypes[i].name)), i);
    assert_int_equal(bag_dtype_find("FP32xx", 4), BAG_F32);
    assert_int_equal(bag_dtype_find("FP3", 3), BAG_DTYPE_COUNT);
    assert_int_equal(bag_dtype_find("fp32", 4), BAG_DTYPE_COUNT);
    assert_int_equal(bag_dtype_find("", 0), BAG_DTYPE_COUNT);
}

static void knows_sizes_and_kinds(void **state)
{
    (void)state;
    assert_int_equal(bag_dtypes[BAG_BF16].bytes, 2);
    assert_int_equal(bag_dtypes[BAG_F64].bytes, 8);
    assert_int_equal(bag_dtypes[BAG_BYTES].bytes, 0);
    assert_int_equal(bag_dtypes[BAG_U64].kind, BAG_KIND_UNSIGNED);
    assert_int_equal(bag_dtypes[BAG_I8].kind, BAG_KIND_SIGNED);
    assert_int_equal(bag_dtypes[BAG_F16].kind, BAG_KIND_FLOAT);
    assert_int_equal(bag_dtypes[BAG_BOOL].kind, BAG_KIND_OTHER);
}

static void finds_every_reduction_by_its_name(void **state)
{
    (void)state;
    for (int i = 0; i < BAG_REDUCTION_COUNT; i++)
        assert_int_equal(bag_reduction_find(bag_reduction_names[i], strlen(bag_reduction_names[i])),
                         i);
    assert_int_equal(bag_reduction_find("SUM", 3), BAG_REDUCTION_COUNT);
    assert_int_equal(bag_reduction_find("sqrt", 4), BAG_REDUCTION_COUNT);
}

static void every_status_has_a_keyword_of_its_own(void **state)
{
    (void)state;
    for (int i = 0; i < BAG_STATUS_COUNT; i++) {
        assert_non_null(bag_status_keywords[i]);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(bag_status_keywords[i], bag_status_keywords[j]);
    }
    assert_string_equal(bag_status_keywords[BAG_STATUS_OK], "ok");
    assert_string_equal(bag_input_names[BAG_PER_SAMPLE_WEIGHTS], "per_sample_weights");
}

/* KiB of the first processor's cache of that level, as the operating system says; 0: it does not.
 */
static size_t told_kib(int wanted)
{
    size_t found = 0;
    for (int i = 0; i < 8; i++) {
        char path[80];
        int level = 0;
        size_t kib = 0;
        for (int of_size = 0; of_size < 2; of_size++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i,
                     of_size ? "size" : "level");
            FILE *file = fopen(path, "r");
            if (file && (of_size ? fscanf(file, "%zu", &kib) : fscanf(file, "%d", &level)) != 1)
                level = 0;
            if (file)
                fclose(file);
        }
        found = level == wanted ? kib : found;
    }
    return found;
}

static void knows_the_caches_of_the_processor(void **state)
{
    (void)state;
    struct bag_caches caches = bag_caches_of_processor();
    assert_true(caches.second > 0 && caches.third >= caches.second);
#if defined(__x86_64__)
    if (told_kib(2))
        assert_int_equal(caches.second, told_kib(2) << 10);
    if (told_kib(3))
        assert_int_equal(caches.third, told_kib(3) << 10);
#endif
    bag_isa_use(BAG_ISA_GENERIC);
    assert_int_equal(bag_caches.second, caches.second);
    assert_int_equal(bag_caches.third, caches.third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_every_dtype_by_its_name),
        cmocka_unit_test(knows_sizes_and_kinds),
        cmocka_unit_test(finds_every_reduction_by_its_name),
        cmocka_unit_test(every_status_has_a_keyword_of_its_own),
        cmocka_unit_test(knows_the_caches_of_the_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
