/* Makes the requests of the clients; see clients.h. */
#include "clients.h"

#include "proto/coding.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const model_names[MODELS] = {"a", "b", "c", "u", "k", "both"};

struct history history;

/* ---- tables ---------------------------------------------------------------------------------- */

int64_t key_of(size_t row)
{
    return (int64_t)(row * UINT64_C(0x9E3779B97F4A7C15));
}

float element(size_t table, unsigned version, uint64_t updates, size_t row, size_t column)
{
    float values[COLUMNS] = {(float)version, (float)(row + 1), (float)(table + 1),
                             (float)(16 * version + row)};
    int last = history.streams[table].last[updates][row];
    if (last == ABSENT)
        return 0;
    if (last != AS_LOADED) {
        values[0] = (float)(100 + last);
        values[3] = (float)(1000 + last);
    }
    return values[column];
}

void begin_history(void)
{
    memset(&history, 0, sizeof history);
    for (size_t row = ROWS; row < KEYS; row++)
        history.streams[K].last[0][row] = ABSENT;
}

/* ---- text ------------------------------------------------------------------------------------ */

void add_text(struct text *text, const void *bytes, size_t count)
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
    add_text(text, line, (size_t)count);
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
            feature->id[feature->ids++] = (uint16_t)sim_below(rows_of(table));
    }
    feature->offset[feature->bags] = (uint16_t)feature->ids;
}

static void add_tensor(struct text *json, struct text *binary, bool is_binary, const char *prefix,
                       const char *name, const uint16_t *values, size_t count, bool are_keys)
{
    print(json, "%s{\"name\":\"%s%s\",\"shape\":[%zu],\"datatype\":\"INT64\",",
          json->at[json->count - 1] == '[' ? "" : ",", prefix, name, count);
    if (is_binary)
        print(json, "\"parameters\":{\"binary_data_size\":%zu}}", 8 * count);
    else
        print(json, "\"data\":[");
    for (size_t i = 0; i < count; i++) {
        int64_t value = are_keys ? key_of(values[i]) : values[i];
        if (is_binary)
            add_text(binary, &value, sizeof value);
        else
            print(json, i ? ",%lld" : "%lld", (long long)value);
    }
    if (!is_binary)
        print(json, "]}");
}

/* In chunks of any size; extensions are rejected at the strictest level. */
static void add_chunks(struct text *request, const struct text *body)
{
    for (size_t at = 0, count; at < body->count; at += count) {
        count = 1 + sim_below(sim_one_in(2) ? 20 : body->count);
        if (count > body->count - at)
            count = body->count - at;
        print(request, "%zx\r\n", count);
        add_text(request, body->at + at, count);
        print(request, "\r\n");
    }
    print(request, "0\r\n\r\n");
}

static void add_message(struct client *client, const char *method, const char *path,
                        const struct text *body, size_t json_bytes)
{
    struct text *request = &client->request;
    bool chunked = body->count && MHD_VERSION >= 0x01000000 && sim_one_in(6);
    print(request, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path);
    print(request, "Authorization: Bearer " TOKEN "\r\n");
    if (json_bytes)
        print(request, "Inference-Header-Content-Length: %zu\r\n", json_bytes);
    if (client->coding)
        print(request, "Content-Encoding: %s\r\n", client->coding);
    if (chunked)
        print(request, "Transfer-Encoding: chunked\r\n\r\n");
    else
        print(request, "Content-Length: %zu\r\n\r\n", body->count);
    if (chunked)
        add_chunks(request, body);
    else
        add_text(request, body->at, body->count);
}

/* The JSON, and the tensors behind it. */
static void join(struct text *json, const struct text *binary)
{
    if (binary->count)
        add_text(json, binary->at, binary->count);
}

/* Some bodies are compressed, and some of those are damaged. */
static void compress(struct client *client, struct text *body)
{
    bool is_gzip = sim_one_in(2);
    size_t room = body->count + 128;
    char *packed = sim_alloc(room);
    size_t bytes = bag_deflate(is_gzip ? BAG_CODING_GZIP : BAG_CODING_DEFLATE, body->at,
                               body->count, packed, room);
    sim_require(bytes > 0, "a body cannot be compressed");
    client->coding = is_gzip ? "gzip" : "deflate";
    if (client->model != C && sim_one_in(8)) {
        bytes -= 1 + sim_below(bytes < 40 ? bytes - 1 : 40);
        client->status = 400;
    }
    *body = (struct text){0};
    add_text(body, packed, bytes);
}

