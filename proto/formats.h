/* Parsers and writers of file formats: tables, journals of updates, and reports of conversions. The
 * caller reads and writes the files; these functions work on bytes in memory. */
#pragma once

#include "kernels/table.h"
#include "problem.h"
#include "text.h"

#include <stddef.h>
#include <string.h>

/* Return and write a number of 1 to 8 bytes, at any alignment. All formats are little-endian, as
 * this machine is (npy.c). */
static inline uint64_t bag_read_little(const void *at, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    return value;
}
static inline void bag_write_little(void *out, uint64_t value, size_t bytes)
{
    memcpy(out, &value, bytes);
}

/* ---- .npy files (npy.c, npy_place.c) --------------------------------------------------------- */

/* NumPy's format, versions 1.0 to 3.0. The header is parsed into a description, which then tells
 * how parts of the file are placed into a table. Nothing is allocated. */

/* Maximum size of a header. NumPy's own limit is 10,000 characters. */
#define BAG_NPY_MAX_HEADER_BYTES (64 * 1024)

/* Number of bytes from which the length of the header is known. No valid file is shorter. */
#define BAG_NPY_PREAMBLE_BYTES 12

/* The description of an array in a file. Elements are stored column by column: a column-major file
 * has one column for each element of a row, every other file counts as a single column of all
 * elements. */
struct bag_npy {
    enum bag_dtype dtype;
    bool swap;          /* elements are big-endian */
    bool fortran_order; /* column-major, and rank above 1 */
    uint32_t rank;      /* 0: a scalar */
    int64_t shape[BAG_MAX_RANK];
    size_t count;           /* product of the shape; does not overflow, nor does data_bytes */
    size_t row_elements;    /* product of the dimensions after the first, zeros included */
    size_t num_columns;     /* columns in the file */
    size_t column_elements; /* elements of each column */
    size_t column_stride;   /* elements from the start of one column to that of the next */
    size_t data_offset;     /* position of the first element in the file */
    size_t data_bytes;
};

/* Number of bytes at the start of a file from which its kind is known. */
#define BAG_FILE_KIND_BYTES 512

/* Returns the kind of a file of another format and what to do with it ("a pickle: ..."), judged by
 * its first bytes, of which BAG_FILE_KIND_BYTES suffice. `is_raw` says that the file should have
 * numbers without a header, which may begin with nearly any bytes. Returns NULL if the format is
 * unknown. */
const char *bag_file_kind(const void *bytes, size_t count, bool is_raw);

/* Returns the number of bytes that bag_npy_parse needs: magic, version, header length and header.
 * `count` is at least BAG_NPY_PREAMBLE_BYTES, or the size of a shorter file. Returns 0 if these
 * bytes are already invalid; bag_npy_parse then reports how. */
size_t bag_npy_header_bytes(const void *bytes, size_t count);

/* Parses the header from the first `count` bytes of the file. `override_dtype` is the configured
 * dtype, or BAG_DTYPE_COUNT to use that of the file. It is for dtypes that the format cannot name
 * (bf16 is stored as '<u2', '<i2' or '|V2') and must have the same element size. Returns false and
 * sets *problem if the header is invalid, or the array contains objects, strings, structures, bools
 * or complex numbers. */
bool bag_npy_parse(const void *bytes, size_t count, enum bag_dtype override_dtype,
                   struct bag_npy *npy, struct bag_problem *problem);

/* Describes elements of another format that are in C order and little-endian. `shape` has `rank`
 * dimensions (at most BAG_MAX_RANK), none of them negative. Returns false and sets *problem if the
 * shape is too large. */
bool bag_npy_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t data_offset,
                      struct bag_npy *npy, struct bag_problem *problem);

/* Returns whether the elements are stored in the order and byte order of a table, so that the file
 * can be read directly into it. */
bool bag_npy_is_plain(const struct bag_npy *npy);

/* Restricts the description to these rows, which must exist. */
void bag_npy_slice(struct bag_npy *npy, size_t first_row, size_t num_rows);

/* A part of the file: the elements [first, first + count) of the columns [first_column,
 * first_column + num_columns). */
struct bag_npy_tile {
    size_t first_column, num_columns;
    size_t first, count;
};

