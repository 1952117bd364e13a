/* One inference, planned and run; see infer.h. */
#include "infer.h"

#include <stdlib.h>
#include <string.h>

#define OUTPUT_NAME "embeddings"

/* Decoding may take this many times the body: 64-bit integers from two bytes of text, a copy of the
 * envelope, and its tree. */
#define ARENA_FACTOR     16
#define ARENA_BASE_BYTES (4 << 20)

/* Rough costs, for choosing between the I/O thread and a worker. Being wrong by a factor of two
 * moves the border and nothing else. */
#define JSON_PARSE_NS_PER_BYTE    2
#define BINARY_CHECK_BYTES_PER_NS 4
#define GATHER_BYTES_PER_NS       8
#define PRINT_NS_PER_NUMBER       40
#define PACK_NS_PER_BYTE          10
#define BAG_NS                    10

/* ---- inputs ---------------------------------------------------------------------------------- */

static enum bag_input find_input(struct bag_text name)
{
    enum bag_input input = 0;
    while (input < BAG_INPUT_COUNT && !bag_text_is(name, bag_input_names[input]))
        input++;
    return input;
}

static bool match_inputs(struct bag_infer *infer, const struct bag_v2_request *request,
                         struct bag_inputs *inputs, struct bag_problem *problem)
{
    for (size_t i = 0; i < request->num_inputs; i++) {
        const struct bag_v2_input *announced = &request->inputs[i];
        enum bag_input input = find_input(announced->name);
        if (input == BAG_INPUT_COUNT)
            return bag_problem_set(problem, 400,
                                   "input '%s' is unknown; this model takes indices, offsets, "
                                   "segment_ids, num_segments, default_index and "
                                   "per_sample_weights",
                                   bag_quote(announced->name.bytes, announced->name.count).text);
        if (!bag_v2_input_read(announced, &infer->arena, &infer->tensors[input], problem))
            return false;
        inputs->tensor[input] = &infer->tensors[input];
    }
    return true;
}

static bool match_outputs(struct bag_infer *infer, const struct bag_v2_request *request,
                          struct bag_problem *problem)
{
    for (size_t i = 0; i < request->num_outputs; i++) {
        struct bag_text name = request->outputs[i].name;
        if (!bag_text_is(name, OUTPUT_NAME))
            return bag_problem_set(problem, 400,
                                   "output '%s' is unknown; this model makes '" OUTPUT_NAME "'",
                                   bag_quote(name.bytes, name.count).text);
    }
    infer->output.binary = bag_v2_output_encoding(request, OUTPUT_NAME) == BAG_V2_BINARY;
    return true;
}

/* The model's rules with what the request's parameters change. */
static bool apply_overrides(const struct bag_model *model, const struct bag_v2_overrides *overrides,
                            struct bag_rules *rules, struct bag_problem *problem)
{
    struct bag_fault fault;
    *rules = model->rules;
    if (overrides->has_reduction)
        rules->reduction = overrides->reduction;
    if (overrides->has_padding_idx) {
        rules->has_padding_idx = true;
        rules->padding_idx = overrides->padding_idx;
    }
    if (overrides->has_include_last_offset)
        rules->include_last_offset = overrides->include_last_offset;
    if (overrides->has_output_dtype)
        rules->output_dtype = overrides->output_dtype;
    if (bag_rules_check(&model->memory.table, rules, &fault) != BAG_STATUS_OK)
        return bag_problem_from_fault(problem, &fault);
    return true;
}

/* Before the indices are looked at. */
static bool check_ids(const struct bag_infer *infer, const struct bag_inputs *inputs,
                      struct bag_problem *problem)
{
    const struct bag_tensor *indices = inputs->tensor[BAG_INDICES];
    if (!indices || indices->count <= infer->limits->max_ids)
        return true;
    return bag_problem_set(problem, 400, "'indices' has %zu elements; the limit (max_ids) is %zu",
                           indices->count, infer->limits->max_ids);
}

/* ---- the output ------------------------------------------------------------------------------ */

