/* Access tokens, and whether a request may use its route.
 *
 * All functions run on the loop's thread unless their comment says otherwise. */
#pragma once

#include "proto/problem.h"
#include "proto/tokens.h"

#include <uv.h>

struct bag_http_request;

/* The access tokens (token_file). All loops read them, and the first loop may replace them at any
 * time. */
struct bag_http_tokens {
    uv_mutex_t lock;         /* guards the list */
    struct bag_tokens *list; /* owned */
};

/* Makes an empty list. Returns false if the lock cannot be made. */
bool bag_http_tokens_init(struct bag_http_tokens *tokens);

/* Replaces the tokens by those of a file. Returns false, sets *problem and keeps the tokens if the
 * file cannot be read, is malformed, or is readable for others than its owner. */
bool bag_http_tokens_load(struct bag_http_tokens *tokens, const char *path,
                          struct bag_problem *problem);

/* Returns the number of tokens. */
size_t bag_http_tokens_count(struct bag_http_tokens *tokens);

/* Overwrites and frees the tokens. No loop may use them any more. */
void bag_http_tokens_free(struct bag_http_tokens *tokens);

/* Returns true if the request may use its route: its token covers the scope, and the page of a
 * browser may send it. Stores the scopes of the token. Otherwise returns false and fills the reply
 * with a 401 or 403. */
bool bag_http_authorize(struct bag_http_request *request);