/* Copies a tile to its position in the row-major table `rows`, in the machine's byte order. `block`
 * contains the tile column by column, at any alignment. Several threads may place distinct tiles at
 * once. */
void bag_npy_place(const struct bag_npy *npy, struct bag_npy_tile tile, const void *block,
                   void *rows);

/* ---- .npz files (npz.c) ---------------------------------------------------------------------- */

/* .npz files: zip archives of .npy files, as numpy.savez writes them, with stored members.
 *
 * A zip archive is read from its end. The last bytes contain the position of its directory, the
 * directory contains the position of each member's own header, and the member follows its header.
 * The large form (zip64) is supported. A compressed member is rejected only when it is requested.
 * The reader of a member compares its CRC-32.
 *
 * Nothing is allocated. */

/* Number of bytes at the end of the file from which the directory is found. A shorter file is
 * passed whole. */
#define BAG_NPZ_TAIL_BYTES (22 + 65535 + 20 + 56)

/* Maximum size of a directory. */
#define BAG_NPZ_MAX_DIRECTORY_BYTES ((size_t)100 * 1000 * 1000)

/* Number of bytes of a member's own header that bag_npz_locate needs. */
#define BAG_NPZ_MEMBER_HEADER_BYTES 30

struct bag_npz {
    uint64_t directory_offset; /* position in the file */
    size_t directory_bytes;
    uint64_t num_members;
    const unsigned char *directory; /* borrowed; set by bag_npz_read_directory */
};

struct bag_npz_member {
    struct bag_text name;   /* without .npy; in the directory */
    uint64_t header_offset; /* position of the member's own header in the file */
    uint64_t bytes;         /* as stored */
    uint32_t crc32;         /* CRC-32 of the stored bytes */
    unsigned method;        /* 0: stored */
    bool encrypted;
};

/* Finds the directory in the last `count` bytes of the file, and sets its offset, size and number
 * of members. Returns false and sets *problem if there is none. */
bool bag_npz_find_directory(const void *tail, size_t count, uint64_t file_bytes,
                            struct bag_npz *npz, struct bag_problem *problem);

/* Checks the directory. `directory` has npz->directory_bytes bytes and must outlive *npz. Returns
 * false and sets *problem (FILE) if an entry is damaged or the number of members is wrong. */
bool bag_npz_read_directory(struct bag_npz *npz, const void *directory,
                            struct bag_problem *problem);

/* Returns the members one by one, in the directory's order. *cursor is 0 before the first call.
 * Returns false after the last member. */
bool bag_npz_next(const struct bag_npz *npz, size_t *cursor, struct bag_npz_member *member);

/* Returns the number of members with that name, and sets *member to the first of them. */
size_t bag_npz_find(const struct bag_npz *npz, const char *name, struct bag_npz_member *member);

/* Returns the contribution of a part of a member to its CRC-32. `bytes_behind` is the number of
 * bytes that follow the part. The CRC-32 of the member is the XOR of the contributions of all
 * parts, in any order. */
uint32_t bag_npz_crc32_part(const void *bytes, size_t count, uint64_t bytes_behind);

/* Sets *offset to the position of the member's bytes in the file. `header` has the first
 * BAG_NPZ_MEMBER_HEADER_BYTES of the member's own header. Returns false and sets *problem if the
 * member is compressed, encrypted, or not inside the file. */
bool bag_npz_locate(const struct bag_npz *npz, const struct bag_npz_member *member,
                    const void *header, uint64_t *offset, struct bag_problem *problem);

/* ---- safetensors files (safetensors.c) ------------------------------------------------------- */

/* The header of a safetensors file, which gives the position of each tensor, and the index of a
 * table in several files.
 *
 * A file consists of 8 bytes with the header's length (little-endian), the header and the data. The
 * header is a JSON object that maps tensor names to {"dtype", "shape", "data_offsets"}. As the
 * format requires, the tensors fill the data without holes or overlaps up to the end of the file,
 * and no name occurs twice. A tensor of a type that cannot be pooled is rejected only when it is
 * requested.
 *
 * If the bytes (U8) of a tensor named "values" are quantised rows, __metadata__ may contain
 * "row_format", a name of BAG_ROW_FORMATS in kernels/table.h, and "row_elements", a decimal number.
 */

