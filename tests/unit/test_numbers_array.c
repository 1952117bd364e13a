/* Reading arrays: brackets, counts, integers and words, and the messages for wrong ones. */
#include "numbers_fixture.h"

#define I64_RANGE "integers from -9223372036854775808 to 9223372036854775807"
#define F32_TAKES "FP32 takes JSON numbers within its range, NaN, Infinity and -Infinity"

TEST(test_reads_flat_and_nested_arrays)
{
    static const char *const texts[] = {"[1,-2,3,40000000000,5,-6]",
                                        "[1, -2, 3, 40000000000, 5, -6]",
                                        "[[1,-2,3],[40000000000,5,-6]]",
                                        "[[[1],[-2]],[[3],[40000000000]],[[5],[-6]]]",
                                        "[\n  1,\r\n\t-2  ,3 , 40000000000,\n\n5,   -6\t]",
                                        "[ [ 1 , -2 ] , 3, [], [40000000000,[5]],[[[]]] ,-6 ]",
                                        "[1,-2,3,40000000000,5,-6],\"next\":7"};
    static const int64_t want[] = {1, -2, 3, INT64_C(40000000000), 5, -6};
    int64_t got[6];
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct outcome outcome = read_text(texts[i], BAG_I64, 6, got);
        assert_string_equal(outcome.problem.text, "");
        assert_true(outcome.ok);
        assert_int_equal(outcome.end, (size_t)(strrchr(texts[i], ']') + 1 - texts[i]));
        assert_memory_equal(got, want, sizeof want);
    }
}

TEST(test_reads_empty_arrays)
{
    static const char *const texts[] = {"[]", "[ ]", "[[],[]]", "[\n[ [ ],[] ]\t]"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct outcome outcome = read_text(texts[i], BAG_F32, 0, NULL);
        assert_true(outcome.ok);
        assert_int_equal(outcome.end, strlen(texts[i]));
    }
}

TEST(test_depth_has_a_limit)
{
    char text[2 * (BAG_MAX_RANK + 1) + 2];
    int8_t got = 0;
    for (int depth = BAG_MAX_RANK; depth <= BAG_MAX_RANK + 1; depth++) {
        memset(text, '[', (size_t)depth);
        text[depth] = '7';
        memset(text + depth + 1, ']', (size_t)depth);
        struct outcome outcome = read_bytes(text, 2 * (size_t)depth + 1, BAG_I8, 1, &got);
        assert_int_equal(outcome.ok, depth == BAG_MAX_RANK);
        if (outcome.ok) {
            assert_int_equal(got, 7);
        } else {
            assert_string_equal(outcome.problem.text, "arrays are nested more than 32 deep");
            assert_int_equal(outcome.error_at, 32);
        }
    }
}

TEST(test_reads_booleans)
{
    uint8_t got[4];
    assert_true(read_text("[true,false, [false,true]]", BAG_BOOL, 4, got).ok);
    assert_memory_equal(got, "\1\0\0\1", 4);
}

/* ---- rejections ------------------------------------------------------------------------------ */

