/* Changes what bagserve serves: loads and unloads models, and updates rows of tables. It needs
 * bagserve_client.h in the same folder.
 *
 *     struct bagserve_client *admin = bagserve_open("http://127.0.0.1:8001", 600000);
 *     bagserve_set_token(admin, token);
 *     const char *names[] = {"users", "items"};
 *     if (bagserve_load(admin, names, 2) != BAGSERVE_OK)
 *         fprintf(stderr, "%s\n", bagserve_error(admin));
 *     int64_t indices[] = {3};
 *     float rows[] = {1, 2};
 *     struct bagserve_applied applied;
 *     if (bagserve_update(admin, "users", indices, 1, rows, 2, 0, 17, &applied) != BAGSERVE_OK)
 *         fprintf(stderr, "%s\n", bagserve_error(admin));
 *
 * Open the client on the server's admin listener, if there is one, with a token of scope admin. The
 * server answers a load when it serves the tables, so choose the client's timeout accordingly.
 * After a failure the served versions stay. BAGSERVE_CONFLICT has two causes: another model needs a
 * model that is to be unloaded, or earlier updates are missing. */
#ifndef BAGSERVE_ADMIN_H
#define BAGSERVE_ADMIN_H

#include "bagserve_client.h"

/* ---- not for callers ------------------------------------------------------------------------- */

/* Sends a JSON text to `before` MODEL `after`. `model` may be "". */
static inline enum bagserve_result bagserve_send_(struct bagserve_client *client,
                                                  const char *before, const char *model,
                                                  const char *after, const char *text)
{
    char *body = (char *)malloc(strlen(text) + 1);
    if (!body)
        return bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
    strcpy(body, text);
    free(client->body);
    client->body = body;
    client->body_room = strlen(text) + 1;
    return bagserve_post_(client, before, model, after, strlen(text), strlen(text));
}

/* Returns the number after `name`, a key with its quotes and colon, in the reply. Returns 0 if the
 * reply has no such key. */
