/* The "outputs" and "parameters" of a V2 JSON header. */
#include "v2_reader.h"

#include <string.h>

static bool read_output(struct bag_v2_reader *reader, const cJSON *item, size_t position)
{
    struct bag_v2_output *output = &reader->request->outputs[position];
    const cJSON *parameters = cJSON_IsObject(item) ? bag_v2_member(item, "parameters") : NULL;
    output->encoding = BAG_V2_DEFAULT;
    if (!bag_v2_read_name(reader, item, &output->name)) {
        bag_problem_prefix(reader->problem, "outputs[%zu]", position);
        return false;
    }
    if (bag_v2_reject_shared_memory(parameters, reader->problem) &&
        bag_v2_read_encoding(parameters, "binary_data", &output->encoding, reader->problem))
        return true;
    bag_problem_prefix(reader->problem, "output '%s'",
                       bag_quote(output->name.bytes, output->name.count).text);
    return false;
}

bool bag_v2_read_outputs(struct bag_v2_reader *reader)
{
    struct bag_v2_request *request = reader->request;
    const cJSON *outputs = bag_v2_member(reader->header.tree, "outputs"), *item;
    size_t count = 0;
    if (!outputs)
        return true;
    request->outputs = bag_v2_elements(reader, "outputs", outputs, sizeof *request->outputs,
                                       &request->num_outputs);
    if (!request->outputs)
        return false;
    cJSON_ArrayForEach(item, outputs)
    {
        if (!read_output(reader, item, count++))
            return false;
    }
    return bag_v2_reject_repeated(reader, &request->outputs->name, sizeof *request->outputs,
                                  request->num_outputs, "output");
}

/* Says what a parameter is that should be one of the words in `allowed`. */
static bool reject_word(const char *key, const cJSON *item, const char *allowed,
                        struct bag_problem *problem)
{
    const char *word = cJSON_IsString(item) ? item->valuestring : NULL;
    if (!word)
        return bag_problem_set(problem, 400, "parameter %s must be a string: %s", key, allowed);
    return bag_problem_set(problem, 400, "parameter %s is \"%s\"; it must be %s", key,
                           bag_quote(word, strlen(word)).text, allowed);
}

static bool read_reduction(const cJSON *item, struct bag_v2_overrides *overrides,
                           struct bag_problem *problem)
{
    if (!item)
        return true;
    overrides->has_reduction = true;
    overrides->reduction = BAG_REDUCTION_COUNT;
    if (cJSON_IsString(item))
        overrides->reduction = bag_reduction_find(item->valuestring, strlen(item->valuestring));
    return overrides->reduction != BAG_REDUCTION_COUNT ||
           reject_word("reduction", item, "\"sum\", \"mean\", \"max\" or \"sqrtn\"", problem);
}

static bool read_output_dtype(const cJSON *item, struct bag_v2_overrides *overrides,
                              struct bag_problem *problem)
{
    if (!item)
        return true;
    overrides->has_output_dtype = true;
    overrides->output_dtype = BAG_DTYPE_COUNT;
    if (cJSON_IsString(item))
        overrides->output_dtype = bag_dtype_find(item->valuestring, strlen(item->valuestring));
    return overrides->output_dtype != BAG_DTYPE_COUNT ||
           reject_word("output_datatype", item, "a datatype such as \"FP32\"", problem);
}

static bool read_numbers(const cJSON *parameters, struct bag_v2_overrides *overrides,
                         struct bag_problem *problem)
{
    const cJSON *padding = bag_v2_member(parameters, "padding_idx");
    const cJSON *timeout = bag_v2_member(parameters, "timeout");
    int64_t timeout_us = 0;
    if (padding && !bag_v2_integer(padding, -BAG_V2_LARGEST_EXACT, BAG_V2_LARGEST_EXACT,
                                   &overrides->padding_idx))
        return bag_problem_set(problem, 400, "parameter padding_idx must be an integer");
    if (timeout && !bag_v2_integer(timeout, 0, BAG_V2_LARGEST_EXACT, &timeout_us))
        return bag_problem_set(problem, 400,
                               "parameter timeout must be an integer of at least 0, in "
                               "microseconds");
    overrides->has_padding_idx = padding != NULL;
    overrides->timeout_us = (uint64_t)timeout_us;
    return true;
}

bool bag_v2_read_parameters(struct bag_v2_reader *reader)
{
    struct bag_v2_overrides *overrides = &reader->request->overrides;
    const cJSON *parameters = bag_v2_member(reader->header.tree, "parameters");
    const cJSON *last = bag_v2_member(parameters, "include_last_offset");
    const cJSON *explain = bag_v2_member(parameters, "explain");
    if (!parameters)
        return true;
    if (!cJSON_IsObject(parameters))
        return bag_problem_set(reader->problem, 400, "\"parameters\" must be an object");
    if (last && !cJSON_IsBool(last))
        return bag_problem_set(reader->problem, 400,
                               "parameter include_last_offset must be true or false");
    if (explain && !cJSON_IsBool(explain))
        return bag_problem_set(reader->problem, 400, "parameter explain must be true or false");
    overrides->explain = cJSON_IsTrue(explain);
    overrides->has_include_last_offset = last != NULL;
    overrides->include_last_offset = cJSON_IsTrue(last);
    return read_numbers(parameters, overrides, reader->problem) &&
           read_reduction(bag_v2_member(parameters, "reduction"), overrides, reader->problem) &&
           read_output_dtype(bag_v2_member(parameters, "output_datatype"), overrides,
                             reader->problem) &&
           bag_v2_read_encoding(parameters, "binary_data_output", &reader->request->encoding,
                                reader->problem);
}

bool bag_v2_is_binary(const struct bag_v2_request *request, enum bag_v2_encoding encoding)
{
    return (encoding == BAG_V2_DEFAULT ? request->encoding : encoding) == BAG_V2_BINARY;
}
