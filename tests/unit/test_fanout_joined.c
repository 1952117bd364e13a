/* Several features of one table: a coordinator sends them in one subrequest to each shard if their
 * parameters are the same. The reply must not differ. BAG_SEED=N begins with another seed. */
#include "fanout_fixture.h"

/* Some features of one table are joined and others stay apart. The reply must not differ. */
TEST(features_are_answered_as_by_one_server)
{
    static struct text body;
    uint64_t first = first_seed();
    size_t same = 0;
    num_joined = num_apart = 0;
    for (uint64_t seed = first; seed < first + REQUESTS; seed++) {
        random_state = seed * UINT64_C(0x2545f4914f6cdd1d);
        make_world();
        make_features_request(&body);
        same += compare_both(seed, &world.whole_features.model, &world.front_features.model, &body);
    }
    print_message("%zu same, %zu ops joined, %zu apart\n", same, num_joined, num_apart);
    assert_in_range(same, REQUESTS / 2 + 1, REQUESTS - REQUESTS / 50 - 1);
    assert_in_range(num_joined, REQUESTS / 4, SIZE_MAX);
    assert_in_range(num_apart, REQUESTS / 4, SIZE_MAX);
}

/* A world of keys of which none may be missing, or of rows whose numbers are all its rules say. */
static void make_plain_world(bool keyed, enum bag_part_by by, enum bag_dtype dtype)
{
    do {
        make_world();
    } while (world.rules.keyed != keyed || world.by != by || world.dtype != dtype ||
             world.rules.missing != BAG_MISSING_ERROR || world.rules.has_default_index);
}

/* The only key that is missing is named by its place in its own feature, also where an earlier one
 * has it, too, as padding. */
TEST(missing_keys_have_the_places_of_their_features)
{
    enum { OTHER = 12345, BAGS = 3 };
    static struct text body;
    random_state = 5;
    for (size_t i = 0; i < 400; i++) {
        make_plain_world(true, i % 4 ? BAG_PART_KEYS : BAG_PART_COLUMNS, BAG_F16);
        const bool is_kjt = i % 3 == 0;
        const size_t wrong = below(FEATURES);
        int64_t ids[FEATURES * BAGS * 4], lengths[FEATURES * BAGS];
        size_t length = 1 + below(4), count = BAGS * length;
        char words[64], shape[32];
        for (size_t j = 0; j < FEATURES; j++) {
            struct bag_rules rules = world.rules;
            rules.has_padding_idx = j < wrong;
            rules.padding_idx = OTHER;
            make_feature(&world.whole_features, j, &rules, &world.whole.memory);
            make_feature(&world.front_features, j, &rules, &world.front.memory);
            for (size_t k = 0; k < count; k++)
                ids[j * count + k] = j < wrong && one_in(2) ? OTHER : key_of(below(ROWS));
        }
        ids[wrong * count + below(count)] = OTHER;
        body.used = 0;
        put(&body, "{\"inputs\":[");
        for (size_t j = 0; j < FEATURES * BAGS; j++)
            lengths[j] = (int64_t)length;
        snprintf(shape, sizeof shape, "%d", FEATURES * BAGS);
        if (is_kjt)
            put_numbers(&body, "", "lengths", "INT64", shape, lengths, FEATURES * BAGS);
        snprintf(shape, sizeof shape, "%zu", FEATURES * count);
        if (is_kjt)
            put_numbers(&body, "", "values", "INT64", shape, ids, FEATURES * count);
        snprintf(shape, sizeof shape, "%d,%zu", BAGS, length);
        for (size_t j = 0; !is_kjt && j < FEATURES; j++) {
            snprintf(words, sizeof words, "%s.", world.whole_features.features[j].name);
            put_numbers(&body, words, "indices", "INT64", shape, ids + j * count, count);
        }
        put(&body, "]}");
        size_t bytes, header_bytes;
        char *whole = answer(&world.whole_features.model, body.bytes, body.used, body.used, &bytes,
                             &header_bytes);
        char *front = ask_front(&world.front_features.model, body.bytes, body.used, &bytes);
        snprintf(words, sizeof words, "feature '%s'", world.whole_features.features[wrong].name);
        assert_non_null(strstr(whole, words));
        assert_string_equal(front, whole);
        bag_buffers_put(whole);
        bag_buffers_put(front);
    }
}

