/* The tables of words: names, sizes, look-up. */
#include "pool_fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_every_dtype_by_its_name),
        cmocka_unit_test(knows_sizes_and_kinds),
        cmocka_unit_test(finds_every_reduction_by_its_name),
        cmocka_unit_test(every_status_has_a_keyword_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
