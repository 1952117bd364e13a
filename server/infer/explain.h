/* What became of the bags of a plan, for a client that asks for it.
 *
 * Must not know: replies. */
#ifndef BAG_EXPLAIN_H
#define BAG_EXPLAIN_H

#include "plan.h"

/* The most bytes that bag_explain takes; SIZE_MAX where they cannot be counted. */
size_t bag_explain_bound(const struct bag_plan *plan, const struct bag_model *model);

/* A JSON array of one object for each feature that is pooled, as bag_v2_explain writes it, in
 * `text`, which has that room; returns its end. */
char *bag_explain(const struct bag_plan *plan, const struct bag_model *model, char *text);

#endif
