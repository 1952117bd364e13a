/* What the clients ask, and the tables that they ask of; see clients.h. */
#include "clients.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const model_names[MODELS] = {"a", "b", "c", "u", "both"};

struct history history;

/* ---- tables ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a + b * UINT64_C(0x9E3779B97F4A7C15)) ^ UINT64_C(0x5DEECE66D);
    z = (z ^ z >> 31) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 29;
}

bool is_updated(uint64_t update, size_t row)
{
    return row == update % ROWS || mix(history.seed + update, row) % 3 == 0;
}

float element(size_t table, unsigned version, uint64_t updates, size_t row, size_t column)
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

/* ---- text ---- */

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
            add_text(binary, &value, sizeof value);
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
    add_text(&client->request, json->at, json->count);
    if (binary->count)
        add_text(&client->request, binary->at, binary->count);
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
    sim_require(history.num_changes[table] < MAX_CHANGES, "too many changes");
    struct change *change = &history.changes[table][history.num_changes[table]++];
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
    uint64_t update = history.done + 1;
    uint16_t rows[ROWS];
    size_t count = 0;
    for (size_t row = 0; row < ROWS; row++) {
        if (is_updated(update, row))
            rows[count++] = (uint16_t)row;
    }
    history.asked = update;
    print(&json, "{\"parameters\":{\"sequence\":%llu},\"inputs\":[", (unsigned long long)update);
    add_tensor(&json, &binary, true, "", "indices", rows, count);
    print(&json, ",{\"name\":\"rows\",\"shape\":[%zu,%d],\"datatype\":\"FP32\",", count, COLUMNS);
    print(&json, "\"parameters\":{\"binary_data_size\":%zu}}]}", count * COLUMNS * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        for (size_t column = 0; column < COLUMNS; column++) {
            float value = element(U, 0, update, rows[i], column);
            add_text(&binary, &value, sizeof value);
        }
    }
    add_head(client, "POST", "/v2/models/u/rows", json.count + binary.count, json.count);
    add_body(client, &json, &binary);
}

void make_request(struct client *client)
{
    client->request.count = client->reply.count = 0;
    client->sent = 0;
    client->asked_ns = sim.now_ns;
    client->first_done = history.done;
    if (client->role == PROBE)
        add_head(client, "GET", "/v2/health/ready", 0, 0);
    else if (client->role == READER)
        make_infer(client);
    else if (client->role == CONTROLLER)
        make_control(client);
    else
        make_update(client);
}
