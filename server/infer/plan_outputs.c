/* Adds the requested outputs to a plan, with their types, shapes and ops.
 *
 * A feature is pooled once for each output that contains it: not at all, once or twice. The end of
 * this file splits a list of ops into ranges. */
#include "kernels/partial.h"
#include "kernels/pool_encode.h"
#include "kernels/rowformat.h"
#include "plan.h"
#include "proto/text.h"

#include <stdio.h>
#include <string.h>

/* The maximum number of outputs of a partial reply for one feature. */
#define PARTIAL_OUTPUTS 3

/* ---- adding to the plan ---------------------------------------------------------------------- */

/* Adds sizes. Returns SIZE_MAX if the sum overflows, which exceeds every limit. */
static size_t add(size_t sum, size_t bytes)
{
    return __builtin_add_overflow(sum, bytes, &sum) ? SIZE_MAX : sum;
}

/* Returns the type of a feature in an output: the request's type or else the feature's own. If the
 * output is JSON and the feature's own type has no JSON form, returns FP32. */
static enum bag_dtype dtype_of(const struct bag_planner *planner, size_t feature, bool binary)
{
    const struct bag_v2_overrides *overrides = &planner->request->overrides;
    enum bag_dtype own = planner->model->features[feature].rules.output_dtype;
    if (overrides->has_output_dtype)
        return overrides->output_dtype;
    return !binary && (own == BAG_F16 || own == BAG_BF16) ? BAG_F32 : own;
}

/* Fills in the name and type of the plan's next output and returns it. */
static struct bag_v2_reply_output *begin_output(struct bag_planner *planner, const char *name,
                                                enum bag_dtype dtype, bool binary)
{
    struct bag_v2_reply_output *output = &planner->plan->outputs[planner->plan->num_outputs];
    output->name = name;
    output->dtype = dtype;
    output->binary = binary;
    output->row_format = BAG_ROWS_PLAIN;
    output->row_elements = 0;
    output->data = NULL;
    return output;
}

/* Adds the output, whose shape is now set, to the plan. Returns false and sets the problem if the
 * results exceed the limit or the output has no JSON form. */
static bool end_output(struct bag_planner *planner, struct bag_v2_reply_output *output,
                       size_t result_bytes)
{
    struct bag_plan *plan = planner->plan;
    plan->num_outputs++;
    plan->binary &= output->binary;
    plan->result_bytes = add(plan->result_bytes, result_bytes);
    if (output->binary)
        plan->binary_bytes = add(plan->binary_bytes, result_bytes);
    if (plan->result_bytes > planner->limits->max_reply_bytes)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "the results would take more than %zu bytes, the limit "
                               "(max_reply_bytes)",
                               planner->limits->max_reply_bytes);
    return output->binary || bag_v2_reply_check_json(output->name, output->dtype, planner->problem);
}

/* Returns the plan's next op for feature `i`. The arguments of a table's model are checked in place
 * and need no copy. */
static struct bag_op *begin_op(struct bag_planner *planner, size_t i)
{
    struct bag_plan *plan = planner->plan;
    struct bag_op *op = &plan->ops[plan->num_ops++];
    if (&op->args != &planner->args[i])
        op->args = planner->args[i];
    op->output = plan->num_outputs;
    op->offset = 0;
    op->feature = i;
    op->memory = planner->model->features[i].memory;
    op->kind = bag_op_kind_of(op->memory);
    op->num_prefetched = 0;
    op->row_format = BAG_ROWS_PLAIN;
    op->is_staged = false;
    op->projection = NULL;
    return op;
}

/* Adds an op that writes rows of type `dtype` every `stride` bytes. */
static struct bag_op *add_op(struct bag_planner *planner, size_t i, enum bag_dtype dtype,
                             size_t stride)
{
    struct bag_plan *plan = planner->plan;
    const struct bag_feature *feature = &planner->model->features[i];
    struct bag_op *op = begin_op(planner, i);
    if (op->kind == BAG_OP_REMOTE && planner->keys)
        op->keys = planner->keys[i];
    if (!feature->projection) {
        if (op->args.output_dtype != dtype)
            bag_pool_widen(&op->args);
        op->args.bag_stride = stride;
        return op;
    }
    op->projection = &feature->projection->projection;
    op->dtype = dtype;
    op->stride = stride;
    plan->projects = true;
    plan->project_products += op->args.num_bags * op->projection->rows * op->projection->columns;
    return op;
}

