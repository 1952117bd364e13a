/* The index of keys: every key is found with its row and nothing else is, whatever the keys. */
#include "kernels/isa.h"
#include "server/tables/memory.h"
#include "testing.h"

/* ---- an index of an array -------------------------------------------------------------------- */

struct array {
    const uint64_t *keys;
    size_t fail_at; /* reading this key fails */
};

static bool read_array(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                       struct bag_problem *problem)
{
    const struct array *array = context;
    (void)rows;
    if (array->fail_at >= first && array->fail_at < first + count)
        return bag_problem_set(problem, BAG_ERROR_FILE, "unreadable");
    memcpy(keys, array->keys + first, count * sizeof *keys);
    return true;
}

static bool build(const uint64_t *keys, size_t count, unsigned threads,
                  struct bag_keys_index *index, struct bag_problem *problem)
{
    struct array array = {keys, SIZE_MAX};
    struct bag_keys_source source = {read_array, &array, count, true, 0, false};
    return bag_keys_index_build(&source, &(struct bag_load_options){.threads = threads}, index,
                                problem);
}

static struct bag_keys_index must_build(const uint64_t *keys, size_t count, unsigned threads)
{
    struct bag_keys_index index;
    struct bag_problem problem;
    if (!build(keys, count, threads, &index, &problem))
        fail_msg("%s", problem.text);
    return index;
}

static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* All keys by one call, and a missing one after each. */
static void check_all(const struct bag_keys_index *index, const uint64_t *keys, size_t count,
                      const uint64_t *absent)
{
    uint64_t *asked = calloc(2 * count + 1, sizeof *asked);
    int64_t *rows = calloc(2 * count + 1, sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        asked[2 * i] = keys[i];
        asked[2 * i + 1] = absent[i];
    }
    struct bag_ids ids = {asked, 2 * count, true};
    assert_int_equal(bag_keys_find(&index->keys, &ids, rows), count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(rows[2 * i], i);
        assert_int_equal(rows[2 * i + 1], -1);
        assert_int_equal(bag_keys_find_one(&index->keys, keys[i]), i);
        assert_int_equal(bag_keys_find_one(&index->keys, absent[i]), -1);
    }
    free(asked);
    free(rows);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

TEST(finds_every_key_of_every_size)
{
    static uint64_t keys[1500], absent[1500];
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        keys[i] = scramble(i);
        absent[i] = scramble(i + 100000);
    }
    for (size_t count = 0; count < 70; count++) {
        struct bag_keys_index index = must_build(keys, count, 1);
        check_all(&index, keys, count, absent);
        bag_keys_index_free(&index);
    }
    struct bag_keys_index index = must_build(keys, COUNT_OF(keys), 3);
    check_all(&index, keys, COUNT_OF(keys), absent);
    bag_keys_index_free(&index);
}

TEST(takes_eleven_bytes_a_key)
{
    assert_int_equal(bag_keys_index_bytes(0, false), 1024);
    assert_int_equal(bag_keys_index_bytes(95, false), 1024);
    assert_int_equal(bag_keys_index_bytes(96, false), 18 * 64);
    assert_int_equal(bag_keys_index_bytes(1200000, false), 200002 * 64);
    for (size_t count = 10000; count < (size_t)BAG_KEYS_MAX_ROWS; count = count * 9 / 7)
        assert_true(bag_keys_index_bytes(count, false) <= 11 * count);
}

/* ---- keys ------------------------------------------------------------------------------------ */

#define MANY ((size_t)300000)

/* X(name, the i-th key) */
#define PATTERNS(X)                 \
    X("random", scramble(i))        \
    X("sequential", i)              \
    X("negative", 0 - i)            \
    X("equal low bits", i << 32)    \
    X("equal low 40 bits", i << 40) \
    X("even", 2 * i)                \
    X("multiples of 1e9", i * 1000000000)

