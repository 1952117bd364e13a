/* safetensors headers made by hand: what is read, and how the rest is rejected. */
#include "proto/formats.h"
#include "testing.h"

/* ---- files ----------------------------------------------------------------------------------- */

/* Parses a header over `data_bytes` of data; the bytes have a block of exactly their size. */
static bool parse(const char *header, uint64_t data_bytes, struct bag_safetensors *file,
                  struct bag_problem *problem)
{
    size_t length = strlen(header), count = 8 + length;
    char *bytes = calloc(1, count);
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 8; i < count; i++)
        bytes[i] = bytes[i] == '\'' ? '"' : bytes[i];
    assert_int_equal(bag_safetensors_header_bytes(bytes, 8), length ? count : 0);
    bool ok = bag_safetensors_parse(bytes, count, count + data_bytes, file, problem);
    free(bytes);
    return ok;
}

static struct bag_safetensors accept(const char *header, uint64_t data_bytes)
{
    struct bag_safetensors file;
    struct bag_problem problem;
    if (!parse(header, data_bytes, &file, &problem))
        fail_msg("%s", problem.text);
    return file;
}

static void reject(const char *header, uint64_t data_bytes, const char *sentence)
{
    struct bag_safetensors file;
    struct bag_problem problem;
    if (parse(header, data_bytes, &file, &problem))
        fail_msg("accepted: %s", header);
    assert_string_equal(problem.text, sentence);
    assert_int_equal(problem.kind, BAG_ERROR_FILE);
}

static struct bag_safetensors_tensor describe(const struct bag_safetensors *file, const char *name)
{
    struct bag_safetensors_tensor tensor;
    struct bag_problem problem;
    if (!bag_safetensors_describe(file, bag_safetensors_find(file, name), &tensor, &problem))
        fail_msg("%s", problem.text);
    return tensor;
}

#define TENSOR(name, dtype, shape, begin, end)                                                  \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": [" #begin \
    ", " #end "]}"

/* ---- what is read ---------------------------------------------------------------------------- */

TEST(reads_tensors_and_their_places)
{
    const char *header =
        "{" TENSOR("b", "F32", "[3, 2]", 5, 29) ", \"__metadata__\": {\"format\": \"pt\"}, " TENSOR(
            "a", "U8", "[5]", 0, 5) "}   ";
    struct bag_safetensors file = accept(header, 29);
    const struct cJSON *cursor = NULL;
    assert_string_equal(bag_safetensors_next(&file, &cursor), "b");
    assert_string_equal(bag_safetensors_next(&file, &cursor), "a");
    assert_null(bag_safetensors_next(&file, &cursor));
    assert_non_null(bag_safetensors_find(&file, "a"));
    assert_null(bag_safetensors_find(&file, "c"));
    assert_null(bag_safetensors_find(&file, "__metadata__"));
    assert_int_equal(file.data_offset, 8 + strlen(header));
    struct bag_safetensors_tensor tensor = describe(&file, "b");
    assert_string_equal(tensor.type, "F32");
    assert_int_equal(tensor.row_format, BAG_ROWS_PLAIN);
    assert_int_equal(tensor.layout.dtype, BAG_F32);
    assert_int_equal(tensor.layout.rank, 2);
    assert_int_equal(tensor.layout.shape[0], 3);
    assert_int_equal(tensor.layout.row_elements, 2);
    assert_int_equal(tensor.layout.count, 6);
    assert_int_equal(tensor.layout.data_bytes, 24);
    assert_int_equal(tensor.layout.data_offset, file.data_offset + 5);
    assert_int_equal(tensor.layout.num_columns, 1);
    assert_int_equal(tensor.layout.column_elements, 6);
    assert_true(bag_npy_is_plain(&tensor.layout));
    bag_safetensors_free(&file);
}

