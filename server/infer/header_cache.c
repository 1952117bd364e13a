/* JSON headers that were decoded before; see header_cache.h. */
#include "header_cache.h"

#include <stdlib.h>
#include <string.h>

/* Longer JSON headers are decoded every time. */
#define MAX_HEADER_BYTES 8192

/* What decoding one of them may take. */
#define ARENA_BYTES (256 << 10)

struct bag_cached_header {
    size_t header_bytes, body_bytes;
    struct bag_arena arena; /* of `request` */
    struct bag_v2_request request;
    char header[];
};

/* Any mixing will do: a wrong slot costs a decode and nothing else. */
static uint64_t hash(const char *header, size_t bytes)
{
    uint64_t sum = bytes * UINT64_C(0x9E3779B97F4A7C15), word;
    for (; bytes >= sizeof word; header += sizeof word, bytes -= sizeof word) {
        memcpy(&word, header, sizeof word);
        sum = (sum ^ word) * UINT64_C(0xFF51AFD7ED558CCD);
        sum ^= sum >> 32;
    }
    word = 0;
    memcpy(&word, header, bytes);
    sum = (sum ^ word) * UINT64_C(0xC4CEB9FE1A85EC53);
    return sum ^ sum >> 32;
}

static void free_header(struct bag_cached_header *header)
{
    if (header)
        bag_arena_free(&header->arena);
    free(header);
}

const struct bag_v2_request *bag_header_cache_find(struct bag_header_cache *header_cache,
                                                   const char *body, size_t body_bytes,
                                                   size_t header_bytes)
{
    if (header_bytes > MAX_HEADER_BYTES || header_bytes == body_bytes)
        return NULL;
    struct bag_cached_header *header =
        header_cache->slots[hash(body, header_bytes) % BAG_HEADER_CACHE_SLOTS];
    if (!header || header->header_bytes != header_bytes || header->body_bytes != body_bytes ||
        memcmp(header->header, body, header_bytes) != 0)
        return NULL;
    bag_v2_request_rebind(&header->request, body);
    return &header->request;
}

/* Decodes the body again into memory of the JSON header's own. */
static struct bag_cached_header *make_header(const char *body, size_t body_bytes,
                                             size_t header_bytes)
{
    struct bag_cached_header *header = malloc(sizeof *header + header_bytes);
    struct bag_problem problem;
    if (!header)
        return NULL;
    bag_arena_init(&header->arena, ARENA_BYTES);
    header->header_bytes = header_bytes;
    header->body_bytes = body_bytes;
    memcpy(header->header, body, header_bytes);
    bool ok = bag_v2_request_decode(body, body_bytes, header_bytes, &bag_json_default_limits,
                                    &header->arena, &header->request, &problem);
    for (size_t i = 0; ok && i < header->request.num_inputs; i++)
        ok = header->request.inputs[i].binary;
    if (ok)
        return header;
    free_header(header);
    return NULL;
}

void bag_header_cache_learn(struct bag_header_cache *header_cache, const char *body,
                            size_t body_bytes, size_t header_bytes)
{
    if (header_bytes > MAX_HEADER_BYTES || header_bytes == body_bytes)
        return;
    uint64_t now = hash(body, header_bytes);
    size_t slot = now % BAG_HEADER_CACHE_SLOTS;
    if (header_cache->seen[slot] != now) {
        header_cache->seen[slot] = now;
        return;
    }
    free_header(header_cache->slots[slot]);
    header_cache->slots[slot] = make_header(body, body_bytes, header_bytes);
}

void bag_header_cache_free(struct bag_header_cache *header_cache)
{
    for (size_t i = 0; i < BAG_HEADER_CACHE_SLOTS; i++)
        free_header(header_cache->slots[i]);
    memset(header_cache, 0, sizeof *header_cache);
}