/* Returns the size of a feature's bag in an output of this type. */
static size_t bag_bytes(const struct bag_planner *planner, size_t feature, enum bag_dtype dtype)
{
    return bag_feature_columns(&planner->model->features[feature]) * bag_dtypes[dtype].bytes;
}

/* Returns the size of a feature's results in an output of this type, or SIZE_MAX if it overflows.
 */
static size_t result_bytes_of(const struct bag_planner *planner, size_t feature,
                              enum bag_dtype dtype)
{
    size_t bytes;
    return __builtin_mul_overflow(planner->args[feature].num_bags,
                                  bag_bytes(planner, feature, dtype), &bytes)
               ? SIZE_MAX
               : bytes;
}

/* ---- one feature ----------------------------------------------------------------------------- */

/* Sets the output's dimensions before those of a row: the number of bags, or the shape of the
 * indices if there is no reduction. Returns false and sets the problem if the output has too many
 * dimensions. */
static bool set_first_dimensions(const struct bag_planner *planner, size_t i, uint32_t row_rank,
                                 struct bag_v2_reply_output *output)
{
    const struct bag_pool_args *args = &planner->args[i];
    const struct bag_tensor *indices = planner->kjt ? NULL : planner->inputs[i].tensor[BAG_INDICES];
    output->rank = 1;
    output->shape[0] = (int64_t)args->num_bags;
    if (args->reduction != BAG_NONE || !indices)
        return true;
    if (indices->rank + row_rank > BAG_MAX_RANK)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "'indices' has %u dimensions and a row %u; the output may have %d",
                               (unsigned)indices->rank, (unsigned)row_rank, BAG_MAX_RANK);
    output->rank = indices->rank;
    memcpy(output->shape, indices->shape, indices->rank * sizeof indices->shape[0]);
    return true;
}

/* Stages the FP32 rows of an output that was added and is encoded last. */
static bool stage_rows(struct bag_planner *planner, size_t num_rows, size_t row_elements)
{
    struct bag_plan *plan = planner->plan;
    size_t bytes;
    if (__builtin_mul_overflow(num_rows, row_elements * sizeof(float), &bytes))
        bytes = SIZE_MAX;
    plan->staged_bytes = add(plan->staged_bytes, bytes);
    return plan->staged_bytes <= planner->limits->max_reply_bytes ||
           bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "the results would take more than %zu bytes before they are encoded, "
                           "the limit (max_reply_bytes)",
                           planner->limits->max_reply_bytes);
}

/* Makes the output, whose first dimensions are set, one of encoded rows. */
static bool end_encoded(struct bag_planner *planner, struct bag_v2_reply_output *output,
                        enum bag_row_format format, size_t num_rows, size_t row_elements)
{
    const size_t row_bytes = bag_encoded_row_bytes(format, row_elements);
    output->row_format = format;
    output->row_elements = row_elements;
    output->shape[output->rank++] = (int64_t)row_bytes;
    if (__builtin_mul_overflow(num_rows, row_bytes, &output->count))
        output->count = SIZE_MAX;
    planner->plan->encoded_elements += num_rows * row_elements;
    return end_output(planner, output, output->count);
}

/* Adds the op of an encoded output of one feature. Rows that are stored in the format are copied
 * unchanged, also by shards. Others are encoded as soon as they are pooled, or last if shards pool
 * them, a matrix follows, or they are long. */
static struct bag_op *add_encoded_op(struct bag_planner *planner, size_t i,
                                     enum bag_row_format format)
{
    const struct bag_feature *feature = &planner->model->features[i];
    const size_t columns = bag_feature_columns(feature);
    const bool is_remote = bag_op_kind_of(feature->memory) == BAG_OP_REMOTE;
    const bool is_stored = !feature->projection && bag_pool_gives_stored(&planner->args[i], format);
    struct bag_op *op;
    if (is_stored && is_remote) {
        op = add_op(planner, i, planner->args[i].output_dtype,
                    bag_encoded_row_bytes(format, columns));
        op->row_format = format;
    } else if (is_stored) {
        op = begin_op(planner, i);
        bag_pool_copy_stored(&op->args);
    } else if (is_remote || feature->projection || columns > BAG_ENCODE_ELEMENTS) {
        op = add_op(planner, i, BAG_F32, columns * sizeof(float));
        op->is_staged = true;
    } else {
        op = begin_op(planner, i);
        bag_pool_widen(&op->args);
        op->row_format = format;
    }
    return op;
}

