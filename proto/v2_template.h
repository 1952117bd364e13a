/* JSON headers that were decoded before, and others like them.
 *
 * What a client sends in front of its binary tensors differs from one request to the next in a few
 * places at most: the numbers of "shape" and "binary_data_size", and the "id". A template is a
 * decoded header in which these are open: a header that fits is read at those places alone. */
#ifndef BAG_V2_TEMPLATE_H
#define BAG_V2_TEMPLATE_H

#include "v2_request.h"

struct bag_v2_template;

/* Decodes the body again, into memory of the template's own. NULL where it cannot be one: a tensor
 * is JSON or BYTES, there is something to warn of, something is written with a backslash or a
 * fraction, it takes too much memory, or bag_v2_request_decode rejects the body. */
struct bag_v2_template *bag_v2_template_make(const char *body, size_t body_bytes,
                                             size_t header_bytes);

/* What bag_v2_request_decode makes of a body (arguments as there), valid until the next call; NULL
 * where the header does not fit, or would be rejected. */
const struct bag_v2_request *bag_v2_template_match(struct bag_v2_template *template,
                                                   const char *body, size_t body_bytes,
                                                   size_t header_bytes);

/* NULL is ignored. */
void bag_v2_template_free(struct bag_v2_template *template);

/* ---- the headers of a loop ------------------------------------------------------------------- */

/* A client sends nearly the same JSON header in front of its binary tensors again and again. What
 * it decodes to is kept as a template, which reads others like it. JSON headers with JSON data are
 * never kept. One cache for each loop; only its thread uses it. */
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
