/* Checks the replies that clients get; see clients.h. */
#include "clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct sim_counters counters;

/* A change whose client has vanished may be made after one that was asked for so much later. */
#define ON_ITS_WAY_NS (200 * MS)

/* Bits of the versions before change `i` that may follow it. */
static unsigned late_versions(size_t table, size_t i)
{
    const struct change *changes = history.changes[table];
    unsigned versions = 0;
    for (size_t j = 0; j < i; j++) {
        if (changes[j].outcome == UNKNOWN &&
            changes[j].asked_ns + ON_ITS_WAY_NS > changes[i].asked_ns)
            versions |= 1U << changes[j].version | (table == C);
    }
    return versions;
}

/* Bit v: the default version may have been v at some time from `from` to `to`. */
static unsigned possible_versions(size_t table, uint64_t from_ns, uint64_t to_ns)
{
    unsigned versions = 1U << VERSIONS;
    for (size_t i = 0; i < history.num_changes[table]; i++) {
        const struct change *change = &history.changes[table][i];
        if (change->asked_ns > to_ns)
            continue;
        bool is_made = change->outcome == DONE || (change->outcome == POLLED && table != C &&
                                                   change->done_ns < story.signal_ns);
        bool is_over = is_made && change->done_ns <= from_ns;
        if (is_over)
            versions = late_versions(table, i);
        else if (table == C) /* is unloaded first, when its last request has ended */
            versions |= 1U;
        versions |= 1U << change->version;
    }
    return versions;
}

/* ---- replies --------------------------------------------------------------------------------- */

bool parse_reply(const struct text *text, struct reply *reply)
{
    const char *end = text->count ? strstr(text->at, "\r\n\r\n") : NULL;
    if (!end)
        return false;
    sim_require(sscanf(text->at, "HTTP/1.1 %d ", &reply->status) == 1, "not a reply: %.100s",
                text->at);
    reply->json_bytes = reply->body_bytes = 0;
    reply->closes = reply->has_retry_after = false;
    for (const char *at = strstr(text->at, "\r\n"); at < end; at = strstr(at + 2, "\r\n")) {
        if (strncasecmp(at + 2, "Content-Length:", 15) == 0)
            reply->body_bytes = strtoul(at + 17, NULL, 10);
        if (strncasecmp(at + 2, "Inference-Header-Content-Length:", 32) == 0)
            reply->json_bytes = strtoul(at + 34, NULL, 10);
        reply->closes |= strncasecmp(at + 2, "Connection: close", 17) == 0;
        reply->has_retry_after |= strncasecmp(at + 2, "Retry-After:", 12) == 0;
    }
    reply->body = end + 4;
    size_t all = (size_t)(reply->body - text->at) + reply->body_bytes;
    sim_require(text->count <= all, "%zu bytes follow a reply", text->count - all);
    return text->count == all;
}

bool is_signalled(void)
{
    return story.signal_ns <= sim.now_ns;
}

/* Returns whether an output has the sums of the rows of that version after `updates` updates. */
static bool is_sum(const struct feature *feature, unsigned version, uint64_t updates,
                   const float *values, size_t stride)
{
    for (size_t bag = 0; bag < feature->bags; bag++) {
        for (size_t column = 0; column < COLUMNS; column++) {
            float sum = 0;
            for (size_t i = feature->offset[bag]; i < feature->offset[bag + 1]; i++)
                sum += element(feature->table, version, updates, feature->id[i], column);
            if (values[bag * stride + column] != sum)
                return false;
        }
    }
    return true;
}

/* The versions with which the values are those of the table at some moment of the request. */
static unsigned matching_versions(const struct client *client, const struct feature *feature,
                                  const float *values, size_t stride)
{
    unsigned possible = possible_versions(feature->table, client->asked_ns, sim.now_ns), found = 0;
    uint64_t first = is_updated(feature->table) ? client->first_done : 0;
    uint64_t last = history.streams[feature->table].asked;
    for (unsigned version = 1; version <= MAX_VERSION; version++) {
        for (uint64_t updates = first; (possible & 1U << version) && updates <= last; updates++) {
            if (is_sum(feature, version, updates, values, stride))
                found |= 1U << version;
        }
    }
    return found;
}

