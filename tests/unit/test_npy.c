/* .npy headers made by hand, byte by byte: what is read, and how the rest is rejected. */
#include "proto/formats.h"
#include "testing.h"

struct file {
    unsigned char bytes[BAG_NPY_MAX_HEADER_BYTES + 64];
    size_t count;
};

/* A file of version `major`.0 that ends with its header. */
static void make(struct file *file, unsigned major, const char *text)
{
    size_t length = strlen(text), length_bytes = major == 1 ? 2 : 4;
    memcpy(file->bytes, "\x93NUMPY", 6);
    file->bytes[6] = (unsigned char)major;
    file->bytes[7] = 0;
    for (size_t i = 0; i < length_bytes; i++)
        file->bytes[8 + i] = (unsigned char)(length >> 8 * i);
    memcpy(file->bytes + 8 + length_bytes, text, length);
    file->count = 8 + length_bytes + length;
}

/* Parses a copy of just that size, so that a sanitizer sees a read beyond it. */
static bool parse_copy(const unsigned char *bytes, size_t count, enum bag_dtype override_dtype,
                       struct bag_npy *npy, struct bag_problem *problem)
{
    unsigned char *copy = malloc(count ? count : 1);
    memset(problem, 0, sizeof *problem);
    memcpy(copy, bytes, count);
    bool ok = bag_npy_parse(copy, count, override_dtype, npy, problem);
    free(copy);
    return ok;
}

static struct bag_npy accept_as(const char *text, enum bag_dtype override_dtype)
{
    static struct file file;
    struct bag_npy npy;
    struct bag_problem problem;
    make(&file, 1, text);
    if (!parse_copy(file.bytes, file.count, override_dtype, &npy, &problem))
        fail_msg("%s: %s", text, problem.text);
    assert_int_equal(npy.data_offset, file.count);
    return npy;
}

static struct bag_npy accept(const char *text)
{
    return accept_as(text, BAG_DTYPE_COUNT);
}

static void reject_as(const char *text, enum bag_dtype override_dtype, const char *sentence)
{
    static struct file file;
    struct bag_npy npy;
    struct bag_problem problem;
    make(&file, 1, text);
    if (parse_copy(file.bytes, file.count, override_dtype, &npy, &problem))
        fail_msg("accepted: %s", text);
    assert_string_equal(problem.text, sentence);
    assert_int_equal(problem.kind, BAG_ERROR_FILE);
}

static void reject(const char *text, const char *sentence)
{
    reject_as(text, BAG_DTYPE_COUNT, sentence);
}

#define HEADER(descr, order, shape) \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"

/* ---- what is read ---------------------------------------------------------------------------- */

TEST(reads_what_numpy_writes)
{
    struct bag_npy npy = accept(HEADER("<f4", "False", "(3, 4)") "                  \n");
    assert_int_equal(npy.dtype, BAG_F32);
    assert_false(npy.swap);
    assert_false(npy.fortran_order);
    assert_int_equal(npy.rank, 2);
    assert_int_equal(npy.shape[0], 3);
    assert_int_equal(npy.shape[1], 4);
    assert_int_equal(npy.count, 12);
    assert_int_equal(npy.row_elements, 4);
    assert_int_equal(npy.data_bytes, 48);
    assert_int_equal(npy.num_columns, 1);
    assert_int_equal(npy.column_elements, 12);
    assert_true(bag_npy_is_plain(&npy));
}

TEST(reads_every_version)
{
    static struct file file;
    for (unsigned major = 1; major <= 3; major++) {
        struct bag_npy npy;
        struct bag_problem problem;
        make(&file, major, HEADER("<i8", "False", "(7,)"));
        assert_int_equal(bag_npy_header_bytes(file.bytes, BAG_NPY_PREAMBLE_BYTES), file.count);
        assert_true(parse_copy(file.bytes, file.count, BAG_DTYPE_COUNT, &npy, &problem));
        assert_int_equal(npy.dtype, BAG_I64);
        assert_int_equal(npy.data_offset, file.count);
    }
}

