/* Tests the progress that a loading table shows, at times that the test chooses. */
#include "server/memory/memory.h"
#include "server/tables/progress.h"
#include "testing.h"

#define MIB   ((size_t)1 << 20)
#define MS    UINT64_C(1000000)
#define S     (1000 * MS)
#define START (77 * S)

static struct {
    char text[512];
    int calls;
} shown;

static void record(void *context, const char *text)
{
    assert_ptr_equal(context, &shown);
    assert_true(strlen(text) < sizeof shown.text);
    strcpy(shown.text, text);
    shown.calls++;
}

/* One more text was printed since the last check, and it is this one. */
static void check(const char *text)
{
    assert_int_equal(shown.calls, 1);
    assert_string_equal(shown.text, text);
    shown.calls = 0;
}

static struct bag_progress begin(bool terminal, const char *name, size_t total_bytes)
{
    struct bag_progress progress;
    shown.calls = 0;
    bag_progress_init(&progress, record, &shown, terminal);
    bag_progress_start(&progress, name, total_bytes, START);
    return progress;
}

#define BAR(text) "\r\x1b[K\x1b[?7l" text "\x1b[?7h"

TEST(draws_a_bar_on_a_terminal)
{
    struct bag_progress progress = begin(true, "items", 2048 * MIB);
    check(BAR("items [....................] 0 bytes of 2.00 GiB (0 %)"));
    bag_progress_update(&progress, 103 * MIB, START + 100 * MS);
    check(BAR("items [#...................] 103.00 MiB of 2.00 GiB (5 %), 1.01 GiB/s, 2 s left"));
    bag_progress_update(&progress, 104 * MIB, START + 199 * MS);
    assert_int_equal(shown.calls, 0);
    bag_progress_update(&progress, 1024 * MIB, START + 2 * S);
    check(BAR("items [##########..........] 1.00 GiB of 2.00 GiB (50 %), 512.00 MiB/s, 2 s left"));
    bag_progress_update(&progress, 2048 * MIB, START + 4 * S);
    check(BAR("items [####################] 2.00 GiB of 2.00 GiB (100 %), 512.00 MiB/s, 0 s left"));
    bag_progress_finish(&progress, START + 4 * S);
    check("\r\x1b[Ktable items: loaded 2.00 GiB in 4.00 s, 512.00 MiB/s\n");
}

TEST(clears_the_bar_of_a_failure)
{
    struct bag_progress progress = begin(true, "items", MIB);
    shown.calls = 0;
    bag_progress_abandon(&progress);
    check("\r\x1b[K");
}

/* A table that takes less than a second is not mentioned. */
TEST(is_quiet_about_small_tables)
{
    struct bag_progress progress;
    for (int terminal = 0; terminal < 2; terminal++) {
        shown.calls = 0;
        bag_progress_init(&progress, record, &shown, terminal);
        progress.quiet_ns = S;
        bag_progress_start(&progress, "items", MIB, START);
        shown.calls = 0;
        bag_progress_update(&progress, MIB / 2, START + 50 * MS);
        assert_int_equal(shown.calls, 0);
        bag_progress_finish(&progress, START + 999 * MS);
        assert_int_equal(shown.calls, terminal);
        assert_true(!terminal || strcmp(shown.text, "\r\x1b[K") == 0);
    }
    bag_progress_init(&progress, record, &shown, false);
    progress.quiet_ns = S;
    shown.calls = 0;
    bag_progress_start(&progress, "items", 100 * MIB, START);
    bag_progress_update(&progress, 40 * MIB, START + 999 * MS);
    assert_int_equal(shown.calls, 0);
    bag_progress_update(&progress, 50 * MIB, START + S);
    check("table items: loading 100.00 MiB");
    bag_progress_update(&progress, 60 * MIB, START + 5 * S);
    assert_int_equal(shown.calls, 0);
    bag_progress_update(&progress, 60 * MIB, START + 6 * S);
    check("table items: loaded 60.00 MiB of 100.00 MiB (60 %), 10.00 MiB/s, 4 s left");
    bag_progress_finish(&progress, START + 10 * S);
    check("table items: loaded 100.00 MiB in 10.00 s, 10.00 MiB/s");
}

