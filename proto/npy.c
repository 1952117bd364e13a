/* Parses the header of an .npy file: magic, version, length, the Python dictionary and the element
 * type; see formats.h. */
#include "formats.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files marked '=' and tables are little");

/* ---- the frame ------------------------------------------------------------------------------- */

#define MAGIC       "\x93NUMPY"
#define MAGIC_BYTES 6

/* The position and the size of the dictionary's text in the file. */
struct frame {
    size_t text_offset;
    size_t text_bytes;
};

#define PICKLE                                                                                  \
    "a pickle: export what torch.save wrote with proto/clients/python/bagserve_export.py, and " \
    "save an array with numpy.save"
#define EXPORT "export it with proto/clients/python/bagserve_export.py"
#define SAVE   "save its array with numpy.save"
#define UNPACK "unpack it first"
#define COPY   "copy or download the file again"

/* The first bytes of other kinds of files, and what to do with them. */
static const struct {
    const char *magic, *what;
} others[] = {
    {"version https://git-lfs", "a pointer of Git LFS, not the file itself: run git lfs pull"},
    {"/annex/objects/", "a pointer of git-annex, not the file itself: run git annex get"},
    {"outs:\n- md5:", "a pointer of DVC, not the file itself: run dvc pull"},
    {"<!DOCTYPE", "an HTML page, such as the error of a download: " COPY},
    {"<!doctype", "an HTML page, such as the error of a download: " COPY},
    {"<html", "an HTML page, such as the error of a download: " COPY},
    {"<HTML", "an HTML page, such as the error of a download: " COPY},
    {"<?xml", "an XML document, such as the error of an object store: " COPY},
    {MAGIC "\1", "an .npy file: its name must end with .npy"},
    {MAGIC "\2", "an .npy file: its name must end with .npy"},
    {MAGIC "\3", "an .npy file: its name must end with .npy"},
    {"PK\3\4", "a zip archive: name an .npz file so, and export what torch.save wrote with "
               "proto/clients/python/bagserve_export.py"},
    {"\x80\2", "a pickle, as older versions of torch.save write: " EXPORT},
    {"\x80\3", PICKLE},
    {"\x80\4", PICKLE},
    {"\x80\5", PICKLE},
    {"\x89HDF", "an HDF5 file: " SAVE},
    {"MATLAB 5.0 MAT", "a MATLAB file: " SAVE},
    {"PAR1", "a Parquet file: save its column with numpy.save"},
    {"ARROW1", "an Arrow file: save its column with numpy.save"},
    {"FEA1", "a Feather file: save its column with numpy.save"},
    {"Obj\1", "an Avro file: save its column with numpy.save"},
    {"SQLite format 3", "an SQLite database: save its column with numpy.save"},
    {"GGUF", "a GGUF file of llama.cpp: save its tensor with numpy.save"},
    {"\x1f\x8b", "one compressed by gzip: " UNPACK},
    {"\x28\xb5\x2f\xfd", "one compressed by zstd: " UNPACK},
    {"\xfd"
     "7zXZ",
     "one compressed by xz: " UNPACK},
    {"BZh", "one compressed by bzip2: " UNPACK},
    {"\4\"M\x18", "one compressed by lz4: " UNPACK},
    {"7z\xbc\xaf\x27\x1c", "a 7z archive: " UNPACK},
};

/* The position of the word that marks a tar archive. */
#define TAR_MAGIC_AT 257

/* The number of certain bytes that tell a kind of files from numbers without a header. */
#define CERTAIN_BYTES 7

/* Returns whether all bytes are printable ASCII or white space. */
static bool is_text(const unsigned char *bytes, size_t count)
{
    size_t i = 0;
    while (i < count &&
           ((bytes[i] >= ' ' && bytes[i] < 0x7f) || (bytes[i] && strchr("\t\r\n", bytes[i]))))
        i++;
    return i == count;
}

