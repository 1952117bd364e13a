/* libFuzzer: bodies that change rows, framed as in fuzz_request.c: the first two bytes say how long
 * the JSON header is, 0 that all is JSON. All decoded data must lie within the body or the
 * arena. */
#include "fuzz.h"

#include "proto/json.h"
#include "proto/v2_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
    struct bag_v2_rows rows;
    struct bag_arena arena;
    if (count < 2)
        return 0;
    size_t body_bytes = count - 2, header_bytes = bytes[0] | (size_t)bytes[1] << 8;
    char *body = malloc(body_bytes ? body_bytes : 1); /* exact: one byte beyond is found */
    memcpy(body, bytes + 2, body_bytes);
    if (header_bytes == 0 || header_bytes > body_bytes)
        header_bytes = body_bytes;
    bag_arena_init(&arena, ((size_t)4 << 20) + 12 * body_bytes);
    if (bag_v2_rows_decode(body, body_bytes, header_bytes, &bag_json_default_limits, &arena, &rows,
                           &problem)) {
        struct bag_v2_rows_reply reply = {.model_name = "items",
                                          .model_version = "1",
                                          .id = rows.id,
                                          .sequence = rows.sequence,
                                          .applied = true,
                                          .rows = rows.ids.count};
        require(rows.first_sequence <= rows.sequence);
        require(!rows.id.bytes ||
                (rows.id.data >= body && rows.id.data + rows.id.bytes <= body + body_bytes));
        require(!rows.is_empty || (rows.sequence && !rows.ids.count && !rows.rows.count));
        if (!rows.is_empty)
            read_tensor(&rows.ids);
        if (!rows.deletes && !rows.is_empty)
            read_tensor(&rows.rows);
        char *text = bag_v2_rows_reply(&reply);
        require(text && text[0] == '{' && text[strlen(text) - 1] == '}');
        free(text);
    } else {
        require(problem.kind == BAG_ERROR_BAD_REQUEST && problem.text[0]);
    }
    bag_arena_free(&arena);
    free(body);
    return 0;
}
