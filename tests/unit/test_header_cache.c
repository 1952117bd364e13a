/* Kept JSON headers: what fits one is read as decoding reads it, and nothing else fits. */
#include "testing.h"

#include "proto/v2_request.h"

#define ONE                                                                           \
    "{\"id\":\"7\",\"inputs\":[{\"name\":\"a\",\"shape\":[2],\"datatype\":\"INT32\"," \
    "\"parameters\":{\"binary_data_size\":8}}]}"
#define TWO                                                                                  \
    "{\"parameters\":{\"binary_data_output\":true,\"timeout\":10}, \"inputs\" : [{\"name\":" \
    "\"shape\",\"parameters\":{\"binary_data_size\" : 4 }, \"shape\" : [ 2 , 1 ],"           \
    "\"datatype\":\"INT16\"},{\"name\":\"b\",\"shape\":[],\"datatype\":\"INT32\","           \
    "\"parameters\":{\"binary_data_size\":4}}],\"outputs\":[{\"name\":\"c\"}]}"

#define TENSORS "aaaabbbb"

/* The header with the tensors behind it, in memory of exactly that size. */
struct body {
    char *bytes;
    size_t count, header_bytes;
};

static struct body body_of(const char *header, size_t header_bytes)
{
    struct body body = {malloc(header_bytes + strlen(TENSORS)), header_bytes + strlen(TENSORS),
                        header_bytes};
    assert_non_null(body.bytes);
    memcpy(body.bytes, header, header_bytes);
    memcpy(body.bytes + header_bytes, TENSORS, strlen(TENSORS));
    return body;
}

static struct bag_v2_template *make(const char *header)
{
    struct body body = body_of(header, strlen(header));
    struct bag_v2_template *template =
        bag_v2_template_make(body.bytes, body.count, body.header_bytes);
    free(body.bytes); /* nothing kept may point into it */
    return template;
}

