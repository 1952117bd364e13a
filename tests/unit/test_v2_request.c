/* V2 requests: what a JSON header says, and every way in which one can be wrong. */
#include "testing.h"

#include "proto/json.h"
#include "proto/v2_request.h"

struct decoded {
    struct bag_arena arena;
    struct bag_v2_request request;
    struct bag_problem problem;
    char *body; /* an exact copy */
};

/* Decodes a body of `header_bytes` of JSON (0: all of it). */
static bool decode(struct decoded *decoded, const char *body, size_t bytes, size_t header_bytes)
{
    bag_arena_init(&decoded->arena, 1 << 20);
    decoded->body = quoted_copy(body, bytes); /* no tensor of these tests has a ' in it */
    return bag_v2_request_decode(decoded->body, bytes, header_bytes ? header_bytes : bytes,
                                 &bag_json_default_limits, &decoded->arena, &decoded->request,
                                 &decoded->problem);
}

static bool decode_json(struct decoded *decoded, const char *text)
{
    return decode(decoded, text, strlen(text), 0);
}

static void release(struct decoded *decoded)
{
    free(decoded->body);
    bag_arena_free(&decoded->arena);
}

static void rejects(const char *text, const char *words)
{
    struct decoded decoded;
    if (decode_json(&decoded, text))
        fail_msg("taken: %s", text);
    assert_int_equal(decoded.problem.kind, BAG_ERROR_BAD_REQUEST);
    if (!strstr(decoded.problem.text, words))
        fail_msg("%s: '%s' does not contain '%s'", text, decoded.problem.text, words);
    release(&decoded);
}

TEST(test_reads_json_tensors)
{
    const char *text =
        "{'id':'r\\u00e91','model_name':'m','parameters':{'reduction':'mean','padding_idx':-2,'"
        "include_last_offset':true,'output_datatype':'BF16','output_row_format':'int4','x':[1]},'"
        "inputs':[{'name':'indices','shape':[2,2],'datatype':'INT64','data':[[9223372036854775807,-"
        "9223372036854775808],[1,2]]},{'name':'w','shape':[],'datatype':'FP32','data':[0.1]}],'"
        "outputs':[{'name':'embeddings','parameters':{'binary_data':true}}]}";
    static const int64_t indices[] = {INT64_MAX, INT64_MIN, 1, 2};
    struct decoded decoded;
    struct bag_tensor tensor;
    assert_true(decode_json(&decoded, text));
    const struct bag_v2_request *request = &decoded.request;
    assert_true(bag_text_is(request->id, "\"r\\u00e91\""));
    assert_true(request->overrides.has_reduction);
    assert_int_equal(request->overrides.reduction, BAG_MEAN);
    assert_true(request->overrides.has_padding_idx);
    assert_int_equal(request->overrides.padding_idx, -2);
    assert_true(request->overrides.has_include_last_offset);
    assert_true(request->overrides.include_last_offset);
    assert_true(request->overrides.has_output_dtype);
    assert_int_equal(request->overrides.output_dtype, BAG_BF16);
    assert_true(request->overrides.has_row_format);
    assert_int_equal(request->overrides.row_format, BAG_ROWS_INT4);
    assert_int_equal(request->num_inputs, 2);
    assert_true(bag_v2_is_binary(request, request->outputs[0].encoding));
    assert_true(bag_v2_input_read(&request->inputs[0], &decoded.arena, &tensor, &decoded.problem));
    assert_int_equal(tensor.dtype, BAG_I64);
    assert_int_equal(tensor.rank, 2);
    assert_int_equal(tensor.count, 4);
    assert_memory_equal(tensor.data, indices, sizeof indices);
    assert_true(bag_v2_input_read(&request->inputs[1], &decoded.arena, &tensor, &decoded.problem));
    assert_int_equal(tensor.rank, 0);
    assert_int_equal(tensor.count, 1);
    float weight = 0.1f;
    assert_memory_equal(tensor.data, &weight, sizeof weight);
    release(&decoded);
}

