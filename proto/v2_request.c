/* Decodes V2 requests: the JSON header with its outputs and parameters; see v2_request.h. */
#include "v2_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- small values of the tree ---------------------------------------------------------------- */

/* Reads true or false. An absent flag is false. */
static bool read_flag(const cJSON *parameters, const char *key, bool *has, bool *value,
                      struct bag_problem *problem)
{
    const cJSON *item = bag_v2_member(parameters, key);
    *has = item != NULL;
    *value = cJSON_IsTrue(item);
    return !item || cJSON_IsBool(item) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "parameter %s must be true or false",
                           key);
}

/* Reads a flag that selects binary or JSON data. An absent flag leaves *encoding unchanged. */
static bool read_encoding(const cJSON *parameters, const char *key, enum bag_v2_encoding *encoding,
                          struct bag_problem *problem)
{
    bool has_binary, binary;
    if (!read_flag(parameters, key, &has_binary, &binary, problem))
        return false;
    if (has_binary)
        *encoding = binary ? BAG_V2_BINARY : BAG_V2_JSON;
    return true;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Reads the output at this position. A problem names the output, or its position if it has no name.
 */
static bool read_output(struct bag_v2_reader *reader, const cJSON *item, size_t position)
{
    struct bag_v2_output *output = &reader->request->outputs[position];
    const cJSON *parameters;
    output->encoding = BAG_V2_DEFAULT;
    if (!bag_v2_read_name(reader, item, &output->name))
        return bag_problem_prefix(reader->problem, "outputs[%zu]", position);
    if (bag_v2_read_parameters(item, &parameters, reader->problem) &&
        bag_v2_check_no_shared_memory(parameters, reader->problem) &&
        read_encoding(parameters, "binary_data", &output->encoding, reader->problem))
        return true;
    return bag_problem_prefix(reader->problem, "output '%s'",
                              bag_quote(output->name.data, output->name.bytes).text);
}

/* Reads "outputs" if the request has it. */
static bool read_outputs(struct bag_v2_reader *reader)
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
    return bag_v2_check_unique(reader, &request->outputs->name, sizeof *request->outputs,
                               request->num_outputs, "output");
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Rejects a parameter that is none of the words in `allowed`. Returns false. */
static bool reject_word(const char *key, const cJSON *item, const char *allowed,
                        struct bag_problem *problem)
{
    const char *word = cJSON_IsString(item) ? item->valuestring : NULL;
    if (!word)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "parameter %s must be a string: %s",
                               key, allowed);
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "parameter %s is \"%s\"; it must be %s",
                           key, bag_quote(word, strlen(word)).text, allowed);
}

/* Reads the parameter `reduction`. In this and the next functions a missing item changes nothing.
 */
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
           reject_word("reduction", item, "\"sum\", \"mean\", \"max\", \"sqrtn\" or \"none\"",
                       problem);
}

/* Reads the parameter `output_datatype`. */
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

/* Reads the parameter `output_row_format`. */
static bool read_row_format(const cJSON *item, struct bag_v2_overrides *overrides,
                            struct bag_problem *problem)
{
    if (!item)
        return true;
    overrides->has_row_format = true;
    overrides->row_format = BAG_ROW_FORMAT_COUNT;
    if (cJSON_IsString(item))
        overrides->row_format = bag_row_format_find(item->valuestring, strlen(item->valuestring));
    if (overrides->row_format != BAG_ROW_FORMAT_COUNT)
        return true;
    char allowed[BAG_PROBLEM_TEXT_BYTES] = "";
    for (size_t i = 0; i < BAG_ROW_FORMAT_COUNT; i++)
        bag_text_add(allowed, sizeof allowed, "%s\"%s\"",
                     i == 0                          ? ""
                     : i == BAG_ROW_FORMAT_COUNT - 1 ? " or "
                                                     : ", ",
                     bag_row_format_names[i]);
    return reject_word("output_row_format", item, allowed, problem);
}

/* Reads the parameter `missing` or `out_of_range`. `allowed` lists the words of this key for a
 * message. */
static bool read_missing(const cJSON *item, const char *key, const char *allowed, bool *has,
                         enum bag_missing *missing, struct bag_problem *problem)
{
    *has = item != NULL;
    *missing = BAG_MISSING_ERROR;
    while (item && *missing < BAG_MISSING_COUNT &&
           !(cJSON_IsString(item) && strcmp(item->valuestring, bag_missing_names[*missing]) == 0))
        ++*missing;
    return *missing != BAG_MISSING_COUNT || reject_word(key, item, allowed, problem);
}