const char *bag_file_kind(const void *data, size_t count, bool is_raw)
{
    const unsigned char *bytes = data;
    size_t known = count < BAG_NPY_PREAMBLE_BYTES ? count : BAG_NPY_PREAMBLE_BYTES;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t magic_bytes = strlen(others[i].magic);
        if (count >= magic_bytes && memcmp(bytes, others[i].magic, magic_bytes) == 0 &&
            (!is_raw || magic_bytes >= CERTAIN_BYTES))
            return others[i].what;
    }
    if (is_raw)
        return NULL;
    if (count >= TAR_MAGIC_AT + 5 && memcmp(bytes + TAR_MAGIC_AT, "ustar", 5) == 0)
        return "a tar archive: " UNPACK;
    if (count > 9 && bytes[8] == '{' && (bytes[9] == '"' || bytes[9] == '}') && bytes[7] == 0)
        return "a safetensors file: its name must end with .safetensors";
    return is_text(bytes, known)
               ? "text: read its numbers (numpy.loadtxt) and save them with numpy.save"
               : NULL;
}

/* Reads the magic, the version and the length. Returns false and sets *problem if they are invalid
 * or `count` bytes do not contain them. */
static bool read_frame(const void *data, size_t count, struct frame *frame,
                       struct bag_problem *problem)
{
    const unsigned char *bytes = data;
    size_t known = count < MAGIC_BYTES ? count : MAGIC_BYTES;
    if (count == 0 || memcmp(bytes, MAGIC, known) != 0) {
        /* Reject a file that is not .npy and name its likely kind. */
        if (count == 0)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "the file is empty; it must be an .npy file");
        const char *kind = bag_file_kind(bytes, count, false);
        if (kind)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "the file is not an .npy file; it looks like %s", kind);
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is not an .npy file: it does not begin with \\x93NUMPY");
    }
    if (count < BAG_NPY_PREAMBLE_BYTES)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is truncated: it ends after %zu bytes, inside its header",
                               count);
    /* Read the header's length, which has two bytes in version 1 and four bytes in versions 2 and
     * 3. */
    unsigned major = bytes[MAGIC_BYTES], minor = bytes[MAGIC_BYTES + 1];
    if (major < 1 || major > 3 || minor != 0)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file has .npy version %u.%u; versions 1.0, 2.0 and 3.0 are "
                               "read",
                               major, minor);
    const size_t length_bytes = major == 1 ? 2 : 4;
    frame->text_offset = MAGIC_BYTES + 2 + length_bytes;
    frame->text_bytes = (size_t)bag_read_little(bytes + MAGIC_BYTES + 2, length_bytes);
    if (frame->text_bytes > BAG_NPY_MAX_HEADER_BYTES - frame->text_offset)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the .npy header is %zu bytes long; at most %zu are read",
                               frame->text_bytes, BAG_NPY_MAX_HEADER_BYTES - frame->text_offset);
    return true;
}

size_t bag_npy_header_bytes(const void *bytes, size_t count)
{
    struct frame frame;
    struct bag_problem unused;
    return read_frame(bytes, count, &frame, &unused) ? frame.text_offset + frame.text_bytes : 0;
}

/* ---- the header: a Python dictionary of three keys ------------------------------------------- */

/* The values of the dictionary. */
struct header {
    const char *descr; /* without its quotes, in the parsed text; not NUL-terminated */
    size_t descr_bytes;
    bool fortran_order;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
};

/* The text of the dictionary, and how far it is read. */
struct cursor {
    const char *text, *at, *end;
    struct bag_problem *problem;
};

/* Reports a fault at the cursor. Returns false. */
static bool fail(const struct cursor *cursor, const char *wrong)
{
    return bag_problem_set(cursor->problem, BAG_ERROR_FILE,
                           "the .npy header is malformed at its byte %zu: %s",
                           (size_t)(cursor->at - cursor->text), wrong);
}

static void skip_space(struct cursor *cursor)
{
    cursor->at = bag_space_skip(cursor->at, cursor->end);
}

static bool next_is(const struct cursor *cursor, char byte)
{
    return cursor->at < cursor->end && *cursor->at == byte;
}

/* Consumes `byte` and the white space on both sides of it. Returns false if there is another
 * byte. */
