/* libFuzzer: bodies of inference. The first two bytes are the length of the JSON header; 0 means
 * that the whole body is JSON, and the highest bit sets small limits for the JSON header. The rest
 * is the body. All decoded data must lie within the body or the arena. A body that fits a template
 * must give the same request as decoding it. */
#include "fuzz.h"

#include "proto/json.h"
#include "proto/v2_request.h"

/* Size of the arena, in proportion to the body, as in the server. */
#define ARENA_BYTES(body_bytes) (((size_t)4 << 20) + 12 * (body_bytes))

static const struct bag_json_limits small_limits = {
    .max_tensors = 3,
    .max_dimensions = 2,
    .max_parameters = 3,
    .max_values = 24,
    .max_bytes = 200,
    .max_depth = 5,
};

static void require_within(struct bag_text text, const char *body, size_t body_bytes)
{
    require(text.data >= body && text.data + text.bytes <= body + body_bytes);
}

static void read_inputs(const struct bag_v2_request *request, struct bag_arena *arena)
{
    for (size_t i = 0; i < request->num_inputs; i++) {
        struct bag_problem problem = {.text = ""};
        struct bag_tensor tensor;
        if (bag_v2_input_read(&request->inputs[i], arena, &tensor, &problem))
            read_tensor(&tensor);
        else
            require(problem.kind == BAG_ERROR_BAD_REQUEST && problem.text[0]);
    }
}

/* A byte of the header becomes another: then it fits no longer, or means what decoding says. */
static void check_template(char *body, size_t body_bytes, size_t header_bytes)
{
    struct bag_v2_template *template = bag_v2_template_make(body, body_bytes, header_bytes);
    struct bag_problem problem;
    struct bag_v2_request decoded;
    struct bag_arena arena;
    if (!template)
        return;
    require(bag_v2_template_match(template, body, body_bytes, header_bytes) != NULL);
    body[(unsigned char)body[body_bytes - 1] % header_bytes] ^= body[header_bytes / 2] & 15;
    const struct bag_v2_request *request =
        bag_v2_template_match(template, body, body_bytes, header_bytes);
    bag_arena_init(&arena, ARENA_BYTES(body_bytes));
    if (request) {
        require(bag_v2_request_decode(body, body_bytes, header_bytes, &bag_json_default_limits,
                                      &arena, &decoded, &problem));
        require(decoded.num_inputs == request->num_inputs && decoded.id.data == request->id.data &&
                decoded.id.bytes == request->id.bytes);
        for (size_t i = 0; i < decoded.num_inputs; i++)
            require(decoded.inputs[i].raw.data == request->inputs[i].raw.data &&
                    decoded.inputs[i].raw.bytes == request->inputs[i].raw.bytes &&
                    decoded.inputs[i].count == request->inputs[i].count);
    }
    bag_arena_free(&arena);
    bag_v2_template_free(template);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct bag_problem problem = {.text = ""};
    struct bag_v2_request request;
    struct bag_arena arena;
    if (count < 3)
        return 0;
    size_t body_bytes = count - 2, header_bytes = (size_t)bytes[0] | (size_t)(bytes[1] & 127) << 8;
    const struct bag_json_limits *limits =
        bytes[1] > 127 ? &small_limits : &bag_json_default_limits;
    if (header_bytes == 0 || header_bytes > body_bytes)
        header_bytes = body_bytes;
    char *body = malloc(body_bytes); /* a block of exactly that size, so that AddressSanitizer finds
                                        reads beyond it */
    memcpy(body, bytes + 2, body_bytes);
    bag_arena_init(&arena, ARENA_BYTES(body_bytes));
    if (bag_v2_request_decode(body, body_bytes, header_bytes, limits, &arena, &request, &problem)) {
        require(request.encoding != BAG_V2_DEFAULT);
        require(request.num_inputs <= limits->max_tensors &&
                request.num_outputs <= limits->max_tensors);
        if (request.id.bytes)
            require_within(request.id, body, body_bytes);
        for (size_t i = 0; i < request.num_inputs; i++) {
            const struct bag_v2_input *input = &request.inputs[i];
            require(input->rank <= limits->max_dimensions && input->dtype < BAG_DTYPE_COUNT);
            require_within(input->raw, body, body_bytes);
            require(input->raw.data == body + input->position);
        }
        read_inputs(&request, &arena);
        check_template(body, body_bytes, header_bytes);
    } else {
        require(problem.kind == BAG_ERROR_BAD_REQUEST && problem.text[0]);
    }
    bag_arena_free(&arena);
    free(body);
    return 0;
}
