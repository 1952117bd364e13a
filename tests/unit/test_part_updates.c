/* Updates of a part of a table: of what all parts are sent each takes its own, and together they
 * are as the whole table is afterwards. */
#include "part_fixture.h"
#include "server/tables/live_rows.h"
#include "testing.h"

#define ROWS    20
#define COLUMNS 7

/* ---- a table, whole or a part ---------------------------------------------------------------- */

struct live {
    struct bag_source *source;
    struct bag_stored_table *stored;
    struct bag_table_memory *memory;
};

static struct live open_live(const char *const *settings, const char *part)
{
    const char *all[32];
    size_t count = 0;
    struct live live;
    for (; settings[count]; count++)
        all[count] = settings[count];
    all[count] = part ? "part" : NULL;
    all[count + 1] = part;
    all[count + 2] = NULL;
    live.source = make_source(all);
    live.stored = load_source(live.source);
    live.memory = &live.stored->memory;
    assert_true(bag_live_rows_make(live.memory, live.memory->kept_rows));
    return live;
}

static void close_live(struct live *live)
{
    bag_live_rows_free(live->memory->live);
    live->memory->live = NULL;
    bag_stored_table_drop(live->stored);
    bag_source_free(live->source);
}

/* ---- batches --------------------------------------------------------------------------------- */

struct sent {
    struct bag_tensor ids, rows;
    bool deletes;
};

/* `count` ids, and rows of `columns` floats that differ. */
static struct sent send_rows(const int64_t *ids, size_t count, const float *rows, int64_t columns)
{
    return (struct sent){.ids = {.dtype = BAG_I64,
                                 .rank = 1,
                                 .shape = {(int64_t)count},
                                 .count = count,
                                 .data = ids},
                         .rows = {.dtype = BAG_F32,
                                  .rank = 2,
                                  .shape = {(int64_t)count, columns},
                                  .count = count * (size_t)columns,
                                  .data = rows},
                         .deletes = rows == NULL};
}

/* Applies it; returns how many ids were left out. */
static size_t put(struct live *live, const struct sent *sent)
{
    struct bag_arena arena;
    struct bag_rows_batch batch;
    struct bag_problem problem;
    bool changes;
    bag_arena_init(&arena, SIZE_MAX);
    if (!bag_rows_batch_make(live->memory, &sent->ids, sent->deletes ? NULL : &sent->rows, false,
                             &arena, &batch, &problem) ||
        !bag_live_rows_check(live->memory->live, &batch, &changes, &problem) ||
        !bag_live_rows_apply(live->memory->live, &batch, &problem))
        fail_msg("%s", problem.text);
    size_t left_out = batch.left_out;
    assert_int_equal(batch.count + left_out, sent->ids.count);
    bag_arena_free(&arena);
    return left_out;
}

static void expect_problem(struct live *live, const struct sent *sent, const char *text)
{
    struct bag_arena arena;
    struct bag_rows_batch batch;
    struct bag_problem problem;
    bool changes;
    bag_arena_init(&arena, SIZE_MAX);
    assert_false(bag_rows_batch_make(live->memory, &sent->ids, sent->deletes ? NULL : &sent->rows,
                                     false, &arena, &batch, &problem) &&
                 bag_live_rows_check(live->memory->live, &batch, &changes, &problem));
    assert_string_equal(problem.text, text);
    bag_arena_free(&arena);
}

static void fill(float *values, size_t count, float from)
{
    for (size_t i = 0; i < count; i++)
        values[i] = from + (float)(i * 37 % 101) / 8;
}

static void write_rows(void)
{
    float data[ROWS][COLUMNS];
    char shape[32];
    fill(&data[0][0], ROWS * COLUMNS, -50);
    snprintf(shape, sizeof shape, "(%d, %d)", ROWS, COLUMNS);
    write_table("<f4", "False", shape, data, sizeof data);
}

/* ---- rows and columns ------------------------------------------------------------------------ */

static const int64_t ids[] = {19, 0, 7, 6, 13, 12, 1};
static float sent_rows[COUNT_OF(ids)][COLUMNS];

AROUND_EACH(set_up_both, tear_down_both)

