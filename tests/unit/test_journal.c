/* The bytes of journals: written records can be read, and damaged records differ from a torn
 * tail. */
#include "testing.h"

#include "proto/formats.h"

#define ROW_BYTES 6

static const struct bag_journal_header items = {.name = "items",
                                                .first_sequence = 7,
                                                .row_elements = 3,
                                                .row_bytes = ROW_BYTES,
                                                .dtype = BAG_F16,
                                                .row_format = BAG_ROWS_PLAIN,
                                                .keyed = true};

static const uint64_t ids[3] = {UINT64_MAX, 0, 5};
static const char rows[] = "abcdefghijklmnopqr";

/* A header, then records 7, 8 (which deletes) and 9, the last two written when all before them was
 * synced. */
struct journal {
    unsigned char bytes[1024];
    size_t at[4]; /* positions of the records and of the end */
};

static void make(struct journal *journal, bool synced)
{
    struct bag_journal_record records[3] = {
        {.sequence = 7, .kind = BAG_JOURNAL_UPSERT, .count = 3, .ids = ids, .rows = rows},
        {.sequence = 8, .kind = BAG_JOURNAL_DELETE, .count = 2, .ids = ids},
        {.sequence = 9, .kind = BAG_JOURNAL_UPSERT, .count = 1, .ids = ids, .rows = rows}};
    memset(journal, 0, sizeof *journal);
    size_t at = bag_journal_write_header(&items, journal->bytes);
    for (int i = 0; i < 3; i++) {
        journal->at[i] = at;
        records[i].synced_bytes = synced ? at : 0;
        bag_journal_write_record(&records[i], ROW_BYTES, journal->bytes + at);
        at += bag_journal_record_bytes(&records[i], ROW_BYTES);
    }
    journal->at[3] = at;
}

TEST(test_reads_what_was_written)
{
    struct journal journal;
    struct bag_journal_header header;
    struct bag_journal_record record;
    struct bag_problem problem;
    size_t header_bytes;
    make(&journal, true);
    unsigned char *copy = (unsigned char *)exact_copy(journal.bytes, journal.at[3]);
    assert_true(bag_journal_read_header(copy, journal.at[3], &header, &header_bytes, &problem));
    assert_int_equal(header_bytes, journal.at[0]);
    assert_int_equal(header_bytes % 8, 0);
    assert_string_equal(header.name, "items");
    assert_int_equal(header.first_sequence, 7);
    assert_int_equal(header.row_elements, 3);
    assert_int_equal(header.row_bytes, ROW_BYTES);
    assert_int_equal(header.dtype, BAG_F16);
    assert_int_equal(header.row_format, BAG_ROWS_PLAIN);
    assert_true(header.keyed);
    assert_int_equal(bag_journal_read_record(copy, journal.at[3], journal.at[0], &items, &record),
                     journal.at[1] - journal.at[0]);
    assert_int_equal(record.sequence, 7);
    assert_int_equal(record.kind, BAG_JOURNAL_UPSERT);
    assert_int_equal(record.count, 3);
    assert_memory_equal(record.ids, ids, sizeof ids);
    assert_memory_equal(record.rows, rows, 3 * ROW_BYTES);
    assert_int_equal(bag_journal_read_record(copy, journal.at[3], journal.at[1], &items, &record),
                     48 + 2 * 8);
    assert_int_equal(record.kind, BAG_JOURNAL_DELETE);
    assert_int_equal(record.synced_bytes, journal.at[1]);
    assert_null(record.rows);
    assert_int_equal(bag_journal_read_record(copy, journal.at[3], journal.at[3], &items, &record),
                     0);
    assert_int_equal(
        bag_journal_read_record(copy, journal.at[3], journal.at[3] + 1, &items, &record), 0);
    free(copy);
}

static void expect_header_problem(const unsigned char *bytes, size_t count, const char *text)
{
    struct bag_journal_header header;
    struct bag_problem problem;
    size_t header_bytes;
    unsigned char *copy = (unsigned char *)exact_copy(bytes, count);
    assert_false(bag_journal_read_header(copy, count, &header, &header_bytes, &problem));
    assert_int_equal(problem.kind, BAG_ERROR_FILE);
    if (!strstr(problem.text, text))
        fail_msg("'%s' has no '%s'", problem.text, text);
    free(copy);
}

TEST(test_rejects_headers)
{
    struct journal journal;
    make(&journal, true);
    for (size_t count = 0; count < journal.at[0]; count++)
        expect_header_problem(journal.bytes, count, "journal");
    expect_header_problem((const unsigned char *)"\x93NUMPY\1\0", 8, "no journal");
    for (size_t i = 16; i < journal.at[0]; i++) {
        journal.bytes[i] ^= 1;
        expect_header_problem(journal.bytes, journal.at[3], "damaged");
        journal.bytes[i] ^= 1;
    }
    journal.bytes[8]++;
    expect_header_problem(journal.bytes, journal.at[3], "format 2; this server reads format 1");
}

