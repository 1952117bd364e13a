/* Parts of tables: together they hold what the whole table has, at every size, of every kind of
 * rows, and nothing else of it. */
#include "kernels/pool_encode.h"
#include "kernels/rowformat.h"
#include "part_fixture.h"
#include "testing.h"

/* ---- sources --------------------------------------------------------------------------------- */

/* Adds the settings of a part to those of the whole table. */
static void with_part(const char *const *settings, const char *by, uint32_t index, uint32_t of,
                      const char **out, char part[64])
{
    size_t count = 0;
    for (; settings[count]; count++)
        out[count] = settings[count];
    snprintf(part, 64, "%s %u of %u", by, index, of);
    out[count] = "part";
    out[count + 1] = part;
    out[count + 2] = NULL;
}

static void reject(const char *const *settings, bool maps, const char *rejection)
{
    struct bag_problem problem;
    struct bag_source *source = make_source(settings);
    char whole[512];
    source->maps = maps;
    snprintf(whole, sizeof whole, "model 't' (%s): %s", path, rejection);
    assert_false(bag_source_open_table(source, &problem));
    assert_string_equal(problem.text, whole);
    bag_source_free(source);
}

/* ---- what is in memory ----------------------------------------------------------------------- */

static void check_row(const struct bag_table_memory *part, int64_t local,
                      const struct bag_table_memory *whole, int64_t row)
{
    if (memcmp(row_of(part, local), row_of(whole, row), bag_row_bytes(&whole->table)) != 0)
        fail_msg("row %lld is not that of the file", (long long)row);
}

/* Integers have no decoder of their own: their bytes are compared, of all plain rows. */
static void check_columns(const struct bag_table_memory *part, const struct bag_table_memory *whole)
{
    size_t first = part->first_column, count = part->table.row_elements;
    size_t bytes = bag_dtypes[part->table.dtype].bytes;
    float *own = calloc(count + 1, sizeof *own), *want = calloc(count + 1, sizeof *want);
    assert_int_equal(part->shape[1], count);
    for (int64_t row = 0; row < part->table.num_rows; row++) {
        if (part->table.row_format == BAG_ROWS_PLAIN) {
            assert_memory_equal(row_of(part, row), row_of(whole, row) + first * bytes,
                                count * bytes);
            continue;
        }
        bag_row_decode(&part->table, row, 0, count, own);
        bag_row_decode(&whole->table, row, first, count, want);
        assert_memory_equal(own, want, count * sizeof *own);
    }
    free(own);
    free(want);
}

/* Checks that the index has the keys of the part with their rows in the file, and no memory for
 * other keys. */
static void check_mapped_keys(const struct bag_table_memory *part,
                              const struct bag_table_memory *whole, const int64_t *keys,
                              int64_t hash_rows, int64_t kept_default)
{
    const size_t count = (size_t)part->whole_rows;
    int64_t *found = calloc(count + 1, sizeof *found);
    struct bag_ids ids = {keys, count, true};
    size_t share = whole->index.mapping_bytes / part->part.of;
    assert_int_equal(part->table.num_rows, whole->table.num_rows);
    assert_in_range(part->index.mapping_bytes, 0, 2 * share + 19 * (64 + (size_t)hash_rows) + 4096);
    bag_keys_find(&part->index.keys, &ids, found);
    for (int64_t row = 0; row < (int64_t)part->whole_rows; row++) {
        assert_int_equal(found[row], bag_keys_find_one(&part->index.keys, (uint64_t)keys[row]));
        bool wants = bag_table_owns(part, (uint64_t)keys[row]) || row < hash_rows ||
                     keys[row] == kept_default;
        assert_int_equal(bag_keys_find_one(&part->index.keys, (uint64_t)keys[row]),
                         wants ? row : -1);
        check_row(part, row, whole, row);
    }
    free(found);
}

/* Every key of the whole table is in the parts that it should be in, with its row. */
static void check_keys(const struct bag_table_memory *part, const struct bag_table_memory *whole,
                       const int64_t *keys, int64_t hash_rows, int64_t kept_default)
{
    int64_t found = 0;
    for (int64_t row = 0; row < (int64_t)part->whole_rows; row++) {
        uint64_t key = (uint64_t)keys[row];
        bool owns = bag_part_of_key(key, part->part.of) == part->part.index;
        int64_t local = bag_keys_find_one(&part->index.keys, key);
        assert_int_equal(bag_table_owns(part, key), owns);
        assert_int_equal(local >= 0, owns || row < hash_rows || keys[row] == kept_default);
        if (row < hash_rows)
            assert_int_equal(local, row);
        if (local < 0)
            continue;
        assert_int_equal(local, found++); /* the rows keep their order */
        check_row(part, local, whole, row);
    }
    assert_int_equal(part->shape[0], found);
    assert_int_equal(part->table.num_rows, found);
}

