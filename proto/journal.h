/* Files of row updates: a header that says whose they are, then records, one for each batch.
 *
 * All numbers are little-endian. A header takes a multiple of 8 bytes, and so does a record.
 *
 *   header   "BAGROWS\n", u32 version, u32 bytes of the header, u64 first sequence,
 *            u64 elements of a row, u64 bytes of a row, u8 bytes of the model's name, of the
 *            datatype's and of the row format's, u8 keyed, u32 CRC-32 of all of the header with
 *            zeros in its place; the three names; zeros
 *   record   u32 "ROWS", u32 CRC-32 of what follows it in the record, u64 bytes of the record,
 *            u64 sequence, u64 synced bytes, u32 kind, u32 0, u64 count; count u64 ids (row numbers
 *            or keys); unless it deletes, count rows; zeros
 *
 * "Synced bytes" says how much of the file was known to be on the disk when the record was written.
 * So a reader can tell a tail that was lost, which nobody was told to be safe, from damage further
 * in front.
 *
 * Nothing here makes a system call or allocates. */
#ifndef BAG_JOURNAL_FORMAT_H
#define BAG_JOURNAL_FORMAT_H

#include "problem.h"

#include "kernels/pool.h"

#define BAG_JOURNAL_VERSION 1

/* Longest name of a model, with its NUL. */
#define BAG_JOURNAL_NAME_BYTES 129

/* No header is longer. */
#define BAG_JOURNAL_MAX_HEADER_BYTES 256

/* What the rows of a file are. */
struct bag_journal_header {
    char name[BAG_JOURNAL_NAME_BYTES]; /* of the model */
    uint64_t first_sequence;           /* of its first record; from 1 */
    uint64_t row_elements, row_bytes;
    enum bag_dtype dtype;
    enum bag_row_format row_format;
    bool keyed; /* ids are keys, and not row numbers */
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
    uint64_t synced_bytes;
    enum bag_journal_kind kind;
    uint64_t count;
    const void *ids;  /* count of u64, at any alignment */
    const void *rows; /* count of row_bytes; NULL where it deletes */
};

/* Writes a header into room for BAG_JOURNAL_MAX_HEADER_BYTES; returns its bytes. */
size_t bag_journal_write_header(const struct bag_journal_header *header, void *out);

/* Reads a header at the beginning of `count` bytes; *header_bytes says where records begin. False
 * with *problem (FILE) where it is none, is damaged, or of a newer version. */
bool bag_journal_read_header(const void *bytes, size_t count, struct bag_journal_header *header,
                             size_t *header_bytes, struct bag_problem *problem);

/* Bytes that a record takes; 0 where that cannot be counted. */
size_t bag_journal_record_bytes(const struct bag_journal_record *record, uint64_t row_bytes);

/* Writes a record into room for bag_journal_record_bytes, which is not 0. */
void bag_journal_write_record(const struct bag_journal_record *record, uint64_t row_bytes,
                              void *out);

/* Reads the record at `at` of a file of `count` bytes: how many bytes it takes. 0 where there is
 * none that is whole. */
size_t bag_journal_read_record(const void *bytes, size_t count, size_t at, uint64_t row_bytes,
                               struct bag_journal_record *record);

/* Where the record at `at` is not whole: whether what is there from `at` on is a tail that was
 * lost. Otherwise a record behind it says that the disk had it already. */
bool bag_journal_tail_is_torn(const void *bytes, size_t count, size_t at, uint64_t row_bytes);

#endif