struct cJSON; /* known only to the parser */

/* Maximum size of a header, and of an index. */
#define BAG_SAFETENSORS_MAX_HEADER_BYTES ((size_t)100 * 1000 * 1000)

/* Number of bytes from which the length of the header is known. */
#define BAG_SAFETENSORS_PREAMBLE_BYTES 8

struct bag_safetensors {
    struct cJSON *tree;           /* the parsed header; owned */
    const struct cJSON *metadata; /* a node of the tree; NULL: none. It is looked up once, as it may
                                     be the last member */
    size_t data_offset;           /* position of the first tensor in the file */
};

/* One tensor of a file, as a table's elements. */
struct bag_safetensors_tensor {
    const char *type;               /* as in the header; valid as long as the bag_safetensors */
    enum bag_row_format row_format; /* for F8_E4M3 and F8_E5M2, whose dtype is U8, and as
                                       __metadata__ says; otherwise PLAIN */
    size_t row_elements;            /* elements of a quantised row; 0 if __metadata__ has none */
    struct bag_npy layout;          /* C order, little-endian; rank 0 is possible */
};

/* One member of __metadata__. */
struct bag_safetensors_note {
    const char *key, *value;
};

/* Returns the number of bytes that bag_safetensors_parse needs. `count` is at least
 * BAG_SAFETENSORS_PREAMBLE_BYTES, or the size of a shorter file. Returns 0 if the length is already
 * invalid; the parser then reports how. */
size_t bag_safetensors_header_bytes(const void *bytes, size_t count);

/* Parses the header from the first `count` bytes of a file of `file_bytes`. On success the caller
 * frees *file with bag_safetensors_free. Returns false and sets *problem, which names the tensor,
 * if the header is invalid. */
bool bag_safetensors_parse(const void *bytes, size_t count, uint64_t file_bytes,
                           struct bag_safetensors *file, struct bag_problem *problem);

/* Frees the tree of a header. A zeroed struct is allowed. */
void bag_safetensors_free(struct bag_safetensors *file);

/* Returns the names of the tensors one by one, in the header's order. *cursor is NULL before the
 * first call. Returns NULL after the last tensor. */
const char *bag_safetensors_next(const struct bag_safetensors *file, const struct cJSON **cursor);

/* Returns the tensor with that name, of any type, or NULL if there is none. */
const struct cJSON *bag_safetensors_find(const struct bag_safetensors *file, const char *name);

/* Returns the value of a key of __metadata__, valid as long as *file, or NULL if there is none. */
const char *bag_safetensors_metadata(const struct bag_safetensors *file, const char *key);

/* Returns the members of __metadata__ one by one; they are valid as long as *file. *cursor is NULL
 * before the first call. Returns false after the last member. */
bool bag_safetensors_next_note(const struct bag_safetensors *file, const struct cJSON **cursor,
                               struct bag_safetensors_note *note);

/* Describes a tensor: a result of bag_safetensors_find, or the cursor after bag_safetensors_next
 * has returned its name. Returns false and sets *problem if its type cannot be pooled or it has
 * more than BAG_MAX_RANK dimensions. */
bool bag_safetensors_describe(const struct bag_safetensors *file, const struct cJSON *item,
                              struct bag_safetensors_tensor *tensor, struct bag_problem *problem);

/* ---- writing --------------------------------------------------------------------------------- */

/* The member of a header that contains strings about the file. */
#define BAG_SAFETENSORS_METADATA "__metadata__"

/* One tensor of a file to be written. Its data follows that of the tensor before it. */
struct bag_safetensors_entry {
    const char *name, *type; /* "F32", "U8", ... */
    uint32_t rank;
    const int64_t *shape;
    uint64_t bytes;
};

/* Alignment of the data of a written file, so that it can be mapped. */
#define BAG_SAFETENSORS_ALIGNMENT ((size_t)4096)

/* Returns the type of the table's rows. It is U8 for row formats that only __metadata__ can name.
 */
const char *bag_safetensors_type(const struct bag_table *table);

