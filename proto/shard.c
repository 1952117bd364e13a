/* Writes requests to shards and parses their replies; see shard.h. */
#include "shard.h"

#include "json.h"
#include "v2_client.h"
#include "v2_reader.h"
#include "v2_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The maximum length of a 64-bit number with its quotes. */
#define NUMBER_BYTES 22

/* The maximum number of digits of a position, which cannot overflow. */
#define MAX_DIGITS 15

/* ---- requests -------------------------------------------------------------------------------- */

/* The caller has removed ids that are padding. */
size_t bag_shard_request_header(const struct bag_shard_request *request,
                                char header[BAG_SHARD_HEADER_BYTES])
{
    const int64_t ids = (int64_t)request->num_ids, offsets = (int64_t)request->num_bags + 1,
                  one = 1;
    struct bag_v2_writer writer;
    bag_v2_writer_begin(&writer, header);
    bag_v2_write_id(&writer, request->number);
    bag_v2_write_input(&writer, "indices", request->ids_dtype, 1, &ids);
    bag_v2_write_input(&writer, "offsets", request->ids_dtype, 1, &offsets);
    if (request->has_default)
        bag_v2_write_input(&writer, "default_index", request->ids_dtype, 1, &one);
    if (request->has_weights)
        bag_v2_write_input(&writer, "per_sample_weights", request->weights_dtype, 1, &ids);
    bag_v2_write_true(&writer, "binary_data_output");
    bag_v2_write_true(&writer, "include_last_offset");
    bag_v2_write_text(&writer, "padding_idx", "none");
    bag_v2_write_text(&writer, "reduction", bag_reduction_names[request->reduction]);
    bag_v2_write_part(&writer, &request->part, request->digest);
    if (request->rejects_missing)
        bag_v2_write_text(&writer, "missing", "error");
    if (request->rejects_outside)
        bag_v2_write_text(&writer, "out_of_range", "error");
    if (request->explains)
        bag_v2_write_true(&writer, "explain");
    if (request->takes_kept)
        bag_v2_write_true(&writer, "kept_default");
    if (request->is_partial)
        bag_v2_write_true(&writer, "partial");
    else if (request->row_format == BAG_ROWS_PLAIN)
        bag_v2_write_text(&writer, "output_datatype", bag_dtypes[request->output_dtype].name);
    if (request->row_format != BAG_ROWS_PLAIN)
        bag_v2_write_text(&writer, "output_row_format", bag_row_format_names[request->row_format]);
    return bag_v2_writer_end(&writer);
}

/* The parameters are the last member of the header, so the timeout is inserted before the two
 * closing braces. */
size_t bag_shard_request_timed(const char *header, size_t bytes, uint64_t timeout_us,
                               char timed[BAG_SHARD_TIMED_BYTES])
{
    memcpy(timed, header, bytes - 2);
    char *out = bag_text_put(timed + bytes - 2, ",\"timeout\":");
    out = bag_digits_put(out, timeout_us);
    return (size_t)(bag_text_put(out, "}}") - timed);
}

size_t bag_shard_request_tensor_bytes(const struct bag_shard_request *request)
{
    const size_t id_bytes = bag_dtypes[request->ids_dtype].bytes;
    size_t entry_bytes = id_bytes, ids, offsets, sum;
    if (request->has_weights)
        entry_bytes += bag_dtypes[request->weights_dtype].bytes;
    if (__builtin_mul_overflow(request->num_ids, entry_bytes, &ids) ||
        __builtin_mul_overflow(request->num_bags + 1, id_bytes, &offsets) ||
        __builtin_add_overflow(ids, offsets, &sum) ||
        __builtin_add_overflow(sum, request->has_default ? id_bytes : 0, &sum))
        return SIZE_MAX;
    return sum;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* The maximum length of a usual header. Longer ones are parsed. */
#define USUAL_BYTES 2048

/* Sets *problem (BAD_GATEWAY) to "answered" and what is wrong. Returns false. */
static bool reject(struct bag_problem *problem, const char *what)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY, "answered %s", what);
}

