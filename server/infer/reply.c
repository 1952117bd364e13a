/* Writes the bytes of a reply; see infer.h. */
#include "infer.h"

#include "kernels/partial.h"
#include "kernels/pool_encode.h"
#include "kernels/rowformat.h"
#include "server/shards/remote.h"

#include <string.h>

/* The number of bags beyond its ids that a request may have regardless of its reply's size. */
#define FREE_BAGS 16384

/* The usual length of an FP32 number in JSON, with its comma. */
#define USUAL_NUMBER_BYTES 12

/* Binary results of at least this size are written with non-temporal stores. They would leave the
 * caches before they are sent. Reading each cache line before writing it then takes longer than
 * reading it again from memory. */
#define STREAMED_BYTES ((size_t)12 << 20)

/* ---- explanations ---------------------------------------------------------------------------- */

/* Returns whether an earlier op pools the same bags. A feature may be pooled for two outputs. */
static bool is_repeated(const struct bag_plan *plan, size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (plan->ops[j].feature == plan->ops[i].feature)
            return true;
    }
    return false;
}

/* Returns the maximum length of the explanation, or SIZE_MAX if it overflows. */
static size_t explain_bound(const struct bag_plan *plan, const struct bag_model *model)
{
    size_t sum = 2;
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_op *op = &plan->ops[i];
        size_t bytes = bag_v2_explain_bound(&op->args, model->features[op->feature].name);
        if (__builtin_add_overflow(sum, bytes, &sum) || __builtin_add_overflow(sum, 1, &sum))
            return SIZE_MAX;
    }
    return sum;
}

/* Writes the explanation as a JSON array, and returns its end. */
static char *explain(const struct bag_plan *plan, const struct bag_model *model, char *text)
{
    char separator = '[';
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_op *op = &plan->ops[i];
        if (is_repeated(plan, i))
            continue;
        *text++ = separator;
        text = bag_v2_explain(&op->args, model->features[op->feature].name, text);
        separator = ',';
    }
    *text++ = ']';
    return text;
}

/* Writes the explanation into its memory and sets its length. */
static void put_explanation(struct bag_infer *infer)
{
    struct bag_infer_scratch *scratch = &infer->scratch;
    char *end = explain(&infer->plan, infer->input.model, scratch->explanation);
    scratch->explanation_bytes = (size_t)(end - scratch->explanation);
}

/* Returns whether the explanation depends on the shards' replies. */
static bool is_explained_later(const struct bag_infer *infer)
{
    return infer->plan.explains && infer->input.model->is_remote;
}

/* Writes the explanation, or blanks of its maximum length if it depends on the shards' replies. */
static bool write_explanation(struct bag_infer *infer)
{
    struct bag_infer_scratch *scratch = &infer->scratch;
    if (!infer->plan.explains)
        return true;
    scratch->explanation = bag_buffers_get(scratch->buffers, scratch->explanation_bytes);
    if (!scratch->explanation)
        return false;
    if (is_explained_later(infer))
        memset(scratch->explanation, ' ', scratch->explanation_bytes);
    else
        put_explanation(infer);
    return true;
}

static void free_explanation(struct bag_infer_scratch *scratch)
{
    bag_buffers_put(scratch->explanation);
    scratch->explanation = NULL;
    scratch->explanation_bytes = 0;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Describes the reply to the functions that print it. */
static struct bag_v2_reply reply_of(const struct bag_infer *infer)
{
    const struct bag_plan *plan = &infer->plan;
    const struct bag_infer_scratch *scratch = &infer->scratch;
    return (struct bag_v2_reply){.model_name = infer->input.model->name,
                                 .model_version = infer->input.model->version,
                                 .id = plan->id,
                                 .outputs = plan->outputs,
                                 .num_outputs = plan->num_outputs,
                                 .explanation = {scratch->explanation, scratch->explanation_bytes},
                                 .warnings = plan->warnings,
                                 .absent = {scratch->absent, scratch->absent_bytes},
                                 .table_versions = plan->table_versions};
}

/* Lists the version of the table of each feature that is pooled, as a JSON object. Returns false
 * and sets *problem without memory. */
static bool list_versions(struct bag_infer *infer, struct bag_problem *problem)
{
    struct bag_plan *plan = &infer->plan;
    const struct bag_model *model = infer->input.model;
    size_t room = 2;
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_feature *feature = &model->features[plan->ops[i].feature];
        room += strlen(feature->name) + strlen(feature->model->version) + 6;
    }
    char *text = bag_arena_alloc(&infer->scratch.arena, room), *end = text, separator = '{';
    if (!text)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_feature *feature = &model->features[plan->ops[i].feature];
        if (is_repeated(plan, i))
            continue;
        *end++ = separator;
        *end++ = '"';
        end = bag_text_put(end, feature->name);
        end = bag_text_put(end, "\":\"");
        end = bag_text_put(end, feature->model->version);
        *end++ = '"';
        separator = ',';
    }
    if (end == text)
        *end++ = '{';
    *end++ = '}';
    plan->table_versions = (struct bag_text){text, (size_t)(end - text)};
    return true;
}