static bool take(struct cursor *cursor, char byte)
{
    skip_space(cursor);
    if (!next_is(cursor, byte))
        return false;
    cursor->at++;
    skip_space(cursor);
    return true;
}

/* Consumes the word if the text continues with it, otherwise nothing. */
static bool take_word(struct cursor *cursor, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(cursor->end - cursor->at) < bytes || memcmp(cursor->at, word, bytes) != 0)
        return false;
    cursor->at += bytes;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Reads a string in either kind of quotes. The headers of plain arrays never contain escapes. */
static bool read_string(struct cursor *cursor, const char **string, size_t *bytes)
{
    if (!next_is(cursor, '\'') && !next_is(cursor, '"'))
        return fail(cursor, "expected a quoted string");
    char quote = *cursor->at++;
    const char *start = cursor->at;
    for (; cursor->at < cursor->end; cursor->at++) {
        if (*cursor->at == quote) {
            *string = start;
            *bytes = (size_t)(cursor->at++ - start);
            return true;
        }
        if (*cursor->at == '\\' || (unsigned char)*cursor->at < ' ')
            return fail(cursor, "strings must not hold escapes or control characters");
    }
    return fail(cursor, "the string is not closed");
}

static bool read_descr(struct cursor *cursor, struct header *header)
{
    if (next_is(cursor, '[') || next_is(cursor, '(') || next_is(cursor, '{'))
        return bag_problem_set(cursor->problem, BAG_ERROR_FILE,
                               "the array is structured (several fields in one element); a table "
                               "must hold plain numbers");
    return read_string(cursor, &header->descr, &header->descr_bytes);
}

static bool read_fortran_order(struct cursor *cursor, struct header *header)
{
    header->fortran_order = take_word(cursor, "True");
    return header->fortran_order || take_word(cursor, "False") ||
           fail(cursor, "'fortran_order' must be True or False");
}

static bool is_digit(const struct cursor *cursor)
{
    return cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9';
}

/* Reads a whole number from 0 to 2^63 - 1 without leading zeros. */
static bool read_dimension(struct cursor *cursor, int64_t *dimension)
{
    if (!is_digit(cursor))
        return fail(cursor, "a dimension must be a whole number from 0");
    bool leading_zero = *cursor->at == '0';
    int64_t value = 0;
    do {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *cursor->at - '0', &value))
            return fail(cursor, "the dimension passes 2^63 - 1");
        cursor->at++;
        if (leading_zero && is_digit(cursor))
            return fail(cursor, "a number must not begin with 0");
    } while (is_digit(cursor));
    if (next_is(cursor, 'L')) /* Python 2 marks long integers with L */
        cursor->at++;
    *dimension = value;
    return true;
}

/* Reads a tuple: (), (3,), (3, 4) or (3, 4,). Without its comma, (3) is a number in Python. */
static bool read_shape(struct cursor *cursor, struct header *header)
{
    bool comma = true;
    if (!take(cursor, '('))
        return fail(cursor, "'shape' must be a tuple such as (3, 4)");
    while (!next_is(cursor, ')')) {
        if (!comma)
            return fail(cursor, "',' or ')' must follow a dimension");
        if (header->rank == BAG_MAX_RANK)
            return fail(cursor, "the array has more than 32 dimensions");
        if (!read_dimension(cursor, &header->shape[header->rank++]))
            return false;
        comma = take(cursor, ',');
        skip_space(cursor);
    }
    if (header->rank == 1 && !comma)
        return fail(cursor, "a shape of one dimension must have a comma, as in (3,)");
    cursor->at++;
    return true;
}

/* ---- the dictionary -------------------------------------------------------------------------- */

/* X(name, its reader). A missing key is reported in this order. */
#define NPY_KEYS(X)                        \
    X("descr", read_descr)                 \
    X("fortran_order", read_fortran_order) \
    X("shape", read_shape)

static const struct {
    const char *name;
    bool (*read)(struct cursor *cursor, struct header *header);
} keys[] = {
#define BAG_X(name, read) {name, read},
    NPY_KEYS(BAG_X)
#undef BAG_X
};