/* Sets *elements to the product of the dimensions after the first. Returns false if it
 * overflows. */
static bool count_elements(const struct bag_v2_reply_output *output, size_t *elements)
{
    bool fits = true;
    *elements = 1;
    for (uint32_t i = 1; i < output->rank; i++)
        fits = fits && !__builtin_mul_overflow(*elements, (size_t)output->shape[i], elements);
    return fits;
}

/* Returns whether the shape has the wanted first dimension and product of the other ones. Rows may
 * have any rank. */
static bool has_shape(const cJSON *shape, const struct bag_v2_reply_output *want)
{
    const cJSON *item;
    size_t elements = 1, wanted;
    int64_t size;
    bool is_first = true, fits = cJSON_IsArray(shape) && cJSON_GetArraySize(shape) > 0;
    cJSON_ArrayForEach(item, shape)
    {
        fits = fits && bag_v2_integer(item, 0, BAG_V2_LARGEST_EXACT, &size);
        if (!fits)
            return false;
        if (is_first)
            fits = size == want->shape[0];
        else
            fits = !__builtin_mul_overflow(elements, (size_t)size, &elements);
        is_first = false;
    }
    return fits && count_elements(want, &wanted) && elements == wanted;
}

static bool is_text(const cJSON *item, const char *text)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

/* Returns the size of an output's data, or SIZE_MAX if it overflows. */
static size_t output_bytes(const struct bag_v2_reply_output *output)
{
    size_t bytes;
    return __builtin_mul_overflow(output->count, bag_dtypes[output->dtype].bytes, &bytes) ? SIZE_MAX
                                                                                          : bytes;
}

/* Returns whether the parameters name the wanted row format, or none if the output has elements. */
static bool has_row_format(const cJSON *parameters, const struct bag_v2_reply_output *want)
{
    const cJSON *format = bag_v2_member(parameters, "row_format");
    int64_t elements;
    return want->row_format == BAG_ROWS_PLAIN
               ? !format
               : is_text(format, bag_row_format_names[want->row_format]) &&
                     bag_v2_integer(bag_v2_member(parameters, "row_elements"), 0,
                                    BAG_V2_LARGEST_EXACT, &elements) &&
                     (size_t)elements == want->row_elements;
}

/* Returns whether the item of a reply's header describes the wanted output as a binary tensor. */
static bool is_output(const cJSON *item, const struct bag_v2_reply_output *want)
{
    int64_t size;
    return is_text(bag_v2_member(item, "name"), want->name) &&
           is_text(bag_v2_member(item, "datatype"), bag_dtypes[want->dtype].name) &&
           has_shape(bag_v2_member(item, "shape"), want) &&
           has_row_format(bag_v2_member(item, "parameters"), want) &&
           bag_v2_integer(bag_v2_member(bag_v2_member(item, "parameters"), "binary_data_size"), 0,
                          BAG_V2_LARGEST_EXACT, &size) &&
           (size_t)size == output_bytes(want);
}

/* Checks that the list contains the wanted outputs in their order, and no others. */
static bool check_outputs(const cJSON *list, const struct bag_v2_reply_output *outputs,
                          size_t num_outputs, struct bag_problem *problem)
{
    const cJSON *item = cJSON_IsArray(list) ? list->child : NULL;
    for (size_t i = 0; i < num_outputs; i++, item = item->next) {
        size_t elements = 0;
        if (item && is_output(item, &outputs[i]))
            continue;
        count_elements(&outputs[i], &elements);
        return bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY,
                               "answered without output '%s' as %s of %lld bags of %zu elements",
                               outputs[i].name, bag_dtypes[outputs[i].dtype].name,
                               (long long)outputs[i].shape[0], elements);
    }
    return !item || reject(problem, "more than was asked for");
}

