/* Writes the JSON header of a V2 reply and the explanation of each bag; see v2_documents.h.
 *
 * The keys and their order are what the strictest clients accept: no "parameters" beside "data"
 * unless the request names a row format, and no key that the protocol does not define. */
#include "v2_documents.h"

#include "kernels/pool_entries.h"
#include "numbers.h"

#include <string.h>

/* Raw tensors begin at a multiple of this, for the kernels' stores. */
#define ALIGNMENT 64

/* The maximum length of a dimension and its separator. */
#define DIMENSION_BYTES (BAG_DIGITS_BYTES + 1)

/* Writes a shape. Its dimensions are not negative. */
static char *put_shape(char *out, const struct bag_v2_reply_output *output)
{
    *out++ = '[';
    for (uint32_t i = 0; i < output->rank; i++) {
        if (i)
            *out++ = ',';
        out = bag_digits_put(out, (uint64_t)output->shape[i]);
    }
    *out++ = ']';
    return out;
}

/* Writes an output. The data of a binary output follows the whole header and is not written here.
 */
static char *put_output(char *out, const struct bag_v2_reply_output *output)
{
    out = bag_text_put(out, "{\"name\":\"");
    out = bag_text_put(out, output->name);
    out = bag_text_put(out, "\",\"datatype\":\"");
    out = bag_text_put(out, bag_dtypes[output->dtype].name);
    out = bag_text_put(out, "\",\"shape\":");
    out = put_shape(out, output);
    const bool is_encoded = output->row_format != BAG_ROWS_PLAIN;
    if (is_encoded || output->binary)
        out = bag_text_put(out, ",\"parameters\":{");
    if (is_encoded) {
        out = bag_text_put(out, "\"row_format\":\"");
        out = bag_text_put(out, bag_row_format_names[output->row_format]);
        out = bag_text_put(out, "\",\"row_elements\":");
        out = bag_digits_put(out, output->row_elements);
        out = bag_text_put(out, output->binary ? "," : "}");
    }
    if (output->binary) {
        out = bag_text_put(out, "\"binary_data_size\":");
        out = bag_digits_put(out, output->count * bag_dtypes[output->dtype].bytes);
        *out++ = '}';
    } else {
        out = bag_text_put(out, ",\"data\":");
        out = bag_numbers_print(output->data, output->count, output->dtype, out);
    }
    *out++ = '}';
    return out;
}

/* Sets *bytes to the maximum length of put_output. Returns false if it overflows. */
static bool output_bound(const struct bag_v2_reply_output *output, size_t *bytes)
{
    size_t numbers = 0;
    if (!output->binary &&
        __builtin_mul_overflow(output->count, bag_numbers_max_text(output->dtype), &numbers))
        return false;
    size_t rest = strlen(output->name) + (output->rank + 1) * DIMENSION_BYTES + 128;
    if (output->row_format != BAG_ROWS_PLAIN)
        rest += DIMENSION_BYTES + 64; /* row_format and row_elements */
    return !__builtin_add_overflow(numbers, rest, bytes);
}

/* Writes `text` as the value of a key of "parameters", after `separator`. The next separator is a
 * comma. */
static char *put_parameter(char *out, const char *key, struct bag_text text, char *separator)
{
    if (!text.bytes)
        return out;
    *out++ = *separator;
    *separator = ',';
    *out++ = '"';
    out = bag_text_put(out, key);
    out = bag_text_put(out, "\":");
    memcpy(out, text.data, text.bytes);
    return out + text.bytes;
}

/* Writes the object "parameters" of the reply if it has members. */
static char *put_parameters(char *out, const struct bag_v2_reply *reply)
{
    char separator = '{';
    if (!(reply->explanation.bytes | reply->warnings.bytes | reply->absent.bytes |
          reply->table_versions.bytes))
        return out;
    out = bag_text_put(out, ",\"parameters\":");
    out = put_parameter(out, "explain", reply->explanation, &separator);
    out = put_parameter(out, "warnings", reply->warnings, &separator);
    out = put_parameter(out, "absent_shards", reply->absent, &separator);
    out = put_parameter(out, "table_versions", reply->table_versions, &separator);
    *out++ = '}';
    return out;
}

size_t bag_v2_reply_bound(const struct bag_v2_reply *reply)
{
    size_t keys = reply->table_versions.bytes ? 160 : 128, total = 0, one;
    if (__builtin_add_overflow(strlen(reply->model_name) + strlen(reply->model_version) + keys,
                               reply->id.bytes, &total) ||
        __builtin_add_overflow(total, reply->explanation.bytes, &total) ||
        __builtin_add_overflow(total, reply->warnings.bytes, &total) ||
        __builtin_add_overflow(total, reply->absent.bytes, &total) ||
        __builtin_add_overflow(total, reply->table_versions.bytes, &total))
        return SIZE_MAX;
    for (size_t i = 0; i < reply->num_outputs; i++) {
        if (!output_bound(&reply->outputs[i], &one) || __builtin_add_overflow(total, one, &total))
            return SIZE_MAX;
    }
    return __builtin_add_overflow(total, (size_t)ALIGNMENT, &total) ? SIZE_MAX : total;
}

