/* Requests to the server, by libcurl; see feed.h. */
#include "feed.h"

#include "proto/v2_client.h"
#include "server/system/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits of a reply's size and of the time of a request. A request that timed out is sent again,
 * which its numbers make harmless. */
#define ANSWER_MAX_BYTES ((size_t)1 << 20)
#define TIMEOUT_MS       30000L
#define CONNECT_MS       5000L
#define UPLOAD_BYTES     (512L << 10) /* size of the upload buffer */

/* ---- opening --------------------------------------------------------------------------------- */

/* Appends a header to those of all requests. Returns false without memory. */
static bool add_header(struct bag_feed_server *server, const char *header)
{
    struct curl_slist *longer = curl_slist_append(server->headers, header);
    if (longer)
        server->headers = longer;
    return longer;
}

/* Adds the Authorization header with the token of scope admin in a file. Overwrites its copies
 * before they are freed. */
static bool add_token(struct bag_feed_server *server, const char *path, struct bag_problem *problem)
{
    char *token = bag_file_read_token(path, BAG_SCOPE_ADMIN, problem), *header = NULL;
    if (!token)
        return false;
    int bytes = asprintf(&header, "Authorization: Bearer %s", token);
    bool ok = (bytes >= 0 && add_header(server, header)) || bag_problem_no_memory(problem);
    if (bytes >= 0) {
        explicit_bzero(header, (size_t)bytes);
        free(header);
    }
    explicit_bzero(token, strlen(token));
    free(token);
    return ok;
}

/* Appends received bytes to the reply. Returns 0, which ends the request, if the reply is too large
 * or without memory. */
static size_t on_answer(char *data, size_t size, size_t count, void *context)
{
    struct bag_feed_server *server = context;
    size_t bytes = size * count;
    char *longer = bytes <= ANSWER_MAX_BYTES - server->answer_bytes
                       ? realloc(server->answer, server->answer_bytes + bytes + 1)
                       : NULL;
    if (!longer)
        return 0;
    memcpy(longer + server->answer_bytes, data, bytes);
    server->answer = longer;
    server->answer_bytes += bytes;
    server->answer[server->answer_bytes] = 0;
    return bytes;
}

/* Ends a request when the feed is stopping. */
static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)context, (void)a, (void)b, (void)c, (void)d;
    return bag_feed_stopping;
}

/* Sets the URL of the model, and the socket if the server has one. Returns false without memory. */
static bool set_urls(struct bag_feed_server *server, const struct bag_feed_options *options)
{
    bool is_unix = strncmp(options->server, "unix:", 5) == 0;
    const char *base = is_unix ? "http://localhost" : options->server;
    size_t base_bytes = strlen(base);
    char *model = curl_easy_escape(server->curl, options->model, 0);
    while (base_bytes && base[base_bytes - 1] == '/')
        base_bytes--;
    bool ok = model &&
              asprintf(&server->model_url, "%.*s/v2/models/%s", (int)base_bytes, base, model) >= 0;
    curl_free(model);
    /* The forms unix:PATH and unix://PATH are accepted, as in other clients. */
    const char *path = options->server + (strncmp(options->server, "unix://", 7) == 0 ? 7 : 5);
    return ok &&
           (!is_unix || curl_easy_setopt(server->curl, CURLOPT_UNIX_SOCKET_PATH, path) == CURLE_OK);
}

