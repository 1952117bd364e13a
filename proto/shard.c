/* Requests to shards and their replies; see shard.h. */
#include "shard.h"

#include "json.h"
#include "v2_client.h"
#include "v2_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits of a position, which do not overflow. */
#define MAX_DIGITS 15

/* ---- requests -------------------------------------------------------------------------------- */

static size_t put_tensor(char *out, size_t room, const char *name, size_t count,
                         enum bag_dtype dtype, const char *before)
{
    return (size_t)snprintf(out, room,
                            "%s{\"name\":\"%s\",\"shape\":[%zu],\"datatype\":\"%s\","
                            "\"parameters\":{\"binary_data_size\":%zu}}",
                            before, name, count, bag_dtypes[dtype].name,
                            count * bag_dtypes[dtype].bytes);
}

/* What the shard is to do: ids that are padding have left already. */
static size_t put_parameters(char *out, size_t room, const struct bag_shard_request *request)
{
    const struct bag_part *part = &request->part;
    size_t used = (size_t)snprintf(
        out, room,
        "],\"parameters\":{\"binary_data_output\":true,\"include_last_offset\":true,"
        "\"padding_idx\":\"none\",\"reduction\":\"%s\","
        "\"part\":{\"by\":\"%s\",\"index\":%u,\"of\":%u}%s%s%s",
        bag_reduction_names[request->reduction], bag_part_way_names[part->by], part->index,
        part->of, request->rejects_missing ? ",\"missing\":\"error\"" : "",
        request->rejects_outside ? ",\"out_of_range\":\"error\"" : "",
        request->explains ? ",\"explain\":true" : "");
    if (request->is_partial)
        return used + (size_t)snprintf(out + used, room - used, ",\"partial\":true}}");
    return used + (size_t)snprintf(out + used, room - used, ",\"output_datatype\":\"%s\"}}",
                                   bag_dtypes[request->output_dtype].name);
}

size_t bag_shard_request_header(const struct bag_shard_request *request,
                                char header[BAG_SHARD_HEADER_BYTES])
{
    const size_t room = BAG_SHARD_HEADER_BYTES;
    size_t used =
        put_tensor(header, room, "indices", request->num_ids, request->ids_dtype, "{\"inputs\":[");
    used += put_tensor(header + used, room - used, "offsets", request->num_bags + 1,
                       request->ids_dtype, ",");
    if (request->has_default)
        used += put_tensor(header + used, room - used, "default_index", 1, request->ids_dtype, ",");
    if (request->has_weights)
        used += put_tensor(header + used, room - used, "per_sample_weights", request->num_ids,
                           request->weights_dtype, ",");
    return used + put_parameters(header + used, room - used, request);
}

/* The parameters are the last member, and the time is their last one. */
size_t bag_shard_request_timed(const char *header, size_t bytes, uint64_t timeout_us,
                               char timed[BAG_SHARD_TIMED_BYTES])
{
    memcpy(timed, header, bytes - 2);
    return bytes - 2 +
           (size_t)snprintf(timed + bytes - 2, BAG_SHARD_TIMED_BYTES - (bytes - 2),
                            ",\"timeout\":%" PRIu64 "}}", timeout_us);
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

static bool reject(struct bag_problem *problem, const char *what)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY, "answered %s", what);
}

/* The product of the dimensions after the first is compared: rows may have any rank. */
static bool has_shape(const cJSON *shape, const struct bag_shard_output *want)
{
    const cJSON *item;
    size_t elements = 1;
    int64_t size;
    bool is_first = true, fits = cJSON_IsArray(shape) && cJSON_GetArraySize(shape) > 0;
    cJSON_ArrayForEach(item, shape)
    {
        fits = fits && bag_v2_integer(item, 0, BAG_V2_LARGEST_EXACT, &size);
        if (!fits)
            return false;
        if (is_first)
            fits = (size_t)size == want->num_bags;
        else
            fits = !__builtin_mul_overflow(elements, (size_t)size, &elements);
        is_first = false;
    }
    return fits && elements == want->bag_elements;
}

static bool is_text(const cJSON *item, const char *text)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