TEST(reads_every_type_in_every_byte_order)
{
    static const struct {
        const char *type;
        enum bag_dtype dtype;
    } types[] = {{"f2", BAG_F16}, {"f4", BAG_F32}, {"f8", BAG_F64}, {"i1", BAG_I8},
                 {"i2", BAG_I16}, {"i4", BAG_I32}, {"i8", BAG_I64}, {"u1", BAG_U8},
                 {"u2", BAG_U16}, {"u4", BAG_U32}, {"u8", BAG_U64}};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        for (const char *order = "<>=|"; *order; order++) {
            char text[128];
            snprintf(text, sizeof text, "{'descr': '%c%s', 'fortran_order': False, 'shape': (2,)}",
                     *order, types[i].type);
            struct bag_npy npy = accept(text);
            assert_int_equal(npy.dtype, types[i].dtype);
            assert_int_equal(npy.swap, *order == '>' && types[i].type[1] != '1');
            assert_int_equal(npy.data_bytes, 2 * (types[i].type[1] - '0'));
        }
    }
}

TEST(takes_any_way_of_writing_the_dictionary)
{
    static const char *const texts[] = {
        "{'descr':'<f4','fortran_order':False,'shape':(3,4)}",
        "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (3, 4)}",
        "{'shape': (3, 4,), \"fortran_order\": False, 'descr': '<f4',}",
        " \t\r\n{ 'fortran_order' : False , 'descr' : '<f4' , 'shape' : ( 3 , 4 , ) , } \n\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L)}"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct bag_npy npy = accept(texts[i]);
        assert_int_equal(npy.dtype, BAG_F32);
        assert_int_equal(npy.rank, 2);
        assert_int_equal(npy.shape[0], 3);
        assert_int_equal(npy.shape[1], 4);
    }
}

TEST(reads_shapes_of_every_rank)
{
    struct bag_npy npy = accept(HEADER("<f4", "True", "()"));
    assert_int_equal(npy.rank, 0);
    assert_int_equal(npy.count, 1);
    npy = accept(HEADER("<f4", "True", "(5,)"));
    assert_int_equal(npy.rank, 1);
    assert_false(npy.fortran_order);
    assert_int_equal(npy.row_elements, 1);
    npy = accept(HEADER("<f4", "True", "(5, 3, 2)"));
    assert_true(npy.fortran_order);
    assert_false(bag_npy_is_plain(&npy));
    assert_int_equal(npy.num_columns, 6);
    assert_int_equal(npy.column_elements, 5);
    npy = accept(HEADER("<f4", "False", "(0, 64)"));
    assert_int_equal(npy.count, 0);
    assert_int_equal(npy.data_bytes, 0);
    assert_int_equal(npy.row_elements, 64);
    npy = accept(HEADER("<f4", "False",
                        "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2)"));
    assert_int_equal(npy.rank, 32);
    assert_int_equal(npy.shape[31], 2);
}

TEST(takes_a_configured_type_of_the_same_size)
{
    assert_int_equal(accept_as(HEADER("<u2", "False", "(2,)"), BAG_BF16).dtype, BAG_BF16);
    assert_int_equal(accept_as(HEADER("<i2", "False", "(2,)"), BAG_BF16).dtype, BAG_BF16);
    assert_int_equal(accept_as(HEADER("|V2", "False", "(2,)"), BAG_BF16).dtype, BAG_BF16);
    assert_int_equal(accept_as(HEADER("<V2", "False", "(2,)"), BAG_BF16).dtype, BAG_BF16);
    assert_false(accept_as(HEADER("|V2", "False", "(2,)"), BAG_BF16).swap);
    assert_true(accept_as(HEADER(">u2", "False", "(2,)"), BAG_BF16).swap);
    reject_as(HEADER("<f4", "False", "(2,)"), BAG_BF16,
              "the file's elements ('<f4') have 4 bytes, but the configured datatype BF16 has 2");
    reject_as(HEADER("|V4", "False", "(2,)"), BAG_BF16,
              "the file's elements ('|V4') have 4 bytes, but the configured datatype BF16 has 2");
    reject_as(HEADER("|u1", "False", "(2,)"), BAG_BOOL, "datatype BOOL cannot be a table's");
    reject_as(HEADER("|u1", "False", "(2,)"), BAG_BYTES, "datatype BYTES cannot be a table's");
}

