/* A coordinator whose shards are this test: it accepts the connections, reads the requests and
 * writes the replies, in the order that a case wants. The test also has its own clock, and runs the
 * loop when a case asks for it. The table has 40 rows of FP32 in two parts by rows. */
#pragma once

#include "fanout_fixture.h"
#include "server/coordinator/remote_infer.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SHARDS = 2, IN_FIRST = 1, IN_SECOND = 39, MAX_REQUEST_BYTES = 4 << 20 };

/* Maximum time for what must happen at once. */
#define PATIENCE_S 60

static struct {
    uv_loop_t loop;
    struct bag_shards *shards;
    struct bag_shard_group *group;
    struct bag_coordinator coordinator;
    size_t addresses[SHARDS];
    char folder[64];
    int listeners[SHARDS];
    bool client_left, has_newer_model;
    size_t turns;
} test;

static uint64_t clock_ns = UINT64_C(1000000000000);

static uint64_t read_clock(void)
{
    return clock_ns;
}

/* ---- inferences ------------------------------------------------------------------------------ */

/* One inference, which a client of the coordinator would ask for. */
struct asked {
    struct bag_infer infer;
    struct bag_remote_infer run;
    char *body;
    bool is_done, client_left;
};

static void on_done(struct bag_remote_infer *run)
{
    struct asked *asked = run->context;
    assert_false(asked->is_done);
    asked->is_done = true;
}

static bool is_connected(struct bag_remote_infer *run)
{
    const struct asked *asked = run->context;
    return !test.client_left && !asked->client_left;
}

static inline bool has_newer_model(struct bag_remote_infer *run)
{
    (void)run;
    return test.has_newer_model;
}

static void on_turn(void *context)
{
    (void)context;
    test.turns++;
}

/* Lets the loop handle what has happened, without waiting. */
static void turn(void)
{
    bag_coordinator_dispatch(&test.coordinator);
    for (int i = 0; i < 3; i++)
        uv_run(&test.loop, UV_RUN_NOWAIT);
}

static void advance_ms(uint64_t ms)
{
    clock_ns += ms * 1000000;
    bag_coordinator_check(&test.coordinator);
    turn();
}

/* Plans and makes an inference of `count` bags of one id each, which may join others. */
static void make_one(struct asked *asked, const int64_t *ids, size_t count, bool joins)
{
    struct bag_problem problem;
    const size_t room = 256 + count * 24;
    memset(asked, 0, sizeof *asked);
    assert_non_null(asked->body = malloc(room));
    int used = snprintf(asked->body, room,
                        "{\"parameters\":{\"binary_data_output\":true},\"inputs\":[{\"name\":"
                        "\"indices\",\"datatype\":\"INT64\",\"shape\":[%zu,1],\"data\":[",
                        count);
    for (size_t i = 0; i < count; i++)
        used += snprintf(asked->body + used, room - (size_t)used, "%s%lld", i ? "," : "",
                         (long long)ids[i]);
    used += snprintf(asked->body + used, room - (size_t)used, "]}]}");
    begin(&asked->infer, &world.front.model, asked->body, (size_t)used, (size_t)used);
    if (!bag_infer_plan(&asked->infer, NULL, &problem) ||
        !bag_remote_infer_make(&asked->run, &asked->infer, &world.buffers, joins, &problem))
        fail_msg("%s", problem.text);
    asked->run.done = on_done;
    asked->run.is_connected = is_connected;
    asked->run.context = asked;
}

static void make_inference(struct asked *asked, const int64_t *ids, size_t count)
{
    make_one(asked, ids, count, false);
}

static inline void begin_inference(struct asked *asked, const int64_t *ids, size_t count,
                                   uint64_t timeout_us)
{
    make_inference(asked, ids, count);
    bag_remote_infer_begin(&asked->run, &test.coordinator, timeout_us);
    assert_false(asked->is_done); /* never from there */
    turn();
}

static inline void ask_for(struct asked *asked, int64_t id)
{
    begin_inference(asked, &id, 1, UINT64_MAX);
}