/* Adds an output of one feature whose rows are encoded. */
static bool add_encoded(struct bag_planner *planner, size_t i, enum bag_v2_encoding encoding,
                        enum bag_row_format format)
{
    const struct bag_feature *feature = &planner->model->features[i];
    const size_t num_rows = planner->args[i].num_bags;
    struct bag_v2_reply_output *output =
        begin_output(planner, feature->name, BAG_U8, bag_v2_is_binary(planner->request, encoding));
    if (!set_first_dimensions(planner, i, 1, output))
        return false;
    const struct bag_op *op = add_encoded_op(planner, i, format);
    const size_t columns = bag_feature_columns(feature);
    return end_encoded(planner, output, format, num_rows, columns) &&
           (!op->is_staged || stage_rows(planner, num_rows, columns));
}

/* Adds an output of one feature, with its op. */
static bool add_feature(struct bag_planner *planner, size_t i, enum bag_v2_encoding encoding)
{
    const enum bag_row_format format = bag_planner_row_format(planner, i);
    if (format != BAG_ROWS_PLAIN)
        return add_encoded(planner, i, encoding, format);
    const struct bag_feature *feature = &planner->model->features[i];
    const struct bag_table_memory *memory = feature->memory;
    const struct bag_pool_args *args = &planner->args[i];
    const bool binary = bag_v2_is_binary(planner->request, encoding);
    const enum bag_dtype dtype = dtype_of(planner, i, binary);
    struct bag_v2_reply_output *output = begin_output(planner, feature->name, dtype, binary);
    size_t columns = bag_feature_columns(feature);
    const int64_t product_shape[] = {(int64_t)columns};
    const int64_t *row_shape = feature->projection ? product_shape : &memory->shape[1];
    uint32_t row_rank = feature->projection ? 1 : memory->rank - 1;
    if (!set_first_dimensions(planner, i, row_rank, output))
        return false;
    memcpy(&output->shape[output->rank], row_shape, row_rank * sizeof *row_shape);
    output->rank += row_rank;
    output->count = args->num_bags * columns;
    add_op(planner, i, dtype, bag_bytes(planner, i, dtype));
    return end_output(planner, output, result_bytes_of(planner, i, dtype));
}

/* ---- a part's answer about one feature ------------------------------------------------------- */

/* Adds "counts" or "weight_sums" as an output after the sums. Its name is prefixed with the
 * feature's name in a collection. */
static bool add_beside(struct bag_planner *planner, size_t i, const char *what,
                       enum bag_dtype dtype, size_t words, bool binary)
{
    const char *feature = planner->model->features[i].name, *name = what;
    const size_t num_bags = planner->args[i].num_bags;
    if (bag_model_is_collection(planner->model)) {
        size_t bytes = strlen(feature) + 1 + strlen(what) + 1;
        char *joined = bag_arena_alloc(planner->arena, bytes);
        if (!joined)
            return bag_planner_no_memory(planner);
        snprintf(joined, bytes, "%s.%s", feature, what);
        name = joined;
    }
    struct bag_v2_reply_output *output = begin_output(planner, name, dtype, binary);
    output->rank = 1 + (words > 1);
    output->shape[0] = (int64_t)num_bags;
    output->shape[1] = (int64_t)words;
    output->count = num_bags * words;
    return end_output(planner, output, output->count * bag_dtypes[dtype].bytes);
}

/* Adds the output of a partial reply that has the rows as they are stored. */
static bool add_stored(struct bag_planner *planner, struct bag_op *op, enum bag_row_format format,
                       bool binary)
{
    const struct bag_feature *feature = &planner->model->features[op->feature];
    struct bag_v2_reply_output *output = begin_output(planner, feature->name, BAG_U8, binary);
    output->rank = 1;
    output->shape[0] = (int64_t)op->args.num_bags;
    const size_t row_elements = op->args.table.row_elements;
    bag_pool_copy_stored(&op->args);
    return end_encoded(planner, output, format, op->args.num_bags, row_elements);
}

