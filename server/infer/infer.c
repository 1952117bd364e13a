/* One inference, planned and run; see infer.h. */
#include "infer.h"

#include <stdlib.h>
#include <string.h>

/* Decoding may take this many times the body: 64-bit integers from two bytes of text, a copy of the
 * JSON header, and its tree. */
#define ARENA_FACTOR     16
#define ARENA_BASE_BYTES (4 << 20)

/* Rough costs, for choosing between the I/O thread and a worker. Being wrong by a factor of two
 * moves the bound and nothing else. */
#define JSON_PARSE_NS_PER_BYTE    2
#define BINARY_CHECK_BYTES_PER_NS 4
#define GATHER_BYTES_PER_NS       8
#define PRINT_NS_PER_NUMBER       40
#define PACK_NS_PER_BYTE          10
#define PRODUCTS_PER_NS           16
#define BAG_NS                    10

/* ---- the reply ------------------------------------------------------------------------------- */

static struct bag_v2_reply reply_of(const struct bag_infer *infer)
{
    return (struct bag_v2_reply){.model_name = infer->model->name,
                                 .model_version = infer->model->version,
                                 .id = infer->id,
                                 .outputs = infer->plan.outputs,
                                 .num_outputs = infer->plan.num_outputs,
                                 .explanation = {infer->explanation, infer->explanation_bytes}};
}

/* Sets reply_bytes to the most that the reply can take, or rejects it. */
static bool bound_reply(struct bag_infer *infer, struct bag_problem *problem)
{
    const struct bag_plan *plan = &infer->plan;
    struct bag_v2_reply reply = reply_of(infer);
    if (__builtin_add_overflow(bag_v2_reply_bound(&reply), plan->binary_bytes, &infer->reply_bytes))
        infer->reply_bytes = SIZE_MAX;
    if (infer->reply_bytes <= infer->limits->max_reply_bytes)
        return true;
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "the reply of %zu bags could take %zu bytes%s; the limit "
                           "(max_reply_bytes) is %zu bytes",
                           plan->work.bags, infer->reply_bytes,
                           plan->binary ? "" : " as JSON (binary output is smaller)",
                           infer->limits->max_reply_bytes);
}

static size_t output_bytes(const struct bag_v2_reply_output *output)
{
    return output->count * bag_dtypes[output->dtype].bytes;
}

/* Gives every output its place in the results, one after the other, and every pooling its own. */
static void place_outputs(struct bag_infer *infer)
{
    struct bag_plan *plan = &infer->plan;
    char *at = infer->results;
    for (size_t i = 0; i < plan->num_outputs; i++) {
        plan->outputs[i].data = at;
        at += output_bytes(&plan->outputs[i]);
    }
    for (size_t i = 0; i < plan->num_ops; i++) {
        struct bag_op *pooling = &plan->ops[i];
        const char *output = plan->outputs[pooling->output].data;
        size_t start = (size_t)(output - infer->results);
        pooling->result = pooling->target = infer->results + start + pooling->offset;
    }
}

/* Binary results go straight behind the header, whose length is known before the numbers are. */
static void begin_binary(struct bag_infer *infer)
{
    struct bag_v2_reply reply = reply_of(infer);
    infer->results = bag_v2_reply_header(&reply, infer->reply);
    infer->reply_header_bytes = (size_t)(infer->results - infer->reply);
    infer->reply_bytes = infer->reply_header_bytes + infer->plan.result_bytes;
}

/* Prints the numbers; behind them go the outputs that are binary all the same. */
static void print_numbers(struct bag_infer *infer)
{
    const struct bag_plan *plan = &infer->plan;
    struct bag_v2_reply reply = reply_of(infer);
    bool mixed = false;
    char *end = bag_v2_reply_header(&reply, infer->reply);
    size_t header_bytes = (size_t)(end - infer->reply);
    for (size_t i = 0; i < plan->num_outputs; i++) {
        const struct bag_v2_reply_output *output = &plan->outputs[i];
        if (!output->binary)
            continue;
        memcpy(end, output->data, output_bytes(output));
        end += output_bytes(output);
        mixed = true;
    }
    infer->reply_header_bytes = mixed ? header_bytes : 0;
    infer->reply_bytes = (size_t)(end - infer->reply);
    free(infer->results);
    infer->results = NULL;
}

/* ---- the steps ------------------------------------------------------------------------------- */

void bag_infer_reset(struct bag_infer *infer)
{
    bag_buffers_put(infer->unpacked);
    infer->unpacked = NULL;
    infer->reply = infer->results = NULL;
    infer->id.bytes = 0;
    infer->pooled = NULL;
    infer->explanation = NULL;
    infer->explanation_bytes = 0;
    infer->reply_bytes = infer->reply_header_bytes = infer->default_bags = 0;
}

static void *get_buffer(void *buffers, size_t bytes)
{
    return bag_buffers_get(buffers, bytes);
}

