/* Checks the replies of shards, and merges them into the results of an inference; see fanout.h. */
#include "kernels/part.h"
#include "kernels/partial.h"
#include "kernels/rowformat.h"
#include "partitioner.h"

#include <string.h>

/* Returns the number of ids that a shard has pooled for a bag of the call. */
static int64_t count_at(const struct bag_fanout_call *call, size_t bag)
{
    int64_t count;
    memcpy(&count, call->counts + bag * sizeof count, sizeof count);
    return count;
}

/* Returns the number of ids that a bag of the call was sent with. */
static int64_t sent_ids(const struct bag_fanout_call *call, size_t bag)
{
    struct bag_ids offsets = {call->offsets, bag + 2, call->ids_dtype == BAG_I64};
    return bag_id_at(&offsets, bag + 1) - bag_id_at(&offsets, bag);
}

/* Checks that a shard has pooled the ids that it was sent, or fewer if it may skip some. */
static bool check_counts(const struct bag_partitioner *partitioner,
                         const struct bag_fanout_call *call, struct bag_problem *problem)
{
    const bool may_be_fewer = bag_partitioner_may_lose(partitioner);
    for (size_t bag = 0; bag < call->num_bags + call->asks_default; bag++) {
        int64_t count = count_at(call, bag), sent = sent_ids(call, bag);
        if (count < 0 || count > sent || (count < sent && !may_be_fewer))
            return bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY,
                                   "answered that %lld of the %lld ids of a bag were pooled",
                                   (long long)count, (long long)sent);
    }
    return true;
}

bool bag_fanout_check(struct bag_fanout *fanout, size_t index, struct bag_problem *problem)
{
    struct bag_fanout_call *call = &fanout->calls[index];
    const struct bag_partitioner partitioner = bag_partitioner_of(call->infer, call->op);
    struct bag_fanout_form form = bag_fanout_form(&partitioner, call);
    if (!bag_shard_reply_read(call->reply, call->reply_bytes, call->reply_header_bytes,
                              call->number, partitioner.remote->model, partitioner.remote->version,
                              form.outputs, form.num_outputs, problem))
        return false;
    call->counts = form.num_outputs > 1 ? form.outputs[1].data : NULL;
    call->weight_sums = form.num_outputs > 2 ? form.outputs[2].data : NULL;
    if (!(partitioner.by_columns || check_counts(&partitioner, call, problem)) ||
        (partitioner.explains && !bag_partitioner_check_explanation(call, problem)))
        return false;
    call->sums = form.outputs[0].data;
    return true;
}

/* ---- errors of the client -------------------------------------------------------------------- */

/* Sets *problem to the fault with the client's feature. Always returns true. */
static bool blame_key(const struct bag_infer *infer, const struct bag_partitioner *partitioner,
                      struct bag_fault fault, struct bag_problem *problem)
{
    const struct bag_model *model = infer->input.model;
    const struct bag_op_keys *keys = &partitioner->op->keys;
    bag_problem_from_fault(problem, &fault);
    if (!bag_model_is_collection(model))
        return true;
    if (keys->from_values)
        bag_problem_prefix(problem, "feature '%s' ('values' from position %zu on)",
                           model->features[partitioner->op->feature].name, keys->first_value);
    else
        bag_problem_prefix(problem, "feature '%s'", model->features[partitioner->op->feature].name);
    return true;
}

/* A key may occur several times. The message has its first position, like that of a single server.
 */