TEST(parts_by_rows_take_their_own)
{
    static const char *const settings[] = {"default_index", "7", NULL};
    /* 0 to 6, 6 to 13, 13 to 20; row 7 is in each */
    static const char *const parts[] = {"rows 0 of 3", "rows 1 of 3", "rows 2 of 3"};
    static const size_t left_out[] = {4, 4, 4};
    write_rows();
    fill(&sent_rows[0][0], COUNT_OF(ids) * COLUMNS, 7);
    struct live whole = open_live(settings, NULL);
    struct sent sent = send_rows(ids, COUNT_OF(ids), &sent_rows[0][0], COLUMNS);
    assert_int_equal(put(&whole, &sent), 0);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        struct live part = open_live(settings, parts[i]);
        assert_int_equal(put(&part, &sent), left_out[i]);
        for (uint64_t row = 0; row < ROWS; row++) {
            int64_t local = bag_table_local_row(part.memory, row);
            assert_int_equal(local >= 0, bag_table_owns(part.memory, row) || row == 7);
            if (local >= 0)
                assert_memory_equal(row_of(part.memory, local), row_of(whole.memory, (int64_t)row),
                                    sizeof sent_rows[0]);
        }
        close_live(&part);
    }
    close_live(&whole);
}

TEST(parts_by_rows_know_the_whole_table)
{
    static const char *const none[] = {NULL};
    static const int64_t beyond[] = {1, 20}, twice[] = {19, 1, 19};
    write_rows();
    struct live part = open_live(none, "rows 0 of 3");
    struct sent sent = send_rows(beyond, 2, &sent_rows[0][0], COLUMNS);
    expect_problem(&part, &sent, "'indices' has 20 at position 1; the whole table has 20 rows");
    sent = send_rows(twice, 3, &sent_rows[0][0], COLUMNS);
    expect_problem(&part, &sent, "'indices' names the same row at positions 0 and 2");
    close_live(&part);
}

/* Tests plain rows and quantised rows, whose scale is that of the whole row. */
TEST(parts_by_columns_cut_rows)
{
    static const char *const none[] = {NULL};
    static const char *const int8[] = {"row_format", "int8", "row_elements", "7", NULL};
    static const char *const int4[] = {"row_format", "int4", "row_elements", "7", NULL};
    static const struct {
        const char *const *settings;
        const char *descr, *shape;
        size_t bytes;
    } tables[] = {{none, "<f4", "(20, 7)", 560},
                  {none, "<f2", "(20, 7)", 280},
                  {none, "<f8", "(20, 7)", 1120},
                  {int8, "|u1", "(20, 15)", 300},
                  {int4, "|u1", "(20, 8)", 160}};
    static unsigned char data[1120];
    fill(&sent_rows[0][0], COUNT_OF(ids) * COLUMNS, 7);
    struct sent sent = send_rows(ids, COUNT_OF(ids), &sent_rows[0][0], COLUMNS);
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        write_table(tables[i].descr, "False", tables[i].shape, data, tables[i].bytes);
        struct live whole = open_live(tables[i].settings, NULL);
        assert_int_equal(put(&whole, &sent), 0);
        for (int index = 0; index < 3; index++) {
            char part[32];
            snprintf(part, sizeof part, "columns %d of 3", index);
            struct live own = open_live(tables[i].settings, part);
            const struct bag_table_memory *memory = own.memory;
            char cut[64];
            assert_int_equal(put(&own, &sent), 0);
            for (int64_t row = 0; row < ROWS; row++) {
                bag_part_cut_rows(&whole.memory->table, row_of(whole.memory, row), 1,
                                  memory->first_column, memory->table.row_elements, cut);
                assert_memory_equal(row_of(memory, row), cut, bag_row_bytes(&memory->table));
            }
            close_live(&own);
        }
        close_live(&whole);
    }
}

