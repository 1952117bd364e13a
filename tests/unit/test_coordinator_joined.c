/* Inferences that travel together: which are sent as one, their rows, and their failures. */
#include "coordinator_fixture.h"

/* Ids of bags of one inference each, of either shard. */
#define IDS ((const int64_t[]){1, 39, 2, 38, 3, 37, 4, 36})

/* Begins an inference that may join others, in this iteration of the loop. */
static void begin_joining(struct asked *asked, const int64_t *ids, size_t count,
                          uint64_t timeout_us)
{
    make_one(asked, ids, count, true);
    if (timeout_us != UINT64_MAX)
        asked->infer.plan.timeout_us = timeout_us;
    bag_remote_infer_begin(&asked->run, &test.coordinator, timeout_us);
    assert_false(asked->is_done);
}

/* Begins inferences of one row of the first shard each, in this iteration of the loop. */
static void begin_each(struct asked *asked, size_t count)
{
    for (size_t i = 0; i < count; i++)
        begin_joining(&asked[i], &IDS[2 * i + 2], 1, UINT64_MAX);
}

static void expect_bags(const struct request *request, size_t count)
{
    char text[64];
    snprintf(text, sizeof text, "\"shape\":[%zu],", count);
    assert_non_null(memmem(request->body, request->json_bytes, text, strlen(text)));
}

/* Returns whether one of the keys of a request is none of the table's. */
static bool has_wrong_id(const struct request *request)
{
    size_t bytes, json_bytes;
    bag_buffers_put(answer(&world.parts[request->shard].model, request->body, request->body_bytes,
                           request->json_bytes, &bytes, &json_bytes));
    return json_bytes == SIZE_MAX;
}

/* ---- together -------------------------------------------------------------------------------- */

/* Each ends with the last reply that it needs. */
TEST(sends_what_begins_in_one_iteration_as_one)
{
    struct asked asked[3], later;
    begin_joining(&asked[0], &IDS[0], 1, UINT64_MAX);
    begin_joining(&asked[1], &IDS[1], 1, UINT64_MAX);
    begin_joining(&asked[2], &IDS[4], 4, UINT64_MAX);
    struct request request = accept_request(0), second = accept_request(1);
    expect_bags(&request, 3);
    expect_bags(&second, 3);
    begin_joining(&later, &IDS[0], 1, UINT64_MAX); /* waits for none of them */
    serve_row(&later, IDS[0]);
    answer_and_close(&request);
    expect_rows(&asked[0], &IDS[0], 1); /* the others go on without the first */
    assert_false(asked[1].is_done || asked[2].is_done);
    answer_and_close(&second);
    expect_rows(&asked[1], &IDS[1], 1);
    expect_rows(&asked[2], &IDS[4], 4);
    assert_int_equal(outcomes(0, BAG_SHARD_OK), 2);
    assert_int_equal(outcomes(1, BAG_SHARD_OK), 1);
}

/* Inferences that do not fit into one request are sent in several. */
TEST(sends_many_in_several_requests)
{
    enum { MANY = 1000 };
    static struct asked asked[MANY];
    size_t num_requests = 0;
    for (size_t i = 0; i < MANY; i++)
        begin_joining(&asked[i], &(const int64_t){(int64_t)(i % 20)}, 1, UINT64_MAX);
    for (; !asked[MANY - 1].is_done; num_requests++) {
        struct request request = accept_request(0);
        answer_and_close(&request);
    }
    assert_in_range(num_requests, MANY / 128 + 1, MANY / 16);
    for (size_t i = 0; i < MANY; i++)
        expect_row(&asked[i], (int64_t)(i % 20));
}

TEST(joins_none_of_another_model)
{
    struct asked asked, other;
    const struct bag_model model = world.front.model;
    begin_each(&asked, 1);
    make_one(&other, &IDS[4], 1, true);
    other.infer.input.model = &model; /* as after a reload */
    bag_remote_infer_begin(&other.run, &test.coordinator, UINT64_MAX);
    struct request requests[2] = {accept_request(0), accept_request(0)};
    for (size_t i = 0; i < 2; i++) {
        expect_bags(&requests[i], 1);
        answer_and_close(&requests[i]);
    }
    expect_row(&asked, IDS[2]);
    expect_row(&other, IDS[4]);
}