TEST(reads_every_type)
{
    static const struct {
        const char *name;
        size_t bytes;
        enum bag_dtype dtype;
        enum bag_row_format row_format;
    } types[] = {
        {"F64", 8, BAG_F64, BAG_ROWS_PLAIN},      {"F32", 4, BAG_F32, BAG_ROWS_PLAIN},
        {"F16", 2, BAG_F16, BAG_ROWS_PLAIN},      {"BF16", 2, BAG_BF16, BAG_ROWS_PLAIN},
        {"I64", 8, BAG_I64, BAG_ROWS_PLAIN},      {"I32", 4, BAG_I32, BAG_ROWS_PLAIN},
        {"I16", 2, BAG_I16, BAG_ROWS_PLAIN},      {"I8", 1, BAG_I8, BAG_ROWS_PLAIN},
        {"U64", 8, BAG_U64, BAG_ROWS_PLAIN},      {"U32", 4, BAG_U32, BAG_ROWS_PLAIN},
        {"U16", 2, BAG_U16, BAG_ROWS_PLAIN},      {"U8", 1, BAG_U8, BAG_ROWS_PLAIN},
        {"F8_E4M3", 1, BAG_U8, BAG_ROWS_F8_E4M3}, {"F8_E5M2", 1, BAG_U8, BAG_ROWS_F8_E5M2}};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        char header[256];
        size_t bytes = 6 * types[i].bytes;
        snprintf(header, sizeof header, "{'t':{'dtype':'%s','shape':[2,3],'data_offsets':[0,%zu]}}",
                 types[i].name, bytes);
        struct bag_safetensors file = accept(header, bytes);
        struct bag_safetensors_tensor tensor = describe(&file, "t");
        assert_int_equal(tensor.layout.dtype, types[i].dtype);
        assert_int_equal(tensor.row_format, types[i].row_format);
        assert_int_equal(tensor.row_elements, types[i].row_format == BAG_ROWS_PLAIN ? 0 : 3);
        assert_int_equal(tensor.layout.data_bytes, bytes);
        bag_safetensors_free(&file);
    }
}

/* Bytes of the tensor "values" are what the metadata says, others are themselves. */
TEST(reads_what_rows_stand_for)
{
    const char *header = "{'__metadata__': {'row_format': 'int4', 'row_elements': '3'}, " TENSOR(
        "values", "U8", "[2, 6]", 0, 12) ", " TENSOR("keys", "I64", "[2]", 12,
                                                     28) ", " TENSOR("others", "U8", "[1, 6]", 28,
                                                                     34) "}";
    struct bag_safetensors file = accept(header, 34);
    struct bag_safetensors_tensor tensor = describe(&file, "values");
    assert_int_equal(tensor.row_format, BAG_ROWS_INT4);
    assert_int_equal(tensor.row_elements, 3);
    assert_int_equal(tensor.layout.row_elements, 6);
    tensor = describe(&file, "others");
    assert_int_equal(tensor.row_format, BAG_ROWS_PLAIN);
    assert_int_equal(tensor.row_elements, 0);
    bag_safetensors_free(&file);
}

