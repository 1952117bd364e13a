/* The steps of one inference and the estimates of their costs; see infer.h. */
#include "infer.h"

#include <string.h>

/* Decoding and sorting allocate at most this multiple of the body. The worst case is an index and
 * its segment with one digit and one comma each: 4 bytes of JSON. They become two 64-bit integers
 * and twice 16 bytes for sorting, 48 bytes in all. A JSON header without its data takes twice its
 * bytes. The base covers memory that depends on the number of features. */
#define ARENA_FACTOR     12
#define KEYS_FACTOR      3 /* keyed models also need a row and a mark beside each key */
#define ARENA_BASE_BYTES (4 << 20)

/* Estimated costs, for choosing between the loop's thread and a worker. An error of a factor of two
 * only moves the threshold. Names with NS_PER are ns for each byte, number or index; names with
 * PER_NS are bytes, products or elements in one ns; BAG_NS is ns for each bag. */
#define JSON_PARSE_NS_PER_BYTE    2
#define KNOWN_BYTES_PER_NS        4 /* for a JSON header that the cache has */
#define BINARY_CHECK_BYTES_PER_NS 4
#define KEYS_NS_PER_BYTE          5 /* the look-up of a key of 8 bytes takes 40 ns */
#define GATHER_BYTES_PER_NS       8
#define PRINT_NS_PER_NUMBER       40
#define PACK_NS_PER_BYTE          10
#define PRODUCTS_PER_NS           16
#define BAG_NS                    10
#define WRITE_BYTES_PER_NS        4
#define ENCODED_ELEMENTS_PER_NS   2
#define SORT_NS_PER_INDEX         30
#define EXPLAIN_BYTES_PER_NS      1

/* The maximum ratio of decompression for bodies of more than 1 MiB. */
#define MAX_INFLATE_RATIO 100

/* The limit of work is the same for all bodies up to this size. By default it allows 16,384 rows of
 * 4,096 FP32 elements. */
#define MIN_WORK_BYTES ((size_t)2000)

/* ---- projections ----------------------------------------------------------------------------- */

/* A batch collects the pooled rows of all its requests, feature by feature, and multiplies the rows
 * of each feature by its matrix once. */

/* The rows of one feature. The allocation begins with an array of regions, one for each feature. */
struct region {
    const struct bag_projection *projection; /* NULL: the feature has no projection */
    size_t count;                            /* number of rows, over all plans */
    float *pooled, *product;
};

typedef void visit_fn(struct bag_op *op, struct region *region);

/* Calls `visit` for each op with a projection, always in the same order. */
static void each(struct bag_plan *const *plans, size_t count, struct region *regions,
                 visit_fn *visit)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < plans[i]->num_ops; j++) {
            struct bag_op *op = &plans[i]->ops[j];
            if (op->projection)
                visit(op, &regions[op->feature]);
        }
    }
}

/* Adds the rows of an op to those of its feature. */
static void count_rows(struct bag_op *op, struct region *region)
{
    region->projection = op->projection;
    region->count += op->args.num_bags;
}

/* Makes the op pool into the next free rows of its feature. */
static void take_place(struct bag_op *op, struct region *region)
{
    op->result = (char *)(region->pooled + region->count * op->projection->rows);
    count_rows(op, region);
}

/* Writes the projected rows of an op to its output. */
static void store(struct bag_op *op, struct region *region)
{
    const struct bag_projection *projection = region->projection;
    size_t first = (size_t)((float *)(void *)op->result - region->pooled) /
                   (projection->rows ? projection->rows : 1);
    bag_project_store(region->product + first * projection->columns, op->args.num_bags,
                      projection->columns, op->dtype, op->target, op->stride);
}

/* Returns the number of floats that the ops hold before and after their projections. The sum cannot
 * overflow, because max_reply_bytes bounds both for each plan. */
static size_t count_numbers(struct bag_plan *const *plans, size_t count)
{
    size_t numbers = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < plans[i]->num_ops; j++) {
            const struct bag_op *op = &plans[i]->ops[j];
            if (op->projection)
                numbers += op->args.num_bags * (op->projection->rows + op->projection->columns);
        }
    }
    return numbers;
}

/* Allocates memory for the rows that `count` plans of the model pool before projection, and points
 * their ops to it. Returns NULL if there is not enough memory. Otherwise the caller must call
 * end_projections(). */
