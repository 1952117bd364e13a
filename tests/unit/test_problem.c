/* Messages for clients: sentences of faults, quoted bytes, prefixes, truncated texts, paths without
 * folders. */
#include "testing.h"

#include "proto/problem.h"
#include "proto/text.h"

#include <stdlib.h>

TEST(test_makes_sentences_of_faults)
{
    static const struct {
        struct bag_fault fault;
        const char *text;
    } cases[] = {
        {{.status = BAG_STATUS_INDEX_OUT_OF_RANGE, .position = 3, .value = -7, .low = 0, .high = 4},
         "'indices' at position 3 is -7; it must be from 0 to 4, the last row"},
        {{.status = BAG_STATUS_OFFSETS_NOT_MONOTONIC, .position = 2, .value = 1, .low = 5},
         "'offsets' at position 2 is 1, less than 5 before it; offsets must not decrease"},
        {{.status = BAG_STATUS_WEIGHTS_DTYPE_MISMATCH, .got = BAG_I64, .want = BAG_F32},
         "'per_sample_weights' has datatype INT64; it must be FP32 for this table"},
        {{.status = BAG_STATUS_UNEXPECTED_INPUT, .input = BAG_NUM_SEGMENTS},
         "input 'num_segments' cannot be combined with the other inputs: send 'offsets', or "
         "'segment_ids' with an optional 'num_segments', or 2-D 'indices' alone"},
        {{.status = BAG_STATUS_RESULT_TOO_LARGE,
          .input = BAG_NUM_SEGMENTS,
          .value = INT64_MAX,
          .low = INT64_MIN,
          .high = 0},
         "the result would have 9223372036854775807 bags, by 'num_segments', of "
         "-9223372036854775808 bytes each; the limit (max_reply_bytes) is 0 bytes"},
        {{.status = BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE, .position = 1, .value = 3, .high = 2},
         "'segment_ids' at position 1 is 3; it must be from 0 to 2, less than 'num_segments'"},
        {{.status = BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE, .value = -1, .high = INT64_MAX},
         "'segment_ids' at position 0 is -1; it must be at least 0"},
        {{.status = BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE, .value = 3, .high = -1},
         "'segment_ids' at position 0 is 3; 'num_segments' is 0, so that there must be none"},
        {{.status = BAG_STATUS_INDEX_OUT_OF_RANGE, .position = 3, .value = 7, .high = -1},
         "'indices' at position 3 is 7; the table has no rows"},
        {{.status = BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE, .value = 7, .high = -1},
         "'default_index' is 7; it must be -1 (zeros), as the table has no rows"},
        {{.status = BAG_STATUS_PADDING_IDX_OUT_OF_RANGE, .value = 7, .high = -1},
         "padding_idx is 7; the table has no rows"},
        {{.status = BAG_STATUS_DEFAULT_ROW_NEEDED, .high = -1},
         "'default_index' is -1, but indices outside the table are to get its row: the table has "
         "none"},
        {{.status = BAG_STATUS_INDICES_RANK, .value = 1, .low = 2},
         "'indices' has 1 dimension; it must have 2: [ids] with 'offsets' or 'segment_ids', [bags, "
         "ids of each] without"},
        {{.status = BAG_STATUS_WEIGHTS_SHAPE_MISMATCH, .value = 2, .low = 1, .high = 1},
         "'per_sample_weights' has 2 elements in 1 dimension; it must have the shape of 'indices' "
         "(1 element)"}};
    struct bag_problem problem;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_false(bag_problem_from_fault(&problem, &cases[i].fault));
        assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
        assert_string_equal(problem.text, cases[i].text);
        /* The place is that of the sentence. */
        const char *quoted = strchr(problem.text, '\''), *at = strstr(problem.text, "at position ");
        if (quoted)
            assert_memory_equal(quoted + 1, problem.input, strlen(problem.input));
        else
            assert_null(problem.input);
        if (at)
            assert_int_equal(problem.position, strtoull(at + strlen("at position "), NULL, 10));
        else
            assert_int_equal(problem.position, BAG_PROBLEM_NOWHERE);
    }
}

TEST(test_places)
{
    struct bag_problem problem;
    bag_problem_set(&problem, BAG_ERROR_BAD_REQUEST, "'keys' has 7 at position 3");
    assert_null(problem.input);
    assert_int_equal(problem.position, BAG_PROBLEM_NOWHERE);
    assert_false(bag_problem_at(&problem, "keys", 3));
    assert_false(bag_problem_prefix(&problem, "feature 'a'"));
    assert_string_equal(problem.input, "keys");
    assert_int_equal(problem.position, 3);
    bag_problem_no_memory(&problem);
    assert_null(problem.input);
    assert_int_equal(problem.position, BAG_PROBLEM_NOWHERE);
}

