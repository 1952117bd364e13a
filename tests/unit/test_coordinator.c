/* Remote inferences, with the test as shards, client and clock: attempts and their outcomes in
 * every order, connections that are waited for, kept and closed, deadlines and cancellation. */
#include "coordinator_fixture.h"

#include <netinet/in.h>

#define BOTH ((const int64_t[]){IN_FIRST, IN_SECOND})

/* ---- replies --------------------------------------------------------------------------------- */

TEST(merges_replies_of_all_shards)
{
    struct asked asked;
    begin_inference(&asked, BOTH, 2, UINT64_MAX);
    struct request first = accept_request(0), second = accept_request(1);
    assert_non_null(strstr(first.bytes, "POST /v2/models/m/versions/3/infer HTTP/1.1\r\n"));
    int kept = reply_well(&second);
    assert_false(asked.is_done);
    int other = reply_well(&first);
    assert_int_equal(test.turns, 1);
    expect_rows(&asked, BOTH, 2);
    assert_int_equal(outcomes(0, BAG_SHARD_OK), 1);
    assert_int_equal(outcomes(1, BAG_SHARD_OK), 1);
    close(kept);
    close(other);
}

TEST(says_how_much_time_is_left)
{
    struct asked asked;
    const int64_t id = IN_FIRST;
    begin_inference(&asked, &id, 1, 300000);
    struct request request = accept_request(0);
    assert_non_null(memmem(request.body, request.json_bytes, "\"timeout\":300000}", 17));
    close(reply_well(&request));
    expect_row(&asked, IN_FIRST);
}

TEST(needs_no_shard_without_ids)
{
    struct asked asked;
    make_inference(&asked, NULL, 0);
    assert_int_equal(asked.run.subrequests.fanout.count, 0);
    bag_remote_infer_begin(&asked.run, &test.coordinator, UINT64_MAX);
    assert_false(asked.is_done);
    advance_ms(0);
    expect_rows(&asked, NULL, 0);
}

/* A reply that comes in pieces, the head as well. */
TEST(reads_replies_in_pieces)
{
    struct asked asked;
    size_t bytes;
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    char *reply = make_reply(&request, "", &bytes);
    for (size_t i = 0; i < bytes; i++) {
        assert_false(asked.is_done);
        write_all_of(request.fd, reply + i, 1);
        turn();
    }
    free(reply);
    drop_request(&request);
    expect_row(&asked, IN_FIRST);
}

/* A request that is larger than the socket's buffers, whose reply comes early: the connection is in
 * the middle of the request, and cannot be used again. */
TEST(takes_a_reply_before_all_is_sent)
{
    enum { MANY = 100000 };
    struct asked asked;
    char head[64];
    int64_t *ids = calloc(MANY, sizeof *ids);
    assert_non_null(ids);
    world.limits.max_body_bytes = 8 << 20;
    begin_inference(&asked, ids, MANY, UINT64_MAX);
    int fd = accept_one(0);
    static const char busy[] = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    write_all_of(fd, busy, strlen(busy));
    turn();
    expect_failure(&asked, BAG_ERROR_SHARD_UNAVAILABLE, "answered 503");
    while (recv(fd, head, sizeof head, 0) > 0)
        ;
    assert_int_equal(errno == EAGAIN, 0);
    close(fd);

    begin_inference(&asked, ids, MANY, UINT64_MAX);
    struct request request = accept_request(0);
    close(reply_well(&request));
    expect_rows(&asked, ids, MANY);
    world.limits.max_body_bytes = 1 << 20;
    free(ids);
}

/* ---- bad replies ----------------------------------------------------------------------------- */

static void send_and_close(struct request *request, const char *reply, size_t bytes)
{
    write_all_of(request->fd, reply, bytes);
    drop_request(request);
}

static void send_429(struct request *request)
{
    reply_error(request, 429, "too many");
}

static void send_500(struct request *request)
{
    reply_error(request, 500, "broken");
}

static void send_broken_json(struct request *request)
{
    static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n"
                                "Inference-Header-Content-Length: 12\r\n\r\n{\"outputs\":[";
    write_all_of(request->fd, reply, sizeof reply - 1);
    free(request->bytes);
    turn();
}