static void *begin_projections(struct bag_plan *const *plans, size_t count,
                               const struct bag_model *model, struct bag_buffers *buffers)
{
    size_t head_bytes = model->num_features * sizeof(struct region);
    struct region *regions =
        bag_buffers_get(buffers, head_bytes + count_numbers(plans, count) * sizeof(float));
    if (!regions)
        return NULL;
    memset(regions, 0, head_bytes);
    each(plans, count, regions, count_rows);
    float *at = (float *)(void *)(regions + model->num_features);
    for (size_t i = 0; i < model->num_features; i++) {
        struct region *region = &regions[i];
        if (!region->projection)
            continue;
        region->pooled = at;
        region->product = at + region->count * region->projection->rows;
        at = region->product + region->count * region->projection->columns;
        region->count = 0; /* take_place() counts the rows again */
    }
    each(plans, count, regions, take_place);
    return regions;
}

/* Projects the pooled rows into the ops' targets and frees the memory. */
static void end_projections(struct bag_plan *const *plans, size_t count,
                            const struct bag_model *model, void *memory)
{
    struct region *regions = memory;
    for (size_t i = 0; i < model->num_features; i++) {
        if (regions[i].projection)
            bag_project(regions[i].projection, regions[i].pooled, regions[i].count,
                        regions[i].product);
    }
    each(plans, count, regions, store);
    bag_buffers_put(memory);
}

/* ---- the steps ------------------------------------------------------------------------------- */

void bag_infer_drop(struct bag_infer *infer)
{
    bag_buffers_put(infer->scratch.pooled);
    infer->scratch.pooled = NULL;
    bag_reply_drop(infer);
}

void bag_infer_free_scratch(struct bag_infer *infer)
{
    bag_arena_reset(&infer->scratch.arena, infer->scratch.arena.max_bytes);
}

void bag_infer_reset(struct bag_infer *infer)
{
    bag_infer_drop(infer);
    bag_infer_free_scratch(infer);
    bag_buffers_put(infer->scratch.unpacked);
    infer->scratch.unpacked = NULL;
    infer->scratch.packed_bytes = 0;
    infer->scratch.is_recorded = false;
    infer->plan.id.bytes = 0;
    infer->plan.sampled = false;
    infer->scratch.absent = NULL;
    infer->scratch.absent_bytes = 0;
    infer->output.bytes = infer->output.header_bytes = infer->output.default_bags = 0;
}

bool bag_infer_is_reset(const struct bag_infer *infer)
{
    const struct bag_infer_scratch *scratch = &infer->scratch;
    return !infer->output.reply && !scratch->results && !scratch->staged && !scratch->explanation &&
           !scratch->pooled && !scratch->unpacked && bag_arena_is_reset(&scratch->arena);
}

void bag_infer_free(struct bag_infer *infer)
{
    bag_infer_reset(infer);
    bag_arena_free(&infer->scratch.arena);
}

bool bag_infer_unpack(struct bag_infer *infer, struct bag_buffers *buffers, size_t max_bytes,
                      struct bag_problem *problem)
{
    struct bag_infer_input *input = &infer->input;
    struct bag_inflate_limits limits = {max_bytes, MAX_INFLATE_RATIO};
    size_t bytes;
    if (input->coding == BAG_CODING_IDENTITY)
        return true;
    char *unpacked = bag_inflate(input->coding, input->body, input->body_bytes, &limits,
                                 &buffers->source, &bytes, problem);
    if (!unpacked)
        return false;
    infer->scratch.unpacked = unpacked;
    infer->scratch.packed_bytes = input->body_bytes;
    input->coding = BAG_CODING_IDENTITY;
    input->body = unpacked;
    input->body_bytes = input->header_bytes = bytes;
    return !input->header_length ||
           bag_v2_header_length(input->header_length, bytes, &input->header_bytes, problem);
}

/* Returns the decoded JSON header: the cached one of an earlier request, or `fresh` after decoding
 * into it. Returns NULL and sets *problem if the header is wrong. */
static const struct bag_v2_request *decode(struct bag_infer *infer, struct bag_header_cache *cache,
                                           struct bag_v2_request *fresh,
                                           struct bag_problem *problem)
{
    const struct bag_infer_input *input = &infer->input;
    const struct bag_v2_request *kept = NULL;
    if (cache)
        kept = bag_header_cache_find(cache, input->body, input->body_bytes, input->header_bytes);
    if (kept)
        return kept;
    if (!bag_v2_request_decode(input->body, input->body_bytes, input->header_bytes,
                               &bag_json_default_limits, &infer->scratch.arena, fresh, problem))
        return NULL;
    if (cache)
        bag_header_cache_learn(cache, input->body, input->body_bytes, input->header_bytes);
    return fresh;
}

bool bag_infer_knows_header(const struct bag_infer *infer, struct bag_header_cache *header_cache)
{
    const struct bag_infer_input *input = &infer->input;
    if (bag_header_cache_find(header_cache, input->body, input->body_bytes, input->header_bytes))
        return true;
    bag_header_cache_learn(header_cache, input->body, input->body_bytes, input->header_bytes);
    return false;
}