/* Returns the end of the first occurrence of a word, or NULL if there is none. */
static const char *find_behind(const char *text, const char *end, const char *word)
{
    const size_t bytes = strlen(word);
    while ((text = memchr(text, word[0], (size_t)(end - text)))) {
        if ((size_t)(end - text) < bytes)
            return NULL;
        if (memcmp(text, word, bytes) == 0)
            return text + bytes;
        text++;
    }
    return NULL;
}

/* Returns the start of the parameters with the explanation, which follow everything else that is
 * read, or NULL if there is none. */
static const char *find_explanation(const char *reply, size_t header_bytes)
{
    static const char begin[] = ",\"parameters\":{\"explain\":[";
    const char *behind = find_behind(reply, reply + header_bytes, begin);
    return behind ? behind - (sizeof begin - 1) : NULL;
}

/* Parses the part of a header before an explanation, which may be long. */
static cJSON *parse_front(const char *header, size_t bytes, struct bag_problem *problem)
{
    char *copy = malloc(bytes + 1);
    if (!copy) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    memcpy(copy, header, bytes);
    copy[bytes] = '}';
    cJSON *tree = bag_json_parse(copy, bytes + 1, problem);
    free(copy);
    return tree;
}

/* Returns whether the reply's id is this one, which is given with its quotes. */
static bool is_id(const cJSON *item, const struct bag_text *id)
{
    return cJSON_IsString(item) && strlen(item->valuestring) + 2 == id->bytes &&
           memcmp(item->valuestring, id->data + 1, id->bytes - 2) == 0;
}

/* Checks a header that another program, or another version, may have written. It may have other
 * keys, orders and white space than the usual header. */
static bool check_header(const char *header, size_t bytes, const struct bag_v2_reply *want,
                         struct bag_problem *problem)
{
    struct bag_problem ignored;
    const char *explanation = find_explanation(header, bytes);
    const size_t front_bytes = explanation ? (size_t)(explanation - header) : bytes;
    if (front_bytes > BAG_SHARD_MAX_REPLY_HEADER)
        return reject(problem, "a reply with a header of more than 64 KiB");
    cJSON *tree = explanation ? parse_front(header, front_bytes, &ignored)
                              : bag_json_parse(header, bytes, &ignored);
    if (!tree && ignored.kind == BAG_ERROR_NO_MEMORY)
        return bag_problem_no_memory(problem);
    bool ok = cJSON_IsObject(tree) || reject(problem, "a reply whose header is no JSON object");
    if (ok && !is_text(bag_v2_member(tree, "model_version"), want->model_version))
        ok = bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY, "answered by another version than %s",
                             want->model_version);
    if (ok && !is_id(bag_v2_member(tree, "id"), &want->id))
        ok = reject(problem, "another request");
    ok = ok &&
         check_outputs(bag_v2_member(tree, "outputs"), want->outputs, want->num_outputs, problem);
    bag_json_free(tree);
    return ok;
}

/* Returns whether the header is, byte for byte, the one that this program writes. Nearly all
 * headers are, and parsing takes ten times as long. */
static bool is_usual(const char *header, size_t bytes, const struct bag_v2_reply *usual)
{
    char text[USUAL_BYTES] BAG_UNSET;
    return bag_v2_reply_bound(usual) <= sizeof text &&
           (size_t)(bag_v2_reply_header(usual, text) - text) == bytes &&
           memcmp(text, header, bytes) == 0;
}

/* Sets the position of every output after the JSON. */
static bool place_outputs(const char *data, size_t bytes, struct bag_v2_reply_output *outputs,
                          size_t num_outputs, struct bag_problem *problem)
{
    for (size_t i = 0; i < num_outputs; i++) {
        size_t taken = output_bytes(&outputs[i]);
        if (taken > bytes)
            return reject(problem, "fewer bytes of tensors than it says");
        outputs[i].data = data;
        data += taken;
        bytes -= taken;
    }
    return bytes == 0 || reject(problem, "more than was asked for");
}

