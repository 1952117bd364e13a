/* Definitions that the steps of a check share. Private to kernels/pool_check.c and
 * pool_inputs.c. */
#pragma once

#include "pool.h"

/* The arguments of every step of a check, and the fault that a step sets. */
struct bag_check {
    const struct bag_pool_plan *plan;
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

static inline const struct bag_tensor *bag_check_input(const struct bag_check *check,
                                                       enum bag_input which)
{
    return check->inputs->tensor[which];
}

/* Finds the form, then the first tensor whose type or shape does not fit it. */
enum bag_status bag_check_inputs(const struct bag_check *check, enum bag_form *form);

/* Checks that the weights, if any, fit the reduction, the table and the indices. */
enum bag_status bag_check_weights(const struct bag_check *check);
