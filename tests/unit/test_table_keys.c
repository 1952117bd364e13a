/* Keys read from files: several of them, in either byte order, and files that change meanwhile. */
#include "server/tables/keys_index.h"
#include "testing.h"

#include <fcntl.h>
#include <unistd.h>

#define PART 100000

static char directory[64], paths[3][96];

static int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/bagserve-keys-XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "%s/keys%d", directory, i);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        unlink(paths[i]);
    return rmdir(directory);
}

AROUND_ALL(make_directory, remove_directory)

/* Keys first, first + 1, ... in a file without a header. */
static void write_keys(int part, int64_t first, size_t count, bool swap)
{
    int64_t *keys = calloc(count + 1, sizeof *keys);
    for (size_t i = 0; i < count; i++) {
        uint64_t key = (uint64_t)(first + (int64_t)i);
        keys[i] = (int64_t)(swap ? __builtin_bswap64(key) : key);
    }
    int fd = open(paths[part], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, keys, count * sizeof *keys), count * sizeof *keys);
    close(fd);
    free(keys);
}

/* Three files: PART keys, none, PART keys of the other byte order. */
static void open_files(struct bag_table_file files[3])
{
    static const int64_t any[] = {-1};
    struct bag_problem problem;
    write_keys(0, 0, PART, false);
    write_keys(1, 0, 0, false);
    write_keys(2, -PART, PART, true);
    for (int i = 0; i < 3; i++)
        assert_true(bag_table_raw_open(paths[i], BAG_I64, 1, any, &files[i], &problem));
    files[2].npy.swap = true;
}

TEST(reads_keys_of_several_files)
{
    struct bag_table_file files[3];
    struct bag_keys_index index;
    struct bag_problem problem;
    open_files(files);
    if (!bag_keys_index_load(files, 3, 0, &(struct bag_load_options){.threads = 2}, &index,
                             &problem))
        fail_msg("%s", problem.text);
    for (int64_t i = 0; i < PART; i++) {
        assert_int_equal(bag_keys_find_one(&index.keys, (uint64_t)i), i);
        assert_int_equal(bag_keys_find_one(&index.keys, (uint64_t)(i - PART)), PART + i);
    }
    bag_keys_index_free(&index);
}

TEST(names_the_rows_of_equal_keys_across_files)
{
    struct bag_table_file files[3];
    struct bag_keys_index index;
    struct bag_problem problem;
    char expected[256];
    static const int64_t any[] = {-1};
    open_files(files);
    write_keys(2, 7 - PART + 1, PART, false);
    assert_true(bag_table_raw_open(paths[2], BAG_I64, 1, any, &files[2], &problem));
    assert_false(bag_keys_index_load(files, 3, 0, &(struct bag_load_options){.threads = 2}, &index,
                                     &problem));
    snprintf(expected, sizeof expected, "key 0 is duplicated, in rows 0 and %d", 2 * PART - 8);
    assert_non_null(strstr(problem.text, expected));
    assert_null(index.keys.lines);
}

TEST(rejects_files_that_changed_after_they_were_checked)
{
    struct bag_table_file files[3];
    struct bag_keys_index index;
    struct bag_problem problem;
    open_files(files);
    write_keys(2, 0, PART - 1, true);
    assert_false(bag_keys_index_load(files, 3, 0, &(struct bag_load_options){.threads = 2}, &index,
                                     &problem));
    assert_non_null(strstr(problem.text, "keys2: the file changed after it was checked"));
    unlink(paths[0]);
    assert_false(bag_keys_index_load(files, 3, 0, &(struct bag_load_options){.threads = 2}, &index,
                                     &problem));
    assert_non_null(strstr(problem.text, "keys0: cannot be opened"));
}

/* Cuts a file off once the first keys were read; when they all were, that is seen at the end. */
static void cut(void *context, size_t bytes)
{
    (void)context;
    assert_true(bytes > 0);
    assert_int_equal(truncate(paths[2], 8), 0);
}

TEST(rejects_files_that_change_while_they_are_read)
{
    struct bag_table_file files[3];
    struct bag_keys_index index;
    struct bag_problem problem;
    open_files(files);
    assert_false(bag_keys_index_load(
        files, 3, 0, &(struct bag_load_options){.threads = 1, .progress = cut}, &index, &problem));
    assert_non_null(strstr(problem.text, "keys2: the file "));
    assert_null(index.keys.lines);
}
