/* Subrequests of a coordinator, answered by parts of a table in the same process. Random requests
 * of every form and rule must get the reply that one server gives, and the coordinator must reject
 * replies that do not fit the subrequest. The numbers are small integers, so that sums are exact in
 * any order. BAG_SEED=N begins with another one. */
#include "fanout_fixture.h"

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(shards_answer_as_one_server)
{
    static struct text body;
    uint64_t first = first_seed();
    size_t same = 0;
    for (uint64_t seed = first; seed < first + REQUESTS; seed++) {
        random_state = seed * UINT64_C(0x2545f4914f6cdd1d);
        make_world();
        make_request(&body);
        same += compare_both(seed, &world.whole.model, &world.front.model, &body);
    }
    assert_in_range(same, REQUESTS / 2 + 1, REQUESTS - REQUESTS / 50 - 1);
}

/* Makes the first call of a plain request to parts by rows, and has it answered. */
static void begin_call(struct bag_infer *infer, struct bag_fanout *fanout)
{
    static const char body[] =
        "{\"inputs\":[{\"name\":\"indices\",\"datatype\":\"INT64\",\"shape\":[2,2],"
        "\"data\":[0,39,39,1]}]}";
    struct bag_problem problem;
    random_state = 7;
    do {
        make_world();
    } while (world.by != BAG_PART_ROWS || world.dtype != BAG_F32 || world.num_parts < 2);
    begin(infer, &world.front.model, body, strlen(body), strlen(body));
    assert_true(bag_infer_plan(infer, NULL, &problem));
    assert_true(bag_infer_prepare(infer, &world.buffers, &problem));
    assert_true(bag_fanout_make(&(struct bag_infer *){infer}, 1, fanout, &problem));
    assert_int_equal(fanout->count, 2); /* others have no id of it */
    struct bag_fanout_call *call = &fanout->calls[0];
    call->reply = answer(&world.parts[call->shard].model, call->body, call->body_bytes,
                         call->header_bytes, &call->reply_bytes, &call->reply_header_bytes);
    assert_true(bag_fanout_check(fanout, 0, &problem));
}

static void end_call(struct bag_infer *infer, struct bag_fanout *fanout)
{
    bag_fanout_free(fanout);
    bag_infer_drop(infer);
    bag_infer_free(infer);
}