/* A timeout of shard_timeout_ms or more is as good as none. */
TEST(joins_none_of_another_timeout)
{
    struct asked asked[5];
    begin_joining(&asked[0], &IDS[0], 1, UINT64_MAX);
    begin_joining(&asked[1], &IDS[2], 1, 200000);
    begin_joining(&asked[2], &IDS[4], 1, 200000);
    begin_joining(&asked[3], &IDS[6], 1, 200001);
    begin_joining(&asked[4], &IDS[2], 1, 1000000);
    struct request requests[3];
    static const char *const timeouts[] = {":1000000}", ":200000}", ":200001}"};
    for (size_t i = 0; i < 3; i++) {
        requests[i] = accept_request(0);
        expect_bags(&requests[i], i < 2 ? 2 : 1);
        assert_non_null(
            memmem(requests[i].body, requests[i].json_bytes, timeouts[i], strlen(timeouts[i])));
    }
    advance_ms(200);
    for (size_t i = 1; i < 3; i++)
        expect_failure(&asked[i], BAG_ERROR_SHARD_TIMEOUT,
                       "0 has not answered within 200 ms (the request's timeout)");
    expect_cancelled(&requests[1]);
    expect_no_connection(0);
    for (size_t i = 0; i < 3; i += 2)
        answer_and_close(&requests[i]);
    expect_row(&asked[0], IDS[0]);
    expect_row(&asked[3], IDS[6]);
    expect_row(&asked[4], IDS[2]);
}

TEST(joins_nothing_large)
{
    enum { MANY = 40000 };
    struct asked asked;
    int64_t *ids = calloc(MANY, sizeof *ids);
    assert_non_null(ids);
    make_one(&asked, ids, MANY, false);
    assert_false(bag_remote_infer_may_join(&asked.infer));
    drop_inference(&asked);
    free(ids);
    make_one(&asked, IDS, 2, false);
    assert_true(bag_remote_infer_may_join(&asked.infer));
    atomic_store(&member(1)->host->is_unavailable, true);
    assert_false(bag_remote_infer_may_join(&asked.infer));
    drop_inference(&asked);
}

/* ---- alone ----------------------------------------------------------------------------------- */

static void send_400(struct request *request)
{
    reply_error(request, 400, "bad");
}

static void send_409(struct request *request)
{
    reply_error(request, 409, "another part");
}

/* Each is sent again by itself, whatever a shard says about the request for all. */
TEST(sends_each_again_by_itself)
{
    static void (*const bad[])(struct request *) = {send_409, send_503, send_400, send_no_http,
                                                    drop_request};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct asked asked[3];
        begin_each(asked, 3);
        struct request request = accept_request(0);
        expect_bags(&request, 3);
        int fd = request.fd;
        bad[i](&request);
        if (i < 2) { /* the first one that is sent again has the kept connection */
            request = read_request(0, fd);
            expect_bags(&request, 1);
            answer_and_close(&request);
            struct request others[2] = {accept_request(0), accept_request(0)};
            for (size_t j = 0; j < 2; j++)
                answer_and_close(&others[j]);
        } else {
            if (bad[i] != drop_request)
                expect_closed(fd);
            for (size_t j = 0; j < 3; j++) {
                request = accept_request(0);
                expect_bags(&request, 1);
                answer_and_close(&request);
            }
        }
        for (size_t j = 0; j < 3; j++)
            expect_row(&asked[j], IDS[2 * j + 2]);
    }
}

/* An inference without ids in a request that fails goes on, whichever of them began first. */
TEST(sends_only_those_again_that_failed)
{
    for (size_t unhurt = 0; unhurt < 3; unhurt++) {
        struct asked asked[3];
        for (size_t i = 0; i < 3; i++)
            begin_joining(&asked[i], &IDS[i != unhurt], 1 + (i == 2 && unhurt != 2), UINT64_MAX);
        struct request request = accept_request(0), second = accept_request(1);
        drop_request(&second);
        for (size_t i = 0; i < 2; i++) {
            second = accept_request(1);
            expect_bags(&second, 1);
            answer_and_close(&second);
        }
        if (unhurt != 2) { /* the other half of the last one */
            struct request half = accept_request(0);
            expect_bags(&half, 1);
            answer_and_close(&half);
        }
        for (size_t i = 0; i < 3; i++) {
            if (i != unhurt)
                expect_rows(&asked[i], &IDS[1], 1 + (i == 2 && unhurt != 2));
        }
        assert_false(asked[unhurt].is_done);
        answer_and_close(&request);
        expect_row(&asked[unhurt], IDS[0]);
    }
}

