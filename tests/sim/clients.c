/* Those who ask: readers, who compare every element of every reply; one who loads and unloads
 * models; one who changes rows; see sim.h.
 *
 * Every row says which table, version and update it is of. A reply must be what the tables were at
 * one moment between its request and itself: of each model one version, of live rows all updates up
 * to one of them. */
#include "sim.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct sim_story story;
struct sim_counters counters;

#define MAX_CLIENTS 24
#define MAX_BAGS    8
#define MAX_IDS     4096
#define MAX_CHANGES 64
#define MAX_UPDATES 64

/* A reply comes within this, or it is lost. */
#define PATIENCE_NS (15 * S)

/* The tables, by their place in table_names, and the collection over the first two. */
enum { A, B, C, U, TABLES, BOTH = TABLES, MODELS };
static const char *const model_names[MODELS] = {"a", "b", "c", "u", "both"};

/* ---- what the tables may be ------------------------------------------------------------------ */

enum outcome { PENDING, DONE, UNKNOWN };

/* A change of the default version of a table; version 0: it is unloaded. */
struct change {
    unsigned version;
    uint64_t asked_ns, done_ns;
    enum outcome outcome;
};

static struct {
    struct change changes[TABLES][MAX_CHANGES];
    size_t num_changes[TABLES];
    uint64_t seed;        /* of the updates */
    uint64_t asked, done; /* updates */
    bool in_doubt;        /* the one after `done` was sent, and no reply has come */
    size_t left;          /* clients */
    bool ready, told;
} world;

/* A change whose client has vanished may be made after one that was asked for so much later. */
#define ON_ITS_WAY_NS (200 * MS)

/* Bits of the versions before change `i` that may follow it. */
static unsigned late_versions(size_t table, size_t i)
{
    const struct change *changes = world.changes[table];
    unsigned versions = 0;
    for (size_t j = 0; j < i; j++) {
        if (changes[j].outcome == UNKNOWN &&
            changes[j].asked_ns + ON_ITS_WAY_NS > changes[i].asked_ns)
            versions |= 1U << changes[j].version;
    }
    return versions;
}

/* Bit v: the default version may have been v at some time from `from` to `to`. */
static unsigned possible_versions(size_t table, uint64_t from_ns, uint64_t to_ns)
{
    unsigned versions = 1U << VERSIONS;
    for (size_t i = 0; i < world.num_changes[table]; i++) {
        const struct change *change = &world.changes[table][i];
        if (change->asked_ns > to_ns)
            continue;
        if (change->outcome == DONE && change->done_ns <= from_ns)
            versions = late_versions(table, i);
        versions |= 1U << change->version;
    }
    return versions;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a + b * UINT64_C(0x9E3779B97F4A7C15)) ^ UINT64_C(0x5DEECE66D);
    z = (z ^ z >> 31) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 29;
}

static bool is_updated(uint64_t update, size_t row)
{
    return row == update % ROWS || mix(world.seed + update, row) % 3 == 0;
}

/* One element of a table with all updates up to one of them. */
static float element(size_t table, unsigned version, uint64_t updates, size_t row, size_t column)
{
    float values[COLUMNS] = {(float)version, (float)(row + 1), (float)(table + 1),
                             (float)(16 * version + row)};
    for (uint64_t i = updates; table == U && i > 0; i--) {
        if (is_updated(i, row)) {
            values[0] = (float)(100 + i);
            values[3] = (float)(1000 + i);
            break;
        }
    }
    return values[column];
}

/* ---- clients --------------------------------------------------------------------------------- */

enum role { PROBE, READER, CONTROLLER, UPDATER };
enum manner { PATIENT, RESETS, FINISHES };

struct feature {
    size_t table, bags, ids;
    uint16_t *id;
    uint16_t offset[MAX_BAGS + 1];
};

struct text {
    char *at;
    size_t count, room;
};

struct client {
    enum role role;
    uint32_t address;
    int port;
    unsigned left;   /* requests */
    unsigned number; /* of the request, for its deadline */
    unsigned tries;
    struct sim_socket *socket;
    size_t sent_before;   /* on this connection, with earlier requests */
    size_t on_connection; /* requests so far */
    bool busy;            /* it waits for a reply */
    enum manner manner;
    struct text request, reply;
    size_t sent;
    size_t reads; /* bytes at a time */
    uint64_t asked_ns, first_done;
    size_t model, num_features;
    struct feature features[2];
    struct change *changes[3];
    size_t num_changes;
};

static void ask(void *context);
static void begin(void *context);