/* One binary, one JSON, one binary: the binary ones are views in order. */
TEST(test_reads_mixed_tensors)
{
    const char *header =
        "{'inputs':[{'name':'a','shape':[3],'datatype':'INT16','parameters':{'binary_data_size':6}}"
        ",{'name':'b','shape':[1],'datatype':'UINT8','data':[255]},{'name':'c','shape':[1,1],'"
        "datatype':'FP16','data':null,'parameters':{'binary_data_size':2}}]}";
    struct decoded decoded;
    struct bag_tensor tensor;
    char body[512];
    size_t header_bytes = strlen(header);
    memcpy(body, header, header_bytes);
    memcpy(body + header_bytes, "\1\0\2\0\3\0\x12\x34", 8);
    assert_true(decode(&decoded, body, header_bytes + 8, header_bytes));
    const struct bag_v2_input *inputs = decoded.request.inputs;
    assert_int_equal(decoded.request.encoding, BAG_V2_JSON);
    assert_true(bag_v2_input_read(&inputs[0], &decoded.arena, &tensor, &decoded.problem));
    assert_ptr_equal(tensor.data, decoded.body + header_bytes);
    assert_true(bag_v2_input_read(&inputs[1], &decoded.arena, &tensor, &decoded.problem));
    assert_memory_equal(tensor.data, "\xff", 1);
    assert_true(bag_v2_input_read(&inputs[2], &decoded.arena, &tensor, &decoded.problem));
    assert_ptr_equal(tensor.data, decoded.body + header_bytes + 6);
    release(&decoded);
}

TEST(test_rejects_bytes_that_do_not_fit)
{
    const char *header = "{'inputs':[{'name':'a','shape':[2],'datatype':'INT32','parameters':{'"
                         "binary_data_size':8}}]}";
    struct decoded decoded;
    char body[256] = {0};
    size_t header_bytes = strlen(header);
    memcpy(body, header, header_bytes);
    assert_true(decode(&decoded, body, header_bytes + 8, header_bytes));
    release(&decoded);
    assert_false(decode(&decoded, body, header_bytes + 7, header_bytes));
    assert_string_equal(decoded.problem.text, "input 'a': binary_data_size is 8, but only 7 bytes "
                                              "are left in the body");
    release(&decoded);
    assert_false(decode(&decoded, body, header_bytes + 9, header_bytes));
    assert_string_equal(decoded.problem.text, "1 bytes are left over after the last binary tensor");
    release(&decoded);
}

#define TENSOR(rest) "{'inputs':[{'name':'a'," rest "}]}"
#define INT32        "'datatype':'INT32',"

