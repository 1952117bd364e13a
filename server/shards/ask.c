/* Asking one shard what it has, on a blocking socket with a time-out; see shards.h. */
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

/* Maximum time for all that is asked, but for looking up the name. */
#define TIMEOUT_MS 2000

/* The longest document that is read of a shard: metadata of a model has some thousands. */
#define DOCUMENT_BYTES ((size_t)1 << 20)

struct talk {
    struct bag_shard_group *group;
    struct bag_shard_host *host;
    int fd; /* -1: not connected */
    enum bag_shard_contact contact;
    uint64_t deadline_ns; /* of the whole poll */
    char *body;           /* owned; of the last answer */
    size_t body_bytes;
};

/* ---- connecting ------------------------------------------------------------------------------ */

static size_t resolve(const struct bag_shard_address *address, struct bag_shard_place *places,
                      struct bag_problem *problem)
{
    struct sockaddr_un *local = (void *)&places[0].address;
    size_t count = 0;
    if (address->socket) {
        memset(local, 0, sizeof *local);
        local->sun_family = AF_UNIX;
        snprintf(local->sun_path, sizeof local->sun_path, "%s", address->socket);
        places[0].bytes = sizeof *local;
        return 1;
    }
    struct addrinfo *list = bag_address_find(address->url.host, address->url.port, 0, problem);
    for (const struct addrinfo *at = list; at && count < BAG_SHARD_PLACES; at = at->ai_next) {
        memcpy(&places[count].address, at->ai_addr, at->ai_addrlen);
        places[count++].bytes = at->ai_addrlen;
    }
    if (list)
        freeaddrinfo(list);
    return count;
}

/* Loops connect to what was found last, also where the name leads nowhere now. */
static void keep_places(struct talk *talk, const struct bag_shard_place *places, size_t count)
{
    struct bag_shards *shards = talk->group->shards;
    pthread_mutex_lock(&shards->lock);
    memcpy(talk->host->places, places, count * sizeof *places);
    talk->host->num_places = count;
    pthread_mutex_unlock(&shards->lock);
}

static bool connect_to(struct talk *talk, struct bag_problem *problem)
{
    struct bag_shard_place places[BAG_SHARD_PLACES];
    size_t count = resolve(&talk->host->address, places, problem);
    int error = 0;
    talk->contact = BAG_SHARD_NOBODY;
    if (count == 0)
        return false;
    keep_places(talk, places, count);
    for (size_t i = 0; i < count && talk->fd < 0; i++) {
        talk->fd = bag_deadline_connect(&places[i].address, places[i].bytes, talk->deadline_ns);
        error = talk->fd < 0 ? errno : 0;
    }
    if (talk->fd >= 0 || error == ETIMEDOUT)
        talk->contact = BAG_SHARD_SILENT;
    else if (bag_is_lack(error))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s", strerror(error));
    return talk->fd >= 0 || bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s", strerror(error));
}

/* ---- one document ---------------------------------------------------------------------------- */

static bool send_request(struct talk *talk, const char *path, const char *token,
                         struct bag_problem *problem)
{
    const struct bag_shard_address *address = &talk->host->address;
    const struct bag_text *prefix = &address->url.path;
    char text[2048];
    int bytes =
        snprintf(text, sizeof text,
                 "GET %.*s%s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\n%s%s%s\r\n",
                 (int)prefix->bytes, prefix->data, path, address->url.authority,
                 token ? "Authorization: Bearer " : "", token ? token : "", token ? "\r\n" : "");
    if (bytes >= (int)sizeof text)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "the token is too long");
    return bag_deadline_send(talk->fd, text, (size_t)bytes, talk->deadline_ns) ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s", strerror(errno));
}

/* Says why a reply has not arrived, by errno; 0: the shard has closed the connection. */
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

static bool receive_reply(struct talk *talk, struct bag_reply_head *head,
                          struct bag_problem *problem)
{
    char text[BAG_REPLY_HEAD_BYTES];
    size_t used, head_bytes = bag_deadline_receive_head(talk->fd, text, &used, talk->deadline_ns);
    free(talk->body);
    talk->body = NULL;
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
    talk->body_bytes = (size_t)head->body_bytes;
    if (!(talk->body = malloc(talk->body_bytes + 1)))
        return bag_problem_no_memory(problem);
    memcpy(talk->body, text + head_bytes, used);
    while (used < talk->body_bytes) {
        ssize_t count = bag_deadline_receive(talk->fd, talk->body + used, talk->body_bytes - used,
                                             talk->deadline_ns);
        if (count <= 0) {
            errno = count < 0 ? errno : 0;
            return fail_receiving(head_bytes, problem);
        }
        used += (size_t)count;
    }
    return true;
}

