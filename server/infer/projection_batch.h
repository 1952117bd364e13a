/* The projections of a batch: of each feature the rows that all requests pooled are kept together,
 * and multiplied by its matrix at once.
 *
 * Depends on neither requests nor threads. */
#ifndef BAG_PROJECTION_BATCH_H
#define BAG_PROJECTION_BATCH_H

#include "plan.h"
#include "server/memory/buffers.h"

/* Takes memory for what `count` plans of the model pool before it is projected, and lets their
 * ops write there. NULL without memory; otherwise bag_projection_batch_end is due. */
void *bag_projection_batch_begin(struct bag_plan *const *plans, size_t count,
                                 const struct bag_model *model, struct bag_buffers *buffers);

/* When all is pooled: projects it into the ops' targets, and gives the memory back. */
void bag_projection_batch_end(struct bag_plan *const *plans, size_t count,
                              const struct bag_model *model, void *memory);

#endif