enum { NUM_KEYS = sizeof keys / sizeof keys[0] };

/* Returns the index of a key, or NUM_KEYS if it is unknown. */
static size_t find_key(const char *name, size_t bytes)
{
    size_t key = 0;
    while (key < NUM_KEYS &&
           (strlen(keys[key].name) != bytes || memcmp(keys[key].name, name, bytes) != 0))
        key++;
    return key;
}

/* Reads a key, the colon and the value, and marks the key as seen. */
static bool read_entry(struct cursor *cursor, struct header *header, bool seen[NUM_KEYS])
{
    const char *name;
    size_t bytes;
    if (!read_string(cursor, &name, &bytes))
        return false;
    size_t key = find_key(name, bytes);
    if (key == NUM_KEYS)
        return bag_problem_set(cursor->problem, BAG_ERROR_FILE,
                               "the .npy header has the unknown key '%s'; its keys are 'descr', "
                               "'fortran_order' and 'shape'",
                               bag_quote(name, bytes).text);
    if (seen[key])
        return bag_problem_set(cursor->problem, BAG_ERROR_FILE,
                               "the .npy header has the key '%s' twice", keys[key].name);
    seen[key] = true;
    if (!take(cursor, ':'))
        return fail(cursor, "':' must follow the key");
    return keys[key].read(cursor, header);
}

/* Reads all entries. Nothing but white space may follow the closing brace. */
static bool read_dictionary(struct cursor *cursor, struct header *header, bool seen[NUM_KEYS])
{
    bool comma = true;
    if (!take(cursor, '{'))
        return fail(cursor, "a dictionary must begin here with '{'");
    while (!take(cursor, '}')) {
        if (!comma)
            return fail(cursor, "',' or '}' must follow a value");
        if (!read_entry(cursor, header, seen))
            return false;
        comma = take(cursor, ',');
    }
    return cursor->at == cursor->end || fail(cursor, "nothing may follow the dictionary");
}

/* Reads the whole text: each key exactly once, no other key, and nothing but white space after the
 * dictionary. */
static bool read_header(const char *text, size_t text_bytes, struct header *header,
                        struct bag_problem *problem)
{
    struct cursor cursor = {.text = text, .at = text, .end = text + text_bytes, .problem = problem};
    bool seen[NUM_KEYS] = {false};
    memset(header, 0, sizeof *header);
    if (!read_dictionary(&cursor, header, seen))
        return false;
    for (size_t key = 0; key < NUM_KEYS; key++)
        if (!seen[key])
            return bag_problem_set(problem, BAG_ERROR_FILE, "the .npy header has no key '%s'",
                                   keys[key].name);
    return true;
}

/* ---- the element type ------------------------------------------------------------------------ */

/* X(kind and bytes after the byte order, dtype) */
#define NPY_TYPES(X) \
    X("f2", F16)     \
    X("f4", F32)     \
    X("f8", F64)     \
    X("i1", I8)      \
    X("i2", I16)     \
    X("i4", I32)     \
    X("i8", I64)     \
    X("u1", U8)      \
    X("u2", U16)     \
    X("u4", U32)     \
    X("u8", U64)

/* X(kind, NumPy's name for such elements). These kinds are known, but cannot be pooled. */
#define NPY_REJECTED_KINDS(X) \
    X('O', "Python objects")  \
    X('b', "booleans")        \
    X('c', "complex numbers") \
    X('M', "dates")           \
    X('m', "time spans")      \
    X('S', "byte strings")    \
    X('a', "byte strings")    \
    X('U', "strings")

/* Returns the dtype of a kind with its size, such as "f4", or BAG_DTYPE_COUNT if no table has it.
 */
static enum bag_dtype find_type(const char *type, size_t bytes)
{
#define BAG_X(text, id)                                              \
    if (bytes == sizeof(text) - 1 && memcmp(type, text, bytes) == 0) \
        return BAG_##id;
    NPY_TYPES(BAG_X)
#undef BAG_X
    return BAG_DTYPE_COUNT;
}