TEST(rows_have_the_whole_width)
{
    static const char *const none[] = {NULL};
    write_rows();
    struct live part = open_live(none, "columns 0 of 3");
    struct sent sent = send_rows(ids, 2, &sent_rows[0][0], 2);
    expect_problem(&part, &sent, "'rows' is FP32 [2, 2]; for so many ids it must be FP32 [2, 7]");
    close_live(&part);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* With 2 parts, keys 1, 42, 2^31 and 2^63 belong to part 1, and the others to part 0. */
static const int64_t table_keys[ROWS] = {1,          0,         2,   42,  INT64_C(0x20000000000000),
                                         0x80000000, INT64_MIN, -1,  100, 101,
                                         102,        103,       104, 105, 106,
                                         107,        108,       109, 110, 111};

static bool has_key(const struct live *live, int64_t key)
{
    return bag_keys_find_one(&live->memory->index.keys, (uint64_t)key) >= 0;
}

TEST(parts_by_keys_take_their_own_and_what_they_keep)
{
    const char *const settings[] = {"keys", keys_path,       "missing", "hash",       "hash_rows",
                                    "2",    "default_index", "42",      "spare_rows", "4",
                                    NULL};
    /* Own ones, one that is kept as row 1, the default, one of another part, and new ones of both.
     */
    static const int64_t changed[] = {1, 0, 42, 2, 5000, 5001};
    static const int64_t removed[] = {0, 2, 1};
    float rows[COUNT_OF(changed)][COLUMNS];
    write_rows();
    write_keys(table_keys, ROWS);
    fill(&rows[0][0], COUNT_OF(changed) * COLUMNS, 3);
    assert_int_not_equal(bag_part_of_key(5000, 2), bag_part_of_key(5001, 2));
    for (uint32_t index = 0; index < 2; index++) {
        char text[32];
        snprintf(text, sizeof text, "keys %u of 2", index);
        struct live part = open_live(settings, text);
        struct sent sent = send_rows(changed, COUNT_OF(changed), &rows[0][0], COLUMNS);
        assert_int_equal(put(&part, &sent), index == 0 ? 1 : 2);
        for (size_t i = 0; i < COUNT_OF(changed); i++) {
            bool owns = bag_part_of_key((uint64_t)changed[i], 2) == index;
            int64_t row = bag_keys_find_one(&part.memory->index.keys, (uint64_t)changed[i]);
            assert_int_equal(row >= 0, owns || changed[i] < 2 || changed[i] == 42);
            if (row >= 0)
                assert_memory_equal(row_of(part.memory, row), rows[i], sizeof rows[i]);
        }
        sent = send_rows(removed, COUNT_OF(removed), NULL, 0);
        assert_int_equal(put(&part, &sent), index == 0 ? 0 : 1);
        assert_false(has_key(&part, 0) || has_key(&part, 1) || has_key(&part, 2));
        assert_true(has_key(&part, 42));
        close_live(&part);
    }
}

/* Updates are read side by side, and applied one after the other: which copies a part has is
 * decided when the earlier ones are applied. */
TEST(decides_about_copies_after_earlier_updates)
{
    const char *const settings[] = {"keys", keys_path,    "missing", "hash", "hash_rows",
                                    "2",    "spare_rows", "4",       NULL};
    static const int64_t removed[] = {0}, changed[] = {1, 0, 42};
    struct bag_rows_batch batches[2];
    struct bag_problem problem;
    struct bag_arena arena;
    bool changes;
    write_rows();
    write_keys(table_keys, ROWS);
    fill(&sent_rows[0][0], COUNT_OF(changed) * COLUMNS, 3);
    struct live part = open_live(settings, "keys 1 of 2");
    struct sent sent[] = {send_rows(removed, COUNT_OF(removed), NULL, 0),
                          send_rows(changed, COUNT_OF(changed), &sent_rows[0][0], COLUMNS)};
    bag_arena_init(&arena, SIZE_MAX);
    assert_true(has_key(&part, 0));
    for (size_t i = 0; i < 2; i++)
        assert_true(bag_rows_batch_make(part.memory, &sent[i].ids,
                                        sent[i].deletes ? NULL : &sent[i].rows, false, &arena,
                                        &batches[i], &problem));
    for (size_t i = 0; i < 2; i++) {
        assert_true(bag_live_rows_check(part.memory->live, &batches[i], &changes, &problem));
        assert_true(bag_live_rows_apply(part.memory->live, &batches[i], &problem));
    }
    assert_int_equal(batches[1].left_out, 1);
    assert_int_equal(batches[1].count, 2);
    assert_false(has_key(&part, 0));
    assert_int_equal(bag_table_spare_rows_now(part.memory), 4);
    for (size_t i = 0; i < COUNT_OF(changed); i += 2)
        assert_memory_equal(
            row_of(part.memory, bag_keys_find_one(&part.memory->index.keys, (uint64_t)changed[i])),
            sent_rows[i], sizeof sent_rows[i]);
    bag_arena_free(&arena);
    close_live(&part);
}

/* Positions are those of what was sent. */
TEST(says_where_a_key_was_sent)
{
    const char *const settings[] = {"keys", keys_path, NULL};
    static const int64_t removed[] = {42, 0, INT64_C(1) << 31, 7000};
    write_rows();
    write_keys(table_keys, ROWS);
    uint32_t owner = bag_part_of_key(7000, 2);
    char text[32];
    snprintf(text, sizeof text, "keys %u of 2", owner);
    struct live part = open_live(settings, text);
    struct sent sent = send_rows(removed, COUNT_OF(removed), NULL, 0);
    expect_problem(&part, &sent, "'keys' has 7000 at position 3: the table does not have it");
    close_live(&part);
}