/* Returns the reply of an inference whose fan-out is merged; the caller frees it. */
static char *take_reply(struct bag_infer *infer)
{
    bag_infer_finish(infer);
    char *reply = bag_buffers_get(&world.buffers, infer->output.bytes + 1);
    assert_non_null(reply);
    memcpy(reply, infer->output.reply, infer->output.bytes);
    reply[infer->output.bytes] = 0;
    drop_signs_of_zeros(reply);
    return reply;
}

/* Returns how often an inference uses replies if it has a fan-out of its own. */
static size_t count_uses_alone(struct bag_infer *infer)
{
    struct bag_fanout fanout;
    struct bag_problem problem;
    assert_true(bag_fanout_make(&infer, 1, &fanout, &problem));
    size_t count = bag_fanout_count_uses(&fanout, infer, 0, fanout.count);
    for (size_t i = 0; i < fanout.count; i++)
        assert_int_not_equal(bag_fanout_count_uses(&fanout, infer, i, i + 1), 0);
    bag_fanout_free(&fanout);
    return count;
}

/* A random request, and what one server replies. */
struct sharing {
    struct text body;
    struct bag_infer infer;
    char *wanted;
    size_t num_pending; /* replies that it uses and that have not come */
};

/* Ends those that need no further reply, and frees all that they have. */
static void end_some(uint64_t seed, struct bag_fanout *fanout, struct sharing **shared,
                     size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct sharing *one = shared[i];
        if (!one->wanted || one->num_pending > 0)
            continue;
        bag_fanout_merge(fanout, &one->infer);
        bag_fanout_leave(fanout, &one->infer);
        char *reply = take_reply(&one->infer);
        if (strcmp(reply, one->wanted) != 0)
            reject(seed, one->body.bytes, one->wanted, reply);
        bag_buffers_put(reply);
        bag_buffers_put(one->wanted);
        one->wanted = NULL;
        bag_infer_free(&one->infer);
        memset(&one->infer, 0xa5, sizeof one->infer);
    }
}

/* Random requests that share a fan-out get the replies of one server, whether their ops are joined
 * or not, as soon as the shards have replied that each of them needs. Those that fail, or explain
 * their bags, share none. */
TEST(requests_share_a_fanout)
{
    enum { TOGETHER = 5 };
    static struct sharing all[TOGETHER];
    uint64_t first = first_seed();
    size_t num_same = 0, joined = 0, num_early = 0;
    for (uint64_t seed = first; seed < first + REQUESTS; seed++) {
        struct bag_infer *infers[TOGETHER];
        struct sharing *shared[TOGETHER];
        struct bag_fanout fanout;
        struct bag_problem problem;
        size_t count = 0, bytes, header_bytes;
        random_state = seed * UINT64_C(0x2545f4914f6cdd1d);
        make_world();
        const bool has_features = one_in(2);
        for (size_t i = 0; i < TOGETHER; i++) {
            struct sharing *one = &all[i];
            struct bag_infer *infer = &one->infer;
            (has_features ? make_features_request : make_request)(&one->body);
            begin(infer, has_features ? &world.front_features.model : &world.front.model,
                  one->body.bytes, one->body.used, one->body.used);
            one->wanted =
                answer(has_features ? &world.whole_features.model : &world.whole.model,
                       one->body.bytes, one->body.used, one->body.used, &bytes, &header_bytes);
            if (header_bytes != SIZE_MAX && bag_infer_plan(infer, NULL, &problem) &&
                !infer->plan.explains) {
                assert_true(bag_infer_prepare(infer, &world.buffers, &problem));
                bag_infer_pool(infer, bag_split_all(infer->plan.num_ops));
                drop_signs_of_zeros(one->wanted);
                one->num_pending = count_uses_alone(infer);
                infers[count] = infer;
                shared[count++] = one;
            } else {
                bag_buffers_put(one->wanted);
                bag_infer_free(infer);
            }
        }
        if (count == 0)
            continue;
        num_same += count;
        assert_true(bag_fanout_make(infers, count, &fanout, &problem));
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(bag_fanout_count_uses(&fanout, infers[i], 0, fanout.count),
                             shared[i]->num_pending);
            const struct bag_op *op = &infers[i]->plan.ops[0];
            joined += op->kind == BAG_OP_REMOTE && op->is_joined;
        }
        end_some(seed, &fanout, shared, count);
        const size_t start = below(MAX_PARTS), step = one_in(2) ? 1 : fanout.count - 1;
        for (size_t i = 0; i < fanout.count; i++) {
            const size_t call = (start + i * step) % fanout.count;
            if (!fanout.calls[call].infer)
                continue; /* nobody is left that has it */
            if (!ask_shard(&fanout, call, &problem))
                fail_msg("seed %llu: %s", (unsigned long long)seed, problem.text);
            for (size_t j = 0; j < count; j++) {
                if (shared[j]->wanted)
                    shared[j]->num_pending -=
                        bag_fanout_count_uses(&fanout, infers[j], call, call + 1);
            }
            end_some(seed, &fanout, shared, count);
            num_early += i + 1 < fanout.count && fanout.num_infers < count;
        }
        assert_int_equal(fanout.num_infers, 0);
        bag_fanout_free(&fanout);
    }
    print_message("%zu same, %zu joined, %zu early\n", num_same, joined, num_early);
    assert_in_range(num_same, REQUESTS, SIZE_MAX);
    assert_in_range(joined, REQUESTS / 4, SIZE_MAX);
    assert_in_range(num_early, REQUESTS / 4, SIZE_MAX);
}