bool bag_fanout_find_client_error(struct bag_fanout *fanout, size_t index,
                                  struct bag_problem *problem)
{
    struct bag_fanout_call *call = &fanout->calls[index];
    const struct bag_infer *infer = call->infer;
    struct bag_partitioner partitioner = bag_partitioner_of(infer, call->op);
    const struct bag_op_keys *keys = &partitioner.op->keys;
    size_t position = 0, op;
    if (!partitioner.args->keyed || !call->reply)
        return false;
    enum bag_shard_error about = bag_shard_error_read(call->reply, call->reply_bytes, &position);
    bool is_default =
        about == BAG_SHARD_ERROR_DEFAULT || (call->asks_default && position + 1 == call->num_ids);
    if (keys->has_default && is_default)
        return blame_key(infer, &partitioner,
                         (struct bag_fault){.status = BAG_STATUS_DEFAULT_KEY_MISSING,
                                            .value = keys->default_key,
                                            .got = keys->default_dtype},
                         problem);
    if (about != BAG_SHARD_ERROR_INDEX || keys->missing != BAG_MISSING_ERROR ||
        position >= call->num_ids)
        return false;
    struct bag_ids sent = {call->body + call->header_bytes, call->num_ids, true};
    const int64_t key = bag_id_at(&sent, position);
    size_t at = 0;
    /* Find the op that an id of the call belongs to. If its inference has left, *problem names any
     * feature: nobody gets the message. */
    size_t bag = 0, end = (size_t)sent_ids(call, 0);
    while (end <= position && bag + 1 < call->num_bags)
        end += (size_t)sent_ids(call, ++bag);
    bag = partitioner.lists_bags ? call->bags[bag] : bag;
    call->has_wrong_id = true;
    call->wrong = bag_fanout_find_op(fanout, index, bag, &op);
    if (call->wrong)
        partitioner = bag_partitioner_of(call->wrong, op);
    keys = &partitioner.op->keys;
    while (at < keys->sent.count && bag_id_at(&keys->sent, at) != key)
        at++;
    return blame_key(infer, &partitioner,
                     (struct bag_fault){.status = BAG_STATUS_KEY_MISSING,
                                        .position = (int64_t)at,
                                        .value = key,
                                        .got = keys->sent_dtype},
                     problem);
}

/* ---- putting together ------------------------------------------------------------------------ */

/* Copies the columns of a call's rows, which are not pooled, to their ids. Ids that were not sent
 * get zeros. */
