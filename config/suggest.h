/* "Did you mean ...?": the candidate nearest to what was written.
 *
 * Offer the candidates one after the other; nothing is allocated, and a candidate may be gone after
 * its offer. */
#ifndef BAG_SUGGEST_H
#define BAG_SUGGEST_H

#include <stddef.h>

struct bag_suggestion {
    const char *written; /* borrowed */
    char nearest[64];    /* "" before the first offer; the first one among equals */
    size_t distance;     /* inserted, removed, replaced and swapped characters between the two;
                            1 where the candidate begins with what was written */
};

void bag_suggest_offer(struct bag_suggestion *suggestion, const char *candidate);

#endif
