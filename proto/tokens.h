/* Access tokens: the file that lists them, the header that carries one, and the scopes of a token.
 *
 * The file is text, a line for each token:
 *
 *     # who may do what
 *     infer  6f1c0e...   (16 to 512 visible ASCII characters)
 *     admin  9ab34d...
 *
 * Blank lines and lines that begin with # are skipped. A token on several lines has the scopes of
 * all of them. No message and no return value contains a byte of a token. */
#pragma once

#include "problem.h"
#include "text.h"

/* X(ID, "word"): the scopes of tokens. */
#define BAG_SCOPES(X)                                        \
    X(INFER, "infer") /* inference */                        \
    X(READ, "read")   /* metadata, statistics and metrics */ \
    X(ADMIN, "admin") /* everything, including changes of models and rows */

enum bag_scope {
#define BAG_X(id, word) BAG_SCOPE_##id,
    BAG_SCOPES(BAG_X)
#undef BAG_X
        BAG_SCOPE_COUNT
};

extern const char *const bag_scope_names[BAG_SCOPE_COUNT];

#define BAG_TOKEN_MIN_BYTES 16
#define BAG_TOKEN_MAX_BYTES 512

/* The tokens of a file. */
struct bag_tokens;

/* Parses the text of a file and copies what it needs. The caller frees the result with
 * bag_tokens_free. Returns NULL and sets *problem if a line is malformed or there is no token
 * (CONFIGURATION, with the line number), or if memory is exhausted (NO_MEMORY). */
struct bag_tokens *bag_tokens_parse(const char *text, size_t bytes, struct bag_problem *problem);

/* Overwrites and frees the tokens. NULL is ignored. */
void bag_tokens_free(struct bag_tokens *tokens);

/* Returns the number of lines that have a token. */
size_t bag_tokens_count(const struct bag_tokens *tokens);

/* Returns the scopes of a token, bit i for scope i, or 0 if the token is unknown. The time depends
 * only on the lengths. */
unsigned bag_tokens_find(const struct bag_tokens *tokens, struct bag_text token);

/* Returns a copy of the token that a client should send, which the caller overwrites and frees.
 * `text` is the client's token file: the result is its first token with exactly this scope
 * (BAG_SCOPE_COUNT: any scope), or its only word, as other servers write such files. Returns NULL
 * and sets *problem if there is none. */
char *bag_token_choose(const char *text, size_t bytes, enum bag_scope scope,
                       struct bag_problem *problem);

/* Returns whether a token with these scopes is sufficient for `scope`. */
bool bag_scopes_cover(unsigned scopes, enum bag_scope scope);

/* Finds the token in the value of an Authorization header, "Bearer TOKEN". Returns false if the
 * scheme is another one or the value is malformed. */
bool bag_bearer_read(const char *value, struct bag_text *token);
