/* Access tokens: the file that lists them, the header that brings one, and what it may do.
 *
 * The file is text, a line for each token:
 *
 *     # who may do what
 *     infer  6f1c0e...   (16 to 512 visible ASCII characters)
 *     admin  9ab34d...
 *
 * Blank lines and lines that begin with # are skipped. A token that has several lines has the
 * scopes of all of them. No message and no return value holds any byte of a token. */
#ifndef BAG_TOKENS_H
#define BAG_TOKENS_H

#include "problem.h"
#include "text.h"

/* X(ID, "word"): what a token allows. */
#define BAG_SCOPES(X)                                        \
    X(INFER, "infer") /* inference */                        \
    X(READ, "read")   /* metadata, statistics and metrics */ \
    X(ADMIN, "admin") /* everything, also what others do not */

enum bag_scope {
#define BAG_X(id, word) BAG_SCOPE_##id,
    BAG_SCOPES(BAG_X)
#undef BAG_X
        BAG_SCOPE_COUNT
};

extern const char *const bag_scope_names[BAG_SCOPE_COUNT];

#define BAG_TOKEN_MIN_BYTES 16
#define BAG_TOKEN_MAX_BYTES 512

/* The tokens of a file; see bag_tokens_free. */
struct bag_tokens;

/* Reads the text of a file, of which it keeps a copy. NULL with *problem (CONFIGURATION, with the
 * line's number) where a line is malformed or there is no token at all; NO_MEMORY. */
struct bag_tokens *bag_tokens_parse(const char *text, size_t bytes, struct bag_problem *problem);

/* Clears the tokens' bytes and frees them; NULL is ignored. */
void bag_tokens_free(struct bag_tokens *tokens);

/* Lines that have a token. */
size_t bag_tokens_count(const struct bag_tokens *tokens);

/* The scopes of a token, bit i for scope i; 0 where it is not known. How long that takes depends on
 * lengths alone. */
unsigned bag_tokens_find(const struct bag_tokens *tokens, struct bag_text token);

/* What a client sends, of the text of its file: the first token that has the scope itself
 * (BAG_SCOPE_COUNT: any), or the text's only word, of any length, as other servers have them. A
 * copy, for the caller to clear and free; NULL with *problem. */
char *bag_token_choose(const char *text, size_t bytes, enum bag_scope scope,
                       struct bag_problem *problem);

/* Whether a token of these scopes may do what needs `scope`. */
bool bag_scopes_cover(unsigned scopes, enum bag_scope scope);

/* Finds the token in the value of an Authorization header, "Bearer TOKEN"; false where it is of
 * another scheme or malformed. */
bool bag_bearer_read(const char *value, struct bag_text *token);

#endif