TEST(test_rejects_malformed_inputs)
{
    static const char *const cases[][2] = {
        {"[]", "must be a JSON object"},
        {"{}", "\"inputs\" is missing; it must be an array"},
        {"{'inputs':{}}", "\"inputs\" must be an array"},
        {"{'inputs':[7]}", "inputs[0]: must be an object with a \"name\""},
        {"{'inputs':[{'name':7}]}", "inputs[0]: must be an object with a \"name\""},
        {TENSOR("'shape':[1]"), "input 'a': \"datatype\" must be a string"},
        {TENSOR("'datatype':'INT128'"), "input 'a': datatype \"INT128\" is unknown"},
        {TENSOR("'datatype':'int64'"), "datatype \"int64\" is unknown"},
        {TENSOR("'datatype':'INT32'"), "input 'a': \"shape\" must be an array"},
        {TENSOR(INT32 "'shape':[-1]"), "dimension 0 of \"shape\""},
        {TENSOR(INT32 "'shape':[1,1.5]"), "dimension 1 of \"shape\""},
        {TENSOR(INT32 "'shape':['1']"), "dimension 0 of \"shape\""},
        {TENSOR(INT32 "'shape':[4294967296,4294967296]"), "more elements than can be counted"},
        {TENSOR(INT32 "'shape':[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                      "1]"),
         "more than 32 dimensions"},
        {TENSOR(INT32 "'shape':[1],'data':7"), "input 'a': \"data\" must be an array"},
        {TENSOR(INT32 "'shape':[1],'data':'x'"), "input 'a': \"data\" must be an array"},
        {TENSOR(INT32 "'shape':[1]"), "neither \"data\" nor"},
        {TENSOR(INT32 "'shape':[1],'data':null"), "neither \"data\" nor"},
        {TENSOR(INT32 "'shape':[1],'data':[1],'parameters':{'binary_data_size':4}"),
         "both \"data\" and"},
        {TENSOR(INT32 "'shape':[1],'parameters':7"), "\"parameters\" must be an object"},
        {TENSOR(INT32 "'shape':[1],'parameters':{'binary_data_size':-4}"),
         "binary_data_size must be an integer"},
        {TENSOR(INT32 "'shape':[1],'parameters':{'binary_data_size':'4'}"),
         "binary_data_size must be an integer"},
        {TENSOR(INT32 "'shape':[2],'parameters':{'binary_data_size':4}"),
         "binary_data_size is 4; the shape of 2 INT32 elements takes 8 bytes"},
        {TENSOR(INT32 "'shape':[1],'parameters':{'binary_data_size':4}"), "only 0 bytes are left"},
        {TENSOR(INT32 "'shape':[1],'data':[1],'parameters':{'shared_memory_region':'r'}"),
         "shared memory is not supported"},
        {"{'inputs':[{'name':'a'," INT32 "'shape':[0],'data':[]},{'name':'a'," INT32
         "'shape':[0],'data':[]}]}",
         "input 'a' is duplicated"},
        {TENSOR(INT32 "'shape':[9007199254740993],'data':[1]"),
         "dimension 0 of \"shape\" must be an integer from 0 to 9007199254740991"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        rejects(cases[i][0], cases[i][1]);
}

TEST(test_rejects_malformed_outputs_and_parameters)
{
    static const char *const cases[][2] = {
        {"{'inputs':[],'outputs':{}}", "\"outputs\" must be an array of tensors"},
        {"{'inputs':[],'outputs':[{}]}", "outputs[0]: must be an object with a \"name\""},
        {"{'inputs':[],'outputs':[{'name':'e'},{'name':'e'}]}", "output 'e' is duplicated"},
        {"{'inputs':[],'outputs':[{'name':'e','parameters':{'binary_data':1}}]}",
         "output 'e': parameter binary_data must be true or false"},
#define OUTPUT(parameters) "{'inputs':[],'outputs':[{'name':'e','parameters':" parameters "}]}"
        {OUTPUT("[1]"), "output 'e': \"parameters\" must be an object"},
        {OUTPUT("[{}]"), "output 'e': \"parameters\" must be an object"},
        {OUTPUT("[]"), "output 'e': \"parameters\" must be an object"},
        {OUTPUT("5"), "output 'e': \"parameters\" must be an object"},
        {OUTPUT("'text'"), "output 'e': \"parameters\" must be an object"},
        {OUTPUT("true"), "output 'e': \"parameters\" must be an object"},
        {"{'inputs':[],'parameters':[]}", "\"parameters\" must be an object"},
        {"{'inputs':[],'parameters':{'reduction':'avg'}}",
         "parameter reduction is \"avg\"; it must be \"sum\""},
        {"{'inputs':[],'parameters':{'reduction':1}}", "parameter reduction must be a string"},
        {"{'inputs':[],'parameters':{'padding_idx':1.5}}", "padding_idx must be an integer"},
        /* The text of 2^53 + 1 is 2^53 by the time that it is a number. */
        {"{'inputs':[],'parameters':{'padding_idx':9007199254740993}}",
         "padding_idx must be an integer: from -9007199254740991 to 9007199254740991, or for "
         "tables with keys a text of the digits of one of 64 bits"},
        {"{'inputs':[],'parameters':{'padding_idx':-9007199254740993}}",
         "padding_idx must be an integer"},
        {"{'inputs':[],'parameters':{'timeout':9007199254740993}}", "timeout must be an"},
        {"{'inputs':[],'parameters':{'include_last_offset':1}}", "include_last_offset must"},
        {"{'inputs':[],'parameters':{'partial':1}}", "partial must be true or false"},
        {"{'inputs':[],'parameters':{'part':'rows 0 of 3'}}", "parameter part must be {"},
        {"{'inputs':[],'parameters':{'part':{'by':'row','index':0,'of':3}}}",
         "parameter part must be {"},
        {"{'inputs':[],'parameters':{'part':{'by':'rows','index':3,'of':3}}}",
         "with I from 0 to N - 1 and N up to 4096"},
        {"{'inputs':[],'parameters':{'part':{'by':'rows','index':0,'of':4097}}}",
         "parameter part must be {"},
        {"{'inputs':[],'parameters':{'part':{'by':'rows','of':3}}}", "parameter part must be {"},
        {"{'inputs':[],'parameters':{'part':{'by':'rows','index':0,'of':3,'a':1}}}",
         "parameter part must be {"},
        {"{'inputs':[],'parameters':{'output_row_format':'int9'}}",
         "parameter output_row_format is \"int9\"; it must be \"plain\", \"int8\", \"int4\", "
         "\"f8_e4m3\", \"f8_e5m2\", \"int8_f16_front\", \"int4_f16_front\", \"f8_e4m3_scaled\", "
         "\"f8_e5m2_scaled\", \"int8_f16_back\", \"int8_symmetric\", \"int8_symmetric_f16\", "
         "\"int2\" or \"int2_f16_front\""},
        {"{'inputs':[],'parameters':{'output_datatype':'F32'}}",
         "output_datatype is \"F32\"; it must be"},
        {"{'inputs':[],'parameters':{'binary_data_output':'yes'}}",
         "binary_data_output must be true or false"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        rejects(cases[i][0], cases[i][1]);
}

TEST(test_reads_which_part_is_asked)
{
    struct decoded decoded;
    assert_true(decode_json(&decoded, "{'inputs':[],'parameters':{'partial':true,'padding_idx':'"
                                      "none','part':{'by':'keys','index':4095,'of':4096}}}"));
    const struct bag_v2_overrides *overrides = &decoded.request.overrides;
    assert_true(overrides->partial && overrides->has_part && decoded.request.warnings.bytes == 0);
    assert_int_equal(overrides->part.by, BAG_PART_KEYS);
    assert_true(overrides->part.index == 4095 && overrides->part.of == 4096);
    assert_true(overrides->has_padding_idx && overrides->padding_is_none);
    assert_false(overrides->padding_is_text);
    release(&decoded);
}

TEST(test_adds_warnings)
{
    struct decoded decoded;
    assert_true(decode_json(&decoded, "{'inputs':[]}"));
    struct bag_text *warnings = &decoded.request.warnings;
    assert_true(bag_v2_add_warning(warnings, "say \"a\\b\"", &decoded.arena));
    assert_int_equal(warnings->bytes, strlen("[\"say \\\"a\\\\b\\\"\"]"));
    assert_memory_equal(warnings->data, "[\"say \\\"a\\\\b\\\"\"]", warnings->bytes);
    assert_true(bag_v2_add_warning(warnings, "", &decoded.arena));
    assert_memory_equal(warnings->data, "[\"say \\\"a\\\\b\\\"\",\"\"]", warnings->bytes);
    release(&decoded);

    struct bag_arena none;
    struct bag_text kept = {NULL, 0};
    bag_arena_init(&none, 8);
    assert_false(bag_v2_add_warning(&kept, "longer than the arena", &none));
    assert_true(!kept.data && kept.bytes == 0);
    bag_arena_free(&none);
}

/* The memory after that of the warnings belongs to whatever is allocated next. */
TEST(test_warnings_leave_the_next_byte)
{
    struct bag_arena arena;
    bag_arena_init(&arena, 1 << 20);
    memset(bag_arena_alloc(&arena, 1024), 'n', 1024);
    bag_arena_reset(&arena, 1 << 20); /* keeps the block */
    struct bag_text warnings = {NULL, 0};
    assert_true(bag_v2_add_warning(&warnings, "twelve bytes", &arena));
    assert_int_equal(warnings.bytes, 16);
    assert_memory_equal(warnings.data, "[\"twelve bytes\"]", 16);
    assert_int_equal(*(const char *)bag_arena_alloc(&arena, 1), 'n');
    bag_arena_free(&arena);
}

TEST(test_rejects_data_that_does_not_fit)
{
    static const char *const cases[][2] = {
        {TENSOR(INT32 "'shape':[1],'data':[1.0]"),
         "input 'a', at byte 62: element 0 is '1.0'; INT32 takes integers from -2147483648 to"},
        {TENSOR("'datatype':'FP16','shape':[1],'data':[1]"), "FP16 has no JSON form"},
        {TENSOR("'datatype':'BF16','shape':[1],'data':[1]"), "BF16 has no JSON form"},
        {TENSOR(INT32 "'shape':[9007199254740991],'data':[1]"),
         "has 1 element, the shape needs 9007199254740991"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct decoded decoded;
        struct bag_tensor tensor;
        if (!decode_json(&decoded, cases[i][0]))
            fail_msg("%s: %s", cases[i][0], decoded.problem.text);
        assert_false(bag_v2_input_read(&decoded.request.inputs[0], &decoded.arena, &tensor,
                                       &decoded.problem));
        if (!strstr(decoded.problem.text, cases[i][1]))
            fail_msg("'%s' does not contain '%s'", decoded.problem.text, cases[i][1]);
        release(&decoded);
    }
}

TEST(test_reads_the_header_length)
{
    static const struct {
        const char *text;
        size_t bytes; /* 0: rejected */
    } cases[] = {{"1", 1},
                 {"10", 10},
                 {"5 \t", 5},
                 {"007", 7},
                 {"", 0},
                 {"0", 0},
                 {"-1", 0},
                 {"+5", 0},
                 {" 5", 0},
                 {"5 5", 0},
                 {" ", 0},
                 {"11", 0},
                 {"5,5", 0},
                 {"0x5", 0},
                 {"18446744073709551621", 0},
                 {"99999999999999999999999999", 0}};
    struct bag_problem problem;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t bytes = 0;
        if (bag_v2_header_length(cases[i].text, 10, &bytes, &problem) != (cases[i].bytes > 0) ||
            bytes != cases[i].bytes)
            fail_msg("'%s' is %zu", cases[i].text, bytes);
        assert_true(bytes > 0 || strstr(problem.text, "from 1 to 10"));
    }
}

TEST(test_chooses_encodings)
{
    static const struct {
        const char *text;
        enum bag_v2_encoding encoding;
    } cases[] = {{"{'inputs':[]}", BAG_V2_JSON},
                 {"{'inputs':[],'outputs':[]}", BAG_V2_JSON},
                 {"{'inputs':[],'parameters':{'binary_data_output':true}}", BAG_V2_BINARY},
                 {"{'inputs':[],'parameters':{'binary_data_output':true},'outputs':[{'name':'e'}]}",
                  BAG_V2_BINARY},
                 {"{'inputs':[],'parameters':{'binary_data_output':true},'outputs':[{'name':'e','"
                  "parameters':{'binary_data':false}}]}",
                  BAG_V2_JSON},
                 {"{'inputs':[],'outputs':[{'name':'e','parameters':null}]}", BAG_V2_JSON}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct decoded decoded;
        assert_true(decode_json(&decoded, cases[i].text));
        enum bag_v2_encoding asked =
            decoded.request.num_outputs ? decoded.request.outputs[0].encoding : BAG_V2_DEFAULT;
        assert_int_equal(bag_v2_is_binary(&decoded.request, asked),
                         cases[i].encoding == BAG_V2_BINARY);
        release(&decoded);
    }
}

/* An id that is empty or null is as good as none. */
TEST(test_ignores_empty_ids)
{
    static const char *const texts[] = {"{'inputs':[],'id':''}", "{'inputs':[],'id':null}",
                                        "{'inputs':[]}"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct decoded decoded;
        assert_true(decode_json(&decoded, texts[i]));
        assert_int_equal(decoded.request.id.bytes, 0);
        release(&decoded);
    }
}

/* Keys of 64 bits, in both forms, at both ends of their range. */
TEST(test_reads_uint64)
{
    static const uint64_t keys[] = {0, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX};
    const char *json = "{'inputs':[{'name':'indices','datatype':'UINT64','shape':[2,2],'data':[0,"
                       "9223372036854775807,[9223372036854775808,18446744073709551615]]}]}";
    const char *header = "{'inputs':[{'name':'indices','datatype':'UINT64','shape':[2,2],'"
                         "parameters':{'binary_data_size':32}}]}";
    char body[512];
    memcpy(stpcpy(body, header), keys, sizeof keys);
    for (int binary = 0; binary < 2; binary++) {
        struct decoded decoded;
        struct bag_tensor tensor;
        size_t header_bytes = strlen(header);
        assert_true(binary ? decode(&decoded, body, header_bytes + sizeof keys, header_bytes)
                           : decode_json(&decoded, json));
        assert_true(
            bag_v2_input_read(decoded.request.inputs, &decoded.arena, &tensor, &decoded.problem));
        assert_int_equal(tensor.dtype, BAG_U64);
        assert_int_equal(tensor.count, 4);
        assert_memory_equal(tensor.data, keys, sizeof keys);
        release(&decoded);
    }
}

/* Memory is taken by the text that is there, and not by the shape. */
TEST(test_takes_memory_for_the_text_alone)
{
    char text[4096] = "{'inputs':[{'name':'a','datatype':'INT64','shape':[1000000000],'data':[";
    struct decoded decoded;
    struct bag_tensor tensor;
    for (int i = 0; i < 1000; i++)
        strcat(text, "1,");
    strcat(text, "1]}]}");
    assert_true(decode_json(&decoded, text));
    for (size_t room = 8000; room <= 8032; room += 16) { /* 1001 elements, aligned to 16 bytes */
        struct bag_arena arena;
        bag_arena_init(&arena, room);
        assert_false(bag_v2_input_read(decoded.request.inputs, &arena, &tensor, &decoded.problem));
        assert_int_equal(decoded.problem.kind,
                         room < 8016 ? BAG_ERROR_NO_MEMORY : BAG_ERROR_BAD_REQUEST);
        bag_arena_free(&arena);
    }
    release(&decoded);
}

/* A tensor never has more dimensions than there is room for, whatever the caller's limits. */
TEST(test_never_reads_more_dimensions_than_fit)
{
    struct bag_json_limits limits = bag_json_default_limits;
    struct decoded decoded;
    char text[256] = "{\"inputs\":[{\"name\":\"a\",\"datatype\":\"INT64\",\"data\":[1],\"shape\":[";
    for (int i = 0; i < BAG_MAX_RANK; i++)
        strcat(text, "1,");
    strcat(text, "1]}]}");
    limits.max_dimensions = SIZE_MAX;
    bag_arena_init(&decoded.arena, 1 << 20);
    assert_false(bag_v2_request_decode(text, strlen(text), strlen(text), &limits, &decoded.arena,
                                       &decoded.request, &decoded.problem));
    assert_string_equal(decoded.problem.text, "input 'a': \"shape\" has more than 32 dimensions");
    bag_arena_free(&decoded.arena);
}
