/* The V2 JSON header as a whole; see v2_request.h. */
#include "v2_reader.h"

#include <stdlib.h>
#include <string.h>

bool bag_v2_header_length(const char *value, size_t body_bytes, size_t *header_bytes,
                          struct bag_problem *problem)
{
    size_t bytes = 0;
    const char *at = value;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(bytes, 10, &bytes) ||
            __builtin_add_overflow(bytes, (size_t)(*at - '0'), &bytes))
            bytes = SIZE_MAX / 16; /* saturated: more than any body, and safe to go on with */
    }
    if (at == value || *at || bytes == 0 || bytes > body_bytes)
        return bag_problem_set(problem, 400,
                               "Inference-Header-Content-Length is '%s'; it must be the number of "
                               "bytes of the JSON header, from 1 to %zu, the size of the body",
                               bag_quote(value, strlen(value)).text, body_bytes);
    *header_bytes = bytes;
    return true;
}

bool bag_v2_request_decode(const char *body, size_t body_bytes, size_t header_bytes,
                           struct bag_arena *arena, struct bag_v2_request *request,
                           struct bag_problem *problem)
{
    struct bag_v2_reader reader = {.body = body,
                                   .body_bytes = body_bytes,
                                   .next_binary = header_bytes,
                                   .arena = arena,
                                   .request = request,
                                   .problem = problem};
    memset(request, 0, sizeof *request);
    request->encoding = BAG_V2_JSON;
    if (header_bytes == 0)
        return bag_problem_set(problem, 400,
                               "the body is empty; it must be a JSON object with \"inputs\"");
    if (!bag_json_parse_header(body, header_bytes, arena, &reader.header, problem))
        return false;
    bool ok = true;
    if (!cJSON_IsObject(reader.header.tree))
        ok = bag_problem_set(problem, 400, "the request must be a JSON object with \"inputs\"");
    ok = ok && bag_v2_read_parameters(&reader) && bag_v2_read_inputs(&reader) &&
         bag_v2_read_outputs(&reader);
    if (ok && reader.header.id.bytes > 2) {
        request->id.bytes = reader.header.id.text;
        request->id.count = reader.header.id.bytes;
        request->id_position = (size_t)(reader.header.id.text - body);
    }
    bag_json_free(reader.header.tree);
    return ok;
}

void bag_v2_request_rebind(struct bag_v2_request *request, const char *body)
{
    for (size_t i = 0; i < request->num_inputs; i++)
        request->inputs[i].raw.bytes = body + request->inputs[i].position;
    if (request->id.count)
        request->id.bytes = body + request->id_position;
}