static void make_infer(struct client *client)
{
    struct text json = {0}, binary = {0};
    char path[64], prefix[8] = "";
    bool is_binary = sim_one_in(2);
    size_t bags = 1 + sim_below(MAX_BAGS);
    client->model = sim_below(MODELS);
    client->num_features = client->model == BOTH ? 2 : 1;
    client->first_done = client->model == BOTH ? 0 : history.streams[client->model].done;
    print(&json, "{\"id\":\"%u\",\"parameters\":{\"binary_data_output\":%s},\"inputs\":[",
          client->number, sim_one_in(2) ? "true" : "false");
    for (size_t i = 0; i < client->num_features; i++) {
        struct feature *feature = &client->features[i];
        make_feature(feature, client->model == BOTH ? i : client->model, bags);
        if (client->model == BOTH)
            snprintf(prefix, sizeof prefix, "f_%s.", model_names[i]);
        add_tensor(&json, &binary, is_binary, prefix, "indices", feature->id, feature->ids,
                   feature->table == K);
        add_tensor(&json, &binary, is_binary, prefix, "offsets", feature->offset, feature->bags,
                   false);
    }
    print(&json, "]}");
    snprintf(path, sizeof path, "/v2/models/%s/infer", model_names[client->model]);
    size_t json_bytes = json.count;
    join(&json, &binary);
    if (sim_one_in(6))
        compress(client, &json);
    add_message(client, "POST", path, &json, is_binary ? json_bytes : 0);
}