/* ---- the whole of a table -------------------------------------------------------------------- */

struct table {
    bool maps;
    const char *const *settings;
    const char *by;
    const int64_t *keys; /* NULL: none */
    int64_t hash_rows, kept_default;
};

static uint64_t digest; /* digest of the table's parts so far; 0: no part was loaded yet */

static void check_part(const struct table *table, const struct bag_table_memory *whole,
                       uint32_t index, uint32_t of, uint64_t *rows, size_t *columns)
{
    const char *settings[32];
    char part[64];
    with_part(table->settings, table->by, index, of, settings, part);
    struct bag_source *source = make_source(settings);
    source->maps = table->maps;
    struct bag_stored_table *stored = load_source(source);
    const struct bag_table_memory *memory = &stored->memory;
    assert_int_equal(memory->whole_rows, whole->table.num_rows);
    assert_int_equal(memory->whole_elements, whole->table.row_elements);
    assert_int_equal(memory->part.index, index);
    assert_int_equal(memory->part.of, of);
    assert_true(memory->digest != 0 && (!digest || memory->digest == digest));
    digest = memory->digest;
    if (memory->part.by == BAG_PART_ROWS) {
        int64_t kept_default = table->kept_default;
        for (int64_t i = 0; i < memory->shape[0]; i++)
            check_row(memory, i, whole, (int64_t)memory->first_row + i);
        for (uint64_t row = 0; row < memory->whole_rows; row++) {
            int64_t local = bag_table_local_row(memory, row);
            bool is_own =
                row >= memory->first_row && row - memory->first_row < (uint64_t)memory->shape[0];
            assert_int_equal(bag_table_owns(memory, row), is_own);
            assert_int_equal(local >= 0, is_own || (int64_t)row == kept_default);
            assert_true(local < memory->table.num_rows);
            if (local >= 0)
                check_row(memory, local, whole, (int64_t)row);
        }
        assert_int_equal(bag_source_read_bytes(source),
                         table->maps ? 0 : (size_t)memory->shape[0] * bag_row_bytes(&whole->table));
    } else if (memory->part.by == BAG_PART_COLUMNS) {
        check_columns(memory, whole);
    } else if (table->maps) {
        check_mapped_keys(memory, whole, table->keys, table->hash_rows, table->kept_default);
    } else {
        check_keys(memory, whole, table->keys, table->hash_rows, table->kept_default);
    }
    assert_in_range(table->maps ? memory->index.mapping_bytes : bag_table_memory_bytes(memory), 0,
                    bag_source_bytes(source));
    *rows += (uint64_t)memory->shape[0];
    *columns += memory->table.row_elements;
    bag_stored_table_drop(stored);
    bag_source_free(source);
}

