/* See query.h. The random numbers are SplitMix64: a counter, well mixed. */
#include "query.h"

#include <math.h>
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

size_t bench_query_count(const struct bench_query *query)
{
    size_t count = 0;
    for (size_t f = 0; f < query->num_features; f++)
        count += (size_t)query->bags * query->features[f].ids_per_bag;
    return count;
}

/* By the continuous form of Zipf's law over 1 to rows + 1, whose integral has an inverse. */
static uint64_t zipf_id(double exponent, uint64_t rows, uint64_t *state)
{
    double power = 1 - exponent, unit = bench_random_unit(state), end = (double)rows + 1;
    double rank = exponent == 1 ? pow(end, unit) : pow(1 + unit * (pow(end, power) - 1), 1 / power);
    return rank < end ? (uint64_t)rank - 1 : rows - 1;
}

static uint64_t random_id(const struct bench_query *query, uint64_t rows, uint64_t *state)
{
    if (query->zipf > 0)
        return zipf_id(query->zipf, rows, state);
    return (uint64_t)(((unsigned __int128)bench_random(state) * rows) >> 64);
}

void bench_query_ids(const struct bench_query *query, uint64_t *state, int64_t *ids)
{
    uint64_t first_row = 0;
    for (size_t f = 0; f < query->num_features; f++) {
        const struct bench_feature *feature = &query->features[f];
        uint64_t rows = (uint64_t)feature->rows;
        for (size_t i = 0; i < (size_t)query->bags * feature->ids_per_bag; i++)
            *ids++ = (int64_t)(first_row + random_id(query, rows, state));
        first_row += query->collection ? 0 : rows;
    }
}

void bench_query_bags(const struct bench_query *query, int64_t *bags)
{
    int64_t begin = 0;
    for (size_t f = 0; f < query->num_features; f++) {
        for (unsigned bag = 0; bag < query->bags; bag++) {
            *bags++ = query->collection ? query->features[f].ids_per_bag : begin;
            begin += query->features[f].ids_per_bag;
        }
    }
}

bool bench_query_read_features(struct bench_query *query, const char *text)
{
    query->num_features = 0;
    for (char *end; query->num_features < BENCH_MAX_FEATURES; text = end + 1) {
        struct bench_feature *feature = &query->features[query->num_features++];
        feature->rows = strtoll(text, &end, 10);
        if (*end != ':' || feature->rows < 1)
            return false;
        feature->ids_per_bag = (unsigned)strtoul(end + 1, &end, 10);
        if (*end != ',')
            return !*end;
    }
    return false;
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

/* One input tensor of the JSON header: its numbers, or how many bytes they take behind it. */
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
                       const int64_t *bags, size_t number, size_t *json_bytes)
{
    size_t count = bench_query_count(query), num_bags = query->bags * query->num_features;
    char *out = body + (query->varied ? sprintf(body, "{\"id\":\"%zu\",\"inputs\":[", number)
                                      : sprintf(body, "{\"inputs\":["));
    out = put_input(out, query->collection ? "values" : "indices", ids, count, query->json);
    *out++ = ',';
    out = put_input(out, query->collection ? "lengths" : "offsets", bags, num_bags, query->json);
    out += sprintf(out, query->json ? "]}" : "],\"parameters\":{\"binary_data_output\":true}}");
    *json_bytes = (size_t)(out - body);
    if (query->json)
        return *json_bytes;
    memcpy(out, ids, count * 8);
    memcpy(out + count * 8, bags, num_bags * 8);
    return *json_bytes + (count + num_bags) * 8;
}

static struct bench_request make_request(const struct bench_query *query, const int64_t *ids,
                                         const int64_t *bags, size_t number, unsigned port)
{
    size_t numbers = bench_query_count(query) + query->bags * query->num_features, json_bytes;
    char *body = allocate(HEAD_BYTES + numbers * ID_TEXT_BYTES);
    size_t body_bytes = put_body(body, query, ids, bags, number, &json_bytes);
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

/* A query of the same form with fewer ids, as many in all bags of a feature. */
static struct bench_query vary(const struct bench_query *query, uint64_t *seed)
{
    struct bench_query varied = *query;
    for (size_t f = 0; query->varied && f < query->num_features; f++)
        varied.features[f].ids_per_bag =
            1 + (unsigned)(bench_random(seed) % query->features[f].ids_per_bag);
    return varied;
}

struct bench_request *bench_requests_make(const struct bench_query *query, size_t count,
                                          uint64_t seed, unsigned port)
{
    struct bench_request *requests = allocate(count * sizeof *requests);
    int64_t *ids = allocate(sizeof *ids * (bench_query_count(query) + 1));
    int64_t *bags = allocate(sizeof *bags * (query->bags * query->num_features + 1));
    for (size_t i = 0; i < count; i++) {
        struct bench_query own = vary(query, &seed);
        bench_query_bags(&own, bags);
        bench_query_ids(&own, &seed, ids);
        requests[i] = query->get_path ? make_get(query->get_path, port)
                                      : make_request(&own, ids, bags, i, port);
    }
    free(ids);
    free(bags);
    return requests;
}
