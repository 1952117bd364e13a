/* Projection: the product, the bias, and rows stored in every type and stride. */
#include "testing.h"

#include "kernels/project.h"

#define MAX_ROWS 4

/* The definition: c += a b. Products of small whole numbers are exact in any order. */
static void multiply(size_t m, size_t n, size_t k, const float *a, const float *b, float *c)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t x = 0; x < k; x++)
                c[i * n + j] += a[i * k + x] * b[x * n + j];
}

static const float matrix[] = {1, 2, 3, 10, 20, 30}, bias[] = {0.5f, -1, 100};
static const float pooled[] = {1, 0, 0, 1, 2, -1};

TEST(test_multiplies_and_adds)
{
    const struct bag_projection plain = {matrix, NULL, 2, 3, multiply};
    const struct bag_projection biased = {matrix, bias, 2, 3, multiply};
    const float want[] = {1, 2, 3, 10, 20, 30, -8, -16, -24};
    float product[3 * MAX_ROWS];
    for (size_t count = 0; count <= 3; count++) {
        for (size_t i = 0; i < COUNT_OF(product); i++)
            product[i] = -7;
        bag_project(&plain, pooled, count, product);
        assert_memory_equal(product, want, count * 3 * sizeof *want);
        assert_true(product[count * 3] == -7);
        bag_project(&biased, pooled, count, product);
        for (size_t i = 0; i < count * 3; i++)
            assert_true(product[i] == want[i] + bias[i % 3]);
    }
}

/* Rows without elements are projected to the bias. */
TEST(test_rows_of_nothing)
{
    const struct bag_projection projection = {matrix, bias, 0, 3, multiply};
    float product[6];
    bag_project(&projection, pooled, 2, product);
    for (size_t i = 0; i < 6; i++)
        assert_true(product[i] == bias[i % 3]);
}

TEST(test_stores)
{
    static const float product[] = {1, -2, 0.5f, 65536};
    static const struct {
        enum bag_dtype dtype;
        unsigned char rows[2][8];
    } cases[] = {{BAG_F32, {{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}, {0, 0, 0, 0x3f, 0, 0, 0x80, 0x47}}},
                 {BAG_F16, {{0, 0x3c, 0, 0xc0}, {0, 0x38, 0, 0x7c}}},
                 {BAG_BF16, {{0x80, 0x3f, 0, 0xc0}, {0, 0x3f, 0x80, 0x47}}}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t bytes = 2 * bag_dtypes[cases[i].dtype].bytes, stride = bytes + 3;
        unsigned char out[64];
        memset(out, 0xa5, sizeof out);
        bag_project_store(product, 2, 2, cases[i].dtype, (char *)out + 1, stride);
        assert_memory_equal(out + 1, cases[i].rows[0], bytes);
        assert_memory_equal(out + 1 + stride, cases[i].rows[1], bytes);
        assert_int_equal(out[0], 0xa5);
        for (size_t gap = bytes; gap < stride; gap++)
            assert_int_equal(out[1 + gap], 0xa5);
        assert_int_equal(out[1 + stride + bytes], 0xa5);
    }
}