TEST(writes_lines_to_a_log)
{
    struct bag_progress progress = begin(false, "items", 100 * MIB);
    check("table items: loading 100.00 MiB");
    bag_progress_update(&progress, 10 * MIB, START + 4999 * MS);
    assert_int_equal(shown.calls, 0);
    bag_progress_update(&progress, 11 * MIB, START + 5000 * MS);
    check("table items: loaded 11.00 MiB of 100.00 MiB (11 %), 2.20 MiB/s, 40 s left");
    bag_progress_update(&progress, 12 * MIB, START + 9999 * MS);
    assert_int_equal(shown.calls, 0);
    bag_progress_update(&progress, 12 * MIB, START + 10000 * MS);
    check("table items: loaded 12.00 MiB of 100.00 MiB (12 %), 1.20 MiB/s, 1 min 13 s left");
    bag_progress_finish(&progress, START + 20 * S);
    check("table items: loaded 100.00 MiB in 20.00 s, 5.00 MiB/s");
    bag_progress_abandon(&progress);
    assert_int_equal(shown.calls, 0);
}

TEST(copes_with_no_time_and_no_bytes)
{
    struct bag_progress progress = begin(false, "empty", 0);
    check("table empty: loading 0 bytes");
    bag_progress_finish(&progress, START);
    check("table empty: loaded 0 bytes");
    progress = begin(false, "small", 192);
    shown.calls = 0;
    bag_progress_finish(&progress, START + 4999999);
    check("table small: loaded 192 bytes");
    bag_progress_finish(&progress, START + 5 * MS);
    check("table small: loaded 192 bytes in 0.01 s, 37.50 KiB/s");
    progress = begin(true, "empty", 0);
    check(BAR("empty [####################] 0 bytes of 0 bytes (100 %)"));
    bag_progress_finish(&progress, START - 1);
    check("\r\x1b[Ktable empty: loaded 0 bytes\n");
}

TEST(never_shows_more_than_all)
{
    struct bag_progress progress = begin(true, "x", 1000);
    shown.calls = 0;
    bag_progress_update(&progress, SIZE_MAX, START + S);
    check(BAR("x [####################] 1000 bytes of 1000 bytes (100 %), 1000 bytes/s, 0 s left"));
}

TEST(tells_long_waits_in_hours)
{
    struct bag_progress progress = begin(false, "slow", 1000000 * MIB);
    shown.calls = 0;
    bag_progress_update(&progress, 100000 * MIB, START + 600 * S);
    check("table slow: loaded 97.66 GiB of 976.56 GiB (10 %), 166.67 MiB/s, 1 h 30 min left");
    bag_progress_update(&progress, 1, START + 700 * S);
    check("table slow: loaded 1 byte of 976.56 GiB (0 %), 0 bytes/s, 277777 h 46 min left");
}

TEST(cuts_long_names)
{
    char name[300], expected[400];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    begin(false, name, 1);
    snprintf(expected, sizeof expected, "table %.128s: loading 1 byte", name);
    check(expected);
}

TEST(writes_bytes_in_the_largest_unit)
{
    static const struct {
        size_t bytes;
        const char *text;
    } cases[] = {{0, "0 bytes"},
                 {1, "1 byte"},
                 {1023, "1023 bytes"},
                 {1024, "1.00 KiB"},
                 {1536, "1.50 KiB"},
                 {1024 * 1024 - 6, "1023.99 KiB"},
                 {1024 * 1024 - 5, "1.00 MiB"},
                 {1024 * 1024, "1.00 MiB"},
                 {(size_t)1 << 30, "1.00 GiB"},
                 {(size_t)1 << 40, "1.00 TiB"},
                 {(size_t)1 << 50, "1.00 PiB"},
                 {SIZE_MAX, "16.00 EiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(bag_format_bytes(cases[i].bytes).text, cases[i].text);
}
