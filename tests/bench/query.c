/* See query.h. The random numbers are SplitMix64: a counter, well mixed. */
#include "query.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits of an id, with a comma. */
#define ID_TEXT_BYTES 21

#define HEAD_BYTES 1024

uint64_t bench_random(uint64_t *state)
{
    uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

double bench_random_unit(uint64_t *state)
{
    return (double)(bench_random(state) >> 11) * 0x1p-53;
}

void bench_query_ids(const struct bench_query *query, uint64_t *state, int64_t *ids)
{
    size_t count = (size_t)query->bags * query->ids_per_bag;
    for (size_t i = 0; i < count; i++)
        ids[i] = (int64_t)(((unsigned __int128)bench_random(state) * (uint64_t)query->rows) >> 64);
}

void bench_query_offsets(const struct bench_query *query, int64_t *offsets)
{
    for (unsigned bag = 0; bag < query->bags; bag++)
        offsets[bag] = (int64_t)bag * query->ids_per_bag;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        fprintf(stderr, "no memory for requests\n");
        exit(1);
    }
    return memory;
}

static char *put_numbers(char *out, const int64_t *numbers, size_t count)
{
    *out++ = '[';
    for (size_t i = 0; i < count; i++)
        out += sprintf(out, i ? ",%lld" : "%lld", (long long)numbers[i]);
    *out++ = ']';
    return out;
}

/* One input tensor of the envelope: its numbers, or how many bytes they take behind it. */
static char *put_input(char *out, const char *name, const int64_t *numbers, size_t count, bool json)
{
    out += sprintf(out, "{\"name\":\"%s\",\"datatype\":\"INT64\",\"shape\":[%zu],", name, count);
    if (!json)
        return out + sprintf(out, "\"parameters\":{\"binary_data_size\":%zu}}", count * 8);
    out = put_numbers(out + sprintf(out, "\"data\":"), numbers, count);
    *out++ = '}';
    return out;
}

static size_t put_body(char *body, const struct bench_query *query, const int64_t *ids,
                       const int64_t *offsets, size_t *json_bytes)
{
    size_t count = (size_t)query->bags * query->ids_per_bag;
    char *out =
        put_input(body + sprintf(body, "{\"inputs\":["), "indices", ids, count, query->json);
    *out++ = ',';
    out = put_input(out, "offsets", offsets, query->bags, query->json);
    out += sprintf(out, query->json ? "]}" : "],\"parameters\":{\"binary_data_output\":true}}");
    *json_bytes = (size_t)(out - body);
    if (query->json)
        return *json_bytes;
    memcpy(out, ids, count * 8);
    memcpy(out + count * 8, offsets, query->bags * 8);
    return *json_bytes + (count + query->bags) * 8;
}

static struct bench_request make_request(const struct bench_query *query, const int64_t *ids,
                                         const int64_t *offsets, unsigned port)
{
    size_t numbers = (size_t)query->bags * query->ids_per_bag + query->bags, json_bytes;
    char *body = allocate(HEAD_BYTES + numbers * ID_TEXT_BYTES);
    size_t body_bytes = put_body(body, query, ids, offsets, &json_bytes);
    char *request = allocate(HEAD_BYTES + body_bytes);
    int head = sprintf(request,
                       "POST /v2/models/%s/infer HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
                       "Content-Length: %zu\r\n",
                       query->model, port, body_bytes);
    if (!query->json)
        head += sprintf(request + head, "Inference-Header-Content-Length: %zu\r\n", json_bytes);
    head += sprintf(request + head, "\r\n");
    memcpy(request + head, body, body_bytes);
    free(body);
    return (struct bench_request){request, (size_t)head + body_bytes};
}

static struct bench_request make_get(const char *path, unsigned port)
{
    char *request = allocate(HEAD_BYTES + strlen(path));
    int count = sprintf(request, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n\r\n", path, port);
    return (struct bench_request){request, (size_t)count};
}

struct bench_request *bench_requests_make(const struct bench_query *query, size_t count,
                                          uint64_t seed, unsigned port)
{
    struct bench_request *requests = allocate(count * sizeof *requests);
    int64_t *ids = allocate(sizeof *ids * ((size_t)query->bags * query->ids_per_bag + 1));
    int64_t *offsets = allocate(sizeof *offsets * (query->bags + 1));
    bench_query_offsets(query, offsets);
    for (size_t i = 0; i < count; i++) {
        bench_query_ids(query, &seed, ids);
        requests[i] = query->get_path ? make_get(query->get_path, port)
                                      : make_request(query, ids, offsets, port);
    }
    free(ids);
    free(offsets);
    return requests;
}