/* The next output's values: in the JSON, or from *binary on. */
static const char *read_output(const char *json, const char *name, const char **binary,
                               float *values, size_t count)
{
    char start[64];
    snprintf(start, sizeof start, "{\"name\":\"%s\",\"datatype\":\"FP32\",", name);
    const char *at = strstr(json, start);
    sim_require(at, "no output %s in: %.300s", name, json);
    if (*binary) {
        memcpy(values, *binary, count * sizeof *values);
        *binary += count * sizeof *values;
        return at;
    }
    at = strstr(at, "\"data\":[");
    sim_require(at, "no data of %s in: %.300s", name, json);
    at += strlen("\"data\":[");
    for (size_t i = 0; i < count; i++) {
        char *end;
        values[i] = strtof(at, &end);
        sim_require(end > at && (*end == ',' || *end == ']'), "no number: %.60s", at);
        at = end + 1;
    }
    return at;
}

static void check_rows(const struct client *client, const struct reply *reply)
{
    float values[2][MAX_BAGS * COLUMNS];
    char name[16] = "embeddings";
    const char *binary = reply->json_bytes ? reply->body + reply->json_bytes : NULL;
    const char *json = reply->body, *shown = strstr(json, "\"model_version\":\"");
    unsigned found = ~0U;
    for (size_t i = 0; i < client->num_features; i++) {
        const struct feature *feature = &client->features[i];
        if (client->model == BOTH)
            snprintf(name, sizeof name, "f_%s", model_names[i]);
        json = read_output(json, name, &binary, values[i], feature->bags * COLUMNS);
        found &= matching_versions(client, feature, values[i], COLUMNS);
    }
    unsigned version = shown ? (unsigned)atoi(shown + strlen("\"model_version\":\"")) : 0;
    sim_require(found, "model %s: no version and update fits the reply: %.400s",
                model_names[client->model], reply->body);
    sim_require(client->model == BOTH || (found & 1U << version),
                "model %s: the reply names version %u, and has rows of another (%x)",
                model_names[client->model], version, found);
}

/* Returns whether the model may have been unloaded at some time since the client's request. */
static bool may_be_unloaded(const struct client *client)
{
    return client->model < TABLES &&
           (possible_versions(client->model, client->asked_ns, sim.now_ns) & 1U);
}

static bool may_be_rejected(const struct client *client)
{
    return story.limits || (is_signalled() && story.drain_delay_s == 0) || !history.ready ||
           may_be_unloaded(client);
}

static void check_infer(const struct client *client, const struct reply *reply)
{
    counters.answered++;
    if (reply->status == 200) {
        check_rows(client, reply);
        return;
    }
    counters.rejected++;
    sim_require((reply->status == 503 && may_be_rejected(client)) ||
                    (reply->status == 404 && may_be_unloaded(client)),
                "model %s: status %d: %.300s", model_names[client->model], reply->status,
                reply->body);
    sim_require(reply->status != 503 || reply->has_retry_after, "503 without Retry-After: %.200s",
                reply->body);
}

void end_changes(struct client *client, enum outcome outcome)
{
    for (size_t i = 0; i < client->num_changes; i++) {
        client->changes[i]->outcome = outcome;
        client->changes[i]->done_ns = sim.now_ns;
    }
    client->num_changes = 0;
}

static void check_control(struct client *client, const struct reply *reply)
{
    counters.changes += reply->status == 200;
    sim_require(reply->status == 200 || reply->status == 202 ||
                    (reply->status == 503 && (is_signalled() || story.limits)),
                "a change is answered %d: %.300s", reply->status, reply->body);
    /* A change that the drain gives up may have been made. */
    end_changes(client, reply->status == 200 ? DONE : UNKNOWN);
}

static void check_update(const struct client *client, const struct reply *reply)
{
    struct stream *stream = &history.streams[client->model];
    counters.updates += reply->status == 200;
    sim_require(reply->status == 200 ||
                    (reply->status == 503 && (is_signalled() || story.limits)) ||
                    ((reply->status == 503 || reply->status == 404) && may_be_unloaded(client)),
                "an update is answered %d: %.300s", reply->status, reply->body);
    sim_require(reply->status != 200 || stream->in_doubt || strstr(reply->body, "\"applied\":true"),
                "a new update was not applied: %.200s", reply->body);
    if (reply->status == 200) {
        stream->done = stream->asked;
        stream->in_doubt = false;
    }
}

static void check_status(const struct client *client, const struct reply *reply)
{
    counters.answered++;
    sim_require(
        reply->status == client->status || (reply->status == 503 && may_be_rejected(client)) ||
            (reply->status == 404 && may_be_unloaded(client)),
        "a request is answered %d, not %d: %.300s", reply->status, client->status, reply->body);
}

void check_reply(struct client *client, const struct reply *reply)
{
    if (client->status)
        check_status(client, reply);
    else if (client->role == READER)
        check_infer(client, reply);
    else if (client->role == CONTROLLER)
        check_control(client, reply);
    else
        check_update(client, reply);
}