/* Checks the limit of reply bytes. */
static bool check_most(const struct bag_infer *infer, struct bag_problem *problem)
{
    size_t max_bytes = infer->input.limits->max_reply_bytes;
    if (infer->output.bytes <= max_bytes)
        return true;
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "the reply of %zu bags could take %zu bytes%s; the limit "
                           "(max_reply_bytes) is %zu bytes",
                           infer->plan.work.bags, infer->output.bytes,
                           infer->plan.binary ? "" : " as JSON (binary output is smaller)",
                           max_bytes);
}

/* Checks the limit of reply bytes for bags beyond the number of ids, because a small body can ask
 * for many of them. Uses the usual length of numbers rather than the maximum, because few numbers
 * have all of their digits. */
static bool check_ratio(const struct bag_infer *infer, struct bag_problem *problem)
{
    const size_t ratio = infer->input.limits->max_reply_ratio;
    const size_t sent = bag_infer_sent_bytes(infer);
    const size_t bags = infer->plan.work.bags, free_bags = infer->plan.work.rows + FREE_BAGS;
    const size_t beyond = bags > free_bags ? bags - free_bags : 0;
    size_t max_bytes;
    size_t expected = infer->plan.binary_bytes + infer->scratch.explanation_bytes +
                      (size_t)bag_reply_count_printed(infer) * USUAL_NUMBER_BYTES;
    if (beyond == 0 || ratio == 0 || __builtin_mul_overflow(ratio, sent, &max_bytes) ||
        (size_t)((double)expected / (double)bags * (double)beyond) <= max_bytes)
        return true;
    return bag_problem_set(
        problem, BAG_ERROR_BAD_REQUEST,
        "the reply of %zu bags takes about %zu bytes%s, and %zu bags are beyond "
        "the ids and %d more; the request's body%s has %zu bytes, and the limit "
        "(max_reply_ratio) is %zu times as many for those bags",
        bags, expected, infer->plan.binary ? "" : " as JSON (binary output is smaller)", beyond,
        FREE_BAGS, infer->scratch.packed_bytes ? " as it was sent" : "", sent, ratio);
}

/* Returns the space for the addresses of all shards that may be unavailable, each with two quotes
 * and a comma. */
static size_t absent_bytes(const struct bag_model *model)
{
    size_t bytes = 0;
    for (size_t i = 0; i < model->num_features; i++) {
        const struct bag_remote *remote = model->features[i].memory->remote;
        for (size_t j = 0; remote && remote->skips_absent && j < remote->num_shards; j++)
            bytes += strlen(bag_remote_address(remote, j)) + 3;
    }
    return bytes;
}

/* Reserves an empty JSON array of unavailable shards. It is padded with blanks to the length of an
 * array of all of them. */
static bool reserve_absent(struct bag_infer *infer, struct bag_problem *problem)
{
    size_t bytes = infer->input.model->is_remote ? absent_bytes(infer->input.model) : 0;
    char *text = bytes ? bag_arena_alloc(&infer->scratch.arena, bytes + 2) : NULL;
    if (!bytes)
        return true;
    if (!text)
        return bag_problem_no_memory(problem);
    memset(text, ' ', bytes + 2);
    text[0] = '[';
    text[bytes + 1] = ']';
    infer->scratch.absent = text;
    infer->scratch.absent_bytes = bytes + 2;
    return true;
}

/* The header of a binary reply was written already, so it is written again with the addresses. */
void bag_infer_add_absent(struct bag_infer *infer, const char *const *addresses, size_t count)
{
    char *at = infer->scratch.absent + 1;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = strlen(addresses[i]);
        if (i > 0)
            *at++ = ',';
        *at++ = '"';
        memcpy(at, addresses[i], bytes);
        at += bytes;
        *at++ = '"';
    }
    if (infer->plan.binary) {
        struct bag_v2_reply reply = reply_of(infer);
        bag_v2_reply_header(&reply, infer->output.reply);
    }
}