TEST(test_says_what_is_wrong)
{
    static const struct {
        const char *text;
        enum bag_dtype dtype;
        size_t count, error_at;
        const char *problem;
    } cases[] = {
        {"[1,2,3,1.5]", BAG_I64, 4, 7, "element 3 is '1.5'; INT64 takes " I64_RANGE},
        {"[[1],[2x]]", BAG_I64, 2, 6, "element 1 is '2x'; INT64 takes " I64_RANGE},
        {"[\"a\\\"b\"]", BAG_U8, 1, 1,
         "element 0 is the string 'a\\x5c\\x22b'; UINT8 takes integers from 0 to 255"},
        {"[1,\"a, b]\"]", BAG_U8, 2, 3,
         "element 1 is the string 'a, b]'; UINT8 takes integers from 0 to 255"},
        {"[\"\"]", BAG_U8, 1, 1, "element 0 is the string ''; UINT8 takes integers from 0 to 255"},
        {"[\"", BAG_U8, 1, 1, "element 0 is '\\x22'; UINT8 takes integers from 0 to 255"},
        {"[\"a\\", BAG_U8, 1, 1, "element 0 is '\\x22a\\x5c'; UINT8 takes integers from 0 to 255"},
        {"[1,]", BAG_U16, 1, 3, "no comma may precede ']'"},
        {"[1, ]", BAG_F32, 1, 4, "no comma may precede ']'"},
        {"[[1],\n]", BAG_I64, 1, 6, "no comma may precede ']'"},
        {"[,1]", BAG_U32, 1, 1, "element 0 is missing; UINT32 takes integers from 0 to 4294967295"},
        {"[null]", BAG_I8, 1, 1, "element 0 is 'null'; INT8 takes integers from -128 to 127"},
        {"[nan]", BAG_F32, 1, 1, "element 0 is 'nan'; " F32_TAKES},
        {"[1e39]", BAG_F32, 1, 1, "element 0 is '1e39'; " F32_TAKES},
        {"[1]", BAG_BOOL, 1, 1, "element 0 is '1'; BOOL takes true and false"},
        {"[truefalse]", BAG_BOOL, 1, 1, "element 0 is 'truefalse'; BOOL takes true and false"},
        {"[1 2]", BAG_I8, 2, 3, "expected ',' or ']' instead of '2'"},
        {"[1,[2][3]]", BAG_I8, 3, 6, "expected ',' or ']' instead of '['"},
        {"[1,2,3,4,5]", BAG_I8, 4, 9, "\"data\" has 5 elements, the shape needs 4"},
        {"[1,[2],[[3,4],5,6 ]]", BAG_I8, 2, 9, "\"data\" has 6 elements, the shape needs 2"},
        {"[1]", BAG_I8, 0, 1, "\"data\" has 1 element, the shape needs 0"},
        {"[1,2,[3]]", BAG_I8, 4, 8, "\"data\" has 3 elements, the shape needs 4"},
        {"[ ]", BAG_F64, 1, 2, "\"data\" has 0 elements, the shape needs 1"},
        {"[1,2,300]", BAG_I8, 2, 5, "element 2 is '300'; INT8 takes integers from -128 to 127"},
        {"[9223372036854775808]", BAG_I64, 1, 1,
         "element 0 is '9223372036854775808'; INT64 takes integers from -9223372036854775808 to "
         "9223372036854775807; send keys that are larger as UINT64"},
        {"[18446744073709551616]", BAG_I64, 1, 1,
         "element 0 is '18446744073709551616'; INT64 takes integers from -9223372036854775808 to "
         "9223372036854775807"},
        {"[1,128,3,4, 5,6]", BAG_I8, 6, 3,
         "element 1 is '128'; INT8 takes integers from -128 to 127"},
        {"[1,2,65536, 4,5,6]", BAG_U16, 6, 5,
         "element 2 is '65536'; UINT16 takes integers from 0 to 65535"},
        {"1", BAG_I8, 1, 0, "\"data\" must be an array"},
        {"", BAG_I8, 1, 0, "\"data\" must be an array"},
        {"[1", BAG_I8, 1, 2, "the array is not closed"},
        {"[[1]", BAG_I8, 1, 4, "the array is not closed"},
        {"[1,", BAG_I8, 2, 3, "the array is not closed"},
        {"[", BAG_I8, 1, 1, "the array is not closed"}};
    double got[8];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct outcome outcome = read_text(cases[i].text, cases[i].dtype, cases[i].count, got);
        assert_false(outcome.ok);
        assert_string_equal(outcome.problem.text, cases[i].problem);
        assert_int_equal(outcome.problem.kind, BAG_ERROR_BAD_REQUEST);
        assert_int_equal(outcome.error_at, cases[i].error_at);
    }
}

/* A shape may say more elements than memory has addresses for. */
TEST(test_count_beyond_memory)
{
    static const size_t counts[] = {SIZE_MAX, SIZE_MAX / 8, SIZE_MAX / 8 + 1,
                                    (size_t)UINT32_MAX << 32};
    const char *const text = "[1, [2]]", *end, *error_at;
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        double got[4];
        char expected[96];
        struct bag_problem problem;
        assert_false(bag_numbers_parse(text, strlen(text), BAG_F64, counts[i], got, &end, &error_at,
                                       &problem));
        snprintf(expected, sizeof expected, "\"data\" has 2 elements, the shape needs %zu",
                 counts[i]);
        assert_string_equal(problem.text, expected);
        assert_ptr_equal(error_at, text + strlen(text) - 1);
    }
}