/* Every bit of a record counts, and its last byte too. */
TEST(test_rejects_records)
{
    struct journal journal;
    struct bag_journal_record record;
    make(&journal, true);
    size_t begin = journal.at[0], end = journal.at[1];
    for (size_t i = begin; i < end; i++) {
        for (int bit = 0; bit < 8; bit++) {
            journal.bytes[i] ^= (unsigned char)(1 << bit);
            assert_int_equal(
                bag_journal_read_record(journal.bytes, journal.at[3], begin, &items, &record), 0);
            journal.bytes[i] ^= (unsigned char)(1 << bit);
        }
    }
    for (size_t count = begin; count < end; count++) {
        char *copy = exact_copy(journal.bytes, count);
        assert_int_equal(bag_journal_read_record(copy, count, begin, &items, &record), 0);
        free(copy);
    }
    struct bag_journal_header other = items;
    other.row_bytes += 8;
    assert_int_equal(bag_journal_read_record(journal.bytes, journal.at[3], begin, &other, &record),
                     0);
}

/* Records with right checksums that no server can have written. */
TEST(test_rejects_rows_that_cannot_be)
{
    const struct bag_journal_header wrong[] = {
        {.row_elements = 3, .row_bytes = 0, .dtype = BAG_F16},
        {.row_elements = 3, .row_bytes = 4, .dtype = BAG_F16},
        {.row_elements = 3, .row_bytes = 12, .dtype = BAG_F16},
        {.row_elements = 3, .row_bytes = 6, .dtype = BAG_F32},
        {.row_elements = UINT64_MAX / 2 + 4, .row_bytes = 6, .dtype = BAG_F16},
        {.row_elements = UINT64_MAX, .row_bytes = UINT64_MAX - 1, .dtype = BAG_F16},
        {.row_elements = 3, .row_bytes = 3, .dtype = BAG_BOOL},
        {.row_elements = 3, .row_bytes = 0, .dtype = BAG_BYTES},
        {.row_elements = 3, .row_bytes = 11, .dtype = BAG_U8, .row_format = BAG_ROWS_INT8},
        {.row_elements = 3, .row_bytes = 12, .dtype = BAG_F32, .row_format = BAG_ROWS_INT8}};
    unsigned char bytes[BAG_JOURNAL_MAX_HEADER_BYTES];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct bag_journal_header header = wrong[i];
        header.first_sequence = 1;
        size_t count = bag_journal_write_header(&header, bytes);
        expect_header_problem(bytes, count, "damaged");
    }
}

/* The longest texts fit. */
TEST(test_headers_of_parts)
{
    struct bag_journal_header header = items, read;
    unsigned char bytes[BAG_JOURNAL_MAX_HEADER_BYTES];
    struct bag_problem problem;
    size_t header_bytes;
    header.first_sequence = 1;
    for (size_t length = 0; length < BAG_JOURNAL_PART_BYTES; length += 127) {
        memset(header.name, 'n', sizeof header.name - 1);
        memset(header.part, 'p', length);
        for (int keyed = 0; keyed < 2; keyed++) {
            header.keyed = keyed;
            size_t count = bag_journal_write_header(&header, bytes);
            assert_in_range(count, 1, sizeof bytes);
            char *copy = exact_copy(bytes, count);
            assert_true(bag_journal_read_header(copy, count, &read, &header_bytes, &problem));
            assert_int_equal(header_bytes, count);
            assert_string_equal(read.name, header.name);
            assert_string_equal(read.part, header.part);
            assert_int_equal(read.keyed, keyed);
            free(copy);
        }
    }
}

TEST(test_dense_tables_have_no_keys_to_delete)
{
    struct bag_journal_header dense = items;
    struct bag_journal_record record;
    struct journal journal;
    dense.keyed = false;
    make(&journal, true);
    assert_int_equal(
        bag_journal_read_record(journal.bytes, journal.at[3], journal.at[0], &dense, &record),
        journal.at[1] - journal.at[0]);
    assert_int_equal(
        bag_journal_read_record(journal.bytes, journal.at[3], journal.at[1], &dense, &record), 0);
}