static bool same(struct bag_text a, struct bag_text b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

static void assert_same(const struct bag_v2_request *a, const struct bag_v2_request *b)
{
    assert_int_equal(a->num_inputs, b->num_inputs);
    assert_int_equal(a->num_outputs, b->num_outputs);
    assert_int_equal(a->encoding, b->encoding);
    assert_memory_equal(&a->overrides, &b->overrides, sizeof a->overrides);
    assert_true(a->id.data == b->id.data && a->id.bytes == b->id.bytes);
    for (size_t i = 0; i < a->num_inputs; i++) {
        const struct bag_v2_input *x = &a->inputs[i], *y = &b->inputs[i];
        assert_true(same(x->name, y->name) && x->dtype == y->dtype && x->rank == y->rank);
        assert_memory_equal(x->shape, y->shape, x->rank * sizeof x->shape[0]);
        assert_true(x->count == y->count && x->binary && y->binary && x->position == y->position);
        assert_true(x->raw.data == y->raw.data && x->raw.bytes == y->raw.bytes);
    }
}

/* Returns whether the header fits the template. If it does, the request must be the same as after
 * decoding. */
static bool fits(struct bag_v2_template *template, const char *header, size_t header_bytes)
{
    struct body body = body_of(header, header_bytes);
    const struct bag_v2_request *request =
        bag_v2_template_match(template, body.bytes, body.count, header_bytes);
    if (request) {
        struct bag_v2_request decoded;
        struct bag_problem problem;
        struct bag_arena arena;
        bag_arena_init(&arena, 1 << 20);
        if (!bag_v2_request_decode(body.bytes, body.count, header_bytes, &bag_json_default_limits,
                                   &arena, &decoded, &problem))
            fail_msg("'%.*s' fits, but: %s", (int)header_bytes, header, problem.text);
        assert_same(request, &decoded);
        bag_arena_free(&arena);
    }
    free(body.bytes);
    return request != NULL;
}

/* Each byte replaced by each other, taken out, or with each other in front of it. */
TEST(test_one_byte_differs)
{
    static const char *const headers[] = {ONE, TWO};
    char text[512];
    for (size_t i = 0; i < COUNT_OF(headers); i++) {
        const char *header = headers[i];
        size_t bytes = strlen(header), count = 0;
        struct bag_v2_template *template = make(header);
        assert_non_null(template);
        assert_true(fits(template, header, bytes));
        for (size_t at = 0; at < bytes; at++) {
            size_t rest = bytes - at - 1;
            memcpy(text, header, at);
            memcpy(text + at, header + at + 1, rest);
            count += fits(template, text, bytes - 1);
            for (int byte = 0; byte < 256; byte++) {
                text[at] = (char)byte;
                memcpy(text + at + 1, header + at + 1, rest);
                count += fits(template, text, bytes);
                memcpy(text + at + 1, header + at, rest + 1);
                count += fits(template, text, bytes + 1);
            }
        }
        /* The header itself by each byte, and twice by one that is put beside its like; of ONE the
         * ids of two characters and of another one. */
        assert_in_range(count, bytes, bytes * 3 + 300);
        bag_v2_template_free(template);
    }
}

TEST(test_numbers_and_ids)
{
    static const struct {
        const char *header;
        bool fits;
    } cases[] = {
#define HEADER(id, shape, size)                                                                \
    "{\"id\":" id ",\"inputs\":[{\"name\":\"a\",\"shape\":[" shape "],\"datatype\":\"INT32\"," \
    "\"parameters\":{\"binary_data_size\":" size "}}]}"
        {HEADER("\"7\"", "2", "8"), true},
        {HEADER("\"a long id, of 24 bytes\"", "2", "8"), true},
        {HEADER("\"\"", "2", "8"), false},
        {HEADER("7", "2", "8"), false},
        {HEADER("\"\\u0041\"", "2", "8"), false},
        {HEADER("\"\xc3\xa4\"", "2", "8"), false},
        {HEADER("\"7\"", "3", "8"), false},
        {HEADER("\"7\"", "3", "12"), false}, /* not so many are there */
        {HEADER("\"7\"", "1", "4"), false},  /* or more */
        {HEADER("\"7\"", "02", "8"), false},
        {HEADER("\"7\"", "2", "8.0"), false},
        {HEADER("\"7\"", "2", "-8"), false},
        {HEADER("\"7\"", "2,1", "8"), false},
        {HEADER("\"7\"", "4611686018427387906", "8"), false}, /* times 4 it is 8 again */
        {HEADER("\"7\"", "999999999999999", "8"), false}};
    struct bag_v2_template *template = make(ONE);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (fits(template, cases[i].header, strlen(cases[i].header)) != cases[i].fits)
            fail_msg("%s", cases[i].header);
    }
    bag_v2_template_free(template);
}

/* Clients that send their remaining time send a different value each time. */
TEST(test_timeouts)
{
#define TIMED(timeout)                                                                        \
    "{\"inputs\":[{\"name\":\"timeout\",\"shape\":[2],\"datatype\":\"INT32\",\"parameters\":" \
    "{\"binary_data_size\":8}}],\"parameters\":{\"timeout\":" timeout "}}"
    static const struct {
        const char *header;
        bool fits;
    } cases[] = {{TIMED("5"), true},
                 {TIMED("123456789012345"), true},
                 {TIMED("0"), true},
                 {TIMED("05"), false},
                 {TIMED("1234567890123456"), false},
                 {TIMED("-5"), false},
                 {TIMED("5.0"), false},
                 {TIMED("null"), false}};
    struct bag_v2_template *template = make(TIMED("4999811"));
    assert_non_null(template);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (fits(template, cases[i].header, strlen(cases[i].header)) != cases[i].fits)
            fail_msg("%s", cases[i].header);
    }
    bag_v2_template_free(template);
}

/* Tests headers that get no template: those with JSON data, those that cannot be decoded, and those
 * with numbers of unclear meaning. */