static void send_changed(struct request *request, const char *from, const char *to)
{
    size_t bytes;
    char *reply = make_reply(request, "", &bytes);
    char *at = memmem(reply, bytes, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    write_all_of(request->fd, reply, bytes);
    free(reply);
    free(request->bytes);
    turn();
}

static void send_another_id(struct request *request)
{
    send_changed(request, "\"id\":\"", "\"id\":\"x");
}

static void send_another_shape(struct request *request)
{
    send_changed(request, "[1,7]", "[7,1]");
}

static void send_too_much(struct request *request)
{
    static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n";
    write_all_of(request->fd, reply, sizeof reply - 1);
    free(request->bytes);
    turn();
}

static void send_an_endless_head(struct request *request)
{
    static const char line[] =
        "X-Filler: .....................................................\r\n";
    write_all_of(request->fd, "HTTP/1.1 200 OK\r\n", 17);
    for (int i = 0; i < 200; i++)
        send(request->fd, line, sizeof line - 1, MSG_NOSIGNAL);
    free(request->bytes);
    turn();
}

static void send_half(struct request *request)
{
    size_t bytes;
    char *reply = make_reply(request, "", &bytes);
    send_and_close(request, reply, bytes - 3);
    free(reply);
}

static void send_nothing(struct request *request)
{
    drop_request(request);
}

static const struct bad {
    void (*send)(struct request *request);
    enum bag_shard_outcome outcome;
    enum bag_error kind;
    const char *words;
} bad[] = {
    {send_429, BAG_SHARD_REJECTED, BAG_ERROR_SHARD_UNAVAILABLE, "answered 429: too many"},
    {send_500, BAG_SHARD_INVALID, BAG_ERROR_BAD_GATEWAY, "answered 500: broken"},
    {send_503, BAG_SHARD_REJECTED, BAG_ERROR_SHARD_UNAVAILABLE, "answered 503: too busy"},
    {send_broken_json, BAG_SHARD_INVALID, BAG_ERROR_BAD_GATEWAY, "answered"},
    {send_another_id, BAG_SHARD_INVALID, BAG_ERROR_BAD_GATEWAY, "answered"},
    {send_another_shape, BAG_SHARD_INVALID, BAG_ERROR_BAD_GATEWAY, "without output 'embeddings'"},
    {send_no_http, BAG_SHARD_INVALID, BAG_ERROR_BAD_GATEWAY, "answered wrongly"},
    {send_too_much, BAG_SHARD_INVALID, BAG_ERROR_BAD_GATEWAY, "answered 999999 bytes"},
    {send_an_endless_head, BAG_SHARD_INVALID, BAG_ERROR_BAD_GATEWAY, "head of more than 8 KiB"},
    {send_half, BAG_SHARD_CLOSED, BAG_ERROR_BAD_GATEWAY, "in the middle of its answer"},
    {send_nothing, BAG_SHARD_CLOSED, BAG_ERROR_BAD_GATEWAY, "without an answer"}};

TEST(fails_with_a_bad_reply)
{
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct asked asked;
        unsigned long long before = outcomes(0, bad[i].outcome);
        ask_for(&asked, IN_FIRST);
        struct request request = accept_request(0);
        int fd = request.fd;
        bad[i].send(&request);
        expect_failure(&asked, bad[i].kind, bad[i].words);
        assert_int_equal(outcomes(0, bad[i].outcome), before + 1);
        if (bad[i].outcome == BAG_SHARD_INVALID)
            expect_closed(fd);
        else if (bad[i].outcome == BAG_SHARD_REJECTED) { /* and kept */
            ask_for(&asked, IN_FIRST);
            request = read_request(0, fd);
            answer_and_close(&request);
            expect_row(&asked, IN_FIRST);
        }
    }
}

/* Rows of a shard that cannot answer count as missing, if the model says so; those of one that
 * answers wrongly do not. */