/* Whether it is the output, of `bytes`. */
static bool is_output(const cJSON *item, const struct bag_shard_output *want, size_t bytes)
{
    int64_t size;
    return is_text(bag_v2_member(item, "name"), want->name) &&
           is_text(bag_v2_member(item, "datatype"), bag_dtypes[want->dtype].name) &&
           has_shape(bag_v2_member(item, "shape"), want) &&
           bag_v2_integer(bag_v2_member(bag_v2_member(item, "parameters"), "binary_data_size"), 0,
                          BAG_V2_LARGEST_EXACT, &size) &&
           (size_t)size == bytes;
}

/* Every output with its place behind the JSON. */
static bool read_outputs(const cJSON *list, const char *data, size_t data_bytes,
                         struct bag_shard_output *outputs, size_t num_outputs,
                         struct bag_problem *problem)
{
    const cJSON *item = cJSON_IsArray(list) ? list->child : NULL;
    for (size_t i = 0; i < num_outputs; i++, item = item ? item->next : NULL) {
        struct bag_shard_output *want = &outputs[i];
        size_t bytes;
        if (__builtin_mul_overflow(want->num_bags, want->bag_elements, &bytes) ||
            __builtin_mul_overflow(bytes, bag_dtypes[want->dtype].bytes, &bytes))
            bytes = SIZE_MAX;
        if (!item || !is_output(item, want, bytes))
            return bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY,
                                   "answered without output '%s' as %s of %zu bags of %zu elements",
                                   want->name, bag_dtypes[want->dtype].name, want->num_bags,
                                   want->bag_elements);
        if (bytes > data_bytes)
            return reject(problem, "fewer bytes of tensors than it says");
        want->data = data;
        data += bytes;
        data_bytes -= bytes;
    }
    return (!item && data_bytes == 0) || reject(problem, "more than was asked for");
}

/* What is behind the first place of a word; NULL: it has none. */
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

/* Where the parameters with the explanation begin, behind all else that is read; NULL: there is
 * none. */
static const char *find_explanation(const char *reply, size_t header_bytes)
{
    static const char begin[] = ",\"parameters\":{\"explain\":[";
    const char *behind = find_behind(reply, reply + header_bytes, begin);
    return behind ? behind - (sizeof begin - 1) : NULL;
}

/* The header without the explanation, which may be long. */
static cJSON *parse_header(const char *reply, size_t header_bytes, struct bag_problem *problem)
{
    const char *explanation = find_explanation(reply, header_bytes);
    if (!explanation)
        return bag_json_parse(reply, header_bytes, problem);
    size_t bytes = (size_t)(explanation - reply);
    char *copy = malloc(bytes + 1);
    if (!copy) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    memcpy(copy, reply, bytes);
    copy[bytes] = '}';
    cJSON *tree = bag_json_parse(copy, bytes + 1, problem);
    free(copy);
    return tree;
}

bool bag_shard_reply_read(const char *reply, size_t bytes, size_t header_bytes, const char *version,
                          struct bag_shard_output *outputs, size_t num_outputs,
                          struct bag_problem *problem)
{
    struct bag_problem ignored;
    if (header_bytes == 0 || header_bytes > bytes)
        return reject(problem, "no reply with binary tensors");
    const char *explanation = find_explanation(reply, header_bytes);
    if ((explanation ? (size_t)(explanation - reply) : header_bytes) > BAG_SHARD_MAX_REPLY_HEADER)
        return reject(problem, "a reply with a header of more than 64 KiB");
    cJSON *tree = parse_header(reply, header_bytes, &ignored);
    if (!tree && ignored.kind == BAG_ERROR_NO_MEMORY)
        return bag_problem_no_memory(problem);
    bool ok = cJSON_IsObject(tree) || reject(problem, "a reply whose header is no JSON object");
    if (ok && !is_text(bag_v2_member(tree, "model_version"), version))
        ok = bag_problem_set(problem, BAG_ERROR_BAD_GATEWAY, "answered by another version than %s",
                             version);
    ok = ok && read_outputs(bag_v2_member(tree, "outputs"), reply + header_bytes,
                            bytes - header_bytes, outputs, num_outputs, problem);
    bag_json_free(tree);
    return ok;
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

enum bag_shard_error bag_shard_error_read(const char *body, size_t bytes, size_t *position)
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