static void describe_output(struct bag_infer *infer)
{
    const struct bag_table_memory *memory = &infer->model->memory;
    struct bag_v2_reply_output *output = &infer->output;
    output->name = OUTPUT_NAME;
    output->dtype = infer->pool.output_dtype;
    output->rank = memory->rank;
    output->shape[0] = (int64_t)infer->pool.num_bags;
    memcpy(&output->shape[1], &memory->shape[1], (memory->rank - 1) * sizeof memory->shape[0]);
    output->count = infer->pool.num_bags * memory->table.row_elements;
}

static struct bag_v2_reply reply_of(const struct bag_infer *infer)
{
    return (struct bag_v2_reply){.model_name = infer->model->name,
                                 .model_version = infer->model->version,
                                 .id = infer->id,
                                 .outputs = &infer->output,
                                 .num_outputs = 1};
}

/* Sets reply_bytes to the most that the reply can take, or refuses it. */
static bool bound_reply(struct bag_infer *infer, struct bag_problem *problem)
{
    struct bag_v2_reply reply = reply_of(infer);
    size_t tensors = infer->output.binary ? infer->pool.result_bytes : 0;
    if (!infer->output.binary &&
        !bag_v2_reply_check_json(OUTPUT_NAME, infer->output.dtype, problem))
        return false;
    if (__builtin_add_overflow(bag_v2_reply_bound(&reply), tensors, &infer->reply_bytes))
        infer->reply_bytes = SIZE_MAX;
    if (infer->reply_bytes <= infer->limits->max_reply_bytes)
        return true;
    return bag_problem_set(problem, 400,
                           "the reply of %zu bags could take %zu bytes%s; the limit "
                           "(max_reply_bytes) is %zu bytes",
                           infer->pool.num_bags, infer->reply_bytes,
                           infer->output.binary ? "" : " as JSON (binary output is smaller)",
                           infer->limits->max_reply_bytes);
}

/* ---- the steps ------------------------------------------------------------------------------- */

