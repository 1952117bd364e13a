/* What became of the bags of a plan; see explain.h. */
#include "explain.h"

#include "proto/v2_reply.h"

/* Whether an earlier pooling is of the same bags: features may be pooled for two outputs. */
static bool is_repeated(const struct bag_plan *plan, size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (plan->ops[j].feature == plan->ops[i].feature)
            return true;
    }
    return false;
}

size_t bag_explain_bound(const struct bag_plan *plan, const struct bag_model *model)
{
    size_t sum = 2;
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_op *pooling = &plan->ops[i];
        size_t bytes = bag_v2_explain_bound(&pooling->args, model->features[pooling->feature].name);
        if (__builtin_add_overflow(sum, bytes, &sum) || __builtin_add_overflow(sum, 1, &sum))
            return SIZE_MAX;
    }
    return sum;
}

char *bag_explain(const struct bag_plan *plan, const struct bag_model *model, char *text)
{
    char separator = '[';
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_op *pooling = &plan->ops[i];
        if (is_repeated(plan, i))
            continue;
        *text++ = separator;
        text = bag_v2_explain(&pooling->args, model->features[pooling->feature].name, text);
        separator = ',';
    }
    *text++ = ']';
    return text;
}
