/* Tables whose rows change: which threads wait for each other, and how a batch changes rows and
 * keys. */
#include "memory_fixture.h"
#include "testing.h"

#include "kernels/keys_line.h"
#include "server/models/snapshot.h"

#include <pthread.h>
#include <stdatomic.h>

#define ROWS    64
#define COLUMNS 16

static void make_dense(struct bag_table_memory *memory)
{
    struct bag_problem problem;
    assert_true(create_table(BAG_F32, 2, (int64_t[]){ROWS, COLUMNS}, memory, &problem));
    assert_true(bag_live_rows_make(memory, 0));
}

static void free_table(struct bag_table_memory *memory)
{
    bag_live_rows_free(memory->live);
    memory->live = NULL;
    bag_table_unload(memory);
}

/* ---- the lock -------------------------------------------------------------------------------- */

static void fill(struct bag_live_rows *live, float value)
{
    static uint64_t ids[ROWS];
    float rows[ROWS][COLUMNS];
    struct bag_problem problem;
    for (size_t i = 0; i < ROWS; i++) {
        ids[i] = i;
        for (size_t j = 0; j < COLUMNS; j++)
            rows[i][j] = value;
    }
    struct bag_rows_batch batch = {.count = ROWS, .ids = ids, .rows = (const char *)rows};
    assert_true(bag_live_rows_apply(live, &batch, &problem));
}

struct race {
    struct bag_table_memory memory[2];
    struct bag_live_rows *live[2];
    atomic_bool done;
    atomic_size_t mixed, tried, waited;
};

/* Returns whether all rows of a table have the same value and are not older than before. */
static bool is_whole(const struct bag_table_memory *memory, float *last)
{
    const float *rows = memory->table.rows;
    float value = rows[0];
    bool whole = value >= *last;
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        whole &= rows[i] == value;
    *last = value;
    return whole;
}

static void *read_rows(void *argument)
{
    struct race *race = argument;
    float last[2] = {0, 0};
    while (!atomic_load(&race->done)) {
        bool at_once = bag_live_rows_try_read(race->live, 2);
        if (!at_once)
            bag_live_rows_read(race->live, 2);
        atomic_fetch_add(at_once ? &race->tried : &race->waited, 1);
        for (int i = 0; i < 2; i++) {
            if (!is_whole(&race->memory[i], &last[i]))
                atomic_fetch_add(&race->mixed, 1);
        }
        bag_live_rows_read_end(race->live, 2);
    }
    return NULL;
}

TEST(readers_see_whole_batches)
{
    struct race *race = calloc(1, sizeof *race);
    pthread_t readers[3];
    assert_non_null(race);
    for (int i = 0; i < 2; i++) {
        make_dense(&race->memory[i]);
        race->live[i] = race->memory[i].live;
    }
    if (race->live[0] > race->live[1]) {
        struct bag_live_rows *first = race->live[1];
        race->live[1] = race->live[0];
        race->live[0] = first;
    }
    for (size_t i = 0; i < COUNT_OF(readers); i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_rows, race), 0);
    /* No reader starves, and neither does the writer. */
    for (int batch = 1; batch <= 300 || atomic_load(&race->tried) < 100; batch++) {
        fill(race->live[0], (float)batch);
        fill(race->live[1], (float)batch);
    }
    atomic_store(&race->done, true);
    for (size_t i = 0; i < COUNT_OF(readers); i++)
        pthread_join(readers[i], NULL);
    assert_int_equal(race->mixed, 0);
    for (int i = 0; i < 2; i++)
        free_table(&race->memory[i]);
    free(race);
}

static void *fill_once(void *argument)
{
    fill(argument, 7);
    return NULL;
}