bool bag_shard_reply_read(const char *reply, size_t bytes, size_t header_bytes, uint64_t number,
                          const char *model, const char *version,
                          struct bag_v2_reply_output *outputs, size_t num_outputs,
                          struct bag_problem *problem)
{
    char id[NUMBER_BYTES + 1];
    char *end = bag_text_put(bag_digits_put(bag_text_put(id, "\""), number), "\"");
    const struct bag_v2_reply usual = {.model_name = model,
                                       .model_version = version,
                                       .id = {id, (size_t)(end - id)},
                                       .outputs = outputs,
                                       .num_outputs = num_outputs};
    if (header_bytes == 0 || header_bytes > bytes)
        return reject(problem, "no reply with binary tensors");
    return (is_usual(reply, header_bytes, &usual) ||
            check_header(reply, header_bytes, &usual, problem)) &&
           place_outputs(reply + header_bytes, bytes - header_bytes, outputs, num_outputs, problem);
}

bool bag_shard_missing_begin(struct bag_shard_missing *missing, const char *reply,
                             size_t header_bytes)
{
    *missing = (struct bag_shard_missing){.at = find_explanation(reply, header_bytes),
                                          .end = reply + header_bytes};
    return missing->at != NULL;
}

size_t bag_shard_missing_next(struct bag_shard_missing *missing)
{
    /* Find the next bag's list of missing keys. A bag without missing keys has none. */
    if (!missing->is_in_list) {
        const char *at = find_behind(missing->at, missing->end, "\"missing\":[");
        if (!at)
            return SIZE_MAX;
        missing->at = at;
    }
    size_t position = 0;
    const char *first = missing->at;
    while (missing->at < missing->end && *missing->at >= '0' && *missing->at <= '9' &&
           missing->at - first < MAX_DIGITS)
        position = position * 10 + (size_t)(*missing->at++ - '0');
    missing->is_wrong = missing->at == first || position < missing->next ||
                        missing->at == missing->end || (*missing->at != ',' && *missing->at != ']');
    if (missing->is_wrong)
        return SIZE_MAX;
    missing->is_in_list = *missing->at++ == ',';
    missing->next = position + 1;
    return position;
}

/* Reads the sentence of a shard of version 0.1.0, whose errors have no code. */
static enum bag_shard_error read_sentence(const char *body, size_t bytes, size_t *position)
{
    static const char where[] = "'indices' at position ";
    char sentence[BAG_PROBLEM_TEXT_BYTES];
    bag_client_read_error(body, bytes, sentence, sizeof sentence);
    if (strstr(sentence, "'default_index' is "))
        return BAG_SHARD_ERROR_DEFAULT;
    const char *at = strstr(sentence, where);
    if (!at || at[sizeof where - 1] < '0' || at[sizeof where - 1] > '9')
        return BAG_SHARD_ERROR_OTHER;
    *position = strtoull(at + sizeof where - 1, NULL, 10);
    return BAG_SHARD_ERROR_INDEX;
}

enum bag_shard_error bag_shard_error_read(const char *body, size_t bytes, size_t *position)
{
    struct bag_client_error error;
    if (!bag_client_read_code(body, bytes, &error))
        return read_sentence(body, bytes, position);
    if (strcmp(error.code, bag_error_codes[BAG_ERROR_BAD_REQUEST]) != 0)
        return BAG_SHARD_ERROR_OTHER;
    if (strcmp(error.input, bag_input_names[BAG_DEFAULT_INDEX]) == 0)
        return BAG_SHARD_ERROR_DEFAULT;
    if (strcmp(error.input, bag_input_names[BAG_INDICES]) != 0 ||
        error.position == BAG_PROBLEM_NOWHERE)
        return BAG_SHARD_ERROR_OTHER;
    *position = error.position;
    return BAG_SHARD_ERROR_INDEX;
}
