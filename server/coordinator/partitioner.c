/* Partitioners, and the outputs that replies must have; see partitioner.h. */
#include "partitioner.h"

#include "kernels/partial.h"
#include "kernels/rowformat.h"

struct bag_partitioner bag_partitioner_of(const struct bag_infer *infer, size_t op)
{
    const struct bag_plan *plan = &infer->plan;
    const struct bag_remote *remote = plan->ops[op].memory->remote;
    const bool by_columns = remote->part.by == BAG_PART_COLUMNS;
    const bool pools = plan->ops[op].args.reduction != BAG_NONE;
    return (struct bag_partitioner){.op = &plan->ops[op],
                                    .args = &plan->ops[op].args,
                                    .remote = remote,
                                    .first_bag = plan->ops[op].first_bag,
                                    .by_columns = by_columns,
                                    .lists_bags = !by_columns || !pools,
                                    .explains = plan->explains && plan->ops[op].args.keyed};
}

/* Adds an output of `num_bags` rows, each of `rows` (which may be 0) times `words` elements, or of
 * `words` elements if it has no rows. A dimension of one word is left out. */
static void add_output(struct bag_fanout_form *form, const char *name, enum bag_dtype dtype,
                       size_t num_bags, bool has_rows, size_t rows, size_t words)
{
    struct bag_v2_reply_output *output = &form->outputs[form->num_outputs++];
    output->name = name;
    output->dtype = dtype;
    output->binary = true;
    output->row_format = BAG_ROWS_PLAIN;
    output->count = num_bags * (has_rows ? rows : 1) * words;
    output->rank = 1;
    output->shape[0] = (int64_t)num_bags;
    if (has_rows)
        output->shape[output->rank++] = (int64_t)rows;
    if (words > 1)
        output->shape[output->rank++] = (int64_t)words;
}

struct bag_fanout_form bag_fanout_form(const struct bag_partitioner *partitioner,
                                       const struct bag_fanout_call *call)
{
    const struct bag_pool_args *args = partitioner->args;
    const struct bag_partial_form partial = bag_partial_form(args->table.dtype, args->reduction);
    const size_t num_bags = call->num_bags + call->asks_default;
    struct bag_fanout_form form BAG_UNSET;
    form.num_outputs = 0;
    const enum bag_row_format format = partitioner->op->row_format;
    const size_t columns = partitioner->by_columns
                               ? bag_partitioner_first_column(partitioner, call->shard + 1) -
                                     bag_partitioner_first_column(partitioner, call->shard)
                               : args->table.row_elements;
    if (format != BAG_ROWS_PLAIN) {
        add_output(&form, BAG_EMBEDDINGS, BAG_U8, num_bags, true,
                   bag_encoded_row_bytes(format, columns), 1);
        form.outputs[0].row_format = format;
        form.outputs[0].row_elements = columns;
    } else if (partitioner->by_columns) {
        add_output(&form, BAG_EMBEDDINGS, args->output_dtype, num_bags, true, columns, 1);
    } else {
        add_output(&form, BAG_EMBEDDINGS, partial.sums_dtype, num_bags, true, columns,
                   partial.sum_words);
    }
    if (partitioner->by_columns)
        return form;
    add_output(&form, "counts", BAG_I64, num_bags, false, 0, 1);
    if (args->weights)
        add_output(&form, "weight_sums", partial.weights_dtype, num_bags, false, 0,
                   partial.weight_words);
    return form;
}