TEST(rejects_unknown_rows)
{
    static const struct {
        const char *metadata, *message;
    } cases[] = {
        {"\"row_format\": \"int9\"",
         "tensor 'values': '__metadata__' says row_format 'int9', which is not known"},
        {"\"row_format\": \"int4\", \"row_elements\": \"0\"",
         "tensor 'values': '__metadata__' says row_elements '0'; it must be a number from 1"},
        {"\"row_format\": \"int4\", \"row_elements\": \"3x\"",
         "tensor 'values': '__metadata__' says row_elements '3x'; it must be a number from 1"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char header[256];
        struct bag_problem problem;
        struct bag_safetensors_tensor tensor;
        snprintf(header, sizeof header,
                 "{'__metadata__': {%s}, " TENSOR("values", "U8", "[2, 6]", 0, 12) "}",
                 cases[i].metadata);
        struct bag_safetensors file = accept(header, 12);
        assert_false(bag_safetensors_describe(&file, bag_safetensors_find(&file, "values"), &tensor,
                                              &problem));
        assert_string_equal(problem.text, cases[i].message);
        assert_int_equal(problem.kind, BAG_ERROR_FILE);
        bag_safetensors_free(&file);
    }
}

TEST(reads_tensors_without_elements)
{
    struct bag_safetensors file = accept(
        "{" TENSOR("x", "F32", "[1]", 0, 4) "," TENSOR("z", "F32", "[0, 9]", 4, 4) "," TENSOR(
            "e", "I64", "[7, 0]", 0, 0) "," TENSOR("s", "F16", "[]", 4, 6) "}",
        6);
    assert_int_equal(describe(&file, "z").layout.count, 0);
    assert_int_equal(describe(&file, "e").layout.shape[0], 7);
    assert_int_equal(describe(&file, "s").layout.rank, 0);
    assert_int_equal(describe(&file, "s").layout.count, 1);
    bag_safetensors_free(&file);
    file = accept("{}", 0);
    const struct cJSON *cursor = NULL;
    assert_null(bag_safetensors_next(&file, &cursor));
    bag_safetensors_free(&file);
}

TEST(ignores_what_it_does_not_know)
{
    struct bag_safetensors file = accept("{'t': {'dtype': 'U8', 'shape': [2], 'new': 1, "
                                         "'data_offsets': [0, 2]}, '__metadata__': {}}",
                                         2);
    assert_int_equal(describe(&file, "t").layout.count, 2);
    bag_safetensors_free(&file);
}

/* ---- the frame ------------------------------------------------------------------------------- */

TEST(rejects_other_files)
{
    struct bag_safetensors file;
    struct bag_problem problem;
    assert_false(bag_safetensors_parse("1234567", 7, 7, &file, &problem));
    assert_string_equal(problem.text, "the file ends after 7 bytes; a safetensors file begins with "
                                      "the length of its header in 8");
    assert_int_equal(bag_safetensors_header_bytes("1234567", 7), 0);
    assert_false(bag_safetensors_parse("\x93NUMPY\x01\x00", 8, 8, &file, &problem));
    assert_string_equal(problem.text, "the file is not a safetensors file; it looks like an .npy "
                                      "file: its name must end with .npy");
    assert_false(bag_safetensors_parse("\xffNUMPY\x01\x00", 8, 8, &file, &problem));
    assert_string_equal(problem.text,
                        "the first 8 bytes say that the header has 379676406402815 bytes; at most "
                        "100000000 are read: is this a safetensors file?");
    assert_false(bag_safetensors_parse("\x01\xe1\xf5\x05\0\0\0\0", 8, 1 << 30, &file, &problem));
    assert_non_null(strstr(problem.text, "100000001 bytes"));
    assert_int_equal(bag_safetensors_header_bytes("\x01\xe1\xf5\x05\0\0\0\0", 8), 0);
    assert_int_equal(bag_safetensors_header_bytes("\x00\xe1\xf5\x05\0\0\0\0", 8), 100000008);
    assert_false(bag_safetensors_parse("\x09\0\0\0\0\0\0\0{}", 10, 10, &file, &problem));
    assert_string_equal(problem.text, "the file is truncated: its header should end at byte 17, "
                                      "but the file ends after 10");
    reject("", 0, "the header is empty; it must be a JSON object");
    reject("[]", 0, "the header does not begin with '{': this is no safetensors file");
    reject(" {}", 0, "the header does not begin with '{': this is no safetensors file");
    reject("{'a': }", 0, "the header: line 1, column 7: expected a value");
    reject("{" TENSOR("a", "U8", "[1]", 0, 1) "," TENSOR("a", "U8", "[1]", 1, 2) "}", 2,
           "the header: line 1, column 61: key \"a\" is duplicated in one object");
}

TEST(rejects_other_metadata)
{
    reject("{'__metadata__': []}", 0, "'__metadata__' must be an object of strings");
    reject("{'__metadata__': {'a': 'b', 'c': 1}}", 0,
           "'__metadata__' must be an object of strings");
}

/* ---- tensors --------------------------------------------------------------------------------- */

TEST(rejects_malformed_tensors)
{
    static const char offsets[] = "tensor 't': 'data_offsets' must be [begin, end], two whole "
                                  "numbers that do not fall";
    static const char shape[] = "tensor 't': 'shape' must be an array of whole numbers from 0";
    static const char dtype[] = "tensor 't': 'dtype' must be a string such as \"F32\"";
    reject("{'t': 1}", 0,
           "tensor 't': it must be an object with 'dtype', 'shape' and 'data_offsets'");
    reject("{'t': {}}", 0, dtype);
    reject("{'t': {'dtype': 1}}", 0, dtype);
    reject("{'t': {'dtype': 'U8'}}", 0, shape);
    reject("{'t': {'dtype': 'U8', 'shape': 1}}", 0, shape);
    reject("{'t': {'dtype': 'U8', 'shape': [1]}}", 0, offsets);
    reject("{'t': {'dtype': 'U8', 'shape': [1], 'data_offsets': 1}}", 0, offsets);
    reject("{" TENSOR("t", "U8", "[-1]", 0, 1) "}", 1, shape);
    reject("{" TENSOR("t", "U8", "[1.5]", 0, 1) "}", 1, shape);
    reject("{" TENSOR("t", "U8", "[9007199254740994]", 0, 1) "}", 1, shape);
    reject("{" TENSOR("t", "U8", "['1', 1]", 0, 1) "}", 1, shape);
    reject("{" TENSOR("t", "U8", "[1]", 1, 0) "}", 1, offsets);
    reject("{" TENSOR("t", "U8", "[1]", -1, 0) "}", 1, offsets);
    reject("{" TENSOR("t", "U8", "[1]", 0.5, 1) "}", 1, offsets);
    reject("{" TENSOR("t", "U8", "[1]", 0, 1.5) "}", 1, offsets);
    reject("{'t': {'dtype': 'U8', 'shape': [], 'data_offsets': []}}", 0, offsets);
    reject("{'t': {'dtype': 'U8', 'shape': [], 'data_offsets': [0]}}", 0, offsets);
    reject("{'t': {'dtype': 'U8', 'shape': [], 'data_offsets': [0,1,1]}}", 0, offsets);
}

TEST(rejects_bytes_that_the_shape_does_not_take)
{
    reject("{" TENSOR("t", "F32", "[3]", 0, 11) "}", 11,
           "tensor 't': 'data_offsets' give it 11 bytes, but its shape and dtype F32 take 12");
    reject("{" TENSOR("t", "F4", "[3]", 0, 1) "}", 1,
           "tensor 't': 'data_offsets' give it 1 bytes, but its shape and dtype F4 take 2");
    reject("{" TENSOR("t", "F32", "[0, 4]", 0, 4) "}", 4,
           "tensor 't': 'data_offsets' give it 4 bytes, but its shape and dtype F32 take 0");
    reject("{" TENSOR("t", "F32", "[9007199254740991, 4097]", 0, 4) "}", 4,
           "tensor 't': its shape is too large for any file: the bits of its elements pass 2^64");
    reject("{" TENSOR("t", "F32", "[9007199254740991, 1024]", 0, 4) "}", 4,
           "tensor 't': its shape is too large for any file: the bits of its elements pass 2^64");
}

TEST(rejects_types_only_when_asked_for)
{
    struct bag_safetensors file = accept(
        "{" TENSOR("ok", "F32", "[1]", 0, 4) "," TENSOR("flags", "BOOL", "[3]", 4, 7) "," TENSOR(
            "new", "F3_E1M1", "[1]", 7, 10) "," TENSOR("f4", "F4", "[2, 2]", 10, 12) "}",
        12);
    struct bag_safetensors_tensor tensor;
    struct bag_problem problem;
    describe(&file, "ok");
    assert_non_null(bag_safetensors_find(&file, "new"));
    assert_false(
        bag_safetensors_describe(&file, bag_safetensors_find(&file, "flags"), &tensor, &problem));
    assert_string_equal(problem.text,
                        "tensor 'flags': its dtype BOOL cannot be pooled; a table has floats of 8, "
                        "16, 32 or 64 bits or integers of 8 to 64");
    assert_int_equal(problem.kind, BAG_ERROR_FILE);
    assert_false(
        bag_safetensors_describe(&file, bag_safetensors_find(&file, "new"), &tensor, &problem));
    assert_non_null(strstr(problem.text, "tensor 'new': its dtype F3_E1M1 cannot be pooled"));
    assert_false(
        bag_safetensors_describe(&file, bag_safetensors_find(&file, "f4"), &tensor, &problem));
    bag_safetensors_free(&file);
}

TEST(rejects_more_dimensions_than_arrays_have)
{
    char header[512], ones[80] = "1";
    struct bag_safetensors_tensor tensor;
    struct bag_problem problem;
    for (int i = 1; i < 33; i++)
        strcat(ones, ",1");
    snprintf(header, sizeof header, "{'t':{'dtype':'U8','shape':[%s],'data_offsets':[0,1]}}", ones);
    struct bag_safetensors file = accept(header, 1);
    assert_false(
        bag_safetensors_describe(&file, bag_safetensors_find(&file, "t"), &tensor, &problem));
    assert_string_equal(problem.text, "tensor 't': it has more than 32 dimensions");
    bag_safetensors_free(&file);
}

/* Whichever dimension is zero: what a reader multiplies must not overflow. */
TEST(rejects_shapes_beyond_memory)
{
    struct bag_safetensors file =
        accept("{" TENSOR("t", "U8", "[0, 9007199254740991, 255]", 0, 0) "}", 0);
    assert_int_equal(describe(&file, "t").layout.row_elements, 9007199254740991 * 255);
    bag_safetensors_free(&file);
    file = accept("{" TENSOR("t", "U8", "[0, 9007199254740991, 1025]", 0, 0) "}", 0);
    struct bag_safetensors_tensor tensor;
    struct bag_problem problem;
    assert_false(
        bag_safetensors_describe(&file, bag_safetensors_find(&file, "t"), &tensor, &problem));
    assert_string_equal(problem.text, "tensor 't': the shape is too large: the bytes of its "
                                      "elements pass 2^63 - 1");
    bag_safetensors_free(&file);
    reject("{" TENSOR("t", "U8", "[0, 9007199254740991, 2049]", 0, 0) "}", 0,
           "tensor 't': its shape is too large for any file: the bits of its elements pass 2^64");
}

/* ---- places ---------------------------------------------------------------------------------- */

TEST(rejects_overlaps_holes_and_ends)
{
    reject("{" TENSOR("b", "U8", "[3]", 3, 6) "," TENSOR("a", "U8", "[4]", 0, 4) "}", 6,
           "tensor 'b': it begins at byte 3 of the data, inside 'a', which ends at 4");
    reject("{" TENSOR("a", "U8", "[4]", 0, 4) "," TENSOR("b", "U8", "[4]", 0, 4) "}", 4,
           "tensor 'b': it begins at byte 0 of the data, inside 'a', which ends at 4");
    reject("{" TENSOR("a", "U8", "[4]", 0, 4) "," TENSOR("b", "U8", "[4]", 8, 12) "}", 12,
           "tensor 'b': it begins at byte 8 of the data, but the data before it ends at 4; "
           "there must be no holes");
    reject("{" TENSOR("a", "U8", "[4]", 1, 5) "}", 5,
           "tensor 'a': it begins at byte 1 of the data, but the data before it ends at 0; "
           "there must be no holes");
    reject("{" TENSOR("a", "U8", "[4]", 0, 4) "}", 3,
           "the file is truncated: it has 3 bytes of data, the header promises 4");
    reject("{" TENSOR("a", "U8", "[4]", 0, 4) "}", 5,
           "the file is too long: it has 5 bytes of data, the header promises 4; nothing may "
           "follow the last tensor");
    reject("{}", 1,
           "the file is too long: it has 1 bytes of data, the header promises 0; nothing may "
           "follow the last tensor");
}

/* ---- parts ----------------------------------------------------------------------------------- */

TEST(reads_the_index_of_parts)
{
    static const char text[] =
        "{\"metadata\": {\"total_size\": 12}, \"weight_map\": {\"a\": \"m-00001-of-00002."
        "safetensors\", \"b\": \"m-00002-of-00002.safetensors\"}}";
    struct bag_safetensors_index index;
    struct bag_problem problem;
    const struct cJSON *cursor = NULL;
    assert_true(bag_safetensors_index_parse(text, strlen(text), &index, &problem));
    assert_string_equal(bag_safetensors_index_file(&index, "b"), "m-00002-of-00002.safetensors");
    assert_null(bag_safetensors_index_file(&index, "c"));
    assert_string_equal(bag_safetensors_index_next(&index, &cursor), "a");
    assert_string_equal(bag_safetensors_index_next(&index, &cursor), "b");
    assert_null(bag_safetensors_index_next(&index, &cursor));
    bag_safetensors_index_free(&index);
}

static void reject_index(const char *text, const char *sentence)
{
    struct bag_safetensors_index index;
    struct bag_problem problem;
    char *copy = quoted_copy(text, strlen(text));
    assert_false(bag_safetensors_index_parse(copy, strlen(text), &index, &problem));
    free(copy);
    assert_string_equal(problem.text, sentence);
    assert_int_equal(problem.kind, BAG_ERROR_FILE);
    assert_null(index.tree);
}

TEST(rejects_other_indexes)
{
    static const char map[] = "the index must be an object with 'weight_map', an object of the "
                              "tensors' files";
    static const char name[] = "tensor 'a': its file must be a name in the folder of the index, "
                               "without '/'";
    reject_index("[]", map);
    reject_index("{}", map);
    reject_index("{'weight_map': []}", map);
    reject_index("{", "line 1, column 2: the text ends too early");
    reject_index("{'weight_map': {'a': 1}}", name);
    reject_index("{'weight_map': {'a': ''}}", name);
    reject_index("{'weight_map': {'a': '../x'}}", name);
    reject_index("{'weight_map': {'a': '..'}}", name);
    reject_index("{'weight_map': {'a': '.'}}", name);
}