static void free_inference(struct asked *asked)
{
    bag_remote_infer_free(&asked->run);
    bag_infer_free(&asked->infer);
    free(asked->body);
    turn();
}

/* Frees an inference that has no reply. */
static void drop_inference(struct asked *asked)
{
    bag_infer_drop(&asked->infer);
    free_inference(asked);
}

/* The inference must have ended well, with these rows; one of -1 has zeros. */
static void expect_rows(struct asked *asked, const int64_t *ids, size_t count)
{
    static const char zeros[COLUMNS * sizeof(float)];
    turn();
    assert_true(asked->is_done);
    if (asked->run.failed)
        fail_msg("%s", asked->run.subrequests.problem.text);
    bag_remote_infer_finish(&asked->run);
    const char *rows = asked->infer.output.reply + asked->infer.output.header_bytes;
    for (size_t i = 0; i < count; i++)
        assert_memory_equal(rows + i * sizeof zeros,
                            ids[i] < 0 ? (const void *)zeros
                                       : world.whole.rows + (size_t)ids[i] * sizeof zeros,
                            sizeof zeros);
    free_inference(asked);
}

static void expect_row(struct asked *asked, int64_t id)
{
    expect_rows(asked, &id, 1);
}

/* The inference must have failed with this kind and these words. */
static void expect_failure(struct asked *asked, enum bag_error kind, const char *words)
{
    turn();
    assert_true(asked->is_done && asked->run.failed);
    const struct bag_problem *problem = &asked->run.subrequests.problem;
    if (problem->kind != kind || !strstr(problem->text, words))
        fail_msg("'%s' (kind %d), not '%s' (kind %d)", problem->text, problem->kind, words, kind);
    drop_inference(asked);
}

/* ---- shards ---------------------------------------------------------------------------------- */

/* A request that the shard has read, and the connection that it came over. */
struct request {
    int fd;
    size_t shard;
    char *bytes; /* owned */
    const char *body;
    size_t body_bytes, json_bytes;
};

static bool is_time_over(uint64_t since_ns)
{
    return uv_hrtime() - since_ns > PATIENCE_S * UINT64_C(1000000000);
}

/* Accepts the next connection; -1: there is none. */
static int accept_now(size_t shard)
{
    turn();
    return accept4(test.listeners[shard], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static int accept_one(size_t shard)
{
    int fd = accept_now(shard);
    assert_true(fd >= 0);
    return fd;
}

static inline void expect_no_connection(size_t shard)
{
    assert_int_equal(accept_now(shard), -1);
}

static size_t length_in(const char *head, const char *name)
{
    const char *at = strstr(head, name);
    assert_non_null(at);
    return strtoul(at + strlen(name), NULL, 10);
}

/* Reads a whole request that comes over the connection. */
static struct request read_request(size_t shard, int fd)
{
    struct request request = {.fd = fd, .shard = shard, .bytes = malloc(MAX_REQUEST_BYTES)};
    size_t used = 0, whole = SIZE_MAX;
    assert_non_null(request.bytes);
    for (uint64_t since_ns = uv_hrtime(); used < whole;) {
        ssize_t count = recv(fd, request.bytes + used, MAX_REQUEST_BYTES - 1 - used, 0);
        if (count < 0 && errno == EAGAIN && !is_time_over(since_ns)) {
            turn();
            continue;
        }
        assert_true(count > 0);
        used += (size_t)count;
        request.bytes[used] = 0;
        const char *end = memmem(request.bytes, used, "\r\n\r\n", 4);
        if (!end)
            continue;
        request.body = end + 4;
        request.body_bytes = length_in(request.bytes, "\r\nContent-Length: ");
        request.json_bytes = length_in(request.bytes, "\r\nInference-Header-Content-Length: ");
        whole = (size_t)(request.body - request.bytes) + request.body_bytes;
    }
    assert_int_equal(used, whole);
    return request;
}

static struct request accept_request(size_t shard)
{
    return read_request(shard, accept_one(shard));
}

static inline bool has_request(int fd)
{
    char byte;
    turn();
    return recv(fd, &byte, 1, MSG_PEEK) > 0;
}

/* The coordinator must have closed the connection. Closes the test's end. */
static void expect_closed(int fd)
{
    char byte;
    turn();
    ssize_t count = recv(fd, &byte, 1, 0);
    assert_true(count == 0 || (count < 0 && errno == ECONNRESET));
    close(fd);
}

static void write_all_of(int fd, const char *bytes, size_t count)
{
    for (uint64_t since_ns = uv_hrtime(); count > 0;) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN && !is_time_over(since_ns)) {
            turn();
            continue;
        }
        assert_true(sent > 0);
        bytes += sent;
        count -= (size_t)sent;
    }
}

