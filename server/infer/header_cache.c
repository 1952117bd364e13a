/* JSON headers that were decoded before; see header_cache.h. */
#include "header_cache.h"

/* Longer JSON headers are decoded every time. */
#define MAX_HEADER_BYTES 8192

/* A prime: of clients that take turns each is learned. */
#define LEARNED_MISSES 17

/* Puts a template in front; those up to position `end` move back. */
static void put_first(struct bag_header_cache *cache, struct bag_v2_template *first, size_t end)
{
    memmove(cache->slots + 1, cache->slots, end * sizeof *cache->slots);
    cache->slots[0] = first;
}

static bool is_eligible(size_t body_bytes, size_t header_bytes)
{
    return header_bytes <= MAX_HEADER_BYTES && header_bytes < body_bytes;
}

const struct bag_v2_request *bag_header_cache_find(struct bag_header_cache *cache, const char *body,
                                                   size_t body_bytes, size_t header_bytes)
{
    if (!is_eligible(body_bytes, header_bytes))
        return NULL;
    for (size_t i = 0; i < BAG_HEADER_CACHE_SLOTS && cache->slots[i]; i++) {
        const struct bag_v2_request *request =
            bag_v2_template_match(cache->slots[i], body, body_bytes, header_bytes);
        if (!request)
            continue;
        if (i)
            put_first(cache, cache->slots[i], i);
        return request;
    }
    return NULL;
}

void bag_header_cache_learn(struct bag_header_cache *cache, const char *body, size_t body_bytes,
                            size_t header_bytes)
{
    if (!is_eligible(body_bytes, header_bytes) || cache->misses++ % LEARNED_MISSES)
        return;
    struct bag_v2_template *learned = bag_v2_template_make(body, body_bytes, header_bytes);
    if (!learned)
        return;
    bag_v2_template_free(cache->slots[BAG_HEADER_CACHE_SLOTS - 1]);
    put_first(cache, learned, BAG_HEADER_CACHE_SLOTS - 1);
}

void bag_header_cache_free(struct bag_header_cache *cache)
{
    for (size_t i = 0; i < BAG_HEADER_CACHE_SLOTS; i++)
        bag_v2_template_free(cache->slots[i]);
    *cache = (struct bag_header_cache){.misses = 0};
}
