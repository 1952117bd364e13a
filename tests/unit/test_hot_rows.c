/* Sketches of the rows that are looked up most: server/models/hot_rows.c. */
#include "testing.h"

#include "kernels/random.h"
#include "server/bench/draw.h"
#include "server/memory/memory.h"
#include "server/models/hot_rows.h"

#include <math.h>

/* Draws `count` ids in requests of 1,000, and adds the sampled ones. Counts all in `seen` unless it
 * is NULL. */
static void add_drawn(struct bag_hot_rows *hot, const struct bag_bench_ids *ids, size_t count,
                      uint64_t seed, uint32_t *seen)
{
    uint64_t sampled[1000];
    for (size_t request = 0; request < count; request += COUNT_OF(sampled)) {
        size_t num_sampled = 0;
        for (size_t i = 0; i < COUNT_OF(sampled); i++) {
            uint64_t id = bag_bench_id(ids, &seed);
            if (seen)
                seen[id]++;
            if (bag_hot_sampling.next-- == 0) {
                sampled[num_sampled++] = id;
                bag_hot_sampling.next = bag_hot_distance() - 1;
            }
        }
        bag_hot_rows_add(hot, sampled, num_sampled);
    }
}

static int descending(const void *left, const void *right)
{
    uint32_t one = *(const uint32_t *)left, other = *(const uint32_t *)right;
    return (one < other) - (one > other);
}

/* ---- which ids are sampled ------------------------------------------------------------------- */

TEST(samples_one_of_128)
{
    size_t sum = 0, seen[BAG_HOT_ROWS_EVERY] = {0};
    enum { SAMPLES = 640000 };
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t distance = bag_hot_distance();
        assert_in_range(distance, 1, 2 * BAG_HOT_ROWS_EVERY - 1);
        sum += distance;
        seen[sum % BAG_HOT_ROWS_EVERY]++;
    }
    assert_in_range(sum / (SAMPLES / 100), 127 * 100 + 60, 128 * 100 + 40);
    /* A pattern with the period of the samples is seen whole. */
    for (size_t i = 0; i < BAG_HOT_ROWS_EVERY; i++)
        assert_in_range(seen[i], 4650, 5350);
}

/* ---- what is found --------------------------------------------------------------------------- */

TEST(finds_the_hottest_rows)
{
    enum { ROWS = 1000000, DRAWN = 16000000, TOP = 100 };
    uint32_t *seen = malloc(ROWS * sizeof *seen), *sorted = malloc(ROWS * sizeof *sorted);
    const struct bag_bench_ids ids = bag_bench_ids_of(ROWS, 1.05);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct bag_hot_rows *hot = bag_hot_rows_make();
        struct bag_hot_report report;
        hot->seed = seed;
        memset(seen, 0, ROWS * sizeof *seen);
        add_drawn(hot, &ids, DRAWN, seed, seen);
        bag_hot_rows_read(hot, ROWS, &report);
        memcpy(sorted, seen, ROWS * sizeof *seen);
        qsort(sorted, ROWS, sizeof *sorted, descending);
        size_t found = 0, hottest = 0;
        for (size_t i = 0; i < report.num_top; i++)
            found += seen[report.top[i].id] >= sorted[TOP - 1];
        for (size_t i = 0; i < report.hottest; i++)
            hottest += sorted[i];
        print_message("seed %d: %zu of the top 100; hottest 1 %%: %.3f, true %.3f; first: %.3f\n",
                      (int)seed, found, report.hottest_share, hottest / (double)DRAWN,
                      report.top[0].share);
        assert_int_equal(report.num_top, TOP);
        assert_true(found >= 90);
        assert_int_equal(report.hottest, ROWS / 100);
        assert_true(fabs(report.hottest_share - hottest / (double)DRAWN) < 0.06);
        assert_true(fabs(report.top[0].share - sorted[0] / (double)DRAWN) < 0.005);
        bag_hot_rows_free(hot);
    }
    free(seen);
    free(sorted);
}

TEST(finds_no_hot_rows_in_even_lookups)
{
    const struct bag_bench_ids ids = bag_bench_ids_of(1000, 0);
    struct bag_hot_rows *hot = bag_hot_rows_make();
    struct bag_hot_report report;
    add_drawn(hot, &ids, 20000000, 1, NULL);
    bag_hot_rows_read(hot, ids.rows, &report);
    assert_int_equal(report.hottest, 10);
    assert_true(report.hottest_share > 0.01 && report.hottest_share < 0.015);
    bag_hot_rows_free(hot);
}