/* Checks the limit of work. A small body can ask for much work, with many bags without an index or
 * with wide projections. */
static bool check_work(const struct bag_infer *infer, struct bag_problem *problem)
{
    const size_t sent = bag_infer_sent_bytes(infer);
    const size_t bytes = sent < MIN_WORK_BYTES ? MIN_WORK_BYTES : sent;
    const size_t ns_per_byte = infer->input.limits->max_work_ns_per_byte;
    uint64_t cost_ns = bag_infer_cost_ns(infer), limit_ns;
    if (ns_per_byte == 0 || __builtin_mul_overflow(bytes, ns_per_byte, &limit_ns) ||
        cost_ns <= limit_ns)
        return true;
    return bag_problem_set(
        problem, BAG_ERROR_BAD_REQUEST,
        "the request would be about %llu ms of work; a body of %zu bytes%s may be "
        "%llu ms (max_work_us_per_byte)",
        (unsigned long long)cost_ns / 1000000, sent,
        infer->scratch.packed_bytes ? ", as it was sent," : "",
        (unsigned long long)limit_ns / 1000000);
}

bool bag_infer_plan(struct bag_infer *infer, struct bag_header_cache *header_cache,
                    struct bag_problem *problem)
{
    const struct bag_infer_input *input = &infer->input;
    struct bag_arena *arena = &infer->scratch.arena;
    struct bag_v2_request fresh BAG_UNSET;
    arena->source = input->memory ? &input->memory->source : NULL;
    size_t factor = ARENA_FACTOR + (input->model->resolves ? KEYS_FACTOR : 0);
    bag_arena_reset(arena, ARENA_BASE_BYTES + factor * input->body_bytes);
    const struct bag_v2_request *request = decode(infer, header_cache, &fresh, problem);
    if (!request ||
        !bag_plan_make(&infer->plan, input->model, request, input->limits, arena, problem))
        return false;
    bag_stopwatch_lap(&infer->watch, BAG_STAGE_INPUT);
    return bag_reply_bound(infer, problem) && check_work(infer, problem);
}

/* Sorts the segments of ops that need it, with memory from the arena. Returns false if that is
 * exhausted. */
static bool sort_segments(struct bag_infer *infer)
{
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        struct bag_pool_args *args = &infer->plan.ops[i].args;
        size_t bytes = bag_pool_scratch_bytes(args);
        void *scratch = bytes ? bag_arena_alloc(&infer->scratch.arena, bytes) : NULL;
        if (bytes && !scratch)
            return false;
        if (scratch)
            bag_pool_sort(args, scratch);
    }
    return true;
}

/* Sets *problem: there is no memory for the reply. Returns false. */
static bool reject_memory(const struct bag_infer *infer, struct bag_problem *problem)
{
    return bag_budget_reject(infer->scratch.buffers->budget, "a reply", infer->output.bytes,
                             problem);
}

/* Prepares everything except projections. */
static bool prepare_reply(struct bag_infer *infer, struct bag_buffers *buffers,
                          struct bag_problem *problem)
{
    infer->scratch.buffers = buffers;
    if (!sort_segments(infer) || !bag_reply_begin(infer))
        return reject_memory(infer, problem);
    infer->output.default_bags = bag_ops_default_bags(infer->plan.ops, infer->plan.num_ops);
    if (infer->input.model->mapped)
        infer->scratch.epoch = bag_map_epoch();
    return true;
}

/* Drops a prepared inference because there is no memory for its projections. Returns false. */
static bool reject_projection(struct bag_infer *infer, struct bag_problem *problem)
{
    bag_reply_drop(infer);
    return reject_memory(infer, problem);
}

bool bag_infer_prepare(struct bag_infer *infer, struct bag_buffers *buffers,
                       struct bag_problem *problem)
{
    struct bag_plan *plan = &infer->plan;
    if (!prepare_reply(infer, buffers, problem))
        return false;
    if (plan->projects)
        infer->scratch.pooled = begin_projections(&plan, 1, infer->input.model, buffers);
    return infer->scratch.pooled || !plan->projects || reject_projection(infer, problem);
}

void bag_infer_pool(const struct bag_infer *infer, struct bag_split split)
{
    /* The last op exists only if it has bags in the split. */
    size_t end = split.end_op + (split.end_bag > 0);
    for (size_t i = split.first_op; i < end; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        struct bag_range range = bag_split_range(&split, &op->args, i);
        switch (op->kind) {
        case BAG_OP_LOCAL:
            bag_op_pool(op, range);
            break;
        case BAG_OP_MAPPED:
            bag_mapped_pool(op, range);
            break;
        case BAG_OP_REMOTE: /* the shards pool it */
            break;
        }
    }
}

