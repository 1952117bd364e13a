/* KeyedJaggedTensor's layout: exact parts from lengths and from offsets, and every rejection. */
#include "testing.h"

#include "proto/v2_request.h"

#define MAX_ELEMENTS 16

static const char *const names[] = {"first", "second", "third"};

static const char *name_of(const void *context, size_t feature)
{
    (void)context;
    return names[feature];
}

struct layout {
    struct bag_kjt kjt;
    struct bag_arena arena;
    struct bag_problem problem;
    struct bag_tensor values, other, weights;
    float factors[MAX_ELEMENTS];
};

/* `count` values of three features, and lengths or offsets. */
static bool read_layout(struct layout *layout, size_t count, enum bag_kjt_input which,
                        const int64_t *elements, size_t num_elements)
{
    static const int32_t ids[MAX_ELEMENTS] = {10, 11, 12, 13, 14, 15};
    struct bag_kjt_features features = {.count = 3, .name_of = name_of};
    layout->values = (struct bag_tensor){
        .dtype = BAG_I32, .rank = 1, .shape = {(int64_t)count}, .count = count, .data = ids};
    layout->other = (struct bag_tensor){.dtype = BAG_I64,
                                        .rank = 1,
                                        .shape = {(int64_t)num_elements},
                                        .count = num_elements,
                                        .data = elements};
    layout->weights = layout->values;
    layout->weights.dtype = BAG_F32;
    layout->weights.data = layout->factors;
    layout->kjt.tensors[BAG_KJT_VALUES] = &layout->values;
    layout->kjt.tensors[which] = &layout->other;
    layout->kjt.tensors[BAG_KJT_WEIGHTS] = &layout->weights;
    bag_arena_init(&layout->arena, 1 << 16);
    bool read = bag_kjt_read(&layout->kjt, &features, &layout->arena, &layout->problem);
    assert_true(read || layout->problem.kind == BAG_ERROR_BAD_REQUEST);
    return read;
}

static void expect_part(const struct layout *layout, size_t feature, size_t first, size_t count,
                        size_t num_bags, const int64_t *offsets)
{
    struct bag_kjt_part part;
    bag_kjt_part(&layout->kjt, feature, &part);
    assert_int_equal(part.indices.dtype, BAG_I32);
    assert_int_equal(part.indices.count, count);
    assert_int_equal(part.indices.shape[0], count);
    assert_ptr_equal(part.indices.data, (const int32_t *)layout->values.data + first);
    assert_ptr_equal(part.weights.data, layout->factors + first);
    assert_int_equal(part.weights.count, count);
    assert_int_equal(part.offsets.count, num_bags + 1);
    assert_memory_equal(part.offsets.data, offsets, (num_bags + 1) * sizeof *offsets);
}

static void expect_parts(const struct layout *layout)
{
    assert_int_equal(layout->kjt.first_bags[3], 6);
    expect_part(layout, 0, 0, 1, 2, (const int64_t[]){0, 0, 1});
    expect_part(layout, 1, 1, 0, 2, (const int64_t[]){0, 0, 0});
    expect_part(layout, 2, 1, 5, 2, (const int64_t[]){0, 3, 5});
}

TEST(test_divides_values)
{
    static const int64_t lengths[] = {0, 1, 0, 0, 3, 2}, offsets[] = {0, 0, 1, 1, 1, 4, 6};
    struct layout layout = {.kjt = {.firsts = NULL}};
    assert_true(read_layout(&layout, 6, BAG_KJT_LENGTHS, lengths, 6));
    expect_parts(&layout);
    bag_arena_free(&layout.arena);
    layout = (struct layout){.kjt = {.firsts = NULL}};
    assert_true(read_layout(&layout, 6, BAG_KJT_OFFSETS, offsets, 7));
    expect_parts(&layout);
    bag_arena_free(&layout.arena);
}

TEST(test_takes_no_bags)
{
    static const int64_t zero = 0;
    for (int with_offsets = 0; with_offsets < 2; with_offsets++) {
        struct layout layout = {.kjt = {.firsts = NULL}};
        enum bag_kjt_input which = with_offsets ? BAG_KJT_OFFSETS : BAG_KJT_LENGTHS;
        assert_true(read_layout(&layout, 0, which, &zero, (size_t)with_offsets));
        assert_int_equal(layout.kjt.first_bags[3], 0);
        struct bag_kjt_part part;
        bag_kjt_part(&layout.kjt, 2, &part);
        assert_int_equal(part.indices.count, 0);
        assert_int_equal(part.offsets.count, 1);
        bag_arena_free(&layout.arena);
    }
}

/* Values, elements of lengths or offsets, the message, and the elements. */
#define LENGTHS(values, count, text, ...)                   \
    {                                                       \
        BAG_KJT_LENGTHS, values, count, {__VA_ARGS__}, text \
    }
#define OFFSETS(values, count, text, ...)                   \
    {                                                       \
        BAG_KJT_OFFSETS, values, count, {__VA_ARGS__}, text \
    }

