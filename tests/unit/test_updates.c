/* Updates that the disk, or a table's index, does not take: what is told, and what a later start
 * finds. */
#include "disk_fixture.h"

#include "server/system/log.h"
#include "server/table/updates.h"

#define ROWS    8
#define COLUMNS 2

static struct fake_disk *disk;
static struct bag_updates updates;

static void start(enum bag_journal_sync sync)
{
    struct bag_updates_settings settings = {.journal_dir = "/data/journal",
                                            .sync = sync,
                                            .disk = &disk->calls,
                                            .journal_file_bytes = 1 << 20};
    assert_true(bag_updates_init(&updates, &settings));
}

static int set_up(void **state)
{
    (void)state;
    disk = make_disk(1);
    disk_make_folder(disk, "/data");
    disk_sync_folder(disk, "");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free_disk(disk);
    return 0;
}

/* A table of zeros. */
static void attach(struct bag_table_memory *memory, enum bag_dtype dtype, uint64_t through)
{
    static const struct bag_rules rules = {.reduction = BAG_SUM, .default_index = -1};
    struct bag_problem problem;
    int64_t shape[2] = {ROWS, COLUMNS};
    assert_true(bag_table_create(dtype, 2, shape, memory, &problem));
    memset(memory->mapping, 0, ROWS * bag_row_bytes(&memory->table));
    struct bag_updates_table table = {
        .name = "items", .memory = memory, .rules = &rules, .through = through};
    if (!bag_updates_attach(&updates, &table, &problem))
        fail_msg("%s", problem.text);
}

static void ignore_done(struct bag_update *update)
{
    (void)update;
}

/* Puts a row, as the table stores it; returns what was wrong, or NULL. */
static const char *put_row(struct bag_table_memory *memory, uint64_t id, const void *row)
{
    static struct bag_update update;
    update = (struct bag_update){
        .live = memory->live, .batch = {.count = 1, .ids = &id, .rows = row}, .done = ignore_done};
    bag_updates_run(&updates, &update);
    assert_true(update.failed != update.applied);
    return update.failed ? update.problem.text : NULL;
}

static const float ones[COLUMNS] = {1, 1};
static const uint16_t half_twos[COLUMNS] = {0x4000, 0x4000};

/* ---- syncs that fail ------------------------------------------------------------------------- */

static void check_after_power_loss(void)
{
    struct bag_table_memory again;
    bag_updates_free(&updates);
    crash(disk, true);
    start(BAG_JOURNAL_SYNC_INTERVAL);
    attach(&again, BAG_F32, 0);
    const float *rows = again.table.rows;
    assert_true(rows[3 * COLUMNS] == 1 && rows[5 * COLUMNS] == 2);
    bag_table_unload(&again);
    bag_updates_free(&updates);
}

/* Rows of another type cannot follow in the same file those that could not be synced. */
static void test_other_rows_after_a_failed_sync(void **state)
{
    struct bag_table_memory f32, f16;
    (void)state;
    start(BAG_JOURNAL_SYNC_INTERVAL);
    attach(&f32, BAG_F32, 0);
    assert_null(put_row(&f32, 3, ones));
    disk->fails = 1;
    bag_updates_sync(&updates);
    attach(&f16, BAG_F16, 0);
    assert_non_null(strstr(put_row(&f16, 5, half_twos), "a file cannot be begun"));
    disk->fails = 0;
    assert_null(put_row(&f16, 5, half_twos));
    bag_updates_sync(&updates);
    bag_table_unload(&f16);
    bag_table_unload(&f32);
    check_after_power_loss();
}

/* What was acknowledged is safe after the next good sync, though no update follows. */
static void test_next_sync_writes_again(void **state)
{
    struct bag_table_memory f32;
    const float twos[COLUMNS] = {2, 2};
    (void)state;
    start(BAG_JOURNAL_SYNC_INTERVAL);
    attach(&f32, BAG_F32, 0);
    assert_null(put_row(&f32, 3, ones));
    assert_null(put_row(&f32, 5, twos));
    disk->fails = 1;
    bag_updates_sync(&updates);
    bag_updates_sync(&updates);
    disk->fails = 0;
    bag_updates_sync(&updates);
    bag_table_unload(&f32);
    check_after_power_loss();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_other_rows_after_a_failed_sync, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_next_sync_writes_again, set_up, tear_down)};
    bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