TEST(test_ranges)
{
    struct bag_journal_record record = {.sequence = 9,
                                        .is_range = true,
                                        .kind = BAG_JOURNAL_UPSERT,
                                        .count = 1,
                                        .ids = ids,
                                        .rows = rows},
                              again;
    unsigned char bytes[64];
    assert_int_equal(bag_journal_record_bytes(&record, ROW_BYTES), sizeof bytes);
    bag_journal_write_record(&record, ROW_BYTES, bytes);
    assert_int_equal(bag_journal_read_record(bytes, sizeof bytes, 0, &items, &again), sizeof bytes);
    assert_true(again.is_range && again.sequence == 9);
    assert_true(bag_journal_follows(&again, 0) && bag_journal_follows(&again, 8));
    assert_false(bag_journal_follows(&again, 9) || bag_journal_follows(&again, 10));
    record.is_range = false;
    bag_journal_write_record(&record, ROW_BYTES, bytes);
    assert_int_equal(bag_journal_read_record(bytes, sizeof bytes, 0, &items, &again), sizeof bytes);
    assert_false(again.is_range);
    assert_true(bag_journal_follows(&again, 8));
    assert_false(bag_journal_follows(&again, 7) || bag_journal_follows(&again, 9));
}

/* A record of nothing but ids that look like heads of records, each of all bytes behind it: only so
 * many sums are made of it. */
TEST(test_tail_of_heads)
{
    const size_t count = 1 << 20;
    unsigned char *bytes = calloc(1, count);
    struct bag_journal_record head = {.sequence = 1, .kind = BAG_JOURNAL_DELETE};
    assert_non_null(bytes);
    for (size_t at = 48; at + 48 <= count; at += 48) {
        unsigned char empty[48];
        bag_journal_write_record(&head, ROW_BYTES, empty);
        uint64_t total = count - at, ids_count = (total - 48) / 8;
        for (int i = 0; i < 8; i++) {
            empty[8 + i] = (unsigned char)(total >> 8 * i);
            empty[40 + i] = (unsigned char)(ids_count >> 8 * i);
        }
        memcpy(bytes + at, empty, sizeof empty);
    }
    assert_false(bag_journal_tail_is_torn(bytes, count, 0, &items));
    /* As few as a tail may have that was lost. */
    memset(bytes + 96, 0, count - 96);
    assert_true(bag_journal_tail_is_torn(bytes, count, 0, &items));
    free(bytes);
}

TEST(test_tells_tails_from_damage)
{
    struct journal journal;
    make(&journal, true);
    /* The last record: nothing says that the disk ever had it. */
    assert_true(bag_journal_tail_is_torn(journal.bytes, journal.at[3], journal.at[2], &items));
    /* The second: the third was written when it was safe. */
    journal.bytes[journal.at[1] + 50] ^= 1;
    assert_false(bag_journal_tail_is_torn(journal.bytes, journal.at[3], journal.at[1], &items));
    journal.bytes[journal.at[1] + 8] ^= 0xff; /* nor if its length is lost */
    assert_false(bag_journal_tail_is_torn(journal.bytes, journal.at[3], journal.at[1], &items));
    /* Written together, before anything was synced: the disk had the third one first. */
    make(&journal, false);
    journal.bytes[journal.at[1] + 50] ^= 1;
    assert_true(bag_journal_tail_is_torn(journal.bytes, journal.at[3], journal.at[1], &items));
    /* Zeros, which a file system leaves if the data was not written yet. */
    memset(journal.bytes + journal.at[1], 0, sizeof journal.bytes - journal.at[1]);
    assert_true(
        bag_journal_tail_is_torn(journal.bytes, sizeof journal.bytes, journal.at[1], &items));
}

TEST(test_counts_bytes)
{
    struct bag_journal_record record = {.kind = BAG_JOURNAL_UPSERT, .count = 1};
    assert_int_equal(bag_journal_record_bytes(&record, 1), 48 + 16);
    assert_int_equal(bag_journal_record_bytes(&record, 8), 48 + 16);
    assert_int_equal(bag_journal_record_bytes(&record, 9), 48 + 24);
    assert_int_equal(bag_journal_record_bytes(&record, UINT64_MAX), 0);
    record.count = UINT64_MAX / 9;
    assert_int_equal(bag_journal_record_bytes(&record, 1), 0);
    record.count = 0;
    assert_int_equal(bag_journal_record_bytes(&record, 8), 48);
}

/* A count that no file holds, in a record that says it has no bytes. */
TEST(test_rejects_uncountable_records)
{
    struct bag_journal_record record = {
        .sequence = 1, .kind = BAG_JOURNAL_DELETE, .count = 1, .ids = ids};
    unsigned char bytes[56];
    bag_journal_write_record(&record, 8, bytes);
    assert_int_equal(bag_journal_read_record(bytes, sizeof bytes, 0, &items, &record), 56);
    memset(bytes + 8, 0, 8);
    bytes[47] = 0x80;
    assert_int_equal(bag_journal_read_record(bytes, sizeof bytes, 0, &items, &record), 0);
}
