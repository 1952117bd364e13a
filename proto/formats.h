/* The formats of files: tables, journals of updates, and reports on them. Bytes come in as
 * arguments. */
#ifndef BAG_FORMATS_H
#define BAG_FORMATS_H

#include "kernels/table.h"
#include "problem.h"
#include "text.h"

#include <stddef.h>

/* ---- .npy files (npy.c, npy_place.c) --------------------------------------------------------- */

/* NumPy's format, versions 1.0 to 3.0: header bytes -> description, and parts of the file -> the
 * table's layout. Nothing is allocated. */

/* The longest header that is read, in bytes. NumPy itself stops at 10,000 characters. */
#define BAG_NPY_MAX_HEADER_BYTES (64 * 1024)

/* As many bytes tell how long the header is; no valid file is shorter. */
#define BAG_NPY_PREAMBLE_BYTES 12

/* The elements lie in the file column after column. A column-major file has one column for each
 * element of a row; every other file is taken as a single column of all elements. */
struct bag_npy {
    enum bag_dtype dtype;
    bool swap;          /* elements are big-endian */
    bool fortran_order; /* column-major, and rank above 1 */
    uint32_t rank;      /* 0 for a scalar */
    int64_t shape[BAG_MAX_RANK];
    size_t count;           /* product of the shape; does not overflow, nor does data_bytes */
    size_t row_elements;    /* product of the dimensions after the first, zeros included */
    size_t num_columns;     /* of the file, as said above */
    size_t column_elements; /* in each of them */
    size_t column_stride;   /* elements from the begin of one to that of the next in the file */
    size_t data_offset;     /* of the first element in the file */
    size_t data_bytes;
};

/* What a file of another kind looks like by its first bytes (up to BAG_NPY_PREAMBLE_BYTES count),
 * and what to do with it: "a pickle: ..."; NULL: unknown. */
const char *bag_file_kind(const void *bytes, size_t count);

/* How many bytes bag_npy_parse needs to see, judged by the first `count` bytes of the file: magic,
 * version, header length and header. 0 where that is already wrong (bag_npy_parse says how). Give
 * at least BAG_NPY_PREAMBLE_BYTES, or the whole file where it is shorter. */
size_t bag_npy_header_bytes(const void *bytes, size_t count);

/* Reads the header from the first `count` bytes of the file. `override_dtype` is the dtype that the
 * configuration names for data the file cannot name (bf16 is stored as '<u2', '<i2' or '|V2'), or
 * BAG_DTYPE_COUNT to take the file's own; it must have the file's element size. Object, string,
 * structured, bool and complex arrays are rejected. On failure returns false; *problem says why. */
bool bag_npy_parse(const void *bytes, size_t count, enum bag_dtype override_dtype,
                   struct bag_npy *npy, struct bag_problem *problem);

/* Describes elements in C order and little-endian, which another format says are there; `shape` has
 * `rank` dimensions up to BAG_MAX_RANK, none negative. Rejects a shape that is too large. */
bool bag_npy_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t data_offset,
                      struct bag_npy *npy, struct bag_problem *problem);

/* Whether the file's elements are in the order of the table's, so that they may be read into place.
 */
bool bag_npy_is_plain(const struct bag_npy *npy);

/* Makes the description one of these rows alone, which the file has. */
void bag_npy_slice(struct bag_npy *npy, size_t first_row, size_t num_rows);

/* A part of the file: of columns [first_column, +num_columns) the elements [first, +count). */
struct bag_npy_tile {
    size_t first_column, num_columns;
    size_t first, count;
};

/* Puts a tile where it belongs in the row-major table `rows`, in the machine's byte order. `block`
 * holds the tile column after column, at any alignment. Distinct tiles may be placed by several
 * threads at once. */
void bag_npy_place(const struct bag_npy *npy, struct bag_npy_tile tile, const void *block,
                   void *rows);

/* ---- .npz files (npz.c) ---------------------------------------------------------------------- */

/* .npz files: zip archives of .npy files, as numpy.savez writes them, with stored members.
 *
 * A zip archive is read from its end: the last bytes say where its directory is, the directory says
 * where each member's own header is, and the member follows that. The large form (zip64)
 * is read, too. Members that are compressed are rejected when they are asked for only. Who
 * reads a member compares its CRC-32.
 *
 * The caller reads the file and passes bytes. Nothing is allocated here. */