/* Reads a number, a text of digits for integers that a double cannot represent, or "none". */
static bool read_padding(const cJSON *item, struct bag_v2_overrides *overrides,
                         struct bag_problem *problem)
{
    overrides->has_padding_idx = item != NULL;
    overrides->padding_is_none = cJSON_IsString(item) && strcmp(item->valuestring, "none") == 0;
    overrides->padding_is_text = cJSON_IsString(item) && !overrides->padding_is_none;
    if (!item || overrides->padding_is_none)
        return true;
    bool ok = overrides->padding_is_text
                  ? bag_key_parse(item->valuestring, &overrides->padding_idx)
                  : bag_v2_integer(item, -BAG_V2_LARGEST_EXACT, BAG_V2_LARGEST_EXACT,
                                   &overrides->padding_idx);
    return ok || bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                 "parameter padding_idx must be an integer: from %.0f to %.0f, or "
                                 "for tables with keys a text of the digits of one of 64 bits; or "
                                 "\"none\"",
                                 -BAG_V2_LARGEST_EXACT, BAG_V2_LARGEST_EXACT);
}

/* Reads the parameter `timeout`, in microseconds. 0 counts as not given. */
static bool read_timeout(const cJSON *parameters, struct bag_v2_overrides *overrides,
                         struct bag_problem *problem)
{
    const cJSON *timeout = bag_v2_member(parameters, "timeout");
    int64_t timeout_us = 0;
    if (timeout && !bag_v2_integer(timeout, 0, BAG_V2_LARGEST_EXACT, &timeout_us))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "parameter timeout must be an integer of at least 0, in "
                               "microseconds");
    overrides->timeout_us = (uint64_t)timeout_us;
    return true;
}

/* Reads the parameter `part`. Unknown members are rejected: a client that needs them would get rows
 * that it does not expect. */
static bool read_part(const cJSON *item, struct bag_v2_overrides *overrides,
                      struct bag_problem *problem)
{
    const int members = 3 + (cJSON_GetObjectItemCaseSensitive(item, "digest") != NULL);
    overrides->has_part = item != NULL;
    return !item ||
           (bag_v2_read_part(item, &overrides->part) &&
            bag_v2_read_digest(item, &overrides->part_digest) &&
            cJSON_GetArraySize(item) == members) ||
           bag_problem_set(
               problem, BAG_ERROR_BAD_REQUEST,
               "parameter part must be {\"by\": \"columns\", \"rows\" or \"keys\", "
               "\"index\": I, \"of\": N}, with I from 0 to N - 1 and N up to %d, and may "
               "have a \"digest\" of 16 hexadecimal digits",
               BAG_MAX_PARTS);
}

/* Reads the parameters of the request. Unknown ones are ignored here; make_warnings() reports them.
 */
static bool read_parameters(struct bag_v2_reader *reader)
{
    struct bag_v2_overrides *overrides = &reader->request->overrides;
    const cJSON *parameters;
    bool has_explain, has_versions, has_partial, has_kept;
    if (!bag_v2_read_parameters(reader->header.tree, &parameters, reader->problem))
        return false;
    if (!parameters)
        return true;
    return read_flag(parameters, "include_last_offset", &overrides->has_include_last_offset,
                     &overrides->include_last_offset, reader->problem) &&
           read_flag(parameters, "explain", &has_explain, &overrides->explain, reader->problem) &&
           read_flag(parameters, "table_versions", &has_versions, &overrides->table_versions,
                     reader->problem) &&
           read_flag(parameters, "partial", &has_partial, &overrides->partial, reader->problem) &&
           read_flag(parameters, "kept_default", &has_kept, &overrides->kept_default,
                     reader->problem) &&
           read_part(bag_v2_member(parameters, "part"), overrides, reader->problem) &&
           read_timeout(parameters, overrides, reader->problem) &&
           read_padding(bag_v2_member(parameters, "padding_idx"), overrides, reader->problem) &&
           read_missing(bag_v2_member(parameters, "missing"), "missing",
                        "\"error\", \"skip\", \"default\" or \"hash\"", &overrides->has_missing,
                        &overrides->missing, reader->problem) &&
           read_missing(bag_v2_member(parameters, "out_of_range"), "out_of_range",
                        "\"error\", \"skip\" or \"default\"", &overrides->has_out_of_range,
                        &overrides->out_of_range, reader->problem) &&
           read_reduction(bag_v2_member(parameters, "reduction"), overrides, reader->problem) &&
           read_output_dtype(bag_v2_member(parameters, "output_datatype"), overrides,
                             reader->problem) &&
           read_row_format(bag_v2_member(parameters, "output_row_format"), overrides,
                           reader->problem) &&
           read_encoding(parameters, "binary_data_output", &reader->request->encoding,
                         reader->problem);
}