bool bag_reply_bound(struct bag_infer *infer, struct bag_problem *problem)
{
    const struct bag_plan *plan = &infer->plan;
    struct bag_infer_output *output = &infer->output;
    if (!reserve_absent(infer, problem) || (plan->shows_versions && !list_versions(infer, problem)))
        return false;
    infer->scratch.explanation_bytes = plan->explains ? explain_bound(plan, infer->input.model) : 0;
    struct bag_v2_reply reply = reply_of(infer);
    if (__builtin_add_overflow(bag_v2_reply_bound(&reply), plan->binary_bytes, &output->bytes))
        output->bytes = SIZE_MAX;
    return check_most(infer, problem) && check_ratio(infer, problem);
}

/* Returns the size of an output's results. */
static size_t output_bytes(const struct bag_v2_reply_output *output)
{
    return output->count * bag_dtypes[output->dtype].bytes;
}

/* Returns the size of the FP32 rows that an encoded output is made of. */
static size_t staged_bytes(const struct bag_v2_reply_output *output)
{
    size_t row_bytes = (size_t)output->shape[output->rank - 1];
    return row_bytes ? output->count / row_bytes * output->row_elements * sizeof(float) : 0;
}

uint64_t bag_reply_count_printed(const struct bag_infer *infer)
{
    uint64_t numbers = 0;
    for (size_t i = 0; !infer->plan.binary && i < infer->plan.num_outputs; i++)
        numbers += infer->plan.outputs[i].binary ? 0 : infer->plan.outputs[i].count;
    return numbers;
}

size_t bag_reply_count_packed(const struct bag_infer *infer)
{
    bool packs = infer->input.reply_coding != BAG_CODING_IDENTITY &&
                 infer->output.bytes >= infer->input.limits->min_packed_bytes;
    return packs ? infer->output.bytes : 0;
}

/* ---- before the numbers ---------------------------------------------------------------------- */

/* Sets the position of each output in the results, one after the other, and of each op in its
 * output, or among the rows that are encoded last. */
static void place_outputs(struct bag_plan *plan, char *results, char *staged)
{
    char *at = results;
    bool streams = plan->binary && plan->result_bytes >= STREAMED_BYTES;
    for (size_t i = 0; i < plan->num_outputs; i++) {
        plan->outputs[i].data = at;
        at += output_bytes(&plan->outputs[i]);
    }
    for (size_t i = 0; i < plan->num_ops; i++) {
        struct bag_op *op = &plan->ops[i];
        const struct bag_v2_reply_output *output = &plan->outputs[op->output];
        char *place = op->is_staged ? staged : results + ((const char *)output->data - results);
        op->result = op->target = place + op->offset;
        op->args.streams = streams && !op->projection && output->row_format == BAG_ROWS_PLAIN;
        /* The ops of an output follow each other. */
        if (op->is_staged && (i + 1 == plan->num_ops || op[1].output != op->output))
            staged += staged_bytes(output);
    }
}

/* Writes the header of a binary reply and returns the position after it, where the results go. The
 * length of the header does not depend on the results. */
static char *begin_binary(struct bag_infer *infer)
{
    struct bag_infer_output *output = &infer->output;
    struct bag_v2_reply reply = reply_of(infer);
    char *results = bag_v2_reply_header(&reply, output->reply);
    output->header_bytes = (size_t)(results - output->reply);
    output->bytes = output->header_bytes + infer->plan.result_bytes;
    return results;
}

/* Encodes the rows of the outputs that are encoded last, and gives their memory back. */
static void encode_staged(struct bag_infer *infer)
{
    const struct bag_plan *plan = &infer->plan;
    const char *staged = infer->scratch.staged;
    char *results = infer->scratch.results;
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < plan->num_ops; i++) {
        const struct bag_op *op = &plan->ops[i];
        const struct bag_v2_reply_output *output = &plan->outputs[op->output];
        if (!op->is_staged || op->output == last)
            continue;
        bag_rows_encode((const float *)(const void *)staged, op->args.num_bags,
                        output->row_elements, output->row_format,
                        results + ((const char *)output->data - results));
        staged += staged_bytes(output);
        last = op->output;
    }
    bag_buffers_put(infer->scratch.staged);
    infer->scratch.staged = NULL;
}