static const struct {
    enum bag_kjt_input which;
    size_t num_values, num_elements;
    int64_t elements[8];
    const char *text;
} rejections[] = {
    LENGTHS(3, 3,
            "'lengths' at position 1 (feature 'second', bag 0) is -1; it must be from 0 to 2, as "
            "many 'values' as are left",
            1, -1, 3),
    LENGTHS(3, 6,
            "'lengths' at position 5 (feature 'third', bag 1) is 1; it must be from 0 to 0, as "
            "many 'values' as are left",
            1, 1, 1, 0, 0, 1),
    LENGTHS(3, 3,
            "'lengths' at position 1 (feature 'second', bag 0) is 9223372036854775807; it must be "
            "from 0 to 2, as many 'values' as are left",
            1, INT64_MAX, 1),
    LENGTHS(4, 3, "'lengths' counts 3 'values', of which there are 4: each must belong to a bag", 1,
            1, 1),
    LENGTHS(4, 4, "'lengths' has 4 elements; it must have a multiple of 3, the number of features",
            1, 1, 1, 1),
    OFFSETS(3, 4,
            "'offsets' at position 2 (the end of feature 'second', bag 0) is 1; it must be from 2, "
            "where the bag begins, to 3, the number of 'values'",
            0, 2, 1, 3),
    OFFSETS(3, 4,
            "'offsets' at position 3 (the end of feature 'third', bag 0) is 4; it must be from 2, "
            "where the bag begins, to 3, the number of 'values'",
            0, 1, 2, 4),
    OFFSETS(3, 4, "'offsets' at position 0 is 1; it must be 0", 1, 1, 2, 3),
    OFFSETS(3, 4, "'offsets' counts 2 'values', of which there are 3: each must belong to a bag", 0,
            1, 2, 2),
    OFFSETS(3, 0,
            "'offsets' has 0 elements; it must have one more than a multiple of 3, the number of "
            "features",
            0)};

/* Reads lengths of bags that `strides` divides among the features. */
static bool read_strided(struct layout *layout, enum bag_kjt_input which, const int64_t *elements,
                         size_t num_elements, const struct bag_tensor *strides)
{
    *layout = (struct layout){.kjt = {.tensors = {[BAG_KJT_STRIDES] = strides}}};
    return read_layout(layout, 6, which, elements, num_elements);
}

TEST(test_divides_bags_by_stride)
{
    static const int64_t lengths[] = {4, 1, 0, 1}, offsets[] = {0, 4, 5, 5, 6};
    static const int32_t strides[] = {1, 0, 3};
    static const int64_t wide[] = {1, 0, 3};
    const struct bag_tensor narrow_tensor = {
        .dtype = BAG_I32, .rank = 1, .shape = {3}, .count = 3, .data = strides};
    const struct bag_tensor wide_tensor = {
        .dtype = BAG_I64, .rank = 1, .shape = {3}, .count = 3, .data = wide};
    for (int with_offsets = 0; with_offsets < 2; with_offsets++) {
        struct layout layout;
        assert_true(with_offsets
                        ? read_strided(&layout, BAG_KJT_OFFSETS, offsets, 5, &narrow_tensor)
                        : read_strided(&layout, BAG_KJT_LENGTHS, lengths, 4, &wide_tensor));
        expect_part(&layout, 0, 0, 4, 1, (const int64_t[]){0, 4});
        expect_part(&layout, 1, 4, 0, 0, (const int64_t[]){0});
        expect_part(&layout, 2, 4, 2, 3, (const int64_t[]){0, 1, 1, 2});
        bag_arena_free(&layout.arena);
    }
}

TEST(test_rejects_strides)
{
    static const struct {
        size_t count;
        int64_t strides[4];
        const char *text;
    } wrong[] = {
        {2, {1, 3}, "'stride_per_key' has 2 elements; it must have 3, the number of features"},
        {3,
         {1, -1, 4},
         "'stride_per_key' at position 1 (feature 'second') is -1; it must be from 0 to 3, as many "
         "bags as 'lengths' has left"},
        {3,
         {1, INT64_MAX, INT64_MAX},
         "'stride_per_key' at position 1 (feature 'second') is 9223372036854775807; it must be "
         "from 0 to 3, as many bags as 'lengths' has left"},
        {3,
         {1, 1, 1},
         "'stride_per_key' adds up to 3 bags; 'lengths' has 4 elements and must have 3"}};
    static const int64_t lengths[] = {4, 1, 0, 1};
    struct layout layout;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct bag_tensor strides = {.dtype = BAG_I64,
                                           .rank = 1,
                                           .shape = {(int64_t)wrong[i].count},
                                           .count = wrong[i].count,
                                           .data = wrong[i].strides};
        assert_false(read_strided(&layout, BAG_KJT_LENGTHS, lengths, 4, &strides));
        assert_string_equal(layout.problem.text, wrong[i].text);
        bag_arena_free(&layout.arena);
    }
    const struct bag_tensor floats = {
        .dtype = BAG_F32, .rank = 1, .shape = {3}, .count = 3, .data = lengths};
    assert_false(read_strided(&layout, BAG_KJT_LENGTHS, lengths, 4, &floats));
    assert_string_equal(layout.problem.text,
                        "'stride_per_key' has datatype FP32; it must be INT32 or INT64");
    bag_arena_free(&layout.arena);
    layout = (struct layout){.kjt = {.tensors = {[BAG_KJT_STRIDES] = &floats}}};
    struct bag_kjt_features features = {.count = 3, .name_of = name_of};
    assert_false(bag_kjt_read(&layout.kjt, &features, &layout.arena, &layout.problem));
    assert_string_equal(layout.problem.text,
                        "'stride_per_key' needs 'values' and 'lengths', or 'offsets', whose bags "
                        "it divides among the features");
    layout = (struct layout){.kjt = {.tensors = {[BAG_KJT_LENGTHS] = &floats}}};
    assert_false(bag_kjt_read(&layout.kjt, &features, &layout.arena, &layout.problem));
    assert_string_equal(layout.problem.text, "input 'values' is missing");
}

TEST(test_rejects)
{
    for (size_t i = 0; i < sizeof rejections / sizeof *rejections; i++) {
        struct layout layout = {.kjt = {.firsts = NULL}};
        assert_false(read_layout(&layout, rejections[i].num_values, rejections[i].which,
                                 rejections[i].elements, rejections[i].num_elements));
        assert_string_equal(layout.problem.text, rejections[i].text);
        bag_arena_free(&layout.arena);
    }
}