TEST(test_no_templates)
{
#define INPUT "{\"inputs\":[{\"name\":\"a\",\"shape\":[2],\"datatype\":"
#define SIZE  ",\"parameters\":{\"binary_data_size\":8"
    static const char *const headers[] = {
        INPUT "\"INT32\"" SIZE "}},{\"name\":\"b\",\"shape\":[1],\"datatype\":\"INT32\","
              "\"data\":[1]}]}",
        INPUT "\"INT64\"" SIZE "}}]}",
        INPUT "\"BYTES\"" SIZE "}}]}",
        INPUT "\"INT32\"" SIZE ",\"shape\":[2]}}]}",
        INPUT "\"INT32\"" SIZE "}}],\"other\":{\"binary_data_size\":8}}",
        INPUT "\"INT\\u00332\"" SIZE "}}]}",
        INPUT "\"INT32\"" SIZE ".0}}]}",
        INPUT "\"INT32\"" SIZE "}}],\"parameters\":{\"timeout\":10.0}}",
        INPUT "\"INT32\"" SIZE "}}],\"parameters\":{\"timeout\":null}}",
        INPUT "\"INT32\"" SIZE "}}],\"parameters\":{\"priority\":{\"timeout\":0}}}",
        INPUT "\"INT32\"" SIZE "}}],\"id\":\"\xc3\xa4\"}"};
    for (size_t i = 0; i < COUNT_OF(headers); i++)
        assert_null(make(headers[i]));
}

static const struct bag_v2_request *find(struct bag_header_cache *cache, const char *header)
{
    struct body body = body_of(header, strlen(header));
    const struct bag_v2_request *request =
        bag_header_cache_find(cache, body.bytes, body.count, body.header_bytes);
    if (!request)
        bag_header_cache_learn(cache, body.bytes, body.count, body.header_bytes);
    free(body.bytes);
    return request;
}

/* The first one is learned, and then one of seventeen: those that come often stay. */
TEST(test_learns_what_comes_often)
{
    struct bag_header_cache cache = {.misses = 0};
    unsigned found = 0, often = 0;
    char header[sizeof ONE + 16];
    for (unsigned i = 0; i < 4000; i++) {
        snprintf(header, sizeof header, "%.*s%04u%s", (int)(strstr(ONE, "\"a\"") + 1 - ONE), ONE, i,
                 strstr(ONE, "a\""));
        found += find(&cache, header) != NULL;
        often += find(&cache, i % 2 ? ONE : TWO) != NULL;
    }
    assert_int_equal(found, 0);
    assert_in_range(often, 3900, 3999);
    bag_header_cache_free(&cache);
    assert_null(find(&cache, ONE));
    assert_non_null(find(&cache, ONE));
    assert_null(bag_header_cache_find(&cache, ONE, strlen(ONE), strlen(ONE))); /* all is JSON */
    bag_header_cache_free(&cache);
}

/* Headers of many features get templates too, up to 64 KiB. */
TEST(test_wide_headers)
{
    static const struct {
        unsigned inputs;
        bool is_kept;
    } cases[] = {{1, true}, {100, true}, {600, true}, {800, false}};
    char *header = malloc(800 * 100 + 100);
    assert_non_null(header);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_header_cache cache = {.misses = 0};
        int used = sprintf(header, "{\"inputs\":[");
        for (unsigned j = 0; j < cases[i].inputs; j++)
            used += sprintf(header + used,
                            "%s{\"name\":\"f%03u.indices\",\"shape\":[%d],\"datatype\":\"INT32\","
                            "\"parameters\":{\"binary_data_size\":%d}}",
                            j ? "," : "", j, j ? 0 : 2, j ? 0 : 8);
        used += sprintf(header + used, "]}");
        assert_int_equal(used <= 65536, cases[i].is_kept);
        assert_null(find(&cache, header));
        const struct bag_v2_request *request = find(&cache, header);
        assert_int_equal(request != NULL, cases[i].is_kept);
        if (request)
            assert_int_equal(request->num_inputs, cases[i].inputs);
        bag_header_cache_free(&cache);
    }
    free(header);
}
