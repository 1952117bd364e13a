/* Places tiles of every layout, size and rank, and checks that nothing else is written. */
#include "proto/formats.h"
#include "testing.h"

#define GUARD 0xA5

static struct bag_npy describe(enum bag_dtype dtype, bool swap, bool fortran_order, uint32_t rank,
                               const int64_t *shape)
{
    struct bag_npy npy = {.dtype = dtype, .swap = swap, .rank = rank, .count = 1};
    npy.row_elements = 1;
    npy.fortran_order = fortran_order && rank > 1;
    for (uint32_t axis = 0; axis < rank; axis++) {
        npy.shape[axis] = shape[axis];
        npy.count *= (size_t)shape[axis];
        npy.row_elements *= axis ? (size_t)shape[axis] : 1;
    }
    npy.data_bytes = npy.count * bag_dtypes[dtype].bytes;
    npy.num_columns = npy.fortran_order ? npy.row_elements : 1;
    npy.column_elements = npy.fortran_order ? (size_t)shape[0] : npy.count;
    npy.column_stride = npy.column_elements;
    return npy;
}

/* Where the element at `position` of a column-major file stands in row-major order, axis by axis:
 * the definition, without anything that runs along. */
static size_t row_major(const struct bag_npy *npy, size_t position)
{
    size_t index[BAG_MAX_RANK], place = 0;
    if (!npy->fortran_order)
        return position;
    for (uint32_t axis = 0; axis < npy->rank; axis++) {
        index[axis] = position % (size_t)npy->shape[axis];
        position /= (size_t)npy->shape[axis];
    }
    for (uint32_t axis = 0; axis < npy->rank; axis++)
        place = place * (size_t)npy->shape[axis] + index[axis];
    return place;
}

/* Byte `byte` of the element at `position` of the file: no two elements near each other agree. */
static unsigned char file_byte(size_t position, size_t byte)
{
    return (unsigned char)(position * 7 + byte * 101 + (position >> 8) * 13);
}

/* A table between guards, one byte off any alignment. */
struct target {
    unsigned char *bytes, *rows;
    size_t count;
};

static void place_tile(const struct bag_npy *npy, struct bag_npy_tile tile, unsigned char *rows)
{
    size_t bytes = bag_dtypes[npy->dtype].bytes;
    unsigned char *block = malloc(tile.num_columns * tile.count * bytes + 1), *out = block + 1;
    for (size_t column = 0; column < tile.num_columns; column++)
        for (size_t i = 0; i < tile.count; i++)
            for (size_t byte = 0; byte < bytes; byte++)
                *out++ = file_byte(
                    (tile.first_column + column) * npy->column_elements + tile.first + i, byte);
    bag_npy_place(npy, tile, block + 1, rows);
    free(block);
}

static bool in_tile(const struct bag_npy *npy, struct bag_npy_tile tile, size_t position)
{
    size_t column = position / npy->column_elements, element = position % npy->column_elements;
    return column >= tile.first_column && column - tile.first_column < tile.num_columns &&
           element >= tile.first && element - tile.first < tile.count;
}

static void check_tile(const struct bag_npy *npy, struct bag_npy_tile tile)
{
    size_t bytes = bag_dtypes[npy->dtype].bytes;
    struct target target = {.count = npy->data_bytes + 33};
    target.bytes = malloc(target.count);
    memset(target.bytes, GUARD, target.count);
    target.rows = target.bytes + 17;
    unsigned char *expected = malloc(target.count);
    memset(expected, GUARD, target.count);
    for (size_t position = 0; position < npy->count; position++)
        for (size_t byte = 0; byte < bytes && in_tile(npy, tile, position); byte++)
            expected[17 + row_major(npy, position) * bytes + byte] =
                file_byte(position, npy->swap ? bytes - 1 - byte : byte);
    place_tile(npy, tile, target.rows);
    assert_memory_equal(target.bytes, expected, target.count);
    free(expected);
    free(target.bytes);
}

static const struct {
    uint32_t rank;
    int64_t shape[5];
} shapes[] = {{1, {1}},        {1, {70}},         {2, {1, 1}},       {2, {5, 3}},
              {2, {3, 70}},    {2, {70, 3}},      {2, {65, 17}},     {3, {4, 3, 2}},
              {3, {67, 1, 4}}, {4, {3, 2, 5, 2}}, {4, {2, 4, 1, 3}}, {5, {9, 2, 3, 2, 4}}};

static const enum bag_dtype dtypes[] = {BAG_I8, BAG_BF16, BAG_F32, BAG_F64};

/* Calls `check` for each size of element, both byte orders, both axis orders and all shapes. */
static void for_each_layout(void (*check)(const struct bag_npy *npy))
{
    for (size_t shape = 0; shape < COUNT_OF(shapes); shape++)
        for (size_t dtype = 0; dtype < COUNT_OF(dtypes); dtype++)
            for (int layout = 0; layout < 4; layout++) {
                struct bag_npy npy =
                    describe(dtypes[dtype], (layout & 1) && dtypes[dtype] != BAG_I8, layout & 2,
                             shapes[shape].rank, shapes[shape].shape);
                check(&npy);
            }
}

static void check_whole(const struct bag_npy *npy)
{
    check_tile(npy, (struct bag_npy_tile){0, npy->num_columns, 0, npy->column_elements});
}

TEST(places_whole_files)
{
    for_each_layout(check_whole);
}

/* All tiles around the bounds of columns and of the pieces that are moved at once. */
static void check_parts(const struct bag_npy *npy)
{
    size_t columns[] = {0, 1, npy->num_columns / 2, npy->num_columns};
    size_t elements[] = {0, 1, 15, 16, 17, npy->column_elements - 1, npy->column_elements};
    for (size_t c = 0; c < COUNT_OF(columns); c++)
        for (size_t d = c; d < COUNT_OF(columns); d++)
            for (size_t e = 0; e < COUNT_OF(elements); e++)
                for (size_t f = e; f < COUNT_OF(elements); f++)
                    if (columns[c] <= columns[d] && columns[d] <= npy->num_columns &&
                        elements[e] <= elements[f] && elements[f] <= npy->column_elements)
                        check_tile(npy,
                                   (struct bag_npy_tile){columns[c], columns[d] - columns[c],
                                                         elements[e], elements[f] - elements[e]});
}

TEST(places_parts_and_touches_nothing_else)
{
    for_each_layout(check_parts);
}

TEST(turns_known_numbers)
{
    static const unsigned char column_major_big[] = {0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6};
    struct bag_npy npy = describe(BAG_I16, true, true, 2, (int64_t[]){2, 3});
    int16_t rows[6] = {0}, expected[6] = {1, 2, 3, 4, 5, 6};
    bag_npy_place(&npy, (struct bag_npy_tile){0, 3, 0, 2}, column_major_big, rows);
    assert_memory_equal(rows, expected, sizeof rows);
}

TEST(leaves_empty_tables_alone)
{
    struct bag_npy npy = describe(BAG_F32, false, true, 2, (int64_t[]){0, 4});
    bag_npy_place(&npy, (struct bag_npy_tile){0, 4, 0, 0}, NULL, NULL);
    npy = describe(BAG_F32, true, true, 3, (int64_t[]){4, 0, 2});
    bag_npy_place(&npy, (struct bag_npy_tile){0, 0, 0, 4}, NULL, NULL);
    npy = describe(BAG_F32, false, false, 1, (int64_t[]){0});
    bag_npy_place(&npy, (struct bag_npy_tile){0, 1, 0, 0}, NULL, NULL);
}
