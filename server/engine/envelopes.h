/* Envelopes that were decoded before.
 *
 * A client sends nearly the same JSON header in front of its binary tensors again and again: names,
 * types and shapes. What it decodes to is kept for as long as the bytes are the same; the tensors
 * themselves are always read from the request. Envelopes with JSON data are never kept.
 *
 * One for each loop; only its thread uses it. */
#ifndef BAG_ENVELOPES_H
#define BAG_ENVELOPES_H

#include "proto/v2_request.h"

#define BAG_ENVELOPE_SLOTS 64

struct bag_envelopes {
    struct bag_envelope *slots[BAG_ENVELOPE_SLOTS]; /* owned; NULL: empty */
    uint64_t seen[BAG_ENVELOPE_SLOTS];              /* hash of the last one that found no slot */
};

/* The decoded request of a body whose envelope is known, bound to this body; NULL otherwise. It may
 * be used until the next call for these envelopes. */
const struct bag_v2_request *bag_envelopes_find(struct bag_envelopes *envelopes, const char *body,
                                                size_t body_bytes, size_t header_bytes);

/* Told of a body that was just decoded; keeps its envelope when it comes a second time. */
void bag_envelopes_learn(struct bag_envelopes *envelopes, const char *body, size_t body_bytes,
                         size_t header_bytes);

void bag_envelopes_free(struct bag_envelopes *envelopes);

#endif
