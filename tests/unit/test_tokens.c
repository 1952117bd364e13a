/* Files of access tokens, the Authorization header, and the scopes of tokens. */
#include "testing.h"

#include "proto/tokens.h"

#define A16 "0123456789abcdef"
#define B16 "0123456789abcdeF"
#define C16 "!#$%&'()*+,-./:~"

#define BIT(scope) (1u << BAG_SCOPE_##scope)

/* Parses a copy that ends with its last byte. */
static struct bag_tokens *parse(const char *text, struct bag_problem *problem)
{
    char *copy = exact_copy(text, strlen(text));
    struct bag_tokens *tokens = bag_tokens_parse(copy, strlen(text), problem);
    free(copy);
    return tokens;
}

static unsigned find(const struct bag_tokens *tokens, const char *token)
{
    char *copy = exact_copy(token, strlen(token));
    unsigned scopes = bag_tokens_find(tokens, (struct bag_text){copy, strlen(token)});
    free(copy);
    return scopes;
}

TEST(test_reads_files)
{
    static const struct {
        const char *text;
        size_t count;
        unsigned a, b, c;
    } cases[] = {{"infer " A16, 1, BIT(INFER), 0, 0},
                 {"infer " A16 "\n", 1, BIT(INFER), 0, 0},
                 {"read " A16 "\r\nadmin " B16 "\r\n", 2, BIT(READ), BIT(ADMIN), 0},
                 {"# infer " B16 "\n\n  \t\n \t#x\n\tinfer\t \t" A16 " \t \nadmin " C16, 2,
                  BIT(INFER), 0, BIT(ADMIN)},
                 {"infer " A16 "\nread " B16 "\nread " A16 "\ninfer " A16 "\n", 4,
                  BIT(INFER) | BIT(READ), BIT(READ), 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_problem problem;
        struct bag_tokens *tokens = parse(cases[i].text, &problem);
        if (!tokens)
            fail_msg("'%s': %s", cases[i].text, problem.text);
        assert_int_equal(bag_tokens_count(tokens), cases[i].count);
        assert_int_equal(find(tokens, A16), cases[i].a);
        assert_int_equal(find(tokens, B16), cases[i].b);
        assert_int_equal(find(tokens, C16), cases[i].c);
        assert_int_equal(find(tokens, ""), 0);
        assert_int_equal(find(tokens, "0123456789abcde"), 0);
        assert_int_equal(find(tokens, A16 "0"), 0);
        bag_tokens_free(tokens);
    }
}

TEST(test_rejects_files)
{
    static const char *const scope = "the first word must be the scope infer, read or admin";
    static const char *const follow = "a token must follow the scope";
    static const char *const behind = "there must be nothing behind the token";
    static const char *const ascii = "the token must be of visible ASCII characters";
    static const char *const length = "the token must have 16 to 512 characters";
    const struct {
        const char *text;
        size_t line; /* 0: of the whole file */
        const char *wrong;
    } cases[] = {{"", 0, "there is no token in it"},
                 {"\n# infer " A16 "\n", 0, "there is no token in it"},
                 {A16, 1, scope},
                 {A16 " infer", 1, scope},
                 {"INFER " A16, 1, scope},
                 {"infe " A16, 1, scope},
                 {"infer", 1, follow},
                 {"infer " A16 "\nread  \t", 2, follow},
                 {"infer " A16 " #", 1, behind},
                 {"\n\n#\ninfer a b", 4, behind},
                 {"infer \x7f" A16, 1, ascii},
                 {"infer \x01" A16, 1, ascii},
                 {"infer \xc3\xa4" A16, 1, ascii},
                 {"infer 0123456789abcde", 1, length},
                 {"infer\v" A16, 1, scope}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_problem problem;
        char expected[128];
        if (parse(cases[i].text, &problem))
            fail_msg("'%s' was accepted", cases[i].text);
        snprintf(expected, sizeof expected, "line %zu: %s", cases[i].line, cases[i].wrong);
        assert_string_equal(problem.text, cases[i].line ? expected : cases[i].wrong);
        assert_int_equal(problem.kind, BAG_ERROR_CONFIGURATION);
    }
}

/* NULs, which no text of C ends, and the longest token. */
TEST(test_edges)
{
    char text[6 + BAG_TOKEN_MAX_BYTES + 1];
    struct bag_problem problem;
    memcpy(text, "admin ", 6);
    memset(text + 6, 'x', sizeof text - 6);
    struct bag_tokens *tokens = bag_tokens_parse(text, sizeof text - 1, &problem);
    assert_non_null(tokens);
    assert_int_equal(bag_tokens_find(tokens, (struct bag_text){text + 6, BAG_TOKEN_MAX_BYTES}),
                     BIT(ADMIN));
    bag_tokens_free(tokens);
    assert_null(bag_tokens_parse(text, sizeof text, &problem));
    text[100] = 0;
    assert_null(bag_tokens_parse(text, sizeof text - 1, &problem));
    assert_string_equal(problem.text, "line 1: the token must be of visible ASCII characters");
    bag_tokens_free(NULL);
}

/* A token that differs in one bit, at every place of every length. */
TEST(test_compares_every_byte)
{
    char text[6 + 40], other[40];
    struct bag_problem problem;
    for (size_t bytes = BAG_TOKEN_MIN_BYTES; bytes <= sizeof other; bytes++) {
        memcpy(text, "infer ", 6);
        memset(text + 6, 'p', bytes);
        char *copy = exact_copy(text, 6 + bytes);
        struct bag_tokens *tokens = bag_tokens_parse(copy, 6 + bytes, &problem);
        assert_non_null(tokens);
        for (size_t i = 0; i < bytes; i++) {
            memset(other, 'p', bytes);
            assert_int_equal(bag_tokens_find(tokens, (struct bag_text){other, bytes}), BIT(INFER));
            other[i] = 'q';
            assert_int_equal(bag_tokens_find(tokens, (struct bag_text){other, bytes}), 0);
        }
        bag_tokens_free(tokens);
        free(copy);
    }
}

/* Tests which token a client sends. */
TEST(test_chooses)
{
    static const char *const none = "there is no token of scope admin in it";
    static const struct {
        const char *text;
        enum bag_scope scope;
        const char *token, *wrong;
    } cases[] = {{"infer " A16 "\nadmin " B16 "\nadmin " C16, BAG_SCOPE_ADMIN, B16, NULL},
                 {"# x\ninfer " A16 "\nadmin " B16, BAG_SCOPE_COUNT, A16, NULL},
                 {"infer " A16 "\nread " B16 "\n", BAG_SCOPE_ADMIN, NULL, none},
                 {"\n\tshort \r\n\n", BAG_SCOPE_ADMIN, "short", NULL},
                 {"x", BAG_SCOPE_COUNT, "x", NULL},
                 {"x\ny", BAG_SCOPE_COUNT, NULL,
                  "line 1: the first word must be the scope infer, read or admin"},
                 {"\xc3\xa4", BAG_SCOPE_COUNT, NULL,
                  "line 1: the first word must be the scope infer, read or admin"},
                 {" \n", BAG_SCOPE_COUNT, NULL, "there is no token in it"},
                 {"", BAG_SCOPE_COUNT, NULL, "there is no token in it"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_problem problem = {.text = ""};
        size_t bytes = strlen(cases[i].text);
        char *copy = exact_copy(cases[i].text, bytes);
        char *token = bag_token_choose(copy, bytes, cases[i].scope, &problem);
        if (cases[i].token)
            assert_string_equal(token, cases[i].token);
        else
            assert_null(token);
        assert_string_equal(problem.text, cases[i].wrong ? cases[i].wrong : "");
        free(token);
        free(copy);
    }
}

TEST(test_scopes)
{
    assert_true(bag_scopes_cover(BIT(INFER), BAG_SCOPE_INFER));
    assert_false(bag_scopes_cover(BIT(INFER), BAG_SCOPE_READ));
    assert_false(bag_scopes_cover(BIT(INFER), BAG_SCOPE_ADMIN));
    assert_true(bag_scopes_cover(BIT(READ), BAG_SCOPE_READ));
    assert_false(bag_scopes_cover(BIT(READ), BAG_SCOPE_INFER));
    assert_false(bag_scopes_cover(BIT(READ) | BIT(INFER), BAG_SCOPE_ADMIN));
    for (enum bag_scope scope = 0; scope < BAG_SCOPE_COUNT; scope++) {
        assert_true(bag_scopes_cover(BIT(ADMIN), scope));
        assert_false(bag_scopes_cover(0, scope));
    }
}

TEST(test_bearer)
{
    static const char *const bad[] = {
        "",           "Bearer",      "Bearer ",   "Bearer  ",    "Basic abc",          "Bearerabc",
        "Bearer a b", "Bearer a \r", "Bearer\ta", "Bearer \xc3", "Bearer a,Bearer b c"};
    struct bag_text token;
    assert_true(bag_bearer_read("Bearer abc", &token));
    assert_true(bag_text_is(token, "abc"));
    assert_true(bag_bearer_read("bEARER   a=b", &token));
    assert_true(bag_text_is(token, "a=b"));
    assert_true(bag_bearer_read("Bearer abc \t ",
                                &token)); /* blanks at the end are no part of a header's value */
    assert_true(bag_text_is(token, "abc"));
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        if (bag_bearer_read(bad[i], &token))
            fail_msg("'%s' was accepted", bad[i]);
    }
}