/* So many bytes from the file's end, or the whole file where it is shorter, say where the directory
 * is. */
#define BAG_NPZ_TAIL_BYTES (22 + 65535 + 20 + 56)

/* The longest directory that is read. */
#define BAG_NPZ_MAX_DIRECTORY_BYTES ((size_t)100 * 1000 * 1000)

/* Of a member's own header so many bytes must be seen. */
#define BAG_NPZ_MEMBER_HEADER_BYTES 30

struct bag_npz {
    uint64_t directory_offset; /* in the file */
    size_t directory_bytes;
    uint64_t num_members;
    const unsigned char *directory; /* borrowed; set by bag_npz_read_directory */
};

struct bag_npz_member {
    struct bag_text name;   /* without .npy; in the directory */
    uint64_t header_offset; /* of its own header in the file */
    uint64_t bytes;         /* as stored */
    uint32_t crc32;         /* of those */
    unsigned method;        /* 0: stored */
    bool encrypted;
};

/* Finds the directory from the file's last `count` bytes: its offset, size and members. */
bool bag_npz_find_directory(const void *tail, size_t count, uint64_t file_bytes,
                            struct bag_npz *npz, struct bag_problem *problem);

/* Checks the directory, npz->directory_bytes at `directory`, which must outlive *npz. */
bool bag_npz_read_directory(struct bag_npz *npz, const void *directory,
                            struct bag_problem *problem);

/* The members in the directory's order, one with each call; false after the last. *cursor is 0
 * before the first. */
bool bag_npz_next(const struct bag_npz *npz, size_t *cursor, struct bag_npz_member *member);

/* How many members have that name, and the first of them. */
size_t bag_npz_find(const struct bag_npz *npz, const char *name, struct bag_npz_member *member);

/* What a part of a member's bytes, which `bytes_behind` more follow, gives of its CRC-32: that of
 * the whole is the parts' XOR, in any order. */
uint32_t bag_npz_crc32_part(const void *bytes, size_t count, uint64_t bytes_behind);

/* Where the member's bytes begin in the file, by the BAG_NPZ_MEMBER_HEADER_BYTES of its own header.
 * Rejects members that are compressed, encrypted or not inside the file. */
bool bag_npz_locate(const struct bag_npz *npz, const struct bag_npz_member *member,
                    const void *header, uint64_t *offset, struct bag_problem *problem);

/* ---- safetensors files (safetensors.c) ------------------------------------------------------- */

/* safetensors files: from the header's bytes to the place of each tensor, and the index of files in
 * parts.
 *
 * A file is 8 bytes with the header's length (little-endian), the header, which is a JSON object of
 * {"dtype", "shape", "data_offsets"} by tensor name, and the data. As the format's own description
 * demands, the tensors fill the data without holes or overlaps up to the file's end, and no name
 * occurs twice. A tensor of a type that cannot be pooled is rejected when it is asked for only.
 *
 * Where the bytes (U8) of a tensor named "values" stand for quantised rows, __metadata__ may say
 * so: "row_format" is a name of BAG_ROW_FORMATS in kernels/table.h, "row_elements" a decimal
 * number.
 *
 * The caller reads the file and passes bytes. */

struct cJSON; /* which only the parser knows */

/* The longest header that is read, in bytes, and the longest index. */
#define BAG_SAFETENSORS_MAX_HEADER_BYTES ((size_t)100 * 1000 * 1000)

/* As many bytes tell how long the header is. */
#define BAG_SAFETENSORS_PREAMBLE_BYTES 8

struct bag_safetensors {
    struct cJSON *tree; /* of the header; owned */
    const struct cJSON
        *metadata;      /* in it; NULL: none. Found once: it may stand behind all tensors */
    size_t data_offset; /* of the first tensor in the file */
};

