/* Table files that are rejected, each for a reason that names the file, with nothing left over. */
#include "table_fixture.h"

#include <dirent.h>
#include <sys/stat.h>

/* The text must be the path, a colon and the sentence. */
static void check_text(const struct bag_problem *problem, const char *sentence)
{
    char expected[BAG_PROBLEM_TEXT_BYTES];
    snprintf(expected, sizeof expected, "%s: %s", path, sentence);
    assert_string_equal(problem->text, expected);
}

static size_t count_entries(const char *name)
{
    size_t count = 0;
    DIR *entries = opendir(name);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

static void reject_open(const char *sentence)
{
    struct bag_table_file file;
    struct bag_problem problem;
    size_t open_files = count_entries("/proc/self/fd");
    assert_false(bag_table_file_open(path, BAG_DTYPE_COUNT, &file, &problem));
    check_text(&problem, sentence);
    assert_int_equal(count_entries("/proc/self/fd"), open_files);
}

static void reject_load(const struct bag_table_file *file,
                        void (*progress)(void *context, size_t bytes), const char *sentence)
{
    const struct bag_load_options options = {.threads = 1, .progress = progress};
    struct bag_table_memory memory;
    struct bag_problem problem;
    size_t open_files = count_entries("/proc/self/fd");
    assert_false(bag_table_load(file, 1, &options, &memory, &problem));
    check_text(&problem, sentence);
    assert_int_equal(count_entries("/proc/self/fd"), open_files);
}

/* ---- files that change ----------------------------------------------------------------------- */

static void shrink(void *context, size_t bytes)
{
    (void)context;
    (void)bytes;
    assert_int_equal(truncate(path, 4096), 0);
}

static void touch(void *context, size_t bytes)
{
    (void)context;
    (void)bytes;
    write_at("x", 1, 200);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){{1, 0}, {1, 0}}, 0), 0);
}

AROUND_ALL(set_up, tear_down)

/* The file shrinks with the first progress. Readers that were quick enough to have all of it by
 * then are stopped by the file's new state. */
TEST(rejects_a_file_that_shrinks_while_it_is_read)
{
    const struct bag_load_options options = {.threads = 2, .progress = shrink};
    size_t header_bytes = write_header("|u1", "False", "(134217728,)");
    assert_int_equal(truncate(path, (off_t)header_bytes + 134217728), 0);
    struct bag_table_file file = open_file();
    size_t before = mapped_bytes(), open_files = count_entries("/proc/self/fd");
    struct bag_table_memory memory;
    struct bag_problem problem;
    assert_false(bag_table_load(&file, 1, &options, &memory, &problem));
    assert_non_null(strstr(problem.text, path));
    assert_non_null(strstr(problem.text, "while it was read; publish a table by renaming"));
    assert_int_equal(count_entries("/proc/self/fd"), open_files);
    assert_true(mapped_bytes() < before + 134217728);
}

TEST(rejects_a_file_that_is_written_while_it_is_read)
{
    write_many();
    struct bag_table_file file = open_file();
    reject_load(&file, touch,
                "the file changed while it was read; publish a table by renaming a complete file");
}

TEST(rejects_a_file_that_changed_after_it_was_checked)
{
    const char *sentence =
        "the file changed after it was checked; publish a table by renaming a complete file";
    write_four_rows();
    struct bag_table_file file = open_file();
    assert_int_equal(truncate(path, 50), 0);
    reject_load(&file, NULL, sentence);

    for (int part = 0; part < 2; part++) {
        write_four_rows();
        file = open_file();
        struct timespec times[2] = {file.modified, file.modified};
        if (part == 0)
            times[1].tv_sec -= 1;
        else
            times[1].tv_nsec ^= 1;
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        reject_load(&file, NULL, sentence);
    }

    unlink(path);
    reject_load(&file, NULL, "cannot be opened: No such file or directory");
}

/* ---- files that are no tables ---------------------------------------------------------------- */

TEST(rejects_every_other_size)
{
    char sentence[160];
    write_four_rows();
    off_t whole = (off_t)open_file().bytes;
    for (off_t bytes = whole - 1; bytes >= whole - 32; bytes--) {
        assert_int_equal(truncate(path, bytes), 0);
        snprintf(sentence, sizeof sentence,
                 "the file is truncated: it has %lld bytes of data, the header promises 32",
                 (long long)(32 - (whole - bytes)));
        reject_open(sentence);
    }
    for (off_t bytes = whole - 33; bytes > 0; bytes--) {
        struct bag_table_file file;
        struct bag_problem problem;
        assert_int_equal(truncate(path, bytes), 0);
        assert_false(bag_table_file_open(path, BAG_DTYPE_COUNT, &file, &problem));
        assert_non_null(strstr(problem.text, "table.npy: the file is truncated"));
    }
    assert_int_equal(truncate(path, 0), 0);
    reject_open("the file is empty; it must be an .npy file");
    write_four_rows();
    assert_int_equal(truncate(path, whole + 1), 0);
    reject_open("the file is too long: it has 33 bytes of data, the header promises 32; one file "
                "holds one array");
}

TEST(rejects_scalars)
{
    write_table("<f4", "False", "()", "1234", 4);
    reject_open("the table is a scalar; it must have at least one dimension");
}

TEST(rejects_what_cannot_be_opened)
{
    unlink(path);
    reject_open("cannot be opened: No such file or directory");
    assert_int_equal(symlink("table.npy", path), 0);
    reject_open("cannot be opened: Too many levels of symbolic links");
}

TEST(rejects_an_unreadable_file)
{
    if (geteuid() == 0 && seteuid(65534) != 0)
        skip();
    /* Root reads everything; the directory is made by whoever runs the test. */
    char home[64], *saved = strdup(path);
    strcpy(home, "/tmp/test_table_load.XXXXXX");
    assert_non_null(mkdtemp(home));
    snprintf(path, sizeof path, "%s/table.npy", home);
    write_four_rows();
    assert_int_equal(chmod(path, 0), 0);
    reject_open("cannot be opened: Permission denied");
    unlink(path);
    rmdir(home);
    strcpy(path, saved);
    free(saved);
    assert_int_equal(seteuid(getuid()), 0);
}
