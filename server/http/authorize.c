/* Access tokens and the scopes of routes; see authorize.h. */
#include "authorize.h"

#include "proto/cors.h"
#include "proto/text.h"
#include "request.h"
#include "server/system/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The maximum length of a file, which has room for more than a hundred of the longest tokens. Every
 * request is compared with all of them. */
#define TOKEN_FILE_BYTES ((size_t)64 << 10)

/* ---- the list -------------------------------------------------------------------------------- */

bool bag_http_tokens_init(struct bag_http_tokens *tokens)
{
    tokens->list = NULL;
    return uv_mutex_init(&tokens->lock) == 0;
}

/* Reads the tokens of a file. Overwrites its text in memory before freeing it. Returns NULL and
 * sets *problem if the file or its text is wrong. */
static struct bag_tokens *read_file(const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read_private(path, TOKEN_FILE_BYTES, &bytes, problem);
    if (!text)
        return NULL;
    struct bag_tokens *tokens = bag_tokens_parse(text, bytes, problem);
    if (!tokens)
        bag_problem_prefix(problem, "%s", path);
    explicit_bzero(text, bytes);
    free(text);
    return tokens;
}

bool bag_http_tokens_load(struct bag_http_tokens *tokens, const char *path,
                          struct bag_problem *problem)
{
    struct bag_tokens *read = read_file(path, problem);
    if (!read)
        return bag_problem_prefix(problem, "token file");
    uv_mutex_lock(&tokens->lock);
    struct bag_tokens *before = tokens->list;
    tokens->list = read;
    uv_mutex_unlock(&tokens->lock);
    bag_tokens_free(before);
    return true;
}

size_t bag_http_tokens_count(struct bag_http_tokens *tokens)
{
    uv_mutex_lock(&tokens->lock);
    size_t count = bag_tokens_count(tokens->list);
    uv_mutex_unlock(&tokens->lock);
    return count;
}

void bag_http_tokens_free(struct bag_http_tokens *tokens)
{
    bag_tokens_free(tokens->list);
    uv_mutex_destroy(&tokens->lock);
}

/* ---- requests -------------------------------------------------------------------------------- */

#define REALM "Bearer realm=\"bagserve\""

/* For WWW-Authenticate, where a token's scope is too small (RFC 6750). */
static const char *const challenges[] = {
#define BAG_X(id, word) REALM ", error=\"insufficient_scope\", scope=\"" word "\"",
    BAG_SCOPES(BAG_X)
#undef BAG_X
};

/* Fills the reply with an error and returns false. */
static bool reject(struct bag_http_request *request, enum bag_error error, const char *challenge,
                   const char *text)
{
    struct bag_problem problem;
    bag_problem_set(&problem, error, "%s", text);
    bag_http_reply_problem(&request->reply, &problem);
    request->reply.challenge = challenge;
    return false;
}

/* Rejects a known token whose scopes do not cover the route. Returns false. */
static bool reject_scope(struct bag_http_request *request, enum bag_scope scope)
{
    char text[BAG_PROBLEM_TEXT_BYTES];
    snprintf(text, sizeof text, "the access token does not cover this; it needs the scope %s%s",
             bag_scope_names[scope], scope == BAG_SCOPE_ADMIN ? "" : " or admin");
    return reject(request, BAG_ERROR_FORBIDDEN, challenges[scope], text);
}

bool bag_http_authorize(struct bag_http_request *request)
{
    struct bag_http_tokens *tokens = request->context->service->tokens;
    struct bag_text token;
    /* A browser names the page's origin in a header that scripts cannot set; other clients send
     * none. On routes of scope admin, pages of other origins are rejected even with a valid token,
     * unless cors_origins lists them. */
    const char *origin = request->head.origin;
    const char *origins = request->context->service->config->options.cors_origins;
    bool is_named =
        origins && origin && !bag_cors_is_any(origins) && bag_cors_allows(origins, origin);
    if (!(request->target.route->scope != BAG_SCOPE_ADMIN || !origin || is_named ||
          bag_http_origin_is_ours(origin, request->head.host) ||
          reject(request, BAG_ERROR_FORBIDDEN, NULL,
                 "the page that asks is not this server's: pages of other origins change nothing, "
                 "unless cors_origins names them")))
        return false;
    if (!tokens || request->target.route->scope == BAG_HTTP_NO_SCOPE)
        return true;
    enum bag_scope scope = (enum bag_scope)request->target.route->scope;
    if (!request->head.authorization)
        return reject(request, BAG_ERROR_UNAUTHORIZED, REALM,
                      "an access token is needed; send it as 'Authorization: Bearer TOKEN'");
    if (!bag_bearer_read(request->head.authorization, &token))
        return reject(request, BAG_ERROR_UNAUTHORIZED, REALM,
                      "the header Authorization must be one 'Bearer TOKEN'");
    uv_mutex_lock(&tokens->lock);
    unsigned scopes = request->scopes = bag_tokens_find(tokens->list, token);
    uv_mutex_unlock(&tokens->lock);
    if (scopes == 0)
        return reject(request, BAG_ERROR_UNAUTHORIZED, REALM ", error=\"invalid_token\"",
                      "the access token is not known");
    return bag_scopes_cover(scopes, scope) || reject_scope(request, scope);
}

bool bag_http_may_infer(const struct bag_http_request *request)
{
    return request->context->infers || (request->scopes & 1u << BAG_SCOPE_ADMIN) != 0;
}
