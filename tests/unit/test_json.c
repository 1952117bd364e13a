/* Strict JSON: accepted texts, rejected texts with the position of the fault, and the members that
 * the copy leaves out. */
#include "testing.h"

#include "proto/json.h"
#include "proto/json_writer.h"

static void accepts(const char *text)
{
    struct bag_problem problem;
    size_t bytes = strlen(text);
    char *copy = exact_copy(text, bytes);
    cJSON *tree = bag_json_parse(copy, bytes, &problem);
    if (!tree)
        fail_msg("rejected: %s: %s", text, problem.text);
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

TEST(test_accepts_all_of_the_grammar)
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
        "42"};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        accepts(texts[i]);
}

/* A text, and what the message says of it. */
static const char *const rejections[][2] = {
    {"", "line 1, column 1: the text ends too early"},
    {"   ", "line 1, column 4: the text ends too early"},
    {"{} x", "line 1, column 4: nothing may follow"},
    {"[1]\n\n  [2]", "line 3, column 3: nothing may follow"},
    {"[1,]", "line 1, column 4: no comma may precede ']'"},
    {"[[1],\n ]", "line 2, column 2: no comma may precede ']'"},
    {"[,1]", "expected a value"},
    {"[1 2]", "expected ',' or ']'"},
    {"[1", "ends too early"},
    {"{\"a\":1,}", "no comma may precede '}'"},
    {"{\"a\":1,\n }", "no comma may precede '}'"},
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
    {"\xef\xbb\xbf", "the text ends too early"},
    {"\xef\xbb\xbf\xef\xbb\xbf{}", "expected a value"},
    {" \xef\xbb\xbf{}", "expected a value"},
    {"{\"a\":1,\"a\":2}", "key \"a\" is duplicated"},
    {"[{\"b\":{\"a\":1,\"c\":2,\"\\u0061\":2}}]", "key \"a\" is duplicated"},
    {"/* c */ {}", "expected a value"}};

TEST(test_rejects_what_is_not_json)
{
    for (size_t i = 0; i < COUNT_OF(rejections); i++)
        rejects(rejections[i][0], rejections[i][1]);
    rejects_bytes("[1]\0", 4, "nothing may follow");
    rejects_bytes("[\"\0\"]", 5, "control characters");
    rejects_bytes("\0", 1, "expected a value");
}