static inline uint64_t bagserve_number_(const struct bagserve_client *client, const char *name)
{
    const char *at = client->answer_bytes ? strstr(client->answer, name) : NULL;
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Loads the newest valid version of each model, and what has changed in its files. All models
 * change in one step, or none of them. Returns BAGSERVE_REFUSED if a name has a quote or a
 * backslash; names consist of letters, digits, "_", "-" and ".". */
static inline enum bagserve_result bagserve_load(struct bagserve_client *client,
                                                 const char *const *models, size_t count)
{
    size_t room = 16, used, i;
    char *text;
    enum bagserve_result result;
    for (i = 0; i < count; i++) {
        if (strpbrk(models[i], "\"\\"))
            return bagserve_fail_(client, BAGSERVE_REFUSED, "a model's name has other characters");
        room += strlen(models[i]) + 16;
    }
    if (!(text = (char *)malloc(room)))
        return bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
    used = (size_t)snprintf(text, room, "{\"models\":[");
    for (i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, room - used, "%s{\"name\":\"%s\"}", i ? "," : "",
                                 models[i]);
    snprintf(text + used, room - used, "]}");
    result = bagserve_send_(client, "/v2/repository/load", "", "", text);
    free(text);
    return result;
}

/* Loads one version, which becomes the default. A model can thus be rolled back to an older
 * version. */
static inline enum bagserve_result bagserve_load_version(struct bagserve_client *client,
                                                         const char *model, uint64_t version)
{
    char text[80];
    snprintf(text, sizeof text, "{\"parameters\":{\"version\":\"%llu\"}}",
             (unsigned long long)version);
    return bagserve_send_(client, "/v2/repository/models/", model, "/load", text);
}

/* Unloads all versions of a model. Collections that use its table are unloaded, too, if
 * `dependents` is not 0; otherwise they make the call fail with BAGSERVE_CONFLICT. */
static inline enum bagserve_result bagserve_unload(struct bagserve_client *client,
                                                   const char *model, int dependents)
{
    return bagserve_send_(client, "/v2/repository/models/", model, "/unload",
                          dependents ? "{\"parameters\":{\"unload_dependents\":true}}" : "{}");
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct bagserve_applied {
    uint64_t sequence; /* number of the last batch that the model has applied */
    int is_new;        /* 0: it had been applied before */
};

/* Sends a batch of rows and sets *applied from the reply. A batch with one input, the keys, deletes
 * them. Not for callers. */
static inline enum bagserve_result
bagserve_change_(struct bagserve_client *client, const char *model,
                 const struct bagserve_input_ *inputs, size_t num_inputs, uint64_t first_sequence,
                 uint64_t sequence, struct bagserve_applied *applied)
{
    char first[48] = "", last[48] = "", start[160];
    size_t header_bytes, body_bytes;
    enum bagserve_result result;
    if (first_sequence)
        snprintf(first, sizeof first, ",\"first_sequence\":%llu",
                 (unsigned long long)first_sequence);
    if (sequence)
        snprintf(last, sizeof last, ",\"sequence\":%llu", (unsigned long long)sequence);
    snprintf(start, sizeof start, "\"parameters\":{\"delete\":%s%s%s},",
             num_inputs == 1 ? "true" : "false", first, last);
    result = bagserve_compose_(client, start, inputs, num_inputs, &header_bytes, &body_bytes);
    if (result == BAGSERVE_OK)
        result = bagserve_post_(client, "/v2/models/", model, "/rows", header_bytes, body_bytes);
    if (result != BAGSERVE_OK)
        return result;
    applied->sequence = bagserve_number_(client, "\"sequence\":");
    applied->is_new = strstr(client->answer, "\"applied\":true") != NULL;
    return applied->sequence
               ? BAGSERVE_OK
               : bagserve_fail_(client, BAGSERVE_BAD_ANSWER, "the answer has no sequence");
}

/* Replaces the rows at `indices` by `rows` [count, width]: all of them, or none.
 *
 * `sequence` is the number of the batch, from 1. A batch that was applied before changes nothing,
 * so a call that was not answered may be sent again. 0: the server uses the next number.
 *
 * `first_sequence` is 0 for a single update. Otherwise the batch represents all updates from that
 * number to `sequence`, and of several rows with the same index the last one counts. */
static inline enum bagserve_result bagserve_update(struct bagserve_client *client,
                                                   const char *model, const int64_t *indices,
                                                   size_t count, const float *rows, size_t width,
                                                   uint64_t first_sequence, uint64_t sequence,
                                                   struct bagserve_applied *applied)
{
    const struct bagserve_input_ inputs[] = {{"indices", "INT64", indices, {count, 0}, 1, 8},
                                             {"rows", "FP32", rows, {count, width}, 2, 4}};
    return bagserve_change_(client, model, inputs, 2, first_sequence, sequence, applied);
}

/* Updates rows of a table with keys, like bagserve_update. New keys take spare rows of the table;
 * if there are not enough, nothing changes and the result is BAGSERVE_UNAVAILABLE. */
static inline enum bagserve_result
bagserve_update_keys(struct bagserve_client *client, const char *model, const uint64_t *keys,
                     size_t count, const float *rows, size_t width, uint64_t first_sequence,
                     uint64_t sequence, struct bagserve_applied *applied)
{
    const struct bagserve_input_ inputs[] = {{"keys", "UINT64", keys, {count, 0}, 1, 8},
                                             {"rows", "FP32", rows, {count, width}, 2, 4}};
    return bagserve_change_(client, model, inputs, 2, first_sequence, sequence, applied);
}

/* Removes keys with their rows. The sequence numbers are those of bagserve_update. */
static inline enum bagserve_result bagserve_delete_keys(struct bagserve_client *client,
                                                        const char *model, const uint64_t *keys,
                                                        size_t count, uint64_t first_sequence,
                                                        uint64_t sequence,
                                                        struct bagserve_applied *applied)
{
    const struct bagserve_input_ inputs[] = {{"keys", "UINT64", keys, {count, 0}, 1, 8}};
    return bagserve_change_(client, model, inputs, 1, first_sequence, sequence, applied);
}

#endif