TEST(builds_from_chosen_keys)
{
    uint64_t *keys = malloc(MANY * sizeof *keys);
#define BAG_X(name, key)                                                  \
    {                                                                     \
        for (size_t i = 0; i < MANY; i++)                                 \
            keys[i] = key;                                                \
        struct bag_keys_index index = must_build(keys, MANY, 2);          \
        for (size_t i = 0; i < MANY; i++)                                 \
            assert_int_equal(bag_keys_find_one(&index.keys, keys[i]), i); \
        bag_keys_index_free(&index);                                      \
    }
    PATTERNS(BAG_X)
#undef BAG_X
    free(keys);
}

TEST(takes_every_pattern_as_a_key)
{
    static const uint64_t keys[] = {0, UINT64_MAX, 1, UINT64_C(1) << 63, INT64_MAX, UINT32_MAX};
    static const uint64_t absent[] = {2, UINT64_MAX - 1, 3, UINT64_C(1) << 62, 5, 6};
    struct bag_keys_index index = must_build(keys, COUNT_OF(keys), 1);
    check_all(&index, keys, COUNT_OF(keys), absent);
    bag_keys_index_free(&index);
    /* Slots that hold nothing are zeros: no key is found there. */
    index = must_build(keys + 1, 1, 1);
    assert_int_equal(bag_keys_find_one(&index.keys, 0), -1);
    bag_keys_index_free(&index);
}

TEST(extends_the_sign_of_narrow_keys)
{
    static const uint64_t keys[] = {UINT64_MAX, UINT32_MAX, 7};
    static const int32_t asked[] = {-1, 7, -2};
    int64_t rows[3];
    struct bag_keys_index index = must_build(keys, COUNT_OF(keys), 1);
    char *bytes = malloc(sizeof asked + 1); /* at an odd place */
    memcpy(bytes + 1, asked, sizeof asked);
    struct bag_ids ids = {bytes + 1, 3, false};
    assert_int_equal(bag_keys_find(&index.keys, &ids, rows), 1);
    assert_int_equal(rows[0], 0);
    assert_int_equal(rows[1], 2);
    assert_int_equal(rows[2], -1);
    free(bytes);
    bag_keys_index_free(&index);
}

/* Keys of an index that is full, half of them missing, in calls around the number that is looked up
 * ahead. */
TEST(every_instruction_set_finds_the_same)
{
    enum { COUNT = 6000 };
    static uint64_t keys[COUNT], asked[COUNT];
    static int64_t rows[COUNT];
    static const size_t counts[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 300, COUNT};
    for (uint64_t i = 0; i < COUNT; i++)
        keys[i] = i * i * UINT64_C(0x9e3779b97f4a7c15) + i;
    struct bag_keys_index index = must_build(keys, COUNT, 1);
    for (size_t i = 0; i < COUNT; i++)
        asked[i] = keys[i * 7 % COUNT] + (i % 2) * 12345;
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (!bag_isa_usable((enum bag_isa)isa))
            continue;
        bag_isa_use((enum bag_isa)isa);
        for (size_t i = 0; i < COUNT_OF(counts); i++) {
            struct bag_ids ids = {asked, counts[i], true};
            size_t missing = 0;
            size_t told = bag_keys_find(&index.keys, &ids, rows);
            for (size_t j = 0; j < counts[i]; j++) {
                assert_int_equal(rows[j], bag_keys_find_one(&index.keys, asked[j]));
                missing += rows[j] < 0;
            }
            assert_int_equal(told, missing);
        }
    }
    bag_isa_use(BAG_ISA_GENERIC);
    bag_keys_index_free(&index);
}

