/* Tests which calls are rejected, for which reason, and at which position. */
#include "pool_fixture.h"

/* A request that is right in every form, to be spoiled by each test: a table of 5 rows of 2. */
struct request {
    float rows[10];
    int64_t indices[4], offsets[2], segment_ids[4], num_segments[1], default_index[1];
    float weights[4];
    struct bag_tensor tensors[BAG_INPUT_COUNT];
    struct bag_table table;
    struct bag_rules rules;
    size_t max_bytes;
    bool sends[BAG_INPUT_COUNT];
    struct bag_pool_args args;
    struct bag_fault fault;
};

static struct request *good_request(void)
{
    static struct request r;
    r = (struct request){.indices = {0, 4, 2, 1},
                         .offsets = {0, 2},
                         .segment_ids = {0, 0, 1, 2},
                         .num_segments = {3},
                         .weights = {1, 1, 1, 1},
                         .max_bytes = 1 << 20};
    r.tensors[BAG_INDICES] = TENSOR(I64, 1, r.indices);
    r.tensors[BAG_OFFSETS] = TENSOR(I64, 1, r.offsets);
    r.tensors[BAG_SEGMENT_IDS] = TENSOR(I64, 1, r.segment_ids);
    r.tensors[BAG_NUM_SEGMENTS] = TENSOR(I64, 0, r.num_segments);
    r.tensors[BAG_DEFAULT_INDEX] = TENSOR(I64, 0, r.default_index);
    r.tensors[BAG_PER_SAMPLE_WEIGHTS] = TENSOR(F32, 1, r.weights);
    r.table = table_of(BAG_F32, 5, 2, r.rows);
    r.rules = rules_for(BAG_F32, BAG_SUM);
    r.sends[BAG_INDICES] = true;
    return &r;
}

static struct request *offsets_request(void)
{
    struct request *r = good_request();
    r->sends[BAG_OFFSETS] = true;
    return r;
}

static struct request *segments_request(void)
{
    struct request *r = good_request();
    r->sends[BAG_SEGMENT_IDS] = true;
    return r;
}

static struct request *packed_request(void)
{
    struct request *r = good_request();
    r->tensors[BAG_INDICES] = with_shape(r->tensors[BAG_INDICES], 2, 2);
    return r;
}

static enum bag_status check(struct request *r)
{
    struct bag_inputs inputs = {{NULL}};
    for (int i = 0; i < BAG_INPUT_COUNT; i++)
        inputs.tensor[i] = r->sends[i] ? &r->tensors[i] : NULL;
    static struct bag_pool_plan plan; /* static, because the call keeps a pointer to it */
    bag_pool_prepare(&r->table, &r->rules, &plan);
    return bag_pool_check(&plan, &inputs, r->max_bytes, &r->args, &r->fault);
}

static void assert_fault(struct request *r, enum bag_status status, enum bag_input input)
{
    assert_int_equal(check(r), status);
    assert_int_equal(r->fault.status, status);
    assert_int_equal(r->fault.input, input);
}

