/* The server that is measured; see target.h. */
#include "target.h"

#include "server/system/deadline.h"
#include "server/system/files.h"
#include "server/system/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The time limits for finding the server, and for a connection, the head of a reply and each wait
 * afterwards; and the maximum size of a document. */
#define CONNECT_MS     120000
#define TIMEOUT_MS     10000
#define DOCUMENT_BYTES ((size_t)64 << 20)

/* ---- connecting ------------------------------------------------------------------------------ */

/* Sets the address to a socket's path, after connecting to it once. */
static bool find_unix(struct bag_bench_target *target, const char *path,
                      struct bag_problem *problem)
{
    struct sockaddr_un *address = (struct sockaddr_un *)&target->address.address;
    int fd = bag_unix_connect(path, problem);
    if (fd < 0)
        return false;
    close(fd);
    address->sun_family = AF_UNIX;
    strcpy(address->sun_path, path); /* the path fits, because connect() has accepted it */
    target->address.bytes = sizeof *address;
    return true;
}

/* Finds the first address of the host that accepts a connection. */
static bool find_tcp(struct bag_bench_target *target, const struct bag_url *url,
                     struct bag_problem *problem)
{
    int fd =
        bag_deadline_connect_host(url->host, url->port, bag_deadline_in_ms(CONNECT_MS), problem);
    if (fd < 0)
        return false;
    target->address.bytes = sizeof target->address.address;
    bool found =
        getpeername(fd, (struct sockaddr *)&target->address.address, &target->address.bytes) == 0;
    if (!found)
        bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s: %s", target->authority, strerror(errno));
    close(fd);
    return found;
}

/* ---- one request ----------------------------------------------------------------------------- */

/* Sets the problem to the reason why no more bytes came, from errno. An errno of 0 means that the
 * server has closed the connection. Returns false. */
static bool reject_silence(struct bag_problem *problem)
{
    bool late = errno == ETIMEDOUT || errno == EAGAIN;
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s",
                           errno == 0 ? "the connection was closed without an answer"
                           : late     ? "no answer within 10 seconds"
                                      : strerror(errno));
}

/* Receives the rest of the body, of which `have` bytes are there, and ends it with a NUL. */
static bool receive_body(int fd, struct bag_bench_answer *answer, size_t have,
                         struct bag_problem *problem)
{
    while (have < answer->bytes) {
        ssize_t got = bag_deadline_receive(fd, answer->body + have, answer->bytes - have,
                                           bag_deadline_in_ms(TIMEOUT_MS));
        if (got <= 0) {
            errno = got < 0 ? errno : 0;
            return reject_silence(problem);
        }
        have += (size_t)got;
    }
    answer->body[answer->bytes] = 0;
    return true;
}

/* Receives a reply. Returns false and sets *problem if it is not whole or too large; no body is
 * left then. */
static bool receive(int fd, size_t max_bytes, struct bag_bench_answer *answer,
                    struct bag_problem *problem)
{
    char text[BAG_REPLY_HEAD_BYTES];
    size_t used,
        head_bytes = bag_deadline_receive_head(fd, text, &used, bag_deadline_in_ms(TIMEOUT_MS));
    if (head_bytes == 0 && errno == EMSGSIZE)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the reply's head is longer than %zu bytes", sizeof text);
    if (head_bytes == 0)
        return reject_silence(problem);
    if (!bag_reply_head_parse(text, head_bytes, &answer->head, problem))
        return false;
    if (answer->head.body_bytes > max_bytes || used - head_bytes > answer->head.body_bytes)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the reply says it has %llu bytes; at most %zu are read",
                               (unsigned long long)answer->head.body_bytes, max_bytes);
    answer->bytes = (size_t)answer->head.body_bytes;
    if (!(answer->body = malloc(answer->bytes + 1)))
        return bag_problem_no_memory(problem);
    memcpy(answer->body, text + head_bytes, used - head_bytes);
    if (receive_body(fd, answer, used - head_bytes, problem))
        return true;
    free(answer->body);
    return false;
}

bool bag_bench_ask(const struct bag_bench_target *target, const void *request, size_t bytes,
                   size_t max_bytes, struct bag_bench_answer *answer, struct bag_problem *problem)
{
    int fd = bag_address_connect(&target->address.address, target->address.bytes, TIMEOUT_MS);
    if (fd < 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s: %s", target->authority,
                               strerror(errno));
    bool ok = bag_send_all(fd, request, bytes) ? receive(fd, max_bytes, answer, problem)
                                               : reject_silence(problem);
    close(fd);
    return ok;
}

