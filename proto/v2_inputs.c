/* The "inputs" of a V2 JSON header: announced tensors, and views of them; and batches of rows,
 * which are made of inputs. */
#include "json_writer.h"
#include "numbers.h"
#include "v2_reader.h"
#include "v2_request.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads "datatype". */
static bool read_dtype(const cJSON *item, struct bag_v2_input *input, struct bag_problem *problem)
{
    const cJSON *dtype = bag_v2_member(item, "datatype");
    if (!cJSON_IsString(dtype))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "\"datatype\" must be a string such as \"INT64\"");
    input->dtype = bag_dtype_find(dtype->valuestring, strlen(dtype->valuestring));
    if (input->dtype == BAG_DTYPE_COUNT)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "datatype \"%s\" is unknown; tensors are BOOL, (U)INT8 to 64, FP16, "
                               "BF16, FP32, FP64 or BYTES",
                               bag_quote(dtype->valuestring, strlen(dtype->valuestring)).text);
    return true;
}

/* Reads "shape". An empty one is that of a scalar, which has one element. */
static bool read_shape(const cJSON *item, struct bag_v2_input *input, struct bag_problem *problem)
{
    const cJSON *shape = bag_v2_member(item, "shape");
    if (!cJSON_IsArray(shape))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "\"shape\" must be an array of integers");
    input->rank = 0;
    input->count = 1;
    for (const cJSON *dimension = shape->child; dimension; dimension = dimension->next) {
        /* Append a dimension to the shape and multiply the number of elements by it. */
        if (input->rank == BAG_MAX_RANK)
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "\"shape\" has more than %d dimensions", BAG_MAX_RANK);
        if (!bag_v2_integer(dimension, 0, BAG_V2_LARGEST_EXACT, &input->shape[input->rank]))
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "dimension %u of \"shape\" must be an integer from 0 to %.0f",
                                   (unsigned)input->rank, BAG_V2_LARGEST_EXACT);
        if (__builtin_mul_overflow(input->count, (size_t)input->shape[input->rank], &input->count))
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "\"shape\" has more elements than can be counted");
        input->rank++;
    }
    return true;
}

/* Takes `size` bytes of the binary part for the input. They follow those of the inputs before it.
 * Elements of BYTES have no fixed size, so any number is accepted for them. */
static bool take_binary(struct bag_v2_reader *reader, const cJSON *size, struct bag_v2_input *input)
{
    size_t element_bytes = bag_dtypes[input->dtype].bytes, needed;
    size_t left = reader->body_bytes - reader->next_binary;
    int64_t bytes;
    if (!bag_v2_integer(size, 0, BAG_V2_LARGEST_EXACT, &bytes))
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "binary_data_size must be an integer of at least 0");
    if (__builtin_mul_overflow(input->count, element_bytes, &needed))
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST, "\"shape\" is too large");
    if (element_bytes && (uint64_t)bytes != needed)
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "binary_data_size is %lld; the shape of %zu %s elements takes %zu "
                               "bytes",
                               (long long)bytes, input->count, bag_dtypes[input->dtype].name,
                               needed);
    if ((uint64_t)bytes > left)
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "binary_data_size is %lld, but only %zu bytes are left in the body",
                               (long long)bytes, left);
    input->binary = true;
    input->position = reader->next_binary;
    input->raw.data = reader->body + reader->next_binary;
    input->raw.bytes = (size_t)bytes;
    reader->next_binary += (size_t)bytes;
    return true;
}

/* Takes the array that the scanner cut out. In the tree its number is in its place. */
static bool take_json(struct bag_v2_reader *reader, const cJSON *data, struct bag_v2_input *input)
{
    int64_t number;
    if (!bag_v2_integer(data, 0, (double)reader->header.num_data, &number))
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST, "\"data\" must be an array");
    const struct bag_text *span = &reader->header.data[number];
    input->binary = false;
    input->position = (size_t)(span->data - reader->body);
    input->raw.data = span->data;
    input->raw.bytes = span->bytes;
    return true;
}

/* Finds the elements of an input, in the JSON header or in the binary part. */
static bool read_data(struct bag_v2_reader *reader, const cJSON *item, struct bag_v2_input *input)
{
    const cJSON *parameters;
    if (!bag_v2_read_parameters(item, &parameters, reader->problem) ||
        !bag_v2_check_no_shared_memory(parameters, reader->problem))
        return false;
    const cJSON *data = bag_v2_member(item, "data");
    const cJSON *size = bag_v2_member(parameters, "binary_data_size");
    if (data && size)
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "has both \"data\" and parameters.binary_data_size; send one");
    if (size)
        return take_binary(reader, size, input);
    if (data)
        return take_json(reader, data, input);
    return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                           "has neither \"data\" nor parameters.binary_data_size");
}