/* Every status has a sentence whose fields are known, and which fits at their longest. */
TEST(test_every_status_fits)
{
    struct bag_problem problem;
    for (int status = 0; status < BAG_STATUS_COUNT; status++) {
        struct bag_fault fault = {.status = (enum bag_status)status,
                                  .input = BAG_PER_SAMPLE_WEIGHTS,
                                  .position = INT64_MIN,
                                  .value = INT64_MIN,
                                  .low = INT64_MIN,
                                  .high = INT64_MIN,
                                  .got = BAG_BYTES,
                                  .want = BAG_BYTES};
        bag_problem_from_fault(&problem, &fault);
        assert_null(strpbrk(problem.text, "{}"));
        assert_in_range(strlen(problem.text), 1, BAG_PROBLEM_TEXT_BYTES - 2);
    }
}

TEST(test_quotes_what_clients_chose)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"", ""},
        {"items", "items"},
        {"a'b\"c\\d", "a\\x27b\\x22c\\x5cd"},
        {"\x1b[31m\n\x7f", "\\x1b[31m\\x0a\\x7f"},
        {"caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac"},
        {"\xc2\x9b"
         "31m",
         "\\xc2\\x9b31m"}, /* a control character beyond ASCII */
        {"\xff\xc3", "\\xff\\xc3"},
        {"\xc2", "\\xc2"}, /* the first half of such a one, and nothing after it */
    };
    char text[66];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *copy = exact_copy(cases[i].bytes, strlen(cases[i].bytes));
        assert_string_equal(bag_quote(copy, strlen(cases[i].bytes)).text, cases[i].text);
        free(copy);
    }
    memset(text, 'x', 65);
    text[64] = 0;
    assert_string_equal(bag_quote(text, 64).text, text);
    text[64] = 'x';
    text[65] = 0;
    assert_int_equal(strlen(bag_quote(text, 65).text), 67);
    memcpy(text + 62, "\xe2\x82\xac", 3); /* no character is split */
    assert_int_equal(strlen(bag_quote(text, 65).text), 62 + 3);
    memset(text, 0x80, 65);
    assert_int_equal(strlen(bag_quote(text, 65).text), 61 * 4 + 3);
    memset(text, 1, 65);
    assert_int_equal(strlen(bag_quote(text, 65).text), 64 * 4 + 3);
}

TEST(test_cuts_long_texts_between_characters)
{
    struct bag_problem problem;
    char text[1024] = "";
    for (int i = 0; i < 300; i++)
        strcat(text, "\xe2\x82\xac");
    bag_problem_set(&problem, BAG_ERROR_NO_MEMORY, "%s", text);
    assert_int_equal(problem.kind, BAG_ERROR_NO_MEMORY);
    assert_int_equal(strlen(problem.text), 170 * 3);
    bag_problem_set(&problem, BAG_ERROR_BAD_REQUEST, "x%s", text);
    assert_int_equal(strlen(problem.text), 1 + 170 * 3);
    bag_problem_set(&problem, BAG_ERROR_BAD_REQUEST, "xx%s", text);
    assert_int_equal(strlen(problem.text), 2 + 169 * 3);
}

TEST(test_prefixes)
{
    struct bag_problem problem;
    char text[600];
    bag_problem_set(&problem, BAG_ERROR_BAD_REQUEST, "too short");
    bag_problem_prefix(&problem, "input '%s'", "a");
    assert_string_equal(problem.text, "input 'a': too short");
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = 0;
    bag_problem_prefix(&problem, "%s", text);
    assert_int_equal(strlen(problem.text), BAG_PROBLEM_TEXT_BYTES - 1);
}

TEST(test_hides_folders)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {{"", ""},
                 {"/srv/a/t.npy", "t.npy"},
                 {"/t.npy: no rows", "t.npy: no rows"},
                 {"model 't' (/srv/a/t.npy): 3/4 of '/srv/b c'", "model 't' (t.npy): 3/4 of 'b c'"},
                 {"in /srv/a/ and / or a/b", "in a/ and / or a/b"},
                 {"a\t\"/x/y\"\n/z", "a\t\"y\"\nz"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        strcpy(text, cases[i].text);
        bag_text_hide_folders(text);
        assert_string_equal(text, cases[i].shown);
    }
}