/* Returns the bytes of one element of raw data, such as "V2". Returns 0 if the type is not raw or
 * no dtype has its size. */
static size_t raw_bytes(const char *type, size_t bytes)
{
    return bytes == 2 && type[0] == 'V' && memchr("1248", type[1], 4) ? (size_t)(type[1] - '0') : 0;
}

/* Rejects the element type and says what the elements are, if the kind is known. Returns false. */
static bool reject_type(const struct header *header, struct bag_problem *problem)
{
    struct bag_quoted descr = bag_quote(header->descr, header->descr_bytes);
    const char *what = NULL;
    switch (header->descr_bytes > 1 ? header->descr[1] : 0) {
#define BAG_X(kind, words) \
    case kind:             \
        what = words;      \
        break;
        NPY_REJECTED_KINDS(BAG_X)
#undef BAG_X
    }
    if (what)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file holds %s ('%s'); a table must hold floats of 16, 32 or 64 "
                               "bits or integers of 8 to 64",
                               what, descr.text);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "the file's elements are of the unknown type '%s'; a table must hold "
                           "floats of 16, 32 or 64 bits or integers of 8 to 64",
                           descr.text);
}

/* Resolves `descr`, which is a byte order, a kind and a size: "<f4". */
static bool resolve_type(const struct header *header, enum bag_dtype override_dtype,
                         enum bag_dtype *dtype, struct bag_problem *problem)
{
    const char *type = header->descr + 1;
    if (header->descr_bytes < 2 || !memchr("<>=|", header->descr[0], 4))
        return reject_type(header, problem);
    *dtype = find_type(type, header->descr_bytes - 1);
    bool known = *dtype != BAG_DTYPE_COUNT;
    size_t bytes = known ? bag_dtypes[*dtype].bytes : raw_bytes(type, header->descr_bytes - 1);
    if (bytes == 0)
        return reject_type(header, problem);
    if (override_dtype != BAG_DTYPE_COUNT) {
        *dtype = override_dtype;
        /* Check that the configured datatype has the size of the file's elements. */
        const struct bag_dtype_info *info = &bag_dtypes[override_dtype];
        if (info->kind == BAG_KIND_OTHER)
            return bag_problem_set(problem, BAG_ERROR_FILE, "datatype %s cannot be a table's",
                                   info->name);
        if (info->bytes == bytes)
            return true;
        return bag_problem_set(
            problem, BAG_ERROR_FILE,
            "the file's elements ('%s') have %zu bytes, but the configured datatype "
            "%s has %zu",
            bag_quote(header->descr, header->descr_bytes).text, bytes, info->name, info->bytes);
    }
    return known ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "the file holds raw elements ('%s') without a type: name it in the "
                           "configuration, as in \"datatype\": \"BF16\"",
                           bag_quote(header->descr, header->descr_bytes).text);
}

/* ---- files ----------------------------------------------------------------------------------- */

bool bag_npy_parse(const void *bytes, size_t count, enum bag_dtype override_dtype,
                   struct bag_npy *npy, struct bag_problem *problem)
{
    struct frame frame;
    struct header header;
    enum bag_dtype dtype = BAG_DTYPE_COUNT;
    if (!read_frame(bytes, count, &frame, problem))
        return false;
    size_t data_offset = frame.text_offset + frame.text_bytes;
    if (count < data_offset)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is truncated: its header should end at byte %zu, but the "
                               "file ends after %zu",
                               data_offset, count);
    const char *text = (const char *)bytes + frame.text_offset;
    if (!read_header(text, frame.text_bytes, &header, problem) ||
        !resolve_type(&header, override_dtype, &dtype, problem) ||
        !bag_npy_describe(dtype, header.rank, header.shape, data_offset, npy, problem))
        return false;
    npy->swap = header.descr[0] == '>' && bag_dtypes[dtype].bytes > 1;
    npy->fortran_order = header.fortran_order && header.rank > 1;
    if (npy->fortran_order) {
        npy->num_columns = npy->row_elements;
        npy->column_elements = npy->column_stride = (size_t)npy->shape[0];
    }
    return true;
}
