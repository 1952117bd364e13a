/* Addresses of shards; see shards.h. */
#include "shards.h"

#include "names.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOCKET_PREFIX "unix:"

/* The maximum length of a path in struct sockaddr_un. */
#define SOCKET_PATH_BYTES 107

const char *bag_shards_model(const struct bag_model_config *model)
{
    return model->shard_model && *model->shard_model ? model->shard_model : model->name;
}

char *bag_shards_path(const cJSON *addresses)
{
    const cJSON *item;
    /* Each address takes its length and one blank. */
    size_t bytes = sizeof BAG_SHARDS_PREFIX, used = sizeof BAG_SHARDS_PREFIX - 1;
    cJSON_ArrayForEach(item, addresses)
    {
        bytes += strlen(item->valuestring) + 1;
    }
    char *path = malloc(bytes);
    if (!path)
        return NULL;
    memcpy(path, BAG_SHARDS_PREFIX, used + 1);
    cJSON_ArrayForEach(item, addresses)
    {
        used += (size_t)snprintf(path + used, bytes - used, "%s%s",
                                 item == addresses->child ? "" : " ", item->valuestring);
    }
    return path;
}

/* Rejects an address. Returns false and sets *problem (CONFIGURATION). */
static bool reject(const struct bag_shard_address *address, const char *why,
                   struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "shards: address '%s': %s",
                           bag_quote(address->text, strlen(address->text)).text, why);
}

/* Checks address->text and sets the other members. Returns false and sets *problem if it is neither
 * http://HOST:PORT nor unix:PATH. */
static bool parse(struct bag_shard_address *address, struct bag_problem *problem)
{
    struct bag_problem why;
    address->socket = NULL;
    for (const char *byte = address->text; *byte; byte++) {
        if (*byte < '!' || *byte > '~' || *byte == '"' || *byte == '\\')
            return reject(address, "it has visible ASCII without quotes and backslashes", problem);
    }
    if (strncmp(address->text, SOCKET_PREFIX, strlen(SOCKET_PREFIX)) == 0) {
        address->socket = address->text + strlen(SOCKET_PREFIX);
        address->url = (struct bag_url){.authority = "localhost", .path = {"", 0}};
        size_t bytes = strlen(address->socket);
        return (bytes >= 1 && bytes <= SOCKET_PATH_BYTES) ||
               reject(address, "a socket's path has 1 to 107 bytes", problem);
    }
    if (strncmp(address->text, "http://", 7) != 0 && strncmp(address->text, "https://", 8) != 0)
        return reject(address, "write http://HOST:PORT or unix:PATH", problem);
    if (strchr(address->text, '@')) /* never log what may be a password */
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "shards: an address must not have a user");
    return bag_url_parse(address->text, &address->url, &why) || reject(address, why.text, problem);
}

bool bag_shards_next(const char **at, struct bag_shard_address *address,
                     struct bag_problem *problem)
{
    const char *text = *at;
    if (strncmp(text, BAG_SHARDS_PREFIX, strlen(BAG_SHARDS_PREFIX)) == 0)
        text += strlen(BAG_SHARDS_PREFIX);
    text += strspn(text, " ");
    size_t bytes = strcspn(text, " ");
    *at = text + bytes;
    problem->text[0] = 0;
    if (bytes == 0)
        return false;
    snprintf(address->text, sizeof address->text, "%.*s", (int)(bytes < 511 ? bytes : 511), text);
    return bytes < sizeof address->text ? parse(address, problem)
                                        : reject(address, "it has more than 511 bytes", problem);
}

bool bag_shards_check(const struct bag_model_config *model, struct bag_problem *problem)
{
    struct bag_shard_address address;
    struct bag_names names = {0};
    char *copy = strdup(model->path);
    const char *at = model->path;
    size_t count = 0;
    bool ok = copy || bag_problem_no_memory(problem);
    while (ok && bag_shards_next(&at, &address, problem)) {
        /* The index of names refers to this copy. */
        char *text = copy + (at - model->path) - strlen(address.text);
        copy[at - model->path] = 0;
        if (bag_names_find(&names, text, NULL))
            ok = reject(&address, "it is there twice", problem);
        else if (++count > BAG_MAX_SHARDS)
            ok = bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "shards: at most %d",
                                 BAG_MAX_SHARDS);
        else if (!bag_names_reserve(&names, 1))
            ok = bag_problem_no_memory(problem);
        else
            bag_names_put(&names, text, NULL, count);
    }
    ok = ok && !problem->text[0];
    if (ok && count == 0)
        ok = bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "shards: there is no address");
    if (!ok)
        bag_problem_prefix(problem, "model '%s'", model->name);
    bag_names_free(&names);
    free(copy);
    return ok;
}