TEST(skips_absent_shards_only)
{
    static const int64_t without_second[] = {IN_FIRST, -1};
    world.front.remote.skips_absent = true;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct asked asked;
        begin_inference(&asked, BOTH, 2, UINT64_MAX);
        struct request first = accept_request(0), second = accept_request(1);
        int fd = second.fd;
        bad[i].send(&second);
        bool is_absent = bad[i].outcome != BAG_SHARD_INVALID;
        assert_int_equal(asked.is_done, !is_absent);
        if (is_absent) {
            reply_with(&first, "Connection: close\r\n");
            expect_rows(&asked, without_second, 2);
            close(first.fd);
        } else {
            expect_cancelled(&first);
            expect_failure(&asked, bad[i].kind, bad[i].words);
        }
        if (bad[i].outcome == BAG_SHARD_REJECTED)
            close(fd);
        else if (bad[i].outcome == BAG_SHARD_INVALID)
            expect_closed(fd);
        turn();
    }
}

/* ---- hedges ---------------------------------------------------------------------------------- */

/* Asks for a row, and lets both attempts arrive. */
static void begin_hedged(struct asked *asked, struct request attempts[2])
{
    learn_latency(0);
    ask_for(asked, IN_FIRST);
    attempts[0] = accept_request(0);
    expect_no_connection(0);
    unsigned long long before = outcomes(0, BAG_SHARD_HEDGED);
    advance_ms(3);
    assert_int_equal(outcomes(0, BAG_SHARD_HEDGED), before + 1);
    attempts[1] = accept_request(0);
    advance_ms(3); /* and none after that */
    expect_no_connection(0);
    assert_int_equal(outcomes(0, BAG_SHARD_HEDGED), before + 1);
}

/* A good reply counts, whichever attempt it answers and whatever the other one got. */
TEST(takes_the_good_reply_of_either_attempt)
{
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        for (int loser = 0; loser < 2; loser++) {
            struct asked asked;
            struct request attempts[2];
            begin_hedged(&asked, attempts);
            unsigned long long before = outcomes(0, bad[i].outcome);
            int fd = attempts[loser].fd;
            bad[i].send(&attempts[loser]);
            assert_false(asked.is_done);
            assert_int_equal(outcomes(0, bad[i].outcome), before);
            reply_with(&attempts[!loser], "Connection: close\r\n");
            close(attempts[!loser].fd);
            assert_int_equal(outcomes(0, BAG_SHARD_OK), 1001);
            expect_row(&asked, IN_FIRST);
            if (bad[i].outcome == BAG_SHARD_INVALID)
                expect_closed(fd);
            else if (bad[i].outcome == BAG_SHARD_REJECTED)
                close(fd);
            turn();
        }
    }
}

TEST(fails_with_the_last_of_two_attempts)
{
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct asked asked;
        struct request attempts[2];
        size_t other = (i + 1) % COUNT_OF(bad);
        begin_hedged(&asked, attempts);
        unsigned long long before = outcomes(0, bad[i].outcome);
        int fds[2] = {attempts[0].fd, attempts[1].fd};
        bad[other].send(&attempts[1]);
        assert_false(asked.is_done);
        bad[i].send(&attempts[0]);
        expect_failure(&asked, bad[i].kind, bad[i].words);
        assert_int_equal(outcomes(0, bad[i].outcome), before + 1);
        for (int j = 0; j < 2; j++) {
            enum bag_shard_outcome outcome = bad[j == 0 ? i : other].outcome;
            if (outcome != BAG_SHARD_CLOSED)
                close(fds[j]);
        }
        turn();
    }
}

TEST(closes_the_connection_of_the_slower_attempt)
{
    struct asked asked;
    struct request attempts[2];
    begin_hedged(&asked, attempts);
    close(reply_well(&attempts[1]));
    expect_cancelled(&attempts[0]);
    expect_row(&asked, IN_FIRST);
}

/* No more than a tenth of a shard's replies are hedged. */
TEST(suppresses_hedges_of_a_slow_shard)
{
    struct asked asked;
    learn_latency(0);
    atomic_store(&member(0)->outcomes[BAG_SHARD_HEDGED], 101);
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    advance_ms(3);
    expect_no_connection(0);
    assert_int_equal(outcomes(0, BAG_SHARD_HEDGED), 101);
    close(reply_well(&request));
    expect_row(&asked, IN_FIRST);
}

