/* JSON headers that were decoded before.
 *
 * A client sends nearly the same JSON header in front of its binary tensors again and again. What
 * it decodes to is kept as a template (v2_template.h), which reads others like it. JSON headers
 * with JSON data are never kept.
 *
 * One for each loop; only its thread uses it. */
#ifndef BAG_HEADER_CACHE_H
#define BAG_HEADER_CACHE_H

#include "proto/v2_template.h"

#define BAG_HEADER_CACHE_SLOTS 16

struct bag_header_cache {
    struct bag_v2_template *slots[BAG_HEADER_CACHE_SLOTS]; /* owned; the last used one first */
    unsigned misses;                                       /* that could have been hits */
};

/* The decoded request of a body whose JSON header is like a known one; NULL otherwise. It may be
 * used until the next call. */
const struct bag_v2_request *bag_header_cache_find(struct bag_header_cache *cache, const char *body,
                                                   size_t body_bytes, size_t header_bytes);

/* Told of a body that was not found and then decoded. Every 17th is learned: to learn takes as long
 * as to decode, which pays where the like comes often, and costs little where it never does. */
void bag_header_cache_learn(struct bag_header_cache *cache, const char *body, size_t body_bytes,
                            size_t header_bytes);

void bag_header_cache_free(struct bag_header_cache *cache);

#endif