/* Makes the reply of the shard's part of the table. The caller frees it. */
static char *make_reply(const struct request *request, const char *header, size_t *bytes)
{
    size_t body_bytes, json_bytes;
    char *body = answer(&world.parts[request->shard].model, request->body, request->body_bytes,
                        request->json_bytes, &body_bytes, &json_bytes);
    assert_int_not_equal(json_bytes, SIZE_MAX);
    char *reply = malloc(512 + body_bytes);
    assert_non_null(reply);
    int head_bytes = snprintf(reply, 512,
                              "HTTP/1.1 200 OK\r\n%sContent-Length: %zu\r\n"
                              "Inference-Header-Content-Length: %zu\r\n\r\n",
                              header, body_bytes, json_bytes);
    memcpy(reply + head_bytes, body, body_bytes);
    bag_buffers_put(body);
    *bytes = (size_t)head_bytes + body_bytes;
    return reply;
}

/* Answers well; `header` lines end with CR LF. Leaves the connection open. */
static int reply_with(struct request *request, const char *header)
{
    size_t bytes;
    char *reply = make_reply(request, header, &bytes);
    write_all_of(request->fd, reply, bytes);
    free(reply);
    free(request->bytes);
    turn();
    return request->fd;
}

static inline int reply_well(struct request *request)
{
    return reply_with(request, "");
}

/* Answers well, for the last time over this connection. */
static void answer_and_close(struct request *request)
{
    close(reply_with(request, "Connection: close\r\n"));
}

/* Answers with a status and an error. */
static void reply_error(struct request *request, int status, const char *sentence)
{
    char reply[512], body[256];
    int body_bytes = snprintf(body, sizeof body, "{\"error\":\"%s\"}", sentence);
    int bytes = snprintf(reply, sizeof reply,
                         "HTTP/1.1 %d Unwell\r\nContent-Type: application/json\r\n"
                         "Content-Length: %d\r\n\r\n%s",
                         status, body_bytes, body);
    write_all_of(request->fd, reply, (size_t)bytes);
    free(request->bytes);
    turn();
}

/* Answers with the problem that the shard's part of the table has with the request. */
static inline void reply_problem(struct request *request)
{
    size_t bytes, json_bytes;
    char *problem = answer(&world.parts[request->shard].model, request->body, request->body_bytes,
                           request->json_bytes, &bytes, &json_bytes);
    assert_int_equal(json_bytes, SIZE_MAX);
    reply_error(request, 400, problem);
    bag_buffers_put(problem);
}

/* Makes the table one of keys, of which none may be missing, at the first shard alone. */
static inline void use_keys(void)
{
    do {
        make_world();
    } while (world.by != BAG_PART_KEYS || world.num_parts > 1 || world.dtype != BAG_F32 ||
             world.rules.missing != BAG_MISSING_ERROR || world.rules.has_default_index);
    world.front.remote.group = test.group;
    world.front.remote.addresses = test.addresses;
}

static void send_503(struct request *request)
{
    reply_error(request, 503, "too busy");
}

static void send_no_http(struct request *request)
{
    write_all_of(request->fd, "nonsense\r\n\r\n", 12);
    free(request->bytes);
    turn();
}

static void drop_request(struct request *request)
{
    close(request->fd);
    free(request->bytes);
    turn();
}