TEST(test_rejects_what_is_no_number)
{
    static const char *const never[] = {
        "01",      "-01",      "00",        "+1",       "--1",  "-",     "0x1",   "1_0",   "1e",
        "1e+",     "1e-",      ".5",        "-.5",      "1.",   "1.e5",  "1.5.2", "1e5.5", "Inf",
        "inf",     "-Inf",     "nan",       "NAN",      "-NaN", "NaN1",  "NaNx",  "+NaN",  "null",
        "\"1\"",   "true",     "{}",        "1f",       "1L",   "1e5e5", "1-1",   "- 1",   "'1'",
        "1;",      "0b1",      "0o7",       "1e 5",     "1 .5", "٣",     "１",    "−1",    "1e٣",
        "Infinit", "-Infinit", "Infinityy", "INFINITY", "\xff", "e5",    "E5",    "N",     "I",
        "-I",      "0.",       "0.e1",      "1\x01",    "\x7f-"};
    static const char *const never_integers[] = {"1.0", "1e0",      "1E5",        "-0.0",
                                                 "NaN", "Infinity", "12345678.0", "123456789012e1",
                                                 "0e0", "0.5"};
    static const enum bag_dtype dtypes[] = {BAG_F32, BAG_F64, BAG_U8,  BAG_U16, BAG_U32,
                                            BAG_U64, BAG_I8,  BAG_I16, BAG_I32, BAG_I64};
    static const char *const ends[] = {"]", ",4,5, 6,7,8]"};
    char text[64];
    double got[8];
    for (size_t i = 0; i < COUNT_OF(never) + COUNT_OF(never_integers); i++) {
        bool integers = i >= COUNT_OF(never);
        const char *bad = integers ? never_integers[i - COUNT_OF(never)] : never[i];
        for (size_t d = integers ? 2 : 0; d < COUNT_OF(dtypes); d++) {
            for (size_t j = 0; j < 3 * COUNT_OF(ends); j++) {
                size_t place = j % 3;
                sprintf(text, "[%s%s%s%s", &"1,2,"[4 - 2 * place], bad, &",2,3"[2 * place],
                        ends[j / 3]);
                struct outcome outcome = read_text(text, dtypes[d], j / 3 ? 8 : 3, got);
                if (outcome.ok)
                    fail_msg("%s was read as %s", text, bag_dtypes[dtypes[d]].name);
                assert_in_range(outcome.error_at, 1 + 2 * place, 1 + 2 * place + strlen(bad));
            }
        }
    }
}

TEST(test_rejects_nul_bytes)
{
    double got[2];
    assert_false(read_bytes("[\0]", 3, BAG_F32, 1, got).ok);
    assert_false(read_bytes("[1\0]", 4, BAG_I8, 1, got).ok);
    struct outcome outcome = read_bytes("[1,\0"
                                        "2]",
                                        6, BAG_I8, 2, got);
    assert_false(outcome.ok);
    assert_string_equal(outcome.problem.text,
                        "element 1 is '\\x002'; INT8 takes integers from -128 to 127");
}

/* An array that ends anywhere is rejected, and nothing behind its end is read. */
TEST(test_rejects_every_truncation)
{
    static const struct {
        const char *text;
        enum bag_dtype dtype;
        size_t count;
    } cases[] = {
        {"[1, -22,333 ,[12345678],123456789,-9223372036854775808]", BAG_I64, 6},
        {"[0.5,-1.25e-3, NaN,Infinity,[-Infinity,1234567.12345678901234567890e+12]]", BAG_F64, 6},
        {"[0.5,-1.25E+3, NaN,Infinity,[-Infinity,0.00000000000000000012345678]]", BAG_F32, 6},
        {"[true,[false] , true]", BAG_BOOL, 3}};
    double got[6];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t bytes = strlen(cases[i].text);
        assert_true(read_bytes(cases[i].text, bytes, cases[i].dtype, cases[i].count, got).ok);
        for (size_t cut = 0; cut < bytes; cut++) {
            struct outcome outcome =
                read_bytes(cases[i].text, cut, cases[i].dtype, cases[i].count, got);
            assert_false(outcome.ok);
            assert_in_range(outcome.error_at, 0, cut);
        }
    }
}

/* ---- integers -------------------------------------------------------------------------------- */

/* First, in the middle, before brackets and spaces, and last. */
static void check_integer(enum bag_dtype dtype, const char *number, bool fits, uint64_t want)
{
    char text[256];
    uint64_t got[9] = {0}, mask = UINT64_MAX >> (64 - 8 * bag_dtypes[dtype].bytes);
    size_t bytes = bag_dtypes[dtype].bytes;
    sprintf(text, "[%s,5, %s,5,[%s],5,%s  ,5,%s]", number, number, number, number, number);
    bool ok = read_text(text, dtype, 9, got).ok;
    if (ok != fits)
        fail_msg("%s as %s: %s", number, bag_dtypes[dtype].name, ok ? "read" : "rejected");
    for (size_t i = 0; fits && i < 9; i++) {
        uint64_t one = 0;
        memcpy(&one, (const char *)got + i * bytes, bytes);
        assert_int_equal(one, i % 2 ? 5 : want & mask);
    }
}

