/* Decoded JSON headers with open fields; see v2_request.h. */
#include "v2_request.h"

#include <stdlib.h>

/* The maximum memory for decoding one header. */
#define ARENA_BYTES (1 << 20)

/* The maximum number of digits of an open number. A number of so many digits cannot overflow
 * and is exact in every type. */
#define MAX_DIGITS 15

/* A text that must be the same, and the open field after it: a dimension, a size, the timeout, or
 * the id. */
struct piece {
    const char *text;
    size_t bytes;
    int64_t *dimension; /* NULL: none */
    size_t *size;       /* NULL: none */
    uint64_t *timeout;  /* NULL: none; if all three are NULL, the field is the id */
};

struct bag_v2_template {
    struct bag_arena arena; /* memory of the members below */
    struct bag_v2_request request;
    struct piece *pieces;
    size_t num_pieces; /* pieces with an open field after them; the last text follows */
};

/* ---- open places ----------------------------------------------------------------------------- */

/* Reads an integer in JSON's form and returns its end. Returns NULL if there is none or it has too
 * many digits. */
static const char *read_number(const char *at, const char *end, uint64_t *value)
{
    const char *first = at;
    for (*value = 0; at < end && *at >= '0' && *at <= '9' && at - first <= MAX_DIGITS; at++)
        *value = *value * 10 + (uint64_t)(*at - '0');
    bool ok = at > first && at - first <= MAX_DIGITS && (*first != '0' || at == first + 1);
    return ok ? at : NULL;
}

/* Reads a string of printable ASCII without escapes, with its quotes, and returns its end. Returns
 * NULL if there is none or it is empty. */