char *bag_bench_head(const struct bag_bench_target *target, const char *method, const char *path)
{
    char *text = NULL;
    const char *token = target->token;
    if (asprintf(&text, "%s %s%s HTTP/1.1\r\nHost: %s\r\n%s%s%s", method, target->path, path,
                 target->authority, token ? "Authorization: Bearer " : "", token ? token : "",
                 token ? "\r\n" : "") < 0)
        return NULL;
    return text;
}

/* ---- documents ------------------------------------------------------------------------------- */

/* Requests a document. A status other than 200 is not a failure. */
static bool ask_document(const struct bag_bench_target *target, const char *method,
                         const char *path, struct bag_bench_answer *answer,
                         struct bag_problem *problem)
{
    char *head = bag_bench_head(target, method, path), *request = NULL;
    int bytes = head ? asprintf(&request, "%sContent-Length: 0\r\n\r\n", head) : -1;
    bool ok = bytes >= 0
                  ? bag_bench_ask(target, request, (size_t)bytes, DOCUMENT_BYTES, answer, problem)
                  : bag_problem_no_memory(problem);
    if (!ok)
        bag_problem_prefix(problem, "%s %s%s", method, target->path, path);
    free(head);
    if (bytes >= 0)
        free(request);
    return ok;
}

/* Sets the problem to the error that the server sent instead of a document. Returns false. */
static bool reject_status(const char *method, const char *path,
                          const struct bag_bench_answer *answer, struct bag_problem *problem)
{
    char sentence[300];
    bag_client_read_error(answer->body, answer->bytes, sentence, sizeof sentence);
    bool is_token = answer->head.status == 401 || answer->head.status == 403;
    return bag_problem_set(problem, BAG_ERROR_NOT_FOUND, "%s %s: %d %s%s", method, path,
                           answer->head.status, sentence,
                           is_token ? "; --token-file names a file with a token" : "");
}

