/* libFuzzer: journals of row updates. What is read must be written as the same bytes again, and a
 * file of whole records, truncated anywhere, has a torn tail. */
#include "fuzz.h"

#include "proto/formats.h"

static void check_again(const uint8_t *bytes, size_t taken, uint64_t row_bytes,
                        const struct bag_journal_record *record)
{
    require(record->sequence > 0 && taken == bag_journal_record_bytes(record, row_bytes));
    require((record->rows != NULL) == (record->kind == BAG_JOURNAL_UPSERT));
    uint8_t *copy = malloc(taken);
    bag_journal_write_record(record, row_bytes, copy);
    /* Padding and reserved bytes are free to be others. */
    require(memcmp(copy + 8, bytes + 8, 28) == 0);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count)
{
    struct bag_journal_header header;
    struct bag_journal_record record;
    struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
    size_t at, taken;
    uint8_t *bytes = malloc(count ? count : 1); /* exact: one byte beyond is found */
    memcpy(bytes, data, count);
    if (!bag_journal_read_header(bytes, count, &header, &at, &problem)) {
        require(problem.kind == BAG_ERROR_FILE && problem.text[0]);
        /* Records are worth reading all the same. */
        header.row_bytes = 8;
        at = 0;
    }
    while ((taken = bag_journal_read_record(bytes, count, at, header.row_bytes, &record)) > 0) {
        check_again(bytes + at, taken, header.row_bytes, &record);
        at += taken;
    }
    require(at <= count);
    if (bag_journal_tail_is_torn(bytes, count, at, header.row_bytes) && at > 0)
        require(bag_journal_tail_is_torn(bytes, at, at, header.row_bytes));
    free(bytes);
    return 0;
}