/* Wrong replies of a shard, and words of the messages that reject them. */
TEST(refuses_other_replies)
{
    static const struct {
        const char *from, *to, *words;
    } cases[] = {{"\"model_version\":\"3\"", "\"model_version\":\"4\"", "another version than 3"},
                 {"FP32", "INT8", "without output 'embeddings' as FP32 of 2 bags of 7 elements"},
                 {"\"shape\":[2,7]", "\"shape\":[2,6]", "without output 'embeddings'"},
                 {"\"shape\":[2,7]", "\"shape\":[7,2]", "without output 'embeddings'"},
                 {"\"counts\"", "\"count5\"", "without output 'counts'"},
                 {":56}", ":55}", "without output 'embeddings'"},
                 {":16}", ":96}", "without output 'counts'"},
                 {"\"outputs\"", "\"output5\"", "without output 'embeddings'"},
                 {"{\"model", "[\"model", "no JSON object"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_infer infer;
        struct bag_fanout fanout;
        struct bag_problem problem;
        begin_call(&infer, &fanout);
        struct bag_fanout_call *call = &fanout.calls[0];
        char *at =
            memmem(call->reply, call->reply_header_bytes, cases[i].from, strlen(cases[i].from));
        assert_non_null(at);
        memcpy(at, cases[i].to, strlen(cases[i].to));
        assert_false(bag_fanout_check(&fanout, 0, &problem));
        assert_int_equal(problem.kind, BAG_ERROR_BAD_GATEWAY);
        if (!strstr(problem.text, cases[i].words))
            fail_msg("'%s' does not have '%s'", problem.text, cases[i].words);
        end_call(&infer, &fanout);
    }
}

/* Every length, and counts of more or fewer ids than were sent. */
TEST(refuses_short_replies_and_wrong_counts)
{
    struct bag_infer infer;
    struct bag_fanout fanout;
    struct bag_problem problem;
    begin_call(&infer, &fanout);
    struct bag_fanout_call *call = &fanout.calls[0];
    const size_t bytes = call->reply_bytes, header_bytes = call->reply_header_bytes;
    for (call->reply_bytes = 0; call->reply_bytes < bytes; call->reply_bytes++)
        assert_false(bag_fanout_check(&fanout, 0, &problem));
    for (call->reply_header_bytes = 0; call->reply_header_bytes < bytes + 2;
         call->reply_header_bytes++)
        assert_int_equal(bag_fanout_check(&fanout, 0, &problem),
                         call->reply_header_bytes == header_bytes);
    call->reply_header_bytes = header_bytes;
    static const int64_t counts[] = {-1, 0, 2, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        memcpy(call->reply + header_bytes + 56, &counts[i], sizeof counts[i]);
        assert_false(bag_fanout_check(&fanout, 0, &problem));
        assert_non_null(strstr(problem.text, "of the 1 ids of a bag were pooled"));
    }
    end_call(&infer, &fanout);
}

/* Another explanation than of the ids that were sent. */
TEST(refuses_other_explanations)
{
    static const char body[] =
        "{\"parameters\":{\"explain\":true},\"inputs\":[{\"name\":\"indices\","
        "\"datatype\":\"INT64\",\"shape\":[1,3],\"data\":[1,2,3]}]}";
    static const char *const wrong[] = {"0,2,1", "0,1,1", "0,1,3", "x,1,2",
                                        ",0,12", "0,1 2", "0,1,2,"};
    struct bag_infer infer;
    struct bag_fanout fanout;
    struct bag_problem problem;
    random_state = 11;
    do {
        make_world();
    } while (world.by != BAG_PART_KEYS || world.num_parts > 1 ||
             world.rules.missing != BAG_MISSING_SKIP || world.rules.has_default_index);
    begin(&infer, &world.front.model, body, strlen(body), strlen(body));
    assert_true(bag_infer_plan(&infer, NULL, &problem));
    assert_true(bag_infer_prepare(&infer, &world.buffers, &problem));
    assert_true(bag_fanout_make(&(struct bag_infer *){&infer}, 1, &fanout, &problem));
    assert_true(ask_shards(&fanout, &problem));
    struct bag_fanout_call *call = &fanout.calls[0];
    char *list = memmem(call->reply, call->reply_header_bytes, "\"missing\":[0,1,2]", 17);
    assert_non_null(list);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        memcpy(list + 11, wrong[i], strlen(wrong[i]));
        assert_false(bag_fanout_check(&fanout, 0, &problem));
        assert_non_null(strstr(problem.text, "without an explanation"));
    }
    memcpy(list + 11, "0,1,2]", 6);
    assert_true(bag_fanout_check(&fanout, 0, &problem));
    memcpy(memmem(call->reply, call->reply_header_bytes, "explain", 7), "exclaim", 7);
    assert_false(bag_fanout_check(&fanout, 0, &problem));
    end_call(&infer, &fanout);
}

/* Rows of an unavailable shard count as missing: what others have is the answer. */
TEST(leaves_out_absent_shards)
{
    struct bag_infer infer;
    struct bag_fanout fanout;
    begin_call(&infer, &fanout);
    fanout.calls[1].is_absent = true;
    bag_fanout_merge(&fanout, &infer);
    /* Bags of rows 0 and 39, and of 39 and 1: the last shard had row 39. */
    assert_memory_equal(infer.plan.ops[0].result, world.whole.rows, 2 * COLUMNS * sizeof(float));
    end_call(&infer, &fanout);
}
