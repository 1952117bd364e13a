/* Access tokens; see tokens.h. */
#include "tokens.h"

#include <stdlib.h>
#include <strings.h>

/* A token of the file and its scopes, one bit for each. A token on several lines has several
 * entries. */
struct token {
    unsigned scopes;
    struct bag_text text; /* part of the list's own copy */
};

struct bag_tokens {
    char *text; /* owned */
    size_t text_bytes, count;
    struct token list[];
};

const char *const bag_scope_names[BAG_SCOPE_COUNT] = {BAG_SCOPES(BAG_NAME)};

/* ---- the file -------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Returns the next word of a line, which may be empty, and moves *line to its end. */
static struct bag_text take_word(struct bag_text *line)
{
    const char *at = line->data, *end = line->data + line->bytes;
    while (at < end && is_blank(*at))
        at++;
    struct bag_text word = {at, 0};
    while (at < end && !is_blank(*at))
        at++;
    word.bytes = (size_t)(at - word.data);
    *line = (struct bag_text){at, (size_t)(end - at)};
    return word;
}

/* Returns whether all characters are visible ASCII. An empty text is. */
static bool is_visible(struct bag_text text)
{
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.data[i] < 0x21 || text.data[i] > 0x7E)
            return false;
    }
    return true;
}

/* Reads "SCOPE TOKEN". Returns NULL, or what is wrong with it. The message quotes nothing, because
 * the first word is the token if the two are exchanged. */
static const char *read_token(struct bag_text line, struct token *token)
{
    const struct bag_text word = take_word(&line);
    enum bag_scope scope = 0;
    while (scope < BAG_SCOPE_COUNT && !bag_text_is(word, bag_scope_names[scope]))
        scope++;
    if (scope == BAG_SCOPE_COUNT)
        return "the first word must be the scope infer, read or admin";
    token->scopes = 1u << scope;
    token->text = take_word(&line);
    if (token->text.bytes == 0)
        return "a token must follow the scope";
    if (take_word(&line).bytes)
        return "there must be nothing behind the token";
    if (!is_visible(token->text))
        return "the token must be of visible ASCII characters";
    if (token->text.bytes < BAG_TOKEN_MIN_BYTES || token->text.bytes > BAG_TOKEN_MAX_BYTES)
        return "the token must have 16 to 512 characters";
    return NULL;
}

/* Fills the list from its copy of the text. */
static bool read_lines(struct bag_tokens *tokens, struct bag_problem *problem)
{
    const char *at = tokens->text, *end = tokens->text + tokens->text_bytes;
    for (size_t number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct bag_text line = {at, (size_t)((newline ? newline : end) - at)}, rest = line;
        struct bag_text first = take_word(&rest);
        at += line.bytes + 1;
        if (first.bytes == 0 || first.data[0] == '#')
            continue;
        const char *wrong = read_token(line, &tokens->list[tokens->count++]);
        if (wrong)
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "line %zu: %s", number, wrong);
    }
    return tokens->count ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "there is no token in it");
}

struct bag_tokens *bag_tokens_parse(const char *text, size_t bytes, struct bag_problem *problem)
{
    /* Each line has at most one token, so there is an entry for each line. */
    size_t lines = 1;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    struct bag_tokens *tokens = calloc(1, sizeof *tokens + lines * sizeof tokens->list[0]);
    if (tokens) {
        tokens->text = malloc(bytes ? bytes : 1);
        tokens->text_bytes = bytes;
    }
    if (!tokens || !tokens->text) {
        free(tokens);
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory for the tokens");
        return NULL;
    }
    memcpy(tokens->text, text, bytes);
    if (read_lines(tokens, problem))
        return tokens;
    bag_tokens_free(tokens);
    return NULL;
}

void bag_tokens_free(struct bag_tokens *tokens)
{
    if (!tokens)
        return;
    explicit_bzero(tokens->text, tokens->text_bytes);
    free(tokens->text);
    free(tokens);
}

size_t bag_tokens_count(const struct bag_tokens *tokens)
{
    return tokens->count;
}

/* Returns whether the character separates words, including lines. */
static bool is_around(char c)
{
    return is_blank(c) || c == '\n';
}

/* Returns the only word of a text. Returns an empty text if it has several words, or characters
 * that are not visible ASCII. */
static struct bag_text only_word(struct bag_text text)
{
    for (; text.bytes > 0 && is_around(text.data[0]); text.bytes--)
        text.data++;
    while (text.bytes > 0 && is_around(text.data[text.bytes - 1]))
        text.bytes--;
    return is_visible(text) ? text : (struct bag_text){0};
}

char *bag_token_choose(const char *text, size_t bytes, enum bag_scope scope,
                       struct bag_problem *problem)
{
    struct bag_text word = only_word((struct bag_text){text, bytes});
    struct bag_tokens *tokens = word.bytes ? NULL : bag_tokens_parse(text, bytes, problem);
    unsigned wanted = scope == BAG_SCOPE_COUNT ? ~0u : 1u << scope;
    if (!tokens && !word.bytes)
        return NULL;
    for (size_t i = 0; tokens && i < tokens->count && !word.bytes; i++) {
        if (tokens->list[i].scopes & wanted)
            word = tokens->list[i].text;
    }
    char *token = word.bytes ? strndup(word.data, word.bytes) : NULL;
    if (!word.bytes)
        bag_problem_set(problem, BAG_ERROR_FILE, "there is no token of scope %s in it",
                        bag_scope_names[scope]);
    else if (!token)
        bag_problem_no_memory(problem);
    bag_tokens_free(tokens);
    return token;
}

/* ---- a request ------------------------------------------------------------------------------- */

/* Returns 1 if the texts are equal, otherwise 0. The time depends only on their lengths. */
static unsigned is_equal(struct bag_text a, struct bag_text b)
{
    uint64_t difference = 0, left, right;
    size_t i = 0;
    if (a.bytes != b.bytes)
        return 0;
    for (; i + sizeof left <= a.bytes; i += sizeof left) {
        memcpy(&left, a.data + i, sizeof left);
        memcpy(&right, b.data + i, sizeof right);
        difference |= left ^ right;
    }
    for (; i < a.bytes; i++)
        difference |= (unsigned char)(a.data[i] ^ b.data[i]);
    return !difference;
}

unsigned bag_tokens_find(const struct bag_tokens *tokens, struct bag_text token)
{
    unsigned scopes = 0;
    for (size_t i = 0; i < tokens->count; i++)
        scopes |= tokens->list[i].scopes & -is_equal(tokens->list[i].text, token);
    return scopes;
}

bool bag_scopes_cover(unsigned scopes, enum bag_scope scope)
{
    return (scopes & (1u << scope | 1u << BAG_SCOPE_ADMIN)) != 0;
}

bool bag_bearer_read(const char *value, struct bag_text *token)
{
    static const char scheme[] = "Bearer ";
    if (strncasecmp(value, scheme, sizeof scheme - 1) != 0)
        return false;
    value += sizeof scheme - 1;
    value += strspn(value, " ");
    *token = bag_text_without_blanks(value);
    return token->bytes > 0 && is_visible(*token);
}