bool bag_reply_begin(struct bag_infer *infer)
{
    struct bag_infer_scratch *scratch = &infer->scratch;
    infer->output.coding = BAG_CODING_IDENTITY;
    infer->output.reply = bag_buffers_get(scratch->buffers, infer->output.bytes);
    if (infer->plan.staged_bytes)
        scratch->staged = bag_buffers_get(scratch->buffers, infer->plan.staged_bytes);
    bool is_staged = scratch->staged || !infer->plan.staged_bytes;
    if (is_staged && infer->output.reply && write_explanation(infer))
        scratch->results = infer->plan.binary
                               ? begin_binary(infer)
                               : bag_buffers_get(scratch->buffers, infer->plan.result_bytes);
    if (!scratch->results) {
        bag_reply_drop(infer);
        return false;
    }
    place_outputs(&infer->plan, scratch->results, scratch->staged);
    return true;
}

void bag_reply_drop(struct bag_infer *infer)
{
    if (!infer->plan.binary)
        bag_buffers_put(infer->scratch.results);
    bag_buffers_put(infer->output.reply);
    bag_buffers_put(infer->scratch.staged);
    infer->output.reply = infer->scratch.results = infer->scratch.staged = NULL;
    free_explanation(&infer->scratch);
}

/* ---- with the numbers ------------------------------------------------------------------------ */

/* Clears the bits of encoded rows that stand for no element. A reply has the same bits whether rows
 * are copied as they are stored, joined of parts, or encoded anew. */
static void clear_unused(const struct bag_infer *infer)
{
    char *results = infer->scratch.results;
    for (size_t i = 0; i < infer->plan.num_outputs; i++) {
        const struct bag_v2_reply_output *output = &infer->plan.outputs[i];
        /* A part by columns may have none. */
        if (output->row_format != BAG_ROWS_PLAIN && output->row_elements > 0)
            bag_rows_clear_unused(
                output->row_format, output->row_elements,
                output->count / bag_encoded_row_bytes(output->row_format, output->row_elements),
                results + ((const char *)output->data - results));
    }
}

/* Prints the header with the numbers and appends the binary outputs. */
static void print_numbers(struct bag_infer *infer)
{
    const struct bag_plan *plan = &infer->plan;
    struct bag_infer_output *output = &infer->output;
    struct bag_v2_reply reply = reply_of(infer);
    char *json_end = bag_v2_reply_header(&reply, output->reply), *end = json_end;
    bool mixed = false;
    for (size_t i = 0; i < plan->num_outputs; i++) {
        if (!plan->outputs[i].binary)
            continue;
        memcpy(end, plan->outputs[i].data, output_bytes(&plan->outputs[i]));
        end += output_bytes(&plan->outputs[i]);
        mixed = true;
    }
    output->header_bytes = mixed ? (size_t)(json_end - output->reply) : 0;
    output->bytes = (size_t)(end - output->reply);
    bag_buffers_put(infer->scratch.results);
    infer->scratch.results = NULL;
}

/* Compresses the reply. Keeps the uncompressed reply if the compressed one is not smaller. */
static void pack(struct bag_infer *infer)
{
    struct bag_infer_output *output = &infer->output;
    char *packed = bag_buffers_get(infer->scratch.buffers, output->bytes);
    size_t bytes = packed ? bag_deflate(infer->input.reply_coding, output->reply, output->bytes,
                                        packed, output->bytes)
                          : 0;
    bag_buffers_put(bytes ? output->reply : packed);
    if (!bytes)
        return;
    output->reply = packed;
    output->bytes = bytes;
    output->coding = infer->input.reply_coding;
}

/* Fills in the other outputs of a partial reply: the number of entries in each bag and the sums of
 * their weights. */
static void count_entries(const struct bag_infer *infer)
{
    const struct bag_plan *plan = &infer->plan;
    char *results = infer->scratch.results;
    for (size_t i = 0; plan->partial && i < plan->num_ops; i++) {
        const struct bag_op *op = &plan->ops[i];
        const struct bag_v2_reply_output *counts = &plan->outputs[op->output + 1];
        bag_pool_counts(&op->args, results + ((const char *)counts[0].data - results));
        if (op->args.weights)
            bag_pool_weight_sums(&op->args, results + ((const char *)counts[1].data - results));
    }
}

bool bag_reply_end(struct bag_infer *infer)
{
    count_entries(infer);
    if (infer->plan.staged_bytes)
        encode_staged(infer);
    clear_unused(infer);
    if (is_explained_later(infer)) { /* the shards' replies have arrived */
        const char *results = infer->scratch.results;
        put_explanation(infer);
        if (infer->plan.binary) /* the header may have become shorter */
            memmove(begin_binary(infer), results, infer->plan.result_bytes);
    }
    bool prints = !infer->plan.binary;
    if (prints)
        print_numbers(infer);
    free_explanation(&infer->scratch);
    bool packs = bag_reply_count_packed(infer) > 0;
    if (packs)
        pack(infer);
    return prints || packs;
}