/* One tensor of a file, as a table's elements. */
struct bag_safetensors_tensor {
    const char *type;               /* as the header has it; lives as long as the file's struct */
    enum bag_row_format row_format; /* of F8_E4M3 and F8_E5M2, whose dtype is U8, and of what
                                       __metadata__ tells; else PLAIN */
    size_t row_elements;            /* of these; 0 where __metadata__ does not tell */
    struct bag_npy layout;          /* C order, little-endian; rank 0 is possible */
};

/* One line of __metadata__. */
struct bag_safetensors_note {
    const char *key, *value;
};

/* How many bytes bag_safetensors_parse needs to see; 0 where the length is already wrong (the
 * parser says how). `count` is at least BAG_SAFETENSORS_PREAMBLE_BYTES, or that of a shorter file.
 */
size_t bag_safetensors_header_bytes(const void *bytes, size_t count);

/* Reads the header from the first `count` bytes of a file of `file_bytes`. On success the caller
 * frees *file; on failure *problem names the tensor and what would be right. */
bool bag_safetensors_parse(const void *bytes, size_t count, uint64_t file_bytes,
                           struct bag_safetensors *file, struct bag_problem *problem);

void bag_safetensors_free(struct bag_safetensors *file);

/* The names of the tensors in the header's order, one with each call; NULL after the last. *cursor
 * is NULL before the first. */
const char *bag_safetensors_next(const struct bag_safetensors *file, const struct cJSON **cursor);

/* Whether there is a tensor of that name, of whatever type. */
bool bag_safetensors_has(const struct bag_safetensors *file, const char *name);

/* What the file's __metadata__ says of a key; NULL: nothing. Lives as long as the file's struct. */
const char *bag_safetensors_metadata(const struct bag_safetensors *file, const char *key);

/* What it says of keys, one with each call; false after the last. *cursor is NULL before the first;
 * the note lives as long as the file's struct. */
bool bag_safetensors_next_note(const struct bag_safetensors *file, const struct cJSON **cursor,
                               struct bag_safetensors_note *note);

/* Describes a tensor that is there. Rejects types that cannot be pooled, and more dimensions than
 * BAG_MAX_RANK. */
bool bag_safetensors_describe(const struct bag_safetensors *file, const char *name,
                              struct bag_safetensors_tensor *tensor, struct bag_problem *problem);

/* The same of the one where *cursor of bag_safetensors_next stands. */
bool bag_safetensors_describe_at(const struct bag_safetensors *file, const struct cJSON *cursor,
                                 struct bag_safetensors_tensor *tensor,
                                 struct bag_problem *problem);

/* ---- writing --------------------------------------------------------------------------------- */

/* The member of a header that holds texts about the file. */
#define BAG_SAFETENSORS_METADATA "__metadata__"

/* One tensor of a file that is written: its data follows that of the one before. */
struct bag_safetensors_entry {
    const char *name, *type; /* "F32", "U8", ... */
    uint32_t rank;
    const int64_t *shape;
    uint64_t bytes;
};

/* Where the data of a written file begins: at a multiple of this, so that it can be mapped. */
#define BAG_SAFETENSORS_ALIGNMENT ((size_t)4096)

/* The type of the rows of such a table: U8 for those that only __metadata__ can say. */
const char *bag_safetensors_type(const struct bag_table *table);

/* Makes what precedes the data, padded with spaces; to be freed. NULL without memory. */
char *bag_safetensors_print(const struct bag_safetensors_entry *entries, size_t count,
                            const struct bag_safetensors_note *notes, size_t num_notes,
                            size_t *header_bytes);

/* ---- files in parts -------------------------------------------------------------------------- */

/* model.safetensors.index.json: {"weight_map": {tensor: file}, ...}. */
struct bag_safetensors_index {
    struct cJSON *tree; /* owned */
};

/* Reads the index. Every file must be a plain name, in the index's own folder. */
bool bag_safetensors_index_parse(const char *text, size_t bytes,
                                 struct bag_safetensors_index *index, struct bag_problem *problem);

void bag_safetensors_index_free(struct bag_safetensors_index *index);

/* The name of the file that holds the tensor; NULL: there is no such tensor. */
const char *bag_safetensors_index_file(const struct bag_safetensors_index *index,
                                       const char *tensor);

