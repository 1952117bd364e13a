/* Writes and reads the headers and records of journals; see formats.h. */
#include "formats.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

static const char file_magic[8] = {'B', 'A', 'G', 'R', 'O', 'W', 'S', '\n'};

#define RECORD_MAGIC 0x53574f52u /* "ROWS" */

/* Sizes of the fixed parts of a header and of a record, in bytes. The checksum of a header is at
 * HEADER_CRC_AT. That of a record covers the bytes from RECORD_CRC_FROM on. */
#define HEADER_FIXED_BYTES 48
#define RECORD_FIXED_BYTES 48
#define HEADER_CRC_AT      44
#define RECORD_CRC_FROM    8

/* The size of a row with more elements would overflow. */
#define MAX_ROW_ELEMENTS (UINT64_MAX / 16)

/* Limit of the work of searching a tail for records: their sizes may add up to this multiple of the
 * tail. Each byte of a real tail belongs to one record, but a crafted file could have many heads
 * whose records overlap. */
#define TAIL_PASSES 4

_Static_assert(HEADER_FIXED_BYTES + BAG_JOURNAL_NAME_BYTES + BAG_JOURNAL_PART_BYTES - 2 + 2 * 32 <=
                   BAG_JOURNAL_MAX_HEADER_BYTES,
               "the longest names");

/* ---- checksums and sizes --------------------------------------------------------------------- */

/* Returns the CRC-32 continued with these bytes. It is 0 before the first ones. */
static uint32_t crc_of(uint32_t crc, const unsigned char *bytes, size_t count)
{
    return (uint32_t)crc32_z(crc, bytes, count);
}