TEST(test_integers_have_exact_bounds)
{
    static const struct {
        enum bag_dtype dtype;
        const char *least, *below, *most, *above;
    } cases[] = {{BAG_U8, "0", "-1", "255", "256"},
                 {BAG_U16, "0", "-1", "65535", "65536"},
                 {BAG_U32, "0", "-1", "4294967295", "4294967296"},
                 {BAG_U64, "0", "-1", "18446744073709551615", "18446744073709551616"},
                 {BAG_I8, "-128", "-129", "127", "128"},
                 {BAG_I16, "-32768", "-32769", "32767", "32768"},
                 {BAG_I32, "-2147483648", "-2147483649", "2147483647", "2147483648"},
                 {BAG_I64, "-9223372036854775808", "-9223372036854775809", "9223372036854775807",
                  "9223372036854775808"}};
    static const char *const far[] = {"99999999999999999999", "100000000000000000000",
                                      "184467440737095516150", "18446744073709551616000000000000",
                                      "340282366920938463463374607431768211456"};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        enum bag_dtype dtype = cases[i].dtype;
        check_integer(dtype, cases[i].least, true, (uint64_t)strtoll(cases[i].least, NULL, 10));
        check_integer(dtype, cases[i].most, true, strtoull(cases[i].most, NULL, 10));
        check_integer(dtype, cases[i].below, false, 0);
        check_integer(dtype, cases[i].above, false, 0);
        check_integer(dtype, "-0", true, 0);
        for (size_t j = 0; j < COUNT_OF(far); j++)
            check_integer(dtype, far[j], false, 0);
    }
}

/* Every length of number, wherever a block of eight bytes ends. */
TEST(test_integers_of_every_length)
{
    uint64_t random = SEED;
    char number[32];
    for (int i = 0; i < 20000; i++) {
        uint64_t value = bag_random(&random) >> (bag_random(&random) % 64);
        snprintf(number, sizeof number, "%llu", (unsigned long long)value);
        check_integer(BAG_U64, number, true, value);
        check_integer(BAG_U32, number, value <= UINT32_MAX, value);
        snprintf(number, sizeof number, "%lld", (long long)value);
        check_integer(BAG_I64, number, true, value);
    }
}

/* Appends up to 60 integers of any length to `text`, with one of them wrong if `wrong` says how.
 * Sets *wrong_at to its position. Returns their number. */
static size_t put_random_array(uint64_t *random, char *text, int64_t *values, const char *wrong,
                               size_t *wrong_at)
{
    static const char *const separators[] = {",", ", ", ",  ", " ,", ",\n"};
    size_t count = 1 + bag_random(random) % 60, at = 0, chosen = bag_random(random) % count;
    bool same_separators = bag_random(random) % 4, has_signs = bag_random(random) % 2;
    const char *separator = separators[bag_random(random) % 2];
    text[at++] = '[';
    for (size_t i = 0; i < count; i++) {
        if (!same_separators)
            separator = separators[bag_random(random) % COUNT_OF(separators)];
        values[i] = (int64_t)(bag_random(random) >> (1 + bag_random(random) % 63));
        if (has_signs && bag_random(random) % 2)
            values[i] = -values[i];
        if (i)
            at += (size_t)sprintf(text + at, "%s", separator);
        if (wrong && i == chosen) {
            *wrong_at = at;
            at += (size_t)sprintf(text + at, "%s", wrong);
        } else {
            at += (size_t)sprintf(text + at, "%lld", (long long)values[i]);
        }
    }
    sprintf(text + at, "]");
    return count;
}

/* Integers are read in blocks of up to 64 bytes. */
TEST(test_random_arrays_of_integers)
{
    static const char *const wrong[] = {"01",
                                        "-01",
                                        "1x",
                                        "--1",
                                        "+1",
                                        "1.0",
                                        "1/",
                                        "1:",
                                        "99999999999999999999",
                                        "1\xB0",
                                        "9223372036854775808"};
    uint64_t random = SEED;
    char text[2048];
    int64_t values[60], got[60];
    for (size_t i = 0; i < 20000; i++) {
        const char *one_wrong = i % 2 ? wrong[i / 2 % COUNT_OF(wrong)] : NULL;
        size_t wrong_at = 0;
        size_t count = put_random_array(&random, text, values, one_wrong, &wrong_at);
        struct outcome outcome = read_text(text, BAG_I64, count, got);
        if (outcome.ok != !one_wrong || outcome.error_at != wrong_at)
            fail_msg("%s: %s at %zu instead of %zu (seed %llu, array %zu)", text,
                     outcome.problem.text, outcome.error_at, wrong_at, (unsigned long long)SEED, i);
        if (outcome.ok) {
            assert_int_equal(outcome.end, strlen(text));
            assert_memory_equal(got, values, count * sizeof *got);
        }
        /* The text may end anywhere, and there may be room for fewer elements. */
        size_t cut = bag_random(&random) % strlen(text);
        assert_false(read_bytes(text, cut, BAG_I64, count, got).ok);
        assert_false(read_text(text, BAG_I64, bag_random(&random) % count, got).ok);
    }
}
