/* Strict JSON: what must be taken, what must be rejected and where, and what is cut out. */
#include "testing.h"

#include "proto/json.h"

static void accepts(const char *text)
{
    struct bag_problem problem;
    size_t bytes = strlen(text);
    char *copy = exact_copy(text, bytes);
    cJSON *tree = bag_json_parse(copy, bytes, &problem);
    if (!tree)
        fail_msg("refused: %s: %s", text, problem.text);
    bag_json_free(tree);
    free(copy);
}

static void rejects_bytes(const char *text, size_t bytes, const char *words)
{
    struct bag_problem problem;
    char *copy = exact_copy(text, bytes);
    cJSON *tree = bag_json_parse(copy, bytes, &problem);
    if (tree)
        fail_msg("taken: %s", text);
    assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
    if (!strstr(problem.text, words))
        fail_msg("%s: '%s' does not contain '%s'", text, problem.text, words);
    free(copy);
}

static void rejects(const char *text, const char *words)
{
    rejects_bytes(text, strlen(text), words);
}

static void test_accepts_all_of_the_grammar(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "[[]   ]",
        " \t\r\n[1] \n",
        "[0,-0,1,-1,10,1.5,-1.5e3,1E+2,1e-2,123456789012345678901234567890]",
        "[-0.000000000000000000000000000000000000000000000000000000000000000000000000000001]",
        "[1e-400]",
        "[true,false,null]",
        "{\"a\":{\"b\":[{\"c\":1}]},\"d\":\"\"}",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\uD834\\uDD1E\"]",
        "[\"\\u0000\"]",
        "{\"\\u0000a\":1}",
        "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"]",
        "[\"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\"]",
        "\"text\"",
        "42",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        accepts(texts[i]);
}