/* ---- warnings -------------------------------------------------------------------------------- */

/* The parameters and keys that have an effect. A request with another one gets a warning. */
static const char *const request_parameters[] = {"reduction",
                                                 "padding_idx",
                                                 "include_last_offset",
                                                 "output_datatype",
                                                 "output_row_format",
                                                 "missing",
                                                 "timeout",
                                                 "explain",
                                                 "table_versions",
                                                 "out_of_range",
                                                 "binary_data_output",
                                                 "partial",
                                                 "part",
                                                 "kept_default",
                                                 NULL};

/* Parameters that Triton's clients send and that do not affect the result. They cause no warning.
 */
static const char *const harmless_parameters[] = {"priority", "sequence_id", "sequence_start",
                                                  "sequence_end", NULL};

/* KServe's clients repeat the name of the model. */
static const char *const request_keys[] = {"inputs",     "outputs",       "parameters", "id",
                                           "model_name", "model_version", NULL};
static const char *const input_keys[] = {"name", "shape", "datatype", "data", "parameters", NULL};
static const char *const input_parameters[] = {"binary_data_size", "shared_memory_region", NULL};
static const char *const output_keys[] = {"name", "parameters", NULL};
static const char *const output_parameters[] = {"binary_data", "shared_memory_region", NULL};

/* Returns whether a list that ends with NULL contains the name. */
static bool is_one_of(const char *name, const char *const *list)
{
    while (*list && (**list != *name || strcmp(name, *list) != 0))
        list++;
    return *list;
}

/* Adds a text to the list, which is created with the first one. Returns false if there is not
 * enough memory. */
static bool add_warning(cJSON **list, const char *text)
{
    if (!*list)
        *list = cJSON_CreateArray();
    cJSON *item = cJSON_CreateString(text);
    if (cJSON_AddItemToArray(*list, item))
        return true;
    cJSON_Delete(item);
    return false;
}

/* The place of an unknown member in the request. */
struct place {
    const char *const *known;
    const char *what;     /* kind of the member: "parameter" or "key" */
    const char *kind;     /* kind of the tensor that has it; NULL: the request has it */
    struct bag_text name; /* name of that tensor */
};

/* Writes a warning about an unknown member. It says where the member belongs if it is a parameter
 * of the request, and otherwise suggests the most similar known name. */
static void describe_unknown(const struct place *place, const char *name, struct bag_problem *text)
{
    struct bag_quoted quoted = bag_quote(name, strlen(name));
    struct bag_suggestion suggestion = {.written = quoted.text};
    bool misplaced = place->known != request_parameters && is_one_of(name, request_parameters);
    for (const char *const *known = place->known; *known; known++)
        bag_suggest_offer(&suggestion, *known);
    if (misplaced)
        bag_problem_set(text, BAG_ERROR_BAD_REQUEST,
                        "%s '%s' changes nothing here; it must be in the request's \"parameters\"",
                        place->what, quoted.text);
    else
        bag_problem_set(text, BAG_ERROR_BAD_REQUEST, "%s '%s' is unknown and changes nothing%s",
                        place->what, quoted.text, bag_suggestion_question(&suggestion, "'").text);
    if (place->kind)
        bag_problem_prefix(text, "%s '%s'", place->kind,
                           bag_quote(place->name.data, place->name.bytes).text);
}

/* Adds a warning for each unknown member, up to BAG_V2_MAX_WARNINGS. Returns false if there is not
 * enough memory. */
static bool warn_of_unknown(const cJSON *members, const struct place *place, cJSON **list)
{
    const cJSON *item;
    struct bag_problem text;
    cJSON_ArrayForEach(item, members)
    {
        if (is_one_of(item->string, place->known) ||
            (place->known == request_parameters && is_one_of(item->string, harmless_parameters)))
            continue;
        if (cJSON_GetArraySize(*list) == BAG_V2_MAX_WARNINGS)
            return true;
        describe_unknown(place, item->string, &text);
        if (!add_warning(list, text.text))
            return false;
    }
    return true;
}

/* Adds warnings about the keys and parameters of one tensor. */
static bool warn_of_tensor(const cJSON *item, bool is_input, struct bag_text name, cJSON **list)
{
    const char *kind = is_input ? "input" : "output";
    const struct place keys = {is_input ? input_keys : output_keys, "key", kind, name};
    const struct place parameters = {is_input ? input_parameters : output_parameters, "parameter",
                                     kind, name};
    return warn_of_unknown(item, &keys, list) &&
           warn_of_unknown(bag_v2_member(item, "parameters"), &parameters, list);
}

