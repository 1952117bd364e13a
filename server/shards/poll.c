/* Polls one shard over a blocking socket, with deadlines; see shards.h. */
#include "shards.h"

#include "proto/v2_client.h"
#include "server/system/deadline.h"
#include "server/system/files.h"
#include "server/system/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

/* Maximum time of connecting, with looking up the name, and then of each document. */
#define TIMEOUT_MS 2000

/* Maximum size of a document: metadata of a model has some thousand bytes. */
#define DOCUMENT_BYTES ((size_t)1 << 20)

/* One poll. Its documents are read one after the other over one connection, if the shard keeps it
 * open. */
struct session {
    struct bag_shard_group *group;
    struct bag_shard_host *host;
    int fd; /* -1: not connected */
    enum bag_shard_contact contact;
    uint64_t deadline_ns; /* end of the time for connecting, then for the current document */
    char *body;           /* owned; of the last answer */
    size_t body_bytes;
};

/* ---- connecting ------------------------------------------------------------------------------ */

/* Resolves an address. Returns the number of endpoints. Returns 0 and sets *problem if the name
 * does not resolve. */
static size_t resolve(const struct bag_shard_address *address, uint64_t deadline_ns,
                      struct bag_address *endpoints, struct bag_problem *problem)
{
    struct sockaddr_un *local = (void *)&endpoints[0].address;
    size_t count = 0;
    if (address->socket) {
        memset(local, 0, sizeof *local);
        local->sun_family = AF_UNIX;
        snprintf(local->sun_path, sizeof local->sun_path, "%s", address->socket);
        endpoints[0].bytes = sizeof *local;
        return 1;
    }
    struct addrinfo *list =
        bag_deadline_find(address->url.host, address->url.port, deadline_ns, problem);
    for (const struct addrinfo *at = list; at && count < BAG_SHARD_MAX_ENDPOINTS;
         at = at->ai_next) {
        memcpy(&endpoints[count].address, at->ai_addr, at->ai_addrlen);
        endpoints[count++].bytes = at->ai_addrlen;
    }
    if (list)
        freeaddrinfo(list);
    return count;
}

/* Connects to the first endpoint that accepts, and sets session->contact. Returns false and sets
 * *problem if none does. */
static bool connect_to(struct session *session, struct bag_problem *problem)
{
    struct bag_address endpoints[BAG_SHARD_MAX_ENDPOINTS];
    size_t count = resolve(&session->host->address, session->deadline_ns, endpoints, problem);
    int error = 0;
    session->contact = BAG_SHARD_NOBODY;
    if (count == 0)
        return false;
    /* Store the endpoints for the loops. If the name no longer resolves, the loops continue with
     * the earlier ones. */
    struct bag_shards *shards = session->group->shards;
    bag_monitor_lock(&shards->monitor);
    memcpy(session->host->endpoints, endpoints, count * sizeof *endpoints);
    session->host->num_endpoints = count;
    bag_monitor_unlock(&shards->monitor);
    for (size_t i = 0; i < count && session->fd < 0; i++) {
        session->fd =
            bag_deadline_connect(&endpoints[i].address, endpoints[i].bytes, session->deadline_ns);
        error = session->fd < 0 ? errno : 0;
    }
    if (session->fd >= 0 || error == ETIMEDOUT)
        session->contact = BAG_SHARD_SILENT;
    else if (bag_is_lack(error))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s", strerror(error));
    return session->fd >= 0 || bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s", strerror(error));
}

/* ---- one document ---------------------------------------------------------------------------- */

/* Sends a GET request. Returns false and sets *problem on failure. */
static bool send_request(struct session *session, const char *path, const char *token,
                         struct bag_problem *problem)
{
    const struct bag_shard_address *address = &session->host->address;
    const struct bag_text *prefix = &address->url.path;
    char text[2048];
    int bytes =
        snprintf(text, sizeof text,
                 "GET %.*s%s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\n%s%s%s\r\n",
                 (int)prefix->bytes, prefix->data, path, address->url.authority,
                 token ? "Authorization: Bearer " : "", token ? token : "", token ? "\r\n" : "");
    if (bytes >= (int)sizeof text)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "the token is too long");
    return bag_deadline_send(session->fd, text, (size_t)bytes, session->deadline_ns) ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s", strerror(errno));
}

/* Sets *problem to the reason why a reply has not arrived, from errno. An errno of 0 means that the
 * shard has closed the connection. Returns false. */
static bool fail_receiving(size_t received, struct bag_problem *problem)
{
    switch (errno) {
    case 0:
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               received ? "it closed the connection in its answer"
                                        : "it closed the connection without an answer");
    case EMSGSIZE:
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "its answer has a head of more than 8 KiB");
    case ETIMEDOUT:
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "no answer within %d s",
                               TIMEOUT_MS / 1000);
    default:
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s", strerror(errno));
    }
}

/* Receives a reply, whose body session->body then owns. Returns false and sets *problem if it is
 * not whole or too large. */
