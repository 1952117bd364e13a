/* Tables that are loaded from files or made: exact contents, progress, memory given back. */
#include "memory_fixture.h"
#include "table_fixture.h"

#include <pthread.h>
#include <uv.h>

static struct bag_table_memory load(const struct bag_table_file *file, unsigned threads)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    if (!bag_table_load(file, 1, &(struct bag_load_options){.threads = threads}, &memory, &problem))
        fail_msg("%s", problem.text);
    return memory;
}

AROUND_ALL(set_up, tear_down)

/* ---- what is loaded -------------------------------------------------------------------------- */

TEST(loads_rows_as_they_are)
{
    write_four_rows();
    struct bag_table_file file = open_file();
    assert_int_equal(file.npy.data_bytes, sizeof four_rows);
    for (unsigned threads = 1; threads <= 9; threads += 4) {
        struct bag_table_memory memory = load(&file, threads);
        assert_int_equal(memory.table.dtype, BAG_F32);
        assert_int_equal(memory.table.num_rows, 4);
        assert_int_equal(memory.table.row_elements, 2);
        assert_int_equal(memory.rank, 2);
        assert_int_equal(memory.shape[0], 4);
        assert_int_equal(memory.shape[1], 2);
        assert_int_equal((uintptr_t)memory.table.rows % 64, 0);
        assert_memory_equal(memory.table.rows, four_rows, sizeof four_rows);
        bag_table_unload(&memory);
        assert_null(memory.mapping);
    }
}

TEST(loads_shapes_of_other_ranks)
{
    int64_t data[12] = {INT64_MIN, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, INT64_MAX};
    write_table("<i8", "False", "(2, 3, 2)", data, sizeof data);
    struct bag_table_file file = open_file();
    struct bag_table_memory memory = load(&file, 1);
    assert_int_equal(memory.table.num_rows, 2);
    assert_int_equal(memory.table.row_elements, 6);
    assert_memory_equal(memory.table.rows, data, sizeof data);
    bag_table_unload(&memory);

    write_table("<i8", "False", "(12,)", data, sizeof data);
    file = open_file();
    memory = load(&file, 1);
    assert_int_equal(memory.table.num_rows, 12);
    assert_int_equal(memory.table.row_elements, 1);
    bag_table_unload(&memory);
}

TEST(loads_tables_without_elements)
{
    static const char *const shapes[] = {"(0, 64)", "(0,)", "(5, 0)"};
    static const int64_t rows[] = {0, 0, 5};
    static const size_t row_elements[] = {64, 1, 0};
    for (size_t i = 0; i < 3; i++) {
        write_header("<f4", "False", shapes[i]);
        struct bag_table_file file = open_file();
        struct bag_table_memory memory = load(&file, 4);
        assert_int_equal(memory.table.num_rows, rows[i]);
        assert_int_equal(memory.table.row_elements, row_elements[i]);
        assert_non_null(memory.table.rows);
        assert_null(memory.mapping);
        bag_table_unload(&memory);
    }
}

/* The table is a copy: nothing that happens to the file afterwards reaches it. */
TEST(survives_its_file)
{
    write_four_rows();
    struct bag_table_file file = open_file();
    struct bag_table_memory memory = load(&file, 1);
    assert_int_equal(truncate(path, 0), 0);
    assert_memory_equal(memory.table.rows, four_rows, sizeof four_rows);
    unlink(path);
    assert_memory_equal(memory.table.rows, four_rows, sizeof four_rows);
    bag_table_unload(&memory);
}

/* ---- several tiles --------------------------------------------------------------------------- */

struct seen {
    size_t calls, last;
    bool in_order;
    pthread_t thread;
};

static void see(void *context, size_t bytes)
{
    struct seen *seen = context;
    seen->in_order = seen->in_order && bytes > 0 && pthread_equal(seen->thread, pthread_self());
    seen->last += bytes;
    seen->calls++;
}