bool bag_infer_unpack(struct bag_infer *infer, struct bag_buffers *buffers, size_t max_bytes,
                      struct bag_problem *problem)
{
    struct bag_coding_memory memory = {get_buffer, bag_buffers_put, buffers};
    size_t bytes;
    if (infer->coding == BAG_CODING_IDENTITY)
        return true;
    infer->unpacked = bag_inflate(infer->coding, infer->body, infer->body_bytes, max_bytes, &memory,
                                  &bytes, problem);
    if (!infer->unpacked)
        return false;
    infer->coding = BAG_CODING_IDENTITY;
    infer->body = infer->unpacked;
    infer->body_bytes = infer->header_bytes = bytes;
    return !infer->header_length ||
           bag_v2_header_length(infer->header_length, bytes, &infer->header_bytes, problem);
}

/* The decoded JSON header: as it was kept from an earlier request, or decoded into `fresh`. */
static const struct bag_v2_request *decode(struct bag_infer *infer,
                                           struct bag_header_cache *header_cache,
                                           struct bag_v2_request *fresh,
                                           struct bag_problem *problem)
{
    const struct bag_v2_request *kept = NULL;
    if (header_cache)
        kept = bag_header_cache_find(header_cache, infer->body, infer->body_bytes,
                                     infer->header_bytes);
    if (kept)
        return kept;
    if (!bag_v2_request_decode(infer->body, infer->body_bytes, infer->header_bytes, &infer->arena,
                               fresh, problem))
        return NULL;
    if (header_cache)
        bag_header_cache_learn(header_cache, infer->body, infer->body_bytes, infer->header_bytes);
    return fresh;
}

bool bag_infer_plan(struct bag_infer *infer, struct bag_header_cache *header_cache,
                    struct bag_problem *problem)
{
    struct bag_v2_request fresh;
    bag_arena_reset(&infer->arena, ARENA_BASE_BYTES + ARENA_FACTOR * infer->body_bytes);
    const struct bag_v2_request *request = decode(infer, header_cache, &fresh, problem);
    if (!request)
        return false;
    infer->id = request->id;
    infer->timeout_us = request->overrides.timeout_us ? request->overrides.timeout_us : UINT64_MAX;
    if (!bag_plan_make(&infer->plan, infer->model, request, infer->limits, &infer->arena, problem))
        return false;
    infer->explanation_bytes =
        infer->plan.explains ? bag_explain_bound(&infer->plan, infer->model) : 0;
    bag_stopwatch_lap(&infer->watch, BAG_STAGE_INPUT);
    return bound_reply(infer, problem);
}

static bool sort_segments(struct bag_infer *infer)
{
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        struct bag_pool_args *args = &infer->plan.ops[i].args;
        size_t bytes = bag_pool_scratch_bytes(args);
        void *scratch = bytes ? bag_arena_alloc(&infer->arena, bytes) : NULL;
        if (bytes && !scratch)
            return false;
        if (scratch)
            bag_pool_sort(args, scratch);
    }
    return true;
}

static void free_explanation(struct bag_infer *infer)
{
    free(infer->explanation);
    infer->explanation = NULL;
    infer->explanation_bytes = 0;
}

static bool reject_memory(struct bag_infer *infer, struct bag_problem *problem)
{
    bag_buffers_put(infer->reply);
    if (!infer->plan.binary)
        free(infer->results);
    infer->reply = infer->results = NULL;
    free_explanation(infer);
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                           "not enough memory for a reply of %zu bytes", infer->reply_bytes);
}

static bool write_explanation(struct bag_infer *infer)
{
    if (!infer->plan.explains)
        return true;
    infer->explanation = malloc(infer->explanation_bytes);
    if (!infer->explanation)
        return false;
    char *end = bag_explain(&infer->plan, infer->model, infer->explanation);
    infer->explanation_bytes = (size_t)(end - infer->explanation);
    return true;
}

/* All but what is needed to project. */
static bool prepare_reply(struct bag_infer *infer, struct bag_buffers *buffers,
                          struct bag_problem *problem)
{
    infer->buffers = buffers;
    infer->reply = bag_buffers_get(buffers, infer->reply_bytes);
    if (infer->reply && write_explanation(infer) && sort_segments(infer)) {
        infer->default_bags = bag_ops_default_bags(infer->plan.ops, infer->plan.num_ops);
        if (infer->plan.binary)
            begin_binary(infer);
        else
            infer->results = malloc(infer->plan.result_bytes + 1);
        if (infer->results) {
            place_outputs(infer);
            return true;
        }
    }
    return reject_memory(infer, problem);
}

bool bag_infer_prepare(struct bag_infer *infer, struct bag_buffers *buffers,
                       struct bag_problem *problem)
{
    struct bag_plan *plan = &infer->plan;
    if (!prepare_reply(infer, buffers, problem))
        return false;
    if (plan->projects)
        infer->pooled = bag_projection_batch_begin(&plan, 1, infer->model, buffers);
    return infer->pooled || !plan->projects || reject_memory(infer, problem);
}

void bag_infer_pool(const struct bag_infer *infer, struct bag_split split)
{
    bag_ops_run(infer->plan.ops, split);
}

static bool wants_packing(const struct bag_infer *infer)
{
    return infer->reply_coding != BAG_CODING_IDENTITY &&
           infer->reply_bytes >= infer->limits->least_packed_bytes;
}