static void assert_fault_at(struct request *r, enum bag_status status, enum bag_input input,
                            int64_t position, int64_t value, int64_t low, int64_t high)
{
    assert_fault(r, status, input);
    assert_int_equal(r->fault.position, position);
    assert_int_equal(r->fault.value, value);
    assert_int_equal(r->fault.low, low);
    assert_int_equal(r->fault.high, high);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static enum bag_status rules_status(enum bag_dtype dtype, struct bag_rules rules,
                                    struct bag_fault *fault)
{
    struct bag_table table = table_of(dtype, 5, 2, NULL);
    return bag_rules_check(&table, &rules, fault);
}

TEST(rejects_rules_that_do_not_fit_the_table)
{
    struct bag_fault fault;
    struct bag_rules rules = rules_for(BAG_U8, BAG_SQRTN);
    assert_int_equal(rules_status(BAG_U8, rules, &fault), BAG_STATUS_UNSUPPORTED_REDUCTION);
    assert_int_equal(fault.got, BAG_U8);
    rules = rules_for(BAG_F64, BAG_SUM);
    assert_int_equal(rules_status(BAG_F32, rules, &fault), BAG_STATUS_OUTPUT_DTYPE);
    assert_int_equal(fault.got, BAG_F64);
    assert_int_equal(fault.want, BAG_F32);
    rules = rules_for(BAG_F16, BAG_SQRTN);
    assert_int_equal(rules_status(BAG_BF16, rules, &fault), BAG_STATUS_OK);
}

TEST(bounds_default_index_and_padding_idx)
{
    struct bag_fault fault;
    for (int64_t index = -7; index <= 6; index++) {
        struct bag_rules rules = rules_for(BAG_F32, BAG_SUM);
        rules.default_index = index;
        bool fits = index >= -1 && index < 5;
        assert_int_equal(rules_status(BAG_F32, rules, &fault),
                         fits ? BAG_STATUS_OK : BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE);
        rules = rules_for(BAG_F32, BAG_SUM);
        rules.has_padding_idx = true;
        rules.padding_idx = index;
        fits = index >= -5 && index < 5;
        assert_int_equal(rules_status(BAG_F32, rules, &fault),
                         fits ? BAG_STATUS_OK : BAG_STATUS_PADDING_IDX_OUT_OF_RANGE);
    }
    assert_int_equal(fault.value, 6);
    assert_int_equal(fault.low, -5);
    assert_int_equal(fault.high, 4);
}

/* ---- forms, types, shapes -------------------------------------------------------------------- */

TEST(accepts_each_form)
{
    struct request *r = offsets_request();
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_int_equal(r->args.form, BAG_FORM_OFFSETS);
    assert_int_equal(r->args.num_bags, 2);
    assert_int_equal(r->args.result_bytes, 16);
    r = segments_request();
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_int_equal(r->args.form, BAG_FORM_SEGMENTS);
    assert_int_equal(r->args.num_bags, 3);
    r = packed_request();
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_int_equal(r->args.form, BAG_FORM_PACKED);
    assert_int_equal(r->args.num_bags, 2);
    assert_int_equal(r->args.bag_length, 2);
}

TEST(rejects_inputs_that_make_no_form)
{
    struct request *r = offsets_request();
    r->sends[BAG_INDICES] = false;
    assert_fault(r, BAG_STATUS_MISSING_INPUT, BAG_INDICES);
    r = offsets_request();
    r->sends[BAG_SEGMENT_IDS] = true;
    assert_fault(r, BAG_STATUS_UNEXPECTED_INPUT, BAG_SEGMENT_IDS);
    r = offsets_request();
    r->sends[BAG_NUM_SEGMENTS] = true;
    assert_fault(r, BAG_STATUS_UNEXPECTED_INPUT, BAG_NUM_SEGMENTS);
    r = good_request();
    assert_fault(r, BAG_STATUS_INDICES_RANK, BAG_INDICES);
    assert_int_equal(r->fault.value, 1);
    assert_int_equal(r->fault.low, 2);
}

TEST(rejects_wrong_types_of_ids)
{
    static const struct {
        enum bag_input input;
        enum bag_status status;
    } cases[] = {{BAG_INDICES, BAG_STATUS_INDICES_DTYPE},
                 {BAG_SEGMENT_IDS, BAG_STATUS_SEGMENT_IDS_DTYPE},
                 {BAG_NUM_SEGMENTS, BAG_STATUS_NUM_SEGMENTS_DTYPE},
                 {BAG_DEFAULT_INDEX, BAG_STATUS_DEFAULT_INDEX_DTYPE}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct request *r = segments_request();
        r->sends[cases[i].input] = true;
        r->tensors[cases[i].input].dtype = BAG_U64;
        assert_fault(r, cases[i].status, cases[i].input);
        assert_int_equal(r->fault.got, BAG_U64);
    }
    struct request *r = offsets_request();
    r->tensors[BAG_OFFSETS].dtype = BAG_F32;
    assert_fault(r, BAG_STATUS_OFFSETS_DTYPE, BAG_OFFSETS);
}

TEST(rejects_wrong_shapes_of_ids)
{
    struct request *r = packed_request();
    r->sends[BAG_OFFSETS] = true;
    assert_fault(r, BAG_STATUS_INDICES_RANK, BAG_INDICES);
    r = offsets_request();
    r->tensors[BAG_OFFSETS].rank = 0;
    assert_fault(r, BAG_STATUS_OFFSETS_RANK, BAG_OFFSETS);
    r = segments_request();
    r->tensors[BAG_SEGMENT_IDS] = with_shape(r->tensors[BAG_SEGMENT_IDS], 2, 2);
    assert_fault(r, BAG_STATUS_SEGMENT_IDS_RANK, BAG_SEGMENT_IDS);
    r = segments_request();
    r->tensors[BAG_SEGMENT_IDS] = tensor_of(BAG_I64, 1, 3, r->segment_ids);
    assert_fault(r, BAG_STATUS_SEGMENT_IDS_SHAPE_MISMATCH, BAG_SEGMENT_IDS);
    assert_int_equal(r->fault.value, 3);
    assert_int_equal(r->fault.low, 4);
}

TEST(takes_scalars_of_shape_none_or_one_only)
{
    struct request *r = segments_request();
    r->sends[BAG_NUM_SEGMENTS] = r->sends[BAG_DEFAULT_INDEX] = true;
    r->tensors[BAG_NUM_SEGMENTS] = TENSOR(I64, 1, r->num_segments);
    assert_int_equal(check(r), BAG_STATUS_OK);
    r->tensors[BAG_NUM_SEGMENTS] = tensor_of(BAG_I64, 1, 2, r->segment_ids);
    assert_fault(r, BAG_STATUS_NUM_SEGMENTS_NOT_SCALAR, BAG_NUM_SEGMENTS);
    r->sends[BAG_NUM_SEGMENTS] = false;
    r->tensors[BAG_DEFAULT_INDEX] = with_shape(r->tensors[BAG_DEFAULT_INDEX], 1, 1);
    assert_fault(r, BAG_STATUS_DEFAULT_INDEX_NOT_SCALAR, BAG_DEFAULT_INDEX);
    r->tensors[BAG_DEFAULT_INDEX] = tensor_of(BAG_I64, 1, 0, r->default_index);
    assert_fault(r, BAG_STATUS_DEFAULT_INDEX_NOT_SCALAR, BAG_DEFAULT_INDEX);
}

TEST(mixes_index_types_unless_told_not_to)
{
    static const int32_t narrow[] = {0, 2};
    struct request *r = offsets_request();
    r->tensors[BAG_OFFSETS] = TENSOR(I32, 1, narrow);
    assert_int_equal(check(r), BAG_STATUS_OK);
    r->rules.require_matching_index_types = true;
    assert_fault(r, BAG_STATUS_INDEX_TYPE_MISMATCH, BAG_OFFSETS);
    assert_int_equal(r->fault.got, BAG_I32);
    assert_int_equal(r->fault.want, BAG_I64);
    r = offsets_request();
    r->rules.require_matching_index_types = true;
    r->sends[BAG_PER_SAMPLE_WEIGHTS] = true;
    assert_int_equal(check(r), BAG_STATUS_OK);
}

/* ---- weights --------------------------------------------------------------------------------- */

TEST(takes_weights_where_they_mean_something)
{
    for (int reduction = 0; reduction < 2 * BAG_REDUCTION_COUNT; reduction++) {
        const bool is_packed = reduction >= BAG_REDUCTION_COUNT;
        struct request *r = is_packed ? packed_request() : offsets_request();
        r->rules.reduction = (enum bag_reduction)(reduction % BAG_REDUCTION_COUNT);
        r->sends[BAG_PER_SAMPLE_WEIGHTS] = true;
        if (is_packed)
            r->tensors[BAG_PER_SAMPLE_WEIGHTS] =
                with_shape(r->tensors[BAG_PER_SAMPLE_WEIGHTS], 2, 2);
        if (r->rules.reduction == BAG_SUM || r->rules.reduction == BAG_SQRTN)
            assert_int_equal(check(r), BAG_STATUS_OK);
        else
            assert_fault(r, BAG_STATUS_WEIGHTS_NOT_SUPPORTED, BAG_PER_SAMPLE_WEIGHTS);
        r->rules.weighted_mean = true;
        bool takes = r->rules.reduction != BAG_MAX && r->rules.reduction != BAG_NONE;
        assert_int_equal(check(r), takes ? BAG_STATUS_OK : BAG_STATUS_WEIGHTS_NOT_SUPPORTED);
        assert_true(!takes || r->args.weights == r->weights);
    }
}

TEST(rejects_weights_of_another_type_or_shape)
{
    struct request *r = offsets_request();
    r->sends[BAG_PER_SAMPLE_WEIGHTS] = true;
    r->tensors[BAG_PER_SAMPLE_WEIGHTS].dtype = BAG_F16;
    assert_fault(r, BAG_STATUS_WEIGHTS_DTYPE_MISMATCH, BAG_PER_SAMPLE_WEIGHTS);
    assert_int_equal(r->fault.got, BAG_F16);
    assert_int_equal(r->fault.want, BAG_F32);
    r = offsets_request();
    r->sends[BAG_PER_SAMPLE_WEIGHTS] = true;
    r->table.dtype = r->rules.output_dtype = BAG_I32; /* FP32 weights are for floats alone */
    assert_fault(r, BAG_STATUS_WEIGHTS_DTYPE_MISMATCH, BAG_PER_SAMPLE_WEIGHTS);
    r = offsets_request();
    r->sends[BAG_PER_SAMPLE_WEIGHTS] = true;
    r->tensors[BAG_PER_SAMPLE_WEIGHTS] = tensor_of(BAG_F32, 1, 3, r->weights);
    assert_fault(r, BAG_STATUS_WEIGHTS_SHAPE_MISMATCH, BAG_PER_SAMPLE_WEIGHTS);
    assert_int_equal(r->fault.value, 3);
    assert_int_equal(r->fault.high, 4);
    r = packed_request();
    r->sends[BAG_PER_SAMPLE_WEIGHTS] = true;
    assert_fault(r, BAG_STATUS_WEIGHTS_SHAPE_MISMATCH, BAG_PER_SAMPLE_WEIGHTS);
    r->tensors[BAG_PER_SAMPLE_WEIGHTS] = with_shape(r->tensors[BAG_PER_SAMPLE_WEIGHTS], 1, 4);
    assert_fault(r, BAG_STATUS_WEIGHTS_SHAPE_MISMATCH, BAG_PER_SAMPLE_WEIGHTS);
    assert_int_equal(r->fault.value, 4);
    assert_int_equal(r->fault.low, 2);
    assert_int_equal(r->fault.high, 4);
}

/* ---- scalars and sizes ----------------------------------------------------------------------- */

TEST(default_index_of_the_request_wins)
{
    struct request *r = offsets_request();
    r->rules.default_index = 3;
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_int_equal(r->args.default_row, 3);
    r->sends[BAG_DEFAULT_INDEX] = true;
    r->default_index[0] = 4;
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_int_equal(r->args.default_row, 4);
    r->default_index[0] = 5;
    assert_fault_at(r, BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE, BAG_DEFAULT_INDEX, 0, 5, 0, 4);
    r->default_index[0] = -2;
    assert_fault_at(r, BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE, BAG_DEFAULT_INDEX, 0, -2, 0, 4);
}

TEST(rejects_a_result_above_the_limit_without_overflow)
{
    struct request *r = segments_request();
    r->sends[BAG_NUM_SEGMENTS] = true;
    r->max_bytes = 24;
    assert_int_equal(check(r), BAG_STATUS_OK);
    r->max_bytes = 23;
    assert_fault_at(r, BAG_STATUS_RESULT_TOO_LARGE, BAG_NUM_SEGMENTS, 0, 3, 8, 23);
    r->max_bytes = SIZE_MAX;
    r->num_segments[0] = INT64_C(1) << 61;
    assert_fault(r, BAG_STATUS_RESULT_TOO_LARGE, BAG_NUM_SEGMENTS);
    r->num_segments[0] = INT64_MAX;
    assert_fault(r, BAG_STATUS_RESULT_TOO_LARGE, BAG_NUM_SEGMENTS);
    r->num_segments[0] = -1;
    assert_fault(r, BAG_STATUS_NUM_SEGMENTS_NEGATIVE, BAG_NUM_SEGMENTS);
    assert_int_equal(r->fault.value, -1);
}

TEST(needs_one_offset_where_the_last_ends)
{
    struct request *r = offsets_request();
    r->tensors[BAG_OFFSETS] = tensor_of(BAG_I64, 1, 0, r->offsets);
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_int_equal(r->args.num_bags, 0);
    r->rules.include_last_offset = true;
    assert_fault(r, BAG_STATUS_OFFSETS_TOO_SHORT, BAG_OFFSETS);
}

/* ---- ids ------------------------------------------------------------------------------------- */

TEST(rejects_offsets_outside_or_decreasing)
{
    struct request *r = offsets_request();
    r->offsets[1] = 4;
    assert_int_equal(check(r), BAG_STATUS_OK);
    r->offsets[1] = 5;
    assert_fault_at(r, BAG_STATUS_OFFSET_OUT_OF_RANGE, BAG_OFFSETS, 1, 5, 0, 4);
    r->offsets[1] = INT64_MIN;
    assert_fault_at(r, BAG_STATUS_OFFSET_OUT_OF_RANGE, BAG_OFFSETS, 1, INT64_MIN, 0, 4);
    r->offsets[0] = 3;
    r->offsets[1] = 1;
    assert_fault_at(r, BAG_STATUS_OFFSETS_NOT_MONOTONIC, BAG_OFFSETS, 1, 1, 3, 4);
    r->offsets[1] = 3;
    assert_int_equal(check(r), BAG_STATUS_OK);
    r->rules.require_zero_first_offset = true;
    assert_fault_at(r, BAG_STATUS_OFFSETS_NOT_STARTING_AT_ZERO, BAG_OFFSETS, 0, 3, 0, 0);
}

TEST(rejects_segment_ids_outside_or_decreasing)
{
    struct request *r = segments_request();
    r->segment_ids[1] = 2;
    assert_fault_at(r, BAG_STATUS_SEGMENT_IDS_NOT_SORTED, BAG_SEGMENT_IDS, 2, 1, 2, INT64_MAX);
    r->rules.unsorted_segments = true;
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_int_equal(r->args.num_bags, 3);
    assert_true(r->args.unsorted);
    r->segment_ids[1] = 3;
    r->sends[BAG_NUM_SEGMENTS] = true;
    assert_fault_at(r, BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE, BAG_SEGMENT_IDS, 1, 3, 0, 2);
    r = segments_request();
    r->segment_ids[0] = -1;
    assert_fault_at(r, BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE, BAG_SEGMENT_IDS, 0, -1, 0, INT64_MAX);
}

TEST(reports_the_first_bad_index_at_every_position)
{
    enum { MANY = 600 };
    static int64_t wide[MANY];
    static int32_t narrow[MANY];
    static unsigned char unaligned[MANY * 8 + 1];
    for (size_t bad = 0; bad < MANY; bad += bad == 255 || bad == 254 ? 1 : 127) {
        struct request *r = offsets_request();
        memset(wide, 0, sizeof wide);
        memset(narrow, 0, sizeof narrow);
        wide[bad] = narrow[bad] = -1;
        wide[MANY - 1] = narrow[MANY - 1] = 5;
        memcpy(unaligned + 1, wide, sizeof wide);
        r->tensors[BAG_INDICES] = tensor_of(BAG_I64, 1, MANY, unaligned + 1);
        int64_t value = bad == MANY - 1 ? 5 : -1;
        assert_fault_at(r, BAG_STATUS_INDEX_OUT_OF_RANGE, BAG_INDICES, (int64_t)bad, value, 0, 4);
        r->tensors[BAG_INDICES] = TENSOR(I32, 1, narrow);
        assert_fault_at(r, BAG_STATUS_INDEX_OUT_OF_RANGE, BAG_INDICES, (int64_t)bad, value, 0, 4);
    }
}

TEST(lets_options_accept_indices_outside)
{
    struct request *r = offsets_request();
    r->rules.prune_invalid = true;
    r->indices[1] = -1;
    assert_int_equal(check(r), BAG_STATUS_OK);
    r->indices[3] = 5;
    assert_fault_at(r, BAG_STATUS_INDEX_OUT_OF_RANGE, BAG_INDICES, 3, 5, 0, 4);
    r->rules.missing = BAG_MISSING_SKIP;
    assert_int_equal(check(r), BAG_STATUS_OK);
    assert_true(r->args.skip_outside);
}

TEST(an_empty_table_has_no_valid_index)
{
    struct request *r = offsets_request();
    r->table.num_rows = 0;
    assert_fault_at(r, BAG_STATUS_INDEX_OUT_OF_RANGE, BAG_INDICES, 0, 0, 0, -1);
}