/* ---- counts and states ----------------------------------------------------------------------- */

static struct bag_shard_member *member(size_t shard)
{
    return &test.group->members[shard];
}

static unsigned long long outcomes(size_t shard, enum bag_shard_outcome outcome)
{
    return atomic_load(&member(shard)->outcomes[outcome]);
}

/* Makes the coordinator hedge requests that take longer than some milliseconds. */
static inline void learn_latency(size_t shard)
{
    for (int i = 0; i < 100; i++)
        bag_shard_latency_add(&member(shard)->latency, 1000000);
    atomic_store(&member(shard)->outcomes[BAG_SHARD_OK], 1000);
}

static void listen_at(size_t shard)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%zu", test.folder, shard);
    unlink(address.sun_path);
    test.listeners[shard] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(test.listeners[shard], (void *)&address, sizeof address), 0);
    assert_int_equal(listen(test.listeners[shard], 512), 0);
    struct bag_shard_host *host = member(shard)->host;
    memcpy(&host->endpoints[0].address, &address, sizeof address);
    host->endpoints[0].bytes = sizeof address;
    host->num_endpoints = 1;
}

static int set_up_case(void **state)
{
    struct bag_problem problem;
    char path[256];
    struct bag_model_config config = {.name = (char *)(uintptr_t) "m",
                                      .path = path,
                                      .version = (char *)(uintptr_t) "1",
                                      .hedge = BAG_SHARD_HEDGE_P95};
    (void)state;
    memset(&test, 0, sizeof test);
    snprintf(test.folder, sizeof test.folder, "/tmp/test_coordinator.XXXXXX");
    if (!mkdtemp(test.folder))
        return -1;
    random_state = 7;
    do {
        make_world();
    } while (world.by != BAG_PART_ROWS || world.dtype != BAG_F32 || world.num_parts != SHARDS ||
             world.rules.has_default_index || world.rules.prune_invalid);
    snprintf(path, sizeof path, "shards:unix:%s/0 unix:%s/1", test.folder, test.folder);
    assert_non_null(test.shards = bag_shards_make());
    test.group = bag_shards_find(test.shards, &config, &problem);
    if (!test.group)
        fail_msg("%s", problem.text);
    assert_int_equal(test.group->num_members, SHARDS);
    for (size_t i = 0; i < SHARDS; i++) {
        test.addresses[i] = i;
        listen_at(i);
    }
    world.front.remote.group = test.group;
    world.front.remote.addresses = test.addresses;
    assert_int_equal(uv_loop_init(&test.loop), 0);
    assert_true(bag_coordinator_init(&test.coordinator, &test.loop, &world.buffers, 1000));
    test.coordinator.upstreams.clock_ns = read_clock;
    test.coordinator.on_turn = on_turn;
    return 0;
}

static int tear_down_case(void **state)
{
    char path[96];
    (void)state;
    if (!TAILQ_EMPTY(&test.coordinator.active) || !TAILQ_EMPTY(&test.coordinator.ended))
        return -1; /* the case has failed */
    bag_coordinator_stop(&test.coordinator);
    uv_run(&test.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&test.loop), 0);
    bag_coordinator_free(&test.coordinator);
    bag_shard_group_release(test.group);
    bag_shards_free(test.shards);
    for (size_t i = 0; i < SHARDS; i++) {
        close(test.listeners[i]);
        snprintf(path, sizeof path, "%s/%zu", test.folder, i);
        unlink(path);
    }
    rmdir(test.folder);
    return 0;
}

/* The coordinator must have given up the request and closed its connection. */
static void expect_cancelled(struct request *request)
{
    free(request->bytes);
    expect_closed(request->fd);
}

/* The first shard answers the next request well and closes the connection; the inference has its
 * row. */
static void serve_row(struct asked *asked, int64_t id)
{
    struct request request = accept_request(0);
    answer_and_close(&request);
    expect_row(asked, id);
}

AROUND_EACH(set_up_case, tear_down_case)