/* Adds the outputs of a partial reply: sums, counts and, with weights, the sums of weights. */
static bool add_partial(struct bag_planner *planner, size_t i, enum bag_v2_encoding encoding)
{
    const struct bag_feature *feature = &planner->model->features[i];
    const struct bag_table_memory *memory = feature->memory;
    const bool binary = bag_v2_is_binary(planner->request, encoding);
    struct bag_op *op = begin_op(planner, i);
    const struct bag_partial_form form = bag_partial_form(op->args.table.dtype, op->args.reduction);
    bag_pool_make_partial(&op->args);
    const enum bag_row_format format = bag_planner_row_format(planner, i);
    if (format != BAG_ROWS_PLAIN)
        return add_stored(planner, op, format, binary) &&
               add_beside(planner, i, "counts", BAG_I64, 1, binary);
    struct bag_v2_reply_output *output =
        begin_output(planner, feature->name, form.sums_dtype, binary);
    output->rank = form.sum_words > 1 ? 3 : memory->rank;
    output->shape[0] = (int64_t)op->args.num_bags;
    memcpy(&output->shape[1], &memory->shape[1], (memory->rank - 1) * sizeof memory->shape[0]);
    if (form.sum_words > 1) {
        output->shape[1] = (int64_t)op->args.table.row_elements;
        output->shape[2] = (int64_t)form.sum_words;
    }
    output->count = op->args.result_bytes / bag_dtypes[form.sums_dtype].bytes;
    return end_output(planner, output, op->args.result_bytes) &&
           add_beside(planner, i, "counts", BAG_I64, 1, binary) &&
           (!op->args.weights ||
            add_beside(planner, i, "weight_sums", form.weights_dtype, form.weight_words, binary));
}

/* ---- all features side by side --------------------------------------------------------------- */

/* Checks that feature `i` can be placed beside feature 0 in one output. */
static bool check_beside(const struct bag_planner *planner, size_t i, bool binary)
{
    const struct bag_pool_args *args = &planner->args[i], *first = &planner->args[0];
    const char *name = planner->model->features[i].name;
    const char *first_name = planner->model->features[0].name;
    if (!bag_planner_has(planner, i))
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "output '" BAG_EMBEDDINGS "' holds all features side by side, and "
                               "the inputs of '%s' are missing",
                               name);
    if (args->reduction == BAG_NONE)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "output '" BAG_EMBEDDINGS "' needs bags of every feature, and '%s' "
                               "has reduction none: ask for the features",
                               name);
    if (args->num_bags != first->num_bags)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "output '" BAG_EMBEDDINGS "' needs as many bags of every feature; "
                               "'%s' has %zu, '%s' has %zu",
                               first_name, first->num_bags, name, args->num_bags);
    const enum bag_row_format format = bag_planner_row_format(planner, i);
    if (format != bag_planner_row_format(planner, 0))
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "output '" BAG_EMBEDDINGS "' needs one row format; '%s' has %s, "
                               "'%s' has %s: set parameters.output_row_format",
                               first_name, bag_row_format_names[bag_planner_row_format(planner, 0)],
                               name, bag_row_format_names[format]);
    if (format == BAG_ROWS_PLAIN && dtype_of(planner, i, binary) != dtype_of(planner, 0, binary))
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "output '" BAG_EMBEDDINGS "' needs one type; '%s' makes %s, '%s' "
                               "makes %s: set parameters.output_datatype",
                               first_name, bag_dtypes[dtype_of(planner, 0, binary)].name, name,
                               bag_dtypes[dtype_of(planner, i, binary)].name);
    return true;
}

/* Adds the output that holds all features side by side, with an op for each. Checks all features
 * before it adds anything. */
static bool add_all(struct bag_planner *planner, enum bag_v2_encoding encoding)
{
    const struct bag_model *model = planner->model;
    const bool binary = bag_v2_is_binary(planner->request, encoding);
    const enum bag_row_format format = bag_planner_row_format(planner, 0);
    const bool is_plain = format == BAG_ROWS_PLAIN;
    const enum bag_dtype dtype = is_plain ? dtype_of(planner, 0, binary) : BAG_F32;
    const size_t num_bags = planner->args[0].num_bags;
    size_t stride = 0, offset = 0, result_bytes = 0;
    for (size_t i = 0; i < model->num_features; i++) {
        if (!check_beside(planner, i, binary))
            return false;
        stride += bag_bytes(planner, i, dtype);
        result_bytes = add(result_bytes, result_bytes_of(planner, i, dtype));
    }
    for (size_t i = 0; i < model->num_features; i++) {
        struct bag_op *op = add_op(planner, i, dtype, stride);
        op->offset = offset;
        op->is_staged = !is_plain;
        offset += bag_bytes(planner, i, dtype);
    }
    struct bag_v2_reply_output *output =
        begin_output(planner, BAG_EMBEDDINGS, is_plain ? dtype : BAG_U8, binary);
    size_t columns = stride / bag_dtypes[dtype].bytes;
    output->rank = 1;
    output->shape[0] = (int64_t)num_bags;
    if (!is_plain)
        return end_encoded(planner, output, format, num_bags, columns) &&
               stage_rows(planner, num_bags, columns);
    output->rank = 2;
    output->shape[1] = (int64_t)columns;
    output->count = num_bags * columns;
    return end_output(planner, output, result_bytes);
}

