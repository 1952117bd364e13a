/* The first half of a check: which form the inputs make, and whether their types and shapes are
 * right. What stands in the tensors is looked at later.
 *
 * Must not know: elements, except those of scalars. */
#ifndef BAG_POOL_INPUTS_H
#define BAG_POOL_INPUTS_H

#include "pool.h"

/* What every step of a check looks at, and where it leaves its finding. */
struct bag_check {
    const struct bag_table *table;
    const struct bag_rules *rules;
    const struct bag_inputs *inputs;
    struct bag_fault *fault;
};

static inline enum bag_status bag_check_fails(const struct bag_check *check, struct bag_fault fault)
{
    *check->fault = fault;
    return fault.status;
}

/* Finds the form, then the first tensor whose type or shape does not fit it. */
enum bag_status bag_check_inputs(const struct bag_check *check, enum bag_form *form);

/* Whether the weights, if any, fit the reduction, the table and the indices. */
enum bag_status bag_check_weights(const struct bag_check *check);

#endif