static const char *read_string(const char *at, const char *end, struct bag_text *text)
{
    const char *first = at;
    if (at == end || *at++ != '"')
        return NULL;
    while (at < end && *at >= ' ' && *at <= '~' && *at != '"' && *at != '\\')
        at++;
    if (at == end || *at != '"' || at == first + 1)
        return NULL;
    *text = (struct bag_text){first, (size_t)(at + 1 - first)};
    return at + 1;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* A header whose open fields are being found. */
struct finder {
    struct bag_v2_template *template;
    const char *from; /* end of the last field */
    const char *end;
    size_t shapes, sizes, timeouts; /* number of each kind found so far */
};

/* Adds the text from the last field up to `at`, where the next field begins. */
static void add_piece(struct finder *finder, const char *at, struct piece place)
{
    struct bag_v2_template *template = finder->template;
    place.text = finder->from;
    place.bytes = (size_t)(at - finder->from);
    template->pieces[template->num_pieces++] = place;
}

/* Opens the number at `at`, which must have the expected value. Returns its end, or NULL if it has
 * not. */
static const char *open_number(struct finder *finder, const char *at, uint64_t expected,
                               struct piece place)
{
    uint64_t value;
    const char *behind = read_number(at, finder->end, &value);
    bool is_whole = behind && behind < finder->end && !memchr(".eE", *behind, 3);
    if (!is_whole || value != expected)
        return NULL;
    add_piece(finder, at, place);
    finder->from = behind;
    return behind;
}

/* Opens the "binary_data_size" of the next input. Returns its end, or NULL if it is not that of the
 * input. */
static const char *open_size(struct finder *finder, const char *at)
{
    struct bag_v2_request *request = &finder->template->request;
    if (finder->sizes == request->num_inputs)
        return NULL;
    size_t *size = &request->inputs[finder->sizes++].raw.bytes;
    return open_number(finder, at, *size, (struct piece){.size = size});
}

/* Returns whether the string between `string` and `behind`, which includes its quotes, is this key.
 */
static bool is_key(const char *string, const char *behind, const char *key)
{
    size_t bytes = strlen(key);
    return (size_t)(behind - string) == bytes + 2 && memcmp(string + 1, key, bytes) == 0;
}

/* Opens a string if it is the id, or the value after it if the string is a key with an open value.
 * Returns the end of what was read. */
static const char *open_string(struct finder *finder, const char *string, const char *id)
{
    const char *quote = memchr(string + 1, '"', (size_t)(finder->end - string - 1));
    if (!quote)
        return NULL;
    const char *at = bag_space_skip(quote + 1, finder->end);
    if (string == id) {
        struct bag_text text;
        add_piece(finder, string, (struct piece){0});
        return finder->from = read_string(string, finder->end, &text);
    }
    if (at == finder->end || *at != ':')
        return at;
    at = bag_space_skip(at + 1, finder->end);
    if (is_key(string, quote + 1, "shape")) {
        /* Open the dimensions of the next input, whose "shape" is at `at`. */
        struct bag_v2_request *request = &finder->template->request;
        if (finder->shapes == request->num_inputs)
            return NULL;
        struct bag_v2_input *input = &request->inputs[finder->shapes++];
        for (uint32_t i = 0; at && i < input->rank; i++) {
            at = bag_space_skip(at + 1, finder->end); /* after the bracket or the comma */
            at = open_number(finder, at, (uint64_t)input->shape[i],
                             (struct piece){.dimension = &input->shape[i]});
            at = at ? bag_space_skip(at, finder->end) : NULL;
        }
        return at;
    }
    if (is_key(string, quote + 1, "timeout")) {
        /* Open the value of "timeout". Coordinators send the remaining time, which differs in each
         * request. If the request has a timeout, its key must occur once. If it has none, the key
         * may be a member of an ignored object, so the header cannot be a template. */
        uint64_t *timeout = &finder->template->request.overrides.timeout_us;
        if (finder->timeouts++ > 0 || *timeout == 0)
            return NULL;
        return open_number(finder, at, *timeout, (struct piece){.timeout = timeout});
    }
    return is_key(string, quote + 1, "binary_data_size") ? open_size(finder, at) : at;
}

/* Decodes the body and finds the open fields of its header. Returns false if the header cannot be a
 * template; the caller frees what was allocated. */
static bool decode(struct bag_v2_template *template, const char *body, size_t body_bytes,
                   size_t header_bytes)
{
    struct bag_v2_request *request = &template->request;
    struct bag_problem ignored;
    size_t places = 2; /* the id and the timeout */
    if (!bag_v2_request_decode(body, body_bytes, header_bytes, &bag_json_default_limits,
                               &template->arena, request, &ignored))
        return false;
    /* A reply may be written after the template was freed, so it must not use the template's
     * warnings. */
    if (request->warnings.bytes)
        return false;
    for (size_t i = 0; i < request->num_inputs; i++) {
        if (!request->inputs[i].binary || !bag_dtypes[request->inputs[i].dtype].bytes)
            return false;
        places += request->inputs[i].rank + 1;
    }
    char *header = bag_arena_alloc(&template->arena, header_bytes);
    template->pieces = bag_arena_array(&template->arena, places + 1, sizeof *template->pieces);
    if (!header || !template->pieces)
        return false;
    memcpy(header, body, header_bytes);
    /* Find the open fields. Every input has each of the two keys once. So if the header has as many
     * of each key as it has inputs, and no backslash, the keys are those of the inputs, in their
     * order. */
    const char *id = request->id.bytes ? header + (request->id.data - body) : NULL;
    struct finder finder = {.template = template, .from = header, .end = header + header_bytes};
    if (memchr(header, '\\', header_bytes))
        return false;
    /* Only strings matter: all other bytes become part of a piece. */
    for (const char *at = header; at && at < finder.end;) {
        at = *at == '"' ? open_string(&finder, at, id) : at + 1;
        if (!at)
            return false;
    }
    template->pieces[template->num_pieces] =
        (struct piece){finder.from, (size_t)(finder.end - finder.from), NULL, NULL, NULL};
    return finder.shapes == template->request.num_inputs &&
           finder.sizes == template->request.num_inputs;
}

struct bag_v2_template *bag_v2_template_make(const char *body, size_t body_bytes,
                                             size_t header_bytes)
{
    struct bag_v2_template *template = calloc(1, sizeof *template);
    if (!template)
        return NULL;
    bag_arena_init(&template->arena, ARENA_BYTES);
    if (decode(template, body, body_bytes, header_bytes))
        return template;
    bag_v2_template_free(template);
    return NULL;
}

/* ---- matching -------------------------------------------------------------------------------- */

/* Reads an open field and returns its end, or NULL if the text has another form. */
static const char *read_place(const struct piece *piece, const char *at, const char *end,
                              struct bag_v2_request *request)
{
    uint64_t value;
    if (!piece->dimension && !piece->size && !piece->timeout)
        return read_string(at, end, &request->id);
    at = read_number(at, end, &value);
    if (piece->dimension)
        *piece->dimension = (int64_t)value;
    else if (piece->timeout)
        *piece->timeout = value;
    else
        *piece->size = (size_t)value;
    return at;
}

/* Compares a header with the pieces and reads its open fields into template->request. Returns false
 * if it differs; the fields are then meaningless until the next match. */
static bool read_places(struct bag_v2_template *template, const char *at, const char *end)
{
    for (size_t i = 0;; i++) {
        const struct piece *piece = &template->pieces[i];
        if (piece->bytes > (size_t)(end - at) || memcmp(at, piece->text, piece->bytes) != 0)
            return false;
        at += piece->bytes;
        if (i == template->num_pieces)
            return at == end;
        at = read_place(piece, at, end, &template->request);
        if (!at)
            return false;
    }
}

/* Checks the input's size as decoding does, and sets its data to the bytes from *position on. */
static bool take_bytes(struct bag_v2_input *input, const char *body, size_t body_bytes,
                       size_t *position)
{
    size_t bytes = bag_dtypes[input->dtype].bytes;
    input->count = 1;
    for (uint32_t i = 0; i < input->rank; i++) {
        if (__builtin_mul_overflow(input->count, (size_t)input->shape[i], &input->count))
            return false;
    }
    if (__builtin_mul_overflow(input->count, bytes, &bytes) || bytes != input->raw.bytes ||
        bytes > body_bytes - *position)
        return false;
    input->position = *position;
    input->raw.data = body + *position;
    *position += bytes;
    return true;
}

const struct bag_v2_request *bag_v2_template_match(struct bag_v2_template *template,
                                                   const char *body, size_t body_bytes,
                                                   size_t header_bytes)
{
    struct bag_v2_request *request = &template->request;
    size_t position = header_bytes;
    if (!read_places(template, body, body + header_bytes))
        return NULL;
    for (size_t i = 0; i < request->num_inputs; i++) {
        if (!take_bytes(&request->inputs[i], body, body_bytes, &position))
            return NULL;
    }
    return position == body_bytes ? request : NULL;
}

void bag_v2_template_free(struct bag_v2_template *template)
{
    if (template)
        bag_arena_free(&template->arena);
    free(template);
}

/* ---- the headers of a loop ------------------------------------------------------------------- */

/* Longer JSON headers are decoded every time. */
#define MAX_HEADER_BYTES 65536

/* Every 17th miss is learned. The number is a prime, so that each of several clients that take
 * turns is learned. */
#define LEARNED_MISSES 17

/* Puts a template first. The templates before position `end` move back by one. */
static void put_first(struct bag_header_cache *cache, struct bag_v2_template *first, size_t end)
{
    memmove(cache->slots + 1, cache->slots, end * sizeof *cache->slots);
    cache->slots[0] = first;
}

/* Returns whether a header may be in the cache: it is short enough, and binary tensors follow it.
 */
static bool is_eligible(size_t body_bytes, size_t header_bytes)
{
    return header_bytes <= MAX_HEADER_BYTES && header_bytes < body_bytes;
}

const struct bag_v2_request *bag_header_cache_find(struct bag_header_cache *cache, const char *body,
                                                   size_t body_bytes, size_t header_bytes)
{
    if (!is_eligible(body_bytes, header_bytes))
        return NULL;
    for (size_t i = 0; i < BAG_HEADER_CACHE_SLOTS && cache->slots[i]; i++) {
        const struct bag_v2_request *request =
            bag_v2_template_match(cache->slots[i], body, body_bytes, header_bytes);
        if (!request)
            continue;
        if (i)
            put_first(cache, cache->slots[i], i);
        return request;
    }
    return NULL;
}

void bag_header_cache_learn(struct bag_header_cache *cache, const char *body, size_t body_bytes,
                            size_t header_bytes)
{
    if (!is_eligible(body_bytes, header_bytes) || cache->misses++ % LEARNED_MISSES)
        return;
    struct bag_v2_template *learned = bag_v2_template_make(body, body_bytes, header_bytes);
    if (!learned)
        return;
    bag_v2_template_free(cache->slots[BAG_HEADER_CACHE_SLOTS - 1]);
    put_first(cache, learned, BAG_HEADER_CACHE_SLOTS - 1);
}

void bag_header_cache_free(struct bag_header_cache *cache)
{
    for (size_t i = 0; i < BAG_HEADER_CACHE_SLOTS; i++)
        bag_v2_template_free(cache->slots[i]);
    *cache = (struct bag_header_cache){.misses = 0};
}