/* A writer that has waited long enough keeps new readers out, and none of those before. */
TEST(a_writer_gets_its_turn)
{
    struct bag_table_memory memory;
    pthread_t writer;
    size_t passed = 0;
    make_dense(&memory);
    assert_true(bag_live_rows_try_read(&memory.live, 1));
    assert_int_equal(pthread_create(&writer, NULL, fill_once, memory.live), 0);
    while (bag_live_rows_try_read(&memory.live, 1)) {
        bag_live_rows_read_end(&memory.live, 1);
        passed++;
    }
    assert_true(passed > 0);
    assert_true(((const float *)memory.table.rows)[0] == 0);
    bag_live_rows_read_end(&memory.live, 1);
    bag_live_rows_read(&memory.live, 1);
    assert_true(((const float *)memory.table.rows)[ROWS * COLUMNS - 1] == 7);
    bag_live_rows_read_end(&memory.live, 1);
    pthread_join(writer, NULL);
    free_table(&memory);
}

static void *fill_often(void *argument)
{
    for (int batch = 1; batch <= 1000; batch++)
        fill(argument, (float)batch);
    return NULL;
}

static void *read_first_value(void *argument)
{
    struct bag_table_memory *memory = argument;
    float *value = malloc(sizeof *value);
    assert_non_null(value);
    bag_live_rows_read(&memory->live, 1);
    *value = ((const float *)memory->table.rows)[0];
    bag_live_rows_read_end(&memory->live, 1);
    return value;
}