/* ---- what is rejected ------------------------------------------------------------------------ */

TEST(rejects_other_types_by_name)
{
    static const struct {
        const char *descr, *what;
    } types[] = {{"|O", "Python objects"}, {"|b1", "booleans"},      {"<c8", "complex numbers"},
                 {"<M8[ns]", "dates"},     {"<m8[s]", "time spans"}, {"|S3", "byte strings"},
                 {"|a3", "byte strings"},  {"<U1", "strings"}};
    static const char *const unknown[] = {"",    "<",   "f4",  "<f1",  "<f16", "<f44", "<x4",
                                          "<i3", "|V3", "!f4", "<f4 ", "|V",   "|V22"};
    char text[128], sentence[256];
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (2,)}",
                 types[i].descr);
        snprintf(sentence, sizeof sentence,
                 "the file holds %s ('%s'); a table must hold floats of 16, 32 or 64 bits or "
                 "integers of 8 to 64",
                 types[i].what, types[i].descr);
        reject(text, sentence);
    }
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (2,)}",
                 unknown[i]);
        snprintf(sentence, sizeof sentence,
                 "the file's elements are of the unknown type '%s'; a table must hold floats of "
                 "16, 32 or 64 bits or integers of 8 to 64",
                 unknown[i]);
        reject(text, sentence);
    }
    reject(HEADER("|V2", "False", "(2,)"),
           "the file holds raw elements ('|V2') without a type: name it in the configuration, as "
           "in \"datatype\": \"BF16\"");
    reject("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
           "the array is structured (several fields in one element); a table must hold plain "
           "numbers");
}

TEST(rejects_wrong_keys)
{
    reject("{}", "the .npy header has no key 'descr'");
    reject("{'descr': '<f4', 'shape': (2,)}", "the .npy header has no key 'fortran_order'");
    reject("{'descr': '<f4', 'fortran_order': False}", "the .npy header has no key 'shape'");
    reject("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'sh\xc3\xa4pe': 1}",
           "the .npy header has the unknown key 'sh\xc3\xa4pe'; its keys are 'descr', "
           "'fortran_order' and 'shape'");
    reject("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
           "the .npy header has the key 'descr' twice");
    reject("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), \"shape\": (2,)}",
           "the .npy header has the key 'shape' twice");
}

/* `at` is the byte of the finding. */
static const struct {
    const char *text;
    int at;
    const char *wrong;
} malformed[] = {{"   ", 3, "a dictionary must begin here with '{'"},
                 {"[]", 0, "a dictionary must begin here with '{'"},
                 {"{ ", 2, "expected a quoted string"},
                 {"{,}", 1, "expected a quoted string"},
                 {"{descr: 1}", 1, "expected a quoted string"},
                 {"{'descr", 7, "the string is not closed"},
                 {"{'descr\": <f4", 13, "the string is not closed"},
                 {"{'d\\x65scr'}", 3, "strings must not hold escapes or control characters"},
                 {"{'d\nscr'}", 3, "strings must not hold escapes or control characters"},
                 {"{'descr' '<f4'}", 9, "':' must follow the key"},
                 {"{'descr': <f4}", 10, "expected a quoted string"},
                 {"{'descr': '<f4' 'shape': (2,)}", 16, "',' or '}' must follow a value"},
                 {"{'descr': '<f4',, }", 16, "expected a quoted string"},
                 {"{'fortran_order': true}", 18, "'fortran_order' must be True or False"},
                 {"{'fortran_order': 0}", 18, "'fortran_order' must be True or False"},
                 {"{'fortran_order': Fals", 18, "'fortran_order' must be True or False"},
                 {"{'fortran_order': Falsey}", 23, "',' or '}' must follow a value"},
                 {"{'shape': [2]}", 10, "'shape' must be a tuple such as (3, 4)"},
                 {"{'shape': 2}", 10, "'shape' must be a tuple such as (3, 4)"},
                 {"{'shape': (2)}", 12, "a shape of one dimension must have a comma, as in (3,)"},
                 {"{'shape': (2 3)}", 13, "',' or ')' must follow a dimension"},
                 {"{'shape': (2, -3)}", 14, "a dimension must be a whole number from 0"},
                 {"{'shape': (2, 3.5)}", 15, "',' or ')' must follow a dimension"},
                 {"{'shape': (2,,)}", 13, "a dimension must be a whole number from 0"},
                 {"{'shape': (,)}", 11, "a dimension must be a whole number from 0"},
                 {"{'shape': (02,)}", 12, "a number must not begin with 0"},
                 {"{'shape': (2LL,)}", 13, "',' or ')' must follow a dimension"},
                 {"{'shape': (9223372036854775808,)}", 29, "the dimension passes 2^63 - 1"},
                 {"{'shape': (92233720368547758070,)}", 30, "the dimension passes 2^63 - 1"},
                 {"{'shape': (2, 3", 15, "',' or ')' must follow a dimension"},
                 {"{'shape': (2, ", 14, "a dimension must be a whole number from 0"},
                 {"{'shape': (2,)", 14, "',' or '}' must follow a value"},
                 {"{'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}",
                  75, "the array has more than 32 dimensions"},
                 {HEADER("<f4", "False", "(2,)") " x", 58, "nothing may follow the dictionary"},
                 {HEADER("<f4", "False", "(2,)") "{}", 57, "nothing may follow the dictionary"}};