TEST(hedges_no_sooner_than_most_replies_take)
{
    struct asked asked;
    learn_latency(0);
    for (int i = 0; i < 100; i++)
        bag_shard_latency_add(&member(0)->latency, 50000000);
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    advance_ms(40);
    expect_no_connection(0);
    advance_ms(30);
    struct request hedge = accept_request(0);
    close(reply_well(&hedge));
    expect_row(&asked, IN_FIRST);
    drop_request(&request);
}

/* The percentile is the upper bound of the counter that a time is in, a quarter above its lower one
 * at most. */
TEST(counts_times_of_any_length)
{
    for (int exponent = 0; exponent < 33; exponent++) {
        for (uint64_t eighth = 0; eighth < 8; eighth++) {
            uint64_t ns = (UINT64_C(8) + eighth) << exponent >> 3;
            struct bag_shard_latency latency = {.total = 0};
            for (int i = 0; i < 40; i++)
                bag_shard_latency_add(&latency, ns);
            uint64_t p95_ns = bag_shard_latency_p95_ns(&latency);
            uint64_t least_ns = ns < 1024 ? 1024 : ns;
            assert_true(p95_ns > ns && p95_ns <= least_ns + least_ns / 4);
        }
    }
    struct bag_shard_latency longest = {.total = 0};
    for (int i = 0; i < 40; i++)
        bag_shard_latency_add(&longest, UINT64_MAX);
    assert_true(bag_shard_latency_p95_ns(&longest) == UINT64_MAX);
}

/* ---- other versions -------------------------------------------------------------------------- */

TEST(fails_at_once_if_a_shard_has_another_version)
{
    for (int status = 404; status <= 409; status += 5) {
        struct asked asked;
        struct request attempts[2];
        begin_hedged(&asked, attempts);
        for (size_t i = 0; i < SHARDS; i++)
            member(i)->due_ns = UINT64_MAX;
        reply_error(&attempts[1], status, "another");
        close(attempts[1].fd);
        assert_int_equal(asked.run.is_mismatch, true);
        assert_int_equal(member(1)->due_ns, 0); /* all shards are asked anew */
        expect_failure(&asked, BAG_ERROR_SHARD_UNAVAILABLE, ": another");
        expect_cancelled(&attempts[0]);
    }
    assert_int_equal(outcomes(0, BAG_SHARD_MISMATCH), 2);
}