char *bag_v2_reply_header(const struct bag_v2_reply *reply, char *out)
{
    const char *start = out;
    bool binary = false;
    out = bag_text_put(out, "{\"model_name\":\"");
    out = bag_text_put(out, reply->model_name);
    out = bag_text_put(out, "\",\"model_version\":\"");
    out = bag_text_put(out, reply->model_version);
    *out++ = '"';
    if (reply->id.bytes) {
        out = bag_text_put(out, ",\"id\":");
        memcpy(out, reply->id.data, reply->id.bytes);
        out += reply->id.bytes;
    }
    out = bag_text_put(out, ",\"outputs\":[");
    for (size_t i = 0; i < reply->num_outputs; i++) {
        if (i)
            *out++ = ',';
        out = put_output(out, &reply->outputs[i]);
        binary |= reply->outputs[i].binary;
    }
    *out++ = ']';
    out = put_parameters(out, reply);
    *out++ = '}';
    if (!binary)
        return out;
    /* Blanks after the JSON object are white space to a parser. */
    size_t blanks = -(size_t)(out - start) % ALIGNMENT;
    memset(out, ' ', blanks);
    return out + blanks;
}

bool bag_v2_reply_check_json(const char *name, enum bag_dtype dtype, struct bag_problem *problem)
{
    if (bag_numbers_max_text(dtype))
        return true;
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "output '%s' is %s, which has no JSON form: ask for binary output "
                           "(\"parameters\":{\"binary_data_output\":true}) or for FP32 "
                           "(\"parameters\":{\"output_datatype\":\"FP32\"})",
                           name, bag_dtypes[dtype].name);
}

/* ---- what became of every bag ---------------------------------------------------------------- */

/* The maximum length of a bag's braces, keys and numbers without positions, and of the braces
 * around all bags. */
#define BAG_BYTES   128
#define WHOLE_BYTES 64

size_t bag_v2_explain_bound(const struct bag_pool_args *args, const char *name)
{
    size_t bags, positions, sum;
    size_t num_bags = args->reduction == BAG_NONE ? 1 : args->num_bags;
    if (__builtin_mul_overflow(num_bags, (size_t)BAG_BYTES, &bags) ||
        __builtin_mul_overflow(args->indices.count, (size_t)BAG_DIGITS_BYTES + 1, &positions) ||
        __builtin_add_overflow(bags, positions, &sum) ||
        __builtin_add_overflow(sum, strlen(name) + WHOLE_BYTES, &sum))
        return SIZE_MAX;
    return sum;
}

/* Writes the positions of a bag's entries with this status as a key with an array. Writes nothing
 * if there are none. */
static char *put_positions(const struct bag_pool_args *args, size_t first, size_t end,
                           enum bag_entry_status status, char *out)
{
    bool any = false;
    for (size_t entry = first; entry < end; entry++) {
        if (bag_pool_entry_status(args, entry) != status)
            continue;
        if (!any) {
            out = bag_text_put(out, ",\"");
            out = bag_text_put(out, bag_entry_status_names[status]);
            out = bag_text_put(out, "\":[");
        } else {
            *out++ = ',';
        }
        out = bag_digits_put(out, entry);
        any = true;
    }
    if (any)
        *out++ = ']';
    return out;
}

/* Writes {"rows": ..., "default": ...} for the entries [first, end), with the positions of the
 * entries that do not count. */
static char *put_bag(const struct bag_pool_args *args, size_t first, size_t end, char *out)
{
    size_t kept = bag_count_kept(args, first, end);
    out = bag_text_put(out, "{\"rows\":");
    out = bag_digits_put(out, kept);
    out = bag_text_put(out, ",\"default\":");
    out = bag_text_put(out, kept == 0 && args->default_row >= 0 ? "true" : "false");
    /* Most bags have no such entries, and need no search for each status. */
    bool any = kept < end - first || args->replaced;
    for (int status = BAG_ENTRY_KEPT + 1; any && status < BAG_ENTRY_COUNT; status++)
        out = put_positions(args, first, end, (enum bag_entry_status)status, out);
    *out++ = '}';
    return out;
}

char *bag_v2_explain(const struct bag_pool_args *args, const char *name, char *out)
{
    out = bag_text_put(out, "{\"name\":\"");
    out = bag_text_put(out, name);
    out = bag_text_put(out, "\",\"bags\":[");
    if (args->reduction == BAG_NONE)
        return bag_text_put(put_bag(args, 0, args->indices.count, out), "]}");
    for (size_t bag = 0; bag < args->num_bags; bag++) {
        size_t first = bag_pool_first_entry(args, bag), end = bag_pool_first_entry(args, bag + 1);
        if (bag)
            *out++ = ',';
        out = put_bag(args, first, end, out);
    }
    return bag_text_put(out, "]}");
}
