/* Inferences that travel together: which are sent as one, their rows, and their failures. */
#include "coordinator_fixture.h"

AROUND_ALL(set_up, tear_down)
AROUND_EACH(set_up_case, tear_down_case)

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

/* The first shard answers one request for each of these rows, in this order. */
static void serve_each(struct asked *asked, size_t count)
{
    struct request requests[4];
    for (size_t i = 0; i < count; i++) {
        requests[i] = accept_request(0);
        expect_bags(&requests[i], 1);
    }
    for (size_t i = 0; i < count; i++)
        close(reply_with(&requests[i], "Connection: close\r\n"));
    for (size_t i = 0; i < count; i++)
        expect_row(&asked[i], IDS[2 * i + 2]);
}

/* ---- together -------------------------------------------------------------------------------- */

TEST(sends_what_begins_in_one_iteration_as_one)
{
    struct asked asked[3], later;
    begin_joining(&asked[0], &IDS[0], 4, UINT64_MAX);
    begin_joining(&asked[1], &IDS[1], 1, UINT64_MAX);
    begin_joining(&asked[2], &IDS[4], 4, UINT64_MAX);
    struct request request = accept_request(0), second = accept_request(1);
    expect_bags(&request, 4);
    expect_bags(&second, 5);
    begin_joining(&later, &IDS[0], 1, UINT64_MAX); /* waits for none of them */
    serve_row(&later, IDS[0]);
    close(reply_with(&second, "Connection: close\r\n"));
    assert_false(asked[1].is_done);
    close(reply_with(&request, "Connection: close\r\n"));
    expect_rows(&asked[1], &IDS[1], 1);
    expect_rows(&asked[0], &IDS[0], 4);
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
        close(reply_with(&request, "Connection: close\r\n"));
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
        close(reply_with(&requests[i], "Connection: close\r\n"));
    }
    expect_row(&asked, IDS[2]);
    expect_row(&other, IDS[4]);
}

TEST(joins_nothing_large_or_hurried)
{
    enum { MANY = 40000 };
    struct asked asked;
    int64_t *ids = calloc(MANY, sizeof *ids);
    assert_non_null(ids);
    make_one(&asked, ids, MANY, false);
    assert_false(bag_remote_infer_may_join(&asked.infer));
    bag_infer_drop(&asked.infer);
    free_inference(&asked);
    free(ids);
    make_one(&asked, IDS, 2, false);
    assert_true(bag_remote_infer_may_join(&asked.infer));
    asked.infer.plan.timeout_us = 9999;
    assert_false(bag_remote_infer_may_join(&asked.infer));
    asked.infer.plan.timeout_us = UINT64_MAX;
    atomic_store(&member(1)->host->is_unavailable, true);
    assert_false(bag_remote_infer_may_join(&asked.infer));
    bag_infer_drop(&asked.infer);
    free_inference(&asked);
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

static void send_503(struct request *request)
{
    reply_error(request, 503, "too busy");
}

static void send_nonsense(struct request *request)
{
    write_all_of(request->fd, "nonsense\r\n\r\n", 12);
    free(request->bytes);
    turn();
}

/* Each is sent again by itself, whatever a shard says about the request for all. */
TEST(sends_each_again_by_itself)
{
    static void (*const bad[])(struct request *) = {send_409, send_503, send_400, send_nonsense,
                                                    drop_request};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct asked asked[3];
        begin_each(asked, 3);
        struct request request = accept_request(0);
        expect_bags(&request, 3);
        int fd = request.fd;
        bad[i](&request);
        if (i < 2) { /* the kept connection is the first one's */
            request = read_request(0, fd);
            expect_bags(&request, 1);
            close(reply_with(&request, "Connection: close\r\n"));
            expect_row(&asked[0], IDS[2]);
            struct request others[2] = {accept_request(0), accept_request(0)};
            for (size_t j = 0; j < 2; j++)
                close(reply_with(&others[j], "Connection: close\r\n"));
            for (size_t j = 0; j < 2; j++)
                expect_row(&asked[j + 1], IDS[2 * j + 4]);
        } else {
            if (bad[i] != drop_request)
                expect_closed(fd);
            serve_each(asked, 3);
        }
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
    expect_cancelled(&request);
    struct request first = accept_request(0);
    second = accept_request(1);
    drop_request(&second);
    expect_rows(&asked[1], &missing, 1);
    close(reply_with(&first, "Connection: close\r\n"));
    assert_int_equal(asked[0].run.subrequests.fanout.count, 1);
    assert_int_equal(asked[0].run.subrequests.list[0].state, BAG_SUBREQUEST_ANSWERED);
    expect_row(&asked[0], IDS[2]);
}

TEST(fails_alone_at_its_deadline)
{
    struct asked asked[2];
    begin_joining(&asked[0], &IDS[2], 1, UINT64_MAX);
    begin_joining(&asked[1], &IDS[4], 1, 200000);
    struct request request = accept_request(0);
    expect_bags(&request, 2);
    assert_non_null(memmem(request.body, request.json_bytes, "\"timeout\":200000}", 17));
    advance_ms(200);
    expect_cancelled(&request);
    request = accept_request(0);
    expect_bags(&request, 1);
    assert_non_null(memmem(request.body, request.json_bytes, "\"timeout\":800000}", 17));
    struct request late = accept_request(0);
    advance_ms(0);
    expect_failure(&asked[1], BAG_ERROR_SHARD_TIMEOUT, "within 200 ms (the request's timeout)");
    expect_cancelled(&late);
    close(reply_with(&request, "Connection: close\r\n"));
    expect_row(&asked[0], IDS[2]);
}

TEST(ends_alone_when_its_client_leaves)
{
    for (size_t leaver = 0; leaver < 2; leaver++) {
        struct asked asked[2];
        test.coordinator.timeout_ns = UINT64_C(60000000000);
        begin_each(asked, 2);
        struct request request = accept_request(0);
        asked[leaver].client_left = true;
        advance_ms(1250);
        expect_cancelled(&request);
        struct request requests[2] = {accept_request(0), accept_request(0)};
        advance_ms(0);
        expect_failure(&asked[leaver], BAG_ERROR_CANCELLED, "the client has closed");
        expect_cancelled(&requests[leaver]);
        close(reply_with(&requests[!leaver], "Connection: close\r\n"));
        expect_row(&asked[!leaver], IDS[2 * !leaver + 2]);
    }
}

/* One of those that travel together, or are queued, is freed; the others are answered. */
TEST(goes_on_without_one_that_is_freed)
{
    for (size_t freed = 0; freed < 3; freed++) {
        struct asked asked[3];
        begin_each(asked, 3);
        struct request request = accept_request(0);
        expect_bags(&request, 3);
        bag_infer_drop(&asked[freed].infer);
        free_inference(&asked[freed]);
        expect_cancelled(&request);
        struct request requests[2] = {accept_request(0), accept_request(0)};
        for (size_t i = 0; i < 2; i++)
            close(reply_with(&requests[i], "Connection: close\r\n"));
        for (size_t i = 0; i < 3; i++) {
            if (i != freed)
                expect_row(&asked[i], IDS[2 * i + 2]);
        }

        begin_each(asked, 3);
        bag_infer_drop(&asked[freed].infer);
        free_inference(&asked[freed]);
        request = accept_request(0);
        expect_bags(&request, 2);
        close(reply_with(&request, "Connection: close\r\n"));
        for (size_t i = 0; i < 3; i++) {
            if (i != freed)
                expect_row(&asked[i], IDS[2 * i + 2]);
        }
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