static bool get(struct talk *talk, const char *path, const char *token, struct bag_problem *problem)
{
    struct bag_reply_head head;
    char sentence[200];
    talk->contact = BAG_SHARD_SILENT;
    if (talk->fd < 0 && !connect_to(talk, problem))
        return false;
    if (!send_request(talk, path, token, problem) || !receive_reply(talk, &head, problem))
        return false;
    talk->contact = BAG_SHARD_ANSWERED;
    if (head.closes) {
        close(talk->fd);
        talk->fd = -1;
    }
    if (head.status == 200)
        return true;
    bag_client_read_error(talk->body, talk->body_bytes, sentence, sizeof sentence);
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "it answers %d%s%s", head.status,
                           *sentence ? ": " : "", sentence);
}

/* ---- all that a shard says ------------------------------------------------------------------- */

/* What one version is; why it is no part of a table goes to its reason. False where the shard
 * cannot be asked. */
static bool ask_version(struct talk *talk, const char *token, struct bag_shard_said *said, size_t i,
                        struct bag_problem *problem)
{
    const char *model = bag_shards_model(&talk->group->config);
    char path[256];
    struct bag_problem why;
    unsigned long long version = said->versions.numbers[i];
    snprintf(path, sizeof path, "/v2/models/%s/versions/%llu", model, version);
    if (!get(talk, path, token, problem))
        return false;
    bool ok = bag_shard_read_table(talk->body, talk->body_bytes, &said->tables[i], &why);
    snprintf(path, sizeof path, "/v2/models/%s/versions/%llu/config", model, version);
    if (ok && !get(talk, path, token, problem))
        return false;
    if (!bag_model_config_copy(&said->configs[i], &talk->group->config))
        return bag_problem_no_memory(problem);
    ok = ok && bag_shards_take_rules(&said->configs[i], talk->body, talk->body_bytes,
                                     &said->tables[i], &why);
    if (!ok && why.kind == BAG_ERROR_NO_MEMORY)
        return bag_problem_no_memory(problem);
    if (!ok)
        snprintf(said->reasons[i], sizeof said->reasons[i], "%s", why.text);
    return true;
}

static bool ask_all(struct talk *talk, const char *token, const struct bag_shard_stamp *known,
                    struct bag_shard_said *said, struct bag_problem *problem)
{
    char path[256];
    if (!get(talk, "/v2", token, problem) ||
        !bag_shard_read_stamp(talk->body, talk->body_bytes, &said->stamp, problem))
        return false;
    if (strcmp(said->stamp.instance, talk->group->shards->instance) == 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "it is this server itself");
    said->is_same = known && bag_shard_is_same(known, &said->stamp);
    if (said->is_same)
        return true;
    snprintf(path, sizeof path, "/v2/models/%s", bag_shards_model(&talk->group->config));
    if (!get(talk, path, token, problem) ||
        !bag_shard_read_versions(talk->body, talk->body_bytes, &said->versions, problem))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < said->versions.count; i++)
        ok = ask_version(talk, token, said, i, problem);
    return ok;
}

static void keep_token(struct bag_shard_group *group, const char *token)
{
    pthread_mutex_lock(&group->shards->lock);
    snprintf(group->token, sizeof group->token, "%s", token ? token : "");
    pthread_mutex_unlock(&group->shards->lock);
}

bool bag_shard_ask(struct bag_shard_group *group, struct bag_shard_host *host,
                   const struct bag_shard_stamp *known, struct bag_shard_said *said,
                   enum bag_shard_contact *contact, struct bag_problem *problem)
{
    struct talk talk = {
        .group = group, .host = host, .fd = -1, .deadline_ns = bag_deadline_in_ms(TIMEOUT_MS)};
    const char *path = group->config.shard_token_file;
    char *token = NULL;
    memset(said, 0, sizeof *said);
    bool ok = !path || !*path || (token = bag_file_read_token(path, BAG_SCOPE_COUNT, problem));
    ok = ok && connect_to(&talk, problem) && ask_all(&talk, token, known, said, problem);
    said->is_known = ok;
    *contact = talk.contact;
    if (!ok && problem->kind == BAG_ERROR_NO_MEMORY) {
        bag_problem_prefix(problem, "this server lacks what it would ask with");
        *contact = BAG_SHARD_UNASKED;
    }
    if (ok)
        keep_token(group, token);
    if (talk.fd >= 0)
        close(talk.fd);
    free(talk.body);
    free(token);
    return ok;
}

void bag_shard_said_free(struct bag_shard_said *said)
{
    for (size_t i = 0; i < BAG_SHARD_MAX_VERSIONS; i++)
        bag_model_config_free(&said->configs[i]);
    memset(said, 0, sizeof *said);
}