static bool receive_reply(struct session *session, struct bag_reply_head *head,
                          struct bag_problem *problem)
{
    char text[BAG_REPLY_HEAD_BYTES];
    size_t used,
        head_bytes = bag_deadline_receive_head(session->fd, text, &used, session->deadline_ns);
    free(session->body);
    session->body = NULL;
    if (head_bytes == 0)
        return fail_receiving(used, problem);
    if (!bag_reply_head_parse(text, head_bytes, head, problem))
        return false;
    if (head->body_bytes > DOCUMENT_BYTES)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "its answer has %llu bytes",
                               (unsigned long long)head->body_bytes);
    used -= head_bytes;
    if (used > head->body_bytes)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "its answer is longer than it says");
    session->body_bytes = (size_t)head->body_bytes;
    if (!(session->body = malloc(session->body_bytes + 1)))
        return bag_problem_no_memory(problem);
    memcpy(session->body, text + head_bytes, used);
    while (used < session->body_bytes) {
        ssize_t count = bag_deadline_receive(session->fd, session->body + used,
                                             session->body_bytes - used, session->deadline_ns);
        if (count <= 0) {
            errno = count < 0 ? errno : 0;
            return fail_receiving(head_bytes, problem);
        }
        used += (size_t)count;
    }
    return true;
}

/* Reads a document to session->body. Connects first if needed. Returns false and sets *problem if
 * the reply is not 200. */
static bool get(struct session *session, const char *path, const char *token,
                struct bag_problem *problem)
{
    struct bag_reply_head head;
    char sentence[200];
    session->contact = BAG_SHARD_SILENT;
    session->deadline_ns = bag_deadline_in_ms(TIMEOUT_MS);
    if (session->fd < 0 && !connect_to(session, problem))
        return false;
    if (!send_request(session, path, token, problem) || !receive_reply(session, &head, problem))
        return false;
    session->contact = BAG_SHARD_ANSWERED;
    if (head.closes) {
        close(session->fd);
        session->fd = -1;
    }
    if (head.status == 200)
        return true;
    bag_client_read_error(session->body, session->body_bytes, sentence, sizeof sentence);
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "it answers %d%s%s", head.status,
                           *sentence ? ": " : "", sentence);
}

/* ---- the whole report ------------------------------------------------------------------- */

/* Asks for one version. Sets its reason if it cannot be served. Returns false and sets *problem if
 * the shard does not answer. */
static bool poll_version(struct session *session, const char *token,
                         struct bag_shard_report *report, size_t i, struct bag_problem *problem)
{
    const char *model = bag_shards_model(&session->group->config);
    char path[256];
    struct bag_problem why;
    unsigned long long version = report->versions.numbers[i];
    snprintf(path, sizeof path, "/v2/models/%s/versions/%llu", model, version);
    if (!get(session, path, token, problem))
        return false;
    bool ok = bag_shard_read_table(session->body, session->body_bytes, &report->tables[i], &why);
    snprintf(path, sizeof path, "/v2/models/%s/versions/%llu/config", model, version);
    if (ok && !get(session, path, token, problem))
        return false;
    if (!bag_model_config_copy(&report->configs[i], &session->group->config))
        return bag_problem_no_memory(problem);
    ok = ok && bag_shards_take_rules(&report->configs[i], session->body, session->body_bytes,
                                     &report->tables[i], &why);
    if (!ok && why.kind == BAG_ERROR_NO_MEMORY)
        return bag_problem_no_memory(problem);
    if (!ok)
        snprintf(report->reasons[i], sizeof report->reasons[i], "%s", why.text);
    return true;
}

/* Reads the generation and, unless it is the known one, the rest of the report. */
static bool poll_all(struct session *session, const char *token,
                     const struct bag_shard_generation *known, struct bag_shard_report *report,
                     struct bag_problem *problem)
{
    char path[256];
    if (!get(session, "/v2", token, problem) ||
        !bag_shard_read_generation(session->body, session->body_bytes, &report->generation,
                                   problem))
        return false;
    if (strcmp(report->generation.instance, session->group->shards->instance) == 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "it is this server itself");
    report->is_same = known && bag_shard_generation_equal(known, &report->generation);
    if (report->is_same)
        return true;
    snprintf(path, sizeof path, "/v2/models/%s", bag_shards_model(&session->group->config));
    if (!get(session, path, token, problem) ||
        !bag_shard_read_versions(session->body, session->body_bytes, &report->versions, problem))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < report->versions.count; i++)
        ok = poll_version(session, token, report, i, problem);
    return ok;
}

bool bag_shard_poll(struct bag_shard_group *group, struct bag_shard_host *host,
                    const struct bag_shard_generation *known, struct bag_shard_report *report,
                    enum bag_shard_contact *contact, struct bag_problem *problem)
{
    struct session session = {
        .group = group, .host = host, .fd = -1, .deadline_ns = bag_deadline_in_ms(TIMEOUT_MS)};
    const char *path = group->config.shard_token_file;
    char *token = NULL;
    memset(report, 0, sizeof *report);
    bool ok = !path || !*path || (token = bag_file_read_token(path, BAG_SCOPE_COUNT, problem));
    ok = ok && connect_to(&session, problem) && poll_all(&session, token, known, report, problem);
    report->is_known = ok;
    *contact = session.contact;
    if (!ok && problem->kind == BAG_ERROR_NO_MEMORY) {
        bag_problem_prefix(problem, "this server lacks what it would ask with");
        *contact = BAG_SHARD_NOT_POLLED;
    }
    if (ok) {
        /* Store the token that the shard has accepted, for the requests of the loops. */
        bag_monitor_lock(&group->shards->monitor);
        snprintf(group->token, sizeof group->token, "%s", token ? token : "");
        bag_monitor_unlock(&group->shards->monitor);
    }
    if (session.fd >= 0)
        close(session.fd);
    free(session.body);
    free(token);
    return ok;
}

void bag_shard_report_free(struct bag_shard_report *report)
{
    for (size_t i = 0; i < BAG_SHARD_MAX_VERSIONS; i++)
        bag_model_config_free(&report->configs[i]);
    memset(report, 0, sizeof *report);
}