TEST(waits_for_a_newer_model)
{
    for (int is_found = 0; is_found < 2; is_found++) {
        struct asked asked;
        test.has_newer_model = false;
        make_inference(&asked, BOTH, 2);
        asked.run.has_newer_model = has_newer_model;
        bag_remote_infer_begin(&asked.run, &test.coordinator, 5000000);
        struct request first = accept_request(0), second = accept_request(1);
        snprintf(test.group->reason, sizeof test.group->reason, "%s", "");
        reply_error(&second, 409, "another");
        close(second.fd);
        expect_cancelled(&first);
        advance_ms(900);
        assert_false(asked.is_done);
        test.has_newer_model = is_found;
        advance_ms(50);
        assert_int_equal(asked.is_done, is_found);
        advance_ms(1100); /* no longer than 2 s, and the coordinator's own time-out is 1 s */
        assert_true(asked.run.is_mismatch);
        expect_failure(&asked, BAG_ERROR_SHARD_UNAVAILABLE, "answered 409: another");
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

TEST(reuses_a_kept_connection)
{
    struct asked asked;
    int fd = -1;
    for (int i = 0; i < 5; i++) {
        ask_for(&asked, IN_FIRST);
        struct request request = i ? read_request(0, fd) : accept_request(0);
        fd = reply_well(&request);
        expect_row(&asked, IN_FIRST);
    }
    expect_no_connection(0);
    clock_ns += UINT64_C(19) * 1000000000;
    bag_coordinator_close_idle(&test.coordinator);
    assert_int_equal(has_request(fd), 0);
    ask_for(&asked, IN_FIRST);
    struct request request = read_request(0, fd);
    reply_well(&request);
    expect_row(&asked, IN_FIRST);
    clock_ns += UINT64_C(20) * 1000000000;
    bag_coordinator_close_idle(&test.coordinator);
    expect_closed(fd);
}

TEST(closes_a_connection_if_the_reply_says_so)
{
    struct asked asked;
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    int fd = reply_with(&request, "Connection: close\r\n");
    expect_row(&asked, IN_FIRST);
    expect_closed(fd);
}

TEST(closes_an_idle_connection_that_brings_bytes)
{
    struct asked asked;
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    int fd = reply_well(&request);
    expect_row(&asked, IN_FIRST);
    write_all_of(fd, "HTTP/1.1 200 OK\r\n", 17);
    expect_closed(fd);
    ask_for(&asked, IN_FIRST);
    serve_row(&asked, IN_FIRST);
}

/* After a wrong reply, bytes on any connection to the shard may be of another request. */
TEST(closes_idle_connections_after_a_wrong_reply)
{
    struct asked first, second;
    ask_for(&first, IN_FIRST);
    ask_for(&second, IN_FIRST);
    struct request one = accept_request(0), other = accept_request(0);
    int kept = reply_well(&one);
    expect_row(&first, IN_FIRST);
    int fd = other.fd;
    send_another_id(&other);
    expect_failure(&second, BAG_ERROR_BAD_GATEWAY, "answered");
    expect_closed(kept);
    expect_closed(fd);
}

/* The shard closes a kept connection as a request is on its way: another one is tried. */
TEST(repeats_a_request_on_a_stale_connection)
{
    for (int reads_it = 0; reads_it < 2; reads_it++) {
        struct asked asked;
        const int64_t id = IN_FIRST;
        ask_for(&asked, id);
        struct request request = accept_request(0);
        int fd = reply_well(&request);
        expect_row(&asked, id);
        make_inference(&asked, &id, 1);
        if (!reads_it)
            close(fd);
        bag_remote_infer_begin(&asked.run, &test.coordinator, UINT64_MAX);
        if (reads_it) {
            request = read_request(0, fd);
            drop_request(&request);
        }
        serve_row(&asked, id);
        assert_int_equal(outcomes(0, BAG_SHARD_CLOSED), 0);
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */

static struct bag_upstream *upstream(void)
{
    return test.coordinator.upstreams.list[member(0)->host->number];
}

/* Leaves room for one connection to the first shard. */
static void allow_one_connection(void)
{
    struct asked asked;
    ask_for(&asked, IN_FIRST);
    serve_row(&asked, IN_FIRST);
    assert_int_equal(upstream()->count, 0);
    upstream()->count = BAG_UPSTREAM_MAX_CONNECTIONS - 1;
}

TEST(waits_for_a_connection_in_turn)
{
    enum { WAITING = 4 };
    struct asked asked[WAITING];
    allow_one_connection();
    for (int i = 0; i < WAITING; i++)
        ask_for(&asked[i], IN_FIRST + i);
    struct request request = accept_request(0);
    expect_no_connection(0);
    int fd = request.fd;
    for (int i = 0; i < WAITING; i++) {
        reply_well(&request);
        expect_row(&asked[i], IN_FIRST + i);
        for (int j = i + 1; j < WAITING; j++)
            assert_false(asked[j].is_done);
        if (i + 1 < WAITING)
            request = read_request(0, fd);
    }
    close(fd);
    turn();
    assert_int_equal(upstream()->count, BAG_UPSTREAM_MAX_CONNECTIONS - 1);
    upstream()->count = 0;
}

/* The place of a connection that was closed, for whatever reason, is the next one's. */
TEST(gives_the_place_of_a_closed_connection_to_the_next)
{
    struct asked first, second, third, fourth;
    allow_one_connection();
    ask_for(&first, IN_FIRST);
    ask_for(&second, IN_FIRST);
    ask_for(&third, IN_FIRST);
    ask_for(&fourth, IN_FIRST);
    struct request request = accept_request(0);
    send_no_http(&request); /* fails */
    close(request.fd);
    expect_failure(&first, BAG_ERROR_BAD_GATEWAY, "answered wrongly");
    request = accept_request(0);
    drop_inference(&second); /* is cancelled */
    drop_request(&request);
    serve_row(&third, IN_FIRST);
    serve_row(&fourth, IN_FIRST);
    upstream()->count = 0;
}

TEST(forgets_a_cancelled_one_that_waits)
{
    struct asked first, second, third;
    allow_one_connection();
    ask_for(&first, IN_FIRST);
    ask_for(&second, IN_FIRST);
    ask_for(&third, IN_FIRST);
    struct request request = accept_request(0);
    drop_inference(&second);
    int fd = reply_well(&request);
    expect_row(&first, IN_FIRST);
    request = read_request(0, fd);
    close(reply_well(&request));
    expect_row(&third, IN_FIRST);
    upstream()->count = 0;
}

/* A waiting subrequest has not been sent, so that its answer is not late, and it is not sent
 * twice. */
TEST(hedges_nothing_that_waits)
{
    struct asked first, second;
    allow_one_connection();
    ask_for(&first, IN_FIRST);
    struct request request = accept_request(0);
    learn_latency(0);
    ask_for(&second, IN_FIRST);
    advance_ms(
        3); /* the hedge of the first subrequest waits, and the second subrequest waits too */
    assert_int_equal(outcomes(0, BAG_SHARD_HEDGED), 1);
    expect_no_connection(0);
    int fd = reply_well(&request);
    expect_row(&first, IN_FIRST);
    request = read_request(0, fd);
    reply_well(&request);
    expect_row(&second, IN_FIRST);
    assert_int_equal(has_request(fd), 0); /* the hedge went with its subrequest */
    close(fd);
    turn();
    upstream()->count = 0;
}

/* An attempt that waits is one: its subrequest outlasts the failure of the other, although the
 * place goes to a request that has waited for longer. */
TEST(outlasts_a_failure_while_a_hedge_waits)
{
    struct asked asked, other;
    allow_one_connection();
    learn_latency(0);
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    ask_for(&other, IN_FIRST);
    advance_ms(3);
    drop_request(&request);
    assert_false(asked.is_done);
    request = accept_request(0);
    int fd = reply_well(&request);
    expect_row(&other, IN_FIRST);
    assert_false(asked.is_done);
    request = read_request(0, fd);
    close(reply_well(&request));
    expect_row(&asked, IN_FIRST);
    upstream()->count = 0;
}

static rlim_t limit_descriptors(rlim_t count)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

TEST(waits_for_a_descriptor_while_it_has_connections)
{
    struct asked first, second, third;
    ask_for(&first, IN_FIRST);
    struct request request = accept_request(0);
    rlim_t before = limit_descriptors(3);
    ask_for(&second, IN_FIRST);
    ask_for(&third, IN_FIRST);
    assert_false(second.is_done);
    int fd = reply_well(&request);
    expect_row(&first, IN_FIRST);
    request = read_request(0, fd); /* the kept connection is the second's */
    reply_with(&request, "Connection: close\r\n");
    expect_row(&second, IN_FIRST);
    expect_failure(&third, BAG_ERROR_NO_MEMORY, "this server has no descriptors left to ask shard");
    limit_descriptors(before);
    close(fd);
    assert_int_equal(outcomes(0, BAG_SHARD_NO_RESOURCES), 1);
    assert_false(atomic_load(&member(0)->host->is_unavailable));
}

TEST(does_without_a_hedge_if_it_lacks_descriptors)
{
    struct asked asked;
    learn_latency(0);
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    rlim_t before = limit_descriptors(3);
    advance_ms(3);
    assert_int_equal(outcomes(0, BAG_SHARD_HEDGED), 1);
    assert_false(asked.is_done);
    int fd = reply_well(&request);
    expect_row(&asked, IN_FIRST);
    limit_descriptors(before);
    assert_int_equal(has_request(fd), 0);
    close(fd);
    assert_int_equal(outcomes(0, BAG_SHARD_NO_RESOURCES), 0);
}

TEST(rejects_replies_without_memory)
{
    struct bag_budget budget = {.max_bytes = 1};
    struct bag_buffers small;
    struct asked asked;
    assert_true(bag_buffers_init(&small, true, &budget));
    test.coordinator.upstreams.buffers = &small;
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    close(reply_well(&request));
    expect_failure(&asked, BAG_ERROR_NO_MEMORY, "a shard's answer");
    assert_int_equal(outcomes(0, BAG_SHARD_NO_RESOURCES), 1);
    bag_buffers_free(&small);
}

/* ---- shards that are unavailable ------------------------------------------------------------- */

TEST(tries_a_refused_connection_once_more)
{
    struct asked asked;
    struct bag_shard_host *host = member(0)->host;
    host->endpoints[1] = host->endpoints[0]; /* nobody listens at the first of two places */
    struct sockaddr_un *nobody = (void *)&host->endpoints[0].address;
    strcpy(nobody->sun_path + strlen(nobody->sun_path), "x");
    host->num_endpoints = 2;
    ask_for(&asked, IN_FIRST);
    serve_row(&asked, IN_FIRST);
    assert_int_equal(outcomes(0, BAG_SHARD_REFUSED), 0);
}

/* No server listens, either at a Unix-domain socket or at a port. */
TEST(is_refused_twice_at_most)
{
    for (int is_port = 0; is_port < 2; is_port++) {
        struct asked asked;
        struct bag_shard_host *host = member(0)->host;
        for (size_t i = 0; i < SHARDS; i++)
            member(i)->due_ns = UINT64_MAX;
        host->endpoints[0].address = (struct sockaddr_storage){.ss_family = AF_UNIX};
        strcpy(((struct sockaddr_un *)&host->endpoints[0].address)->sun_path,
               "/tmp/nobody/listens");
        if (is_port) {
            struct sockaddr_in *port = (void *)&host->endpoints[0].address;
            *port = (struct sockaddr_in){
                .sin_family = AF_INET, .sin_port = htons(1), .sin_addr = {htonl(INADDR_LOOPBACK)}};
            host->endpoints[0].bytes = sizeof *port;
        }
        host->turn = 0;
        ask_for(&asked, IN_FIRST);
        advance_ms(0);
        expect_failure(&asked, BAG_ERROR_SHARD_UNAVAILABLE,
                       is_port ? "Connection refused" : "No such file or directory");
        assert_int_equal(host->turn, 2);
        assert_true(atomic_load(&host->is_unavailable));
        assert_int_equal(member(0)->due_ns, 0);

        ask_for(&asked, IN_FIRST); /* known by now: it is not asked */
        advance_ms(0);
        expect_failure(&asked, BAG_ERROR_SHARD_UNAVAILABLE, "it does not answer");
        assert_int_equal(host->turn, 2);
        atomic_store(&host->is_unavailable, false);
    }
    assert_int_equal(outcomes(0, BAG_SHARD_REFUSED), 4);
}

TEST(asks_no_shard_that_is_known_to_be_unavailable)
{
    static const int64_t without_second[] = {IN_FIRST, -1};
    struct asked asked;
    world.front.remote.skips_absent = true;
    for (int i = 0; i < 2; i++) {
        atomic_store(&member(1)->host->is_unavailable, i == 0);
        atomic_store(&member(1)->reports_no_model, i == 1);
        begin_inference(&asked, BOTH, 2, UINT64_MAX);
        struct request request = accept_request(0);
        expect_no_connection(1);
        answer_and_close(&request);
        expect_rows(&asked, without_second, 2);
    }
    assert_int_equal(outcomes(1, BAG_SHARD_REFUSED), 2);
}

TEST(says_that_a_name_does_not_resolve)
{
    struct asked asked;
    member(0)->host->num_endpoints = 0;
    ask_for(&asked, IN_FIRST);
    advance_ms(0);
    expect_failure(&asked, BAG_ERROR_SHARD_UNAVAILABLE, "its name does not resolve");
}

/* ---- time and ends --------------------------------------------------------------------------- */

TEST(fails_at_the_deadline)
{
    struct asked asked;
    begin_inference(&asked, BOTH, 2, UINT64_MAX);
    struct request first = accept_request(0), second = accept_request(1);
    close(reply_well(&first));
    advance_ms(999);
    assert_false(asked.is_done);
    advance_ms(1);
    expect_failure(&asked, BAG_ERROR_SHARD_TIMEOUT,
                   "has not answered within 1000 ms (shard_timeout_ms)");
    assert_int_equal(outcomes(0, BAG_SHARD_TIMEOUT), 0);
    assert_int_equal(outcomes(1, BAG_SHARD_TIMEOUT), 1);
    expect_cancelled(&second);
}

/* Shards that are late are absent, but not if it is the client who has no time. */
TEST(skips_late_shards_unless_the_client_has_no_time)
{
    static const int64_t none[] = {-1, -1};
    world.front.remote.skips_absent = true;
    for (int is_clients = 0; is_clients < 2; is_clients++) {
        struct asked asked;
        make_inference(&asked, BOTH, 2);
        asked.infer.plan.timeout_us = 200000;
        bag_remote_infer_begin(&asked.run, &test.coordinator, is_clients ? 150000 : UINT64_MAX);
        struct request first = accept_request(0), second = accept_request(1);
        advance_ms(150);
        assert_int_equal(asked.is_done, is_clients);
        advance_ms(850);
        if (is_clients)
            expect_failure(&asked, BAG_ERROR_SHARD_TIMEOUT,
                           "within 200 ms (the request's timeout)");
        else
            expect_rows(&asked, none, 2);
        drop_request(&first);
        drop_request(&second);
    }
}

/* A shard whose own time is over as well says 504: it is late, and not busy. */
TEST(takes_an_error_after_the_deadline_for_lateness)
{
    struct asked asked;
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    clock_ns += UINT64_C(1000000000);
    reply_error(&request, 504, "late");
    expect_failure(&asked, BAG_ERROR_SHARD_TIMEOUT, "has not answered within 1000 ms");
    assert_int_equal(outcomes(0, BAG_SHARD_TIMEOUT), 1);
    assert_int_equal(outcomes(0, BAG_SHARD_REJECTED), 0);
    close(request.fd);
}

TEST(ends_when_the_client_leaves)
{
    struct asked asked;
    test.coordinator.timeout_ns = UINT64_C(60000000000);
    ask_for(&asked, IN_FIRST);
    struct request request = accept_request(0);
    test.client_left = true;
    advance_ms(1249);
    assert_false(asked.is_done);
    advance_ms(1);
    expect_failure(&asked, BAG_ERROR_CANCELLED, "the client has closed the connection");
    expect_cancelled(&request);
}

/* In every state of its subrequests. */
TEST(ends_when_it_is_freed)
{
    struct asked asked;
    make_inference(&asked, BOTH, 2); /* not begun */
    drop_inference(&asked);
    for (int stage = 0; stage < 3; stage++) {
        begin_inference(&asked, BOTH, 2, UINT64_MAX);
        struct request first = accept_request(0), second = accept_request(1);
        if (stage == 1)
            answer_and_close(&first);
        if (stage == 2)
            write_all_of(first.fd, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n12", 40);
        turn();
        drop_inference(&asked);
        assert_false(asked.is_done);
        if (stage != 1) {
            expect_cancelled(&first);
        }
        expect_cancelled(&second);
    }
    assert_int_equal(upstream()->count, 0);
}

/* A client's missing key is the client's error, and the shard's good answer. */
TEST(blames_the_client_for_a_missing_key)
{
    struct asked asked;
    use_keys();
    ask_for(&asked, IN_FIRST); /* a number that is no key */
    struct request request = accept_request(0);
    int fd = request.fd;
    reply_problem(&request);
    expect_failure(&asked, BAG_ERROR_BAD_REQUEST, "a key that the table does not have");
    assert_int_equal(outcomes(0, BAG_SHARD_OK), 1);
    close(fd);
    turn();
}