/* ---- what was asked for ---------------------------------------------------------------------- */

/* Returns whether the name is that of the output with all features side by side. */
static bool is_concatenation(const struct bag_planner *planner, struct bag_text name)
{
    return bag_model_is_collection(planner->model) && bag_text_is(name, BAG_EMBEDDINGS);
}

/* Sets the problem of an unknown output, with the nearest name. Returns false. */
static bool reject_output(const struct bag_planner *planner, struct bag_text name)
{
    struct bag_quoted quoted = bag_quote(name.data, name.bytes);
    struct bag_suggestion suggestion = {.written = quoted.text};
    if (!bag_model_is_collection(planner->model))
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "output '%s' is unknown; this model makes '" BAG_EMBEDDINGS "'",
                               quoted.text);
    bag_suggest_offer(&suggestion, BAG_EMBEDDINGS);
    for (size_t i = 0; i < planner->model->num_features; i++)
        bag_suggest_offer(&suggestion, planner->model->features[i].name);
    return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "output '%s' is unknown; this model makes one of each feature's name "
                           "and '" BAG_EMBEDDINGS "'%s",
                           quoted.text, bag_suggestion_question(&suggestion, "'").text);
}

/* Returns the number of ops that the output needs. Returns 0 and sets the problem if the output is
 * unknown or cannot be made. */
static size_t ops_of(const struct bag_planner *planner, struct bag_text name)
{
    if (is_concatenation(planner, name) && planner->plan->partial)
        return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                               "output '" BAG_EMBEDDINGS "' cannot be combined with parameter "
                               "partial: ask for the features");
    if (is_concatenation(planner, name))
        return planner->model->num_features;
    const struct bag_feature *feature = bag_model_feature(planner->model, name.data, name.bytes);
    if (!feature)
        return reject_output(planner, name);
    if (!bag_model_is_collection(planner->model) ||
        bag_planner_has(planner, (size_t)(feature - planner->model->features)))
        return 1;
    return bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "output '%s' is asked for, but the inputs of that feature are missing: "
                           "send '%s.indices' and '%s.offsets'",
                           feature->name, feature->name, feature->name);
}

/* Counts the outputs and ops that the request asks for. */
static bool count_asked(const struct bag_planner *planner, size_t *outputs, size_t *ops)
{
    *outputs = planner->request->num_outputs;
    *ops = 0;
    for (size_t i = 0; i < *outputs; i++) {
        size_t needed = ops_of(planner, planner->request->outputs[i].name);
        if (!needed)
            return false;
        *ops += needed;
    }
    return true;
}

/* Counts the outputs and ops of a request without "outputs": one of each for every feature that has
 * inputs. */
static bool count_all(const struct bag_planner *planner, size_t *outputs, size_t *ops)
{
    size_t count = 0;
    for (size_t i = 0; i < planner->model->num_features; i++)
        count += bag_planner_has(planner, i);
    *outputs = *ops = count;
    return count ||
           bag_problem_set(planner->problem, BAG_ERROR_BAD_REQUEST,
                           "there are no inputs: send 'values' with 'lengths' or "
                           "'offsets', or those of single features, as '%s.indices' and "
                           "'%s.offsets'",
                           planner->model->features[0].name, planner->model->features[0].name);
}