static void add(struct text *text, const void *bytes, size_t count)
{
    if (text->count + count + 1 > text->room) {
        text->room = 2 * (text->count + count) + 512;
        char *larger = sim_alloc(text->room);
        if (text->count)
            memcpy(larger, text->at, text->count);
        text->at = larger;
    }
    if (count)
        memcpy(text->at + text->count, bytes, count);
    text->count += count;
    text->at[text->count] = 0;
}

__attribute__((format(printf, 2, 3))) static void print(struct text *text, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    add(text, line, (size_t)count);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void make_feature(struct feature *feature, size_t table, size_t bags)
{
    bool large = sim_one_in(40);
    feature->table = table;
    feature->bags = bags;
    feature->ids = 0;
    feature->id = sim_alloc((large ? MAX_IDS : 3 * bags) * sizeof *feature->id);
    for (size_t bag = 0; bag < feature->bags; bag++) {
        size_t count = large ? sim_below(MAX_IDS / MAX_BAGS) : sim_one_in(8) ? 0 : 1 + sim_below(3);
        feature->offset[bag] = (uint16_t)feature->ids;
        for (size_t i = 0; i < count; i++)
            feature->id[feature->ids++] = (uint16_t)sim_below(ROWS);
    }
    feature->offset[feature->bags] = (uint16_t)feature->ids;
}

static void add_tensor(struct text *json, struct text *binary, bool is_binary, const char *prefix,
                       const char *name, const uint16_t *values, size_t count)
{
    print(json, "%s{\"name\":\"%s%s\",\"shape\":[%zu],\"datatype\":\"INT64\",",
          json->at[json->count - 1] == '[' ? "" : ",", prefix, name, count);
    if (is_binary)
        print(json, "\"parameters\":{\"binary_data_size\":%zu}}", 8 * count);
    else
        print(json, "\"data\":[");
    for (size_t i = 0; i < count; i++) {
        int64_t value = values[i];
        if (is_binary)
            add(binary, &value, sizeof value);
        else
            print(json, i ? ",%u" : "%u", values[i]);
    }
    if (!is_binary)
        print(json, "]}");
}

static void add_head(struct client *client, const char *method, const char *path, size_t body_bytes,
                     size_t json_bytes)
{
    struct text *request = &client->request;
    print(request, "%s %s HTTP/1.1\r\nHost: sim\r\nContent-Length: %zu\r\n", method, path,
          body_bytes);
    print(request, "Authorization: Bearer " TOKEN "\r\n");
    if (json_bytes)
        print(request, "Inference-Header-Content-Length: %zu\r\n", json_bytes);
    print(request, "\r\n");
}

static void add_body(struct client *client, const struct text *json, const struct text *binary)
{
    add(&client->request, json->at, json->count);
    if (binary->count)
        add(&client->request, binary->at, binary->count);
}

static void make_infer(struct client *client)
{
    struct text json = {0}, binary = {0};
    char path[64], prefix[8] = "";
    bool is_binary = sim_one_in(2);
    size_t bags = 1 + sim_below(MAX_BAGS);
    client->model = sim_below(MODELS);
    client->num_features = client->model == BOTH ? 2 : 1;
    print(&json, "{\"id\":\"%u\",\"parameters\":{\"binary_data_output\":%s},\"inputs\":[",
          client->number, sim_one_in(2) ? "true" : "false");
    for (size_t i = 0; i < client->num_features; i++) {
        struct feature *feature = &client->features[i];
        make_feature(feature, client->model == BOTH ? i : client->model, bags);
        if (client->model == BOTH)
            snprintf(prefix, sizeof prefix, "f_%s.", model_names[i]);
        add_tensor(&json, &binary, is_binary, prefix, "indices", feature->id, feature->ids);
        add_tensor(&json, &binary, is_binary, prefix, "offsets", feature->offset, feature->bags);
    }
    print(&json, "]}");
    snprintf(path, sizeof path, "/v2/models/%s/infer", model_names[client->model]);
    add_head(client, "POST", path, json.count + binary.count, is_binary ? json.count : 0);
    add_body(client, &json, &binary);
}

static struct change *note_change(struct client *client, size_t table, unsigned version)
{
    sim_require(world.num_changes[table] < MAX_CHANGES, "too many changes");
    struct change *change = &world.changes[table][world.num_changes[table]++];
    *change = (struct change){version, sim.now_ns, 0, PENDING};
    client->changes[client->num_changes++] = change;
    return change;
}

/* a and b change together, so that the collection over them has one version; the others alone. */
static void make_control(struct client *client)
{
    struct text json = {0};
    unsigned version = 1 + (unsigned)sim_below(VERSIONS);
    size_t table = sim_one_in(2) ? A : sim_one_in(2) ? C : U;
    char path[64] = "/v2/repository/load";
    client->num_changes = 0;
    note_change(client, table, version);
    if (table == A) {
        note_change(client, B, version);
        print(&json,
              "{\"models\":[{\"name\":\"a\",\"version\":\"%u\"},{\"name\":\"b\",\"version\":%u}]}",
              version, version);
    } else if (table == C && sim_one_in(3)) {
        client->changes[0]->version = 0;
        snprintf(path, sizeof path, "/v2/repository/models/c/unload");
    } else {
        snprintf(path, sizeof path, "/v2/repository/models/%s/load", model_names[table]);
        print(&json, "{\"parameters\":{\"version\":\"%u\"}}", version);
    }
    add_head(client, "POST", path, json.count, 0);
    add_body(client, &json, &(struct text){0});
}

static void make_update(struct client *client)
{
    struct text json = {0}, binary = {0};
    uint64_t update = world.done + 1;
    uint16_t rows[ROWS];
    size_t count = 0;
    for (size_t row = 0; row < ROWS; row++) {
        if (is_updated(update, row))
            rows[count++] = (uint16_t)row;
    }
    world.asked = update;
    print(&json, "{\"parameters\":{\"sequence\":%llu},\"inputs\":[", (unsigned long long)update);
    add_tensor(&json, &binary, true, "", "indices", rows, count);
    print(&json, ",{\"name\":\"rows\",\"shape\":[%zu,%d],\"datatype\":\"FP32\",", count, COLUMNS);
    print(&json, "\"parameters\":{\"binary_data_size\":%zu}}]}", count * COLUMNS * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        for (size_t column = 0; column < COLUMNS; column++) {
            float value = element(U, 0, update, rows[i], column);
            add(&binary, &value, sizeof value);
        }
    }
    add_head(client, "POST", "/v2/models/u/rows", json.count + binary.count, json.count);
    add_body(client, &json, &binary);
}

static void make_request(struct client *client)
{
    client->request.count = client->reply.count = 0;
    client->sent = 0;
    client->asked_ns = sim.now_ns;
    client->first_done = world.done;
    if (client->role == PROBE)
        add_head(client, "GET", "/v2/health/ready", 0, 0);
    else if (client->role == READER)
        make_infer(client);
    else if (client->role == CONTROLLER)
        make_control(client);
    else
        make_update(client);
}

/* ---- replies --------------------------------------------------------------------------------- */

struct reply {
    int status;
    const char *body;
    size_t body_bytes, json_bytes; /* json_bytes: of a body that has binary tensors */
    bool closes, has_retry_after;
};

/* False: it is not complete. */
static bool parse_reply(const struct text *text, struct reply *reply)
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

static bool is_signalled(void)
{
    return story.signal_ns <= sim.now_ns;
}

/* What an output must be. */
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
    uint64_t last = feature->table == U ? world.asked : 0;
    for (unsigned version = 1; version <= VERSIONS; version++) {
        for (uint64_t updates = feature->table == U ? client->first_done : 0;
             (possible & 1U << version) && updates <= last; updates++) {
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
    char name[16] = "embeddings", version[16];
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
    snprintf(version, sizeof version, "%u",
             client->model == BOTH ? 1
             : shown               ? atoi(shown + 17)
                                   : 0);
    sim_require(found, "model %s: no version and update fits the reply: %.400s",
                model_names[client->model], reply->body);
    sim_require(client->model == BOTH || (found & 1U << atoi(version)),
                "model %s: the reply names version %s, and has rows of another (%x)",
                model_names[client->model], version, found);
}

static bool may_be_rejected(const struct client *client)
{
    if (story.limits || (is_signalled() && story.drain_delay_s == 0) || !world.ready)
        return true;
    return client->model == C && (possible_versions(C, client->asked_ns, sim.now_ns) & 1U);
}

static void check_infer(const struct client *client, const struct reply *reply)
{
    counters.answered++;
    if (reply->status == 200) {
        check_rows(client, reply);
        return;
    }
    counters.rejected++;
    bool unloaded = client->model == C && (possible_versions(C, client->asked_ns, sim.now_ns) & 1U);
    sim_require(
        (reply->status == 503 && may_be_rejected(client)) || (reply->status == 404 && unloaded),
        "model %s: status %d: %.300s", model_names[client->model], reply->status, reply->body);
    sim_require(reply->status != 503 || reply->has_retry_after, "503 without Retry-After: %.200s",
                reply->body);
}

static void end_changes(struct client *client, enum outcome outcome)
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
    sim_require(reply->status == 200 || (reply->status == 503 && (is_signalled() || story.limits)),
                "a change is answered %d: %.300s", reply->status, reply->body);
    /* A change that the drain gives up may have been made. */
    end_changes(client, reply->status == 200 ? DONE : UNKNOWN);
}

static void check_update(const struct reply *reply)
{
    counters.updates += reply->status == 200;
    sim_require(reply->status == 200 || (reply->status == 503 && (is_signalled() || story.limits)),
                "an update is answered %d: %.300s", reply->status, reply->body);
    sim_require(reply->status != 200 || world.in_doubt || strstr(reply->body, "\"applied\":true"),
                "a new update was not applied: %.200s", reply->body);
    if (reply->status == 200) {
        world.done = world.asked;
        world.in_doubt = false;
    }
}

/* ---- conversations --------------------------------------------------------------------------- */

static void start_others(void);

static void end_client(struct client *client)
{
    client->left = 0;
    client->busy = false;
    client->socket = NULL;
    if (client->role == PROBE)
        return;
    if (--world.left == 0 && !world.told) {
        world.told = true;
        sim_on_clients_done();
    }
}

static uint64_t think_ns(void)
{
    return sim_one_in(12) ? sim_below(400 * MS) : sim_below(sim_one_in(3) ? 10 * MS : MS);
}

/* The request is over: the next one follows, on this connection where it is still there. */
static void go_on(struct client *client)
{
    client->busy = false;
    client->number++;
    client->tries = 0;
    if (client->role == PROBE) {
        start_others();
        end_client(client);
    } else if (--client->left == 0) {
        if (client->socket)
            sim_client_finish(client->socket);
        end_client(client);
    } else {
        sim_at(sim.now_ns + think_ns(), client->socket ? ask : begin, client);
    }
}

/* It was not answered, and may be asked again. */
static void try_again(struct client *client)
{
    client->busy = false;
    client->socket = NULL;
    client->number++;
    client->tries++;
    if (client->tries > 20 && client->role != PROBE) {
        end_client(client);
        return;
    }
    sim_at(sim.now_ns + sim_below(5 * MS), begin, client);
}

static void on_reply(struct client *client, const struct reply *reply)
{
    client->sent_before += client->request.count;
    sim_note("reply", (uint64_t)reply->status, reply->body_bytes);
    if (reply->closes) {
        sim_client_finish(client->socket);
        client->socket = NULL;
    }
    if (client->role == PROBE) {
        if (reply->status == 200) {
            world.ready = true;
            client->left = 1;
            go_on(client);
        } else {
            sim_require(reply->status == 503, "readiness is answered %d", reply->status);
            try_again(client);
        }
        return;
    }
    if (client->role == READER)
        check_infer(client, reply);
    else if (client->role == CONTROLLER)
        check_control(client, reply);
    else
        check_update(reply);
    go_on(client);
}

/* The connection has ended without a reply. */
static void on_end(struct client *client, bool reset)
{
    struct sim_socket *socket = client->socket;
    client->socket = NULL;
    if (!reset)
        sim_client_finish(socket);
    if (!client->busy)
        return;
    sim_note("end", reset, client->reply.count);
    sim_require(client->reply.count == 0, "a reply ends after %zu bytes: %.200s",
                client->reply.count, client->reply.at);
    sim_require(sim_closed_before(socket, client->sent_before),
                "a request is lost: its connection is %s", reset ? "reset" : "closed");
    sim_require(is_signalled() || client->on_connection > 1,
                "a connection is closed before its first request");
    if (client->role == CONTROLLER)
        end_changes(client, UNKNOWN);
    try_again(client);
}

static void on_readable(void *context)
{
    struct client *client = context;
    char bytes[65536];
    struct reply reply;
    ssize_t got;
    if (!client->socket)
        return;
    while ((got = sim_client_read(client->socket, bytes, client->reads)) > 0) {
        add(&client->reply, bytes, (size_t)got);
        sim_require(client->busy, "bytes that nobody asked for: %.200s", client->reply.at);
        if (parse_reply(&client->reply, &reply)) {
            on_reply(client, &reply);
            if (!client->socket || !client->busy)
                return;
        }
        if (client->reads < sizeof bytes) { /* it reads slowly */
            sim_at(sim.now_ns + sim_below(MS / 2), on_readable, client);
            return;
        }
    }
    if (got == 0 || got == -2)
        on_end(client, got == -2);
}

struct deadline {
    struct client *client;
    unsigned number;
};

static void on_deadline(void *context)
{
    const struct deadline *deadline = context;
    const struct client *client = deadline->client;
    sim_require(!client->busy || client->number != deadline->number,
                "a request is lost: no reply within %d s; %zu bytes came", (int)(PATIENCE_NS / S),
                client->reply.count);
}

static void set_deadline(struct client *client)
{
    struct deadline *deadline = sim_alloc(sizeof *deadline);
    *deadline = (struct deadline){client, client->number};
    sim_at(sim.now_ns + PATIENCE_NS, on_deadline, deadline);
}

/* A client that has enough of it goes; what it asked for may happen or not. */
static void vanish(void *context)
{
    const struct deadline *deadline = context;
    struct client *client = deadline->client;
    if (!client->busy || client->number != deadline->number || !client->socket)
        return;
    counters.aborted++;
    if (client->manner == RESETS)
        sim_client_reset(client->socket);
    else
        sim_client_finish(client->socket);
    client->socket = NULL;
    client->reply.count = 0;
    if (client->role == CONTROLLER)
        end_changes(client, UNKNOWN);
    world.in_doubt |= client->role == UPDATER;
    if (client->role == UPDATER)
        try_again(client); /* the same update */
    else
        go_on(client);
}

static void send_more(void *context)
{
    const struct deadline *deadline = context;
    struct client *client = deadline->client;
    if (!client->socket || client->number != deadline->number)
        return;
    size_t left = client->request.count - client->sent;
    size_t count = sim_one_in(2) ? left : 1 + sim_below(left);
    sim_client_send(client->socket, client->request.at + client->sent, count);
    client->sent += count;
    if (client->sent < client->request.count)
        sim_at(sim.now_ns + sim_below(sim_one_in(4) ? 3 * MS : MS / 10), send_more, context);
    else
        set_deadline(client);
}

static void ask(void *context)
{
    struct client *client = context;
    struct deadline *now = sim_alloc(sizeof *now);
    if (!client->socket) {
        begin(client);
        return;
    }
    *now = (struct deadline){client, client->number};
    client->busy = true;
    client->on_connection++;
    counters.asked++;
    make_request(client);
    client->manner = client->role == PROBE || !sim_one_in(8) ? PATIENT
                     : sim_one_in(2)                         ? RESETS
                                                             : FINISHES;
    send_more(now);
    if (client->manner != PATIENT)
        sim_at(sim.now_ns + sim_below(sim_one_in(3) ? 20 * MS : MS), vanish, now);
}

static void begin(void *context)
{
    struct client *client = context;
    bool dropped;
    client->sent_before = 0;
    client->on_connection = 0;
    client->reads = sim_one_in(4) ? 1 + sim_below(500) : 65536;
    client->socket = sim_connect(client->port, client->address, on_readable, client, &dropped);
    if (client->socket) {
        ask(client);
    } else if (dropped) {
        sim_at(sim.now_ns + S, begin, client);
    } else if (!is_signalled()) {
        sim_require(!world.ready, "a connection is refused");
        sim_at(sim.now_ns + MS, begin, client);
    } else {
        end_client(client);
    }
}

static struct client *make_client(enum role role, uint32_t address)
{
    struct client *client = sim_alloc(sizeof *client);
    client->role = role;
    client->address = 0x0A000001 + address;
    client->port = role == READER || role == PROBE ? PORT : ADMIN_PORT;
    client->left = 1 + (unsigned)sim_below(role == READER ? 5 : 8);
    return client;
}

static void start_client(enum role role, uint32_t address)
{
    struct client *client = make_client(role, address);
    sim_at(sim.now_ns + think_ns(), begin, client);
}

/* The server is ready. */
static void start_others(void)
{
    sim_on_ready();
    world.left = story.clients + story.controls + story.updates;
    for (size_t i = 0; i < story.clients; i++)
        start_client(READER, (uint32_t)sim_below(8));
    if (story.controls)
        start_client(CONTROLLER, 100);
    if (story.updates)
        start_client(UPDATER, 101);
}

void sim_clients_begin(void)
{
    memset(&world, 0, sizeof world);
    world.seed = sim_random();
    sim_at(0, begin, make_client(PROBE, 200));
}

size_t sim_clients_left(void)
{
    return world.left;
}