/* Rows of a shard that is absent are missing only for those that need them. */
TEST(names_absent_shards_to_those_that_need_them)
{
    static const int64_t missing = -1;
    struct asked asked[2];
    world.front.remote.skips_absent = true;
    begin_joining(&asked[0], &IDS[2], 1, UINT64_MAX);
    begin_joining(&asked[1], &IDS[1], 1, UINT64_MAX);
    struct request request = accept_request(0), second = accept_request(1);
    drop_request(&second);
    second = accept_request(1);
    drop_request(&second);
    expect_rows(&asked[1], &missing, 1);
    answer_and_close(&request);
    assert_null(strstr(asked[0].infer.scratch.absent, test.folder));
    expect_row(&asked[0], IDS[2]);
}

/* A wrong id fails the inference that has it. The others travel again, at most a quarter of all at
 * a time, until they travel alone. */
TEST(fails_those_with_wrong_ids)
{
    enum { MANY = 16, MOST_WRONG = 5 };
    use_keys();
    for (size_t num_wrong = 1; num_wrong <= MOST_WRONG; num_wrong++) {
        struct asked asked[MANY];
        size_t num_requests = 0, num_refused = 0;
        for (size_t i = 0; i < MANY; i++) {
            const int64_t id = i < num_wrong ? 1000 + (int64_t)i : key_of(i);
            begin_joining(&asked[i], &id, 1, UINT64_MAX);
        }
        for (int fd; (fd = accept_now(0)) >= 0; close(fd)) {
            do {
                struct request request = read_request(0, fd);
                num_requests++;
                if (has_wrong_id(&request)) {
                    reply_problem(&request);
                    num_refused++;
                } else {
                    reply_with(&request, "Connection: close\r\n");
                }
            } while (has_request(fd)); /* over the kept connection */
        }
        assert_int_equal(num_refused, num_wrong);
        /* All, four quarters, and three of the first quarter one by one. */
        assert_int_equal(num_requests, num_wrong == 1 ? 5 : 8);
        for (size_t i = 0; i < MANY; i++) {
            char words[64];
            snprintf(words, sizeof words, "'indices' at position 0 is %zu, a key that", 1000 + i);
            if (i < num_wrong)
                expect_failure(&asked[i], BAG_ERROR_BAD_REQUEST, words);
            else
                expect_row(&asked[i], (int64_t)i);
        }
    }
}

/* Begins one with an id of the first shard, one of the second and one of both. */
static void begin_three(struct asked *asked)
{
    begin_joining(&asked[0], &IDS[0], 1, UINT64_MAX);
    begin_joining(&asked[1], &IDS[1], 1, UINT64_MAX);
    begin_joining(&asked[2], &IDS[0], 2, UINT64_MAX);
}

/* Only those that need a shard wait for it, up to the deadline. Nothing is sent again then. */
TEST(fails_at_the_deadline_of_a_shard)
{
    for (size_t late = 0; late < SHARDS; late++) {
        struct asked asked[3];
        char words[64];
        begin_three(asked);
        struct request requests[SHARDS] = {accept_request(0), accept_request(1)};
        answer_and_close(&requests[!late]);
        expect_row(&asked[!late], IDS[!late]);
        advance_ms(999);
        assert_false(asked[late].is_done || asked[2].is_done);
        advance_ms(1);
        snprintf(words, sizeof words, "/%zu has not answered within 1000 ms (shard_timeout_ms)",
                 late);
        expect_failure(&asked[late], BAG_ERROR_SHARD_TIMEOUT, words);
        expect_failure(&asked[2], BAG_ERROR_SHARD_TIMEOUT, words);
        expect_cancelled(&requests[late]);
        for (size_t i = 0; i < SHARDS; i++)
            expect_no_connection(i);
        assert_int_equal(outcomes(late, BAG_SHARD_TIMEOUT), 1);
        assert_int_equal(outcomes(!late, BAG_SHARD_TIMEOUT), late);
    }
}