static void check_table(const struct table *table)
{
    struct bag_source *source = make_source(table->settings);
    struct bag_stored_table *whole = load_source(source);
    const uint32_t counts[] = {1, 2, 3, 7, 50};
    size_t num_counts = whole->memory.table.num_rows > 10000 ? 3 : COUNT_OF(counts);
    digest = 0;
    for (size_t i = 0; i < num_counts; i++) {
        uint64_t rows = 0;
        size_t columns = 0;
        for (uint32_t index = 0; index < counts[i]; index++)
            check_part(table, &whole->memory, index, counts[i], &rows, &columns);
        if (strcmp(table->by, "columns") == 0)
            assert_int_equal(columns, whole->memory.table.row_elements);
        else if (!table->hash_rows && table->kept_default == -1 && !(table->maps && table->keys))
            assert_int_equal(rows, whole->memory.table.num_rows);
    }
    bag_stored_table_drop(whole);
    bag_source_free(source);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Elements that differ, of any type; NaNs among floats do not matter. */
static void write_rows(const char *descr, const char *order, size_t rows, size_t columns,
                       size_t element_bytes)
{
    char shape[64];
    size_t bytes = rows * columns * element_bytes;
    unsigned char *data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    snprintf(shape, sizeof shape, "(%zu, %zu)", rows, columns);
    write_table(descr, order, shape, data, bytes);
    free(data);
}

static const struct {
    const char *descr;
    size_t bytes;
} types[] = {{"<f4", 4}, {">f4", 4}, {"<f2", 2}, {"<f8", 8}, {"|u1", 1}, {"<i8", 8}, {">u2", 2}};

static const size_t sizes[][2] = {{0, 3}, {1, 1}, {2, 5}, {101, 7}};

TEST_BETWEEN(rows_and_columns_of_every_type, set_up_both, tear_down_both)
{
    static const char *const ways[] = {"rows", "columns"}, *const orders[] = {"False", "True"};
    static const char *const none[] = {NULL};
    for (size_t i = 0; i < COUNT_OF(types) * COUNT_OF(sizes) * 4; i++) {
        size_t type = i / 4 % COUNT_OF(types), size = i / 4 / COUNT_OF(types);
        struct table table = {.settings = none, .by = ways[i % 2], .kept_default = -1};
        write_rows(types[type].descr, orders[i / 2 % 2], sizes[size][0], sizes[size][1],
                   types[type].bytes);
        check_table(&table);
    }
}

TEST_BETWEEN(parts_by_rows_keep_the_default_row, set_up_both, tear_down_both)
{
    static const char *const settings[] = {"default_index", "77", NULL};
    struct table table = {.settings = settings, .by = "rows", .kept_default = 77};
    write_rows("<f4", "False", 101, 7, 4);
    check_table(&table);
    write_rows(">f4", "True", 101, 7, 4);
    check_table(&table);
}

/* More than a block that is read at once, of rows that are not of its size. */
TEST_BETWEEN(large_tables, set_up_both, tear_down_both)
{
    static const char *const none[] = {NULL}, *const ways[] = {"rows", "columns"};
    for (int way = 0; way < 2; way++) {
        struct table table = {.settings = none, .by = ways[way], .kept_default = -1};
        write_rows("<f4", "False", 40009, 63, 4);
        check_table(&table);
        write_rows("<f4", "True", 40009, 63, 4);
        check_table(&table);
    }
}

static uint64_t digest_of(const char *const *settings)
{
    struct bag_source *source = make_source(settings);
    struct bag_stored_table *stored = load_source(source);
    uint64_t found = stored->memory.digest;
    bag_stored_table_drop(stored);
    bag_source_free(source);
    return found;
}

/* Files that differ in one of a few bytes, or of many bytes in most, have other digests. A whole
 * table has none. */
TEST_BETWEEN(digests, set_up_both, tear_down_both)
{
    static const char *const none[] = {NULL}, *const half[] = {"part", "columns 1 of 2", NULL};
    static char data[(size_t)1 << 20];
    const size_t lengths[] = {64, 64 * 4096, sizeof data};
    uint64_t before = 0;
    for (size_t i = 0; i < 2 * COUNT_OF(lengths); i++) {
        char shape[64];
        snprintf(shape, sizeof shape, "(%zu, 8)", lengths[i / 2] / 8);
        if (i == 5)
            memset(data + (sizeof data >> 5), 7, sizeof data - (sizeof data >> 4));
        else
            data[lengths[i / 2] - 1 - i]++;
        write_table("|i1", "False", shape, data, lengths[i / 2]);
        assert_int_equal(digest_of(none), 0);
        assert_true(digest_of(half) != before);
        before = digest_of(half);
    }
}

/* The vectors of such a file are gone, however many rows its header has. */
TEST_BETWEEN(rejects_rows_without_elements, set_up_both, tear_down_both)
{
    static const char *const whole[] = {NULL}, *const third[] = {"part", "rows 1 of 3", NULL};
    write_table("<f4", "False", "(1729382256910270464, 0)", "", 0);
    for (int i = 0; i < 2; i++) {
        struct bag_source *source = make_source(i ? third : whole);
        struct bag_problem problem;
        assert_false(bag_source_open_table(source, &problem));
        assert_non_null(strstr(problem.text, "the table has no vectors"));
        bag_source_free(source);
    }
}

TEST_BETWEEN(rows_of_any_rank, set_up_both, tear_down_both)
{
    static const float data[5 * 2 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const char *const none[] = {NULL};
    struct table table = {.settings = none, .by = "rows", .kept_default = -1};
    write_table("<f4", "False", "(5, 2, 3)", data, sizeof data);
    check_table(&table);
    write_table("<f4", "True", "(5, 2, 3)", data, sizeof data);
    check_table(&table);
    write_table("<f4", "False", "(30,)", data, sizeof data);
    check_table(&table);
    static const char *const columns[] = {"part", "columns 0 of 2", NULL};
    reject(columns, false,
           "part: a table of 2 dimensions can be divided by columns; this one has 1: say rows");
}

TEST_BETWEEN(quantised_rows, set_up_both, tear_down_both)
{
    static const struct {
        const char *format, *elements;
        size_t bytes;
    } formats[] = {{"int8", "9", 17},           {"int4", "9", 9},
                   {"int4", "10", 9},           {"int8_f16_front", "9", 13},
                   {"int4_f16_front", "9", 9},  {"f8_e4m3", "9", 9},
                   {"f8_e5m2_scaled", "9", 13}, {"int8_symmetric_f16", "9", 11},
                   {"int8_f16_back", "9", 13},  {"int2", "9", 7},
                   {"int2_f16_front", "12", 7}};
    static const char *const ways[] = {"rows", "columns"}, *const orders[] = {"False", "True"};
    for (size_t i = 0; i < COUNT_OF(formats) * 4; i++) {
        const char *settings[] = {"row_format", formats[i / 4].format, "row_elements",
                                  formats[i / 4].elements, NULL};
        struct table table = {.settings = settings, .by = ways[i % 2], .kept_default = -1};
        write_rows("|u1", orders[i / 2 % 2], 21, formats[i / 4].bytes, 1);
        check_table(&table);
    }
}

/* Two halves of a byte; the last byte of a part is filled with zeros. */
TEST(cuts_rows_of_four_bits)
{
    static const unsigned char row[] = {0x21, 0x43, 0x65, 0x07, 1, 2, 3, 4};
    static const unsigned char want[] = {0x32, 0x54, 0x06, 1, 2, 3, 4};
    static const unsigned char even[] = {0x43, 0x05, 1, 2, 3, 4};
    struct bag_table whole = {.dtype = BAG_F32, .row_elements = 7, .row_format = BAG_ROWS_INT4};
    unsigned char out[sizeof row];
    bag_part_cut_rows(&whole, row, 1, 1, 5, out);
    assert_memory_equal(out, want, sizeof want);
    bag_part_cut_rows(&whole, row, 1, 2, 3, out);
    assert_memory_equal(out, even, sizeof even);
}

/* Four codes of a byte likewise. */
TEST(cuts_rows_of_two_bits)
{
    static const unsigned char row[] = {0xe4, 0x1b, 1, 2, 3, 4};
    static const unsigned char want[] = {0xf9, 2, 1, 2, 3, 4};
    struct bag_table whole = {.dtype = BAG_F32, .row_elements = 8, .row_format = BAG_ROWS_INT2};
    unsigned char out[sizeof row];
    bag_part_cut_rows(&whole, row, 1, 1, 5, out);
    assert_memory_equal(out, want, sizeof want);
}

/* Rows of all widths, cut at all columns and joined again, are the same bytes. */
TEST(joins_rows_that_were_cut)
{
    static const enum bag_row_format formats[] = {BAG_ROWS_INT8, BAG_ROWS_INT4_F16_FRONT,
                                                  BAG_ROWS_INT2, BAG_ROWS_F8_E5M2,
                                                  BAG_ROWS_INT8_SYMMETRIC_F16};
    for (size_t i = 0; i < COUNT_OF(formats) * 17 * 17; i++) {
        const size_t elements = i % 17 + 1, cut = i / 17 % 17;
        struct bag_table whole = {
            .dtype = BAG_F32, .row_elements = elements, .row_format = formats[i / (17 * 17)]};
        const size_t bytes = bag_row_bytes(&whole);
        unsigned char row[64], left[64], right[64], joined[64];
        for (size_t j = 0; j < bytes; j++)
            row[j] = (unsigned char)((i + j) * 2654435761u >> 7);
        bag_rows_clear_unused(whole.row_format, elements, 1, row);
        if (cut > elements)
            continue;
        bag_part_cut_rows(&whole, row, 1, 0, cut, left);
        bag_part_cut_rows(&whole, row, 1, cut, elements - cut, right);
        memset(joined, 0xee, sizeof joined);
        bag_part_join_row(whole.row_format, elements, left, 0, cut, joined);
        bag_part_join_row(whole.row_format, elements, right, cut, elements - cut, joined);
        assert_memory_equal(joined, row, bytes);
        assert_int_equal(joined[bytes], 0xee);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int64_t *make_keys(size_t count)
{
    int64_t *keys = malloc((count + 1) * sizeof *keys);
    for (size_t i = 0; i <= count; i++)
        keys[i] = (int64_t)(i * UINT64_C(0x9e3779b97f4a7c15)) >> (i % 3 * 16);
    write_keys(keys, count);
    return keys;
}

TEST_BETWEEN(keyed_tables, set_up_both, tear_down_both)
{
    static const size_t counts[] = {0, 1, 2, 40, 16384, 40009};
    static const char *const orders[] = {"False", "True"};
    const char *const plain[] = {"keys", keys_path, NULL};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        int64_t *keys = make_keys(counts[i]);
        char default_key[24];
        snprintf(default_key, sizeof default_key, "%lld",
                 (long long)keys[counts[i] ? counts[i] - 1 : 0]);
        const char *const hashing[] = {"keys", keys_path,       "missing",   "hash", "hash_rows",
                                       "30",   "default_index", default_key, NULL};
        write_rows("<f4", orders[i % 2], counts[i], 5, 4);
        struct table table = {.settings = plain, .by = "keys", .keys = keys, .kept_default = -1};
        check_table(&table);
        table.by = "columns";
        check_table(&table);
        if (counts[i] < 40) {
            free(keys);
            continue;
        }
        table = (struct table){.settings = hashing,
                               .by = "keys",
                               .keys = keys,
                               .hash_rows = 30,
                               .kept_default = keys[counts[i] - 1]};
        check_table(&table);
        table.maps = i % 2 == 0; /* files that are not column-major can be mapped */
        check_table(&table);
        free(keys);
    }
}

TEST_BETWEEN(mapped_ranges_of_rows, set_up_both, tear_down_both)
{
    static const char *const none[] = {NULL}, *const quantised[] = {"row_format", "int8",
                                                                    "row_elements", "9", NULL};
    struct table table = {.maps = true, .settings = none, .by = "rows", .kept_default = -1};
    write_rows("<f4", "False", 4099, 7, 4);
    check_table(&table);
    write_rows("<f4", "False", 0, 7, 4);
    check_table(&table);
    table.settings = quantised;
    write_rows("|u1", "False", 333, 17, 1);
    check_table(&table);
}

/* Rows so wide that fewer are read at once than keys are counted together. */
TEST_BETWEEN(keys_of_wide_rows, set_up_both, tear_down_both)
{
    const char *const plain[] = {"keys", keys_path, NULL};
    int64_t *keys = make_keys(20001);
    struct table table = {.settings = plain, .by = "keys", .keys = keys, .kept_default = -1};
    write_rows("<u2", "False", 20001, 500, 2);
    check_table(&table);
    free(keys);
}

/* ---- what cannot be -------------------------------------------------------------------------- */

TEST_BETWEEN(rejects_what_cannot_be_divided, set_up_both, tear_down_both)
{
    const char *const by_rows[] = {"keys", keys_path, "part", "rows 0 of 2", NULL};
    static const char *const by_keys[] = {"part", "keys 0 of 2", NULL};
    static const char *const columns[] = {"part", "columns 0 of 2", NULL};
    static const char *const mapped[] = {"part", "rows 0 of 2", "default_index", "3", NULL};
    free(make_keys(4));
    write_four_rows();
    reject(by_rows, false,
           "part: a table with keys is divided by keys or by columns: a range of its rows could "
           "not tell which keys are missing");
    reject(by_keys, false, "part: a table without keys is divided by rows or by columns");
    reject(columns, true, "part: a part by columns cannot be mapped: say load copy");
    reject(mapped, true,
           "part: default_index is 3, a row of another part, of which a mapped table can have no "
           "copy: say load copy");
}

TEST_BETWEEN(parts_are_tables_of_their_own, set_up_both, tear_down_both)
{
    static const char *const parts[] = {"rows 0 of 2", "rows 1 of 2", "rows 0 of 3",
                                        "columns 0 of 2"};
    uint64_t fingerprints[COUNT_OF(parts) + 1];
    struct bag_problem problem;
    write_four_rows();
    for (size_t i = 0; i <= COUNT_OF(parts); i++) {
        const char *settings[] = {"part", parts[i % COUNT_OF(parts)], NULL, NULL, NULL};
        if (i == COUNT_OF(parts)) {
            settings[2] = "default_index"; /* the part keeps one more row */
            settings[3] = "3";
        }
        struct bag_source *source = make_source(settings);
        assert_true(bag_source_open_table(source, &problem));
        fingerprints[i] = source->table_fingerprint;
        for (size_t j = 0; j < i; j++)
            assert_true(fingerprints[j] != fingerprints[i]);
        bag_source_free(source);
    }
}