/* Returns everything that precedes the data, padded with spaces. The caller frees it. Returns NULL
 * if memory is exhausted. */
char *bag_safetensors_print(const struct bag_safetensors_entry *entries, size_t count,
                            const struct bag_safetensors_note *notes, size_t num_notes,
                            size_t *header_bytes);

/* ---- files in parts -------------------------------------------------------------------------- */

/* model.safetensors.index.json: {"weight_map": {tensor: file}, ...}. */
struct bag_safetensors_index {
    struct cJSON *tree; /* owned */
};

/* Parses an index. Returns false and sets *problem if it is invalid, or names a file outside of its
 * own folder. On success the caller frees it with bag_safetensors_index_free. */
bool bag_safetensors_index_parse(const char *text, size_t bytes,
                                 struct bag_safetensors_index *index, struct bag_problem *problem);

/* Frees the tree of an index. A zeroed struct is allowed. */
void bag_safetensors_index_free(struct bag_safetensors_index *index);

/* Returns the name of the file that contains the tensor, or NULL if there is no such tensor. */
const char *bag_safetensors_index_file(const struct bag_safetensors_index *index,
                                       const char *tensor);

/* Returns the names of the tensors one by one, like bag_safetensors_next. */
const char *bag_safetensors_index_next(const struct bag_safetensors_index *index,
                                       const struct cJSON **cursor);

/* ---- the journal of updates (journal.c) ------------------------------------------------------ */

/* A journal contains updates of rows: a header that identifies the table, then one record for each
 * batch.
 *
 * All numbers are little-endian. The sizes of the header and of each record are multiples of 8
 * bytes.
 *
 *   header   "BAGROWS\n", u32 version, u32 bytes of the header, u64 first sequence,
 *            u64 elements of a row, u64 bytes of a row, u8 bytes of the model's name, of the
 *            datatype's and of the row format's, u8 keyed + 2 * bytes of the part's text, u32
 *            CRC-32 of all of the header with zeros in its place; the three names and the text;
 *            zeros
 *   record   u32 "ROWS", u32 CRC-32 of the rest of the record, u64 bytes of the record,
 *            u64 sequence, u64 synced bytes, u32 kind, u32 range, u64 count; count u64 ids (row
 *            numbers or keys); unless it deletes, count rows; zeros
 *
 * A record represents one update. Its number follows that of the record before it. The first record
 * has the header's first sequence. If range is 1, the record represents all updates after the
 * previous record up to its own number.
 *
 * "Synced bytes" is the size of the file that was known to be on the disk when the record was
 * written. It lets a reader distinguish a lost tail, whose updates were never acknowledged, from
 * damage before the tail.
 *
 * Nothing is allocated. */

#define BAG_JOURNAL_VERSION 1

/* Maximum length of a model's name, with its NUL. */
#define BAG_JOURNAL_NAME_BYTES 129

/* Maximum size of a header. */
#define BAG_JOURNAL_MAX_HEADER_BYTES 368

/* Maximum length of the text that names a part of a table, with its NUL. */
#define BAG_JOURNAL_PART_BYTES 128

/* The table to which the rows of a journal belong. */
struct bag_journal_header {
    char name[BAG_JOURNAL_NAME_BYTES]; /* the model's name */
    uint64_t first_sequence;           /* number of the first record, from 1 */
    uint64_t row_elements, row_bytes;
    enum bag_dtype dtype;
    enum bag_row_format row_format;
    bool keyed;                        /* ids are keys instead of row numbers */
    char part[BAG_JOURNAL_PART_BYTES]; /* part of the table, as "rows 0 of 3, ..."; "": all of it */
};

/* X(ID, number in the file) */
#define BAG_JOURNAL_KINDS(X) \
    X(UPSERT, 1)             \
    X(DELETE, 2)

enum bag_journal_kind {
#define BAG_X(id, number) BAG_JOURNAL_##id = number,
    BAG_JOURNAL_KINDS(BAG_X)
#undef BAG_X
};

/* One batch. The pointers are borrowed; those of a record that was read point into the bytes of the
 * journal. */
