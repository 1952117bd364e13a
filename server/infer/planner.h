/* A plan in the making. Private to server/infer/plan*.c. */
#ifndef BAG_PLANNER_H
#define BAG_PLANNER_H

#include "plan.h"
#include "proto/kjt.h"

struct bag_planner {
    struct bag_plan *plan;
    const struct bag_model *model;
    const struct bag_v2_request *request;
    const struct bag_infer_limits *limits;
    struct bag_arena *arena;
    struct bag_problem *problem;
    struct bag_inputs *inputs;  /* of each feature; none where the request leaves it out */
    struct bag_pool_args *args; /* of each feature that has inputs */
    struct bag_kjt *kjt;        /* the inputs of all features at once; NULL: `inputs` are theirs */
};

/* Whether the request brought anything for a feature. */
static inline bool bag_planner_has(const struct bag_planner *planner, size_t feature)
{
    bool any = planner->kjt != NULL;
    for (int i = 0; !any && i < BAG_INPUT_COUNT; i++)
        any = planner->inputs[feature].tensor[i] != NULL;
    return any;
}

static inline enum bag_input bag_planner_input(struct bag_text name)
{
    enum bag_input input = 0;
    while (input < BAG_INPUT_COUNT && !bag_text_is(name, bag_input_names[input]))
        input++;
    return input;
}

/* The type of a feature's output: the request's, or its own. */
static inline enum bag_dtype bag_planner_dtype(const struct bag_planner *planner, size_t feature)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    return overrides->has_output_dtype ? overrides->output_dtype
                                       : planner->model->features[feature].rules.output_dtype;
}

/* Fills inputs or kjt from a request for a collection. */
bool bag_planner_match_collection(struct bag_planner *planner);

/* Makes room for the outputs and fills them as the request asks. */
bool bag_planner_make_outputs(struct bag_planner *planner);

#endif