bool bag_infer_check(struct bag_infer *infer, struct bag_problem *problem)
{
    if (bag_mapped_check(infer, problem))
        return true;
    bag_infer_drop(infer);
    return false;
}

void bag_infer_finish(struct bag_infer *infer)
{
    struct bag_plan *plan = &infer->plan;
    if (infer->scratch.pooled)
        end_projections(&plan, 1, infer->input.model, infer->scratch.pooled);
    infer->scratch.pooled = NULL;
    bag_stopwatch_lap(&infer->watch, BAG_STAGE_INFER);
    if (bag_reply_end(infer))
        bag_stopwatch_lap(&infer->watch, BAG_STAGE_OUTPUT);
}

const char *bag_infer_reply_coding(const struct bag_infer *infer)
{
    enum bag_coding coding = infer->output.coding;
    return coding == BAG_CODING_IDENTITY ? NULL : bag_coding_names[coding];
}

bool bag_infer_run(struct bag_infer *infer, struct bag_buffers *buffers,
                   struct bag_problem *problem)
{
    if (!bag_infer_prepare(infer, buffers, problem))
        return false;
    bag_infer_pool(infer, bag_split_all(infer->plan.num_ops));
    if (!bag_infer_check(infer, problem))
        return false;
    bag_infer_finish(infer);
    return true;
}

void bag_infer_run_together(struct bag_infer *const *infers, bool *made,
                            struct bag_problem *const *problems, size_t count,
                            struct bag_buffers *buffers)
{
    struct bag_plan *plans[BAG_INFER_TOGETHER];
    bool whole[BAG_INFER_TOGETHER];
    size_t num_plans = 0;
    for (size_t i = 0; i < count; i++) {
        made[i] = prepare_reply(infers[i], buffers, problems[i]);
        if (made[i])
            plans[num_plans++] = &infers[i]->plan;
    }
    void *pooled =
        num_plans ? begin_projections(plans, num_plans, infers[0]->input.model, buffers) : NULL;
    for (size_t i = 0; i < count; i++) {
        if (made[i] && !pooled)
            made[i] = reject_projection(infers[i], problems[i]);
        if (!made[i])
            continue;
        bag_infer_pool(infers[i], bag_split_all(infers[i]->plan.num_ops));
        whole[i] = bag_mapped_check(infers[i], problems[i]);
    }
    if (pooled)
        end_projections(plans, num_plans, infers[0]->input.model, pooled);
    /* An inference with a missing row was projected with the others. Its reply is dropped. */
    for (size_t i = 0; i < count; i++) {
        if (made[i] && whole[i])
            bag_infer_finish(infers[i]);
        else if (made[i])
            bag_reply_drop(infers[i]);
        made[i] = made[i] && whole[i];
    }
}

/* ---- costs ----------------------------------------------------------------------------------- */

uint64_t bag_infer_plan_cost_ns(const struct bag_infer *infer, bool known)
{
    uint64_t body_bytes = infer->input.body_bytes, header_bytes = infer->input.header_bytes;
    return (known ? header_bytes / KNOWN_BYTES_PER_NS : header_bytes * JSON_PARSE_NS_PER_BYTE) +
           (body_bytes - header_bytes) / BINARY_CHECK_BYTES_PER_NS +
           (infer->input.model->resolves ? KEYS_NS_PER_BYTE * body_bytes : 0);
}

uint64_t bag_infer_whole_cost_ns(const struct bag_infer *infer)
{
    size_t tensor_bytes = infer->input.body_bytes - infer->input.header_bytes;
    size_t indices = (tensor_bytes ? tensor_bytes : infer->input.body_bytes) / sizeof(int64_t);
    return bag_infer_plan_cost_ns(infer, false) +
           indices * infer->input.model->typical_row_bytes / GATHER_BYTES_PER_NS;
}

uint64_t bag_infer_pool_cost_ns(const struct bag_infer *infer)
{
    const struct bag_ops_work *work = &infer->plan.work;
    return work->bytes / GATHER_BYTES_PER_NS + work->bags * BAG_NS +
           infer->plan.result_bytes / WRITE_BYTES_PER_NS +
           infer->plan.encoded_elements / ENCODED_ELEMENTS_PER_NS;
}

uint64_t bag_infer_cost_ns(const struct bag_infer *infer)
{
    return bag_infer_pool_cost_ns(infer) + infer->plan.work.unsorted * SORT_NS_PER_INDEX +
           infer->scratch.explanation_bytes / EXPLAIN_BYTES_PER_NS +
           infer->plan.project_products / PRODUCTS_PER_NS +
           infer->plan.staged_bytes / WRITE_BYTES_PER_NS +
           bag_reply_count_printed(infer) * PRINT_NS_PER_NUMBER +
           bag_reply_count_packed(infer) * (uint64_t)PACK_NS_PER_BYTE;
}
