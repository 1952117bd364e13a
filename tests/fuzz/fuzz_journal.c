/* libFuzzer: journals of row updates. A record that is read must be written as the same bytes
 * again. A file of whole records that is truncated anywhere must have a torn tail. */
#include "fuzz.h"

#include "proto/formats.h"

static void check_again(const uint8_t *bytes, size_t taken, const struct bag_journal_header *header,
                        const struct bag_journal_record *record)
{
    require(record->sequence > 0 && taken == bag_journal_record_bytes(record, header->row_bytes));
    require((record->rows != NULL) == (record->kind == BAG_JOURNAL_UPSERT));
    require(header->keyed || record->rows);
    uint8_t *copy = malloc(taken);
    bag_journal_write_record(record, header->row_bytes, copy);
    /* Padding is free to be other bytes. */
    require(memcmp(copy + 8, bytes + 8, 40) == 0);
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
        header = (struct bag_journal_header){.row_bytes = 8, .keyed = true};
        at = 0;
    } else {
        /* Check that a server that accepts the header can read all bytes of each row. */
        struct bag_table table = {.dtype = header.dtype,
                                  .row_elements = header.row_elements,
                                  .row_format = header.row_format};
        require(header.row_bytes == bag_row_bytes(&table) && header.first_sequence > 0);
        require(header.row_elements <= UINT64_MAX / 16);
    }
    while ((taken = bag_journal_read_record(bytes, count, at, &header, &record)) > 0) {
        check_again(bytes + at, taken, &header, &record);
        at += taken;
    }
    require(at <= count);
    if (bag_journal_tail_is_torn(bytes, count, at, &header) && at > 0)
        require(bag_journal_tail_is_torn(bytes, at, at, &header));
    free(bytes);
    return 0;
}