bool bag_v2_read_inputs(struct bag_v2_reader *reader)
{
    struct bag_v2_request *request = reader->request;
    const cJSON *inputs = bag_v2_member(reader->header.tree, "inputs"), *item;
    size_t count = 0;
    request->inputs =
        bag_v2_elements(reader, "inputs", inputs, sizeof *request->inputs, &request->num_inputs);
    if (!request->inputs)
        return false;
    cJSON_ArrayForEach(item, inputs)
    {
        /* Read the input at this position. A problem names the input, or its position if it has no
         * name. */
        size_t position = count++;
        struct bag_v2_input *input = &reader->request->inputs[position];
        if (!bag_v2_read_name(reader, item, &input->name))
            return bag_problem_prefix(reader->problem, "inputs[%zu]", position);
        if (!read_dtype(item, input, reader->problem) ||
            !read_shape(item, input, reader->problem) || !read_data(reader, item, input))
            return bag_problem_prefix(reader->problem, "input '%s'",
                                      bag_quote(input->name.data, input->name.bytes).text);
    }
    if (reader->next_binary != reader->body_bytes)
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "%zu bytes are left over after the last binary tensor",
                               reader->body_bytes - reader->next_binary);
    return bag_v2_check_unique(reader, &request->inputs->name, sizeof *request->inputs,
                               request->num_inputs, "input");
}

bool bag_v2_input_read(const struct bag_v2_input *input, struct bag_arena *arena,
                       struct bag_tensor *tensor, struct bag_problem *problem)
{
    const struct bag_dtype_info *dtype = &bag_dtypes[input->dtype];
    const char *end, *error_at;
    tensor->dtype = input->dtype;
    tensor->rank = input->rank;
    memcpy(tensor->shape, input->shape, input->rank * sizeof input->shape[0]);
    tensor->count = input->count;
    tensor->data = input->raw.data;
    if (input->binary || input->dtype == BAG_BYTES)
        return true; /* no input of ours takes BYTES: the check of dtypes says so */
    if (bag_numbers_max_text(input->dtype) == 0)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "input '%s': %s has no JSON form; send it as a binary tensor "
                               "(parameters.binary_data_size), or use an FP32 table",
                               bag_quote(input->name.data, input->name.bytes).text, dtype->name);
    /* An element takes two bytes of text with its comma or bracket, whatever the shape says. */
    size_t most = input->raw.bytes / 2, room = input->count < most ? input->count : most;
    void *data = bag_arena_array(arena, room, dtype->bytes);
    if (!data)
        return bag_v2_reject_memory(problem);
    if (!bag_numbers_parse(input->raw.data, input->raw.bytes, input->dtype, input->count, data,
                           &end, &error_at, problem))
        return bag_problem_prefix(problem, "input '%s', at byte %zu",
                                  bag_quote(input->name.data, input->name.bytes).text,
                                  input->position + (size_t)(error_at - input->raw.data));
    tensor->data = data;
    return true;
}

/* ---- batches of rows: parameters ------------------------------------------------------------- */

/* Reads a sequence number. */
static bool read_sequence(const cJSON *item, uint64_t *sequence, struct bag_problem *problem)
{
    int64_t number;
    if (!bag_v2_integer(item, 1, BAG_V2_LARGEST_EXACT, &number))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "parameter %s must be an integer from 1 to %.0f", item->string,
                               BAG_V2_LARGEST_EXACT);
    *sequence = (uint64_t)number;
    return true;
}

/* Reads one member of a batch's "parameters". Rejects unknown ones. */
static bool read_parameter(const cJSON *item, struct bag_v2_rows *rows, struct bag_problem *problem)
{
    if (cJSON_IsNull(item))
        return true;
    if (strcmp(item->string, "sequence") == 0)
        return read_sequence(item, &rows->sequence, problem);
    if (strcmp(item->string, "first_sequence") == 0)
        return read_sequence(item, &rows->first_sequence, problem);
    if (strcmp(item->string, "delete") == 0) {
        rows->deletes = cJSON_IsTrue(item);
        return cJSON_IsBool(item) || bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                                     "parameter delete must be true or false");
    }
    /* Clients of the protocol ask for binary outputs whatever they send. */
    return strcmp(item->string, "binary_data_output") == 0 ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "parameter %s is unknown; a batch of rows takes sequence, "
                           "first_sequence and delete",
                           bag_quote(item->string, strlen(item->string)).text);
}

/* Rejects keys that the body of a batch does not have. A parameter that was put beside "parameters"
 * would otherwise be ignored silently. */