/* Returns whether two features of one bag each are joined, which the number of calls shows. Each
 * may have weights of a type; NULL: none. The second may bring its default row. */
static bool are_joined(const char *weights, const char *other_weights, bool asks_default)
{
    static struct text body;
    static const int64_t ones[] = {1, 1, 1, 1};
    const bool keyed = world.rules.keyed;
    const int64_t ids[] = {keyed ? key_of(0) : 0, keyed ? key_of(20) : 20, keyed ? key_of(39) : 39,
                           keyed ? key_of(3) : 3};
    struct bag_infer infer;
    struct bag_fanout fanout;
    struct bag_problem problem;
    body.used = 0;
    put(&body, "{\"inputs\":[");
    put_numbers(&body, "a.", "indices", "INT64", "1,4", ids, 4);
    put_numbers(&body, "b.", "indices", "INT64", "1,4", ids, 4);
    if (weights)
        put_numbers(&body, "a.", "per_sample_weights", weights, "1,4", ones, 4);
    if (other_weights)
        put_numbers(&body, "b.", "per_sample_weights", other_weights, "1,4", ones, 4);
    if (asks_default)
        put_numbers(&body, "b.", "default_index", "INT64", "1", ids + 3, 1);
    put(&body, "],\"parameters\":{\"binary_data_output\":true}}");
    begin(&infer, &world.front_features.model, body.bytes, body.used, body.used);
    assert_true(bag_infer_plan(&infer, NULL, &problem));
    assert_true(bag_infer_prepare(&infer, &world.buffers, &problem));
    assert_true(bag_fanout_make(&(struct bag_infer *){&infer}, 1, &fanout, &problem));
    const bool joined = infer.plan.ops[1].is_joined;
    size_t of_first = 0;
    for (size_t i = 0; i < fanout.count; i++)
        of_first += fanout.calls[i].op == 0;
    assert_int_equal(fanout.count, joined ? of_first : 2 * of_first);
    bag_fanout_free(&fanout);
    bag_infer_drop(&infer);
    bag_infer_free(&infer);
    return joined;
}

static bool are_features_joined(const struct bag_rules *rules, const struct bag_rules *others,
                                const char *weights)
{
    make_feature(&world.front_features, 0, rules, &world.front.memory);
    make_feature(&world.front_features, 1, others, &world.front.memory);
    return are_joined(weights, weights, false);
}

static void make_world_of(size_t i, enum bag_dtype dtype)
{
    static const struct {
        bool keyed;
        enum bag_part_by by;
    } ways[] = {{false, BAG_PART_COLUMNS},
                {true, BAG_PART_COLUMNS},
                {false, BAG_PART_ROWS},
                {true, BAG_PART_KEYS}};
    make_plain_world(ways[i].keyed, ways[i].by, dtype);
}