/* The names of the tensors, as bag_safetensors_next. */
const char *bag_safetensors_index_next(const struct bag_safetensors_index *index,
                                       const struct cJSON **cursor);

/* ---- the journal of updates (journal.c) ------------------------------------------------------ */

/* Files of row updates: a header that says whose they are, then records, one for each batch.
 *
 * All numbers are little-endian. A header takes a multiple of 8 bytes, and so does a record.
 *
 *   header   "BAGROWS\n", u32 version, u32 bytes of the header, u64 first sequence,
 *            u64 elements of a row, u64 bytes of a row, u8 bytes of the model's name, of the
 *            datatype's and of the row format's, u8 keyed + 2 * bytes of the part's text, u32
 *            CRC-32 of all of the header with zeros in its place; the three names and the text;
 *            zeros
 *   record   u32 "ROWS", u32 CRC-32 of what follows it in the record, u64 bytes of the record,
 *            u64 sequence, u64 synced bytes, u32 kind, u32 range, u64 count; count u64 ids (row
 *            numbers or keys); unless it deletes, count rows; zeros
 *
 * A record stands for one update, whose number follows the one of the record before it, or the
 * header's first; where range is 1, for all updates after that one up to its own number.
 *
 * "Synced bytes" says how much of the file was known to be on the disk when the record was written.
 * So a reader can tell a tail that was lost, which nobody was told to be safe, from damage further
 * in front.
 *
 * Nothing here makes a system call or allocates. */

#define BAG_JOURNAL_VERSION 1

/* Longest name of a model, with its NUL. */
#define BAG_JOURNAL_NAME_BYTES 129

/* No header is longer. */
#define BAG_JOURNAL_MAX_HEADER_BYTES 368

/* Longest text that says which part of a table it is, with its NUL. */
#define BAG_JOURNAL_PART_BYTES 128