/* Adds warnings about all tensors. The tensors of the request are in the order of the tree. */
static bool warn_of_tensors(const struct bag_v2_reader *reader, cJSON **list)
{
    const struct bag_v2_request *request = reader->request;
    const cJSON *item;
    size_t input = 0, output = 0;
    cJSON_ArrayForEach(item, bag_v2_member(reader->header.tree, "inputs"))
    {
        if (!warn_of_tensor(item, true, request->inputs[input++].name, list))
            return false;
    }
    cJSON_ArrayForEach(item, bag_v2_member(reader->header.tree, "outputs"))
    {
        if (!warn_of_tensor(item, false, request->outputs[output++].name, list))
            return false;
    }
    return true;
}

/* Makes warnings about keys and parameters without effect. The protocol requires that they are
 * ignored. */
static bool make_warnings(struct bag_v2_reader *reader)
{
    const cJSON *tree = reader->header.tree;
    const struct place keys = {.known = request_keys, .what = "key"};
    const struct place parameters = {.known = request_parameters, .what = "parameter"};
    cJSON *list = NULL;
    bool ok = warn_of_unknown(tree, &keys, &list) &&
              warn_of_unknown(bag_v2_member(tree, "parameters"), &parameters, &list) &&
              warn_of_tensors(reader, &list);
    char *text = ok && list ? cJSON_PrintUnformatted(list) : NULL;
    ok = ok && (!list || (text && bag_v2_copy_text(reader, text, &reader->request->warnings)));
    cJSON_free(text);
    cJSON_Delete(list);
    return ok || bag_v2_reject_memory(reader->problem);
}

bool bag_v2_add_warning(struct bag_text *warnings, const char *text, struct bag_arena *arena)
{
    cJSON *string = cJSON_CreateString(text);
    char *json = string ? cJSON_PrintUnformatted(string) : NULL;
    size_t added = json ? strlen(json) : 0, kept = warnings->bytes ? warnings->bytes - 1 : 0;
    char *all = json ? bag_arena_alloc(arena, kept + added + 2) : NULL;
    if (all) {
        if (kept) /* without its closing bracket */
            memcpy(all, warnings->data, kept);
        all[kept] = kept ? ',' : '[';
        memcpy(all + kept + 1, json, added);
        all[kept + 1 + added] = ']';
        *warnings = (struct bag_text){all, kept + added + 2};
    }
    cJSON_free(json);
    cJSON_Delete(string);
    return all != NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

bool bag_v2_header_length(const char *value, size_t body_bytes, size_t *header_bytes,
                          struct bag_problem *problem)
{
    uint64_t bytes;
    if (!bag_length_parse(bag_text_without_blanks(value), &bytes) || bytes == 0 ||
        bytes > body_bytes)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "Inference-Header-Content-Length is '%s'; it must be the number of "
                               "bytes of the JSON header, from 1 to %zu, the size of the body",
                               bag_quote(value, strlen(value)).text, body_bytes);
    *header_bytes = (size_t)bytes;
    return true;
}

bool bag_v2_request_decode(const char *body, size_t body_bytes, size_t header_bytes,
                           const struct bag_json_limits *limits, struct bag_arena *arena,
                           struct bag_v2_request *request, struct bag_problem *problem)
{
    struct bag_v2_reader reader = {.body = body,
                                   .body_bytes = body_bytes,
                                   .next_binary = header_bytes,
                                   .arena = arena,
                                   .request = request,
                                   .problem = problem};
    if (!bag_v2_read_header(&reader, limits))
        return false;
    bool ok = read_parameters(&reader) && bag_v2_read_inputs(&reader) && read_outputs(&reader) &&
              make_warnings(&reader);
    bag_json_free(reader.header.tree);
    return ok;
}

bool bag_v2_is_binary(const struct bag_v2_request *request, enum bag_v2_encoding encoding)
{
    return (encoding == BAG_V2_DEFAULT ? request->encoding : encoding) == BAG_V2_BINARY;
}

/* ---- the repository's index ------------------------------------------------------------------ */

bool bag_v2_index_read(const char *body, size_t body_bytes, bool *ready_only,
                       struct bag_problem *problem)
{
    *ready_only = false;
    if (body_bytes == 0)
        return true;
    cJSON *tree = bag_json_parse(body, body_bytes, problem);
    if (!tree)
        return bag_problem_prefix(problem, "malformed JSON");
    const cJSON *ready = cJSON_IsObject(tree) ? bag_v2_member(tree, "ready") : NULL;
    bool ok = true;
    if (!cJSON_IsObject(tree))
        ok = bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                             "the request must be empty or a JSON object");
    else if (ready && !cJSON_IsBool(ready))
        ok = bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "\"ready\" must be true or false");
    *ready_only = cJSON_IsTrue(ready);
    bag_json_free(tree);
    return ok;
}
