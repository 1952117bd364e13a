/* Makes the requests to shards; see fanout.h.
 *
 * Most of what becomes of a bag is known here: padding, pruned entries and ids outside the table
 * have been removed, and the id of the default row stands for other ids. Only shards know which
 * keys the table does not have.
 *
 * Calls are made in two passes over the entries: the first counts the ids and bags of each call,
 * the second writes them into bodies of that size. */
#include "fanout.h"

#include "kernels/partial.h"
#include "partitioner.h"
#include "proto/shard.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Maximum bytes of an id in a request with its weight, or of its position in an explanation. */
#define MOST_ID_BYTES 24

/* ---- entries by shard ------------------------------------------------------------------------ */

/* Returns whether empty bags get the row of a default id instead of zeros. */
static bool has_default(const struct bag_partitioner *partitioner)
{
    return partitioner->args->keyed ? partitioner->op->keys.has_default
                                    : partitioner->args->default_row >= 0;
}

/* Returns the key or the row number whose row empty bags get. has_default() must be true. */
static int64_t default_id(const struct bag_partitioner *partitioner)
{
    return partitioner->args->keyed ? partitioner->op->keys.default_key
                                    : partitioner->args->default_row;
}

/* Called for every entry that is sent, bag by bag. `bag` counts the bags of all joined ops. */
typedef void entry_fn(const struct bag_partitioner *partitioner, struct bag_fanout_call *calls,
                      size_t bag, size_t entry, int64_t id);
/* Called at the end of every bag, if calls have all bags (lists_bags is false). */
typedef void bag_end_fn(struct bag_fanout_call *calls, size_t bag);

/* Calls `of_entry` for the entries of an op that are sent and, unless it is NULL, `of_bag` at the
 * end of each bag. Returns the number of bags without such an entry. Always inlined, because each
 * entry would otherwise cost two calls. */