TEST(rejects_malformed_dictionaries_at_their_byte)
{
    char sentence[256];
    for (size_t i = 0; i < COUNT_OF(malformed); i++) {
        snprintf(sentence, sizeof sentence, "the .npy header is malformed at its byte %d: %s",
                 malformed[i].at, malformed[i].wrong);
        reject(malformed[i].text, sentence);
    }
}

TEST(rejects_a_nul_after_the_dictionary)
{
    static struct file file;
    struct bag_npy npy;
    struct bag_problem problem;
    make(&file, 1, HEADER("<f4", "False", "(2,)") " ");
    file.bytes[file.count - 1] = 0;
    assert_false(parse_copy(file.bytes, file.count, BAG_DTYPE_COUNT, &npy, &problem));
    assert_non_null(strstr(problem.text, "nothing may follow the dictionary"));
}

TEST(rejects_shapes_whose_size_overflows)
{
    const char *sentence = "the shape is too large: the bytes of its elements "
                           "pass 2^63 - 1";
    reject(HEADER("<f8", "False", "(4294967296, 4294967296)"), sentence);
    reject(HEADER("<f8", "False", "(9223372036854775807,)"), sentence);
    reject(HEADER("|u1", "False", "(9223372036854775807,)"), sentence); /* + the header */
    reject(HEADER("<f4", "False", "(0, 9223372036854775807, 9223372036854775807)"), sentence);
    reject(HEADER("<f4", "True", "(9223372036854775807, 0, 9223372036854775807)"), sentence);
    struct bag_npy npy = accept(HEADER("|u1", "False", "(9223372036854775000,)"));
    assert_true(npy.data_bytes == 9223372036854775000u);
}

TEST(rejects_every_truncation)
{
    static struct file file;
    struct bag_npy npy;
    struct bag_problem problem;
    char sentence[160];
    for (unsigned major = 1; major <= 3; major++) {
        make(&file, major, HEADER("<f4", "False", "(3, 4)"));
        for (size_t count = 0; count < file.count; count++) {
            assert_false(parse_copy(file.bytes, count, BAG_DTYPE_COUNT, &npy, &problem));
            if (count == 0)
                strcpy(sentence, "the file is empty; it must be an .npy file");
            else if (count < 12)
                snprintf(sentence, sizeof sentence,
                         "the file is truncated: it ends after %zu bytes, inside its header",
                         count);
            else
                snprintf(sentence, sizeof sentence,
                         "the file is truncated: its header should end at byte %zu, but the file "
                         "ends after %zu",
                         file.count, count);
            assert_string_equal(problem.text, sentence);
            assert_int_equal(bag_npy_header_bytes(file.bytes, count), count < 12 ? 0 : file.count);
        }
    }
}

static void reject_bytes(const struct file *file, const char *sentence)
{
    struct bag_npy npy;
    struct bag_problem problem;
    assert_int_equal(bag_npy_header_bytes(file->bytes, file->count), 0);
    assert_false(parse_copy(file->bytes, file->count, BAG_DTYPE_COUNT, &npy, &problem));
    assert_string_equal(problem.text, sentence);
}