/* A reader that waits for one batch reads before the next one is written. */
TEST(a_waiting_reader_goes_before_the_next_batch)
{
    for (int round = 0; round < 20; round++) {
        struct bag_table_memory memory;
        pthread_t writer, reader;
        void *value;
        bool waits = false;
        make_dense(&memory);
        fill(memory.live, 0);
        /* Hold the table until the writer keeps readers out, and the reader waits for it. */
        assert_true(bag_live_rows_try_read(&memory.live, 1));
        assert_int_equal(pthread_create(&writer, NULL, fill_often, memory.live), 0);
        while (bag_live_rows_try_read(&memory.live, 1))
            bag_live_rows_read_end(&memory.live, 1);
        assert_int_equal(pthread_create(&reader, NULL, read_first_value, &memory), 0);
        while (!waits) {
            bag_monitor_lock(&memory.live->monitor);
            waits = memory.live->waiting == 1;
            bag_monitor_unlock(&memory.live->monitor);
        }
        bag_live_rows_read_end(&memory.live, 1);
        assert_int_equal(pthread_join(reader, &value), 0);
        assert_int_equal(pthread_join(writer, NULL), 0);
        assert_true(*(float *)value == 1);
        free(value);
        free_table(&memory);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

static bool read_keys(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                      struct bag_problem *problem)
{
    (void)context;
    (void)problem;
    (void)rows;
    for (size_t i = 0; i < count; i++)
        keys[i] = 1000 + first + i;
    return true;
}

/* Keys 1000 to 1003 in rows 0 to 3 of one F32 each, and room for `spare` more. */
static void make_keyed(struct bag_table_memory *memory, size_t spare, int64_t kept_rows)
{
    struct bag_problem problem;
    struct bag_keys_source source = {read_keys, NULL, 4, true, spare, false};
    assert_true(create_table(BAG_F32, 2, (int64_t[]){4 + (int64_t)spare, 1}, memory, &problem));
    memory->shape[0] = memory->table.num_rows = 4;
    memory->spare_rows = spare;
    memory->keys_dtype = BAG_I64;
    assert_true(bag_keys_index_build(&source, &(struct bag_load_options){.threads = 1},
                                     &memory->index, &problem));
    assert_true(bag_live_rows_make(memory, kept_rows));
}

static struct bag_rows_batch batch_of(const uint64_t *keys, size_t count, const float *rows)
{
    return (struct bag_rows_batch){
        .deletes = !rows, .count = count, .ids = keys, .rows = (const char *)rows};
}

static void put(struct bag_table_memory *memory, uint64_t key, float value)
{
    struct bag_problem problem;
    struct bag_rows_batch batch = batch_of(&key, 1, &value);
    bool changes;
    assert_true(bag_live_rows_check(memory->live, &batch, &changes, &problem));
    assert_true(bag_live_rows_apply(memory->live, &batch, &problem));
}

static void take_out(struct bag_table_memory *memory, uint64_t key)
{
    struct bag_problem problem;
    struct bag_rows_batch batch = batch_of(&key, 1, NULL);
    bool changes;
    assert_true(bag_live_rows_check(memory->live, &batch, &changes, &problem));
    assert_true(changes);
    assert_true(bag_live_rows_apply(memory->live, &batch, &problem));
}

static int64_t row_of(const struct bag_table_memory *memory, uint64_t key)
{
    return bag_keys_find_one(&memory->index.keys, key);
}

static void expect_problem(struct bag_table_memory *memory, const uint64_t *keys, size_t count,
                           const float *rows, enum bag_error kind, const char *text)
{
    struct bag_problem problem;
    struct bag_rows_batch batch = batch_of(keys, count, rows);
    bool changes;
    assert_false(bag_live_rows_check(memory->live, &batch, &changes, &problem));
    assert_int_equal(problem.kind, kind);
    if (!strstr(problem.text, text))
        fail_msg("'%s' has no '%s'", problem.text, text);
}

/* Fills the index, but for one slot of the first line that a key may be in. */
static void leave_one_slot(struct bag_keys *keys, uint64_t key)
{
    for (size_t i = 0; i < keys->num_lines; i++)
        memset(keys->lines[i].words, 0xff, sizeof keys->lines[i].words);
    keys->lines[bag_keys_home(keys, key).line].words[0] = 0;
}

/* The index has a place for one of two new keys: neither is there afterwards, and both rows are
 * spare again. */
TEST(rows_of_keys_without_a_place_are_spare_again)
{
    const float values[2] = {1, 2};
    const uint64_t two[2] = {7, 8};
    struct bag_rows_batch batch = batch_of(two, 2, values);
    struct bag_table_memory memory;
    struct bag_problem problem;
    bool changes;
    make_keyed(&memory, 3, 0);
    const struct bag_live_rows *live = memory.live;
    leave_one_slot(&memory.index.keys, 7);
    for (size_t i = 0; i < 3; i++) {
        assert_true(bag_live_rows_check(memory.live, &batch, &changes, &problem));
        assert_false(bag_live_rows_apply(memory.live, &batch, &problem));
        assert_int_equal(live->end_spare - live->next_spare + (int64_t)live->num_freed, 3);
        assert_true(row_of(&memory, 7) < 0 && row_of(&memory, 8) < 0);
    }
    free_table(&memory);
}

TEST(new_keys_take_spare_rows)
{
    const float values[3] = {1, 2, 3};
    const uint64_t three[3] = {7, 8, 9};
    struct bag_table_memory memory;
    make_keyed(&memory, 2, 0);
    assert_int_equal(memory.table.num_rows, 6);
    assert_int_equal(bag_table_spare_rows_now(&memory), 2);
    expect_problem(&memory, three, 3, values, BAG_ERROR_TABLE_FULL, "3 of the keys are new");
    assert_int_equal(row_of(&memory, 7), -1);
    put(&memory, 7, 1);
    put(&memory, UINT64_MAX, 2);
    assert_int_equal(bag_table_spare_rows_now(&memory), 0);
    put(&memory, 7, 5); /* the table has this key */
    assert_true(((const float *)memory.table.rows)[row_of(&memory, 7)] == 5);
    assert_true(((const float *)memory.table.rows)[row_of(&memory, UINT64_MAX)] == 2);
    take_out(&memory, 1001);
    assert_int_equal(row_of(&memory, 1001), -1);
    put(&memory, 8, 9);
    assert_int_equal(row_of(&memory, 8), 1);
    expect_problem(&memory, (uint64_t[]){8, 1001}, 2, NULL, BAG_ERROR_BAD_REQUEST,
                   "'keys' has 1001 at position 1");
    free_table(&memory);
    make_keyed(&memory, 0, 0);
    expect_problem(&memory, (uint64_t[]){1000, UINT64_MAX}, 2, values, BAG_ERROR_BAD_REQUEST,
                   "'keys' has -1 at position 1");
    free_table(&memory);
}

/* Rows that stand in for missing keys are no other key's, and a default key stays. */
TEST(rows_that_others_need_stay)
{
    const struct bag_rules rules = {.has_default_index = true, .default_index = 1003};
    struct bag_live_reader reader = {.model = "c", .feature = "f", .rules = &rules};
    struct bag_table_memory memory;
    make_keyed(&memory, 1, 2);
    SLIST_INSERT_HEAD(&memory.live->readers, &reader, next);
    take_out(&memory, 1000);
    assert_int_equal(bag_table_spare_rows_now(&memory), 1);
    take_out(&memory, 1002);
    assert_int_equal(bag_table_spare_rows_now(&memory), 2);
    expect_problem(&memory, (uint64_t[]){1003}, 1, NULL, BAG_ERROR_BAD_REQUEST,
                   "'keys' has 1003 at position 0: it is the default_index of feature 'f' of model "
                   "'c' and cannot be removed");
    put(&memory, 1, 1);
    put(&memory, 2, 1);
    assert_true(row_of(&memory, 1) >= 2 && row_of(&memory, 2) >= 2);
    free_table(&memory);
}

/* More rows are kept while they are free, but no row of another key. */
TEST(more_rows_are_kept)
{
    struct bag_table_memory memory;
    make_keyed(&memory, 0, 0);
    take_out(&memory, 1000);
    take_out(&memory, 1003);
    take_out(&memory, 1002);
    assert_int_equal(bag_table_spare_rows_now(&memory), 3);
    assert_true(bag_live_rows_keep(memory.live, 2));
    assert_int_equal(bag_table_spare_rows_now(&memory), 2);
    put(&memory, 1, 1);
    assert_int_equal(row_of(&memory, 1), 2);
    assert_true(bag_live_rows_keep(memory.live, 1));
    assert_true(bag_live_rows_keep(memory.live, 2));
    assert_false(bag_live_rows_keep(memory.live, 3));
    assert_int_equal(memory.live->kept_rows, 2);
    free_table(&memory);
}

/* ---- rows ------------------------------------------------------------------------------------ */

TEST(rows_are_converted)
{
    static const enum bag_row_format formats[] = {BAG_ROWS_INT8, BAG_ROWS_INT4, BAG_ROWS_F8_E5M2};
    struct bag_table f32 = {.dtype = BAG_F32, .row_elements = 4};
    const float values[2][4] = {{0, 15, 30, 45}, {-2, -1, 0, 1}};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        struct bag_table to = {.dtype = BAG_F32, .row_elements = 4, .row_format = formats[i]};
        unsigned char stored[2][16];
        float back[2][4];
        size_t position;
        size_t bytes = bag_row_bytes(&to);
        assert_true(bytes <= sizeof stored[0]);
        assert_true(bag_live_rows_convert(&f32, values, 2, &to, stored, &position));
        assert_true(bag_live_rows_convert(&to, stored, 2, &f32, back, &position));
        for (size_t j = 0; j < 8; j++)
            assert_float_equal(back[j / 4][j % 4], values[j / 4][j % 4], 3.1);
    }
    struct bag_table f64 = {.dtype = BAG_F64, .row_elements = 4};
    double wide[2][4];
    size_t position;
    assert_true(bag_live_rows_converts(&f32, &f64));
    assert_true(bag_live_rows_convert(&f32, values, 2, &f64, wide, &position));
    for (size_t j = 0; j < 8; j++)
        assert_true(wide[j / 4][j % 4] == (double)values[j / 4][j % 4]);
    assert_true(bag_live_rows_converts(&f64, &f64));
    assert_false(bag_live_rows_converts(&f64, &f32));
    struct bag_table wider = {.dtype = BAG_F32, .row_elements = 5};
    assert_false(bag_live_rows_converts(&f32, &wider));
}