static void test_rejects_what_is_not_json(void **state)
{
    static const char *const cases[][2] = {
        {"", "line 1, column 1: the text ends too early"},
        {"   ", "line 1, column 4: the text ends too early"},
        {"{} x", "line 1, column 4: nothing may follow"},
        {"[1]\n\n  [2]", "line 3, column 3: nothing may follow"},
        {"[1,]", "expected a value"},
        {"[,1]", "expected a value"},
        {"[1 2]", "expected ',' or ']'"},
        {"[1", "ends too early"},
        {"{\"a\":1,}", "a string in double quotes"},
        {"{\"a\" 1}", "':' must follow"},
        {"{a:1}", "a string in double quotes"},
        {"{\"a\":1 \"b\":2}", "expected ',' or '}'"},
        {"{1:1}", "a string in double quotes"},
        {"[01]", "superfluous 0"},
        {"[-01]", "superfluous 0"},
        {"[00]", "superfluous 0"},
        {"[1.]", "a digit must follow the decimal point"},
        {"[.5]", "expected a value"},
        {"[-]", "expected a value"},
        {"[+1]", "expected a value"},
        {"[1e]", "a digit must follow the exponent sign"},
        {"[1e+]", "a digit must follow the exponent sign"},
        {"[0x10]", "expected ',' or ']'"},
        {"[1_0]", "expected ',' or ']'"},
        {"[NaN]", "expected a value"},
        {"[Infinity]", "expected a value"},
        {"[nul]", "expected a value"},
        {"[True]", "expected a value"},
        {"[1e999]", "too large"},
        {"[-1e999]", "too large"},
        {"[1000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00]",
         "too large"},
        {"['a']", "expected a value"},
        {"[\"a]", "ends too early"},
        {"[\"\\x41\"]", "unknown escape"},
        {"[\"\\u00g1\"]", "four hexadecimal digits"},
        {"[\"\\u12", "four hexadecimal digits"},
        {"[\"\\", "ends too early"},
        {"[\"\\ud800\"]", "high surrogate"},
        {"[\"\\ud800\\u0041\"]", "high surrogate"},
        {"[\"\\udc00\"]", "low surrogate"},
        {"[\"a\nb\"]", "control characters"},
        {"[\"\x80\"]", "invalid UTF-8"},
        {"[\"\xc0\x80\"]", "invalid UTF-8"},
        {"[\"\xe0\x80\x80\"]", "invalid UTF-8"},
        {"[\"\xed\xa0\x80\"]", "invalid UTF-8"},
        {"[\"\xf4\x90\x80\x80\"]", "invalid UTF-8"},
        {"[\"\xf8\x88\x80\x80\"]", "invalid UTF-8"},
        {"[\"\xe2\x82\"]", "invalid UTF-8"},
        {"[\"\xe2\x82", "invalid UTF-8"},
        {"\xef\xbb\xbf{}", "expected a value"},
        {"{\"a\":1,\"a\":2}", "key \"a\" is duplicated"},
        {"[{\"b\":{\"a\":1,\"c\":2,\"\\u0061\":2}}]", "key \"a\" is duplicated"},
        {"/* c */ {}", "expected a value"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        rejects(cases[i][0], cases[i][1]);
    rejects_bytes("[1]\0", 4, "nothing may follow");
    rejects_bytes("[\"\0\"]", 5, "control characters");
    rejects_bytes("\0", 1, "expected a value");
}

/* 16 members are compared pairwise, 17 sorted: the twin is found either way. */
static void test_finds_duplicates_among_many(void **state)
{
    char text[1024];
    (void)state;
    for (int members = 15; members <= 18; members++) {
        for (int twin = 0; twin < 2; twin++) {
            size_t used = (size_t)sprintf(text, "{\"k0\":0");
            for (int i = 1; i < members; i++)
                used += (size_t)sprintf(text + used, ",\"k%d\":0", i);
            sprintf(text + used, ",\"k%d\":0}", twin ? members / 2 : members);
            if (twin)
                rejects(text, "is duplicated");
            else
                accepts(text);
        }
    }
}

static void test_bounds_the_depth(void **state)
{
    char text[2 * BAG_JSON_MAX_DEPTH + 3];
    (void)state;
    memset(text, '[', BAG_JSON_MAX_DEPTH);
    memset(text + BAG_JSON_MAX_DEPTH, ']', BAG_JSON_MAX_DEPTH);
    text[2 * BAG_JSON_MAX_DEPTH] = 0;
    accepts(text);
    memset(text, '[', BAG_JSON_MAX_DEPTH + 1);
    memset(text + BAG_JSON_MAX_DEPTH + 1, ']', BAG_JSON_MAX_DEPTH + 1);
    text[2 * BAG_JSON_MAX_DEPTH + 2] = 0;
    rejects(text, "nested more than 128 deep");
}

/* ---- JSON headers -------------------------------------------------------------------------------
 */

static void span_is(struct bag_text span, const char *text)
{
    assert_int_equal(span.bytes, strlen(text));
    assert_memory_equal(span.data, text, span.bytes);
}

static void test_cuts_data_out_of_a_header(void **state)
{
    const char *text = "{\"id\":\"a\\u0000b\", \"junk\":[1,{\"data\":[9]}],"
                       "\"inputs\":[{\"name\":\"x\",\"data\":[1, [2,\"]\"]]},"
                       "{\"d\\u0061ta\":[],\"shape\":[3]},{\"data\":null}]}";
    struct bag_json_header header;
    struct bag_problem problem;
    struct bag_arena arena;
    char *copy = exact_copy(text, strlen(text));
    (void)state;
    bag_arena_init(&arena, 1 << 20);
    assert_true(bag_json_parse_header(copy, strlen(text), &arena, &header, &problem));
    span_is(header.id, "\"a\\u0000b\"");
    assert_int_equal(header.num_data, 2);
    span_is(header.data[0], "[1, [2,\"]\"]]");
    span_is(header.data[1], "[]");
    char *tree = cJSON_PrintUnformatted(header.tree);
    assert_string_equal(tree, "{\"id\":\"a\xef\xbf\xbd"
                              "b\",\"junk\":null,\"inputs\":[{\"name\":\"x\",\"data\":0},"
                              "{\"data\":1,\"shape\":[3]},{\"data\":null}]}");
    cJSON_free(tree);
    bag_json_free(header.tree);
    bag_arena_free(&arena);
    free(copy);
}

/* More inputs than the spans have room for at first. */
static void test_cuts_many_arrays(void **state)
{
    char text[4096] = "{\"inputs\":[";
    struct bag_json_header header;
    struct bag_problem problem;
    struct bag_arena arena;
    (void)state;
    for (int i = 0; i < 33; i++)
        sprintf(text + strlen(text), "%s{\"data\":[%d]}", i ? "," : "", i);
    strcat(text, "]}");
    bag_arena_init(&arena, 1 << 20);
    assert_true(bag_json_parse_header(text, strlen(text), &arena, &header, &problem));
    assert_int_equal(header.num_data, 33);
    span_is(header.data[0], "[0]");
    span_is(header.data[32], "[32]");
    bag_json_free(header.tree);
    bag_arena_free(&arena);
}

/* Brackets and quotes are found wherever they stand among bytes that are skipped eight at a time,
 * and a bracket in a string is none. */
static void test_finds_the_end_of_data_at_any_distance(void **state)
{
    static const char *const middles[] = {"[2]", "{\"]\":3}", "\"]]\"", "\"\\\"]\"", "1e5", "NaN"};
    (void)state;
    for (size_t i = 0; i < sizeof middles / sizeof middles[0]; i++) {
        for (int before = 0; before < 18; before++) {
            char data[64], text[128];
            struct bag_json_header header;
            struct bag_problem problem;
            struct bag_arena arena = {0};
            sprintf(data, "[%.*s%s%.*s]", before, "123456789012345678", middles[i], 17 - before,
                    "12345678901234567");
            sprintf(text, "{\"inputs\":[{\"data\":%s,\"name\":\"x\"}]}", data);
            bag_arena_init(&arena, 1 << 20);
            assert_true(bag_json_parse_header(text, strlen(text), &arena, &header, &problem));
            span_is(header.data[0], data);
            bag_json_free(header.tree);
            bag_arena_free(&arena);
        }
    }
}

static void test_rejects_bad_headers(void **state)
{
    static const char *const cases[][2] = {
        {"{\"id\":7}", "at byte 6: \"id\" must be a string"},
        {"{\"inputs\":[{\"data\":01}]}", "at byte 20: a number must not start"},
        {"{\"inputs\":[{\"data\":[1}]}", "expected ',' or '}'"},
        {"{\"inputs\":[{\"data\":[1", "ends too early"},
        {"{\"inputs\":[{\"data\":[\"a", "ends too early"},
        {"{\"other\":[01]}", "at byte 11: a number must not start"},
        {"{\"other\":1,\"other\":2}", "key \"other\" is duplicated"},
        {"{\"inputs\":[],\"inputs\":[]}", "key \"inputs\" is duplicated"},
        {"{\"inputs\":[{\"data\":[1],\"data\":[2]}]}", "key \"data\" is duplicated"},
        {"{}x", "at byte 2: nothing may follow"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_json_header header;
        struct bag_problem problem;
        struct bag_arena arena;
        bag_arena_init(&arena, 1 << 20);
        char *copy = exact_copy(cases[i][0], strlen(cases[i][0]));
        assert_false(bag_json_parse_header(copy, strlen(cases[i][0]), &arena, &header, &problem));
        if (!strstr(problem.text, cases[i][1]))
            fail_msg("%s: '%s' does not contain '%s'", cases[i][0], problem.text, cases[i][1]);
        free(copy);
        bag_arena_free(&arena);
    }
}

/* Every prefix of a JSON header is rejected, and none is read past its end. */
static void test_rejects_every_truncation(void **state)
{
    const char *text =
        "{\"id\":\"\\ud834\\udd1e\",\"u\":-1.5e+3,\"inputs\":[{\"name\":\"\xc3\xa9\","
        "\"shape\":[2,1],\"data\":[[1],[2]]}],\"outputs\":[true,null]}";
    (void)state;
    for (size_t bytes = 0; bytes < strlen(text); bytes++) {
        struct bag_json_header header;
        struct bag_problem problem;
        struct bag_arena arena;
        bag_arena_init(&arena, 1 << 20);
        char *copy = exact_copy(text, bytes);
        assert_false(bag_json_parse_header(copy, bytes, &arena, &header, &problem));
        assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
        free(copy);
        bag_arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts_all_of_the_grammar),
        cmocka_unit_test(test_rejects_what_is_not_json),
        cmocka_unit_test(test_finds_duplicates_among_many),
        cmocka_unit_test(test_bounds_the_depth),
        cmocka_unit_test(test_cuts_data_out_of_a_header),
        cmocka_unit_test(test_cuts_many_arrays),
        cmocka_unit_test(test_finds_the_end_of_data_at_any_distance),
        cmocka_unit_test(test_rejects_bad_headers),
        cmocka_unit_test(test_rejects_every_truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