static inline __attribute__((always_inline)) size_t
each_entry(const struct bag_partitioner *partitioner, struct bag_fanout_call *calls,
           entry_fn *of_entry, bag_end_fn *of_bag)
{
    const struct bag_pool_args *args = partitioner->args;
    size_t bounds[BAG_BOUNDS + 1], hint = 0, count, num_empty = 0;
    for (size_t first = 0; first < args->num_bags; first += count) {
        count = args->num_bags - first < BAG_BOUNDS ? args->num_bags - first : BAG_BOUNDS;
        bag_pool_bounds(args, first, first + count, &hint, bounds);
        for (size_t i = 0; i < count; i++) {
            bool is_empty = true;
            for (size_t entry = bounds[i]; entry < bounds[i + 1]; entry++) {
                int64_t id = bag_id_at(&args->indices, entry);
                if (!bag_partitioner_keeps(partitioner, entry, id))
                    continue;
                of_entry(partitioner, &calls[bag_partitioner_shard(partitioner, id)],
                         partitioner->first_bag + first + i, entry, id);
                is_empty = false;
            }
            num_empty += is_empty;
            if (of_bag)
                of_bag(calls, first + i);
        }
    }
    return num_empty;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Counts an entry for its call. The entries of a bag follow each other, so a bag is new if it is
 * not the last one. */
static void count_entry(const struct bag_partitioner *partitioner, struct bag_fanout_call *call,
                        size_t bag, size_t entry, int64_t id)
{
    (void)partitioner, (void)entry, (void)id;
    call->num_bags += call->num_ids == 0 || call->last_bag != bag;
    call->last_bag = bag;
    call->num_ids++;
}

/* Adds the bag of the default row to a call. */
static void ask_default(struct bag_fanout_call *call)
{
    call->asks_default = true;
    call->num_ids++;
}

/* Returns whether the default row is asked of several shards. Each of them has a copy of the
 * model's own default row, and the shard that stores it may become unavailable. */
static bool takes_kept(const struct bag_partitioner *partitioner)
{
    const struct bag_shard_rules *rules = &partitioner->remote->table.rules;
    return partitioner->remote->skips_absent && has_default(partitioner) &&
           rules->has_default_index && default_id(partitioner) == rules->default_index;
}

/* Returns whether a shard is not known to be unavailable. */
static bool is_available(const struct bag_partitioner *partitioner, size_t shard)
{
    const struct bag_remote *remote = partitioner->remote;
    return !bag_shard_member_unavailable(&remote->group->members[remote->addresses[shard]]);
}

/* Counts the ids and bags of the calls of an op and of the ops that are joined to it. */
static void count_calls(struct bag_partitioner *partitioner, struct bag_fanout_call *calls)
{
    /* Rows that are not pooled have no default row. */
    const bool pools = partitioner->args->reduction != BAG_NONE;
    const bool has_row = !partitioner->by_columns && has_default(partitioner);
    bool may_be_empty = pools && partitioner->remote->skips_absent;
    do {
        const size_t num_empty = each_entry(partitioner, calls, count_entry, NULL);
        partitioner->op->asks_default =
            has_row && ((pools && (num_empty > 0 || bag_partitioner_may_lose(partitioner))) ||
                        (partitioner->args->keyed && partitioner->op->keys.default_is_asked));
        may_be_empty |= partitioner->op->asks_default;
    } while (bag_partitioner_next(partitioner));
    if (!partitioner->lists_bags)
        calls[0].num_bags = partitioner->first_bag + partitioner->args->num_bags;
    for (size_t i = 1; partitioner->by_columns && i < partitioner->remote->num_shards; i++) {
        calls[i].num_ids = calls[0].num_ids;
        calls[i].num_bags = calls[0].num_bags;
    }
    if (!has_row || !may_be_empty)
        return;
    const size_t owner = bag_partitioner_shard(partitioner, default_id(partitioner));
    if (takes_kept(partitioner)) {
        /* Ask every shard that is asked for other rows for the default row, too. Ask further ones,
         * the owner first, until two that are available are asked; or the owner if none is. */
        const size_t num_shards = partitioner->remote->num_shards;
        size_t num_asked = 0, num_available = 0;
        for (size_t i = 0; i < num_shards; i++) {
            if (calls[i].num_ids == 0)
                continue;
            ask_default(&calls[i]);
            num_asked++;
            num_available += is_available(partitioner, i);
        }
        for (size_t i = 0; i < num_shards && num_available < 2; i++) {
            size_t shard = (owner + i) % num_shards;
            if (calls[shard].asks_default || !is_available(partitioner, shard))
                continue;
            ask_default(&calls[shard]);
            num_available++;
        }
        if (num_asked + num_available == 0)
            ask_default(&calls[owner]);
    } else {
        ask_default(&calls[owner]);
    }
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* Writes an id or an offset of this type. Returns its end. */
static char *put_id(char *at, enum bag_dtype dtype, int64_t id)
{
    int32_t narrow = (int32_t)id;
    if (dtype == BAG_I64)
        memcpy(at, &id, sizeof id);
    else
        memcpy(at, &narrow, sizeof narrow);
    return at + bag_dtypes[dtype].bytes;
}

/* Allocates the body of a call and writes its header. Returns false if memory is exhausted. */
static bool begin_body(struct bag_buffers *buffers, const struct bag_partitioner *partitioner,
                       struct bag_fanout_call *call)
{
    static atomic_ullong number; /* the last one that was given to a request */
    call->number = atomic_fetch_add_explicit(&number, 1, memory_order_relaxed) + 1;
    /* Describe the request of a call. */
    const struct bag_pool_args *args = partitioner->args;
    struct bag_part part = partitioner->remote->part;
    part.index = (uint32_t)call->shard;
    const struct bag_shard_request request = {
        .number = call->number,
        .part = part,
        .digest = partitioner->remote->table.digest,
        .is_partial = !partitioner->by_columns,
        .takes_kept = call->asks_default && takes_kept(partitioner),
        .reduction = args->reduction,
        .output_dtype = args->output_dtype,
        .row_format = partitioner->op->row_format,
        .ids_dtype = (!partitioner->args->keyed && partitioner->args->table.num_rows <= INT32_MAX &&
                      call->num_ids <= INT32_MAX)
                         ? BAG_I32
                         : BAG_I64,
        .num_ids = call->num_ids,
        .num_bags = call->num_bags + call->asks_default,
        .has_default =
            (partitioner->by_columns && (!args->keyed || has_default(partitioner))) ||
            (call->asks_default && args->keyed && partitioner->op->keys.default_is_asked),
        .has_weights = args->weights != NULL,
        .weights_dtype = args->weights_dtype,
        .rejects_missing = args->keyed && partitioner->op->keys.missing == BAG_MISSING_ERROR,
        .explains = partitioner->explains,
        .rejects_outside = !args->keyed, /* this server has removed them */
    };
    size_t bytes = bag_shard_request_tensor_bytes(&request);
    if (__builtin_add_overflow(bytes, (size_t)BAG_SHARD_HEADER_BYTES, &bytes))
        return false;
    call->body = bag_buffers_get(buffers, bytes);
    if (!call->body)
        return false;
    call->header_bytes = bag_shard_request_header(&request, call->body);
    call->body_bytes = call->header_bytes + bag_shard_request_tensor_bytes(&request);
    call->ids_dtype = request.ids_dtype;
    call->next_id = call->body + call->header_bytes;
    call->offsets = call->next_id + call->num_ids * bag_dtypes[call->ids_dtype].bytes;
    call->next_offset = put_id(call->offsets, call->ids_dtype, 0);
    call->next_weight = call->offsets + (request.num_bags + 1) * bag_dtypes[call->ids_dtype].bytes;
    if (request.has_default)
        call->next_weight = put_id(call->next_weight, call->ids_dtype,
                                   has_default(partitioner) ? default_id(partitioner) : -1);
    call->num_ids = call->num_bags = 0; /* put_entry() counts them again */
    return true;
}

/* Writes the end of the last bag. */
static void end_bag(struct bag_fanout_call *call)
{
    call->next_offset = put_id(call->next_offset, call->ids_dtype, (int64_t)call->num_ids);
}

/* Writes an entry into the body of its call, and begins a bag if the entry is the first of one. */
static void put_entry(const struct bag_partitioner *partitioner, struct bag_fanout_call *call,
                      size_t bag, size_t entry, int64_t id)
{
    const struct bag_pool_args *args = partitioner->args;
    size_t weight_bytes = bag_dtypes[args->weights_dtype].bytes;
    if (partitioner->lists_bags && (call->num_bags == 0 || call->last_bag != bag)) {
        if (call->num_bags > 0)
            end_bag(call);
        call->bags[call->num_bags++] = (uint32_t)bag;
        call->last_bag = bag;
    }
    call->num_ids++;
    call->next_id = put_id(call->next_id, call->ids_dtype, id);
    if (!args->weights)
        return;
    memcpy(call->next_weight, (const char *)args->weights + entry * weight_bytes, weight_bytes);
    call->next_weight += weight_bytes;
}

/* Ends a bag of parts by columns. Only the first call is written; write_calls() copies it. */
static void end_every_bag(struct bag_fanout_call *calls, size_t bag)
{
    (void)bag;
    end_bag(&calls[0]);
    calls[0].num_bags++;
}

/* Writes the weight 1. */
static void put_one(char *at, enum bag_dtype dtype)
{
    const double one = 1;
    const float single = 1;
    const uint16_t half = dtype == BAG_F16 ? 0x3c00 : 0x3f80;
    const uint64_t whole = 1;
    const void *from = dtype == BAG_F64                           ? (const void *)&one
                       : dtype == BAG_F32                         ? (const void *)&single
                       : bag_dtypes[dtype].kind == BAG_KIND_FLOAT ? (const void *)&half
                                                                  : (const void *)&whole;
    memcpy(at, from, bag_dtypes[dtype].bytes);
}

/* Ends the last bag, and adds the bag of the default row. */
static void end_body(const struct bag_partitioner *partitioner, struct bag_fanout_call *call)
{
    if (call->num_bags > 0)
        end_bag(call);
    if (!call->asks_default)
        return;
    put_id(call->next_id, call->ids_dtype, default_id(partitioner));
    if (partitioner->args->weights)
        put_one(call->next_weight, partitioner->args->weights_dtype);
    call->num_ids++;
    end_bag(call);
}

/* Returns the maximum size of a good reply to a call. */
static inline size_t reply_bytes_of(const struct bag_partitioner *partitioner,
                                    const struct bag_fanout_call *call)
{
    const struct bag_pool_args sent = {.num_bags = call->num_bags + call->asks_default,
                                       .indices = {NULL, call->num_ids, true}};
    struct bag_fanout_form form = bag_fanout_form(partitioner, call);
    size_t bytes = BAG_SHARD_MAX_REPLY_HEADER;
    if (partitioner->explains)
        bytes += bag_v2_explain_bound(&sent, BAG_EMBEDDINGS);
    for (size_t i = 0; i < form.num_outputs; i++)
        bytes += form.outputs[i].count * bag_dtypes[form.outputs[i].dtype].bytes;
    return bytes;
}

/* Writes the bodies of the calls of joined ops, after counting. Returns false if memory is
 * exhausted. */
static bool write_calls(struct bag_buffers *buffers, struct bag_partitioner *partitioner,
                        struct bag_fanout_call *calls, uint32_t **bags)
{
    for (size_t i = 0; i < partitioner->remote->num_shards; i++) {
        calls[i].max_reply_bytes = reply_bytes_of(partitioner, &calls[i]);
        if (partitioner->lists_bags) {
            calls[i].bags = *bags;
            *bags += calls[i].num_bags;
        }
        if ((partitioner->by_columns || calls[i].num_ids > 0) &&
            !begin_body(buffers, partitioner, &calls[i]))
            return false;
    }
    do
        each_entry(partitioner, calls, put_entry, partitioner->lists_bags ? NULL : end_every_bag);
    while (bag_partitioner_next(partitioner));
    const size_t num_written = partitioner->by_columns ? 1 : partitioner->remote->num_shards;
    for (size_t i = 0; partitioner->lists_bags && i < num_written; i++) {
        if (calls[i].body)
            end_body(partitioner, &calls[i]);
    }
    if (partitioner->by_columns) {
        /* Copy the tensors to all shards of parts by columns; each has a header of its own. */
        size_t tensor_bytes = calls[0].body_bytes - calls[0].header_bytes;
        for (size_t i = 1; i < partitioner->remote->num_shards; i++) {
            memcpy(calls[i].body + calls[i].header_bytes, calls[0].body + calls[0].header_bytes,
                   tensor_bytes);
            calls[i].num_ids = calls[0].num_ids;
            calls[i].num_bags = calls[0].num_bags;
            calls[i].bags = calls[0].bags;
        }
    }
    return true;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* Returns whether requests for two ops would differ in their bags only. */
static bool are_told_alike(const struct bag_partitioner *partitioner,
                           const struct bag_partitioner *other)
{
    const struct bag_pool_args *mine = partitioner->args, *others = other->args;
    const struct bag_op_keys *keys = &partitioner->op->keys, *other_keys = &other->op->keys;
    return partitioner->remote == other->remote && mine->reduction == others->reduction &&
           partitioner->op->row_format == other->op->row_format &&
           (!partitioner->by_columns || mine->output_dtype == others->output_dtype) &&
           !mine->weights == !others->weights &&
           (!mine->weights || mine->weights_dtype == others->weights_dtype) &&
           mine->default_row == others->default_row &&
           bag_partitioner_may_lose(partitioner) == bag_partitioner_may_lose(other) &&
           (!mine->keyed ||
            (keys->missing == other_keys->missing && keys->default_key == other_keys->default_key &&
             keys->default_is_asked == other_keys->default_is_asked));
}

/* Joins an op to an earlier one whose requests would be alike, if one request for all `work` fits.
 * Returns false if the op needs calls of its own. */
static bool join(const struct bag_infer *infer, size_t op, const struct bag_ops_work *work,
                 struct bag_fanout *fanout)
{
    const struct bag_partitioner partitioner = bag_partitioner_of(infer, op);
    struct bag_op *ops = infer->plan.ops;
    for (size_t i = 0; i < fanout->count;) {
        struct bag_fanout_call *call = &fanout->calls[i];
        const struct bag_partitioner other = bag_partitioner_of(call->infer, call->op);
        i += other.remote->num_shards;
        if (!are_told_alike(&partitioner, &other))
            continue;
        /* Limits that are multiples of the request's size matter, because one request has fewer
         * bytes than several. */
        const struct bag_infer_limits *limits = infer->input.limits;
        const struct bag_fanout_call one = {
            .shard = partitioner.remote->num_shards - 1, .num_bags = 1, .num_ids = 1};
        const size_t bag_bytes = reply_bytes_of(&partitioner, &one) - BAG_SHARD_MAX_REPLY_HEADER;
        const size_t row_bytes = bag_row_bytes(&partitioner.args->table);
        const size_t sent_bytes =
            sizeof(int32_t) * (partitioner.by_columns ? 1 : 2); /* for a bag, at least */
        ops[op].is_joined =
            work->bags <= INT32_MAX && work->rows <= INT32_MAX && bag_bytes <= INT32_MAX &&
            BAG_SHARD_HEADER_BYTES + work->rows * MOST_ID_BYTES + work->bags * sizeof(int64_t) <
                limits->max_body_bytes &&
            BAG_SHARD_MAX_REPLY_HEADER + work->rows * MOST_ID_BYTES + work->bags * bag_bytes <
                limits->max_reply_bytes &&
            (limits->max_reply_ratio == 0 || bag_bytes / sent_bytes < limits->max_reply_ratio) &&
            (limits->max_work_ns_per_byte == 0 ||
             (bag_bytes + row_bytes) / sent_bytes < limits->max_work_ns_per_byte);
        if (ops[op].is_joined) {
            ops[op].first_bag = call->last_op->first_bag + call->last_op->args.num_bags;
            call->last_op->joined = &ops[op];
            call->last_op = &ops[op];
        }
        return ops[op].is_joined;
    }
    return false;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Joins the remote ops of an inference, or adds calls for them. */
static void take_ops(struct bag_infer *infer, const struct bag_ops_work *work,
                     struct bag_fanout *fanout)
{
    struct bag_plan *plan = &infer->plan;
    for (size_t i = 0; i < plan->num_ops; i++) {
        struct bag_op *op = &plan->ops[i];
        if (op->kind != BAG_OP_REMOTE)
            continue;
        op->joined = NULL;
        op->is_joined = false;
        op->first_call = op->num_calls = op->first_bag = 0;
        if (!join(infer, i, work, fanout)) {
            /* Add a call to each shard for an op, and for the ops that will be joined to it. */
            const size_t num_shards = bag_partitioner_of(infer, i).remote->num_shards;
            struct bag_fanout_call *calls = &fanout->calls[fanout->count];
            memset(calls, 0, num_shards * sizeof *calls);
            for (size_t shard = 0; shard < num_shards; shard++) {
                calls[shard].infer = infer;
                calls[shard].op = i;
                calls[shard].last_op = op;
                calls[shard].feature = op->feature;
                calls[shard].shard = shard;
            }
            fanout->count += num_shards;
        }
    }
}

/* Makes the calls of all remote ops, and counts their ids and bags. Returns false if memory is
 * exhausted. */
static bool take_calls(struct bag_buffers *buffers, struct bag_fanout *fanout)
{
    struct bag_ops_work work = {.bags = 0};
    size_t count = 0, most = 0;
    for (size_t i = 0; i < fanout->num_infers; i++) {
        const struct bag_plan *plan = &fanout->infers[i]->plan;
        work.bags += plan->work.bags;
        work.rows += plan->work.rows;
        for (size_t op = 0; op < plan->num_ops; op++) {
            bool is_remote = plan->ops[op].kind == BAG_OP_REMOTE;
            size_t shards =
                is_remote ? bag_partitioner_of(fanout->infers[i], op).remote->num_shards : 0;
            count += shards;
            most = shards > most ? shards : most;
        }
    }
    fanout->calls = bag_buffers_get(buffers, count * sizeof *fanout->calls);
    fanout->shares = bag_buffers_get(buffers, most * sizeof *fanout->shares);
    if (!fanout->calls || !fanout->shares)
        return false;
    for (size_t i = 0; i < fanout->num_infers; i++)
        take_ops(fanout->infers[i], &work, fanout);
    for (size_t i = 0; i < fanout->count;) {
        struct bag_fanout_call *call = &fanout->calls[i];
        struct bag_partitioner partitioner = bag_partitioner_of(call->infer, call->op);
        count_calls(&partitioner, call);
        i += partitioner.remote->num_shards;
    }
    return true;
}

/* Allocates the lists of bags of all calls. */
static bool take_bags(struct bag_buffers *buffers, struct bag_fanout *fanout)
{
    size_t num_bags = 0;
    for (size_t i = 0; i < fanout->count; i++)
        num_bags += fanout->calls[i].num_bags;
    fanout->bags = bag_buffers_get(buffers, num_bags * sizeof *fanout->bags);
    return fanout->bags != NULL;
}

/* Writes the bodies of all calls. */
static bool write_all(struct bag_buffers *buffers, struct bag_fanout *fanout)
{
    uint32_t *bags = fanout->bags;
    for (size_t i = 0; i < fanout->count;) {
        struct bag_fanout_call *call = &fanout->calls[i];
        struct bag_partitioner partitioner = bag_partitioner_of(call->infer, call->op);
        if (!write_calls(buffers, &partitioner, call, &bags))
            return false;
        i += partitioner.remote->num_shards;
    }
    return true;
}

/* Removes the calls that ask for nothing, and tells the ops which calls they have. */
static void number_calls(struct bag_fanout *fanout)
{
    struct bag_fanout_call *calls = fanout->calls;
    size_t count = 0;
    for (size_t i = 0; i < fanout->count; i++) {
        if (calls[i].body)
            calls[count++] = calls[i];
    }
    fanout->count = count;
    for (size_t first = 0, end; first < count; first = end) {
        end = first + 1;
        while (end < count && calls[end].infer == calls[first].infer &&
               calls[end].op == calls[first].op)
            end++;
        for (struct bag_op *op = &calls[first].infer->plan.ops[calls[first].op]; op;
             op = op->joined) {
            op->first_call = first;
            op->num_calls = end - first;
        }
    }
}

bool bag_fanout_make(struct bag_infer *const *infers, size_t num_infers, struct bag_fanout *fanout,
                     struct bag_problem *problem)
{
    struct bag_buffers *buffers = infers[0]->scratch.buffers;
    memset(fanout, 0, sizeof *fanout);
    fanout->infers = bag_buffers_get(buffers, num_infers * sizeof *fanout->infers);
    if (fanout->infers) {
        memcpy(fanout->infers, infers, num_infers * sizeof *fanout->infers);
        fanout->num_infers = fanout->num_made = num_infers;
    }
    if (!fanout->infers || !take_calls(buffers, fanout) || !take_bags(buffers, fanout) ||
        !write_all(buffers, fanout)) {
        bag_fanout_free(fanout);
        return bag_budget_reject(buffers->budget, "requests to shards", infers[0]->input.body_bytes,
                                 problem);
    }
    number_calls(fanout);
    return true;
}

/* ---- several inferences ---------------------------------------------------------------------- */

/* Returns whether an op uses the reply to one of its calls. */
static bool uses(const struct bag_op *op, const struct bag_fanout_call *call)
{
    if (op->memory->remote->part.by == BAG_PART_COLUMNS || (op->asks_default && call->asks_default))
        return true;
    const size_t i = bag_partitioner_find_bag(call, op->first_bag);
    return i < call->num_bags && call->bags[i] < op->first_bag + op->args.num_bags;
}

size_t bag_fanout_count_uses(const struct bag_fanout *fanout, const struct bag_infer *infer,
                             size_t first, size_t end)
{
    size_t count = 0;
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        if (op->kind != BAG_OP_REMOTE)
            continue;
        const size_t own_end = op->first_call + op->num_calls;
        for (size_t call = first > op->first_call ? first : op->first_call;
             call < end && call < own_end; call++)
            count += uses(op, &fanout->calls[call]);
    }
    return count;
}

const struct bag_infer *bag_fanout_find_op(const struct bag_fanout *fanout, size_t call, size_t bag,
                                           size_t *op)
{
    for (size_t i = 0; i < fanout->num_infers; i++) {
        const struct bag_plan *plan = &fanout->infers[i]->plan;
        for (*op = 0; *op < plan->num_ops; ++*op) {
            const struct bag_op *one = &plan->ops[*op];
            if (one->kind == BAG_OP_REMOTE && call - one->first_call < one->num_calls &&
                (bag == SIZE_MAX || bag - one->first_bag < one->args.num_bags))
                return fanout->infers[i];
        }
    }
    return NULL;
}

void bag_fanout_leave(struct bag_fanout *fanout, const struct bag_infer *infer)
{
    size_t count = 0;
    for (size_t i = 0; i < fanout->num_infers; i++) {
        if (fanout->infers[i] != infer)
            fanout->infers[count++] = fanout->infers[i];
    }
    fanout->num_infers = count;
    for (size_t i = 0; i < fanout->count; i++) {
        struct bag_fanout_call *call = &fanout->calls[i];
        if (call->infer == infer)
            call->infer = bag_fanout_find_op(fanout, i, SIZE_MAX, &call->op);
    }
}

void bag_fanout_free(struct bag_fanout *fanout)
{
    for (size_t i = 0; i < fanout->count; i++) {
        bag_buffers_put(fanout->calls[i].body);
        bag_buffers_put(fanout->calls[i].reply);
    }
    bag_buffers_put(fanout->infers);
    bag_buffers_put(fanout->calls);
    bag_buffers_put(fanout->bags);
    bag_buffers_put(fanout->shares);
    memset(fanout, 0, sizeof *fanout);
}