/* Returns the next multiple of 8, the alignment of records. */
static size_t round_up(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

/* ---- headers --------------------------------------------------------------------------------- */

/* Returns the CRC of a header, with zeros in its own place. */
static uint32_t header_crc(const unsigned char *bytes, size_t count)
{
    static const unsigned char zeros[4];
    uint32_t crc = crc_of(0, bytes, HEADER_CRC_AT);
    crc = crc_of(crc, zeros, sizeof zeros);
    return crc_of(crc, bytes + HEADER_CRC_AT + 4, count - HEADER_CRC_AT - 4);
}

size_t bag_journal_write_header(const struct bag_journal_header *header, void *out)
{
    unsigned char *bytes = out;
    const char *names[4] = {header->name, bag_dtypes[header->dtype].name,
                            bag_row_format_names[header->row_format], header->part};
    size_t at = HEADER_FIXED_BYTES;
    memset(bytes, 0, BAG_JOURNAL_MAX_HEADER_BYTES);
    for (int i = 0; i < 4; i++) {
        size_t length = strlen(names[i]);
        bytes[40 + i] = (unsigned char)(i < 3 ? length : 2 * length + header->keyed);
        memcpy(bytes + at, names[i], length);
        at += length;
    }
    at = round_up(at);
    memcpy(bytes, file_magic, sizeof file_magic);
    bag_write_little(bytes + 8, BAG_JOURNAL_VERSION, 4);
    bag_write_little(bytes + 12, (uint32_t)at, 4);
    bag_write_little(bytes + 16, header->first_sequence, 8);
    bag_write_little(bytes + 24, header->row_elements, 8);
    bag_write_little(bytes + 32, header->row_bytes, 8);
    bag_write_little(bytes + HEADER_CRC_AT, header_crc(bytes, at), 4);
    return at;
}

static bool reject(struct bag_problem *problem, const char *why)
{
    return bag_problem_set(problem, BAG_ERROR_FILE, "%s", why);
}

/* Reads the names of a header whose checksum is right. */
static bool read_names(const unsigned char *bytes, size_t count, struct bag_journal_header *header,
                       struct bag_problem *problem)
{
    const char *names = (const char *)bytes + HEADER_FIXED_BYTES;
    size_t name_bytes = bytes[40], dtype_bytes = bytes[41], format_bytes = bytes[42];
    size_t part_bytes = bytes[43] / 2, before = name_bytes + dtype_bytes + format_bytes;
    if (name_bytes >= BAG_JOURNAL_NAME_BYTES || before + part_bytes > count - HEADER_FIXED_BYTES)
        return reject(problem, "the journal's header is damaged: its names are too long");
    memcpy(header->name, names, name_bytes);
    header->name[name_bytes] = 0;
    memcpy(header->part, names + before, part_bytes);
    header->part[part_bytes] = 0;
    header->keyed = bytes[43] % 2;
    header->dtype = bag_dtype_find(names + name_bytes, dtype_bytes);
    header->row_format = bag_row_format_find(names + name_bytes + dtype_bytes, format_bytes);
    return (header->dtype != BAG_DTYPE_COUNT && header->row_format != BAG_ROW_FORMAT_COUNT) ||
           reject(problem, "the journal's rows are of a type or format that is not known here");
}

/* Checks the magic, the version, the length and the checksum of the header. */
static bool check_frame(const unsigned char *bytes, size_t count, size_t *header_bytes,
                        struct bag_problem *problem)
{
    if (count < HEADER_FIXED_BYTES || memcmp(bytes, file_magic, sizeof file_magic) != 0)
        return reject(problem, "the file is no journal of row updates");
    if (bag_read_little(bytes + 8, 4) != BAG_JOURNAL_VERSION)
        return bag_problem_set(
            problem, BAG_ERROR_FILE, "the journal has format %u; this server reads format %u",
            (unsigned)bag_read_little(bytes + 8, 4), (unsigned)BAG_JOURNAL_VERSION);
    *header_bytes = bag_read_little(bytes + 12, 4);
    bool whole = *header_bytes >= HEADER_FIXED_BYTES && *header_bytes % 8 == 0 &&
                 *header_bytes <= BAG_JOURNAL_MAX_HEADER_BYTES && *header_bytes <= count;
    return (whole &&
            bag_read_little(bytes + HEADER_CRC_AT, 4) == header_crc(bytes, *header_bytes)) ||
           reject(problem, "the journal's header is damaged: its checksum is wrong");
}

bool bag_journal_read_header(const void *data, size_t count, struct bag_journal_header *header,
                             size_t *header_bytes, struct bag_problem *problem)
{
    const unsigned char *bytes = data;
    if (!check_frame(bytes, count, header_bytes, problem) ||
        !read_names(bytes, *header_bytes, header, problem))
        return false;
    header->first_sequence = bag_read_little(bytes + 16, 8);
    header->row_elements = bag_read_little(bytes + 24, 8);
    header->row_bytes = bag_read_little(bytes + 32, 8);
    if (header->first_sequence == 0)
        return reject(problem, "the journal's header is damaged: it has values that cannot be");
    /* Check that a table can have such rows, and that the header has the right size of a row. */
    struct bag_table table = {.dtype = header->dtype,
                              .row_elements = header->row_elements,
                              .row_format = header->row_format};
    bool is_plain = header->row_format == BAG_ROWS_PLAIN;
    if (header->dtype == BAG_BOOL || header->dtype == BAG_BYTES ||
        (!is_plain && header->dtype != BAG_F32) || header->row_elements > MAX_ROW_ELEMENTS)
        return reject(problem, "the journal's header is damaged: no table has such rows");
    if (header->row_bytes == bag_row_bytes(&table))
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "the journal's header is damaged: rows of %" PRIu64
                           " elements of %s take %zu bytes, and it says %" PRIu64,
                           header->row_elements,
                           is_plain ? bag_dtypes[header->dtype].name
                                    : bag_row_format_names[header->row_format],
                           bag_row_bytes(&table), header->row_bytes);
}

/* ---- records --------------------------------------------------------------------------------- */

size_t bag_journal_record_bytes(const struct bag_journal_record *record, uint64_t row_bytes)
{
    /* Bytes of one id, and of its row if the record has rows. */
    size_t each = sizeof(uint64_t), bytes;
    if (record->kind == BAG_JOURNAL_UPSERT && __builtin_add_overflow(each, row_bytes, &each))
        return 0;
    if (__builtin_mul_overflow(each, record->count, &bytes) ||
        __builtin_add_overflow(bytes, RECORD_FIXED_BYTES + 7, &bytes))
        return 0;
    return bytes & ~(size_t)7;
}