TEST(loads_large_tables_and_tells_of_progress)
{
    write_many();
    struct bag_table_file file = open_file();
    for (unsigned threads = 1; threads <= 4; threads++) {
        struct seen seen = {.in_order = true, .thread = pthread_self()};
        const struct bag_load_options options = {
            .threads = threads, .progress = see, .context = &seen};
        struct bag_table_memory memory;
        struct bag_problem problem;
        assert_true(bag_table_load(&file, 1, &options, &memory, &problem));
        assert_true(seen.in_order);
        assert_true(seen.calls >= 1 && seen.calls <= 41); /* pieces of 512 KiB */
        assert_int_equal(seen.last, MANY_BYTES);
        assert_int_equal((uintptr_t)memory.table.rows % (2 << 20), 0);
        check_many(&memory);
        bag_table_unload(&memory);
    }
}

/* ---- at a rate ------------------------------------------------------------------------------- */

struct stop {
    atomic_bool cancelled;
    size_t done_bytes;
};

static void stop_at_once(void *context, size_t bytes)
{
    struct stop *stop = context;
    atomic_store(&stop->cancelled, true);
    stop->done_bytes += bytes;
}

/* Progress shows, and cancelling is seen, after what the rate allows in a tenth of a second. */
TEST(stops_soon_at_a_low_rate)
{
    write_many();
    struct bag_table_file file = open_file();
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct stop stop = {.done_bytes = 0};
        const struct bag_load_options options = {.threads = threads,
                                                 .bytes_per_second = 2 << 20,
                                                 .cancelled = &stop.cancelled,
                                                 .progress = stop_at_once,
                                                 .context = &stop};
        struct bag_table_memory memory;
        struct bag_problem problem;
        assert_false(bag_table_load(&file, 1, &options, &memory, &problem));
        assert_int_equal(problem.kind, BAG_ERROR_DRAINING);
        assert_in_range(stop.done_bytes, 1, 1 << 20);
    }
}

TEST(keeps_to_the_rate)
{
    write_many();
    struct bag_table_file file = open_file();
    const struct bag_load_options options = {.threads = 2, .bytes_per_second = 100 << 20};
    struct bag_table_memory memory;
    struct bag_problem problem;
    uint64_t begun_ns = uv_hrtime();
    assert_true(bag_table_load(&file, 1, &options, &memory, &problem));
    /* The last piece of 512 KiB begins after 39 others. */
    assert_true(uv_hrtime() - begun_ns >= 195000000);
    check_many(&memory);
    bag_table_unload(&memory);
}

TEST(gives_all_memory_back)
{
    write_many();
    struct bag_table_file file = open_file();
    struct bag_table_memory memory = load(&file, 2);
    bag_table_unload(&memory);
    size_t before = mapped_bytes();
    for (int i = 0; i < 16; i++) {
        memory = load(&file, 2);
        assert_true(mapped_bytes() >= before + MANY_BYTES);
        bag_table_unload(&memory);
    }
    assert_true(mapped_bytes() < before + MANY_BYTES);
}

/* ---- tables that are made -------------------------------------------------------------------- */

TEST(makes_zeroed_tables)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    assert_true(create_table(BAG_F64, 3, (int64_t[]){3, 5, 7}, &memory, &problem));
    assert_int_equal(memory.table.num_rows, 3);
    assert_int_equal(memory.table.row_elements, 35);
    assert_int_equal(memory.mapping_bytes, 3 * 35 * 8);
    for (size_t i = 0; i < memory.mapping_bytes; i++)
        assert_int_equal(((const char *)memory.table.rows)[i], 0);
    bag_table_unload(&memory);
}

TEST(rejects_tables_beyond_all_memory)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    assert_false(create_table(BAG_F32, 2, (int64_t[]){INT64_MAX, 2}, &memory, &problem));
    assert_string_equal(problem.text, "the table is larger than any memory");
    assert_false(create_table(BAG_I8, 1, (int64_t[]){INT64_MAX}, &memory, &problem));
    assert_string_equal(problem.text, "8.00 EiB of memory cannot be had: Cannot allocate memory");
    assert_false(create_table(BAG_I8, 1, (int64_t[]){INT64_C(1) << 60}, &memory, &problem));
    assert_string_equal(problem.text, "1.00 EiB of memory cannot be had: Cannot allocate memory");
}