/* Allocates the outputs and ops. The model of a table needs one of each, which the plan has. */
static bool take_memory(struct bag_planner *planner, size_t outputs, size_t ops)
{
    struct bag_plan *plan = planner->plan;
    plan->outputs = &plan->one_output;
    plan->ops = &plan->one_op;
    if (bag_model_is_collection(planner->model))
        plan->ops = bag_arena_array(planner->arena, ops, sizeof *plan->ops);
    if (bag_model_is_collection(planner->model) || plan->partial)
        plan->outputs =
            bag_arena_array(planner->arena, plan->partial ? outputs * PARTIAL_OUTPUTS : outputs,
                            sizeof *plan->outputs);
    return (plan->outputs && plan->ops) || bag_planner_no_memory(planner);
}

static bool add_output(struct bag_planner *planner, size_t feature, enum bag_v2_encoding encoding)
{
    return (planner->plan->partial ? add_partial : add_feature)(planner, feature, encoding);
}

/* Adds an output that the request asks for. Its name was checked by ops_of(). */
static bool add_asked(struct bag_planner *planner, const struct bag_v2_output *asked)
{
    if (is_concatenation(planner, asked->name))
        return add_all(planner, asked->encoding);
    const struct bag_feature *feature =
        bag_model_feature(planner->model, asked->name.data, asked->name.bytes);
    return add_output(planner, (size_t)(feature - planner->model->features), asked->encoding);
}

bool bag_planner_make_outputs(struct bag_planner *planner)
{
    const struct bag_v2_request *request = planner->request;
    struct bag_plan *plan = planner->plan;
    size_t outputs, ops;
    plan->num_outputs = plan->num_ops = plan->result_bytes = plan->binary_bytes = 0;
    plan->staged_bytes = 0;
    plan->encoded_elements = 0;
    plan->project_products = 0;
    plan->projects = false;
    plan->binary = true;
    if (!(request->num_outputs ? count_asked : count_all)(planner, &outputs, &ops) ||
        !take_memory(planner, outputs, ops))
        return false;
    for (size_t i = 0; i < request->num_outputs; i++) {
        if (!add_asked(planner, &request->outputs[i]))
            return false;
    }
    for (size_t i = 0; !request->num_outputs && i < planner->model->num_features; i++) {
        if (bag_planner_has(planner, i) && !add_output(planner, i, BAG_V2_DEFAULT))
            return false;
    }
    return true;
}

/* ---- the list of ops ------------------------------------------------------------------------- */

/* Columns are split at multiples of this number, which is a cache line of FP32 elements. */
#define COLUMN_STEP 16

size_t bag_column_steps(size_t columns)
{
    return (columns + COLUMN_STEP - 1) / COLUMN_STEP;
}

struct bag_split bag_split_all(size_t num_ops)
{
    return (struct bag_split){.end_op = num_ops, .num_column_splits = 1};
}

struct bag_range bag_split_range(const struct bag_split *split, const struct bag_pool_args *args,
                                 size_t op)
{
    struct bag_range range = bag_range_all(args);
    if (split->num_column_splits > 1) {
        size_t steps = bag_column_steps(range.end_column);
        size_t first = steps * split->column_split / split->num_column_splits * COLUMN_STEP;
        size_t end = steps * (split->column_split + 1) / split->num_column_splits * COLUMN_STEP;
        range.first_column = first;
        range.end_column = end < range.end_column ? end : range.end_column;
    }
    if (op == split->first_op)
        range.first_bag = split->first_bag;
    if (op == split->end_op)
        range.end_bag = split->end_bag;
    return range;
}

struct bag_ops_work bag_ops_count_work(const struct bag_op *ops, size_t count)
{
    struct bag_ops_work work = {0};
    for (size_t i = 0; i < count; i++) {
        const struct bag_pool_args *args = &ops[i].args;
        work.bags += args->num_bags;
        work.rows += args->indices.count;
        work.bytes += args->indices.count * bag_row_bytes(&args->table);
        work.unsorted += args->unsorted ? args->indices.count : 0;
    }
    return work;
}

/* Counts the bags of an op without an entry, which get the default row. */
static size_t count_default_bags(const struct bag_pool_args *args)
{
    size_t count = 0, before = 0;
    if (args->default_row < 0)
        return 0;
    for (size_t bag = 0; bag < args->num_bags; bag++) {
        size_t entries = bag_pool_entries_before(args, bag + 1);
        count += entries == before;
        before = entries;
    }
    return count;
}

size_t bag_ops_default_bags(const struct bag_op *ops, size_t count)
{
    size_t bags = 0;
    for (size_t i = 0; i < count; i++)
        bags += count_default_bags(&ops[i].args);
    return bags;
}