struct bag_journal_record {
    uint64_t sequence; /* from 1 */
    bool is_range;     /* represents all updates after the previous record */
    uint64_t synced_bytes;
    enum bag_journal_kind kind;
    uint64_t count;
    const void *ids;  /* `count` uint64_t, at any alignment */
    const void *rows; /* `count` rows of row_bytes; NULL for BAG_JOURNAL_DELETE */
};

/* Writes a header to `out`, which has a capacity of BAG_JOURNAL_MAX_HEADER_BYTES. Returns its size.
 */
size_t bag_journal_write_header(const struct bag_journal_header *header, void *out);

/* Reads the header at the start of `count` bytes, and sets *header_bytes to the position of the
 * first record. Returns false and sets *problem (FILE) if the header is damaged, has a newer
 * version or is not one. Also returns false if row_bytes does not match its datatype, row format
 * and elements. */
bool bag_journal_read_header(const void *bytes, size_t count, struct bag_journal_header *header,
                             size_t *header_bytes, struct bag_problem *problem);

/* Returns the size of a record, or 0 if it overflows. */
size_t bag_journal_record_bytes(const struct bag_journal_record *record, uint64_t row_bytes);

/* Writes a record to `out`, which has a capacity of bag_journal_record_bytes (not 0). */
void bag_journal_write_record(const struct bag_journal_record *record, uint64_t row_bytes,
                              void *out);

/* Reads the record at position `at` of a file of `count` bytes with that header, and returns its
 * size. Returns 0 if there is no complete and valid record. A record that deletes keys is invalid
 * for a table without keys. */
size_t bag_journal_read_record(const void *bytes, size_t count, size_t at,
                               const struct bag_journal_header *header,
                               struct bag_journal_record *record);

/* Returns whether the record may follow the update with that number. Before the first record it is
 * the number before first_sequence. */
static inline bool bag_journal_follows(const struct bag_journal_record *record,
                                       uint64_t last_sequence)
{
    return record->is_range ? record->sequence > last_sequence
                            : record->sequence == last_sequence + 1;
}

/* Returns whether the bytes from `at` on, where no complete record begins, are a tail that was lost
 * in a crash. They are not if a later record states that the disk had these bytes. They are not
 * either if the records whose heads they contain have more than four times as many bytes as the
 * tail. */
bool bag_journal_tail_is_torn(const void *bytes, size_t count, size_t at,
                              const struct bag_journal_header *header);

/* ---- the report of `bagserve convert` (table_report.c) --------------------------------------- */

/* The error of quantised values. A NaN in place of a NaN, or an infinity in place of the same
 * infinity, is no error. The cosine is that of the angle between the original and the quantised
 * row, 1 if both are zero. */
struct bag_error_sum {
    size_t rows, elements;
    double squared; /* sum over the elements */
    double max;     /* largest error, in magnitude */
    size_t max_row; /* first row with that error */
    double cosines; /* sum over the rows */
};

/* Adds the error of one row, whose number is `row`. */
void bag_error_add_row(struct bag_error_sum *sum, size_t row, const float *want, const float *got,
                       size_t elements);

/* Adds `part`, whose rows follow those of *sum. */
void bag_error_add(struct bag_error_sum *sum, const struct bag_error_sum *part);

struct bag_worst_row {
    size_t row;
    uint64_t key; /* key of the row; unused for a table without keys */
    double mean_squared_error, max_error;
};

#define BAG_WORST_ROWS 10

/* The rows with the largest mean squared error, largest first; of equal ones the first rows. */
struct bag_worst_rows {
    struct bag_worst_row rows[BAG_WORST_ROWS];
    size_t count;
};

/* Adds a copy of a row, and drops the best one if there are more than BAG_WORST_ROWS. */
void bag_worst_rows_add(struct bag_worst_rows *worst, const struct bag_worst_row *row);

struct bag_convert_report {
    struct bag_error_sum rows, bags;
    struct bag_worst_rows worst;
    enum bag_dtype keys_dtype; /* I64 or U64; BAG_DTYPE_COUNT: there are none */
    size_t row_elements;
    size_t ids_per_bag;
    const char *reduction; /* reduction of the bags */
};

/* Returns the report as JSON text, which the caller frees, or NULL if there is not enough
 * memory. */
char *bag_convert_report_print(const struct bag_convert_report *report);
