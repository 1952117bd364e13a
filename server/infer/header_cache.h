/* JSON headers that were decoded before.
 *
 * A client sends nearly the same JSON header in front of its binary tensors again and again: names,
 * types and shapes. What it decodes to is kept for as long as the bytes are the same; the tensors
 * themselves are always read from the request. JSON headers with JSON data are never kept.
 *
 * One for each loop; only its thread uses it. */
#ifndef BAG_HEADER_CACHE_H
#define BAG_HEADER_CACHE_H

#include "proto/v2_request.h"

#define BAG_HEADER_CACHE_SLOTS 64

struct bag_header_cache {
    struct bag_cached_header *slots[BAG_HEADER_CACHE_SLOTS]; /* owned; NULL: empty */
    uint64_t seen[BAG_HEADER_CACHE_SLOTS]; /* hash of the last one that found no slot */
};

/* The decoded request of a body whose JSON header is known, bound to this body; NULL otherwise. It
 * may be used until the next call for these JSON headers. */
const struct bag_v2_request *bag_header_cache_find(struct bag_header_cache *header_cache,
                                                   const char *body, size_t body_bytes,
                                                   size_t header_bytes);

/* Told of a body that was just decoded; keeps its JSON header when it comes a second time. */
void bag_header_cache_learn(struct bag_header_cache *header_cache, const char *body,
                            size_t body_bytes, size_t header_bytes);

void bag_header_cache_free(struct bag_header_cache *header_cache);

#endif
