/* Who may ask for what: access tokens (token_file), and the scope that a route needs.
 *
 * All loops read the tokens, and the first one may replace them at any time. Each loop holds the
 * list that it used last, and looks once a request whether there is a newer one: that costs a load
 * of a number that hardly ever changes. A list is freed when no loop holds it any more. */
#ifndef BAG_HTTP_AUTHORIZE_H
#define BAG_HTTP_AUTHORIZE_H

#include "proto/tokens.h"

#include <stdatomic.h>
#include <uv.h>

struct bag_http_request;
struct bag_http_token_list;

/* The tokens of the whole server. */
struct bag_http_tokens {
    uv_mutex_t lock;                     /* of `current` and of the lists' users */
    struct bag_http_token_list *current; /* NULL: there is no file, and requests need no token */
    atomic_uint version;                 /* counts the lists */
};

/* What one loop holds of them; zeros before its first request. */
struct bag_http_tokens_held {
    struct bag_http_token_list *list;
    unsigned version;
};

bool bag_http_tokens_init(struct bag_http_tokens *tokens);

/* Takes the tokens of a file in the place of those before. False with *problem where it cannot be
 * read, is malformed, or others than its owner may read it: those before stay. */
bool bag_http_tokens_load(struct bag_http_tokens *tokens, const char *path,
                          struct bag_problem *problem);

/* Tokens that requests are compared with now. */
size_t bag_http_tokens_count(struct bag_http_tokens *tokens);

/* Releases what a loop holds. */
void bag_http_tokens_release(struct bag_http_tokens *tokens, struct bag_http_tokens_held *held);

/* Frees the last list, when no loop holds any. */
void bag_http_tokens_free(struct bag_http_tokens *tokens);

/* Whether the request's route may be asked with the token that its head brings, if any. Otherwise
 * the reply is filled: 401, or 403 that names the missing scope. On the loop's thread. */
bool bag_http_authorize(struct bag_http_request *request);

#endif
