/* Batches of rows in V2 requests; see v2_request.h. */
#include "v2_request.h"

#include "v2_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameters ------------------------------------------------------------------------------ */

static bool read_sequence(const cJSON *item, struct bag_v2_rows *rows, struct bag_problem *problem)
{
    int64_t sequence;
    if (!bag_v2_integer(item, 1, BAG_V2_LARGEST_EXACT, &sequence))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "parameter sequence must be an integer from 1 to %.0f",
                               BAG_V2_LARGEST_EXACT);
    rows->has_sequence = true;
    rows->sequence = (uint64_t)sequence;
    return true;
}

static bool read_parameter(const cJSON *item, struct bag_v2_rows *rows, struct bag_problem *problem)
{
    if (cJSON_IsNull(item))
        return true;
    if (strcmp(item->string, "sequence") == 0)
        return read_sequence(item, rows, problem);
    if (strcmp(item->string, "delete") == 0) {
        rows->deletes = cJSON_IsTrue(item);
        return cJSON_IsBool(item) || bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                                     "parameter delete must be true or false");
    }
    /* Clients of the protocol ask for binary outputs whatever they send. */
    return strcmp(item->string, "binary_data_output") == 0 ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "parameter %s is unknown; a batch of rows takes sequence and delete",
                           bag_quote(item->string, strlen(item->string)).text);
}

static bool read_parameters(const cJSON *tree, struct bag_v2_rows *rows,
                            struct bag_problem *problem)
{
    const cJSON *parameters = bag_v2_member(tree, "parameters");
    if (parameters && !cJSON_IsObject(parameters))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "\"parameters\" must be an object");
    for (const cJSON *item = parameters ? parameters->child : NULL; item; item = item->next) {
        if (!read_parameter(item, rows, problem))
            return false;
    }
    return true;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

struct inputs {
    const struct bag_v2_input *ids, *rows;
};

static bool find_inputs(const struct bag_v2_request *request, struct inputs *inputs,
                        struct bag_v2_rows *rows, struct bag_problem *problem)
{
    for (size_t i = 0; i < request->num_inputs; i++) {
        const struct bag_v2_input *input = &request->inputs[i];
        bool is_keys = bag_text_is(input->name, "keys");
        bool is_rows = bag_text_is(input->name, "rows");
        if (!is_keys && !is_rows && !bag_text_is(input->name, "indices"))
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "input '%s' is unknown; a batch of rows has indices or keys, "
                                   "and rows",
                                   bag_quote(input->name.data, input->name.bytes).text);
        if (!is_rows && inputs->ids)
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "inputs 'indices' and 'keys' cannot be combined");
        if (is_rows)
            inputs->rows = input;
        else
            inputs->ids = input;
        rows->has_keys |= is_keys;
    }
    return true;
}

static bool check_inputs(const struct inputs *inputs, const struct bag_v2_rows *rows,
                         struct bag_problem *problem)
{
    if (!inputs->ids)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the input 'indices', or 'keys' of a table with keys, is missing");
    if (rows->deletes && inputs->rows)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "input 'rows' cannot be combined with parameter delete");
    return rows->deletes || inputs->rows ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the input 'rows' is missing");
}

static bool read_inputs(const struct bag_v2_request *request, struct bag_arena *arena,
                        struct bag_v2_rows *rows, struct bag_problem *problem)
{
    struct inputs inputs = {NULL, NULL};
    return find_inputs(request, &inputs, rows, problem) && check_inputs(&inputs, rows, problem) &&
           bag_v2_input_read(inputs.ids, arena, &rows->ids, problem) &&
           (!inputs.rows || bag_v2_input_read(inputs.rows, arena, &rows->rows, problem));
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static bool read_tree(struct bag_v2_reader *reader, struct bag_v2_rows *rows)
{
    if (!cJSON_IsObject(reader->header.tree))
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "the request must be a JSON object with \"inputs\"");
    if (reader->header.id.bytes > 2)
        rows->id = (struct bag_text){reader->header.id.data, reader->header.id.bytes};
    return read_parameters(reader->header.tree, rows, reader->problem) &&
           bag_v2_read_inputs(reader) &&
           read_inputs(reader->request, reader->arena, rows, reader->problem);
}

bool bag_v2_rows_decode(const char *body, size_t body_bytes, size_t header_bytes,
                        const struct bag_json_limits *limits, struct bag_arena *arena,
                        struct bag_v2_rows *rows, struct bag_problem *problem)
{
    struct bag_v2_request request = {.num_inputs = 0};
    struct bag_v2_reader reader = {.body = body,
                                   .body_bytes = body_bytes,
                                   .next_binary = header_bytes,
                                   .arena = arena,
                                   .request = &request,
                                   .problem = problem};
    *rows = (struct bag_v2_rows){.deletes = false};
    if (header_bytes == 0)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the body is empty; it must be a JSON object with \"inputs\"");
    if (!bag_json_parse_header(body, header_bytes, limits, arena, &reader.header, problem))
        return false;
    bool ok = read_tree(&reader, rows);
    bag_json_free(reader.header.tree);
    return ok;
}

/* ---- replies --------------------------------------------------------------------------------- */

char *bag_v2_rows_reply(const struct bag_v2_rows_reply *reply)
{
    static const char format[] = "{\"model_name\":\"%s\",\"model_version\":\"%s\"%s%.*s,"
                                 "\"sequence\":%" PRIu64 ",\"applied\":%s,\"rows\":%zu}";
    int id_bytes = (int)reply->id.bytes;
    const char *id_key = id_bytes ? ",\"id\":" : "";
    const char *id = id_bytes ? reply->id.data : "";
    const char *applied = reply->applied ? "true" : "false";
    int bytes = snprintf(NULL, 0, format, reply->model_name, reply->model_version, id_key, id_bytes,
                         id, reply->sequence, applied, reply->rows);
    char *text = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    if (text)
        snprintf(text, (size_t)bytes + 1, format, reply->model_name, reply->model_version, id_key,
                 id_bytes, id, reply->sequence, applied, reply->rows);
    return text;
}
