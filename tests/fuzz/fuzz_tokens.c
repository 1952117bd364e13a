/* libFuzzer: files of access tokens, and the Authorization header. The first line is a header, and
 * the rest is a file. Every token of an accepted file must be found and must grant the scope of its
 * line. */
#include "fuzz.h"

#include "proto/tokens.h"

static void check_file(const char *text, size_t bytes)
{
    struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
    struct bag_tokens *tokens = bag_tokens_parse(text, bytes, &problem);
    if (!tokens) {
        require(problem.kind == BAG_ERROR_CONFIGURATION && problem.text[0]);
        return;
    }
    require(bag_tokens_count(tokens) > 0);
    require(bag_tokens_find(tokens, (struct bag_text){text, 0}) == 0);
    /* The scopes of a token whose text and length are those of a part of the file. */
    for (size_t i = 0; i + BAG_TOKEN_MIN_BYTES <= bytes; i++) {
        struct bag_text part = {text + i, BAG_TOKEN_MIN_BYTES};
        unsigned scopes = bag_tokens_find(tokens, part);
        require(scopes < 1u << BAG_SCOPE_COUNT);
        require(scopes == 0 || memchr(part.data, ' ', part.bytes) == NULL);
    }
    bag_tokens_free(tokens);
}

static void check_choice(const char *text, size_t bytes)
{
    struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
    char *token = bag_token_choose(text, bytes, BAG_SCOPE_ADMIN, &problem);
    require(token ? *token && strlen(token) <= bytes
                  : problem.kind == BAG_ERROR_CONFIGURATION || problem.kind == BAG_ERROR_FILE);
    free(token);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    char *text = malloc(count); /* exact: one byte beyond is found */
    memcpy(text, bytes, count);
    const char *newline = memchr(text, '\n', count);
    size_t header_bytes = newline ? (size_t)(newline - text) : count;
    struct bag_text token;
    char *value = malloc(header_bytes + 1);
    memcpy(value, text, header_bytes);
    value[header_bytes] = 0;
    if (bag_bearer_read(value, &token))
        require(token.bytes > 0 &&
                token.data + token.bytes + strspn(token.data + token.bytes, " \t") ==
                    value + strlen(value));
    free(value);
    if (newline) {
        check_file(newline + 1, count - header_bytes - 1);
        check_choice(newline + 1, count - header_bytes - 1);
    }
    free(text);
    return 0;
}