/* Makes a request that does not read rows, or that is wrong. */
static void make_other(struct client *client)
{
    static const struct {
        int status;
        const char *method, *path, *body;
    } others[] = {
        {200, "GET", "/v2/health/live", ""},
        {200, "GET", "/v2/models/a", ""},
        {200, "POST", "/v2/repository/index", "{}"},
        {404, "POST", "/v2/models/nobody/infer", "{}"},
        {404, "GET", "/nowhere", ""},
        {405, "DELETE", "/v2/models/a/infer", ""},
        {400, "POST", "/v2/models/a/infer", "{\"inputs\":["},
        {403, "POST", "/v2/repository/models/a/load", "{}"},
    };
    size_t i = sim_below(sizeof others / sizeof *others + 1);
    struct text body = {0};
    if (i == sizeof others / sizeof *others) {
        client->status = 400;
        client->breaks_http = true;
        print(&client->request, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
        return;
    }
    client->status = others[i].status;
    print(&body, "%s", others[i].body);
    add_message(client, others[i].method, others[i].path, &body, 0);
}

static struct change *note_change(struct client *client, size_t table, unsigned version)
{
    sim_require(history.num_changes[table] < MAX_CHANGES, "too many changes");
    struct change *change = &history.changes[table][history.num_changes[table]++];
    *change = (struct change){version, sim.now_ns, 0, PENDING};
    client->changes[client->num_changes++] = change;
    return change;
}

/* a and b change together, so that the collection over them has one version; the others alone, and
 * they are unloaded, too, also while they are updated. */
static void make_control(struct client *client)
{
    struct text json = {0};
    unsigned version = 1 + (unsigned)sim_below(VERSIONS);
    size_t table = sim_one_in(2) ? A : sim_one_in(2) ? C : sim_one_in(2) ? U : K;
    const char *wait = sim_one_in(6) ? "false" : "true";
    char path[64] = "/v2/repository/load";
    client->num_changes = 0;
    note_change(client, table, version);
    if (table == A) {
        note_change(client, B, version);
        print(&json,
              "{\"models\":[{\"name\":\"a\",\"version\":\"%u\"},{\"name\":\"b\",\"version\":%u}],"
              "\"wait\":%s}",
              version, version, wait);
    } else if (sim_one_in(3)) {
        client->changes[0]->version = 0;
        snprintf(path, sizeof path, "/v2/repository/models/%s/unload", model_names[table]);
    } else {
        snprintf(path, sizeof path, "/v2/repository/models/%s/load", model_names[table]);
        print(&json, "{\"parameters\":{\"version\":\"%u\"},\"wait\":%s}", version, wait);
    }
    add_message(client, "POST", path, &json, 0);
}

/* Chooses the next update, which writes some rows or deletes some keys of the table. */
static void choose_update(struct stream *stream, size_t table)
{
    const int *before = stream->last[stream->done];
    int *after = stream->last[++stream->asked];
    size_t first = sim_below(rows_of(table));
    bool deletes = table == K && before[first] != ABSENT && sim_one_in(3);
    sim_require(stream->asked < MAX_UPDATES, "too many updates");
    for (size_t row = 0; row < rows_of(table); row++) {
        bool is_chosen = row == first || sim_one_in(3);
        after[row] = !is_chosen ? before[row] : deletes ? ABSENT : (int)stream->asked;
    }
}

static void add_rows(struct text *json, struct text *binary, size_t table, uint64_t update,
                     const uint16_t *rows, size_t count)
{
    print(json, ",{\"name\":\"rows\",\"shape\":[%zu,%d],\"datatype\":\"FP32\",", count, COLUMNS);
    print(json, "\"parameters\":{\"binary_data_size\":%zu}}", count * COLUMNS * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        for (size_t column = 0; column < COLUMNS; column++) {
            float value = element(table, 0, update, rows[i], column);
            add_text(binary, &value, sizeof value);
        }
    }
}

/* The one after those that are done, which may have been asked for already. */
static void make_update(struct client *client)
{
    struct text json = {0}, binary = {0};
    size_t table = client->model, count = 0;
    struct stream *stream = &history.streams[table];
    uint16_t rows[KEYS];
    char path[64];
    if (stream->asked == stream->done)
        choose_update(stream, table);
    const int *before = stream->last[stream->done], *after = stream->last[stream->asked];
    for (size_t row = 0; row < rows_of(table); row++) {
        if (after[row] != before[row])
            rows[count++] = (uint16_t)row;
    }
    bool deletes = after[rows[0]] == ABSENT;
    print(&json, "{\"parameters\":{\"sequence\":%llu,\"delete\":%s},\"inputs\":[",
          (unsigned long long)stream->asked, deletes ? "true" : "false");
    add_tensor(&json, &binary, true, "", table == K ? "keys" : "indices", rows, count, table == K);
    if (!deletes)
        add_rows(&json, &binary, table, stream->asked, rows, count);
    print(&json, "]}");
    snprintf(path, sizeof path, "/v2/models/%s/rows", model_names[table]);
    size_t json_bytes = json.count;
    join(&json, &binary);
    add_message(client, "POST", path, &json, json_bytes);
}

/* Adds a PROXY header with the address of the client. */
static void add_proxy_header(struct client *client)
{
    static const unsigned char signature[16] = {0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51,
                                                0x55, 0x49, 0x54, 0x0A, 0x21, 0x11, 0,    12 + 7};
    /* Addresses and ports, and behind them a part that nobody knows. */
    unsigned char rest[12 + 7] = {
        192, 0, 2, (unsigned char)(1 + sim_below(4)), 192, 0, 2, 9, 0, 1, 0, 80, 0xEE, 0, 4};
    add_text(&client->request, signature, sizeof signature);
    add_text(&client->request, rest, sizeof rest);
}

void make_request(struct client *client)
{
    client->request.count = client->reply.count = 0;
    client->sent = 0;
    client->status = 0;
    client->breaks_http = false;
    client->coding = NULL;
    client->asked_ns = sim.now_ns;
    if (story.proxy && client->port == PORT && client->on_connection == 1)
        add_proxy_header(client);
    if (client->role == PROBE)
        add_message(client, "GET", "/v2/health/ready", &(struct text){0}, 0);
    else if (client->role == READER && sim_one_in(10))
        make_other(client);
    else if (client->role == READER)
        make_infer(client);
    else if (client->role == CONTROLLER)
        make_control(client);
    else
        make_update(client);
}