/* Rows of a shard that is late are missing, and those of the other one are not. */
TEST(names_late_shards_to_those_that_need_them)
{
    static const int64_t none = -1, first[] = {1, -1};
    struct asked asked[3];
    world.front.remote.skips_absent = true;
    begin_three(asked);
    struct request request = accept_request(0), second = accept_request(1);
    answer_and_close(&request);
    assert_null(strstr(asked[0].infer.scratch.absent, test.folder));
    expect_row(&asked[0], IDS[0]);
    advance_ms(1000);
    for (size_t i = 1; i < 3; i++) {
        const char *name = strstr(asked[i].infer.scratch.absent, test.folder);
        assert_memory_equal(name + strlen(test.folder), "/1\"", 3);
        assert_null(strstr(name + 1, test.folder));
    }
    expect_rows(&asked[1], &none, 1);
    expect_rows(&asked[2], first, 2);
    expect_cancelled(&second);
    for (size_t i = 0; i < SHARDS; i++)
        expect_no_connection(i);
}

/* The others keep the request. */
TEST(ends_alone_when_its_client_leaves)
{
    for (size_t leaver = 0; leaver < 3; leaver++) {
        struct asked asked[3];
        test.coordinator.timeout_ns = UINT64_C(60000000000);
        begin_each(asked, 3);
        struct request request = accept_request(0);
        asked[leaver].client_left = true;
        advance_ms(1249);
        assert_false(asked[leaver].is_done);
        advance_ms(1);
        expect_failure(&asked[leaver], BAG_ERROR_CANCELLED, "the client has closed");
        const size_t second = leaver == 0;
        asked[second].client_left = true;
        advance_ms(250);
        expect_failure(&asked[second], BAG_ERROR_CANCELLED, "the client has closed");
        expect_no_connection(0);
        answer_and_close(&request);
        expect_row(&asked[3 - leaver - second], IDS[2 * (3 - leaver - second) + 2]);
    }
}

/* Inferences that travel together, or are queued, are freed one after the other, as when a server
 * stops. */
TEST(goes_on_without_those_that_are_freed)
{
    for (size_t freed = 0; freed < 3; freed++) {
        struct asked asked[3];
        begin_each(asked, 3);
        struct request request = accept_request(0);
        expect_bags(&request, 3);
        drop_inference(&asked[freed]);
        const size_t second = freed == 0;
        drop_inference(&asked[second]);
        expect_no_connection(0);
        answer_and_close(&request);
        expect_row(&asked[3 - freed - second], IDS[2 * (3 - freed - second) + 2]);

        begin_each(asked, 3);
        drop_inference(&asked[freed]);
        request = accept_request(0);
        expect_bags(&request, 2);
        for (size_t i = 0; i < 3; i++) {
            if (i != freed)
                drop_inference(&asked[i]);
        }
        expect_cancelled(&request);
    }
}

/* One that asks for nothing waits for nobody. */
TEST(ends_at_once_without_ids)
{
    for (size_t empty = 0; empty < 2; empty++) {
        struct asked asked[2];
        for (size_t i = 0; i < 2; i++)
            begin_joining(&asked[i], &IDS[0], i != empty, UINT64_MAX);
        struct request request = accept_request(0);
        expect_rows(&asked[empty], NULL, 0);
        answer_and_close(&request);
        expect_row(&asked[!empty], IDS[0]);
    }
}

/* Without memory for the subrequests of all, each gets its own error. */
TEST(fails_without_memory)
{
    struct bag_budget budget = {.max_bytes = 1};
    struct bag_buffers small;
    struct asked asked[2];
    assert_true(bag_buffers_init(&small, true, &budget));
    begin_each(asked, 2);
    for (size_t i = 0; i < 2; i++)
        asked[i].infer.scratch.buffers = &small;
    advance_ms(0);
    for (size_t i = 0; i < 2; i++)
        expect_failure(&asked[i], BAG_ERROR_NO_MEMORY, "requests to shards");
    bag_buffers_free(&small);
}