/* 16 members are compared pairwise, 17 sorted: the twin is found either way. */
TEST(test_finds_duplicates_among_many)
{
    char text[1024];
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

TEST(test_bounds_the_depth)
{
    char text[2 * BAG_JSON_MAX_DEPTH + 3];
    memset(text, '[', BAG_JSON_MAX_DEPTH);
    memset(text + BAG_JSON_MAX_DEPTH, ']', BAG_JSON_MAX_DEPTH);
    text[2 * BAG_JSON_MAX_DEPTH] = 0;
    accepts(text);
    memset(text, '[', BAG_JSON_MAX_DEPTH + 1);
    memset(text + BAG_JSON_MAX_DEPTH + 1, ']', BAG_JSON_MAX_DEPTH + 1);
    text[2 * BAG_JSON_MAX_DEPTH + 2] = 0;
    rejects(text, "nested more than 128 deep");
}

/* ---- JSON headers ---------------------------------------------------------------------------- */

/* A parsed header with its problem and its memory. */
struct parsed {
    struct bag_json_header header;
    struct bag_problem problem; /* has the text "" if the header is valid */
    struct bag_arena arena;
    char *copy;
};

static struct parsed parse_within(const char *text, size_t bytes, size_t arena_bytes,
                                  const struct bag_json_limits *limits)
{
    struct parsed parsed = {.copy = quoted_copy(text, bytes)};
    bag_arena_init(&parsed.arena, arena_bytes);
    if (!bag_json_parse_header(parsed.copy, bytes, limits, &parsed.arena, &parsed.header,
                               &parsed.problem))
        parsed.header.tree = NULL;
    return parsed;
}

static void free_parsed(struct parsed *parsed)
{
    bag_json_free(parsed->header.tree);
    bag_arena_free(&parsed->arena);
    free(parsed->copy);
}

static struct parsed parse(const char *text)
{
    struct parsed parsed = parse_within(text, strlen(text), 8 << 20, &bag_json_default_limits);
    if (!parsed.header.tree)
        fail_msg("%s: %s", text, parsed.problem.text);
    return parsed;
}

/* Returns the problem of a header under limits, whose text is "" if the header is taken. */
static struct bag_problem parse_limited(const char *text, size_t bytes,
                                        const struct bag_json_limits *limits)
{
    struct parsed parsed = parse_within(text, bytes, 8 << 20, limits);
    free_parsed(&parsed);
    return parsed.problem;
}

static void span_is(struct bag_text span, const char *text)
{
    assert_int_equal(span.bytes, strlen(text));
    assert_memory_equal(span.data, text, span.bytes);
}

TEST(test_cuts_data_out_of_a_header)
{
    const char *text =
        "{'id':'a\\u0000b', 'junk':[1,{'data':[9]}],'inputs':[{'name':'x','data':[1, "
        "[2,']']]},{'d\\u0061ta':[],'shape':[3]},{'data':null}]}";
    struct parsed parsed = parse(text);
    span_is(parsed.header.id, "\"a\\u0000b\"");
    assert_int_equal(parsed.header.num_data, 2);
    span_is(parsed.header.data[0], "[1, [2,\"]\"]]");
    span_is(parsed.header.data[1], "[]");
    char *tree = cJSON_PrintUnformatted(parsed.header.tree);
    assert_string_equal(tree, "{\"id\":\"a\xef\xbf\xbd"
                              "b\",\"junk\":null,\"inputs\":[{\"name\":\"x\",\"data\":0},"
                              "{\"data\":1,\"shape\":[3]},{\"data\":null}]}");
    cJSON_free(tree);
    free_parsed(&parsed);
}

/* More inputs than the spans have room for at first. */
TEST(test_cuts_many_arrays)
{
    char text[4096] = "{'inputs':[";
    for (int i = 0; i < 33; i++)
        sprintf(text + strlen(text), "%s{\"data\":[%d]}", i ? "," : "", i);
    struct parsed parsed = parse(strcat(text, "]}"));
    assert_int_equal(parsed.header.num_data, 33);
    span_is(parsed.header.data[0], "[0]");
    span_is(parsed.header.data[32], "[32]");
    free_parsed(&parsed);
}

/* Brackets and quotes are found wherever they are among bytes that are skipped eight at a time,
 * and a bracket in a string is none. */
TEST(test_finds_the_end_of_data_at_any_distance)
{
    static const char *const middles[] = {"[2]", "{\"]\":3}", "\"]]\"", "\"\\\"]\"", "1e5", "NaN"};
    for (size_t i = 0; i < 18 * COUNT_OF(middles); i++) {
        char data[64], text[128];
        int before = (int)(i % 18);
        sprintf(data, "[%.*s%s%.*s]", before, "123456789012345678", middles[i / 18], 17 - before,
                "12345678901234567");
        sprintf(text, "{'inputs':[{'data':%s,'name':'x'}]}", data);
        struct parsed parsed = parse(text);
        span_is(parsed.header.data[0], data);
        free_parsed(&parsed);
    }
}

TEST(test_rejects_bad_headers)
{
    static const char *const cases[][2] = {
        {"{'id':7}", "at byte 6: \"id\" must be a string"},
        {"{'inputs':[{'data':01}]}", "at byte 20: a number must not start"},
        {"{'inputs':[{'data':[1}]}", "expected ',' or '}'"},
        {"{'inputs':[{'data':[1", "ends too early"},
        {"{'inputs':[{'data':['a", "ends too early"},
        {"{'other':[01]}", "at byte 11: a number must not start"},
        {"{'other':1,'other':2}", "key \"other\" is duplicated"},
        {"{'inputs':[],'inputs':[]}", "key \"inputs\" is duplicated"},
        {"{'inputs':[{'data':[1],'data':[2]}]}", "key \"data\" is duplicated"},
        {"{}x", "at byte 2: nothing may follow"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_problem problem =
            parse_limited(cases[i][0], strlen(cases[i][0]), &bag_json_default_limits);
        if (!strstr(problem.text, cases[i][1]))
            fail_msg("%s: '%s' does not contain '%s'", cases[i][0], problem.text, cases[i][1]);
    }
}

/* Every prefix of a JSON header is rejected, and none is read past its end. */
TEST(test_rejects_every_truncation)
{
    const char *text = "{'id':'\\ud834\\udd1e','u':-1.5e+3,'inputs':[{'name':'\xc3\xa9','shape':[2,"
                       "1],'data':[[1],[2]]}],'outputs':[true,null]}";
    for (size_t bytes = 0; bytes < strlen(text); bytes++) {
        struct bag_problem problem = parse_limited(text, bytes, &bag_json_default_limits);
        assert_string_not_equal(problem.text, "");
        assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
    }
}

/* ---- limits of JSON headers ------------------------------------------------------------------ */

static const struct bag_json_limits small = {.max_tensors = 3,
                                             .max_dimensions = 4,
                                             .max_parameters = 2,
                                             .max_values = 20,
                                             .max_bytes = 200,
                                             .max_depth = 6};

static void limited(const char *text, const char *wanted)
{
    struct bag_problem problem = parse_limited(text, strlen(text), &small);
    assert_string_equal(problem.text, wanted);
    if (*wanted)
        assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
}

TEST(test_limits_tensors_and_their_parts)
{
    limited("{'inputs':[{},{},{}],'outputs':[1,2,3]}", "");
    limited("{'inputs':[{},{},{},{}]}",
            "JSON header, at byte 20: \"inputs\" has more than 3 tensors");
    limited("{'inputs':[{}],'outputs':[[],0,null, '']}",
            "JSON header, at byte 37: \"outputs\" has more than 3 tensors");
    limited("{'inputs':[{'shape':[1,2,3,4]}]}", "");
    limited("{'inputs':[{},{'shape':[1,2,3,4,5]}]}",
            "inputs[1], at byte 32: \"shape\" has more than 4 dimensions");
    limited("{'inputs':[{'n\\u0061me':'a\\'b','sh\\u0061pe':[1,2,3,4,5]}]}",
            "input 'a\\x5c\\x22b', at byte 53: \"shape\" has more than 4 dimensions");
    limited("{'outputs':[{'shape':[1,2,3,4,5]}]}",
            ""); /* outputs have no shape, so that its limit does not apply */
    limited("{'parameters':{'a':1,'b':2}}", "");
    limited("{'parameters':{'a':1,'b':2,'c':3}}",
            "JSON header, at byte 27: \"parameters\" has more than 2 members");
    limited("{'inputs':[{'name':'x','parameters':{'a':1,'b':2,'c':3}}]}",
            "input 'x', at byte 49: \"parameters\" has more than 2 members");
    limited("{'outputs':[{'name':'y','parameters':{'a':1,'b':2,'c':3}}]}",
            "output 'y', at byte 50: \"parameters\" has more than 2 members");
    limited("{'inputs':[{'name':'x'}],'parameters':{'a':1,'b':2,'c':3}}",
            "JSON header, at byte 51: \"parameters\" has more than 2 members");
}

TEST(test_limits_values_and_depth)
{
    /* The object, "inputs", its element, its member and 16 more. */
    limited("{'inputs':[{'x':[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6],'data':[1,2,3]}]}",
            "inputs[0], at byte 57: more than 20 values outside of \"data\"");
    limited("{'inputs':[{'x':[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5],'data':[1,2,3]}]}", "");
    limited("{'x':[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0]}",
            ""); /* unknown members are dropped */
    limited("{'x':[[[[[]]]]]}", "");
    limited("{'x':[[[[[[]]]]]]}",
            "JSON header, at byte 10: arrays and objects are nested more than 6 deep");
    limited("{'inputs':[{'data':[[[[[[[]]]]]]]}]}", "");
}

/* Limits of bytes: data of any length does not count, everything else does. */
TEST(test_limits_bytes)
{
    char text[1024];
    for (int over = 0; over < 2; over++) {
        int around = (int)strlen("{'inputs':[{'data':,'name':''}]}");
        sprintf(text, "{'inputs':[{'data':[%0300d],'name':'%0*d'}]}", 7,
                (int)small.max_bytes - around + over, 1);
        limited(text, over ? "JSON header, at byte 502: more than 200 bytes "
                             "outside of \"data\""
                           : "");
    }
    /* Wherever the limit cuts a token, the message names the limit. */
    for (int before = 150; before < 200; before++) {
        sprintf(text, "{'x':'%0*d','parameters':{'\\ud834\\udd1e':false,'a':-1.5e+300}}", before,
                1);
        struct bag_problem problem = parse_limited(text, strlen(text), &small);
        assert_non_null(strstr(problem.text, "more than 200 bytes outside of \"data\""));
    }
}

/* A text of `count` equal pieces between a start and an end; freed by the caller. */
static char *repeated(const char *start, const char *piece, size_t count, const char *end)
{
    size_t bytes = strlen(piece);
    char *text = malloc(strlen(start) + bytes * count + strlen(end) + 1), *at = text;
    at += sprintf(at, "%s", start);
    for (size_t i = 0; i < count; i++, at += bytes)
        memcpy(at, piece, bytes);
    strcpy(at, end);
    return text;
}

/* The defaults at their bounds, and far beyond. */
TEST(test_default_limits)
{
    static const struct {
        const char *start, *piece, *end;
        size_t most; /* pieces; the end has one more */
        const char *words;
    } cases[] = {{"{'inputs':[", "{},", "{}]}", BAG_JSON_MAX_TENSORS - 1,
                  "\"inputs\" has more than 4096 tensors"},
                 {"{'outputs':[", "{},", "{}]}", BAG_JSON_MAX_TENSORS - 1,
                  "\"outputs\" has more than 4096 tensors"},
                 {"{'inputs':[{'shape':[", "1,", "1]}]}", BAG_MAX_RANK - 1,
                  "inputs[0], at byte 85: \"shape\" has more than 32 dimensions"},
                 {"{'inputs':[{'x':[", "[],", "0]}]}", BAG_JSON_MAX_VALUES - 5,
                  "more than 65536 values outside"},
                 {"{'id':'", "x", "\"}", BAG_JSON_MAX_BYTES - 9,
                  "JSON header, at byte 2097152: more than 2097152 bytes outside of "
                  "\"data\""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t over = 0; over < 3; over++) {
            size_t count = cases[i].most + (over < 2 ? over : 1000000);
            char *text = repeated(cases[i].start, cases[i].piece, count, cases[i].end);
            struct bag_problem problem =
                parse_limited(text, strlen(text), &bag_json_default_limits);
            if (over == 0)
                assert_string_equal(problem.text, "");
            else if (!strstr(problem.text, cases[i].words))
                fail_msg("'%s' does not contain '%s'", problem.text, cases[i].words);
            free(text);
        }
    }
}

TEST(test_lack_of_memory_is_told_as_such)
{
    const char *text = "{'inputs':[{'data':[1]}]}";
    /* With less memory the allocation of the copy fails, with more the allocation of the data. */
    for (size_t bytes = 16; bytes < 96 + 128; bytes += 16) {
        struct parsed parsed = parse_within(text, strlen(text), bytes, &bag_json_default_limits);
        assert_null(parsed.header.tree);
        assert_int_equal(parsed.problem.kind, BAG_ERROR_NO_MEMORY);
        free_parsed(&parsed);
    }
}

TEST(test_rejects_numbers_out_of_range)
{
    char text[512], nines[400];
    struct bag_problem problem;
    memset(nines, '9', sizeof nines);
    for (int digits = 300; digits < 400; digits++) {
        sprintf(text, "{'inputs':[{'shape':[-%.*s]}]}", digits, nines);
        problem = parse_limited(text, strlen(text), &bag_json_default_limits);
        assert_string_equal(problem.text,
                            digits < 309 ? ""
                                         : "malformed JSON at byte 21: the number is too large to "
                                           "be represented");
    }
    rejects("[1e309]", "line 1, column 2: the number is too large to be represented");
    rejects("[1,-1.8e308]", "line 1, column 4: the number is too large to be represented");
    accepts("[1.7e308,1e-999,0e999]");
}

TEST(test_writes_numbers_up_to_their_limits)
{
    static const int64_t integers[] = {0, -1, -10, INT64_MAX, INT64_MIN};
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    bag_json_integers(&json, "integers", integers, COUNT_OF(integers));
    BAG_JSON_WRITE(&json, BAG_KEY("least", INT64_MIN), BAG_KEY("most", UINT64_MAX));
    char *text = bag_json_end(&json);
    assert_string_equal(text, "{\"integers\":[0,-1,-10,9223372036854775807,-9223372036854775808],"
                              "\"least\":-9223372036854775808,\"most\":18446744073709551615}");
    free(text);
}