/* What the rows of a file are. */
struct bag_journal_header {
    char name[BAG_JOURNAL_NAME_BYTES]; /* of the model */
    uint64_t first_sequence;           /* of its first record; from 1 */
    uint64_t row_elements, row_bytes;
    enum bag_dtype dtype;
    enum bag_row_format row_format;
    bool keyed;                        /* ids are keys, and not row numbers */
    char part[BAG_JOURNAL_PART_BYTES]; /* "rows 0 of 3, ...": which part of a table has its rows;
                                          "": all of it */
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

/* One batch. The pointers are borrowed: of a record that was read from its bytes. */
struct bag_journal_record {
    uint64_t sequence; /* from 1 */
    bool is_range;     /* for all updates after those of the record before it */
    uint64_t synced_bytes;
    enum bag_journal_kind kind;
    uint64_t count;
    const void *ids;  /* count of u64, at any alignment */
    const void *rows; /* count of row_bytes; NULL where it deletes */
};

/* Writes a header into room for BAG_JOURNAL_MAX_HEADER_BYTES; returns its bytes. */
size_t bag_journal_write_header(const struct bag_journal_header *header, void *out);

/* Reads a header at the beginning of `count` bytes; *header_bytes says where records begin. False
 * with *problem (FILE) where it is none, is damaged, of a newer version, or of rows that cannot be:
 * row_bytes are those of a table of its elements. */
bool bag_journal_read_header(const void *bytes, size_t count, struct bag_journal_header *header,
                             size_t *header_bytes, struct bag_problem *problem);

/* Bytes that a record takes; 0 where that cannot be counted. */
size_t bag_journal_record_bytes(const struct bag_journal_record *record, uint64_t row_bytes);

/* Writes a record into room for bag_journal_record_bytes, which is not 0. */
void bag_journal_write_record(const struct bag_journal_record *record, uint64_t row_bytes,
                              void *out);

/* Reads the record at `at` of a file of `count` bytes with that header: how many bytes it takes. 0
 * where there is none that is whole and that such a file can hold: a dense table has no keys to
 * delete. */
size_t bag_journal_read_record(const void *bytes, size_t count, size_t at,
                               const struct bag_journal_header *header,
                               struct bag_journal_record *record);

/* Whether the record comes after the one of that number, or after the number before the first. */
static inline bool bag_journal_follows(const struct bag_journal_record *record,
                                       uint64_t last_sequence)
{
    return record->is_range ? record->sequence > last_sequence
                            : record->sequence == last_sequence + 1;
}

/* Where the record at `at` is not whole: whether what is there from `at` on is a tail that was
 * lost. Otherwise a record behind it says that the disk had it already, or there are more heads of
 * records in it than a lost tail can have. */
bool bag_journal_tail_is_torn(const void *bytes, size_t count, size_t at,
                              const struct bag_journal_header *header);

/* ---- reports on files (table_report.c) ------------------------------------------------------- */

/* What the commands that work on table files say of them, as JSON: the report of `bagserve convert`
 * and the description by `bagserve inspect --json`. */

/* ---- convert --------------------------------------------------------------------------------- */

/* How far values are from what they stand for. A NaN for a NaN, and an infinity for the same one,
 * is no error. The cosine is that of the angle between two rows, 1 where both are zero. */
struct bag_error_sum {
    size_t rows, elements;
    double squared; /* sum over the elements */
    double max;     /* the largest, in magnitude */
    size_t max_row; /* the first that has it */
    double cosines; /* sum over the rows */
};

/* Adds one row; `row` is its number. */
void bag_error_add_row(struct bag_error_sum *sum, size_t row, const float *want, const float *got,
                       size_t elements);

/* Adds all of `part`, whose rows come behind. */
void bag_error_add(struct bag_error_sum *sum, const struct bag_error_sum *part);

struct bag_worst_row {
    size_t row;
    uint64_t key; /* as the table has it; unused for a dense one */
    double mean_squared_error, max_error;
};

#define BAG_WORST_ROWS 10

/* The rows with the largest mean squared error, largest first; of equal ones the first rows. */
struct bag_worst_rows {
    struct bag_worst_row rows[BAG_WORST_ROWS];
    size_t count;
};

void bag_worst_rows_add(struct bag_worst_rows *worst, const struct bag_worst_row *row);

struct bag_convert_report {
    struct bag_error_sum rows, bags;
    struct bag_worst_rows worst;
    enum bag_dtype keys_dtype; /* I64 or U64; BAG_DTYPE_COUNT: there are none */
    size_t row_elements;
    size_t ids_per_bag;
    const char *reduction; /* of the bags */
};

/* The report as JSON text, to be freed; NULL without memory. */
char *bag_convert_report_print(const struct bag_convert_report *report);

/* ---- inspect --------------------------------------------------------------------------------- */

struct bag_inspected_tensor {
    char *name;
    const char *datatype; /* of the V2 protocol, or as the file has it */
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    uint64_t bytes;
};

struct bag_inspect_report {
    const struct bag_inspected_tensor *tensors;
    size_t num_tensors;
    bool has_table; /* what follows is known */
    bool keyed;
    size_t nan, inf;                  /* elements, */
    size_t rows, row_elements;        /* of the table */
    size_t sampled_rows;              /* of which values were looked at */
    size_t zero_rows, duplicate_rows; /* among those */
    size_t serving_bytes;
    const char *datatype, *row_format;
    const char *path;                 /* for the configuration, absolute */
    const char *tensor, *keys_tensor; /* NULL: not needed */
};

/* The description as JSON text, to be freed; NULL without memory. */
char *bag_inspect_report_print(const struct bag_inspect_report *report);

/* The configuration that serves the table, alone, likewise. */
char *bag_inspect_configuration_print(const struct bag_inspect_report *report);

/* What one version of a configured model takes when it is served. */
struct bag_inspected_model {
    const char *name, *version, *datatype, *row_format; /* borrowed */
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK]; /* of the table; the first dimension is its rows */
    size_t row_bytes;
    bool keyed, is_mapped, is_locked;
    size_t serving_bytes;  /* of memory, with projections */
    uint64_t mapped_bytes; /* of the file, which the kernel caches; 0: none */
    int64_t hash_rows;     /* rows that stand in for missing keys */
    int64_t default_index; /* -1: none */
};

/* Returns {"models": [...]} as JSON text on the heap, or NULL if memory is exhausted. */
char *bag_inspected_models_print(const struct bag_inspected_model *models, size_t count);

#endif