TEST(seeds_lead_to_different_lines)
{
    static const uint64_t keys[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    struct bag_keys_index a = must_build(keys, COUNT_OF(keys), 1);
    struct bag_keys_index b = must_build(keys, COUNT_OF(keys), 1);
    assert_memory_not_equal(&a.keys.seed, &b.keys.seed, sizeof a.keys.seed);
    assert_memory_not_equal(a.keys.lines, b.keys.lines, a.mapping_bytes);
    bag_keys_index_free(&a);
    bag_keys_index_free(&b);
}

/* ---- rejections ------------------------------------------------------------------------------ */

TEST(names_the_first_pair_of_equal_keys)
{
    uint64_t *keys = malloc(MANY * sizeof *keys);
    struct bag_keys_index index;
    struct bag_problem problem;
    for (size_t i = 0; i < MANY; i++)
        keys[i] = scramble(i);
    keys[MANY - 1] = keys[0];
    keys[150000] = keys[120000] = keys[70] = (uint64_t)-9;
    keys[130000] = keys[3];
    for (unsigned threads = 1; threads < 4; threads++) {
        assert_false(build(keys, MANY, threads, &index, &problem));
        assert_string_equal(problem.text,
                            "key -9 is duplicated, in rows 70 and 120000 (counted from 0); every "
                            "row needs a key of its own");
        assert_int_equal(problem.kind, BAG_ERROR_FILE);
        assert_null(index.keys.lines);
    }
    free(keys);
}

TEST(shows_unsigned_keys_as_such)
{
    static const uint64_t keys[] = {UINT64_MAX, UINT64_MAX};
    struct array array = {keys, SIZE_MAX};
    struct bag_keys_source source = {read_array, &array, 2, false, 0, false};
    struct bag_keys_index index;
    struct bag_problem problem;
    assert_false(
        bag_keys_index_build(&source, &(struct bag_load_options){.threads = 1}, &index, &problem));
    assert_non_null(
        strstr(problem.text, "key 18446744073709551615 is duplicated, in rows 0 and 1"));
}

TEST(ends_where_reading_fails)
{
    uint64_t *keys = malloc(MANY * sizeof *keys);
    for (size_t i = 0; i < MANY; i++)
        keys[i] = i;
    struct array array = {keys, MANY / 2};
    struct bag_keys_source source = {read_array, &array, MANY, true, 0, false};
    struct bag_keys_index index;
    struct bag_problem problem;
    assert_false(
        bag_keys_index_build(&source, &(struct bag_load_options){.threads = 2}, &index, &problem));
    assert_string_equal(problem.text, "unreadable");
    free(keys);
}

TEST(rejects_more_keys_than_rows_can_be_numbered)
{
    struct bag_keys_source source = {read_array, NULL, (size_t)BAG_KEYS_MAX_ROWS + 1,
                                     true,       0,    false};
    struct bag_keys_index index;
    struct bag_problem problem;
    assert_false(
        bag_keys_index_build(&source, &(struct bag_load_options){.threads = 2}, &index, &problem));
    assert_string_equal(problem.text,
                        "there are 137438953473 keys; an index of keys takes up to 137438953472");
}

/* ---- progress -------------------------------------------------------------------------------- */

static void note_progress(void *context, size_t bytes)
{
    size_t *sum = context;
    assert_true(bytes > 0);
    *sum += bytes;
}

TEST(tells_progress_to_the_end)
{
    uint64_t *keys = malloc(MANY * sizeof *keys);
    size_t sum = 0;
    const struct bag_load_options options = {
        .threads = 2, .progress = note_progress, .context = &sum};
    for (size_t i = 0; i < MANY; i++)
        keys[i] = i;
    struct array array = {keys, SIZE_MAX};
    struct bag_keys_source source = {read_array, &array, MANY, true, 0, false};
    struct bag_keys_index index;
    struct bag_problem problem;
    assert_true(bag_keys_index_build(&source, &options, &index, &problem));
    assert_int_equal(sum, MANY * 8);
    bag_keys_index_free(&index);
    free(keys);
}

/* ---- rows of missing keys -------------------------------------------------------------------- */

/* Computed apart, from the formula in keys.h. */
TEST(hashes_missing_keys_as_documented)
{
    assert_int_equal(bag_keys_hashed_row(0, 1), 0);
    assert_int_equal(bag_keys_hashed_row(0, 1000), 883);
    assert_int_equal(bag_keys_hashed_row(1, 1000), 566);
    assert_int_equal(bag_keys_hashed_row(UINT64_MAX, 1000), 893);
    assert_int_equal(bag_keys_hashed_row(123456789, BAG_KEYS_MAX_ROWS), 18380397351);
}