static bool reject_unknown_keys(const cJSON *tree, struct bag_problem *problem)
{
    static const char *const known[] = {"inputs",  "parameters", "id",
                                        "outputs", "model_name", "model_version"};
    const cJSON *item;
    cJSON_ArrayForEach(item, tree)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(item->string, known[i]) != 0)
            i++;
        if (i == sizeof known / sizeof *known)
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "key '%s' is unknown; a batch of rows has inputs and parameters",
                                   bag_quote(item->string, strlen(item->string)).text);
    }
    return true;
}

static bool read_parameters(const cJSON *tree, struct bag_v2_rows *rows,
                            struct bag_problem *problem)
{
    const cJSON *parameters;
    if (!bag_v2_read_parameters(tree, &parameters, problem))
        return false;
    for (const cJSON *item = parameters ? parameters->child : NULL; item; item = item->next) {
        if (!read_parameter(item, rows, problem))
            return false;
    }
    /* Check that first_sequence is at most sequence. */
    if (rows->first_sequence <= rows->sequence)
        return true;
    if (!rows->sequence)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "parameter first_sequence needs sequence, the last number that the "
                               "batch stands for");
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "parameter first_sequence is %" PRIu64
                           "; it must be at most sequence, which is %" PRIu64,
                           rows->first_sequence, rows->sequence);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Reads the tensors of a batch. A batch with a number but no inputs is valid: it changes nothing
 * but the number of the last update. */
static bool read_inputs(const struct bag_v2_request *request, struct bag_arena *arena,
                        struct bag_v2_rows *rows, struct bag_problem *problem)
{
    const struct bag_v2_input *ids_input = NULL, *rows_input = NULL;
    rows->is_empty = request->num_inputs == 0 && rows->sequence;
    if (rows->is_empty)
        return true;
    /* Find the inputs by their names. Reject unknown ones, and indices together with keys. */
    for (size_t i = 0; i < request->num_inputs; i++) {
        const struct bag_v2_input *input = &request->inputs[i];
        bool is_keys = bag_text_is(input->name, "keys");
        bool is_rows = bag_text_is(input->name, "rows");
        if (!is_keys && !is_rows && !bag_text_is(input->name, "indices"))
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "input '%s' is unknown; a batch of rows has indices or keys, "
                                   "and rows",
                                   bag_quote(input->name.data, input->name.bytes).text);
        if (!is_rows && ids_input)
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "inputs 'indices' and 'keys' cannot be combined");
        if (is_rows)
            rows_input = input;
        else
            ids_input = input;
        rows->has_keys |= is_keys;
    }
    if (!ids_input)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the input 'indices', or 'keys' of a table with keys, is missing");
    if (rows->deletes && rows_input)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "input 'rows' cannot be combined with parameter delete");
    if (!rows->deletes && !rows_input)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the input 'rows' is missing");
    return bag_v2_input_read(ids_input, arena, &rows->ids, problem) &&
           (!rows_input || bag_v2_input_read(rows_input, arena, &rows->rows, problem));
}

/* ---- bodies ---------------------------------------------------------------------------------- */

bool bag_v2_rows_decode(const char *body, size_t body_bytes, size_t header_bytes,
                        const struct bag_json_limits *limits, struct bag_arena *arena,
                        struct bag_v2_rows *rows, struct bag_problem *problem)
{
    struct bag_v2_request request;
    struct bag_v2_reader reader = {.body = body,
                                   .body_bytes = body_bytes,
                                   .next_binary = header_bytes,
                                   .arena = arena,
                                   .request = &request,
                                   .problem = problem};
    *rows = (struct bag_v2_rows){.deletes = false};
    if (!bag_v2_read_header(&reader, limits))
        return false;
    rows->id = request.id;
    bool ok = reject_unknown_keys(reader.header.tree, problem) &&
              read_parameters(reader.header.tree, rows, problem) && bag_v2_read_inputs(&reader) &&
              read_inputs(&request, arena, rows, problem);
    bag_json_free(reader.header.tree);
    return ok;
}

/* ---- replies --------------------------------------------------------------------------------- */

char *bag_v2_rows_reply(const struct bag_v2_rows_reply *reply)
{
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("model_name", reply->model_name),
                   BAG_KEY("model_version", reply->model_version));
    if (reply->id.bytes) { /* JSON already */
        bag_json_raw(&json, "id", "");
        bag_growing_put(&json.text, reply->id.data, reply->id.bytes);
    }
    BAG_JSON_WRITE(&json, BAG_KEY("sequence", reply->sequence), BAG_KEY("applied", reply->applied),
                   BAG_KEY("rows", reply->rows),
                   BAG_KEY_IF(reply->left_out > 0, "rows_left_out", reply->left_out));
    return bag_json_end(&json);
}