TEST(counts_few_ids_exactly)
{
    struct bag_hot_rows *hot = bag_hot_rows_make();
    struct bag_hot_report report;
    bag_hot_rows_read(hot, 300, &report);
    assert_true(report.num_top == 0 && report.hottest_share == 0);
    bag_hot_rows_add(hot, (const uint64_t[]){7, UINT64_MAX, 7, 0}, 4);
    bag_hot_rows_add(hot, (const uint64_t[]){7, 0, 9, 7}, 4);
    bag_hot_rows_read(hot, 201, &report);
    assert_int_equal(atomic_load(&hot->sampled), 8);
    assert_int_equal(report.num_top, 4);
    static const struct bag_hot_row want[] = {{7, 0.5}, {0, 0.25}, {9, 0.125}, {UINT64_MAX, 0.125}};
    assert_memory_equal(report.top, want, sizeof want);
    assert_int_equal(report.hottest, 3);
    assert_true(report.hottest_share == 0.875);
    bag_hot_rows_free(hot);
}

TEST(counts_rows_beyond_the_top)
{
    struct bag_hot_rows *hot = bag_hot_rows_make();
    struct bag_hot_report report;
    for (uint64_t id = 0; id < 200; id++) {
        for (uint64_t i = 0; i < 1 + (id < 150); i++)
            bag_hot_rows_add(hot, &id, 1);
    }
    bag_hot_rows_read(hot, 15000, &report);
    assert_int_equal(report.hottest, 150);
    assert_true(fabs(report.hottest_share - 300.0 / 350) < 1e-9);
    bag_hot_rows_free(hot);
}

TEST(follows_changes)
{
    struct bag_hot_rows *hot = bag_hot_rows_make();
    struct bag_hot_report report;
    uint64_t ids[1024];
    for (uint64_t phase = 1; phase <= 2; phase++) {
        for (size_t i = 0; i < COUNT_OF(ids); i++)
            ids[i] = phase;
        for (size_t i = 0; i < phase * (20 << 20) / COUNT_OF(ids); i++)
            bag_hot_rows_add(hot, ids, COUNT_OF(ids));
        bag_hot_rows_read(hot, 100, &report);
        assert_int_equal(report.top[0].id, phase);
    }
    assert_int_equal(atomic_load(&hot->sampled), 60 << 20);
    assert_true(report.top[0].share + report.top[1].share == 1);
    bag_hot_rows_free(hot);
}

/* Returns the id that has this hash if the seed is 0. */
static uint64_t id_of(uint64_t hash)
{
    hash = (hash ^ hash >> 31 ^ hash >> 62) * UINT64_C(0x319642b2d24d8ec3);
    hash = (hash ^ hash >> 27 ^ hash >> 54) * UINT64_C(0x96de1b173f119089);
    return hash ^ hash >> 30 ^ hash >> 60;
}

TEST(survives_ids_that_collide)
{
    struct bag_hot_rows *hot = bag_hot_rows_make();
    struct bag_hot_report report;
    hot->seed = 0;
    for (uint64_t i = 0; i < 1 << 16; i++) {
        const uint64_t id = id_of(i << 40);
        assert_int_equal(bag_mix(id), i << 40);
        bag_hot_rows_add(hot, &id, 1);
    }
    bag_hot_rows_read(hot, 1000000, &report);
    assert_int_equal(atomic_load(&hot->sampled), 1 << 16);
    assert_int_equal(report.num_top, 8);
    assert_true(report.hottest_share >= 0 && report.hottest_share <= 1);
    bag_hot_rows_free(hot);
}

TEST(has_a_secret_seed)
{
    struct bag_hot_rows *one = bag_hot_rows_make(), *other = bag_hot_rows_make();
    assert_true(one->seed != other->seed);
    bag_hot_rows_free(one);
    bag_hot_rows_free(other);
}

/* ---- threads and memory ---------------------------------------------------------------------- */

TEST(drops_samples_while_another_thread_adds)
{
    struct bag_hot_rows *hot = bag_hot_rows_make();
    struct bag_hot_report report;
    pthread_mutex_lock(&hot->lock);
    bag_hot_rows_add(hot, (const uint64_t[]){1}, 1);
    pthread_mutex_unlock(&hot->lock);
    bag_hot_rows_read(hot, 1, &report);
    assert_int_equal(report.num_top, 0);
    assert_int_equal(atomic_load(&hot->sampled), 0);
    bag_hot_rows_free(hot);
}

TEST(takes_memory_for_the_first_sample_and_none_of_the_tables)
{
    struct bag_hot_rows *hot = bag_hot_rows_make();
    size_t before = bag_pages_used();
    bag_hot_rows_add(hot, NULL, 0);
    assert_null(hot->sketch);
    bag_hot_rows_add(hot, (const uint64_t[]){1}, 1);
    assert_non_null(hot->sketch);
    assert_int_equal(bag_pages_used(), before);
    bag_hot_rows_free(hot);
    bag_hot_rows_free(NULL);
}