TEST(rejects_other_frames)
{
    static struct file file;
    for (int byte = 0; byte < 6; byte++) {
        make(&file, 1, HEADER("<f4", "False", "(3, 4)"));
        file.bytes[byte] ^= 1;
        reject_bytes(&file, "the file is not an .npy file: it does not begin with \\x93NUMPY");
    }
    make(&file, 1, HEADER("<f4", "False", "(3, 4)"));
    memcpy(file.bytes, "PK\3\4", 4);
    reject_bytes(
        &file, "the file is not an .npy file; it looks like a zip archive: name an .npz file "
               "so, and export what torch.save wrote with proto/clients/python/bagserve_export.py");
    make(&file, 4, HEADER("<f4", "False", "(3, 4)"));
    reject_bytes(&file, "the file has .npy version 4.0; versions 1.0, 2.0 and 3.0 are read");
    make(&file, 0, HEADER("<f4", "False", "(3, 4)"));
    reject_bytes(&file, "the file has .npy version 0.0; versions 1.0, 2.0 and 3.0 are read");
    make(&file, 1, HEADER("<f4", "False", "(3, 4)"));
    file.bytes[7] = 1;
    reject_bytes(&file, "the file has .npy version 1.1; versions 1.0, 2.0 and 3.0 are read");
    make(&file, 2, HEADER("<f4", "False", "(3, 4)"));
    file.bytes[11] = 0x80;
    reject_bytes(&file, "the .npy header is 2147483707 bytes long; at most 65524 are read");
}

/* Numbers without a header may begin with a short mark by chance. */
TEST(tells_kinds_of_files_apart)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *kind, *raw;
    } cases[] = {{"version https://git-lfs.github.com/spec/v1\n", 43, "a pointer of Git LFS",
                  "a pointer of Git LFS"},
                 {"<!DOCTYPE html><html>", 21, "an HTML page", "an HTML page"},
                 {"\x93NUMPY\1\0", 8, "an .npy file", "an .npy file"},
                 {"PK\3\4\0\0\0\0", 8, "a zip archive", NULL},
                 {"GGUF\3\0\0\0", 8, "a GGUF file", NULL},
                 {"\x1f\x8b\x08", 3, "one compressed by gzip", NULL},
                 {"\x40\0\0\0\0\0\0\0{\"a\":", 13, "a safetensors file", NULL},
                 {"1.5,2.5\n", 8, "text", NULL},
                 {"PK\3", 3, NULL, NULL},
                 {"\0\0\0\0", 4, NULL, NULL}};
    for (size_t i = 0; i < COUNT_OF(cases) * 2; i++) {
        const char *want = i % 2 ? cases[i / 2].raw : cases[i / 2].kind;
        const char *kind = bag_file_kind(cases[i / 2].bytes, cases[i / 2].count, i % 2);
        assert_int_equal(kind != NULL, want != NULL);
        if (want)
            assert_memory_equal(kind, want, strlen(want));
    }
}

TEST(reads_the_longest_header)
{
    static struct file file;
    static char text[BAG_NPY_MAX_HEADER_BYTES];
    struct bag_npy npy;
    struct bag_problem problem;
    memset(text, ' ', sizeof text);
    memcpy(text, HEADER("<f4", "False", "(3, 4)"), strlen(HEADER("<f4", "False", "(3, 4)")));
    text[BAG_NPY_MAX_HEADER_BYTES - 12] = '\0';
    make(&file, 2, text);
    assert_int_equal(bag_npy_header_bytes(file.bytes, 12), BAG_NPY_MAX_HEADER_BYTES);
    assert_true(parse_copy(file.bytes, file.count, BAG_DTYPE_COUNT, &npy, &problem));
    text[BAG_NPY_MAX_HEADER_BYTES - 12] = ' ';
    text[BAG_NPY_MAX_HEADER_BYTES - 11] = '\0';
    make(&file, 2, text);
    reject_bytes(&file, "the .npy header is 65525 bytes long; at most 65524 are read");
}