/* Compresses the reply where it becomes smaller by that. */
static void pack_reply(struct bag_infer *infer)
{
    char *packed =
        wants_packing(infer) ? bag_buffers_get(infer->buffers, infer->reply_bytes) : NULL;
    size_t bytes = packed ? bag_deflate(infer->reply_coding, infer->reply, infer->reply_bytes,
                                        packed, infer->reply_bytes)
                          : 0;
    bag_buffers_put(bytes ? infer->reply : packed);
    if (bytes) {
        infer->reply = packed;
        infer->reply_bytes = bytes;
    } else {
        infer->reply_coding = BAG_CODING_IDENTITY;
    }
}

void bag_infer_finish(struct bag_infer *infer)
{
    struct bag_plan *plan = &infer->plan;
    if (infer->pooled)
        bag_projection_batch_end(&plan, 1, infer->model, infer->pooled);
    infer->pooled = NULL;
    bag_stopwatch_lap(&infer->watch, BAG_STAGE_INFER);
    bool works = !infer->plan.binary || wants_packing(infer);
    if (!infer->plan.binary)
        print_numbers(infer);
    free_explanation(infer);
    pack_reply(infer);
    if (works)
        bag_stopwatch_lap(&infer->watch, BAG_STAGE_OUTPUT);
}

const char *bag_infer_reply_coding(const struct bag_infer *infer)
{
    return infer->reply_coding == BAG_CODING_IDENTITY ? NULL
                                                      : bag_coding_names[infer->reply_coding];
}

bool bag_infer_run(struct bag_infer *infer, struct bag_buffers *buffers,
                   struct bag_problem *problem)
{
    if (!bag_infer_prepare(infer, buffers, problem))
        return false;
    bag_infer_pool(infer, bag_split_all(infer->plan.num_ops));
    bag_infer_finish(infer);
    return true;
}

void bag_infer_run_together(struct bag_infer *const *infers, bool *made,
                            struct bag_problem *const *problems, size_t count,
                            struct bag_buffers *buffers)
{
    struct bag_plan *plans[BAG_INFER_TOGETHER];
    size_t num_plans = 0;
    for (size_t i = 0; i < count; i++) {
        made[i] = prepare_reply(infers[i], buffers, problems[i]);
        if (made[i])
            plans[num_plans++] = &infers[i]->plan;
    }
    void *pooled =
        num_plans ? bag_projection_batch_begin(plans, num_plans, infers[0]->model, buffers) : NULL;
    for (size_t i = 0; i < count; i++) {
        if (made[i] && !pooled)
            made[i] = reject_memory(infers[i], problems[i]);
        if (made[i])
            bag_infer_pool(infers[i], bag_split_all(infers[i]->plan.num_ops));
    }
    if (pooled)
        bag_projection_batch_end(plans, num_plans, infers[0]->model, pooled);
    for (size_t i = 0; i < count; i++) {
        if (made[i])
            bag_infer_finish(infers[i]);
    }
}

/* ---- costs ----------------------------------------------------------------------------------- */

uint64_t bag_infer_plan_cost_ns(size_t body_bytes, size_t header_bytes)
{
    return JSON_PARSE_NS_PER_BYTE * (uint64_t)header_bytes +
           (body_bytes - header_bytes) / BINARY_CHECK_BYTES_PER_NS;
}

uint64_t bag_infer_whole_cost_ns(const struct bag_infer *infer)
{
    size_t tensor_bytes = infer->body_bytes - infer->header_bytes;
    size_t indices = (tensor_bytes ? tensor_bytes : infer->body_bytes) / sizeof(int64_t);
    return bag_infer_plan_cost_ns(infer->body_bytes, infer->header_bytes) +
           indices * infer->model->typical_row_bytes / GATHER_BYTES_PER_NS;
}

uint64_t bag_infer_pool_cost_ns(const struct bag_infer *infer)
{
    const struct bag_ops_work *work = &infer->plan.work;
    return work->bytes / GATHER_BYTES_PER_NS + work->bags * BAG_NS;
}

static uint64_t printed_numbers(const struct bag_infer *infer)
{
    uint64_t numbers = 0;
    for (size_t i = 0; !infer->plan.binary && i < infer->plan.num_outputs; i++)
        numbers += infer->plan.outputs[i].binary ? 0 : infer->plan.outputs[i].count;
    return numbers;
}

uint64_t bag_infer_cost_ns(const struct bag_infer *infer)
{
    uint64_t packed_bytes = wants_packing(infer) ? infer->reply_bytes : 0;
    return bag_infer_pool_cost_ns(infer) + infer->plan.project_products / PRODUCTS_PER_NS +
           printed_numbers(infer) * PRINT_NS_PER_NUMBER + packed_bytes * PACK_NS_PER_BYTE;
}

void bag_infer_free_scratch(struct bag_infer *infer)
{
    bag_arena_reset(&infer->arena, infer->arena.max_bytes);
}

void bag_infer_free(struct bag_infer *infer)
{
    bag_arena_free(&infer->arena);
}