static void merge_rows(const struct bag_partitioner *partitioner,
                       const struct bag_fanout_call *call, size_t bytes, char *to)
{
    const struct bag_pool_args *args = partitioner->args;
    size_t next = bag_partitioner_find_bag(call, partitioner->first_bag);
    for (size_t bag = 0; bag < args->num_bags; bag++, to += args->bag_stride) {
        if (next < call->num_bags && call->bags[next] == partitioner->first_bag + bag)
            memcpy(to, call->sums + next++ * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
}

/* Copies the columns of all calls side by side. All calls have replies: a row without some of its
 * columns is of no use, so no shard of parts by columns may be absent. */
static void merge_columns(const struct bag_partitioner *partitioner,
                          const struct bag_fanout_call *calls, size_t num_calls, char *result)
{
    const struct bag_pool_args *args = partitioner->args;
    for (size_t i = 0; i < num_calls; i++) {
        const struct bag_fanout_call *call = &calls[i];
        size_t begin = bag_partitioner_first_column(partitioner, call->shard) * args->element_bytes;
        size_t bytes =
            bag_partitioner_first_column(partitioner, call->shard + 1) * args->element_bytes -
            begin;
        char *to = result + begin;
        const char *from = call->sums + partitioner->first_bag * bytes;
        if (partitioner->lists_bags)
            merge_rows(partitioner, call, bytes, to);
        for (size_t bag = 0; !partitioner->lists_bags && bag < args->num_bags; bag++) {
            memcpy(to, from + bag * bytes, bytes);
            to += args->bag_stride;
        }
    }
}

/* Joins the columns of rows that come as they are stored, which are not pooled. Ids that were not
 * sent get zeros. All calls have the same bags. */
static void join_columns(const struct bag_partitioner *partitioner,
                         const struct bag_fanout_call *calls, size_t num_calls, char *row)
{
    const struct bag_pool_args *args = partitioner->args;
    const enum bag_row_format format = partitioner->op->row_format;
    size_t next = bag_partitioner_find_bag(&calls[0], partitioner->first_bag);
    for (size_t bag = 0; bag < args->num_bags; bag++, row += args->bag_stride) {
        memset(row, 0, args->bag_stride);
        if (next == calls[0].num_bags || calls[0].bags[next] != partitioner->first_bag + bag)
            continue;
        for (size_t i = 0; i < num_calls; i++) {
            const size_t first = bag_partitioner_first_column(partitioner, calls[i].shard);
            const size_t columns =
                bag_partitioner_first_column(partitioner, calls[i].shard + 1) - first;
            bag_part_join_row(format, args->table.row_elements,
                              calls[i].sums + next * bag_encoded_row_bytes(format, columns), first,
                              columns, row);
        }
        next++;
    }
}

/* The sizes of a share's sums and of its weight sum. */
struct share_bytes {
    size_t sums, weight_sum;
};

/* Returns the share of a call in one of its bags. */
static struct bag_share share_of(const struct share_bytes *bytes,
                                 const struct bag_fanout_call *call, size_t bag)
{
    return (struct bag_share){
        .sums = call->sums + bag * bytes->sums,
        .weight_sums = call->weight_sums ? call->weight_sums + bag * bytes->weight_sum : NULL,
        .count = (uint64_t)count_at(call, bag)};
}

/* Returns the share of the default row, which stands for bags without pooled entries. The share has
 * no entries if no reply has the row. */
static struct bag_share default_share(const struct share_bytes *bytes,
                                      const struct bag_fanout_call *calls, size_t num_calls)
{
    for (size_t i = 0; i < num_calls; i++) {
        if (calls[i].asks_default && calls[i].sums)
            return share_of(bytes, &calls[i], calls[i].num_bags);
    }
    return (struct bag_share){.count = 0};
}

/* Collects the shares of a bag from the calls that have it. Returns how many have entries. */
static size_t take_shares(const struct share_bytes *bytes, struct bag_fanout_call *calls,
                          size_t num_calls, size_t bag, struct bag_share *shares)
{
    size_t num_shares = 0;
    for (size_t i = 0; i < num_calls; i++) {
        struct bag_fanout_call *call = &calls[i];
        if (call->next_bag == call->num_bags || call->bags[call->next_bag] != bag)
            continue;
        struct bag_share share = {.count = 0};
        if (!call->is_absent)
            share = share_of(bytes, call, call->next_bag);
        call->next_bag++;
        if (share.count > 0)
            shares[num_shares++] = share;
    }
    return num_shares;
}

/* Adds up the shares of each bag, call by call in the order of the shards, and stores the results.
 * A bag without pooled entries gets the default row, or zeros. */
static void merge_sums(const struct bag_partitioner *partitioner, struct bag_fanout_call *calls,
                       size_t num_calls, struct bag_share *shares, char *result)
{
    const struct bag_pool_args *args = partitioner->args;
    /* Rows that come as they are stored are copied byte by byte. */
    const bool is_stored = partitioner->op->row_format != BAG_ROWS_PLAIN;
    const struct bag_merge merge = {.dtype = is_stored ? BAG_U8 : args->table.dtype,
                                    .reduction = args->reduction,
                                    .is_weighted = args->weights != NULL,
                                    .output_dtype = is_stored ? BAG_U8 : args->output_dtype,
                                    .columns =
                                        is_stored ? args->bag_stride : args->table.row_elements};
    const struct bag_partial_form form = bag_partial_form(merge.dtype, merge.reduction);
    const struct share_bytes bytes = {
        .sums = merge.columns * form.sum_words * bag_dtypes[form.sums_dtype].bytes,
        .weight_sum = form.weight_words * bag_dtypes[form.weights_dtype].bytes};
    const struct bag_share nothing = {.count = 0};
    const struct bag_share instead = args->reduction == BAG_NONE
                                         ? nothing /* an id without a row gets zeros */
                                         : default_share(&bytes, calls, num_calls);
    for (size_t i = 0; i < num_calls; i++)
        calls[i].next_bag = bag_partitioner_find_bag(&calls[i], partitioner->first_bag);
    for (size_t bag = 0; bag < args->num_bags; bag++, result += args->bag_stride) {
        size_t num_shares =
            take_shares(&bytes, calls, num_calls, partitioner->first_bag + bag, shares);
        if (num_shares > 0)
            bag_merge(&merge, shares, num_shares, result);
        else
            bag_merge(&merge, &instead, 1, result);
    }
}

void bag_fanout_merge(const struct bag_fanout *fanout, const struct bag_infer *infer)
{
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        if (op->kind != BAG_OP_REMOTE)
            continue;
        const struct bag_partitioner partitioner = bag_partitioner_of(infer, i);
        struct bag_fanout_call *calls = fanout->calls + op->first_call;
        if (partitioner.by_columns && op->row_format != BAG_ROWS_PLAIN)
            join_columns(&partitioner, calls, op->num_calls, op->result);
        else if (partitioner.by_columns)
            merge_columns(&partitioner, calls, op->num_calls, op->result);
        else
            merge_sums(&partitioner, calls, op->num_calls, fanout->shares, op->result);
        if (infer->plan.explains)
            bag_partitioner_explain(&partitioner, calls, op->num_calls);
    }
}