void bag_infer_reset(struct bag_infer *infer)
{
    bag_buffers_put(infer->unpacked);
    infer->unpacked = NULL;
    infer->reply = infer->result = NULL;
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

/* The decoded envelope: as it was kept from an earlier request, or decoded into `fresh`. */
static const struct bag_v2_request *decode(struct bag_infer *infer, struct bag_envelopes *envelopes,
                                           struct bag_v2_request *fresh,
                                           struct bag_problem *problem)
{
    const struct bag_v2_request *kept = NULL;
    if (envelopes)
        kept = bag_envelopes_find(envelopes, infer->body, infer->body_bytes, infer->header_bytes);
    if (kept)
        return kept;
    if (!bag_v2_request_decode(infer->body, infer->body_bytes, infer->header_bytes, &infer->arena,
                               fresh, problem))
        return NULL;
    if (envelopes)
        bag_envelopes_learn(envelopes, infer->body, infer->body_bytes, infer->header_bytes);
    return fresh;
}

bool bag_infer_plan(struct bag_infer *infer, struct bag_envelopes *envelopes,
                    struct bag_problem *problem)
{
    struct bag_v2_request fresh;
    struct bag_inputs inputs = {{NULL}};
    struct bag_rules rules;
    struct bag_fault fault;
    bag_arena_reset(&infer->arena, ARENA_BASE_BYTES + ARENA_FACTOR * infer->body_bytes);
    const struct bag_v2_request *request = decode(infer, envelopes, &fresh, problem);
    if (!request || !match_outputs(infer, request, problem) ||
        !apply_overrides(infer->model, &request->overrides, &rules, problem) ||
        !match_inputs(infer, request, &inputs, problem))
        return false;
    infer->id = request->id;
    infer->timeout_us = request->overrides.timeout_us ? request->overrides.timeout_us : UINT64_MAX;
    if (!check_ids(infer, &inputs, problem))
        return false;
    if (bag_pool_check(&infer->model->memory.table, &rules, &inputs, infer->limits->max_reply_bytes,
                       &infer->pool, &fault) != BAG_STATUS_OK)
        return bag_problem_from_fault(problem, &fault);
    if (infer->pool.num_bags > infer->limits->max_bags)
        return bag_problem_set(problem, 400,
                               "the request has %zu bags; the limit (max_bags) is %zu",
                               infer->pool.num_bags, infer->limits->max_bags);
    describe_output(infer);
    bag_stopwatch_lap(&infer->watch, BAG_STAGE_INPUT);
    return bound_reply(infer, problem);
}

static bool sort_segments(struct bag_infer *infer)
{
    size_t bytes = bag_pool_scratch_bytes(&infer->pool);
    void *scratch = bytes ? bag_arena_alloc(&infer->arena, bytes) : NULL;
    if (scratch)
        bag_pool_sort(&infer->pool, scratch);
    return scratch || !bytes;
}

/* For the statistics: bags that brought no index, where those get a row. */
static size_t count_default_bags(const struct bag_pool *pool)
{
    size_t count = 0, before = 0;
    if (pool->default_row < 0)
        return 0;
    for (size_t bag = 0; bag < pool->num_bags; bag++) {
        size_t entries = bag_pool_entries_before(pool, bag + 1);
        count += entries == before;
        before = entries;
    }
    return count;
}

/* Binary results go straight behind the header, whose length is known before the numbers are. */
static void place_binary(struct bag_infer *infer)
{
    struct bag_v2_reply reply = reply_of(infer);
    infer->result = bag_v2_reply_header(&reply, infer->reply);
    infer->reply_header_bytes = (size_t)(infer->result - infer->reply);
    infer->reply_bytes = infer->reply_header_bytes + infer->pool.result_bytes;
}

bool bag_infer_prepare(struct bag_infer *infer, struct bag_buffers *buffers,
                       struct bag_problem *problem)
{
    infer->buffers = buffers;
    infer->reply = bag_buffers_get(buffers, infer->reply_bytes);
    if (infer->reply && sort_segments(infer)) {
        infer->default_bags = count_default_bags(&infer->pool);
        if (infer->output.binary)
            place_binary(infer);
        else
            infer->result = malloc(infer->pool.result_bytes + 1);
        if (infer->result)
            return true;
    }
    bag_buffers_put(infer->reply);
    infer->reply = NULL;
    return bag_problem_set(problem, 503, "not enough memory for a reply of %zu bytes",
                           infer->reply_bytes);
}

void bag_infer_pool(const struct bag_infer *infer, struct bag_range range)
{
    bag_pool_run(&infer->pool, range, infer->result);
}

static void print_numbers(struct bag_infer *infer)
{
    struct bag_v2_reply reply = reply_of(infer);
    infer->output.data = infer->result;
    infer->reply_bytes = (size_t)(bag_v2_reply_header(&reply, infer->reply) - infer->reply);
    free(infer->result);
    infer->result = NULL;
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
    bag_stopwatch_lap(&infer->watch, BAG_STAGE_INFER);
    bool works = !infer->output.binary || wants_packing(infer);
    if (!infer->output.binary)
        print_numbers(infer);
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
    bag_infer_pool(infer, bag_range_all(&infer->pool));
    bag_infer_finish(infer);
    return true;
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
           indices * bag_row_bytes(&infer->model->memory.table) / GATHER_BYTES_PER_NS;
}

uint64_t bag_infer_gathered_bytes(const struct bag_infer *infer)
{
    const struct bag_table *table = &infer->model->memory.table;
    return infer->pool.indices.count * bag_row_bytes(table);
}

uint64_t bag_infer_pool_cost_ns(const struct bag_infer *infer)
{
    return bag_infer_gathered_bytes(infer) / GATHER_BYTES_PER_NS + infer->pool.num_bags * BAG_NS;
}

uint64_t bag_infer_cost_ns(const struct bag_infer *infer)
{
    uint64_t numbers = infer->output.binary ? 0 : infer->output.count;
    uint64_t packed_bytes = wants_packing(infer) ? infer->reply_bytes : 0;
    return bag_infer_pool_cost_ns(infer) + numbers * PRINT_NS_PER_NUMBER +
           packed_bytes * PACK_NS_PER_BYTE;
}

void bag_infer_free(struct bag_infer *infer)
{
    bag_arena_free(&infer->arena);
}