/* Features stay apart only if their subrequests have different parameters. How the coordinator
 * handles their ids does not matter, nor does the result type of sums. */
TEST(joins_what_shards_are_told_alike)
{
    random_state = 3;
    for (size_t i = 0; i < 4; i++) {
        make_world_of(i, BAG_F16);
        const bool keyed = world.rules.keyed, by_columns = world.by == BAG_PART_COLUMNS;
        const struct bag_rules *rules = &world.rules;
        struct bag_rules other = *rules;
        assert_true(are_features_joined(rules, &other, NULL));
        other.reduction = BAG_MEAN;
        assert_false(are_features_joined(rules, &other, NULL));
        other = *rules;
        other.has_padding_idx = true;
        other.padding_idx = keyed ? key_of(0) : 0;
        assert_true(are_features_joined(rules, &other, NULL));
        other = *rules;
        other.output_dtype = BAG_F32;
        assert_int_equal(are_features_joined(rules, &other, NULL), !by_columns);
        other = *rules;
        other.missing = BAG_MISSING_SKIP;
        assert_int_equal(are_features_joined(rules, &other, NULL), !keyed);
        other = *rules;
        other.prune_invalid = !rules->prune_invalid;
        other.reduction = world.rules.reduction = BAG_SQRTN;
        assert_int_equal(are_features_joined(rules, &other, "FP32"), !keyed);
        other.prune_invalid = rules->prune_invalid;
        other.default_index = world.rules.default_index = -1; /* a key, but no row number */
        other.has_default_index = true;
        assert_int_equal(are_features_joined(rules, &other, NULL), !keyed);
        other.default_index = keyed ? key_of(3) : 3;
        assert_false(are_features_joined(rules, &other, NULL));
        assert_true(are_features_joined(&other, &other, NULL));
    }
}

TEST(joins_what_requests_bring_alike)
{
    random_state = 4;
    for (size_t i = 0; i < 4; i++) {
        make_world_of(i, BAG_F64);
        struct bag_rules rules = world.rules;
        assert_true(are_features_joined(&rules, &rules, NULL));
        assert_true(are_joined("FP32", "FP32", false));
        assert_false(are_joined("FP32", "FP64", false));
        assert_false(are_joined("FP32", NULL, false));
        assert_false(are_joined(NULL, NULL, true));
        /* A default row is the same whoever says it; of a key that is asked for shards say whether
         * they have it. */
        rules.default_index = rules.keyed ? key_of(3) : 3;
        rules.has_default_index = true;
        assert_true(are_features_joined(&rules, &rules, NULL));
        assert_int_equal(are_joined(NULL, NULL, true), !rules.keyed);
    }
}

/* One request for both would be refused where two are not, or might be. */
TEST(stays_apart_at_limits)
{
    const struct bag_infer_limits usual = world.limits;
    random_state = 3;
    make_plain_world(false, BAG_PART_ROWS, BAG_F16);
    make_feature(&world.front_features, 0, &world.rules, &world.front.memory);
    make_feature(&world.front_features, 1, &world.rules, &world.front.memory);
    /* Estimates for a body: a header of 1024 bytes, 8 ids of 24 bytes, 2 offsets of 8 bytes. For a
     * reply: a header of 65536 bytes, 8 ids, and 2 bags of 7 FP32 and a count, which are 36 bytes
     * each. With a row of 7 FP16, a bag has 50 bytes. */
    const struct {
        size_t *limit, most;
    } cases[] = {{&world.limits.max_body_bytes, 1024 + 8 * 24 + 2 * 8},
                 {&world.limits.max_reply_bytes, 65536 + 8 * 24 + 2 * 36},
                 {&world.limits.max_reply_ratio, 36 / 8},
                 {&world.limits.max_work_ns_per_byte, 50 / 8}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        *cases[i].limit = cases[i].most;
        assert_false(are_joined(NULL, NULL, false));
        *cases[i].limit = cases[i].most + 1;
        assert_true(are_joined(NULL, NULL, false));
        world.limits = usual;
    }
}