char *bag_bench_model_path(const char *name, const char *what)
{
    static const char digits[] = "0123456789ABCDEF";
    static const char prefix[] = "/v2/models/";
    /* A byte takes three characters if it is percent-encoded. */
    char *path = malloc(sizeof prefix + 3 * strlen(name) + strlen(what));
    char *out = path ? stpcpy(path, prefix) : NULL;
    for (; out && *name; name++) {
        unsigned char byte = (unsigned char)*name;
        if ((byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
            (byte >= 'a' && byte <= 'z') || strchr("._-~", byte)) {
            *out++ = *name;
        } else {
            *out++ = '%';
            *out++ = digits[byte >> 4];
            *out++ = digits[byte & 15];
        }
    }
    if (out)
        strcpy(out, what);
    return path;
}

char *bag_bench_get_model(const struct bag_bench_target *target, const char *name, const char *what,
                          struct bag_problem *problem)
{
    struct bag_bench_answer answer;
    char *path = bag_bench_model_path(name, what);
    if (!path) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    bool ok = ask_document(target, "GET", path, &answer, problem);
    if (ok && answer.head.status != 200) {
        ok = reject_status("GET", path, &answer, problem);
        free(answer.body);
    }
    free(path);
    return ok ? answer.body : NULL;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Asks for the names of models: in the way of this server, then in Triton's. A rejected token ends
 * the attempts. */
static bool ask_names(const struct bag_bench_target *target, struct bag_client_names *names,
                      struct bag_problem *problem)
{
    static const char *const ways[][2] = {{"GET", "/v2/models"},
                                          {"POST", "/v2/repository/index"}}; /* Triton's */
    struct bag_bench_answer answer;
    for (size_t i = 0; i < 2; i++) {
        if (!ask_document(target, ways[i][0], ways[i][1], &answer, problem))
            return false;
        bool ok = answer.head.status == 200
                      ? bag_client_read_names(answer.body, answer.bytes, names, problem)
                      : reject_status(ways[i][0], ways[i][1], &answer, problem);
        /* The other way would be rejected, too. */
        bool is_last = answer.head.status == 401 || answer.head.status == 403;
        free(answer.body);
        if (ok || is_last)
            return ok;
    }
    return bag_problem_set(problem, BAG_ERROR_NOT_FOUND,
                           "%s is no server of the Open Inference Protocol: neither GET /v2/models "
                           "nor POST /v2/repository/index lists models",
                           target->authority);
}

/* Reads the metadata of a model. On success the caller owns *model and *metadata. */
static bool read_model(struct bag_bench_target *target, const char *name,
                       struct bag_client_model *model, char **metadata, struct bag_problem *problem)
{
    char *text = bag_bench_get_model(target, name, "", problem);
    bool ok = text && bag_client_read_model(text, strlen(text), model, problem);
    if (text && !ok)
        bag_problem_prefix(problem, "model '%s'", bag_quote(name, strlen(name)).text);
    if (ok)
        *metadata = text;
    else
        free(text);
    return ok;
}

/* Prints names with commas between them, and "..." in place of those that do not fit. */
static void list_names(const struct bag_client_names *names, char *text, size_t room)
{
    *text = 0;
    for (size_t i = 0; i < names->count; i++) {
        if (strlen(text) + strlen(names->names[i]) + 8 > room) {
            bag_text_add(text, room, ", ...");
            return;
        }
        bag_text_add(text, room, "%s%s", *text ? ", " : "",
                     bag_quote(names->names[i], strlen(names->names[i])).text);
    }
}

/* Chooses the only model, or the only collection. */
static bool choose_model(struct bag_bench_target *target, const struct bag_client_names *names,
                         struct bag_problem *problem)
{
    /* If several models include a single collection, that collection is chosen. */
    char list[300];
    size_t collections = 0;
    for (size_t i = 0; i < names->count; i++) {
        struct bag_client_model model;
        char *metadata = NULL;
        if (!read_model(target, names->names[i], &model, &metadata, problem)) {
            if (names->count == 1 || problem->kind != BAG_ERROR_BAD_REQUEST)
                return false; /* the model is being loaded, for example */
            continue;         /* the model's inputs are not bags */
        }
        /* Keep the metadata of the model that is chosen so far. */
        collections += model.is_collection;
        if (names->count == 1 || (model.is_collection && collections == 1)) {
            target->model = model;
            target->metadata = metadata;
        } else {
            bag_client_model_free(&model);
            free(metadata);
        }
    }
    if (target->metadata && (names->count == 1 || collections == 1))
        return true;
    list_names(names, list, sizeof list);
    return bag_problem_set(problem, BAG_ERROR_USAGE,
                           names->count ? "name one of the %zu models that are served: %s"
                                        : "no model is served (%zu)%s",
                           names->count, list);
}

/* Reads the model with this name, if the server lists it. */
static bool find_named(struct bag_bench_target *target, const char *name,
                       const struct bag_client_names *names, struct bag_problem *problem)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->names[i], name) == 0)
            return read_model(target, name, &target->model, &target->metadata, problem);
    }
    /* Reject a name that the server does not have, with the nearest one. */
    struct bag_suggestion suggestion = {.written = name};
    char list[256];
    for (size_t i = 0; i < names->count; i++)
        bag_suggest_offer(&suggestion, names->names[i]);
    list_names(names, list, sizeof list);
    if (!names->count)
        return bag_problem_set(problem, BAG_ERROR_NOT_FOUND, "there is no model '%s', nor another",
                               bag_quote(name, strlen(name)).text);
    return bag_problem_set(
        problem, BAG_ERROR_NOT_FOUND, "there is no model '%s'%s There are: %s",
        bag_quote(name, strlen(name)).text,
        bag_suggestion_is_near(&suggestion) ? bag_suggestion_question(&suggestion, "").text : ".",
        list);
}

/* Finds the named model or, without a name, the one to choose. */
static bool find_model(struct bag_bench_target *target, const char *name,
                       struct bag_problem *problem)
{
    struct bag_client_names names;
    if (!ask_names(target, &names, problem))
        return false;
    bool ok =
        name ? find_named(target, name, &names, problem) : choose_model(target, &names, problem);
    bag_client_names_free(&names);
    return ok;
}

bool bag_bench_target_find(struct bag_bench_target *target, const struct bag_bench_options *options,
                           struct bag_problem *problem)
{
    const struct bag_url *url = &options->url;
    memset(target, 0, sizeof *target);
    target->authority = strdup(url->authority);
    target->path = strndup(url->path.data, url->path.bytes);
    if (!target->authority || !target->path)
        return bag_problem_no_memory(problem);
    if (options->token_file &&
        !(target->token = bag_file_read_token(options->token_file, BAG_SCOPE_COUNT, problem)))
        return false;
    return (options->unix_path ? find_unix(target, options->unix_path, problem)
                               : find_tcp(target, url, problem)) &&
           (options->get_path || find_model(target, options->model, problem));
}

void bag_bench_target_free(struct bag_bench_target *target)
{
    free(target->authority);
    free(target->path);
    free(target->token);
    free(target->metadata);
    bag_client_model_free(&target->model);
}

bool bag_bench_target_is_same(const struct bag_bench_target *target)
{
    struct bag_problem problem;
    char *now =
        target->metadata ? bag_bench_get_model(target, target->model.name, "", &problem) : NULL;
    bool is_same = !now || strcmp(now, target->metadata) == 0;
    free(now);
    return is_same;
}