bool bag_feed_server_open(struct bag_feed_server *server, const struct bag_feed_options *options,
                          struct bag_problem *problem)
{
    *server = (struct bag_feed_server){.curl = curl_easy_init()};
    if (!server->curl || !set_urls(server, options) || !add_header(server, "Expect:"))
        return bag_problem_no_memory(problem);
    if (options->token_file && !add_token(server, options->token_file, problem))
        return false;
    curl_easy_setopt(server->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(server->curl, CURLOPT_TIMEOUT_MS, TIMEOUT_MS);
    curl_easy_setopt(server->curl, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    curl_easy_setopt(server->curl, CURLOPT_WRITEFUNCTION, on_answer);
    curl_easy_setopt(server->curl, CURLOPT_WRITEDATA, server);
    curl_easy_setopt(server->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(server->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(server->curl, CURLOPT_UPLOAD_BUFFERSIZE, UPLOAD_BYTES);
    return true;
}

void bag_feed_server_close(struct bag_feed_server *server)
{
    curl_easy_cleanup(server->curl);
    curl_slist_free_all(server->headers);
    free(server->model_url);
    free(server->answer);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Sends the request that the handle describes. Returns its outcome, and sets *problem unless that
 * is DONE. */
static enum bag_feed_outcome call(struct bag_feed_server *server, const char *url,
                                  struct curl_slist *headers, struct bag_problem *problem)
{
    char error[CURL_ERROR_SIZE] = "", sentence[BAG_PROBLEM_TEXT_BYTES - 64];
    struct bag_client_error details;
    bool has_code;
    long status = 0;
    server->answer_bytes = 0;
    curl_easy_setopt(server->curl, CURLOPT_URL, url);
    curl_easy_setopt(server->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(server->curl, CURLOPT_ERRORBUFFER, error);
    CURLcode code = curl_easy_perform(server->curl);
    curl_easy_setopt(server->curl, CURLOPT_ERRORBUFFER, NULL);
    if (code != CURLE_OK) {
        bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s", *error ? error : curl_easy_strerror(code));
        return BAG_FEED_AWAY;
    }
    curl_easy_getinfo(server->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
        return BAG_FEED_DONE;
    bag_client_read_error(server->answer_bytes ? server->answer : "", server->answer_bytes,
                          sentence, sizeof sentence);
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "%ld: %s", status, sentence);
    /* The server answers 507 if a table is full, and if the journal's disk is full or fails. A
     * server of version 0.1.0 sends no code, but its sentence names the key that adds rows. */
    switch (status) {
    case 507:
        has_code = bag_client_read_code(server->answer ? server->answer : "", server->answer_bytes,
                                        &details);
        if (has_code ? strcmp(details.code, bag_error_codes[BAG_ERROR_TABLE_FULL]) == 0
                     : strstr(sentence, "(spare_rows)") != NULL)
            return BAG_FEED_FULL;
        return BAG_FEED_AWAY;
    case 200:
        return BAG_FEED_DONE;
    case 400:
    case 411:
    case 413:
    case 415:
        return BAG_FEED_REJECTED;
    case 409:
        return BAG_FEED_MISFIT;
    case 401:
    case 403:
    case 405:
    case 421:
        return BAG_FEED_REFUSED;
    default: /* includes 404: a model that is not loaded may be loaded later */
        return BAG_FEED_AWAY;
    }
}

static bool read_number(const struct bag_feed_server *server, const char *within, const char *name,
                        uint64_t *number)
{
    return server->answer_bytes &&
           bag_client_read_number(server->answer, server->answer_bytes, within, name, number);
}

enum bag_feed_outcome bag_feed_server_ask(struct bag_feed_server *server, uint64_t *sequence,
                                          struct bag_problem *problem)
{
    curl_easy_setopt(server->curl, CURLOPT_HTTPGET, 1L);
    enum bag_feed_outcome outcome = call(server, server->model_url, server->headers, problem);
    if (outcome != BAG_FEED_DONE || read_number(server, "parameters", "updates_through", sequence))
        return outcome == BAG_FEED_REJECTED || outcome == BAG_FEED_MISFIT ? BAG_FEED_REFUSED
                                                                          : outcome;
    bag_problem_set(problem, BAG_ERROR_SYSTEM,
                    "the model's metadata has no updates_through: it takes no updates of rows; "
                    "start the server with --updates on, and load a table, not mapped");
    return BAG_FEED_REFUSED;
}

/* The parts of the body, for libcurl's callbacks. */
struct body {
    const char *parts[3];
    size_t bytes[3], at; /* position in the whole body */
};

/* Copies the next bytes of the body to `out`. */
static size_t on_send(char *out, size_t size, size_t count, void *context)
{
    struct body *body = context;
    size_t room = size * count, done = 0, before = 0;
    for (size_t i = 0; i < 3; before += body->bytes[i++]) {
        if (body->at < before || body->at >= before + body->bytes[i])
            continue;
        size_t from = body->at - before, left = body->bytes[i] - from;
        size_t bytes = left < room - done ? left : room - done;
        memcpy(out + done, body->parts[i] + from, bytes);
        done += bytes;
        body->at += bytes;
    }
    return done;
}

/* Called if a kept connection turns out to be closed, and the body must be sent again. */
static int on_rewind(void *context, curl_off_t offset, int origin)
{
    struct body *body = context;
    body->at = (size_t)offset;
    return origin == SEEK_SET ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_CANTSEEK;
}

enum bag_feed_outcome bag_feed_server_send(struct bag_feed_server *server,
                                           const struct bag_feed_batch *batch, uint64_t *sequence,
                                           struct bag_problem *problem)
{
    char header[BAG_FEED_HEADER_BYTES];
    struct body body = {{header, batch->ids, batch->rows},
                        {bag_feed_batch_header(batch, header), batch->ids_bytes, batch->rows_bytes},
                        0};
    /* Send a batch with its parts in place: `body` refers to the header and to the batch's own
     * arrays. */
    char url[4096], length[80];
    struct curl_slist own = {length, server->headers};
    snprintf(url, sizeof url, "%s/rows", server->model_url);
    snprintf(length, sizeof length, "Inference-Header-Content-Length: %zu", body.bytes[0]);
    curl_easy_setopt(server->curl, CURLOPT_POST, 1L);
    curl_easy_setopt(server->curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     (curl_off_t)(body.bytes[0] + body.bytes[1] + body.bytes[2]));
    curl_easy_setopt(server->curl, CURLOPT_READFUNCTION, on_send);
    curl_easy_setopt(server->curl, CURLOPT_READDATA, &body);
    curl_easy_setopt(server->curl, CURLOPT_SEEKFUNCTION, on_rewind);
    curl_easy_setopt(server->curl, CURLOPT_SEEKDATA, &body);
    enum bag_feed_outcome outcome = call(server, url, &own, problem);
    if (outcome != BAG_FEED_DONE || read_number(server, NULL, "sequence", sequence))
        return outcome;
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "the answer has no sequence");
    return BAG_FEED_AWAY;
}