void bag_journal_write_record(const struct bag_journal_record *record, uint64_t row_bytes,
                              void *out)
{
    unsigned char *bytes = out, *at = bytes + RECORD_FIXED_BYTES;
    size_t total = bag_journal_record_bytes(record, row_bytes);
    bag_write_little(bytes, RECORD_MAGIC, 4);
    bag_write_little(bytes + 8, total, 8);
    bag_write_little(bytes + 16, record->sequence, 8);
    bag_write_little(bytes + 24, record->synced_bytes, 8);
    bag_write_little(bytes + 32, record->kind, 4);
    bag_write_little(bytes + 36, record->is_range, 4);
    bag_write_little(bytes + 40, record->count, 8);
    if (record->count) {
        memcpy(at, record->ids, record->count * sizeof(uint64_t));
        at += record->count * sizeof(uint64_t);
    }
    size_t rows_bytes = record->kind == BAG_JOURNAL_UPSERT ? record->count * row_bytes : 0;
    if (rows_bytes)
        memcpy(at, record->rows, rows_bytes);
    at += rows_bytes;
    memset(at, 0, (size_t)(bytes + total - at));
    bag_write_little(bytes + 4, crc_of(0, bytes + RECORD_CRC_FROM, total - RECORD_CRC_FROM), 4);
}

/* Reads the head of a record at `at`. Returns the size of the record, or 0 if there is no valid
 * head or the file does not contain the whole record. */
static size_t read_head(const unsigned char *data, size_t count, size_t at,
                        const struct bag_journal_header *header, struct bag_journal_record *record)
{
    if (at > count || count - at < RECORD_FIXED_BYTES)
        return 0;
    const unsigned char *bytes = data + at;
    uint64_t total = bag_read_little(bytes + 8, 8);
    uint32_t kind = bag_read_little(bytes + 32, 4), range = bag_read_little(bytes + 36, 4);
    bool known = kind == BAG_JOURNAL_UPSERT || (kind == BAG_JOURNAL_DELETE && header->keyed);
    if (bag_read_little(bytes, 4) != RECORD_MAGIC || total < RECORD_FIXED_BYTES ||
        total > count - at || !known || range > 1)
        return 0;
    *record = (struct bag_journal_record){.sequence = bag_read_little(bytes + 16, 8),
                                          .is_range = range,
                                          .synced_bytes = bag_read_little(bytes + 24, 8),
                                          .kind = (enum bag_journal_kind)kind,
                                          .count = bag_read_little(bytes + 40, 8),
                                          .ids = bytes + RECORD_FIXED_BYTES};
    if (bag_journal_record_bytes(record, header->row_bytes) != total || record->sequence == 0)
        return 0;
    if (kind == BAG_JOURNAL_UPSERT)
        record->rows = bytes + RECORD_FIXED_BYTES + record->count * sizeof(uint64_t);
    return (size_t)total;
}

/* Returns whether the checksum of a record of `total` bytes is right. */
static bool is_whole(const unsigned char *bytes, size_t total)
{
    return bag_read_little(bytes + 4, 4) ==
           crc_of(0, bytes + RECORD_CRC_FROM, total - RECORD_CRC_FROM);
}

size_t bag_journal_read_record(const void *data, size_t count, size_t at,
                               const struct bag_journal_header *header,
                               struct bag_journal_record *record)
{
    const unsigned char *bytes = data;
    size_t total = read_head(bytes, count, at, header, record);
    return total && is_whole(bytes + at, total) ? total : 0;
}

bool bag_journal_tail_is_torn(const void *data, size_t count, size_t at,
                              const struct bag_journal_header *header)
{
    const unsigned char *bytes = data;
    struct bag_journal_record record;
    size_t next = round_up(at + 1), summed = 0;
    /* Records begin at multiples of 8. After a position without a complete record, the next
     * multiple is tried. */
    while (next < count) {
        size_t total = read_head(bytes, count, next, header, &record);
        summed += total;
        if (summed / TAIL_PASSES > count - at)
            return false;
        bool whole = total && is_whole(bytes + next, total);
        /* A later record proves that these bytes were on the disk, so they were damaged, not lost.
         */
        if (whole && record.synced_bytes > at)
            return false;
        next += whole ? total : 8;
    }
    return true;
}
