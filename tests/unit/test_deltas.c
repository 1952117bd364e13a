/* Polled delta folders: a folder is applied if it has not changed since the previous poll. */
#include "memory_fixture.h"
#include "table_fixture.h"

#include "server/updates/updates.h"

#include <sys/stat.h>

static const float ones[2] = {1, 1}, twos[2] = {2, 2};

/* The fixture's functions write to `path`. */
static void place(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", directory, name);
}

static void set_time(time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void make_folder(const char *name)
{
    place(name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void remove_folders(void)
{
    static const char *const names[] = {"deltas/1/indices.npy", "deltas/1/rows.npy", "deltas/1",
                                        "deltas"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        place(names[i]);
        assert_int_equal(remove(path), 0);
    }
}

static void check_row(const struct bag_table_memory *memory, float value)
{
    const float *rows = memory->table.rows;
    assert_true(rows[3 * 2] == value && rows[3 * 2 + 1] == value);
}

AROUND_EACH(set_up, tear_down)

/* A writer that made room first changes neither the size nor the number of a file: its time tells.
 */
TEST(test_written_in_place)
{
    const struct bag_updates_settings settings = {.journal_dir = NULL};
    const int64_t shape[2] = {4, 2}, index = 3;
    struct bag_updates updates;
    struct bag_table_memory memory;
    struct bag_problem problem;
    char deltas[80];
    make_folder("deltas");
    snprintf(deltas, sizeof deltas, "%s/deltas", directory);
    make_folder("deltas/1");
    place("deltas/1/indices.npy");
    write_table("<i8", "False", "(1,)", &index, sizeof index);
    place("deltas/1/rows.npy");
    size_t header_bytes = write_table("<f4", "False", "(1, 2)", ones, sizeof ones);
    set_time(1000);
    assert_true(bag_updates_init(&updates, &settings));
    assert_true(create_table(BAG_F32, 2, shape, &memory, &problem));
    memset(memory.mapping, 0, 4 * sizeof ones);
    const struct bag_updates_table table = {.name = "t", .memory = &memory, .deltas = deltas};
    assert_true(bag_updates_attach(&updates, &table, &problem));

    assert_true(bag_updates_take_deltas(&updates, &table, true, &problem));
    check_row(&memory, 0);
    write_at(twos, sizeof twos, (off_t)header_bytes);
    set_time(2000);
    assert_true(bag_updates_take_deltas(&updates, &table, true, &problem));
    check_row(&memory, 0);
    assert_true(bag_updates_take_deltas(&updates, &table, true, &problem));
    check_row(&memory, 2);
    assert_int_equal(memory.live->through, 1);

    bag_table_unload(&memory);
    bag_updates_free(&updates);
    remove_folders();
}
